"""A real process is killed by SIGKILL at every step of an increment's life and started again: it ends consistent, and
the log of a backend outside of it shows each order and each delete once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STUB = HERE.parent / "support" / "stub_backend.py"


@dataclass
class Processes:
    """The stub with its log, and the driver that forks the victims."""

    log: Path
    port: int
    driver: subprocess.Popen[str]

    def behave(self, world: str, *, refuse: bool, fail_from: int | None) -> None:
        self._stub({"call": "behave", "world": world, "refuse": refuse, "fail_from": fail_from})

    def standing(self, world: str) -> list[str]:
        """Ids of the instances that exist, as the stub knows them."""
        return sorted(found["id"] for found in self._stub({"call": "look", "world": world}))

    def executed(self, world: str, what: str) -> list[str]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [which for line_world, line_what, which in lines if (line_world, line_what) == (world, what)]

    def run(self, scenario: str, world: str, directory: Path, fatal: int = 0) -> int:
        """One start of the process. Its exit code, negative for a signal."""
        job = {"scenario": scenario, "world": world, "directory": str(directory), "fatal": fatal}
        assert self.driver.stdin is not None
        assert self.driver.stdout is not None
        self.driver.stdin.write(json.dumps(job) + "\n")
        self.driver.stdin.flush()
        return int(self.driver.stdout.readline())

    def _stub(self, call: dict[str, Any]) -> Any:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(json.dumps(call).encode() + b"\n")
            with connection.makefile() as answer:
                return json.loads(answer.readline())


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    log = tmp_path_factory.mktemp("stub") / "log"
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    with subprocess.Popen([sys.executable, STUB, log], stdout=subprocess.PIPE, text=True) as stub:
        assert stub.stdout is not None
        port = int(stub.stdout.readline())
        with subprocess.Popen(
            [sys.executable, HERE / "crash_driver.py", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as driver:
            yield Processes(log, port, driver)
            assert driver.stdin is not None
            driver.stdin.close()
            driver.wait(10)
        stub.kill()


@dataclass(frozen=True)
class Story:
    """A scenario, how the backend behaves in it, and how it must end whatever happens on the way."""

    scenario: str
    orders: int
    deletes: int
    targets: dict[str, int]
    phase: str
    steps: frozenset[str]
    """Commits that the story must have, so that none is missed because it was never reached."""
    refuse: bool = False
    fail_from: int | None = None
    held: AbstractSet[int] = frozenset()
    """How many nodes were held whenever the increment was let go."""


_LIFE = {"planned", "creating", "ready", "done"}
_FALL = {"planned", "creating", "rolling-back", "rolled-back"}
STORIES = [
    pytest.param(Story("across groups", 3, 0, {"a": 2, "b": 1}, "done", frozenset(_LIFE)), id="success"),
    pytest.param(
        Story("across groups", 0, 0, {}, "rolled-back", frozenset({"planned", "creating", "rolled-back"}), refuse=True),
        id="refusal",
    ),
    pytest.param(
        Story("asked by ca", 0, 0, {}, "rolled-back", frozenset({"planned", "creating", "rolled-back"}), refuse=True),
        id="refusal answered to ca",
    ),
    pytest.param(Story("across groups", 3, 3, {}, "rolled-back", frozenset(_FALL), fail_from=2), id="late failure"),
    pytest.param(
        Story("asked by ca", 3, 3, {}, "rolled-back", frozenset(_FALL), fail_from=1), id="late failure shown to ca"
    ),
    pytest.param(Story("deletes", 3, 2, {"a": 1}, "done", frozenset({*_LIFE, "delete,delete"})), id="deletes"),
    pytest.param(
        Story("deletes in flight", 3, 1, {"a": 2}, "done", frozenset({*_LIFE, "creating,delete"})),
        id="deletes in flight",
    ),
    pytest.param(Story("held", 3, 0, {"a": 2, "b": 1}, "done", frozenset(_LIFE), held={3}), id="held"),
    pytest.param(
        Story("deletes while held", 3, 1, {"a": 2}, "done", frozenset({*_LIFE, "ready,delete"}), held={2}),
        id="deletes while held",
    ),
    pytest.param(Story("held", 3, 3, {}, "rolled-back", frozenset(_FALL), fail_from=2), id="late failure with nodes"),
    pytest.param(Story("withdrawn in creation", 3, 3, {}, "rolled-back", frozenset(_FALL)), id="withdrawn in creation"),
    pytest.param(
        Story("withdrawn while held", 3, 3, {}, "rolled-back", frozenset({*_FALL, "ready"})),
        id="withdrawn while held",
    ),
]


def _check_end(processes: Processes, story: Story, world: str, directory: Path, at: str) -> None:
    result = json.loads((directory / "result.json").read_text())
    orders, deletes = processes.executed(world, "order"), processes.executed(world, "delete")
    assert len(orders) == len(set(orders)) == story.orders, at
    assert len(deletes) == len(set(deletes)) == story.deletes, at
    assert set(orders) <= set(result["tokens"]), at
    assert result["targets"] == story.targets, at
    assert result["phases"] == [story.phase], at
    assert result["instances"] == processes.standing(world), at
    assert len(result["instances"]) == sum(story.targets.values()), at
    told = directory / "held"
    held = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    assert {len(instances) for instances in held} == story.held, at
    assert all(set(instances) <= set(processes.standing(world)) for instances in held), at


def _directory(tmp_path: Path, name: str) -> Path:
    directory = tmp_path / name
    directory.mkdir()
    return directory


@pytest.mark.parametrize("story", STORIES)
def test_killed_at_any_step_it_ends_as_if_nothing_had_happened(
    processes: Processes, tmp_path: Path, story: Story, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id.replace(" ", "-")
    calm = _directory(tmp_path, "calm")
    processes.behave(name, refuse=story.refuse, fail_from=story.fail_from)
    assert processes.run(story.scenario, name, calm) == 0
    _check_end(processes, story, name, calm, "never killed")
    steps = (calm / "trace").read_text().splitlines()
    reached = {step.removeprefix("after commit ") for step in steps if step.startswith("after commit ")}
    assert story.steps <= reached
    assert "executed order, not answered" in steps
    for fatal, step in enumerate(steps, start=1):
        world, directory = f"{name}-{fatal}", _directory(tmp_path, str(fatal))
        processes.behave(world, refuse=story.refuse, fail_from=story.fail_from)
        assert processes.run(story.scenario, world, directory, fatal) == -signal.SIGKILL, step
        assert (directory / "trace").read_text().splitlines() == steps[:fatal]
        assert processes.run(story.scenario, world, directory) == 0, step
        _check_end(processes, story, world, directory, step)


@pytest.mark.parametrize("story", STORIES)
def test_killed_again_and_again_it_still_ends_so(
    processes: Processes, tmp_path: Path, story: Story, request: pytest.FixtureRequest
) -> None:
    world = "again-" + request.node.callspec.id.replace(" ", "-")
    processes.behave(world, refuse=story.refuse, fail_from=story.fail_from)
    exits = []
    for fatal in range(1, 100):
        exits.append(processes.run(story.scenario, world, tmp_path, fatal))
        if exits[-1] == 0:
            break
    assert len(exits) > 5
    assert set(exits[:-1]) == {-signal.SIGKILL}
    assert exits[-1] == 0
    _check_end(processes, story, world, tmp_path, "killed again and again")
