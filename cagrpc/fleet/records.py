"""The content of the journal as plain values: increments with their members, deletions, node groups, disruptions, what
a backend keeps, and changes. Storage is in `journal`, decisions are in `lifecycle` and `admission`; here are the
records, the set of them in force, and what JSON says of them, which every journal shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

from cagrpc.errors import ErrorKind
from cagrpc.fleet.model import (
    DisruptedNode,
    Disruption,
    DisruptionPhase,
    ExpectedPod,
    IncrementNode,
    IncrementSpec,
    IncrementStatus,
    InstanceError,
    Origin,
    Phase,
    Placement,
    PodKey,
    PodMove,
)
from solver.model import Devices, NewDomains, NodeGroup, Taint, TaintEffect

R = TypeVar("R")


class MemberState(StrEnum):
    """The state of one node of an increment."""

    PLANNED = "planned"
    """Not ordered yet, or ordered without a response: to be ordered (again) with the same token."""
    ORDERED = "ordered"
    """The backend has accepted the order."""
    FAILED = "failed-listed"
    """Failed with its increment; its instance is gone or being deleted, and it is still listed and counted so that CA
    sees it."""
    RELEASED = "released"
    """No longer part of the increment: deleted by CA, or abandoned with a failed increment."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node of an increment. `token` identifies its order permanently; `instance_id` is known once the backend has
    listed it."""

    token: str
    node_group: str
    state: MemberState = MemberState.PLANNED
    instance_id: str | None = None

    @property
    def listed_id(self) -> str:
        """The id under which a failed member is listed: its instance's, or the token where it never had one."""
        return self.instance_id or self.token


@dataclass(frozen=True, slots=True)
class IncrementRecord:
    """An increment with all that must survive a crash. Times are seconds of the fleet's clock."""

    id: str
    increment: IncrementSpec
    phase: Phase
    members: tuple[Member, ...]
    created_at_seconds: float
    deadline_at_seconds: float
    message: str = ""
    error: InstanceError | None = None
    """The error that its failed members show."""
    failed_at_seconds: float | None = None
    finished_at_seconds: float | None = None
    short_groups: tuple[str, ...] = ()
    """Where it failed: the node groups that were out of capacity."""
    ordered_at_seconds: float | None = None
    """When the backend last accepted an order of it; None also where only a list has shown that it did."""

    @property
    def failing(self) -> bool:
        """Whether its instances are to be deleted."""
        return self.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK)

    def with_members(self, states: Mapping[str, MemberState]) -> IncrementRecord:
        """Return the record with the members of these tokens in new states."""
        members = tuple(replace(m, state=states[m.token]) if m.token in states else m for m in self.members)
        return replace(self, members=members)

    @property
    def remaining(self) -> tuple[Member, ...]:
        """Members that are still part of it."""
        return tuple(member for member in self.members if member.state is not MemberState.RELEASED)

    def planned(self) -> Mapping[str, Placement]:
        """Return the placement of each member, by token: a group's k-th placement is its k-th member's."""
        placements: dict[str, list[Placement]] = {}
        for placement in reversed(self.increment.placements):
            placements.setdefault(placement.node_group, []).append(placement)
        return {
            m.token: placements[m.node_group].pop() if placements.get(m.node_group) else Placement(m.node_group)
            for m in self.members
        }

    def status(self, message: str | None = None, nodes: tuple[IncrementNode, ...] = ()) -> IncrementStatus:
        """Return its status for the snapshot."""
        return IncrementStatus(
            id=self.id,
            increment=self.increment,
            phase=self.phase,
            message=self.message if message is None else message,
            created_at_seconds=self.created_at_seconds,
            deadline_at_seconds=self.deadline_at_seconds,
            finished_at_seconds=self.finished_at_seconds,
            short_groups=self.short_groups,
            retry_after_seconds=None if self.error is None else self.error.retry_after_seconds,
            nodes=nodes,
        )


@dataclass(frozen=True, slots=True)
class DeletionRecord:
    """An instance to be deleted; `done_at_seconds` is set once the backend no longer lists it."""

    instance_id: str
    node_group: str
    requested_at_seconds: float
    done_at_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A node group as last configured, so that it can be served after it leaves the configuration."""

    group: NodeGroup
    limits: tuple[str, ...] = ()
    """Names of the limits that bound it by its id."""


@dataclass(frozen=True, slots=True)
class BackendRecord:
    """What a backend has to remember of its orders where the cloud does not, or somebody else has to keep: JSON, which
    only whoever wrote it reads."""

    key: str
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one transaction: records replace those of the same id, forgotten ids are removed."""

    increments: tuple[IncrementRecord, ...] = ()
    deletions: tuple[DeletionRecord, ...] = ()
    groups: tuple[GroupRecord, ...] = ()
    forgotten_increments: tuple[str, ...] = ()
    forgotten_deletions: tuple[str, ...] = ()
    forgotten_groups: tuple[str, ...] = ()
    disruptions: tuple[Disruption, ...] = ()
    forgotten_disruptions: tuple[str, ...] = ()
    backend: tuple[BackendRecord, ...] = ()
    forgotten_backend: tuple[str, ...] = ()
    own: tuple[BackendRecord, ...] = ()
    forgotten_own: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Changes()

    def of(self, kind: RecordKind[R]) -> dict[str, R | None]:
        """Return the new records of a kind by key, and None for those that are forgotten."""
        new = {kind.key(record): record for record in getattr(self, kind.plural)}
        return {**new, **dict.fromkeys(getattr(self, f"forgotten_{kind.plural}"))}


@dataclass(frozen=True, slots=True)
class MemberRef:
    """A member with its increment and its position in the order of creation."""

    record: IncrementRecord
    member: Member
    order: tuple[int, int]


class Contents:
    """All records in force, increments in order of creation. Immutable: `after` returns the next one, at a cost
    proportional to the changed increments, because a day's records may have many thousands of members."""

    __slots__ = (
        "_next_number",
        "backend",
        "by_instance",
        "by_token",
        "deletions",
        "disruptions",
        "groups",
        "increments",
        "own",
    )

    increments: Mapping[str, IncrementRecord]
    deletions: Mapping[str, DeletionRecord]
    groups: Mapping[str, GroupRecord]
    disruptions: Mapping[str, Disruption]
    backend: Mapping[str, BackendRecord]
    own: Mapping[str, BackendRecord]
    by_token: Mapping[str, MemberRef]
    by_instance: Mapping[str, MemberRef]
    """Members by every id under which they are or were listed: the instance's, and the token."""

    def __init__(
        self,
        increments: Iterable[IncrementRecord] = (),
        deletions: Iterable[DeletionRecord] = (),
        groups: Iterable[GroupRecord] = (),
        disruptions: Iterable[Disruption] = (),
        backend: Iterable[BackendRecord] = (),
        own: Iterable[BackendRecord] = (),
    ) -> None:
        self.increments, self.deletions, self.groups, self.disruptions = {}, {}, {}, {}
        self.backend, self.own = {}, {}
        self.by_token, self.by_instance = {}, {}
        self._next_number = 0
        in_order = sorted(disruptions, key=lambda each: each.created_at_seconds)
        self._take(
            Changes(
                tuple(increments),
                tuple(deletions),
                tuple(groups),
                disruptions=tuple(in_order),
                backend=tuple(backend),
                own=tuple(own),
            )
        )

    def after(self, changes: Changes) -> Contents:
        """Return these records with the changes applied; new increments come last."""
        result = Contents()
        result.increments, result.deletions, result.groups = self.increments, self.deletions, self.groups
        result.disruptions, result.backend, result.own = self.disruptions, self.backend, self.own
        result.by_token, result.by_instance = self.by_token, self.by_instance
        result._next_number = self._next_number
        result._take(changes)
        return result

    def of(self, kind: RecordKind[R]) -> Mapping[str, R]:
        """Return the records of a kind by key."""
        found: Mapping[str, R] = getattr(self, kind.plural)
        return found

    def _take(self, changes: Changes) -> None:
        """Apply changes to an object that is not shared yet."""
        before = self.increments
        for kind in KINDS:
            if changed := changes.of(kind):
                records = {**self.of(kind), **changed}
                setattr(self, kind.plural, {key: each for key, each in records.items() if each is not None})
        if changes.increments or changes.forgotten_increments:
            self._index(before, changes)

    def _index(self, before: Mapping[str, IncrementRecord], changes: Changes) -> None:
        """Bring the indexes of members up to date."""
        by_token, by_instance = dict(self.by_token), dict(self.by_instance)
        numbers: dict[str, int] = {}
        for increment_id in (*(record.id for record in changes.increments), *changes.forgotten_increments):
            for member in before[increment_id].members if increment_id in before else ():
                place = by_token.pop(member.token, None)
                if place is not None:
                    numbers[increment_id] = place.order[0]
                by_instance.pop(member.token, None)
                by_instance.pop(member.instance_id or member.token, None)
        for record in changes.increments:
            if record.id in self.increments:
                if record.id not in numbers:
                    numbers[record.id] = self._next_number
                    self._next_number += 1
                for position, member in enumerate(record.members):
                    place = MemberRef(record, member, (numbers[record.id], position))
                    by_token[member.token] = by_instance[member.token] = place
                    by_instance[member.listed_id] = place
        self.by_token, self.by_instance = by_token, by_instance


_REQUEST, _EXPECTED = "provisioningrequest/", "expected/"
"""Prefixes of pods in stored increments: of the UID of a ProvisioningRequest, and of the workload and number of an
expected pod."""


def _stored_keys(of: IncrementSpec | Placement) -> list[str]:
    """Return the pods and requests in one list; `_pods_and_requests` is the inverse."""
    pods = [_EXPECTED + str(pod) if isinstance(pod, ExpectedPod) else pod for pod in of.pods]
    return pods + [_REQUEST + uid for uid in of.requests]


def _pods_and_requests(keys: Iterable[str]) -> tuple[tuple[PodKey, ...], tuple[str, ...]]:
    pods: list[PodKey] = []
    requests: list[str] = []
    for key in keys:
        if key.startswith(_REQUEST):
            requests.append(key.removeprefix(_REQUEST))
        else:
            pods.append(_pod(key))
    return tuple(pods), tuple(requests)


def _pod(key: str) -> PodKey:
    workload, _, number = key.removeprefix(_EXPECTED).rpartition("/")
    known = key.startswith(_EXPECTED) and workload and number.isdecimal()
    return ExpectedPod(workload, int(number)) if known else key


def _shallow(record: IncrementRecord | IncrementSpec | Member) -> dict[str, Any]:
    """Return the fields as they are: `asdict`, which copies every value, would take most of the time of a commit."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _increment_value(record: IncrementRecord) -> dict[str, Any]:
    value = _shallow(record)
    value["members"] = [_shallow(each) for each in record.members]
    if record.error is not None:
        value["error"] = _stored_error(record.error)
    if record.ordered_at_seconds is None:
        del value["ordered_at_seconds"]
    value["increment"] = increment = _shallow(record.increment)
    increment["deltas"] = dict(record.increment.deltas)
    increment["pods"] = sorted(_stored_keys(record.increment))
    del increment["requests"]
    if record.increment.waiting_since_seconds is None:
        del increment["waiting_since_seconds"]
    increment["placements"] = [
        {"node_group": each.node_group, "pods": _stored_keys(each), **({"domain": each.domain} if each.domain else {})}
        for each in record.increment.placements
    ]
    return value


def _increment(stored: Mapping[str, Any]) -> IncrementRecord:
    value = {**stored}
    increment, error = value.pop("increment"), value.pop("error")
    pods, requests = _pods_and_requests(increment["pods"])
    return IncrementRecord(
        increment=IncrementSpec(
            deltas=increment["deltas"],
            origin=Origin(increment["origin"]),
            pods=frozenset(pods),
            requests=frozenset(requests),
            reason=increment["reason"],
            plan=increment.get("plan", ""),
            placements=tuple(
                Placement(each["node_group"], *_pods_and_requests(each["pods"]), each.get("domain", ""))
                for each in increment.get("placements", ())
            ),
            cost_usd_per_hour=increment.get("cost_usd_per_hour"),
            gap=increment.get("gap"),
            waiting_since_seconds=increment.get("waiting_since_seconds"),
        ),
        phase=Phase(value.pop("phase")),
        members=tuple(Member(**{**m, "state": MemberState(m["state"])}) for m in value.pop("members")),
        error=None if error is None else _error(error),
        short_groups=tuple(value.pop("short_groups", ())),
        **value,
    )


def _error(value: dict[str, Any]) -> InstanceError:
    kind = value.get("kind", ErrorKind.CAPACITY if value["out_of_resources"] else ErrorKind.OTHER)
    return InstanceError(value["code"], value["message"], ErrorKind(kind), value.get("retry_after_seconds"))


def _stored_error(error: InstanceError) -> dict[str, Any]:
    """Return the fields of 0.2.0, and the later ones only where they say more."""
    stored: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "out_of_resources": error.out_of_resources,
        "kind": error.kind.value,
        "retry_after_seconds": error.retry_after_seconds,
    }
    if error.kind in (ErrorKind.CAPACITY, ErrorKind.OTHER):
        del stored["kind"]
    if error.retry_after_seconds is None:
        del stored["retry_after_seconds"]
    return stored


def _disruption(stored: Mapping[str, Any]) -> Disruption:
    nodes = {name: tuple(DisruptedNode(**each) for each in stored[name]) for name in ("nodes", "new_nodes")}
    moves = tuple(PodMove(**each) for each in stored["moves"])
    return Disruption(**{**stored, **nodes, "phase": DisruptionPhase(stored["phase"]), "moves": moves})


def _group_value(record: GroupRecord) -> dict[str, Any]:
    """Return fields that 0.2.0 did not have only where they say something."""
    value = asdict(record)
    group: dict[str, Any] = value["group"]
    for each in group["devices"]:
        each["selectors"] = sorted(each["selectors"])
    group["late_labels"] = sorted(group.pop("post_registration_labels"))
    for name in ("devices", "late_labels", "new_domains", "shared_fate", "spares"):
        if not group[name]:
            del group[name]
    return value


def _group(stored: Mapping[str, Any]) -> GroupRecord:
    group = stored["group"]
    taints = tuple(Taint(each["key"], TaintEffect(each["effect"]), each["value"]) for each in group["taints"])
    devices = tuple(
        Devices(
            each["count"],
            frozenset(each["selectors"]),
            tuple((name, of) for name, of in each["attributes"]),
            each["taken"],
        )
        for each in group.get("devices", ())
    )
    fields = {**group, "taints": taints, "devices": devices}
    fields["post_registration_labels"] = frozenset(fields.pop("late_labels", ()))
    if new := fields.get("new_domains"):
        fields["new_domains"] = NewDomains(tuple(new["keys"]), new["most_nodes"])
    return GroupRecord(NodeGroup(**fields), tuple(stored["limits"]))


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[R]):
    """How records of one kind are known and stored."""

    plural: str
    """Their name in `Contents`, in `Changes`, and where several kinds are stored together."""
    what: str
    """One of them, for people."""
    key: Callable[[R], str]
    value: Callable[[R], dict[str, Any]]
    """Returns what JSON says of a record; `record` is the inverse."""
    record: Callable[[Mapping[str, Any]], R]
    """Fields that an earlier release did not write have their defaults. Raises ValueError, KeyError, TypeError or
    AttributeError for anything that `value` did not return."""


INCREMENTS: RecordKind[IncrementRecord] = RecordKind(
    "increments", "increment", lambda record: record.id, _increment_value, _increment
)
DELETIONS: RecordKind[DeletionRecord] = RecordKind(
    "deletions", "deletion", lambda record: record.instance_id, asdict, lambda stored: DeletionRecord(**stored)
)
GROUPS: RecordKind[GroupRecord] = RecordKind(
    "groups", "node group", lambda record: record.group.id, _group_value, _group
)
DISRUPTIONS: RecordKind[Disruption] = RecordKind(
    "disruptions", "disruption", lambda record: record.id, asdict, _disruption
)
BACKEND: RecordKind[BackendRecord] = RecordKind(
    "backend", "backend record", lambda record: record.key, asdict, lambda stored: BackendRecord(**stored)
)
OWN: RecordKind[BackendRecord] = RecordKind(
    "own", "record of its own", lambda record: record.key, asdict, lambda stored: BackendRecord(**stored)
)
"""Of cagrpc itself. Not among the backend's, for a backend refuses what it cannot read, and so would an earlier
release after a rollback; that ignores this kind."""
KINDS: tuple[RecordKind[Any], ...] = (INCREMENTS, DELETIONS, GROUPS, DISRUPTIONS, BACKEND, OWN)
"""The kinds in the order of the parameters of `Contents`."""
