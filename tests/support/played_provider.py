"""An externalgrpc provider in memory, on a told clock, with the habits of those of CA's tree, and a channel to it that
loses, delays and repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import grpc
from google.protobuf.message import Message

from cagrpc.api.core.nodes import template
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.backends.externalgrpc.backend import ExternalGrpcBackend, opened_over
from cagrpc.backends.externalgrpc.client import ProviderClient
from cagrpc.backends.externalgrpc.plugin import ProviderAccess
from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.fleet.backend_records import BackendRecords
from cagrpc.fleet.records import Contents
from cagrpc.testing import Ability, Cloud
from solver.model import NodeGroup
from tests.support.fleet import FakeClock, MemoryJournal, group

UNSPECIFIED = pb.InstanceStatus.unspecified
RUNNING = pb.InstanceStatus.instanceRunning
CREATING = pb.InstanceStatus.instanceCreating


class PlayedError(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, words: str = "") -> None:
        super().__init__(words)
        self._code, self._words = code, words

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._words


@dataclass(frozen=True)
class Habits:
    """How a provider behaves; the default is as one would wish."""

    boot_seconds: float = 20.0
    late: bool = True
    """Instances are listed once they have booted; before, they are listed as being created."""
    cache_seconds: float = 0.0
    """Lists are renewed by a Refresh, at most so often."""
    placeholders: bool = False
    """What is to come is listed as AWS's provider does: `i-placeholder-<group>-<n>`; deleting one sets the target to
    what is there."""
    pending_ids: bool = False
    """What is being created has an id of its own, as with Cluster API: `pending-machine-…`."""
    states: bool = True
    """Whether states are told; else they are unspecified."""
    partial: bool = False
    """An increase that is refused for want of stock leaves what there was."""
    shortage: str = "refuse"
    """How a shortage shows: `refuse` the increase, `error` of an instance, `fall` of the target, `never` comes."""
    go_seconds: float = 0.0
    """How long a deleted instance stays listed."""
    minimum: int = 0


@dataclass
class _Machine:
    number: int
    boots_at: float
    goes_at: float | None = None
    failed: bool = False

    def id(self, now: float, habits: Habits, group_id: str) -> str:
        booted = now >= self.boots_at
        if habits.pending_ids and not booted:
            return f"{'deleting' if self.goes_at is not None else 'pending'}-machine-{group_id}_{self.number}"
        return f"played:///{group_id}/i-{self.number:04d}"


@dataclass
class _PlayedGroup:
    name: str
    target: int = 0
    machines: list[_Machine] = field(default_factory=list)
    stock: int | None = None
    refusal: tuple[grpc.StatusCode, str] | None = None
    fell_at: float | None = None
    listed: list[pb.Instance] = field(default_factory=list)
    """As of the last renewal of the cache."""


class PlayedProvider:
    """The calls of a provider. `held` keeps instances from booting."""

    def __init__(self, clock: FakeClock, habits: Habits, *names: str) -> None:
        self.clock = clock
        self.habits = habits
        self.groups = {name: _PlayedGroup(name) for name in names}
        self.held = False
        self.slow_seconds = 0.0
        """How much longer instances take to boot and to be listed."""
        self.calls: list[tuple[str, Message]] = []
        self.prices: dict[str, float] = {}
        self.without_template: set[str] = set()
        self._numbers: Iterator[int] = count(1)
        self._renewed_at = float("-inf")

    def __call__(self, method: str, request: Any, answer: type[Message], timeout_seconds: float) -> Message:
        del timeout_seconds
        self.calls.append((method, request))
        self._pass_time()
        of = getattr(request, "id", "")
        if of and of not in self.groups:
            raise PlayedError(grpc.StatusCode.UNKNOWN, f"node group {of} not found")
        found: Message = getattr(self, method)(request)
        assert isinstance(found, answer)
        return found

    # ---- the protocol

    def Refresh(self, _: Message) -> Message:  # noqa: N802 - the protocol's names
        if self.clock() - self._renewed_at >= self.habits.cache_seconds:
            self.renew()
        return pb.RefreshResponse()

    def NodeGroups(self, _: Message) -> Message:  # noqa: N802
        return pb.NodeGroupsResponse(
            nodeGroups=[pb.NodeGroup(id=n, minSize=self.habits.minimum, maxSize=60) for n in self.groups]
        )

    def NodeGroupTargetSize(self, request: Any) -> Message:  # noqa: N802
        return pb.NodeGroupTargetSizeResponse(targetSize=self.groups[request.id].target)

    def NodeGroupNodes(self, request: Any) -> Message:  # noqa: N802
        found = self.groups[request.id]
        listed = found.listed if self.habits.cache_seconds else self._listed(found)
        return pb.NodeGroupNodesResponse(instances=listed)

    def NodeGroupTemplateNodeInfo(self, request: Any) -> Message:  # noqa: N802
        if request.id in self.without_template:
            raise PlayedError(grpc.StatusCode.UNIMPLEMENTED)
        return pb.NodeGroupTemplateNodeInfoResponse(nodeBytes=template(group(request.id)))

    def PricingNodePrice(self, request: Any) -> Message:  # noqa: N802
        price = self.prices.get(request.node.labels.get("node.kubernetes.io/instance-type", ""))
        if price is None:
            raise PlayedError(grpc.StatusCode.UNIMPLEMENTED)
        return pb.PricingNodePriceResponse(price=price)

    def NodeGroupIncreaseSize(self, request: Any) -> Message:  # noqa: N802
        found, habits = self.groups[request.id], self.habits
        if found.refusal is not None:
            raise PlayedError(*found.refusal)
        room = request.delta if found.stock is None else min(request.delta, found.stock)
        if room < request.delta and habits.shortage == "refuse":
            if habits.partial:
                self._create(found, room)
            raise PlayedError(grpc.StatusCode.UNKNOWN, "insufficient capacity: no hosts left")
        self._create(found, room)
        found.target += request.delta - room
        if room < request.delta and habits.shortage == "error":
            lacking = request.delta - room
            found.machines += [_Machine(next(self._numbers), self.clock(), failed=True) for _ in range(lacking)]
        if room < request.delta and habits.shortage == "fall":
            found.fell_at = self.clock() + 30.0
        return pb.NodeGroupIncreaseSizeResponse()

    def NodeGroupDeleteNodes(self, request: Any) -> Message:  # noqa: N802
        found, now = self.groups[request.id], self.clock()
        if found.target - len(request.nodes) < self.habits.minimum:
            raise PlayedError(grpc.StatusCode.UNKNOWN, "min size reached, nodes will not be deleted")
        for node in request.nodes:
            if "i-placeholder-" in node.providerID:
                found.target = len(self._standing(found))
                found.fell_at = None
                continue
            machine = next((m for m in found.machines if m.id(now, self.habits, found.name) == node.providerID), None)
            if machine is None or machine.goes_at is not None:
                continue
            machine.goes_at = now + self.habits.go_seconds
            if machine.boots_at > now:
                machine.boots_at = float("inf")
            found.target -= 1
        return pb.NodeGroupDeleteNodesResponse()

    # ---- the cloud behind it

    def renew(self) -> None:
        """Renew the caches."""
        self._renewed_at = self.clock()
        for each in self.groups.values():
            each.listed = self._listed(each)

    def standing(self) -> set[str]:
        """Return what exists and is not being deleted."""
        self._pass_time()
        return {f"{g.name}/{m.number}" for g in self.groups.values() for m in self._standing(g)}

    def lose(self, instance_id: str) -> None:
        """Take an instance away, and let the target follow."""
        for each in self.groups.values():
            for machine in list(each.machines):
                if machine.id(self.clock(), self.habits, each.name) == instance_id:
                    each.machines.remove(machine)
                    each.target -= 1

    def raise_by_hand(self, name: str, number: int) -> None:
        """Be somebody else who raises the target."""
        self._create(self.groups[name], number)

    def restock(self, name: str) -> None:
        """Have stock again, and deliver what the target still wants."""
        found = self.groups[name]
        found.stock = None
        lacking = found.target - len(self._standing(found))
        if lacking > 0:
            found.target -= lacking
            self._create(found, lacking)

    def _create(self, found: _PlayedGroup, number: int) -> None:
        found.target += number
        if found.stock is not None:
            found.stock -= number
        boots_at = self.clock() + (float("inf") if self.held else self.habits.boot_seconds + self.slow_seconds)
        found.machines += [_Machine(next(self._numbers), boots_at) for _ in range(number)]

    def boot(self) -> None:
        """Let instances boot again that were held."""
        self.held = False
        for each in self.groups.values():
            for machine in each.machines:
                if machine.goes_at is None:
                    machine.boots_at = min(machine.boots_at, self.clock() + self.habits.boot_seconds)

    @staticmethod
    def _standing(found: _PlayedGroup) -> list[_Machine]:
        return [each for each in found.machines if each.goes_at is None and not each.failed]

    def _pass_time(self) -> None:
        now = self.clock()
        for each in self.groups.values():
            each.machines = [m for m in each.machines if m.goes_at is None or now < m.goes_at]
            if each.fell_at is not None and now >= each.fell_at:
                each.target, each.fell_at = len(self._standing(each)), None

    def _listed(self, found: _PlayedGroup) -> list[pb.Instance]:
        now, habits = self.clock(), self.habits
        listed = []
        for machine in found.machines:
            booted = now >= machine.boots_at
            if machine.failed:
                status = pb.InstanceStatus(instanceState=CREATING)
                status.errorInfo.errorCode, status.errorInfo.errorMessage = "stockout", "no capacity left"
                status.errorInfo.instanceErrorClass = 1
                name = f"i-placeholder-{found.name}-x{machine.number}" if habits.placeholders else ""
                listed.append(pb.Instance(id=name or machine.id(now, habits, found.name), status=status))
                continue
            if not booted and (habits.placeholders or ((habits.late or self.held) and not habits.pending_ids)):
                continue
            state = (RUNNING if booted else CREATING) if habits.states else UNSPECIFIED
            listed.append(
                pb.Instance(id=machine.id(now, habits, found.name), status=pb.InstanceStatus(instanceState=state))
            )
        if habits.placeholders:
            there = [each for each in listed if "i-placeholder-" in each.id or self._stands(found, each.id)]
            lacking = found.target - len(there)
            listed += [pb.Instance(id=f"i-placeholder-{found.name}-{number}") for number in range(lacking)]
        return listed

    def _stands(self, found: _PlayedGroup, instance_id: str) -> bool:
        now = self.clock()
        return any(m.id(now, self.habits, found.name) == instance_id for m in self._standing(found))


CHANGING = ("NodeGroupIncreaseSize", "NodeGroupDeleteNodes")


class FaultyChannel:
    """Passes calls on, or not."""

    def __init__(self, call: Callable[[str, Any, type[Message], float], Message], clock: FakeClock) -> None:
        self._call = call
        self._clock = clock
        self.is_cut = False
        self.losing: int | None = None
        """Answers of changing calls until they are lost."""
        self.delay_seconds: float | None = None
        """Changing calls are carried out so much later, and their callers hear nothing."""
        self.repeats = False
        """Changing calls are carried out twice."""
        self._later: list[tuple[float, Callable[[], object]]] = []

    def __call__(self, method: str, request: Any, answer: type[Message], timeout_seconds: float) -> Message:
        self.pass_time()
        if self.is_cut:
            raise PlayedError(grpc.StatusCode.UNAVAILABLE, "connection refused")
        if method not in CHANGING:
            return self._call(method, request, answer, timeout_seconds)
        if self.delay_seconds is not None:
            at = self._clock() + self.delay_seconds
            self._later.append((at, lambda: self._call(method, request, answer, timeout_seconds)))
            raise PlayedError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if self.losing is not None:
            self.losing -= 1
            if self.losing < 0:
                with suppress(PlayedError):
                    self._call(method, request, answer, timeout_seconds)
                raise PlayedError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if self.repeats:
            self._call(method, request, answer, timeout_seconds)
        return self._call(method, request, answer, timeout_seconds)

    def pass_time(self) -> None:
        """Carry out what is due."""
        due = [call for at, call in self._later if at <= self._clock()]
        self._later = [(at, call) for at, call in self._later if at > self._clock()]
        for call in due:
            with suppress(PlayedError):
                call()

    def recover(self) -> None:
        self.is_cut, self.losing, self.delay_seconds, self.repeats = False, None, None, False


class PlayedCloud(Cloud):
    """A played provider, for the conformance suite."""

    lacks: ClassVar = {
        Ability.ADD_STRANGER: "a node group of a provider is one: what others have there is counted",
        Ability.REMEMBER_TOKENS: "a provider has no tokens, and those of instances that are gone are not kept",
    }
    node_groups = (group("pool-a", max_size=50), group("pool-b", max_size=50))
    behind_seconds = 90.0

    def __init__(self, habits: Habits | None = None) -> None:
        self.clock = self.time = FakeClock()
        self.provider = PlayedProvider(self.time, habits or Habits(), *(each.id for each in self.node_groups))
        self.channel = FaultyChannel(self.provider, self.time)
        self.shelf = [Contents()]
        self.access = ProviderAccess("localhost:1", behind_seconds=self.behind_seconds, list_every_seconds=1.0)

    def backend(self) -> ExternalGrpcBackend:
        """Open it, as a new process does."""
        context = BackendContext(Path(), self.clock, records=BackendRecords(MemoryJournal(self.shelf)))
        return opened_over([ProviderClient(self.access, self.channel)], context)

    def open(self) -> OpenBackend:
        backend = self.backend()
        return OpenBackend(backend, lambda: None, node_groups=backend.node_groups)

    def advance(self, seconds: float) -> None:
        self.time.advance(seconds)
        self.channel.pass_time()

    def machines(self) -> AbstractSet[str]:
        return self.provider.standing()

    def recover(self) -> None:
        self.channel.recover()
        self.provider.boot()
        self.provider.slow_seconds = 0.0
        for each in self.provider.groups.values():
            each.refusal = each.stock = None

    def cut_off(self) -> None:
        self.channel.is_cut = True

    def lose_answers(self, after: int) -> None:
        self.channel.losing = after

    def delay_lists(self) -> None:
        self.provider.slow_seconds = 60.0

    def delay_ids(self) -> None:
        self.provider.held = True

    def run_out(self, group: NodeGroup) -> None:
        self.provider.groups[group.id].stock = 1 if self.provider.habits.shortage == "refuse" else 0

    def exceed_quota(self, group: NodeGroup) -> None:
        self.provider.groups[group.id].refusal = (grpc.StatusCode.UNKNOWN, "VcpuLimitExceeded: more than 32 vCPUs")

    def misconfigure(self, group: NodeGroup) -> None:
        self.provider.groups[group.id].refusal = (grpc.StatusCode.INVALID_ARGUMENT, "no image")

    def vanish(self, instance_id: str) -> None:
        self.provider.lose(instance_id)
