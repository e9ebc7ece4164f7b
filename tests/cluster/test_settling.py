"""Pods that were let go a moment ago: nothing else is opened for them while their room is there."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from cagrpc.cluster.settling import SETTLE_SECONDS, Settling
from cagrpc.cluster.state import ClusterNode, ClusterState, PodRef, WaitingPods
from cagrpc.errors import Unavailable
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, IncrementStatus, Phase
from solver.model import Node, PodSet, PodSpec, Taint, TaintEffect
from tests.support.fleet import FakeClock

_SPEC = PodSpec((("cpu", 1000),))


@dataclass
class _Cluster:
    """One class of pending pods, and nodes."""

    pending: set[str] = field(default_factory=lambda: {"p", "q"})
    nodes: tuple[ClusterNode, ...] = ()
    known: bool = True

    def pod_of(self, uid: str) -> PodRef | None:
        return PodRef(uid, "ns", uid) if uid in self.pending else None

    def state(self, *, without: AbstractSet[str] = frozenset()) -> ClusterState:
        if not self.known:
            raise Unavailable("not listed yet")
        refs = tuple(PodRef(uid, "ns", uid) for uid in sorted(self.pending - without))
        return ClusterState((WaitingPods(PodSet("ns/p", _SPEC, len(refs)), refs),), self.nodes, ())


def _node(provider_id: str, cpu: int = 2000, *, ready: bool = True, taints: tuple[Taint, ...] = ()) -> ClusterNode:
    return ClusterNode(Node(provider_id, {"cpu": cpu, "pods": 10}, taints=taints), provider_id, ready, held=False)


_LET_GO_AT = 1000.0


def _snapshot(phase: Phase = Phase.DONE, pods: frozenset[str] = frozenset({"p", "gone"})) -> FleetSnapshot:
    increment = IncrementStatus("1", IncrementSpec({"g": 1}, pods=pods), phase, finished_at_seconds=_LET_GO_AT)
    return FleetSnapshot(1, {}, (), {"i-1": "g", "i-2": "other"}, (increment,))


def test_pending_pods_of_a_finished_increment_settle_for_a_while() -> None:
    clock, cluster = FakeClock(_LET_GO_AT), _Cluster(nodes=(_node("i-1"),))
    settling = Settling(cluster, clock)
    assert settling(_snapshot(Phase.READY)) == frozenset()  # in flight: the snapshot says so itself
    assert settling(_snapshot()) == {"p"}
    clock.advance(SETTLE_SECONDS - 1)
    assert settling(_snapshot()) == {"p"}
    clock.advance(1)
    assert settling(_snapshot()) == frozenset()


def test_what_was_let_go_long_before_the_start_does_not_settle() -> None:
    clock = FakeClock(_LET_GO_AT + SETTLE_SECONDS)
    assert Settling(_Cluster(nodes=(_node("i-1"),)), clock)(_snapshot()) == frozenset()


def test_no_more_pods_settle_than_there_is_room_for() -> None:
    pods = frozenset("abcde")
    nodes = (_node("i-1", cpu=2999), _node("i-1b", cpu=1000), _node("i-2", cpu=9000))
    snapshot = replace(_snapshot(pods=pods), group_of_instance={"i-1": "g", "i-1b": "g", "i-2": "other"})
    found = Settling(_Cluster(set(pods), nodes), FakeClock(_LET_GO_AT))(snapshot)
    assert found == {"a", "b", "c"}


def test_nobody_settles_where_there_is_no_room_or_nothing_is_known() -> None:
    clock = FakeClock(_LET_GO_AT)
    tainted = Taint("k", TaintEffect.NO_SCHEDULE)
    for nodes in (
        (), (_node("i-1", cpu=999),), (_node("i-1", ready=False),), (_node("i-1", taints=(tainted,)),), (_node("i-2"),),
    ):  # fmt: skip
        assert Settling(_Cluster(nodes=nodes), clock)(_snapshot()) == frozenset()
    assert Settling(_Cluster(nodes=(_node("i-1"),), known=False), clock)(_snapshot()) == frozenset()
    assert Settling(_Cluster({"q"}, (_node("i-1"),)), clock)(_snapshot()) == frozenset()
    assert Settling(_Cluster(nodes=(_node("i-1"),)), clock)(_snapshot(Phase.ROLLED_BACK)) == frozenset()
