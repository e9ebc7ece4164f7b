"""What holds where there is no control plane, and that programs started for tests never outlive them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.controlplane.binaries import REQUIRED_BY, program
from tests.support.controlplane.processes import Process, wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
STARTS_AND_WAITS = """
import pathlib, sys, time
from tests.support.controlplane.processes import Process
print(Process(["/bin/sleep", "600"], pathlib.Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""
needs_setpriv = pytest.mark.skipif(program("setpriv") is None, reason="only Linux has it")


def run_where_all_is_lacking(**environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != REQUIRED_BY}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/controlplane/test_control_plane.py"]
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**kept, "PATH": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_summary_says_how_many_tests_were_left_out_and_why() -> None:
    done = run_where_all_is_lacking()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ tests were left out: there is no `go` in PATH \(install Go", done.stdout, re.MULTILINE)
    assert "no `etcd` in PATH (on Debian and Ubuntu: apt install etcd-server)" in done.stdout


def test_where_they_are_required_that_is_a_failure() -> None:
    done = run_where_all_is_lacking(**{REQUIRED_BY: "1"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the tests against a control plane are asked for, but there is no `go` in PATH" in done.stdout


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@needs_setpriv
def test_a_killed_parent_takes_its_programs_along(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS_AND_WAITS, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        wait_for(lambda: Path(f"/proc/{pid}/cmdline").read_text().startswith("/bin/sleep"), "the program has started")
        parent.kill()
    wait_for(lambda: gone(pid), "the program is gone")


@needs_setpriv
def test_a_program_that_ends_early_is_reported_with_its_words(tmp_path: Path) -> None:
    process = Process(["/bin/sh", "-c", "echo the port is taken; exit 1"], tmp_path / "log")
    with pytest.raises(AssertionError, match=r"sh ended before it is ready(?s:.)*the port is taken"):
        wait_for(lambda: False, "it is ready", process=process)
