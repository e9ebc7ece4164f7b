"""What stands as a question to consolidation: the one that a server asks of the same nodes, beside a fleet of the node
groups that they have and that new nodes could be of. What keeps pods where they are is laid out in `obstacles`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose

from cagrpc.cluster.documents import Described
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.consolidation.question import question
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.model import FleetSnapshot, GroupState
from cagrpc.report.obstacles import PodsThatStay, obstacles
from cagrpc.report.problem import Offered, RepackingQuestion
from cagrpc.report.standing import ReportedNode, StandingShape
from solver.consolidation.model import ConsolidationProblem, StandingNode
from solver.model import Limit, NodeGroup

SETTINGS = ConsolidationSettings(minimum_node_age_seconds=0.0)
"""A server's defaults; a report is not of the moment, so it passes no node over because it is young."""


@dataclass(frozen=True, slots=True)
class MovingQuestion:
    """The question, and what it leaves out."""

    problem: ConsolidationProblem
    obstacles: Mapping[str, tuple[PodsThatStay, ...]]
    """By node that stays for its pods' sake."""


def moving_question(
    found: Described,
    nodes: Sequence[ReportedNode],
    shapes: Sequence[StandingShape],
    offered: Offered,
    asked: RepackingQuestion,
) -> MovingQuestion:
    """Return the question of the nodes that are not kept, of a cluster that was read with who is bound."""
    fleet = _Fleet(nodes, shapes, offered, asked)
    # Nodes of files may have no providerID.
    state = replace(found.state, nodes=tuple(replace(each, provider_id=each.node.name) for each in found.state.nodes))
    snapshot = Snapshot(fleet.snapshot, state, placeholders=found.pause_pods)
    of_server = question(snapshot, SETTINGS, offered.now_seconds)
    standing = tuple(_as_compared(each, asked) for each in of_server.problem.nodes)
    return MovingQuestion(replace(of_server.problem, nodes=standing), obstacles(state, of_server, asked.kept.keys()))


def _as_compared(node: StandingNode, asked: RepackingQuestion) -> StandingNode:
    """Return the node; one that is left out of the comparison takes no pods, as none are planned there."""
    why = asked.kept.get(node.node.name)
    return node if why is None else replace(node, kept=why.value, takes_pods=False)


class _Fleet:
    """A fleet whose instances are the nodes that stand, by name, but for those that are kept. A node is of a group that
    is offered if its provisioner, instance type, zone, capacity type and price say so; else it is of one that does not
    grow."""

    def __init__(
        self, nodes: Sequence[ReportedNode], shapes: Sequence[StandingShape], offered: Offered, asked: RepackingQuestion
    ) -> None:
        groups = {each.id: each for each in offered.groups(shapes)}
        may = tuple(groups.values())
        group_of: dict[str, str] = {}
        free = {each.name for each in nodes} - asked.kept.keys()
        for shape in shapes:
            names = [each.name for each in shape.nodes if each.name in free]
            group = _group(shape.group, groups, may, offered) if names else None
            if group is not None:
                groups[group.id] = _with_more(group, len(names))
                group_of |= dict.fromkeys(names, group.id)
        limits = tuple(_limit(each, groups, group_of) for each in asked.problem.limits)
        states = {name: GroupState(each, each.target_size) for name, each in groups.items()}
        self.snapshot = FleetSnapshot(0, states, (), group_of, limits=limits)


def _group(shape: NodeGroup, groups: Mapping[str, NodeGroup], may: Sequence[NodeGroup], offered: Offered) -> NodeGroup:
    if offered.expanded is None:
        return groups[shape.id]
    same = (groups[each.id] for each in may if _is_of(shape, each))
    weight = max((each.weight for each in may if each.provisioner == shape.provisioner), default=0)
    name = shape.id
    while name in groups:
        name += "'"
    return next(same, replace(shape, id=name, max_size=0, weight=weight))


def _limit(limit: Limit, groups: Mapping[str, NodeGroup], group_of: Mapping[str, str]) -> Limit:
    """Return a limit, of which kept nodes are counted, with all that stands."""
    mine = limit.node_groups
    if mine is not None:
        pools = {groups[each].provisioner for each in mine if each in groups}
        mine = frozenset(each.id for each in groups.values() if each.id in mine or each.provisioner in pools)
    used = Counter(limit.used)
    for name in group_of.values():
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
