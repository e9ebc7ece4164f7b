"""What stands as a question to consolidation: nodes with their pods, and the node groups that new nodes could be of.
They are those of `problem`; what keeps pods where they are is in `obstacles`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import isclose

from cagrpc.api.core.movability import why_unplanned
from cagrpc.api.core.nodes import left
from cagrpc.api.core.slack import PLACEHOLDER, PRIORITY
from cagrpc.api.devices.collection import taken_by
from cagrpc.api.devices.matching import NodeMatching
from cagrpc.api.devices.objects import DeviceId
from cagrpc.api.devices.reading import resource_claim
from cagrpc.cluster.documents import STORAGE_KINDS, DocumentReader
from cagrpc.controllers.consolidation.must_go import NodeSigns, which_must_go
from cagrpc.controllers.scale_down.constraints import required
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.errors import InvalidInput
from cagrpc.offline.reduced import PodTemplate
from cagrpc.report import relaxed
from cagrpc.report.obstacles import Gangs, Obstacles, PodsThatStay
from cagrpc.report.problem import NO_GANGS, Offered, RepackingQuestion, pod_document
from cagrpc.report.sources import Objects
from cagrpc.report.standing import ReportedNode, StandingShape
from solver.consolidation.model import ConsolidationProblem, DisruptionReason, StandingNode
from solver.model import PODS, Limit, Node, NodeGroup, PodSet, PodSpec, RunningPods


@dataclass(frozen=True, slots=True)
class MovingQuestion:
    """The question, and what it leaves out."""

    problem: ConsolidationProblem
    obstacles: Mapping[str, tuple[PodsThatStay, ...]]
    """By node that stays for its pods' sake."""


def moving_question(
    objects: Objects,
    nodes: Sequence[ReportedNode],
    shapes: Sequence[StandingShape],
    offered: Offered,
    asked: RepackingQuestion,
) -> MovingQuestion:
    """Return the question of the nodes that are not kept, with the pods of `asked`. Raises InvalidInput with every
    object that cannot be read."""
    free = [each for each in nodes if each.name not in asked.kept]
    read = _read_nodes(objects, offered, {each.name for each in free})
    devices = asked.devices.with_taken(_taken(objects))
    gangs, obstacles = Gangs(offered.gang_label), Obstacles(objects, offered.now_seconds)
    going = _going(free, offered.now_seconds)
    pods = _pods_by_node(asked, gangs, obstacles, going.keys())
    found = obstacles.of_nodes(asked, [each for each in free if each.name not in going], gangs)
    groups = _Groups(free, shapes, offered, asked)
    seen = any(map(_sees_others, {each.spec for each in asked.problem.pod_sets}))
    standing = [
        StandingNode(
            _with_devices(_with_pods(read[each.name], each, pods[each.name], seen=seen), devices),
            groups.of[each.name],
            tuple(pods[each.name]),
            kept=found[each.name][0].obstacle.because.value if each.name in found else "",
            takes_pods=each.takes_pods and each.name not in going,
            must_go=going.get(each.name),
        )
        for each in free
    ]
    kept = (
        StandingNode(each, kept=asked.kept[each.name].value, takes_pods=False)
        for each in asked.problem.nodes
        if each.name in asked.kept
    )
    problem = ConsolidationProblem((*standing, *kept), groups.all, groups.limits, asked.problem.daemon_sets)
    return MovingQuestion(problem, found)


def _with_devices(node: Node, matching: NodeMatching) -> Node:
    """Return the node with those of its devices that nobody has."""
    return replace(node, devices=matching.of_node(node.name, node.allocatable, node.free)) if matching.any else node


def _sees_others(spec: PodSpec) -> bool:
    return bool(spec.host_ports or relaxed.has_rules(spec) or spec.pod_affinity)


def _going(nodes: Iterable[ReportedNode], now_seconds: float) -> dict[str, DisruptionReason]:
    """Return the nodes that must go, by the defaults of the settings, and why."""
    signs = (
        NodeSigns(each.name, each.pool, each.taints, each.conditions, each.created_at_seconds)
        for each in nodes
        if not each.going
    )
    found = which_must_go(signs, ConsolidationSettings(), now_seconds)
    return {name: each.reason for name, each in found.nodes.items()}


def _pods_by_node(
    asked: RepackingQuestion, gangs: Gangs, obstacles: Obstacles, going: AbstractSet[str]
) -> defaultdict[str, list[PodSet]]:
    """Return the pods of each node, equal ones as one pod set; of a node that must go without those in whose stead no
    others come."""
    found: defaultdict[str, list[PodSet]] = defaultdict(list)
    for pod_set in asked.problem.pod_sets:
        unplanned = why_unplanned(pod_set.spec)
        nodes: defaultdict[PodTemplate, Counter[str]] = defaultdict(Counter)
        names: dict[PodTemplate, str] = {}
        for pod in asked.pods.get(pod_set.name, ()):
            nodes[pod.template][pod.node] += 1
            names.setdefault(pod.template, pod.workload)
        for template, counts in nodes.items():
            named = replace(
                pod_set,
                name=names[template],
                spec=required(pod_set.spec),  # preferences never prevent a move
                gang=None if _is_placeholder(template) else gangs.of(template),
                placeholder=_is_placeholder(template),
            )
            of_count: dict[int, PodSet] = {}  # nodes share them
            for node, count in counts.items():
                if node in going and obstacles.have_no_successors(template, unplanned):
                    continue
                if count not in of_count:
                    of_count[count] = replace(named, count=count)
                found[node].append(of_count[count])
    return found


def _is_placeholder(template: PodTemplate) -> bool:
    """Return whether its pods hold the slack's room: nobody misses one that is evicted."""
    labels, spec = template.body["metadata"].get("labels") or {}, template.body["spec"]
    return labels.get(PLACEHOLDER) == "true" and spec.get("priority") == PRIORITY


# Nodes


def _read_nodes(objects: Objects, offered: Offered, names: set[str]) -> dict[str, Node]:
    """Return these nodes as the files' reader has them, with the pods that have volumes or claims: how many volumes a
    node still attaches."""
    reader = DocumentReader(offered.now_seconds, NO_GANGS, offered.schedulers)
    reader.documents += (each for each in objects.others if each.kind in STORAGE_KINDS)
    reader.documents += (each for each in objects.nodes if each.name in names)
    reader.documents += (
        pod_document(pod, pod.node) for pod in objects.pods if pod.template.claiming and pod.node in names
    )
    found = reader.read()
    if reader.problems:
        raise InvalidInput("\n".join(dict.fromkeys(reader.problems)))
    return {each.node.name: each.node for each in found.state.nodes}


def _taken(objects: Objects) -> frozenset[DeviceId]:
    """Return the devices that pods have."""
    claims = (each for each in objects.others if each.kind == "ResourceClaim")
    return taken_by(resource_claim(each.body, []) for each in claims)  # what is malformed has been reported


def _with_pods(node: Node, facts: ReportedNode, pods: Iterable[PodSet], *, seen: bool) -> Node:
    """Return the node with all of its pods; `seen` says whether constraints between pods see them."""
    used: Counter[str] = Counter()
    running: list[RunningPods] = []
    for template, count in facts.pods.items():
        if not template.claiming:  # those are counted already
            used.update({name: count * amount for name, amount in template.requests.items()})
    if seen:
        running += (RunningPods(each.spec, each.count) for each in pods)
        running += _taking_ports(facts)
    return replace(node, free={PODS: 0, **left(node.free, used)}, running=tuple(running))


def _taking_ports(facts: ReportedNode) -> Iterator[RunningPods]:
    """Yield pods that came with the node and take its ports."""
    for template, count in facts.pods.items():
        ports = template.spec().host_ports if template.overhead else ()
        if ports:
            yield RunningPods(PodSpec(host_ports=ports), count)


# Node groups


class _Groups:
    """The node groups of nodes that stand, and of new ones. A node is of a group that is offered if its provisioner,
    instance type, zone, capacity type and price say so; else it is of one that does not grow."""

    def __init__(
        self, nodes: Sequence[ReportedNode], shapes: Sequence[StandingShape], offered: Offered, asked: RepackingQuestion
    ) -> None:
        groups = {each.id: each for each in asked.problem.node_groups}
        self.of: dict[str, str] = {}
        """The node group of each node, by names."""
        free = {each.name for each in nodes}
        for shape in shapes:
            names = [each.name for each in shape.nodes if each.name in free]
            group = self._group(shape.group, groups, asked.problem.node_groups, offered) if names else None
            if group is not None:
                groups[group.id] = _with_more(group, len(names))
                self.of |= dict.fromkeys(names, group.id)
        self.all = tuple(groups.values())
        self.limits = tuple(self._limit(each, groups) for each in asked.problem.limits)

    def _group(
        self, shape: NodeGroup, groups: Mapping[str, NodeGroup], may: Sequence[NodeGroup], offered: Offered
    ) -> NodeGroup:
        if offered.expanded is None:
            return groups[shape.id]
        same = (groups[each.id] for each in may if _is_of(shape, each))
        weight = max((each.weight for each in may if each.provisioner == shape.provisioner), default=0)
        name = shape.id
        while name in groups:
            name += "'"
        return next(same, replace(shape, id=name, max_size=0, weight=weight))

    def _limit(self, limit: Limit, groups: Mapping[str, NodeGroup]) -> Limit:
        """Return a limit, of which kept nodes are counted, with all that stands."""
        mine = limit.node_groups
        if mine is not None:
            pools = {groups[each].provisioner for each in mine if each in groups}
            mine = frozenset(each.id for each in groups.values() if each.id in mine or each.provisioner in pools)
        used = Counter(limit.used)
        for name in self.of.values():
            if mine is None or name in mine:
                used.update(groups[name].counted_capacity)
        return replace(limit, node_groups=mine, used=dict(used))


def _is_of(shape: NodeGroup, group: NodeGroup) -> bool:
    return _place(shape) == _place(group) and isclose(shape.price_usd_per_hour, group.price_usd_per_hour)


def _place(group: NodeGroup) -> tuple[str, str, str, str]:
    return group.provisioner, group.instance_type, group.zone, group.capacity_type


def _with_more(group: NodeGroup, count: int) -> NodeGroup:
    """Return the group with so many more nodes that stand; of what is there already none is too many or missing."""
    size = group.target_size + count
    return replace(group, target_size=size, max_size=max(group.max_size, size), min_size=min(group.min_size, size))
