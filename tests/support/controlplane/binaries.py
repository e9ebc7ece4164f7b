"""Programs of other projects: what a machine lacks for them, and building them once. No processes of a cluster.

Each `GoModule` is a directory with `go.mod`, `go.sum` and perhaps a program of our own. The ordinary Go client builds
it into `build/<name>/`, in a directory named for what it was built from. Go's own caches hold the modules and the
compiled packages: the first build takes minutes, one after `make clean` seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_BUILD = _HERE.parents[2] / "build"
TO_BUILD = ("go", "setpriv")
"""What any of these takes."""
TO_RUN = (*TO_BUILD, "etcd")
"""What a control plane takes."""
REQUIRED_BY = "CAGRPC_REQUIRE_PROGRAMS"
"""An environment variable: where it is set, a machine that lacks something fails the tests, else they are left out."""

_WHAT_TO_DO = {
    "go": "install Go 1.21 or newer from https://go.dev/dl/; it fetches the version that go.mod names",
    "cargo": "install Rust 1.85 or newer, by https://rustup.rs (the profile minimal is enough)",
    "etcd": "on Debian and Ubuntu: apt install etcd-server",
    "setpriv": "on Debian and Ubuntu: apt install util-linux",
    "chromium": "on Debian: apt install chromium",
    "curl": "on Debian and Ubuntu: apt install curl",
    "jq": "on Debian and Ubuntu: apt install jq",
}
"""Each program that tests run and that is not built for them, and how one gets it."""
_ALSO_NAMED = {"chromium": "chromium-browser"}


class CannotBuild(Exception):  # noqa: N818 - named for what happened
    """The Go client failed; its words are in the message."""


@dataclass(frozen=True, slots=True)
class GoModule:
    """Programs that are built together, once for all tests that need them."""

    name: str
    directory: Path
    package: str = "tool"
    """The programs of the `tool` directives, or `.`, the program in the directory; both with a space between."""
    versioned: str = ""
    """The Go module whose version Kubernetes' programs are to call their own (the packages `component-base/version`):
    from the source alone they would not know."""
    tags: str = ""
    """Go's build constraints."""
    modfile: str = "go.mod"
    """Of several definitions in one directory the one that counts, with its `.sum` beside it."""

    @property
    def cache(self) -> Path:
        return _BUILD / self.name


CONTROL_PLANE = GoModule("controlplane", _HERE, versioned="k8s.io/kubernetes")
NEWEST_CONTROL_PLANE = replace(CONTROL_PLANE, name="newest-controlplane", modfile="newest.mod")
"""The same of the newest release, for what it has that the control plane of all other tests has not."""
KARPENTER = GoModule("karpenter", _HERE / "modules" / "karpenter", package=".")
"""Its core with the kwok provider behind a stock, in one program named `karpenter`."""
CLUSTER_API = GoModule("cluster-api", _HERE / "modules" / "cluster-api")
"""Its core provider, in one program named `core`."""
HELM = GoModule("helm", _HERE / "modules" / "helm")
"""Its client, which renders and installs deploy/chart: one program named `helm`."""
PROMETHEUS = GoModule("prometheus", _HERE / "modules" / "prometheus", tags="remove_all_sd")
"""`prometheus`, without the discovery of clouds, whose SDKs take most of a build, and `promtool`."""
KUBECTL = GoModule("kubectl", _HERE / "modules" / "kubectl", package="tool .", versioned="k8s.io/kubernetes")
"""kubectl, and as `kubelet` a kubelet's part in forwarding ports."""

KARPENTER_SCHEDULER = GoModule("karpenter-scheduler", _HERE / "modules" / "karpenter-scheduler", package=".")
"""`karpenter-scheduler`: Karpenter's scheduler over pods and types from stdin, for bench/karpenter_scheduler.py."""
ORACLE = GoModule("oracle", _HERE / "modules" / "oracle", package=".")
"""`oracle`: the plug-ins of the control plane's kube-scheduler over objects from stdin, for tests/oracle."""
OLDEST_ORACLE = replace(ORACLE, name="oldest-oracle", tags="oldest", modfile="oldest.mod")
"""The same over the plug-ins of the oldest release of which the program can be built."""
RPC = GoModule("rpc", _HERE / "modules" / "rpc", package=".")
"""`rpc`: the server and the client of bench/rpc.py."""

DAILY = (CONTROL_PLANE, KUBECTL, ORACLE)
LONG = (NEWEST_CONTROL_PLANE, OLDEST_ORACLE, KARPENTER, CLUSTER_API, HELM, PROMETHEUS, RPC)
"""What only tests with the mark `long` run."""


def lacking(*names: str) -> str | None:
    """What the machine lacks of these programs, by default to run a control plane, and what to do; None where it lacks
    nothing."""
    return "; ".join(_absent(names or TO_RUN)) or None


def _absent(names: Iterable[str]) -> list[str]:
    return [f"there is no `{name}` in PATH ({_WHAT_TO_DO[name]})" for name in names if not program(name)]


def required() -> bool:
    return os.environ.get(REQUIRED_BY, "").lower() not in {"", "0", "false"}


def program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(_ALSO_NAMED.get(name, name))


def build(module: GoModule = CONTROL_PLANE) -> Path:
    """The directory of the programs, built now where they are not yet. Raises CannotBuild.

    Several processes may ask at once: one builds, the others wait for it.
    """
    written = module.directory / module.modfile
    definition = written.read_bytes()
    rest = [written.with_suffix(".sum"), *sorted(module.directory.glob("*.go"))]
    parts = (definition, *(path.read_bytes() for path in rest), module.tags.encode())
    key = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    cache = module.cache
    done = cache / key
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            half = cache / f"{key}.half"
            shutil.rmtree(half, ignore_errors=True)
            flags = ["-modfile", module.modfile, "-tags", module.tags]
            flags += ["-ldflags", _flags(module.versioned, definition.decode())]
            _go(module, "build", "-mod=readonly", *flags, "-o", f"{half}{os.sep}", *module.package.split())
            for old in cache.iterdir():
                if old.is_dir() and old != half:
                    shutil.rmtree(old)
            half.rename(done)
    return done


def source(module: GoModule, path: str) -> Path:
    """The directory of the Go module of this path, in the version that `module` requires: in Go's cache, so nothing
    may be changed there. Raises CannotBuild."""
    return Path(json.loads(_go(module, "mod", "download", "-json", path))["Dir"])


def _flags(versioned: str, definition: str) -> str:
    flags = "-s -w"
    if versioned:
        found = re.search(rf"{re.escape(versioned)} v(\d+)\.(\d+)\.\S+", definition)
        assert found, f"go.mod requires {versioned}"
        base, version = "k8s.io/component-base/version", found[0].split()[1]
        flags += f" -X {base}.gitVersion={version} -X {base}.gitMajor={found[1]} -X {base}.gitMinor={found[2]}"
    return flags


def _go(module: GoModule, *arguments: str) -> str:
    go, setpriv = program("go"), program("setpriv")
    assert go, "asked for only where nothing is lacking"
    assert setpriv, "asked for only where nothing is lacking"
    # It ends with the thread that waits for it: nothing is left running where the tests end before the build.
    command = [setpriv, "--pdeathsig", "KILL", "--", go, *arguments]
    done = subprocess.run(command, cwd=module.directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuild(f"{' '.join(command)} in {module.directory} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str] = ()) -> int:
    """Build what the tests run that `make test-cluster` selects, and with the argument `long` what all others run as
    well, or say what the machine lacks for them and return 1."""
    if absent := _absent(_WHAT_TO_DO):
        print("These tests run programs that are not here:", *absent, sep="\n  ", file=sys.stderr)
        return 1
    for each in (*DAILY, *(LONG if "long" in arguments else ())):
        print(f"{each.name}: {build(each).relative_to(_BUILD.parent)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
