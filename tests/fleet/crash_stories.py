"""What a fleet over a SQLite journal and the stub backend goes through, to be killed at any step of it: just before or
just after a journal commit, just before a backend call, or between the call's execution and its answer.

`python -m tests.fleet.crash_stories STORY DIRECTORY STEP` plays one until it dies by SIGKILL at that step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from cagrpc import errors
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, Instance, InstanceState, Origin, Phase
from solver.model import NodeGroup
from tests.support.kills import FatalSteps, SteppedJournal, Steps
from tests.support.stub_backend import StubBackend

GROUPS = [NodeGroup(name, {"cpu": 4000, "pods": 10}, 1.0) for name in ("a", "b")]
_ROUNDS = 30


def _instances(fleet: Fleet) -> list[Instance]:
    return [instance for state in fleet.snapshot.groups.values() for instance in state.instances]


def _until_quiet(fleet: Fleet) -> None:
    """What `serve` and CA do: step after step, and every failed instance is deleted."""
    for _ in range(_ROUNDS):
        fleet.reconcile()
        for instance in _instances(fleet):
            if instance.error is not None:
                fleet.delete_instances(instance.node_group, [instance.id])
        in_flight = any(status.phase.in_flight for status in fleet.snapshot.increments)
        if not in_flight and all(instance.state is InstanceState.RUNNING for instance in _instances(fleet)):
            return
    raise AssertionError(f"not quiet after {_ROUNDS} rounds: {fleet.snapshot}")


def _grow(fleet: Fleet, increment: IncrementSpec, *, wait: bool = False) -> None:
    """Asks unless a run before this one has asked already."""
    if fleet.snapshot.increments:
        return
    try:
        fleet.apply(increment, refusal_wait_seconds=1.0 if wait else 0.0)
    except errors.OutOfCapacity:
        return


def _across_groups(fleet: Fleet) -> None:
    _grow(fleet, IncrementSpec({"a": 2, "b": 1}))
    _until_quiet(fleet)


def _asked_by_ca(fleet: Fleet) -> None:
    _grow(fleet, IncrementSpec({"a": 3}, Origin.AUTOSCALER), wait=True)
    _until_quiet(fleet)


def _deletes(fleet: Fleet) -> None:
    _grow(fleet, IncrementSpec({"a": 3}, Origin.AUTOSCALER))
    _until_quiet(fleet)
    if fleet.snapshot.groups["a"].target_size == 3:
        fleet.delete_instances("a", [instance.id for instance in _instances(fleet)][:2])
    _until_quiet(fleet)


def _deletes_in_flight(fleet: Fleet) -> None:
    _grow(fleet, IncrementSpec({"a": 3}, Origin.AUTOSCALER), wait=True)
    if fleet.snapshot.groups["a"].target_size == 3:
        fleet.reconcile()
        fleet.delete_instances("a", [_instances(fleet)[0].id])
    _until_quiet(fleet)


def _let_go(fleet: Fleet, directory: Path) -> None:
    """What the controllers of a cluster do: each ready increment is let go, and each time it is told what was held."""
    for status in fleet.snapshot.increments:
        if status.phase is Phase.READY:
            with (directory / "held").open("a") as told:
                told.write(json.dumps(sorted(node.instance_id for node in status.held)) + "\n")
            fleet.release(status.id)


def _held(fleet: Fleet, directory: Path) -> None:
    _grow(fleet, IncrementSpec({"a": 2, "b": 1}))
    for _ in range(_ROUNDS):
        fleet.reconcile()
        _let_go(fleet, directory)
        if not any(status.phase.in_flight for status in fleet.snapshot.increments):
            break
    _until_quiet(fleet)


def _deletes_while_held(fleet: Fleet, directory: Path) -> None:
    _grow(fleet, IncrementSpec({"a": 3}, Origin.AUTOSCALER))
    for _ in range(_ROUNDS):
        fleet.reconcile()
        if fleet.snapshot.increments[0].phase in (Phase.READY, Phase.DONE):
            break
    if fleet.snapshot.groups["a"].target_size == 3:
        fleet.delete_instances("a", [_instances(fleet)[0].id])
    _let_go(fleet, directory)
    _until_quiet(fleet)


def _withdrawn(fleet: Fleet, *phases: Phase) -> None:
    """Taken back once it has come so far; a run before this one may have done it."""
    _grow(fleet, IncrementSpec({"a": 2, "b": 1}))
    for _ in range(_ROUNDS):
        fleet.reconcile()
        (status,) = fleet.snapshot.increments
        if status.phase in phases:
            fleet.withdraw(status.id, "no longer wanted")
        if not fleet.snapshot.increments[0].phase.in_flight:
            return


SCENARIOS_WITH_A_CLUSTER: dict[str, Callable[[Fleet, Path], None]] = {
    "held": _held,
    "deletes while held": _deletes_while_held,
    "withdrawn in creation": lambda fleet, _: _withdrawn(fleet, Phase.CREATING, Phase.READY),
    "withdrawn while held": lambda fleet, _: _withdrawn(fleet, Phase.READY),
}

SCENARIOS: dict[str, Callable[[Fleet], None]] = {
    "across groups": _across_groups,
    "asked by ca": _asked_by_ca,
    "deletes": _deletes,
    "deletes in flight": _deletes_in_flight,
}


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
STORIES: dict[str, Story] = {
    "success": Story("across groups", 3, 0, {"a": 2, "b": 1}, "done", frozenset(_LIFE)),
    "refusal": Story(
        "across groups", 0, 0, {}, "rolled-back", frozenset({"planned", "creating", "rolled-back"}), refuse=True
    ),
    "refusal answered to ca": Story(
        "asked by ca", 0, 0, {}, "rolled-back", frozenset({"planned", "creating", "rolled-back"}), refuse=True
    ),
    "late failure": Story("across groups", 3, 3, {}, "rolled-back", frozenset(_FALL), fail_from=2),
    "late failure shown to ca": Story("asked by ca", 3, 3, {}, "rolled-back", frozenset(_FALL), fail_from=1),
    "deletes": Story("deletes", 3, 2, {"a": 1}, "done", frozenset({*_LIFE, "delete,delete"})),
    "deletes in flight": Story("deletes in flight", 3, 1, {"a": 2}, "done", frozenset({*_LIFE, "creating,delete"})),
    "held": Story("held", 3, 0, {"a": 2, "b": 1}, "done", frozenset(_LIFE), held={3}),
    "deletes while held": Story(
        "deletes while held", 3, 1, {"a": 2}, "done", frozenset({*_LIFE, "ready,delete"}), held={2}
    ),
    "late failure with nodes": Story("held", 3, 3, {}, "rolled-back", frozenset(_FALL), fail_from=2),
    "withdrawn in creation": Story("withdrawn in creation", 3, 3, {}, "rolled-back", frozenset(_FALL)),
    "withdrawn while held": Story("withdrawn while held", 3, 3, {}, "rolled-back", frozenset({*_FALL, "ready"})),
}


@dataclass(frozen=True, slots=True)
class End:
    """What a process knows when it is through."""

    targets: dict[str, int]
    instances: list[str]
    phases: list[str]
    tokens: frozenset[str]


def run(story: Story, directory: Path, step: Steps) -> End:
    """One process, from its start to its end or to the step at which it is killed."""
    file = SqliteJournal(directory / "journal.db")
    assert file._connection is not None
    file._connection.execute("PRAGMA synchronous = OFF")  # no machine loses power here
    journal = SteppedJournal(file, step)
    backend = StubBackend(directory / "outside.json", step, refuse=story.refuse, fail_from=story.fail_from)
    held = SCENARIOS_WITH_A_CLUSTER.get(story.scenario)
    try:
        fleet = Fleet(
            FleetSettings(GROUPS), backend, journal, nodes=backend if held else None, submit=lambda work: work()
        )
        if held is not None:
            held(fleet, directory)
        else:
            SCENARIOS[story.scenario](fleet)
        return End(
            {key: state.target_size for key, state in fleet.snapshot.groups.items() if state.target_size},
            sorted(instance.id for instance in _instances(fleet)),
            [status.phase.value for status in fleet.snapshot.increments],
            frozenset(m.token for record in journal.read().increments.values() for m in record.members),
        )
    finally:
        file.close()


if __name__ == "__main__":
    run(STORIES[sys.argv[1]], Path(sys.argv[2]), FatalSteps(int(sys.argv[3])))
