"""A cluster that is told moment by moment, for the ledger of episodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cagrpc.cluster.state import ClusterNode, ClusterState, NodeCondition, PodRef, WaitingPods
from cagrpc.controllers.autoscaler import GroupSize
from cagrpc.controllers.episodes.ledger import ClosedEpisode, ClusterMoment, EpisodeLedger
from cagrpc.controllers.episodes.model import KnownGroups, ScaleUp
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.prices import NodePrices, PriceList
from solver.model import Node, NodeGroup, PodSet, PodSpec
from tests.support.solver.problems import spec

START = 1_000_000.0
ZONE = "topology.kubernetes.io/zone"


def node_group(name: str, cpu: int, price: float, **other: object) -> NodeGroup:
    labels = {"node.kubernetes.io/instance-type": name, ZONE: "a", "agentpool": name}
    allocatable = {"cpu": cpu, "memory": 64 << 30, "pods": 110}
    return NodeGroup(name, allocatable, price, labels, instance_type=name, zone="a", **other)  # type: ignore[arg-type]


BIG, SMALL = node_group("big", 8000, 0.8), node_group("small", 2000, 0.25)


@dataclass
class Told:
    """Pods and nodes as the view would show them, and time that is told."""

    groups: tuple[NodeGroup, ...] = (BIG, SMALL)
    now: float = START
    sizes: dict[str, GroupSize] = field(default_factory=dict)
    scale_ups: list[ScaleUp] = field(default_factory=list)
    known: KnownGroups | None = None

    def __post_init__(self) -> None:
        self.ledger = EpisodeLedger(NodePrices(PriceList(embedded_catalogue())))
        self.waiting: dict[str, tuple[PodSpec, PodRef]] = {}
        self.bound: set[str] = set()
        self.nodes: dict[str, ClusterNode] = {}
        self.made = 0

    def add(self, count: int, of: PodSpec | None = None) -> list[str]:
        """Create pods; return their UIDs."""
        of, found = of or spec(), []
        for _ in range(count):
            self.made += 1
            uid = f"uid-{self.made}"
            self.waiting[uid] = (of, PodRef(uid, "ns", f"pod-{self.made}", int(self.now)))
            found.append(uid)
        return found

    def bind(self, uids: list[str]) -> None:
        for uid in uids:
            del self.waiting[uid]
            self.bound.add(uid)

    def node(self, group: NodeGroup, *, ready: bool = True, free: int = 0) -> str:
        """Let a node of a group come; return its name."""
        name = f"{group.id}-{len(self.nodes)}"
        labels = {**group.labels, "kubernetes.io/hostname": name}
        left = {**group.allocatable, "cpu": free}
        condition = NodeCondition("Ready", "True" if ready else "False", int(self.now))
        self.nodes[name] = ClusterNode(
            Node(name, left, labels, allocatable=group.allocatable),
            name,
            ready,
            held=False,
            created_at_seconds=int(self.now),
            conditions=(condition,),
        )
        return name

    @property
    def state(self) -> ClusterState:
        alike: dict[PodSpec, list[PodRef]] = {}
        for of, ref in self.waiting.values():
            alike.setdefault(of, []).append(ref)
        waiting = [WaitingPods(PodSet(refs[0].name, of, len(refs)), tuple(refs)) for of, refs in alike.items()]
        return ClusterState(tuple(waiting), tuple(self.nodes.values()), ())

    def see(self) -> ClosedEpisode | None:
        awaited = self.ledger.awaited
        seen = ClusterMoment(
            self.now,
            self.state,
            awaited & self.waiting.keys(),
            awaited & self.bound,
            self.known or KnownGroups(self.groups),
            dict(self.sizes),
            tuple(self.scale_ups),
        )
        return self.ledger.see(seen)

    def run(self, seconds: float) -> ClosedEpisode | None:
        """Let time pass in steps of two seconds; return the episode that ended, where one did."""
        until, found = self.now + seconds, None
        while self.now < until:
            self.now += 2.0
            closed = self.see()
            assert not (closed and found), "one at a time"
            found = closed or found
        return found

    def end(self) -> ClosedEpisode:
        """Wait for the end of the open episode."""
        found = self.run(2_000.0)
        assert found is not None
        return found
