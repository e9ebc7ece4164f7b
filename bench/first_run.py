"""What a newcomer waits for: `make run ONCE=1` on a fresh clone, again, and with nothing but packages in a cache; a
server that is ready; the first plan. Beside them, in the same run, what any project with these packages has to wait
for: pip installing the same lock file, and importing OR-Tools.

    python -m bench.first_run [--no-pip]

Prints one line for each: wall seconds, CPU seconds with all child processes, and the latter as multiples of both
baselines, which hold on other machines too. It downloads all packages twice (`--no-pip`: once), some 500 MB, so it is
no part of `make bench`.
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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Took:
    """What a command took."""

    seconds: float
    cpu_seconds: float
    """User and system time, of its child processes too."""
    output: str = ""


def line(what: str, took: Took, pip: Took | None, ortools: Took | None, goal: str = "") -> str:
    """Return the line of one measurement."""
    times = [f"{took.cpu_seconds / each.cpu_seconds:8.2f}" if each else " " * 8 for each in (pip, ortools)]
    return f"{what:<56} {took.seconds:7.1f} {took.cpu_seconds:7.1f} {times[0]} {times[1]}  {goal}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-pip", action="store_true", help="without the baseline of pip, which downloads all again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        _measure(Path(directory), with_pip=not arguments.no_pip)


def _measure(directory: Path, *, with_pip: bool) -> None:
    print(machine_line(machine()))
    print(f"{'what':<56} {'wall s':>7} {'CPU s':>7} {'x pip':>8} {'x import':>8}  goal", flush=True)
    caches = {"PIP_CACHE_DIR": str(directory / "pip"), "UV_CACHE_DIR": str(directory / "uv")}
    clone, again = directory / "clone", directory / "again"
    for target in (clone, again):
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)
    python = str(clone / ".venv" / "bin" / "python")
    run = ("make", "run", "ONCE=1")

    first = _timed(run, clone, caches)
    for _ in range(2):  # the second has its bytecode
        ortools = _timed((python, "-c", "from ortools.sat.python import cp_model"), clone, caches)
    pip = _pip(directory, caches) if with_pip else None
    if pip:
        print(line("baseline: a new environment, and pip install of the lock", pip, pip, ortools))
    print(line("baseline: import ortools.sat.python.cp_model", ortools, pip, ortools))
    print(line("make run ONCE=1, a fresh clone, no package in a cache", first, pip, ortools, "40 s"), flush=True)
    print(line("the same again, in the same clone", _timed(run, clone, caches), pip, ortools, "15 s"), flush=True)
    print(line("a fresh clone, packages in uv's cache", _timed(run, again, caches), pip, ortools), flush=True)
    print(line("cagrpc serve, until it is ready", _ready(clone, directory), pip, ortools, "3 s"), flush=True)
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


def _environment() -> dict[str, str]:
    """Return a stranger's: nothing that points to this checkout or its interpreter."""
    mine = {"PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "NUMBA_CACHE_DIR"}
    return {name: value for name, value in os.environ.items() if name not in mine}


def _pip(directory: Path, caches: Mapping[str, str]) -> Took:
    """Install the lock as `make INSTALLER=pip` does, into an environment of its own, with nothing in the cache."""
    target, empty = directory / "by-pip", {**caches, "PIP_CACHE_DIR": str(directory / "empty")}
    made = _timed((sys.executable, "-m", "venv", str(target)), directory, empty)
    install = (str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes", "-r")
    installed = _timed((*install, str(ROOT / "requirements.lock")), directory, empty)
    shutil.rmtree(target)
    return Took(made.seconds + installed.seconds, made.cpu_seconds + installed.cpu_seconds)


def _ready(clone: Path, directory: Path) -> Took:
    """Start a server with a new state directory; return what it took until it had announced its endpoints."""
    state = directory / "state"
    command = (str(clone / ".venv" / "bin" / "cagrpc"), "serve", "--ephemeral-ports")
    quietly = ("--log-level", "warning", "--state-dir", str(state))
    began = time.perf_counter()
    with _running((*command, *quietly), clone) as process:
        while not (state / "endpoints.json").exists():
            if process.poll() is not None or time.perf_counter() > began + READY_SECONDS:
                raise RuntimeError(f"the server did not become ready: {process.poll()}")
            time.sleep(_POLL_SECONDS)
        return Took(time.perf_counter() - began, _cpu_seconds(process.pid))


@contextmanager
def _running(command: Sequence[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, cwd=directory, env=_environment(), stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


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
