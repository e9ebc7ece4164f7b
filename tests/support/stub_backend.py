"""A backend outside of the process that is killed: its state and the log of executed calls are in a file of its own, as
evidence for the crash tests that does not depend on the journal.

What an instance does depends on how often it was listed, never on time: it runs (or fails) from the second listing on,
is Ready from the fourth, and is gone after it was listed as being deleted once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance, Listing, Order, Pace
from cagrpc.fleet.model import InstanceError, InstanceState
from tests.support.kills import Steps


@dataclass
class StubInstance:
    id: str
    token: str
    node_group: str
    state: str = "creating"
    failed: bool = False
    listings: int = 0


@dataclass
class Executed:
    """What is outside of the process. `log` has each order (its token) and each delete (its instance)."""

    instances: dict[str, StubInstance] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Executed:
        if not path.exists():
            return cls()
        found = json.loads(path.read_text())
        instances = (StubInstance(**each) for each in found["instances"])
        return cls({each.id: each for each in instances}, [(what, which) for what, which in found["log"]])

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"instances": [asdict(i) for i in self.instances.values()], "log": self.log}))

    def of(self, what: str) -> list[str]:
        return [which for each, which in self.log if each == what]


class StubBackend:
    """A step is just before a call, and between the call's execution and its answer."""

    pace = Pace()
    problem: str | None = None

    def __init__(self, path: Path, step: Steps, *, refuse: bool = False, fail_from: int | None = None) -> None:
        """Instances from the number `fail_from` on (counted from 0) fail while they are created."""
        self.path = path
        self.step = step
        self.refuse = refuse
        self.fail_from = fail_from

    def list_instances(self) -> Listing:
        self.step("before list")
        outside = Executed.read(self.path)
        answer = []
        for number, each in enumerate(tuple(outside.instances.values())):
            each.listings += 1
            if each.state == "creating" and each.listings >= 2:
                each.failed = self.fail_from is not None and number >= self.fail_from
                each.state = "creating" if each.failed else "running"
            error = InstanceError("stockout", "none left") if each.failed and each.state == "creating" else None
            answer.append(BackendInstance(each.id, each.token, each.node_group, InstanceState(each.state), error))
            if each.state == "deleting":
                del outside.instances[each.id]
        outside.write(self.path)
        self.step("executed list, not answered")
        return Listing(tuple(answer), 0.0)

    def order(self, order: Order) -> None:
        self.step("before order")
        outside = Executed.read(self.path)
        for each in () if self.refuse else order.instances:
            if each.token in order.wanted and each.token not in outside.of("order"):
                outside.log.append(("order", each.token))
                made = StubInstance(f"stub://{len(outside.of('order'))}", each.token, each.group.id)
                outside.instances[made.id] = made
        outside.write(self.path)
        self.step("executed order, not answered")
        if self.refuse:
            raise errors.OutOfCapacity("none left")

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self.step("before delete")
        outside = Executed.read(self.path)
        for instance_id in (each.id for each in instances):
            instance = outside.instances.get(instance_id)
            if instance is not None and instance.state != "deleting":
                instance.state = "deleting"
                outside.log.append(("delete", instance_id))
        outside.write(self.path)
        self.step("executed delete, not answered")

    def labels(self, _wanted: Mapping[str, AbstractSet[str]], /) -> Mapping[str, Mapping[str, str]]:
        return {}

    def ready_instances(self) -> AbstractSet[str]:
        """The same outside as a cluster: a Node is Ready, late, from its instance's fourth listing on."""
        self.step("before look")
        found = Executed.read(self.path).instances.values()
        return {each.id for each in found if each.state == "running" and each.listings > 3}

    def node_names(self) -> Mapping[str, str]:
        return {each: each for each in self.ready_instances()}
