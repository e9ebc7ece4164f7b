"""From the cluster and the fleet to the planner's question: pods that nothing serves yet, what is free for them, and
what may be opened. Pure. What is served already is `serving`'s, what is done with the plan `increments`'.

Free is the room on Nodes that are Ready, and on those that are coming, less what is planned for pods that still are
there: a pod that is gone leaves its room to others, its own replacement among them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from cagrpc.controllers.planner.serving import Serving
from cagrpc.controllers.planner.shortages import offering
from cagrpc.controllers.state import ClusterState, PodRef
from cagrpc.fleet.model import FleetSnapshot, GroupState, InstanceState
from cagrpc.wire.nodes import HOSTNAME, group_labels
from solver.explain_question import after_daemons
from solver.model import PODS, Node, NodeGroup, Plan, PodClass, PodSet, PodSpec, Problem, Resources, RunningPods

ClassKey = tuple[PodSpec, int, str | None, bool]
"""What makes pods one class of a plan."""


@dataclass(frozen=True, slots=True)
class Question:
    """A problem, and who its pods are."""

    problem: Problem
    pods: Mapping[ClassKey, tuple[PodRef, ...]]
    """Oldest first."""
    coming: frozenset[str]
    """Nodes of the problem that the scheduler does not see yet."""
    short: tuple[NodeGroup, ...]
    """Node groups that are left out after a shortage."""


def class_key(pods: PodSet | PodClass) -> ClassKey:
    return pods.spec, pods.priority, pods.gang, pods.placeholder


def question(
    state: ClusterState,
    snapshot: FleetSnapshot,
    serving: Serving,
    short: AbstractSet[str] = frozenset(),
    previous: Plan | None = None,
) -> Question:
    """`short` are offerings to leave out; `previous` the plan of the last round, wherever it got to."""
    waiting, served = _waiting(state, serving.pods)
    groups = tuple(_as_planned(each) for each in snapshot.groups.values())
    templates = _Templates(Problem((), groups, daemon_sets=state.daemon_sets))
    nodes = tuple(_standing(state, snapshot, serving, templates, served))
    registered = {node.provider_id for node in state.nodes if node.ready}
    coming = tuple(_coming(serving, registered, templates, served))
    pods: defaultdict[ClassKey, list[PodRef]] = defaultdict(list)
    for pod_set, refs in waiting:
        pods[class_key(pod_set)].extend(refs)
    left_out = tuple(group for group in groups if offering(group) in short)
    problem = Problem(
        pod_sets=tuple(pod_set for pod_set, _ in waiting),
        node_groups=tuple(group for group in groups if offering(group) not in short),
        nodes=(*nodes, *coming),
        limits=snapshot.limits,
        daemon_sets=state.daemon_sets,
        previous=None if previous is None else _not_to_come(previous),
    )
    return Question(
        problem,
        {key: tuple(sorted(refs, key=_age)) for key, refs in pods.items()},
        frozenset(node.name for node in coming),
        left_out,
    )


def _waiting(
    state: ClusterState, served: AbstractSet[str]
) -> tuple[list[tuple[PodSet, tuple[PodRef, ...]]], dict[str, PodSpec]]:
    """Pods to be planned, and the specs of those that are served and not bound yet, by UID."""
    waiting, specs = [], {}
    for each in state.waiting:
        specs.update({pod.uid: each.pod_set.spec for pod in each.pods if pod.uid in served})
        left = tuple(pod for pod in each.pods if pod.uid not in served)
        if left:
            waiting.append((replace(each.pod_set, count=len(left)), left))
    return waiting, specs


def _age(pod: PodRef) -> tuple[int, str, str]:
    return pod.created_at_seconds, pod.namespace, pod.name


def _as_planned(state: GroupState) -> NodeGroup:
    """With labels as its Nodes will have them; what its minimum needs the fleet orders itself."""
    return replace(state.group, target_size=state.target_size, labels=group_labels(state.group), min_size=0)


class _Templates:
    """The next node of each group."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._groups = {group.id: group for group in problem.node_groups}
        self._free: dict[str, Resources] = {}

    def free(self, group_id: str) -> Resources:
        """For pods, beside the DaemonSets'. Empty for a group that is not known any more."""
        if group_id not in self._free:
            group = self._groups.get(group_id)
            self._free[group_id] = {} if group is None else after_daemons(self._problem, group)
        return self._free[group_id]

    def node(self, name: str, group_id: str) -> Node | None:
        group = self._groups.get(group_id)
        if group is None:
            return None
        return Node(name, self.free(group_id), {**group.labels, HOSTNAME: name}, group.taints)


def _standing(
    state: ClusterState,
    snapshot: FleetSnapshot,
    serving: Serving,
    templates: _Templates,
    served: Mapping[str, PodSpec],
) -> Iterator[Node]:
    """Nodes that are Ready; without those whose increment is not whole yet, or that are on their way out."""
    gone = {
        instance.id
        for group in snapshot.groups.values()
        for instance in group.instances
        if instance.state is InstanceState.DELETING
    }
    gone |= snapshot.held_instances - serving.held.keys()
    for each in state.nodes:
        if not each.ready or each.provider_id in gone:
            continue
        held = serving.held.get(each.provider_id)
        if held is None:
            yield each.node
            continue
        # A young node, to which its DaemonSets' pods may still come.
        most = templates.free(held.node_group)
        free = {name: min(amount, most.get(name, amount)) for name, amount in each.node.free.items()}
        yield _holding(replace(each.node, free=free), held.pods, served)


def _coming(
    serving: Serving,
    registered: AbstractSet[str],
    templates: _Templates,
    served: Mapping[str, PodSpec],
) -> Iterator[Node]:
    expected = [(each.name, each.node_group, each.pods) for each in serving.coming]
    # Ready a moment ago, and not, or no longer, a moment later: it counts as coming until its increment ends.
    expected += [
        (held.instance_id, held.node_group, held.pods)
        for held in serving.held.values()
        if held.instance_id not in registered and held.instance_id in serving.unfinished
    ]
    for name, group_id, pods in expected:
        node = templates.node(name, group_id)
        if node is not None:
            yield _holding(node, pods, served)


def _holding(node: Node, pods: Iterable[str], served: Mapping[str, PodSpec]) -> Node:
    """The node with the pods planned for it, those that still wait: others are bound, and counted, or gone."""
    planned = Counter(served[uid] for uid in pods if uid in served)
    free = dict(node.free)
    for spec, count in planned.items():
        for name, amount in (*spec.requests, (PODS, 1)):
            free[name] = max(0, free.get(name, 0) - amount * count)
    running = tuple(RunningPods(spec, count) for spec, count in planned.items())
    return replace(node, free=free, running=(*node.running, *running))


def _not_to_come(plan: Plan) -> Plan:
    """A plan as a source of good nodes. Its own are ordered, or were refused: they are not to come any more, so that no
    change counts from them."""
    return replace(plan, increments=())
