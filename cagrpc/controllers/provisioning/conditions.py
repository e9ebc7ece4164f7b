"""A request's status: changes of conditions and of `provisioningClassDetails`, and how they are merged with what is
there. Pure. Which change is due is `progress`'s, `writing` writes it.

Conditions and reasons are upstream's (CA's API autoscaling.x-k8s.io/v1), `CapacityAvailable` is the proposal's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from cagrpc.api.encoding.json_documents import epoch_seconds, timestamp, whole_number
from cagrpc.api.provisioning.objects import MOST_POD_SETS, MOST_PODS, Condition, cut
from cagrpc.cluster.markers import booking_label
from cagrpc.controllers.provisioning.model import ConditionType, ProvisioningRequest
from cagrpc.controllers.settings import ClassBehaviour
from cagrpc.fleet.model import FleetSnapshot, IncrementStatus, Phase
from cagrpc.runtime.back_off import BackOff
from solver.model.quantities import pluralize

FIRST_PAUSE_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 600.0
_BACK_OFF = BackOff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

FOUND = "CapacityIsFound"
PROVISIONED = "CapacityIsProvisioned"
NOT_FOUND = "CapacityIsNotFound"
BAD_PODS = "FailedToCreatePods"
NOT_CHECKED = "FailedToCheckCapacity"
EXPIRED = "Expired"
BOOKING_ENDED = "CapacityReservationTimeExpired"
LOST = "CapacityIsLost"
OVER_SHARE = "NamespaceShareIsUsed"
SHORT = "CapacityIsShort"
CLAIMS_NOT_READY = "ClaimsAreNotReady"

ATTEMPTS = "attempts"
RETRY_AT = "retryAt"
BYPASSED = "overtaken"
"""How often it was bypassed; under the name that earlier versions read and write. Present only where the last attempt
failed for lack of room rather than because an increment was rolled back."""
CONSUMED = "consumed"
INCREMENT = "increment"
NODES = "nodes"

_ATTEMPT, _NO_ATTEMPT = "; attempt ", "; no attempt is counted, and it is "
"""What separates a reason from when it is tried again."""
_BILL = ("costPerHour", "lowerBoundPerHour", "gap", "nodeGroups", NODES)
"""Details of an increment; none of them is true once it is rolled back."""
_LATEST = 5
"""How many increments the estimate of time to ready is based on."""
_MOST_MESSAGE = 2000
_MOST_DETAIL = 4000
"""Characters. Upstream's CRD takes 32,768 of either."""
_LARGEST_NUMBER = 10**9


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a status."""

    conditions: Mapping[ConditionType, tuple[bool, str, str]] = field(default_factory=dict)
    """Status, reason and message."""
    details: Mapping[str, str | None] = field(default_factory=dict)
    """None removes one."""
    event: str = ""
    """Reason of the Event that reports it; empty for none."""
    text: str = ""
    outcome: str = ""
    """The label of the outcome in metrics; empty for none."""


def merged(request: ProvisioningRequest, change: Change, now: float) -> ProvisioningRequest:
    """Return the request with the change in its status. What others have written there stays."""
    conditions = dict(request.conditions)
    for kind, (status, reason, message) in change.conditions.items():
        before = conditions.get(kind)
        since = before.since_seconds if before is not None and before.status is status else now
        conditions[kind] = Condition(kind, status, reason, cut(message, _MOST_MESSAGE), since)
    details = {**request.details, **{name: value or "" for name, value in change.details.items()}}
    left = {name: cut(text, _MOST_DETAIL) for name, text in details.items() if change.details.get(name, "") is not None}
    return replace(request, conditions=conditions, details=left)


def accepted(request: ProvisioningRequest, status: IncrementStatus, snapshot: FleetSnapshot, standing: int) -> Change:
    """Return the change of a request whose increment is journalled. `standing` existing nodes are used too."""
    bill = _bill(request.uid, status, snapshot)
    ready = _ready_seconds(status, snapshot)
    wait = f"ready in about {ready:.0f} s" if ready is not None else "time to ready is unknown"
    patience = status.deadline_at_seconds - status.created_at_seconds
    text = f"{bill.nodes}{_beside(standing)}: {wait}; given up after {patience:.0f} s"
    return Change(
        {ConditionType.ACCEPTED: (True, "Accepted", text)},
        {**_details(request, bill, standing), INCREMENT: status.id, RETRY_AT: None},
        "Accepted",
        text,
    )


def provisioned(
    request: ProvisioningRequest, status: IncrementStatus, snapshot: FleetSnapshot, standing: int
) -> Change:
    """Return the change of a request all of whose nodes are ready. `standing` are nodes beside the increment's."""
    bill = _bill(request.uid, status, snapshot)
    text = f"all nodes are ready: {bill.nodes}{_beside(standing)}"
    details = {**_details(request, bill, standing), INCREMENT: status.id, RETRY_AT: None, BYPASSED: None}
    conditions = {
        ConditionType.ACCEPTED: (True, "Accepted", f"increment {status.id} is done"),
        ConditionType.PROVISIONED: (True, PROVISIONED, text),
    }
    return Change(conditions, details, "Provisioned", text, outcome="provisioned")


def has_room(request: ProvisioningRequest, nodes: Collection[str]) -> Change:
    """Return the change of a request that fits on existing nodes; nothing is ordered."""
    text = f"all its pods fit on {pluralize(len(nodes), 'node')} that stand"
    conditions = {
        ConditionType.ACCEPTED: (True, "Accepted", "nothing has to be ordered"),
        ConditionType.PROVISIONED: (True, FOUND, text),
    }
    details = {**_details(request, _Bill(), len(nodes)), RETRY_AT: None, BYPASSED: None}
    return Change(conditions, details, "Provisioned", text, outcome="provisioned")


def available(message: str) -> Change:
    """Return the change of a check that found room."""
    conditions = {
        ConditionType.ACCEPTED: (True, "Accepted", "its capacity is checked"),
        ConditionType.CAPACITY_AVAILABLE: (True, FOUND, message),
        ConditionType.PROVISIONED: (True, FOUND, message),
    }
    return Change(conditions, {RETRY_AT: None}, "Provisioned", message, outcome="provisioned")


def not_now(
    request: ProvisioningRequest,
    behaviour: ClassBehaviour,
    why: str,
    now: float,
    valid_until: float,
    *,
    increment: str = "",
    bypassed: int | None = None,
) -> Change:
    """Return the change after a failed attempt, with the time of the next. `increment` is the one that was rolled back;
    without it there was no room, and `bypassed` is how often the request was bypassed."""
    attempts = attempts_of(request) + 1
    retry_at = math.ceil(min(now + _BACK_OFF.seconds(attempts), max(now, valid_until)))
    text = f"{why}{_ATTEMPT}{attempts}, {_next_try(retry_at, valid_until)}"
    conditions = {ConditionType.PROVISIONED: (False, NOT_FOUND, text)}
    if behaviour is ClassBehaviour.CHECK:
        conditions[ConditionType.CAPACITY_AVAILABLE] = (False, NOT_FOUND, why)
    elif ConditionType.ACCEPTED in request.conditions or increment:
        conditions[ConditionType.ACCEPTED] = (False, NOT_FOUND, "nothing is ordered for it now")
    details = {
        ATTEMPTS: str(attempts),
        RETRY_AT: timestamp(retry_at),
        BYPASSED: None if bypassed is None else str(bypassed),
        **({INCREMENT: increment, **dict.fromkeys(_BILL)} if increment else {}),
    }
    outcome = "rolled-back" if increment else "no-room"
    return Change(conditions, details, NOT_FOUND, text, outcome=outcome)


def short(request: ProvisioningRequest, why: str, until: float, valid_until: float, *, bypassed: int) -> Change | None:
    """Return the change of a request that nothing could be tried for, since offerings are left out until then. It
    counts as no attempt. None where that is what its status says already."""
    retry_at = math.ceil(min(until, valid_until))
    text = f"{why}{_NO_ATTEMPT}{_next_try(retry_at, valid_until)}, or tried before where room is made"
    details: dict[str, str | None] = {RETRY_AT: timestamp(retry_at), BYPASSED: str(bypassed)}
    written = request.conditions.get(ConditionType.PROVISIONED)
    same = written is not None and (written.reason, written.message) == (SHORT, cut(text, _MOST_MESSAGE))
    if same and all(request.details.get(name) == value for name, value in details.items()):
        return None
    conditions = {ConditionType.PROVISIONED: (False, SHORT, text)}
    if ConditionType.ACCEPTED in request.conditions:
        conditions[ConditionType.ACCEPTED] = (False, SHORT, "nothing is ordered for it now")
    return Change(conditions, details, SHORT, text)


def _next_try(at: float, valid_until: float) -> str:
    """Return what comes next, and when: at the end of its validity a request is given up, not tried."""
    if at >= valid_until:
        return f"given up at {timestamp(at)}, the end of its validity"
    return f"tried again at {timestamp(at)}"


def last_reason(request: ProvisioningRequest) -> str:
    """Return why it is not served, as its status says it, without when it is tried again; empty where it does not."""
    written = request.conditions.get(ConditionType.PROVISIONED)
    found = written.message if written is not None else ""
    for mark in (_ATTEMPT, _NO_ATTEMPT):
        found = found.rpartition(mark)[0] or found
    return found


def waits_for_a_shortage(request: ProvisioningRequest) -> bool:
    """Return whether its status says that nothing could be tried for it."""
    written = request.conditions.get(ConditionType.PROVISIONED)
    return written is not None and not written.status and written.reason == SHORT


def bypassed(times: int) -> Change:
    """Return the change of a request that was bypassed while it waited for its next attempt."""
    return Change(details={BYPASSED: str(times)})


def not_tried(request: ProvisioningRequest, reason: str, why: str) -> Change | None:
    """Return the change of a request that nothing is tried for: its namespace has used its share (`OVER_SHARE`), or
    claims or volumes of its pods lack something (`CLAIMS_NOT_READY`). It counts as no attempt. None where that is what
    its status says already."""
    written = request.conditions.get(ConditionType.PROVISIONED)
    if written is not None and (written.reason, written.message) == (reason, why):
        return None
    return Change({ConditionType.PROVISIONED: (False, reason, why)}, {}, reason, why)


def failed(reason: str, message: str, *, unavailable: bool = False, increment: str = "") -> Change:
    """Return the change of a request that has failed for good. `unavailable` is for a check that found too little."""
    conditions = {ConditionType.FAILED: (True, reason, message)}
    if unavailable:
        conditions[ConditionType.CAPACITY_AVAILABLE] = (False, NOT_FOUND, message)
    details: dict[str, str | None] = {RETRY_AT: None, **({INCREMENT: increment} if increment else {})}
    return Change(conditions, details, "Failed", f"{reason}: {message}", outcome="failed")


def booking_expired(message: str) -> Change:
    """Return the change of a request whose reservation has expired."""
    conditions = {ConditionType.BOOKING_EXPIRED: (True, BOOKING_ENDED, message)}
    return Change(conditions, {}, "BookingExpired", message, outcome="booking-expired")


def capacity_revoked(message: str) -> Change:
    """Return the change of a request whose capacity was lost."""
    conditions = {ConditionType.CAPACITY_REVOKED: (True, LOST, message)}
    return Change(conditions, {}, "CapacityRevoked", message, outcome="capacity-revoked")


def consumption(consumed: Mapping[int, int]) -> Change:
    """Return the change with how many pods of each pod set have been counted as consumers."""
    return Change(
        details={CONSUMED: ",".join(f"{index}={count}" for index, count in sorted(consumed.items()) if count)}
    )


def both(one: Change | None, other: Change) -> Change:
    """Return the other change with the details of the one added."""
    return other if one is None else replace(other, details={**one.details, **other.details})


def consumed_of(request: ProvisioningRequest) -> dict[int, int]:
    """Return the number of counted consumers by pod set."""
    found: dict[int, int] = {}
    for entry in request.details.get(CONSUMED, "").split(","):
        index, _, count = entry.partition("=")
        number, pods = whole_number(index, MOST_POD_SETS), whole_number(count, MOST_PODS)
        if number is not None and pods is not None:
            found[number] = pods
    return found


def attempts_of(request: ProvisioningRequest) -> int:
    """Return how many attempts have failed."""
    return _number(request, ATTEMPTS)


def bypassed_of(request: ProvisioningRequest) -> int:
    """Return how often the request was bypassed."""
    return _number(request, BYPASSED)


def reported_nodes(request: ProvisioningRequest) -> int:
    """Return the number of nodes that its status reports."""
    return _number(request, NODES)


def nodes_of(uid: str, status: IncrementStatus) -> int:
    """Return the number of new nodes of the increment with pods of the request."""
    return sum(uid in each.requests for each in status.increment.placements)


def retry_at(request: ProvisioningRequest) -> float:
    """Return when the next attempt is due, in seconds since the epoch; 0 for at once."""
    return float(epoch_seconds(request.details.get(RETRY_AT)))


def _number(request: ProvisioningRequest, name: str) -> int:
    return whole_number(request.details.get(name), _LARGEST_NUMBER) or 0


@dataclass(frozen=True, slots=True)
class _Bill:
    """A request's part of an increment."""

    groups: Mapping[str, int] = field(default_factory=dict)
    """Nodes with pods of the request."""
    cost_usd_per_hour: float = 0.0
    """Nodes that it shares with other requests count in part."""
    gap: float | None = None
    """None where nothing is proven."""

    @property
    def nodes(self) -> str:
        """Return the nodes per group, for messages."""
        return ", ".join(f"{count} x {name}" for name, count in sorted(self.groups.items()))


def _bill(uid: str, status: IncrementStatus, snapshot: FleetSnapshot) -> _Bill:
    groups: Counter[str] = Counter()
    cost = 0.0
    for each in status.increment.placements:
        if uid in each.requests:
            groups[each.node_group] += 1
            state = snapshot.groups.get(each.node_group)
            cost += state.group.price_usd_per_hour / len(each.requests) if state is not None else 0.0
    return _Bill(dict(groups), cost, status.increment.gap)


def _details(request: ProvisioningRequest, bill: _Bill, standing: int) -> dict[str, str | None]:
    return {
        "costPerHour": _amount(bill.cost_usd_per_hour),
        "lowerBoundPerHour": None if bill.gap is None else _amount(bill.cost_usd_per_hour * (1 - bill.gap)),
        "gap": None if bill.gap is None else _amount(bill.gap),
        "nodeGroups": ",".join(f"{name}={count}" for name, count in sorted(bill.groups.items())),
        "nodeSelector": f"{booking_label(request.uid)}=true",
        NODES: str(sum(bill.groups.values()) + standing),
    }


def _ready_seconds(status: IncrementStatus, snapshot: FleetSnapshot) -> float | None:
    """Return how long the latest increments took: those of the same groups, otherwise any; None without any."""
    took = [
        (frozenset(each.increment.deltas), each.finished_at_seconds - each.created_at_seconds)
        for each in snapshot.increments
        if each.finished_at_seconds is not None and each.phase is Phase.DONE
    ]
    alike = [seconds for groups, seconds in took if not groups.isdisjoint(status.increment.deltas)]
    known = alike or [seconds for _, seconds in took]
    return max(known[-_LATEST:]) if known else None


def _beside(standing: int) -> str:
    return f", beside {pluralize(standing, 'node')} that stood" if standing else ""


def _amount(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
