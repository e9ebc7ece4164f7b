"""What happens to the nodes of an increment once all of them are ready, with any backend: with `realise: bind` its pods
are bound to them while nobody else may; then the start-up taint is lifted, when `waves` says so, and the fleet is told.
Nodes that are for ProvisioningRequests get the labels of these in the write that lifts the taint: at no time is one
seen that is neither held nor booked. Nodes that carry the taint and that no increment in flight holds are let go too.

Every step can be repeated, so a crash at any point costs nothing: bound pods stay bound, lifted taints stay lifted, and
the increment is held until `Fleet.release`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cagrpc.controllers.requests.model import BOOKED, booking_label
from cagrpc.controllers.settings import START_UP_TAINT, Realise
from cagrpc.controllers.state import PodRef
from cagrpc.controllers.taints import NODES, lift
from cagrpc.controllers.waves import Needed, Waves
from cagrpc.errors import CagrpcError, Conflict, FailedPrecondition, InvalidInput, NotFound, Unavailable
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot, HeldNode, IncrementStatus, InstanceState, Phase, requests_among
from cagrpc.kube.client import Client
from cagrpc.kube.parallel import in_parallel

_log = logging.getLogger(__name__)

_WORKERS = 16
_LIFTED_SECONDS = 10.0
"""A node that still seems held so long after its taint was lifted is looked at again."""
_STUCK_SECONDS = 60.0
"""How long binding alone may make no progress, with the cluster in reach, before its pods are left to the scheduler."""
_MOST_TOLD = 3


class HeldNodes(Protocol):
    """What the cluster's view knows."""

    def held_nodes(self) -> Mapping[str, str]:
        """Provider id to name of every Node with our start-up taint. Raises Unavailable while the cluster is not
        known."""
        ...

    def node_names(self) -> Mapping[str, str]:
        """Provider id to name of every Node."""
        ...

    def pod_of(self, uid: str) -> PodRef | None:
        """Of a pod that is still pending."""
        ...

    def news_of(self, uid: str) -> int | None:
        """A number that grows when such a pod has changed."""
        ...


@dataclass(frozen=True, slots=True)
class _Binding:
    """A pod and the Node that was planned for it."""

    pod: PodRef
    node: str


@dataclass(frozen=True, slots=True)
class _Left:
    """A pod that was not bound."""

    pod: str
    why: str


@dataclass(frozen=True, slots=True)
class _Bound:
    """What came of binding an increment's pods."""

    count: int
    left: list[_Left]


class StartUp:
    """`step` has to be called about twice a second, by one thread."""

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        view: HeldNodes,
        *,
        realise: Realise = Realise.SIMULATE,
        requests_known: Callable[[], bool] = lambda: True,
        needed: Needed = lambda *_: {},
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`requests_known` tells whether increments that no ProvisioningRequest asks for any more have been withdrawn:
        until it does, those that are for such requests stay held. `needed` chooses from a reserve. `clock` counts
        seconds."""
        self._client = client
        self._fleet = fleet
        self._view = view
        self._binds = realise is Realise.BIND
        self._waves = Waves(clock, view.news_of, needed)
        self._requests_known = requests_known
        self._clock = clock
        self._lifted: dict[str, float] = {}
        """Names of nodes that the view may not have seen lifted yet, and when that was."""
        self._labelled: set[str] = set()
        """Instances without the taint that have their labels."""
        self._bound = 0
        """All that were ever bound."""
        self._stuck: dict[str, float] = {}
        """Since when binding makes no progress though the cluster is in reach, by increment."""

    def step(self) -> None:
        """Lets go of every increment that is ready, and of nodes that nobody holds. Raises Unavailable where the
        cluster or the journal is out of reach, Conflict where others write a node all the time, or what else the API
        server says of a node; increments stay held until a later step."""
        now = self._clock()
        held = self._view.held_nodes()
        names = set(held.values())
        self._lifted = {n: at for n, at in self._lifted.items() if n in names and now - at < _LIFTED_SECONDS}
        known = self._requests_known()  # before the snapshot: what was withdrawn until then is seen
        snapshot = self._fleet.snapshot
        ready = [each for each in snapshot.increments if each.phase is Phase.READY and each.held]
        if not known:
            ready = [each for each in ready if not requests_among(each.increment.pods)]
        self._stuck = {status.id: self._stuck[status.id] for status in ready if status.id in self._stuck}
        self._labelled &= {node.instance_id for status in ready for node in status.held}
        due = self._waves.due(snapshot, held.keys())
        for increment_id in due.give_back:
            self._fleet.withdraw(increment_id, "in reserve: not needed")
        problems: list[CagrpcError] = []
        bound = {}
        for status in ready:  # all are bound before the first is let go
            if status.id in due.let_go:
                try:
                    bound[status.id] = self._bind_pods(status, held)
                except CagrpcError as error:  # others may do better
                    problems.append(error)
        for status in ready:
            if status.id in bound:
                try:
                    self._let_go(status, due.let_go[status.id], held, bound[status.id])
                except CagrpcError as error:
                    problems.append(error)
        loose = _held_by_nobody(snapshot, held)
        self._lift({name: {} for provider_id, name in held.items() if provider_id in loose})
        if problems:
            raise problems[0]

    def _bind_pods(self, status: IncrementStatus, held: Mapping[str, str]) -> _Bound:
        """Binds what is planned for the increment's nodes, also for those whose turn is later: no taint of the plan
        goes before the last pod is bound, or the scheduler would take what is meant for others."""
        bindings = [
            _Binding(pod, held[node.instance_id])
            for node in status.held
            if self._binds and node.instance_id in held
            for pod in map(self._view.pod_of, node.pods)
            if pod is not None
        ]
        left = self._bind(status.id, bindings) if bindings else []
        return _Bound(len(bindings) - len(left), left)

    def _let_go(self, status: IncrementStatus, due: Sequence[HeldNode], held: Mapping[str, str], bound: _Bound) -> None:
        """Lifts and releases what is bound. `due` are the nodes whose turn it is; the increment is released with the
        last of them."""
        started = self._clock()
        lifted = self._lift({held[each.instance_id]: _labels(each) for each in due if each.instance_id in held})
        self._label([each for each in due if each.instance_id not in held and _labels(each)])
        whole = len(due) == len(status.held)
        if whole:
            try:
                self._fleet.release(status.id)
            except FailedPrecondition as error:
                _log.info("increment %s: taken back while it was let go: %s", status.id, error)
                return
        if whole or lifted:
            _log.info(
                "increment %s: %d pods bound, %d left to the scheduler%s; %d nodes let go in %.1f s",
                status.id,
                bound.count,
                len(bound.left),
                _told(bound.left),
                lifted,
                self._clock() - started,
            )

    def _bind(self, increment_id: str, bindings: list[_Binding]) -> list[_Left]:
        """Those that were not bound. Raises Unavailable where binding makes no progress, unless that has lasted for a
        minute and it is binding alone that does not work."""
        before = self._bound
        try:
            answers = in_parallel("bind", self._bind_one, bindings, _WORKERS)
        except Unavailable as error:
            self._client.get(NODES, {"limit": "1"})  # where all of it is out of reach, this says so
            if self._bound > before:
                self._stuck.pop(increment_id, None)
            since = self._stuck.setdefault(increment_id, self._clock())
            if self._clock() - since < _STUCK_SECONDS:
                raise
            _log.warning("increment %s: its pods are left to the scheduler: %s", increment_id, error)
            return [_Left(_name(binding.pod), "binding does not work") for binding in bindings]
        return [answer for answer in answers if answer is not None]

    def _bind_one(self, binding: _Binding) -> _Left | None:
        pod = binding.pod
        if not pod.bindable:
            return _Left(_name(pod), "its placement is the scheduler's alone")
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        }
        try:
            self._client.create(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding", body)
        except Conflict:
            return _Left(_name(pod), "it is bound already, or another pod of that name is there")
        except NotFound:
            return _Left(_name(pod), "it is gone")
        except InvalidInput as error:
            return _Left(_name(pod), str(error))
        self._bound += 1
        return None

    def _lift(self, nodes: Mapping[str, Mapping[str, str]]) -> int:
        """Name -> labels to put on. How many were lifted by this."""
        due = [each for each in nodes.items() if each[0] not in self._lifted]
        lifted = in_parallel("lift", self._lift_one, due, _WORKERS)
        return sum(lifted)

    def _lift_one(self, due: tuple[str, Mapping[str, str]]) -> bool:
        node, labels = due
        lifted = lift(self._client, node, START_UP_TAINT, labels)
        self._lifted[node] = self._clock()
        return lifted

    def _label(self, nodes: Iterable[HeldNode]) -> None:
        """Nodes that do not carry the taint: lifted before, or by others."""
        due = [each for each in nodes if each.instance_id not in self._labelled]
        names = self._view.node_names() if due else {}
        known = {names[each.instance_id]: _labels(each) for each in due if each.instance_id in names}
        in_parallel("label", lambda each: lift(self._client, each[0], START_UP_TAINT, each[1]), known.items(), _WORKERS)
        self._labelled.update(each.instance_id for each in due)


def _held_by_nobody(snapshot: FleetSnapshot, held: Mapping[str, str]) -> set[str]:
    """Of the instances that `held` has, those that no increment in flight has and that run. One that the snapshot does
    not list, or lists as failed or going, is not let go: its increment may just have begun, or have been given up."""
    loose = held.keys() - snapshot.held_instances
    groups = {group for provider_id in loose if (group := snapshot.group_of_instance.get(provider_id)) is not None}
    return {
        instance.id
        for group in groups
        for instance in snapshot.groups[group].instances
        if instance.id in loose and instance.state is InstanceState.RUNNING
    }


def _labels(node: HeldNode) -> dict[str, str]:
    """Of the ProvisioningRequests that it is for."""
    return {booking_label(uid): BOOKED for uid in requests_among(node.pods)}


def _name(pod: PodRef) -> str:
    return f"{pod.namespace}/{pod.name}"


def _told(left: list[_Left]) -> str:
    """How many for which reason, with the first few of each."""
    reasons = {why: [each.pod for each in left if each.why == why] for why in dict.fromkeys(each.why for each in left)}
    told = [f"{len(pods)} since {why}: {', '.join(pods[:_MOST_TOLD])}" for why, pods in reasons.items()]
    return f" ({'; '.join(told)})" if told else ""
