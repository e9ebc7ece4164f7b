"""What the bench of the first run shows, and the pods that it plans."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench import first_run
from tests.support import described as manifests


def test_all_pods_of_openb_are_planned(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(first_run.openb_with_counts())
    read = manifests.read([path])
    assert sum(each.count for each in read.pod_sets) == 8_152


def test_cpu_time_is_shown_as_multiples_of_both_baselines() -> None:
    pip, ortools = first_run.Took(90.0, 60.0), first_run.Took(0.5, 0.4)
    words = first_run.line("a plan", first_run.Took(6.0, 3.0), pip, ortools, "6 s").split()
    assert words == ["a", "plan", "6.0", "3.0", "0.05", "7.50", "6", "s"]
    without = first_run.line("a plan", first_run.Took(6.0, 3.0), None, ortools).split()
    assert without == ["a", "plan", "6.0", "3.0", "7.50"]


def test_the_steps_of_make_run() -> None:
    printed = [
        (0.1, "python3 -m venv --without-pip .venv"),
        (0.5, "python3 -m pip --python .venv/bin/python install --require-hashes -r requirements-uv.lock"),
        (2.5, ".venv/bin/uv pip install --quiet --require-hashes -r requirements.lock"),
        (9.5, ".venv/bin/cagrpc serve --replay three-deployments --once"),
        (11.0, "provider  127.0.0.1:8086"),
        (11.1, "provider_id of something"),
        (14.0, "Replay of three-deployments"),
    ]
    steps = dict(first_run.timeline(printed, 14.5))
    assert list(steps) == [name for name in first_run.STEPS if name not in {"cagrpc itself", "protos, once more"}]
    assert steps["packages, from their index"] == pytest.approx(7.0)
    assert steps["the replay"] == pytest.approx(3.0)
    assert steps["its end"] == pytest.approx(0.5)


def test_memory_of_a_running_process() -> None:
    assert 5 < first_run._mebibytes(os.getpid()) < 10_000


def test_a_stranger_has_nothing_of_this_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "/here")
    code = "import os; print(os.environ.get('PYTHONPATH'), os.environ['CACHE'], os.getcwd())"
    took = first_run._timed((sys.executable, "-c", code), tmp_path, {"CACHE": "empty"})
    assert took.output.split() == ["None", "empty", str(tmp_path)]
    assert took.seconds >= 0 < took.cpu_seconds


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux has /proc")
def test_cpu_time_of_a_running_process() -> None:
    assert 0 < first_run._cpu_seconds(os.getpid()) <= sum(os.times()[:2]) + 1
