"""The programs of the control plane: what a machine lacks for them, and building them once. No processes of a cluster.

kube-apiserver, kube-scheduler and kube-controller-manager are built by the ordinary Go client from the module beside
this file (`go.mod`, `go.sum`), into `build/controlplane/`, in a directory named for what they were built from. Go's own
caches hold the modules and the compiled packages: the first build takes minutes, one after `make clean` seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

MODULE = Path(__file__).resolve().parent
CACHE = MODULE.parents[2] / "build" / "controlplane"
REQUIRED_BY = ("CI", "CAGRPC_REQUIRE_CONTROLPLANE")
"""Environment variables: where one is set, a machine that lacks something fails the tests, else they are left out."""

_WHAT_TO_DO = {
    "go": "install Go from https://go.dev/dl/, 1.21 or newer; it fetches the version that go.mod names",
    "etcd": "on Debian and Ubuntu: apt install etcd-server",
    "setpriv": "on Debian and Ubuntu: apt install util-linux",
}


class CannotBuild(Exception):  # noqa: N818 - named for what happened
    """The Go client failed; its words are in the message."""


def lacking() -> str | None:
    """What the machine lacks to run a control plane and what to do, None where it lacks nothing."""
    absent = [f"there is no `{name}` in PATH ({advice})" for name, advice in _WHAT_TO_DO.items() if not program(name)]
    return "; ".join(absent) or None


def required() -> bool:
    return any(os.environ.get(name, "").lower() not in {"", "0", "false"} for name in REQUIRED_BY)


def program(name: str) -> str | None:
    return shutil.which(name)


def build() -> Path:
    """The directory of the programs, built now where they are not yet. Raises CannotBuild.

    Several processes may ask at once: one builds, the others wait for it.
    """
    definition = (MODULE / "go.mod").read_bytes()
    version = re.search(rb"k8s\.io/kubernetes (v[\d.]+)\n", definition)
    assert version, "go.mod requires k8s.io/kubernetes"
    key = hashlib.sha256(definition + (MODULE / "go.sum").read_bytes()).hexdigest()[:16]
    done = CACHE / key
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            half = CACHE / f"{key}.half"
            shutil.rmtree(half, ignore_errors=True)
            _compile(half, version[1].decode())
            for old in CACHE.iterdir():
                if old.is_dir() and old != half:
                    shutil.rmtree(old)
            half.rename(done)
    return done


def _compile(target: Path, version: str) -> None:
    """`version` is what the programs say that they are; from the source alone they would not know."""
    base = "k8s.io/component-base/version"
    major, minor, _ = version.removeprefix("v").split(".")
    flags = f"-s -w -X {base}.gitVersion={version} -X {base}.gitMajor={major} -X {base}.gitMinor={minor}"
    go, setpriv = program("go"), program("setpriv")
    assert go, "asked for only where nothing is lacking"
    assert setpriv, "asked for only where nothing is lacking"
    # It ends with the thread that waits for it: nothing is left running where the tests end before the build.
    command = [
        setpriv,
        "--pdeathsig",
        "KILL",
        "--",
        go,
        "build",
        "-mod=readonly",
        "-ldflags",
        flags,
        "-o",
        f"{target}{os.sep}",
        "tool",
    ]
    done = subprocess.run(command, cwd=MODULE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuild(f"{' '.join(command)} in {MODULE} failed:\n{done.stdout}{done.stderr}")
