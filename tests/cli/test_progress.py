"""A plan that takes long shows how far it is, on a terminal and nowhere else."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

from tests.support.serving import cagrpc, command
from tests.support.waiting import AMPLE_SECONDS

ROOT = Path(__file__).parents[2]
INPUTS = (
    *("--pods", ROOT / "tests" / "data" / "openb-1000.csv"),
    *("--provisioners", ROOT / "cagrpc" / "data" / "provisioners" / "amd64.yaml"),
    *("--budget", "1s"),
)


def test_the_gap_is_shown_on_a_terminal(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with (tmp_path / "out").open("w") as out:
        running = subprocess.Popen(command("plan", *INPUTS), stdout=out, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    while True:
        try:
            read = os.read(controller, 4096)
        except OSError:  # the other end is closed
            break
        shown += read
        if not read:
            break
    os.close(controller)
    assert running.wait(AMPLE_SECONDS) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    found = re.findall(r"planning [\d,]+ pods: \$([\d.]+)/h, at least \$([\d.]+)/h \(gap ([\d.]+)%\)", text)
    assert found, text
    costs, bounds, gaps = ([float(each[index]) for each in found] for index in range(3))
    assert sorted(costs, reverse=True) == costs
    assert sorted(bounds) == bounds
    assert sorted(gaps, reverse=True) == gaps
    assert "gap" in (tmp_path / "out").read_text()
    assert "\x1b" not in (tmp_path / "out").read_text()


def test_nothing_of_it_is_piped() -> None:
    done = cagrpc("plan", *INPUTS)
    assert done.returncode == 0
    assert not done.stderr
    assert "planning" not in done.stdout
