"""Pods whose nodes were released a moment ago: nothing else is opened for them while their room is there."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from cagrpc.cluster.released_pods import BINDING_SECONDS, ReleasedPods
from cagrpc.cluster.state import ClusterNode, ClusterState, PodRef, WaitingPods
from cagrpc.cluster.view.view import ClusterView
from cagrpc.errors import Unavailable
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, IncrementStatus, Phase, PodKey
from cagrpc.runtime.progress import LONGEST_FACTOR
from solver.model import Node, PodSet, PodSpec, Taint, TaintEffect
from tests.support.fleet import FakeClock

_SPEC = PodSpec((("cpu", 1000),))


@dataclass
class _Cluster(ClusterView):
    """One class of pending pods, and nodes."""

    waiting: set[str] = field(default_factory=lambda: {"p", "q"})
    nodes: tuple[ClusterNode, ...] = ()
    known: bool = True

    def pod_of(self, key: PodKey) -> PodRef | None:
        return PodRef(key, "ns", str(key)) if key in self.waiting else None

    def state(self, without: AbstractSet[PodKey] = frozenset(), *, with_bound: bool = False) -> ClusterState:
        if not self.known:
            raise Unavailable("not listed yet")
        refs = tuple(PodRef(uid, "ns", uid) for uid in sorted(self.waiting - without))
        return ClusterState((WaitingPods(PodSet("ns/p", _SPEC, len(refs)), refs),), self.nodes, ())


def _node(provider_id: str, cpu: int = 2000, *, ready: bool = True, taints: tuple[Taint, ...] = ()) -> ClusterNode:
    return ClusterNode(Node(provider_id, {"cpu": cpu, "pods": 10}, taints=taints), provider_id, ready, held=False)


_RELEASED_AT = 1000.0


def _snapshot(phase: Phase = Phase.DONE, pods: frozenset[str] = frozenset({"p", "gone"})) -> FleetSnapshot:
    increment = IncrementStatus("1", IncrementSpec({"g": 1}, pods=pods), phase, finished_at_seconds=_RELEASED_AT)
    return FleetSnapshot(1, {}, (), {"i-1": "g", "i-2": "other"}, (increment,))


def test_pending_pods_of_a_released_increment_are_waited_for() -> None:
    clock, cluster = FakeClock(_RELEASED_AT), _Cluster(nodes=(_node("i-1"),))
    released = ReleasedPods(cluster, clock)
    assert released(_snapshot(Phase.READY)) == frozenset()  # in flight: the snapshot says so itself
    assert released(_snapshot()) == {"p"}
    clock.advance(BINDING_SECONDS - 1)
    assert released(_snapshot()) == {"p"}
    clock.advance(1)
    assert released(_snapshot()) == frozenset()


def test_pods_released_long_before_the_start_are_not_waited_for() -> None:
    clock = FakeClock(_RELEASED_AT + BINDING_SECONDS)
    assert ReleasedPods(_Cluster(nodes=(_node("i-1"),)), clock)(_snapshot()) == frozenset()


def test_no_more_pods_are_waited_for_than_there_is_room_for() -> None:
    pods = frozenset("abcde")
    nodes = (_node("i-1", cpu=2999), _node("i-1b", cpu=1000), _node("i-2", cpu=9000))
    snapshot = replace(_snapshot(pods=pods), group_of_instance={"i-1": "g", "i-1b": "g", "i-2": "other"})
    found = ReleasedPods(_Cluster(set(pods), nodes), FakeClock(_RELEASED_AT))(snapshot)
    assert found == {"a", "b", "c"}


def test_nobody_is_waited_for_where_there_is_no_room_or_nothing_is_known() -> None:
    clock = FakeClock(_RELEASED_AT)
    tainted = Taint("k", TaintEffect.NO_SCHEDULE)
    for nodes in (
        (), (_node("i-1", cpu=999),), (_node("i-1", ready=False),), (_node("i-1", taints=(tainted,)),), (_node("i-2"),),
    ):  # fmt: skip
        assert ReleasedPods(_Cluster(nodes=nodes), clock)(_snapshot()) == frozenset()
    assert ReleasedPods(_Cluster(nodes=(_node("i-1"),), known=False), clock)(_snapshot()) == frozenset()
    assert ReleasedPods(_Cluster({"q"}, (_node("i-1"),)), clock)(_snapshot()) == frozenset()
    assert ReleasedPods(_Cluster(nodes=(_node("i-1"),)), clock)(_snapshot(Phase.ROLLED_BACK)) == frozenset()


def test_a_busy_scheduler_is_given_more_time_but_not_for_ever() -> None:
    pods = frozenset(f"p-{number}" for number in range(40))
    clock, cluster = FakeClock(_RELEASED_AT), _Cluster(set(pods), nodes=(_node("i-1", cpu=40_000),))
    cluster.nodes = (replace(cluster.nodes[0], node=replace(cluster.nodes[0].node, free={"cpu": 40_000, "pods": 40})),)
    released, snapshot = ReleasedPods(cluster, clock), _snapshot(pods=pods)
    waited = 0.0
    while released(snapshot):
        assert released(snapshot) == cluster.waiting
        cluster.waiting.pop()
        clock.advance(BINDING_SECONDS - 1)
        waited = clock() - _RELEASED_AT
    assert LONGEST_FACTOR * BINDING_SECONDS <= waited < (LONGEST_FACTOR + 1) * BINDING_SECONDS
