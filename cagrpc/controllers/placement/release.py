"""The release controller: once all nodes of an increment are ready, with any backend, it removes the start-up taint of
each as soon as the pods planned for it are nominated, and then releases the increment in the fleet. Nodes for
ProvisioningRequests get their booking labels in the patch that removes the taint: at no time is such a node visible
that is neither held nor booked. Nodes with the taint that no increment in flight holds are released too.

Where nodes are dedicated, a new one takes the pods that are planned there and no others, until they are bound. Its
start-up taint gets a value, and each of its pods a toleration of that value (upstream: "Taints and Tolerations",
dedicated nodes), so it does not matter in which order the scheduler tries pods. The taint is removed once all of them
are bound, and those of the other nodes that are ready.

Every step is idempotent, so a crash at any point costs nothing: taints stay removed, and the increment is held until
`Fleet.release`. Who is nominated where is `controller`'s.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from prometheus_client import Gauge
from prometheus_client.registry import Collector

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.cluster.markers import BOOKED, PLACEMENT_FIELD_MANAGER, booking_label
from cagrpc.cluster.state import PendingPod
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.placement.controller import PlacementController
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.errors import CagrpcError, Conflict, FailedPrecondition, InvalidInput, NotFound, Unavailable
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import (
    DisruptionPhase,
    ExpectedPod,
    FleetSnapshot,
    IncrementNode,
    IncrementStatus,
    InstanceState,
    Phase,
)
from cagrpc.kube.client.client import METADATA_ONLY, Client, PatchKind
from cagrpc.kube.client.failures import Forbidden
from cagrpc.kube.client.parallel import in_parallel
from cagrpc.kube.nodes import lift, set_value
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.controller import Controller
from cagrpc.runtime.log_once import LogOnce
from cagrpc.runtime.progress import Turn
from cagrpc.runtime.work_queue import WorkQueue
from solver.model import TaintEffect
from solver.model.quantities import pluralize

_log = logging.getLogger(__name__)

_LONGEST_VALUE = 63
"""Of a taint (upstream: a label's value)."""
_TOLERATIONS = "/spec/tolerations"


def taint_value(node: str) -> str:
    """Return the value of the start-up taint of a Node of this name while it is dedicated."""
    return node if len(node) <= _LONGEST_VALUE else sha256(node.encode()).hexdigest()[:_LONGEST_VALUE]


class Dedication:
    """Dedicates nodes, and remembers what was written. Thread-safe, except for one node from several threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._admitted: dict[str, set[str]] = {}
        """The pods (UIDs) that tolerate its taint, by node that is dedicated."""
        self._reported = LogOnce()

    def admit(self, node: str, pods: Iterable[PendingPod], *, index: int = -1) -> bool:
        """Dedicate the Node, whose start-up taint is at `index`, and let these pods tolerate it. Return false where one
        must not be changed. Raises Unavailable where the API server is out of reach, Conflict where others write the
        Node again and again."""
        value = taint_value(node)
        if node not in self._admitted:
            set_value(self._client, node, START_UP_TAINT, value, index=index)
        admitted = self._admitted.setdefault(node, set())
        refused = [pod for pod in pods if not self._tolerate(pod, value, admitted)]
        return not refused

    def only(self, nodes: AbstractSet[str]) -> None:
        """Forget all other Nodes: they are open to all pods, or gone."""
        for name in self._admitted.keys() - nodes:
            del self._admitted[name]

    def _tolerate(self, pod: PendingPod, value: str, admitted: set[str]) -> bool:
        if value in pod.tolerated:  # let in by an earlier process
            admitted.add(pod.ref.uid)
        if pod.ref.uid in admitted:
            return True
        toleration = {
            "key": START_UP_TAINT,
            "operator": "Equal",
            "value": value,
            "effect": TaintEffect.NO_SCHEDULE.value,
        }
        try:
            try:
                self._patch(pod, [{"op": "add", "path": f"{_TOLERATIONS}/-", "value": toleration}])
            except InvalidInput:  # it has no tolerations yet
                test = {"op": "test", "path": _TOLERATIONS, "value": None}
                self._patch(pod, [test, {"op": "add", "path": _TOLERATIONS, "value": [toleration]}])
        except (NotFound, Conflict):  # gone, or changed since: the view will report it
            return True
        except (Forbidden, InvalidInput) as error:
            if self._reported.is_new(type(error).__name__):
                _log.warning(
                    "a node is opened to all pods at once, since a pod planned for it cannot be changed: %s", error
                )
            return False
        self._reported.over()
        admitted.add(pod.ref.uid)
        return True

    def _patch(self, pod: PendingPod, operations: Sequence[dict[str, Any]]) -> None:
        path = f"/api/v1/namespaces/{pod.ref.namespace}/pods/{pod.ref.name}"
        test = {"op": "test", "path": "/metadata/uid", "value": pod.ref.uid}
        self._client.patch(
            path,
            [test, *operations],
            PatchKind.JSON,
            field_manager=PLACEMENT_FIELD_MANAGER,
            accept=METADATA_ONLY,
        )


STEP_SECONDS = 0.2
_WORKERS = 16
_LIFTED_SECONDS = 10.0
"""A node that still seems held so long after its taint was removed is queued again."""
FEW = 16
"""Up to so many nodes are released one after the other where pods without a place want their room."""
APART_SECONDS = 0.25
"""Nodes that are released one after the other are so far apart: pods that the scheduler tried and failed are nominated
again by then."""
AGAIN_SECONDS = 0.05
"""How soon to check again whether all pods of a node are nominated, or bound."""


@dataclass(frozen=True, slots=True)
class _Due:
    """A node to be released."""

    name: str
    increment_id: str
    node: IncrementNode
    round: str
    """The planning round that its increment comes from."""
    given_up: bool = False
    """Whether it is due because it is for nobody."""


class ReleaseController(Controller):
    """Releases nodes. `step` is for one thread; the threads of `queue` patch nodes."""

    name = "releasing nodes"
    every_seconds = STEP_SECONDS
    back_off = BackOff(STEP_SECONDS, 1.0)  # what fails is the view that is not there yet

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        view: ClusterView,
        placement: PlacementController,
        assumed: AssumeCache,
        settings: PlannerSettings,
        *,
        clock: MonotonicClock = monotonic,
    ) -> None:
        """Until it is known what ProvisioningRequests hold, increments for such requests stay held: those that no
        request asks for any more have been withdrawn by then. With `settings.dedicated_nodes` nodes are dedicated to
        the pods planned there until these are bound. A node whose pods cannot be nominated or let in, or which another
        taint keeps them from, is released all the same once no pod was nominated or bound for the progress deadline."""
        self._client = client
        self._fleet = fleet
        self._view = view
        self._placement = placement
        self._assumed = assumed
        self._dedication = Dedication(client) if settings.dedicated_nodes else None
        self._to_be_bound: Mapping[str, int] = {}
        """The number of pods with places on held nodes, by increment, where nodes are dedicated."""
        self._all_bound = False
        """Whether no dedicated node has pods that are still to be bound, as of the last step."""
        self._clock = clock
        self._deadline_seconds = settings.progress_deadline_seconds
        self._turns: dict[str, Turn] = {}
        """Of ready increments: until all of their pods are nominated; where nodes are dedicated, until all are bound,
        anew with each that is."""
        self._ready_since: dict[str, float] = {}
        """Seconds of `clock`, by increment."""
        self._lifted: dict[str, float] = {}
        """When the taint was removed, by name, of nodes that the view may still show with it."""
        self._surplus_since: dict[str, float] = {}
        """By name, of nodes that are for nobody any more."""
        self._labelled: set[str] = set()
        """Instances without the taint that have their booking labels."""
        self._due: Mapping[str, _Due] = {}
        """Nodes of ready increments to be released, by name."""
        self._begun: dict[str, float] = {}
        self._begun_at = float("-inf")
        """Of nodes that are released one after the other, when each was tried first, and when the latest was."""
        self._loose: AbstractSet[str] = frozenset()
        """Names of nodes that no increment holds."""
        self._open_groups: set[str] = set()
        """Node groups of which it was said that their nodes come without the start-up taint."""
        what = "Ready nodes with the start-up taint that are to lose it now."
        self._unreleased = Gauge("cagrpc_unreleased_nodes", what, registry=None)
        self._unreleased.set_function(self.unreleased)
        self.queue: WorkQueue[str] = WorkQueue("releasing nodes", self._release, workers=_WORKERS, clock=clock)

    def queues(self) -> tuple[WorkQueue[str], ...]:
        return (self.queue,)

    def collectors(self) -> Iterable[Collector]:
        """Return how many nodes are to be released."""
        return (self._unreleased,)

    def unreleased(self) -> int:
        """Return how many ready nodes have our taint and are to lose it now. For any thread."""
        snapshot = self._fleet.snapshot
        to_hold = self._assumed.displaced.instances_to_hold(snapshot.disruption)
        ready = [each for each in snapshot.increments if each.phase is Phase.READY and each.id != _withheld(snapshot)]
        found = {node.instance_id for status in ready for node in status.held} - to_hold
        try:
            held = self._view.held_nodes()
        except Unavailable:  # none was released yet
            return len(found)
        return len(found & held.keys() | _held_by_nobody(snapshot, held))

    def step(self) -> None:
        """Queue the nodes that are due of every ready increment, and those that no increment holds; release increments
        all of whose nodes are. Raises Unavailable where the cluster or the journal is out of reach, Conflict where a
        node keeps changing, or what else the API server answers for a node; increments stay held until a later step."""
        now = self._clock()
        held = self._view.held_nodes()
        names = set(held.values())
        if self._dedication is not None:
            self._dedication.only(names)
        self._lifted = {n: at for n, at in self._lifted.items() if n in names and now - at < _LIFTED_SECONDS}
        known = not self._assumed.requests.unknown  # before the snapshot, which has what was withdrawn until then
        snapshot = self._fleet.snapshot
        ready = [each for each in snapshot.increments if each.phase is Phase.READY and each.held]
        ready = [each for each in ready if each.id != _withheld(snapshot)]
        if not known:
            ready = [each for each in ready if not each.increment.requests]
        self._say_where_not_held([each for each in ready if each.id not in self._ready_since], held)
        self._ready_since = {each.id: self._ready_since.get(each.id, now) for each in ready}
        served, waiting = self._placement.progress().served, self._placement.to_be_bound()
        self._turns = {each.id: self._turns.get(each.id) or Turn(now, served) for each in ready}
        for turn in self._turns.values():
            turn.before = max(turn.before, waiting)
        self._labelled &= {node.instance_id for status in ready for node in status.held}
        self._release_all(ready, held)
        loose = _held_by_nobody(snapshot, held)
        self._loose = {name for provider_id, name in held.items() if provider_id in loose}
        for name in self._loose - self._lifted.keys():
            self.queue.add(name)
        problems: list[CagrpcError] = []
        for status in ready:
            try:
                self._end(status, held)
            except CagrpcError as error:  # the others are still tried
                problems.append(error)
        if problems:
            raise problems[0]

    def _say_where_not_held(self, newly_ready: Iterable[IncrementStatus], held: Mapping[str, str]) -> None:
        """Say once of a node group that its nodes come without the start-up taint: whoever makes them does not set it.
        Such an increment is released as soon as all of its nodes are ready."""
        for status in newly_ready:
            groups = {each.node_group for each in status.held} - self._open_groups
            taken = {each.node_group for each in status.held if each.instance_id in held}
            for group in sorted(groups - taken):
                self._open_groups.add(group)
                _log.warning(
                    "node group %s: its nodes register without the taint %s:NoSchedule, so pods may take them before"
                    " all of an increment is there; let its bootstrap configuration register nodes with it",
                    group,
                    START_UP_TAINT,
                    extra={"increment": status.id},
                )

    def _release_all(self, ready: Iterable[IncrementStatus], held: Mapping[str, str]) -> None:
        """Queue the nodes that are due, of all increments together."""
        to_hold = self._assumed.displaced.instances_to_hold(self._fleet.snapshot.disruption)
        waiting = [
            _Due(held[node.instance_id], status.id, node, status.increment.plan or status.id)
            for status in ready
            for node in status.held
            if node.instance_id in held and held[node.instance_id] not in self._lifted
            if node.instance_id not in to_hold
        ]
        now, surplus = self._clock(), {each.name: each for each in waiting if self._is_surplus(each)}
        self._surplus_since = {name: self._surplus_since.get(name, now) for name in surplus}
        if self._dedication is not None:
            due = self._due_where_dedicated(waiting)
        else:
            due = self._due_in_turn(self._all_have_come(waiting))
        # Pods without a place may still be planned onto nodes that are for nobody.
        rivals = self._placement.rivals()
        waited = {name for name, since in self._surplus_since.items() if now >= since + self._deadline_seconds}
        given_up = waited if rivals else surplus.keys()
        self._due = due | {name: replace(surplus[name], given_up=True) for name in given_up}
        for name in self._due:
            self.queue.add(name)

    def _all_have_come(self, waiting: Sequence[_Due]) -> list[_Due]:
        """Return the nodes of rounds all of whose pods have been created. Were each released as soon as its own pods
        are there, the scheduler would retry those of nodes that are still held with every taint that is removed, and
        what fails loses its nomination for a moment, in which others that are retried, or just being created, take its
        room."""
        expecting = {each.round for each in waiting if self._placement.expects(each.name)}
        return [
            each
            for each in waiting
            if each.round not in expecting or (self._is_late(each) and not self._placement.expects(each.name))
        ]

    def _due_where_dedicated(self, waiting: Sequence[_Due]) -> dict[str, _Due]:
        """Return nodes with pods to let in; once all pods are bound, all nodes. Earlier none is open to others: a
        scheduler that is behind with pods may see it open before it sees that a pod is let in elsewhere. Patience with
        an increment begins anew with each pod that is bound."""
        pods = {each.name: self._placement.pods_of(each.name) for each in waiting}
        left = Counter[str]()
        for each in waiting:
            left[each.increment_id] += len(pods[each.name])
        now, served = self._clock(), self._placement.progress().served
        fewer = {of for of, count in left.items() if count < self._to_be_bound.get(of, count)}
        self._turns |= {of: Turn(now, served, left.total()) for of in fewer & self._turns.keys()}
        self._to_be_bound = left
        self._all_bound = not any(pods[each.name] for each in waiting if not each.node.requests)
        return {each.name: each for each in waiting if self._all_bound or pods[each.name] or self._is_late(each)}

    def _due_in_turn(self, waiting: Sequence[_Due]) -> dict[str, _Due]:
        """Return nodes in the order in which they are to be released. Every taint removed makes the scheduler retry all
        pending pods, and those that fail, as their own node is still held, lose their nomination for a moment: their
        node must not be open to other pods then. So nodes are released as fast as the API server takes them, those last
        whose pods the scheduler tries first: meanwhile it gets through the head of its queue only. Where pods without a
        place are pending, a few nodes are released one after the other."""
        begun = self._placement.begun({each.increment_id for each in waiting})
        turns = {each.name: self._placement.turn(each.name) for each in waiting}
        # Nodes without planned pods come last, once all others are released: pods would go there instead.
        unplanned = all(turn is None for turn in turns.values())
        due = {
            each.name: each
            for each in waiting
            if self._is_late(each) or (begun and (unplanned or turns[each.name] is not None))
        }
        order = sorted(due, key=lambda name: turns[name] or (0, 0.0), reverse=True)
        self._begun = {name: at for name, at in self._begun.items() if name in due}
        if len(order) <= FEW and not unplanned and self._placement.rivals():
            now = self._clock()
            # One that fails does not delay the others.
            order.sort(key=lambda name: self._begun.get(name, float("-inf")))
            order = order[:1] if now >= self._begun_at + APART_SECONDS else []
            self._begun |= dict.fromkeys(order, now)
            self._begun_at = now if order else self._begun_at
        return {name: due[name] for name in order}

    def _release(self, name: str) -> float | None:
        """Release one node, for the queue. Return after how many seconds to check again."""
        each = self._due.get(name)
        if name in self._lifted or (each is None and name not in self._loose):
            return None
        if each is not None and not (self._is_late(each) or self._placement.settled(each.increment_id, name)):
            return AGAIN_SECONDS
        surplus = each is not None and self._is_surplus(each)
        if each is not None and each.given_up and not surplus:  # it is for somebody again
            return None
        if each is not None and not surplus and self._stays_dedicated(each):
            return AGAIN_SECONDS
        if each is None or not (surplus and self._delete(each.node)):
            labels = {} if each is None else _labels(each.node)
            lift(self._client, name, START_UP_TAINT, labels, index=self._view.held_at(name))
        self._lifted[name] = self._clock()
        return None

    def _stays_dedicated(self, each: _Due) -> bool:
        """Let in the node's pods. Return whether some are still to be created or bound, or pods elsewhere to be bound:
        these would take the room here, as the scheduler tries them with each taint that is removed."""
        if self._dedication is None or each.node.requests:
            return False
        expects, late = self._placement.expects(each.name), self._is_late(each)
        pods = self._placement.pods_of(each.name)
        if expects or (pods and not late):
            return self._dedication.admit(each.name, pods, index=self._view.held_at(each.name)) or expects
        return not (late or self._all_bound)

    def _delete(self, node: IncrementNode) -> bool:
        """Delete the instance. Return false where it is left to scale-down instead."""
        try:
            self._fleet.delete_instances(node.node_group, [node.instance_id])
        except FailedPrecondition:  # below the minimum of its group
            return False
        _log.info("instance %s is deleted: the pods that it is for were not created", node.instance_id)
        return True

    def _is_surplus(self, each: _Due) -> bool:
        """Return whether all pods planned for the node were still to be created at that time, and it is for nobody any
        more."""
        return (
            _only_expected(each.node)  # of most nodes nothing else is asked
            and self._placement.settled(each.increment_id, each.name)  # first: before that it is not known who expects
            and not self._placement.expects(each.name)
            and self._placement.turn(each.name) is None
            and not self._view.in_use(each.name)
        )

    def _is_late(self, each: _Due) -> bool:
        turn = self._turns[each.increment_id]
        return turn.is_over(self._placement.progress(), self._deadline_seconds, self._clock())

    def _end(self, status: IncrementStatus, held: Mapping[str, str]) -> None:
        """Release the increment in the fleet once all its nodes are. Pods that are not bound yet keep their places."""
        if any(held.get(node.instance_id, "") not in ("", *self._lifted) for node in status.held):
            return
        self._label([each for each in status.held if each.instance_id not in held and _labels(each)])
        names = self._view.node_names()
        known = {each.name: names[each.instance_id] for each in status.held if each.instance_id in names}
        pods = {uid: known[each.name] for each in status.held if each.name in known for uid in each.pods}
        self._assumed.placements.registered(known, pods)
        about = {"increment": status.id}
        try:
            self._fleet.release(status.id)
        except FailedPrecondition as error:
            _log.info("increment %s: rolled back while it was released: %s", status.id, error, extra=about)
            return
        seconds = self._clock() - self._ready_since[status.id]
        _log.info(
            "increment %s: %s released in %.1f s", status.id, pluralize(len(status.held), "node"), seconds, extra=about
        )

    def _label(self, nodes: Iterable[IncrementNode]) -> None:
        """Put booking labels on nodes without the taint: it was removed before, or by others."""
        due = [each for each in nodes if each.instance_id not in self._labelled]
        names = self._view.node_names() if due else {}
        known = {names[each.instance_id]: _labels(each) for each in due if each.instance_id in names}
        in_parallel("label", lambda each: lift(self._client, each[0], START_UP_TAINT, each[1]), known.items(), _WORKERS)
        self._labelled.update(each.instance_id for each in due)


def _withheld(snapshot: FleetSnapshot) -> str:
    """Return the increment of a disruption that does not move pods yet: nobody else is to go to its nodes."""
    under_way = snapshot.disruption
    waits = under_way is not None and under_way.phase is DisruptionPhase.CREATING
    return under_way.increment_id if under_way is not None and waits else ""


def _held_by_nobody(snapshot: FleetSnapshot, held: Mapping[str, str]) -> set[str]:
    """Return those of the instances in `held` that run and that no increment in flight holds. One that the snapshot
    does not list, or lists as failed or being deleted, is left out: its increment may just have begun or failed."""
    loose = held.keys() - snapshot.held_instances
    groups = {group for provider_id in loose if (group := snapshot.group_of_instance.get(provider_id)) is not None}
    return {
        instance.id
        for group in groups
        for instance in snapshot.groups[group].instances
        if instance.id in loose and instance.state is InstanceState.RUNNING
    }


def _only_expected(node: IncrementNode) -> bool:
    """Return whether all pods planned for the node were still to be created at that time."""
    return bool(node.pods) and all(isinstance(pod, ExpectedPod) for pod in node.pods)


def _labels(node: IncrementNode) -> dict[str, str]:
    """Return the booking labels of the ProvisioningRequests that the node is for."""
    return {booking_label(uid): BOOKED for uid in node.requests}
