"""The process that is killed: a fleet over a SQLite journal and the stub backend, driven through a scenario.

Run as a script with the stub's port. Each line on standard input is a job: a scenario, a directory for the journal, and
the number of the step at which to die by SIGKILL (0: never). The job runs in a forked child, so that the interpreter
starts once. A step is just before or just after a journal commit, just before a backend call, or between the call's
execution and its answer. The answer on standard output names the signal that ended the child.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance, Order
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, Instance, InstanceError, InstanceState, Origin, Phase
from cagrpc.fleet.records import Changes, Contents
from solver.model import NodeGroup

GROUPS = [NodeGroup(name, {"cpu": 4000, "pods": 10}, 1.0) for name in ("a", "b")]
_ROUNDS = 30


class Steps:
    """Counts the steps, keeps their names, and dies at the one it is told."""

    def __init__(self, fatal: int, trace: Path) -> None:
        self.fatal = fatal
        self.count = 0
        self.trace = trace.open("a", buffering=1)

    def __call__(self, name: str) -> None:
        self.count += 1
        self.trace.write(f"{name}\n")
        if self.count == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)


class KillingJournal:
    """A journal whose process dies at a commit."""

    def __init__(self, journal: SqliteJournal, step: Steps) -> None:
        self.journal = journal
        self.step = step

    def read(self) -> Contents:
        return self.journal.read()

    def commit(self, changes: Changes) -> None:
        phases = [record.phase.value for record in changes.increments]
        what = ",".join([*phases, *("delete" for _ in changes.deletions)])
        self.step(f"before commit {what}")
        self.journal.commit(changes)
        self.step(f"after commit {what}")

    def probe(self) -> None:
        self.journal.probe()

    def check(self) -> None:
        self.journal.check()

    def close(self) -> None:
        self.journal.close()


class StubClient:
    """The stub as a `Backend`. Dies before a call, or when the call is executed and its answer not yet read."""

    def __init__(self, port: int, world: str, step: Steps) -> None:
        self.port = port
        self.world = world
        self.step = step

    def call(self, call: str, **more: Any) -> Any:
        self.step(f"before {call}")
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(json.dumps({"call": call, "world": self.world, **more}).encode() + b"\n")
            connection.recv(1, socket.MSG_PEEK)
            self.step(f"executed {call}, not answered")
            with connection.makefile() as answer:
                return json.loads(answer.readline())

    def list_instances(self) -> Sequence[BackendInstance]:
        return [
            BackendInstance(
                found["id"],
                found["token"],
                found["node_group"],
                InstanceState(found["state"]),
                InstanceError("stockout", "none left") if found["failed"] and found["state"] == "creating" else None,
            )
            for found in self.call("list")
        ]

    def order(self, orders: Sequence[Order]) -> None:
        if self.call("order", orders=[[order.token, order.group.id] for order in orders]) == "refused":
            raise errors.OutOfCapacity("none left")

    def delete(self, instance_ids: Sequence[str]) -> None:
        self.call("delete", ids=list(instance_ids))

    def ready_instances(self) -> AbstractSet[str]:
        """The same outside as a cluster: a Node is Ready, late, from its instance's fourth listing on."""
        found = self.call("look")
        return {instance["id"] for instance in found if instance["state"] == "running" and instance["listings"] > 3}


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


def run(job: dict[str, Any], port: int) -> None:
    directory = Path(job["directory"])
    step = Steps(job["fatal"], directory / "trace")
    journal = KillingJournal(SqliteJournal(directory / "journal.db"), step)
    backend = StubClient(port, job["world"], step)
    held = SCENARIOS_WITH_A_CLUSTER.get(job["scenario"])
    fleet = Fleet(GROUPS, [], backend, journal, nodes=backend if held else None, submit=lambda work: work())
    if held is not None:
        held(fleet, directory)
    else:
        SCENARIOS[job["scenario"]](fleet)
    result = {
        "targets": {key: state.target_size for key, state in fleet.snapshot.groups.items() if state.target_size},
        "instances": sorted(instance.id for instance in _instances(fleet)),
        "phases": [status.phase.value for status in fleet.snapshot.increments],
        "tokens": sorted(m.token for record in journal.read().increments.values() for m in record.members),
    }
    fleet.close()
    (directory / "result.json").write_text(json.dumps(result))


def main() -> None:
    port = int(sys.argv[1])
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                run(json.loads(line), port)
            except BaseException as error:  # noqa: BLE001 - told, and then the child must not go on as the parent
                sys.stderr.write(f"{line}{type(error).__name__}: {error}\n")
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
