"""Small problems of ProvisioningRequests: what must be true of every decision, and which requests exhaustive search
serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from cagrpc.cluster.connected import connected
from cagrpc.controllers.provisioning.decision.planning import MOST_AT_ONCE, Decisions, RequestPart, Scenario
from cagrpc.controllers.provisioning.model import Candidate
from solver import Budget, Node, NodeGroup, PodSet, PodSpec, Problem, solve
from solver.model.eligibility import why_not_eligible

BUDGET = Budget(deterministic_seconds=0.5)


def request(uid: str, *sets: tuple[PodSpec, int], **other: object) -> Candidate:
    """Return a candidate with so many pods of each spec; the digits of its name are its creation time."""
    pod_sets = tuple(PodSet(f"ns/{uid}-{number}", spec, count) for number, (spec, count) in enumerate(sets))
    age = float("0" + "".join(filter(str.isdigit, uid)))
    return Candidate(uid, f"ns/{uid}", pod_sets, **{"created_at_seconds": age, **other})  # type: ignore[arg-type]


def opened(parts: Sequence[RequestPart]) -> Counter[str]:
    """Return new nodes by group."""
    return sum((Counter(dict(part.deltas)) for part in parts), Counter())


def judge(candidates: Sequence[Candidate], scenario: Scenario, decided: Decisions) -> None:
    """Assert what must be true of any decision."""
    uids = {candidate.uid for candidate in candidates}
    kinds = (decided.served, decided.left.keys(), decided.infeasible.keys())
    assert sum(map(len, kinds)) == len(set().union(*kinds)), "in two of served, left and hopeless"
    assert set().union(*kinds) <= uids
    assert decided.overtaken <= decided.left.keys()
    assert all(decided.left.values())
    assert all(decided.infeasible.values())
    owners = [uid for part in decided.parts for uid in part.uids]
    assert len(owners) == len(set(owners)), "a request is in two parts"
    assert {*owners, *decided.on_nodes} == decided.served
    groups = {group.id: group for group in scenario.groups}
    for part in decided.parts:
        _judge_part(part, groups)
    more = opened(decided.parts)
    for group_id, delta in more.items():
        assert group_id not in scenario.short
        assert groups[group_id].target_size + delta <= groups[group_id].max_size
    for limit in scenario.limits:
        for name, most in limit.maxima.items():
            mine = [each for each in more if limit.node_groups is None or each in limit.node_groups]
            used = sum(groups[each].counted_capacity.get(name, 0) * more[each] for each in mine)
            assert limit.used.get(name, 0) + used <= most or not used
    _judge_room(candidates, scenario, decided, groups)


def _judge_part(part: RequestPart, groups: Mapping[str, NodeGroup]) -> None:
    assert Counter(group_id for group_id, _ in part.placements) == Counter(dict(part.deltas))
    assert {uid for _, uids in part.placements for uid in uids} == set(part.uids)
    assert all(uids for _, uids in part.placements)
    assert len(connected([uids for _, uids in part.placements])) == 1, "two parts in one"
    cost = sum(groups[group_id].price_usd_per_hour * delta for group_id, delta in part.deltas.items())
    assert abs(part.cost_usd_per_hour - cost) < 1e-6
    assert 0 <= part.lower_bound_usd_per_hour <= part.cost_usd_per_hour + 1e-9
    if not part.lower_bound_usd_per_hour:
        assert part.gap == (None if cost else 0.0)
    elif cost:
        assert part.gap is not None
        assert abs(part.gap - (1 - part.lower_bound_usd_per_hour / cost)) < 1e-6


def _judge_room(
    candidates: Sequence[Candidate], scenario: Scenario, decided: Decisions, groups: Mapping[str, NodeGroup]
) -> None:  # fmt: skip
    """Assert that every served request has room for all its pods on the nodes that are named for it, and only on these,
    by a plan of its own that the checker has passed."""
    standing = {name for names in decided.on_nodes.values() for name in names}
    assert standing <= {node.name for node in scenario.nodes}
    mine = {
        node.name: {uid for uid, names in decided.on_nodes.items() if node.name in names} for node in scenario.nodes
    }
    nodes = [_owned(node, mine[node.name]) for node in scenario.nodes if mine[node.name]]
    for number, (group_id, uids) in enumerate(each for part in decided.parts for each in part.placements):
        group = groups[group_id]
        nodes.append(_owned(Node(f"new-{number}", group.allocatable, group.labels, group.taints), set(uids)))
    pod_sets = tuple(
        PodSet(
            pods.name, replace(pods.spec, node_selector=(*pods.spec.node_selector, (_own(each.uid), ""))), pods.count
        )
        for each in candidates
        if each.uid in decided.served
        for pods in each.pod_sets
    )
    plan = solve(Problem(pod_sets, nodes=tuple(nodes)), Budget(deterministic_seconds=5.0))
    assert not plan.unplaced, "no room on the nodes that are named"


def _own(uid: str) -> str:
    return f"owner/{uid}"


def _owned(node: Node, uids: set[str]) -> Node:
    return replace(node, labels={**node.labels, **{_own(uid): "" for uid in uids}})


def served_by_trying(candidates: Sequence[Candidate], scenario: Scenario) -> set[str]:
    """Return the requests that are served where the first in the order never stands back, by trying all sizes of all
    groups and all placements. Of requests it knows cpu, selectors and taints."""
    order = sorted(candidates, key=lambda each: (-each.priority, each.created_at_seconds, each.uid))[:MOST_AT_ONCE]
    served: list[Candidate] = []
    for candidate in order:
        if any(_fits([*served, candidate], nodes) for nodes in _sizes(scenario)):
            served.append(candidate)
    return {candidate.uid for candidate in served}


def _sizes(scenario: Scenario) -> Iterator[list[Node]]:
    groups = [group for group in scenario.groups if group.id not in scenario.short]
    for counts in product(*(range(max(0, group.max_size - group.target_size) + 1) for group in groups)):
        more = {group.id: count for group, count in zip(groups, counts, strict=True)}
        if all(
            limit.used.get(name, 0)
            + sum(
                each.counted_capacity.get(name, 0) * more[each.id]
                for each in groups
                if limit.node_groups is None or each.id in limit.node_groups
            )
            <= most
            for limit in scenario.limits
            for name, most in limit.maxima.items()
        ):
            new = [
                Node("", each.allocatable, each.labels, each.taints) for each in groups for _ in range(more[each.id])
            ]
            yield [*scenario.nodes, *new]


def _fits(candidates: Sequence[Candidate], nodes: Sequence[Node]) -> bool:
    pods = [pods.spec for each in candidates for pods in each.pod_sets for _ in range(pods.count)]
    pods.sort(key=lambda spec: -dict(spec.requests).get("cpu", 0))
    hopeless: set[tuple[int, tuple[int, ...]]] = set()

    def put(number: int, free: tuple[int, ...]) -> bool:
        if number == len(pods):
            return True
        if (number, free) in hopeless:
            return False
        asked = dict(pods[number].requests)["cpu"]
        tried = set()
        for position, node in enumerate(nodes):
            kind = (free[position], tuple(node.labels.items()), node.taints)
            if free[position] < asked or kind in tried:
                continue
            tried.add(kind)
            eligible = why_not_eligible(pods[number], node.labels, node.taints) is None
            if eligible and put(number + 1, (*free[:position], free[position] - asked, *free[position + 1 :])):
                return True
        hopeless.add((number, free))
        return False

    return put(0, tuple(node.free["cpu"] for node in nodes))
