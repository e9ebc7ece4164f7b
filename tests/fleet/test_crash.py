"""A process is killed at every step of an increment's life and restarted: it ends consistent, and the log of a backend
outside of it shows each order and each delete once. Processes are simulated (`tests.support.kills`) over a real
journal; some die by SIGKILL."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.crash_stories import STORIES, End, Story, run
from tests.support.kills import Killed, Steps
from tests.support.stub_backend import Executed
from tests.support.waiting import AMPLE_SECONDS


def _check_end(story: Story, end: End, directory: Path, at: str) -> None:
    outside = Executed.read(directory / "outside.json")
    orders, deletes = outside.of("order"), outside.of("delete")
    assert len(orders) == len(set(orders)) == story.orders, at
    assert len(deletes) == len(set(deletes)) == story.deletes, at
    assert set(orders) <= end.tokens, at
    assert end.targets == story.targets, at
    assert end.phases == [story.phase], at
    assert end.instances == sorted(outside.instances), at
    assert len(end.instances) == sum(story.targets.values()), at
    told = directory / "held"
    held = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    assert {len(instances) for instances in held} == story.held, at
    assert all(set(instances) <= outside.instances.keys() for instances in held), at


def _directory(tmp_path: Path, name: str) -> Path:
    directory = tmp_path / name
    directory.mkdir()
    return directory


def _steps(story: Story, directory: Path) -> list[str]:
    """All steps of a process that is never killed."""
    step = Steps()
    _check_end(story, run(story, directory, step), directory, "never killed")
    return step.names


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_killed_at_any_step_it_ends_as_if_nothing_had_happened(tmp_path: Path, story: Story) -> None:
    steps = _steps(story, _directory(tmp_path, "calm"))
    reached = {step.removeprefix("after commit ") for step in steps if step.startswith("after commit ")}
    assert story.steps <= reached
    assert "executed order, not answered" in steps
    for fatal, name in enumerate(steps, start=1):
        directory, step = _directory(tmp_path, str(fatal)), Steps(fatal)
        with pytest.raises(Killed):
            run(story, directory, step)
        assert step.names == steps[:fatal]
        _check_end(story, run(story, directory, Steps()), directory, name)


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_killed_again_and_again_it_still_ends_so(tmp_path: Path, story: Story) -> None:
    for fatal in range(1, 100):
        try:
            end = run(story, tmp_path, Steps(fatal))
        except Killed:
            continue
        assert fatal > 5
        _check_end(story, end, tmp_path, "killed again and again")
        return
    pytest.fail("it never came to an end")


@pytest.mark.parametrize(
    "name", ["before commit creating", "executed order, not answered", "after commit ready", "before commit done"]
)
def test_a_real_process_that_is_killed_leaves_the_same(tmp_path: Path, name: str) -> None:
    story = STORIES["held"]
    fatal = 1 + _steps(story, _directory(tmp_path, "calm")).index(name)
    directory = _directory(tmp_path, "killed")
    command = [sys.executable, "-m", "tests.fleet.crash_stories", "held", str(directory), str(fatal)]
    assert subprocess.run(command, timeout=AMPLE_SECONDS, check=False).returncode == -signal.SIGKILL
    _check_end(story, run(story, directory, Steps()), directory, name)
