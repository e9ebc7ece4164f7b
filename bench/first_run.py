"""What a newcomer waits for: the page of `make run`, and `make run ONCE=1` on a fresh clone, step by step; the same
again, and with nothing but packages in a cache; a server that is ready, and its memory; the first plan. Beside them, in
the same run, what any project with these packages has to wait for: pip installing the same lock file, and importing
OR-Tools.

    python -m bench.first_run [--no-pip] [--commit COMMIT]

Prints one line for each: wall seconds, CPU seconds with all child processes, and the latter as multiples of both
baselines, which hold on other machines too; of the steps, wall seconds alone. What is compiled in the background is
waited for between measurements. It downloads all packages twice (`--no-pip`: once), some 500 MB, so it is no part of
`make bench`; and it serves on the ports of the embedded configuration. `--commit` measures another version of cagrpc.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from bench.table import machine, machine_line

ROOT = Path(__file__).resolve().parent.parent
OPENB = ROOT / "bench" / "data" / "openb-classes.csv"
NODE_POOL = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: amd64}
spec: {template: {spec: {requirements: [{key: kubernetes.io/arch, operator: In, values: [amd64]}]}}}
"""
READY_SECONDS = 300.0
PAGE = "http://127.0.0.1:8088/"
STEPS = {
    "the environment": "-m venv ",
    "uv, by pip": "requirements-uv.lock",
    "packages, from their index": "-r requirements.lock",
    "cagrpc itself": "--editable .",
    "protos, once more": "tools/build_protos.py",
    "the server, until it is ready": "cagrpc serve ",
    "the replay": "provider ",
    "its end": "Replay of ",
}
"""What `make run ONCE=1` does, and what the first line of it has in it."""
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Took:
    """What a command took."""

    seconds: float
    cpu_seconds: float
    """User and system time, of its child processes too."""
    output: str = ""


def timeline(lines: Iterable[tuple[float, str]], ended: float) -> list[tuple[str, float]]:
    """Return each step with its seconds: `lines` are printed at these seconds, and the last step ends with `ended`."""
    begins: dict[str, float] = {}
    for seconds, text in lines:
        for step, mark in STEPS.items():
            if mark in text:
                begins.setdefault(step, seconds)
    ends = [*list(begins.values())[1:], ended]
    return [(step, end - began) for (step, began), end in zip(begins.items(), ends, strict=True)]


def line(what: str, took: Took, pip: Took | None, ortools: Took | None, goal: str = "") -> str:
    """Return the line of one measurement."""
    times = [f"{took.cpu_seconds / each.cpu_seconds:8.2f}" if each else " " * 8 for each in (pip, ortools)]
    return f"{what:<56} {took.seconds:7.1f} {took.cpu_seconds:7.1f} {times[0]} {times[1]}  {goal}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-pip", action="store_true", help="without the baseline of pip, which downloads all again")
    parser.add_argument("--commit", default="HEAD", help="the version to measure (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        _measure(Path(directory), arguments.commit, with_pip=not arguments.no_pip)


def _measure(directory: Path, commit: str, *, with_pip: bool) -> None:
    print(machine_line(machine()))
    print(f"{'what':<56} {'wall s':>7} {'CPU s':>7} {'x pip':>8} {'x import':>8}  goal", flush=True)
    caches = {"PIP_CACHE_DIR": str(directory / "pip"), "UV_CACHE_DIR": str(directory / "uv")}
    clone, again = directory / "clone", directory / "again"
    for target in (clone, again):
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)
        version = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", commit], text=True).strip()
        subprocess.run(["git", "-C", str(target), "checkout", "--quiet", "--detach", version], check=True)
    python = str(clone / ".venv" / "bin" / "python")
    run = ("make", "run", "ONCE=1")

    page, steps, first = _watched(run, clone, caches)
    _compile(clone)
    for _ in range(2):  # the second has its bytecode
        ortools = _timed((python, "-c", "from ortools.sat.python import cp_model"), clone, caches)
    pip = _pip(directory, caches) if with_pip else None
    if pip:
        print(line("baseline: a new environment, and pip install of the lock", pip, pip, ortools))
    print(line("baseline: import ortools.sat.python.cp_model", ortools, pip, ortools))
    print(f"{'the page of make run, a fresh clone, no package cached':<56} {page:7.1f}{'20 s':>31}")
    print(line("make run ONCE=1, a fresh clone, no package cached", first, pip, ortools, "30 s"), flush=True)
    for step, seconds in steps:
        print(f"  {step:<54} {seconds:7.1f}")
    print(line("the same again, in the same clone", _timed(run, clone, caches), pip, ortools, "10 s"), flush=True)
    _, steps, cached = _watched(run, again, caches)
    print(line("a fresh clone, packages in uv's cache", cached, pip, ortools), flush=True)
    for step, seconds in steps:
        print(f"  {step:<54} {seconds:7.1f}")
    _compile(again)
    ready, mebibytes = _ready(clone, directory / "state")
    print(line(f"cagrpc serve, until it is ready: {mebibytes} MiB", ready, pip, ortools, "2 s, 200 MiB"), flush=True)
    planned, mebibytes = _ready(clone, directory / "replayed", "--replay", "three-deployments")
    print(line(f"and until a recording is replayed: {mebibytes} MiB", planned, pip, ortools), flush=True)
    for budget, goal in ((5, "6 s"), (1, "gap 3 %")):
        took = _plan(clone, directory, budget)
        gap = json.loads(took.output)["gap"]
        what = f"cagrpc plan --budget {budget}s of openb: gap {100 * gap:.2f} %"
        print(line(what, took, pip, ortools, goal), flush=True)


def _timed(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> Took:
    """Run to the end. Raises subprocess.CalledProcessError where it fails."""
    before, wall = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, cwd=directory, env={**_environment(), **environment}, check=True, stdout=subprocess.PIPE, text=True
    )
    after = getrusage(RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(time.perf_counter() - wall, cpu, done.stdout)


def _watched(
    command: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> tuple[float, list[tuple[str, float]], Took]:
    """Run to the end; return the seconds until the page was there, those of each step, and the whole."""
    before, wall = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    found: list[float] = []
    ended = threading.Event()

    def look() -> None:
        while not found and not ended.wait(_POLL_SECONDS):
            with suppress(OSError), urllib.request.urlopen(PAGE, timeout=READY_SECONDS):
                found.append(time.perf_counter() - wall)

    looking = threading.Thread(target=look)
    looking.start()
    lines = []
    environment = {**_environment(), **environment}
    try:
        with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [(time.perf_counter() - wall, each) for each in process.stdout]
    finally:
        ended.set()
        looking.join()
    seconds, after = time.perf_counter() - wall, getrusage(RUSAGE_CHILDREN)
    if process.returncode or not found:
        raise RuntimeError(f"{' '.join(command)} failed, or its page was not seen at {PAGE}: {process.returncode}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found[0], timeline(lines, seconds), Took(seconds, cpu)


def _compile(clone: Path) -> None:
    """Wait for what is compiled in the background."""
    _timed((str(clone / ".venv" / "bin" / "python"), "-m", "solver.planning.warm_up"), clone, {})


def _environment() -> dict[str, str]:
    """Return a stranger's: nothing that points to this checkout or its interpreter."""
    mine = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "NUMBA_CACHE_DIR"}
    return {name: value for name, value in os.environ.items() if name not in mine}


def _pip(directory: Path, caches: Mapping[str, str]) -> Took:
    """Install the lock as `make INSTALLER=pip` does, into an environment of its own, with nothing in the cache."""
    target, empty = directory / "by-pip", {**caches, "PIP_CACHE_DIR": str(directory / "empty")}
    made = _timed((sys.executable, "-m", "venv", str(target)), directory, empty)
    install = (str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes", "-r")
    installed = _timed((*install, str(ROOT / "requirements.lock")), directory, empty)
    shutil.rmtree(target)
    return Took(made.seconds + installed.seconds, made.cpu_seconds + installed.cpu_seconds)


def _ready(clone: Path, state: Path, *replay: str) -> tuple[Took, int]:
    """Start a server with a new state directory; return what it took until it had announced its endpoints, or had
    replayed a recording, and its memory then, in MiB."""
    command = (str(clone / ".venv" / "bin" / "cagrpc"), "serve", "--ephemeral-ports", *replay)
    quietly = ("--log-level", "warning", "--state-dir", str(state))
    began = time.perf_counter()
    with _running((*command, *quietly), clone) as process:
        while not ((state / "endpoints.json").exists() if not replay else _says_that_it_serves(process)):
            if process.poll() is not None or time.perf_counter() > began + READY_SECONDS:
                raise RuntimeError(f"the server did not become ready: {process.poll()}")
            time.sleep(_POLL_SECONDS)
        return Took(time.perf_counter() - began, _cpu_seconds(process.pid)), _mebibytes(process.pid)


@contextmanager
def _running(command: Sequence[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, cwd=directory, env=_environment(), stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def _says_that_it_serves(process: subprocess.Popen[bytes]) -> bool:
    """Read its next line."""
    assert process.stdout is not None
    return process.stdout.readline().startswith(b"serving;")


def _mebibytes(pid: int) -> int:
    """Return the resident memory of a running process (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(each.split()[1]) for each in status if each.startswith("VmRSS:")) // 1024


def _cpu_seconds(pid: int) -> float:
    """Return the user and system time of a running process and its threads (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _plan(clone: Path, directory: Path, budget_seconds: int) -> Took:
    pods, node_pool = directory / "pods.csv", directory / "node-pool.yaml"
    pods.write_text(openb_with_counts())
    node_pool.write_text(NODE_POOL)
    files = ("--pods", str(pods), "--provisioners", str(node_pool))
    command = (str(clone / ".venv" / "bin" / "cagrpc"), "plan", *files, "--budget", f"{budget_seconds}s")
    return _timed((*command, "--output", "json"), clone, {})


def openb_with_counts() -> str:
    """Return all pods of openb as the command line reads them: with a column `count`."""
    columns = ("name", "cpu_milli", "memory_mib", "num_gpu")
    with OPENB.open(newline="") as file:
        rows = [(*(row[name] for name in columns), row["all"]) for row in csv.DictReader(file)]
    return "\n".join(",".join(row) for row in ((*columns, "count"), *rows)) + "\n"


if __name__ == "__main__":
    main()
