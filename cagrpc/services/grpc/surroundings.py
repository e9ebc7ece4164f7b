"""What a cluster adds to a request of the autoscaler, which has templates of node groups and neither nodes nor
DaemonSets. Pods that have room on nodes that stand or come are not offered: the autoscaler gives it to them before it
asks. So what is free for those that it offers is what all others that wait leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cagrpc.cluster.drop_invalid import drop_invalid, faults
from cagrpc.cluster.node_groups import group_of
from cagrpc.fleet.model import PodKey
from solver.model import PODS, Node, NodeGroup, PodSpec, Problem

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.cluster.state import ClusterState
    from cagrpc.controllers.assume_cache.placements import PlacedPods
    from cagrpc.controllers.assume_cache.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ClusterSurroundings:
    """All that planning reads of the cluster beside the pods of a request."""

    nodes: tuple[Node, ...] = ()
    """With what is free for the pods that are offered."""
    daemon_sets: tuple[PodSpec, ...] = ()
    unknown: str = ""
    """What is not known of it, for people; empty where all is."""


NOTHING_AROUND = ClusterSurroundings(unknown="DaemonSets and room on standing nodes")


def surroundings(
    snapshot: Snapshot, offered: Mapping[PodKey, PodSpec], out_of_time: Callable[[], bool] = lambda: False
) -> ClusterSurroundings:
    """Return what surrounds the pods that are `offered`: of the nodes those that may have room for one of them. Once
    `out_of_time()` is true nodes are left out. Raises StillStarting while it is not known what ProvisioningRequests
    hold."""
    placed, late = snapshot.placed(), False
    for each in snapshot.cluster.waiting:
        pods = [pod.key for pod in each.pods if pod.key not in offered and pod.key not in placed.served]
        if late := out_of_time():
            break
        _take(placed, pods, each.pod_set.spec)
    least = _least(offered.values())
    room = (each for each in placed.nodes if all(each.free.get(name, 0) >= amount for name, amount in least.items()))
    found = Problem((), nodes=() if late else tuple(room), daemon_sets=snapshot.cluster.daemon_sets)
    if faults(found):
        found = drop_invalid(found)
    unknown = "room on standing nodes, for want of time" if late else ""
    return ClusterSurroundings(found.nodes, found.daemon_sets, unknown)


def ready_since(state: ClusterState, group: NodeGroup, others: Iterable[NodeGroup], since_seconds: float) -> int:
    """Return how many ready nodes of a group were created since then; `others` are groups that nodes may be of as
    well."""
    groups = (group, *others)
    young = (each for each in state.nodes if each.ready and each.created_at_seconds >= int(since_seconds))
    alike = (each for each in young if group_of(each, (group,)) is group)  # few: only these are compared with all
    return sum(group_of(each, groups) is group for each in alike)


def _least(specs: Iterable[PodSpec]) -> Mapping[str, int]:
    """Return what each of the pods requests at least."""
    requests = [dict(each) for each in {spec.requests for spec in specs}]
    common = set[str].intersection(*map(set, requests)) if requests else ()
    return {PODS: 1, **{name: min(each[name] for each in requests) for name in common}}


def _take(placed: PlacedPods, pods: Iterable[PodKey], spec: PodSpec) -> None:
    """Give pods of one spec room as far as there is any. The others have theirs on nodes that only the autoscaler knows
    of: those that are coming."""
    places = _places(placed, spec)
    for key in pods:
        name = next(places, None)
        if name is None:
            return
        placed.move(key, spec, name)


def _places(placed: PlacedPods, spec: PodSpec) -> Iterator[str]:
    """Yield the node for one such pod after the other, which is placed there in between."""
    for name in placed.names:
        while placed.admits(spec, name):
            yield name
