"""Ctrl-C while a command plans: the best plan so far with its bound, and exit code 130."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from cagrpc.cli.interruption import interruptible
from solver.model.budget import Interruption
from tests.support.serving import command
from tests.support.waiting import AMPLE_SECONDS

ROOT = Path(__file__).parents[2]
PODS = 2400


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    """Pods of so many sizes that no machine proves the best plan for them, and more time than any test has."""
    chance = random.Random(7)
    rows = [
        f"web-{number},{chance.randrange(100, 9000)},{chance.randrange(100, 30_000)},0,8" for number in range(PODS // 8)
    ]
    (tmp_path / "pods.csv").write_text("\n".join(["name,cpu_milli,memory_mib,num_gpu,count", *rows, ""]))
    provisioners = ROOT / "cagrpc" / "data" / "provisioners" / "amd64.yaml"
    return ["--pods", str(tmp_path / "pods.csv"), "--provisioners", str(provisioners), "--budget", "1h"]


def interrupted(out: Path, arguments: Sequence[object], shown: bytes) -> tuple[int, str]:
    """Run the command until it shows something on its terminal, send it SIGINT, and return its exit code and what it
    shows then."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with out.open("w") as stdout:
        running = subprocess.Popen(command(*arguments), stdout=stdout, stderr=terminal, env=environment)
    os.close(terminal)
    told, sent = b"", False
    try:
        while read := _read(controller):
            told += read
            if shown in told and not sent:
                running.send_signal(signal.SIGINT)
                told, sent = b"", True
        return running.wait(AMPLE_SECONDS), told.decode()
    finally:
        running.kill()
        os.close(controller)


def _read(controller: int) -> bytes:
    try:
        return os.read(controller, 4096)
    except OSError:  # the other end is closed
        return b""


def test_the_best_plan_so_far_is_printed_with_its_bound(tmp_path: Path, inputs: list[str]) -> None:
    code, told = interrupted(tmp_path / "out", ["plan", *inputs, "--output", "json"], b" at least $")
    assert code == 130
    assert "interrupted; the best plan so far follows" in told
    plan = json.loads((tmp_path / "out").read_text())
    assert plan["interrupted"] is True
    assert plan["status"] == "feasible"
    assert sum(sum(each["pods"].values()) * each["count"] for each in plan["nodes"]) == PODS
    assert not plan["unplaced"]
    assert 0 < plan["lower_bound"] < plan["cost_per_hour"]
    assert 0 < plan["gap"] < 1


def test_a_plan_that_is_interrupted_is_printed_for_people_too(tmp_path: Path, inputs: list[str]) -> None:
    code, told = interrupted(tmp_path / "out", ["plan", *inputs], b" at least $")
    assert code == 130
    assert "interrupted; the best plan so far follows" in told
    printed = " ".join((tmp_path / "out").read_text().split())
    assert f"{PODS:,} of {PODS:,} pods placed" in printed
    assert "no plan that serves as much costs less than $" in printed


def test_a_second_one_ends_at_once() -> None:
    """Also what does not hear of the first one."""
    deaf = (
        "import threading; from cagrpc.cli.interruption import interruptible;"
        "interruptible(lambda _: (print('working', flush=True), threading.Event().wait()))"
    )
    running = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stderr is not None
    with running.stdout, running.stderr:
        assert running.stdout.readline() == b"working\n"
        running.send_signal(signal.SIGINT)
        assert running.stderr.readline() == b"\n"
        assert b"Ctrl-C again ends at once" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        assert running.wait(AMPLE_SECONDS) == 130


def test_where_there_is_no_plan_yet_it_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    """As while the planner is compiled."""

    def waits(interruption: Interruption) -> None:
        ended = threading.Event()
        with interruption.stopping(ended.set):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert ended.wait(AMPLE_SECONDS)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interruptible(waits)
    assert capfd.readouterr().err.endswith("cagrpc: there is no plan yet\n")


def test_so_of_an_explanation(tmp_path: Path, inputs: list[str]) -> None:
    code, told = interrupted(tmp_path / "out", ["explain", *inputs, "--output", "json"], b" at least $")
    assert code == 130
    assert "interrupted; the best plan so far follows" in told
    explained = json.loads((tmp_path / "out").read_text())
    assert explained["interrupted"] is True
    assert "costs less than $" in explained["summary"]
