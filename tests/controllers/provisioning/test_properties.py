"""What is true of every decision on ProvisioningRequests, in problems small enough to try everything: any size of any
group, and any placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.connected import connected
from cagrpc.cluster.shortages import Shortage
from cagrpc.controllers.provisioning.decisions import Decisions, RequestPart, decide
from cagrpc.controllers.provisioning.model import Candidate
from cagrpc.controllers.provisioning.scenario import Scenario
from solver import Budget, Limit, Node, NodeGroup, PodSet, PodSpec, Problem, solve
from solver.model.eligibility import why_not_eligible
from tests.support.examples import examples
from tests.support.solver.problems import TAINT, TOLERATION, spec

BUDGET = Budget(deterministic_seconds=0.5)


def request(uid: str, *sets: tuple[PodSpec, int], **other: object) -> Candidate:
    """Return a candidate with so many pods of each spec; the digits of its name are its creation time."""
    pod_sets = tuple(PodSet(f"ns/{uid}-{number}", spec, count) for number, (spec, count) in enumerate(sets))
    age = float("0" + "".join(filter(str.isdigit, uid)))
    return Candidate(uid, f"ns/{uid}", pod_sets, **{"created_at_seconds": age, **other})  # type: ignore[arg-type]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    units = st.integers(1, 4).map(lambda units: 1000 * units)
    groups = tuple(
        NodeGroup(
            name,
            {"cpu": draw(units), "pods": 20},
            draw(st.sampled_from((0.1, 0.5, 1.0))),
            labels={"pool": name},
            taints=(TAINT,) if name == "b" and draw(st.booleans()) else (),
            min_size=(least := draw(st.sampled_from((0, 0, 0, 1)))),
            max_size=draw(st.integers(least, 3)),
            target_size=draw(st.integers(0, 1)),
        )
        for name in ("a", "b")
    )
    nodes = tuple(Node(f"n{number}", {"cpu": draw(units), "pods": 20}) for number in range(draw(st.integers(0, 2))))
    least_of_all = sum(each.min_size for each in groups)  # the planner opens these whatever limits say
    limits = (Limit("all", {"nodes": draw(st.integers(least_of_all, 4))}),) if draw(st.booleans()) else ()
    short = {"a": Shortage("a", 1, 0.0, 60.0, "none left")} if draw(st.integers(0, 5)) == 0 else {}
    return Scenario(nodes, groups, limits, short=short)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    specs = st.builds(
        lambda units, pool, tolerates: spec(
            cpu=1000 * units,
            node_selector={"pool": pool} if pool else {},
            tolerations=(TOLERATION,) if tolerates else (),
        ),
        st.integers(1, 4),
        st.sampled_from(("", "", "", "a", "b")),
        st.booleans(),
    )
    sets = st.lists(st.tuples(specs, st.integers(1, 3)), min_size=1, max_size=2)
    return [
        request(f"r{number}", *draw(sets), priority=draw(st.integers(0, 1)), attempts=draw(st.integers(0, 1)))
        for number in range(draw(st.integers(1, 5)))
    ]


@examples(60)
@given(scenarios(), candidates())
def test_who_is_served_is_who_can_be_in_their_order(scenario: Scenario, asked: list[Candidate]) -> None:
    """And infeasible is what cannot be served with everything empty."""
    decided = decide(asked, scenario, BUDGET)
    judge(asked, scenario, decided)
    assert decided.served == served_by_trying(asked, scenario)
    assert decided == decide(asked[::-1], scenario, BUDGET)
    groups = tuple(replace(each, target_size=0) for each in scenario.groups)
    empty = Scenario(groups=groups, limits=tuple(replace(limit, used={}) for limit in scenario.limits))
    assert {uid for uid, why in decided.refused.items() if why.final} == {
        each.uid for each in asked if each.uid not in decided.served and not served_by_trying([each], empty)
    }


def judge(candidates: Sequence[Candidate], scenario: Scenario, decided: Decisions) -> None:
    """Assert what must be true of any decision."""
    uids = {candidate.uid for candidate in candidates}
    assert decided.served.isdisjoint(decided.refused)
    assert {*decided.served, *decided.refused} <= uids
    assert all(each.why for each in decided.refused.values())
    assert not any(each.final and each.bypassed for each in decided.refused.values())
    owners = [uid for part in decided.parts for uid in part.uids]
    assert len(owners) == len(set(owners)), "a request is in two parts"
    assert {*owners, *decided.on_nodes} == decided.served
    groups = {group.id: group for group in scenario.groups}
    for part in decided.parts:
        _judge_part(part, groups)
    more = sum((Counter(part.deltas) for part in decided.parts), Counter[str]())
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
    assert Counter(each.node_group for each in part.placements) == Counter(dict(part.deltas))
    assert {uid for each in part.placements for uid in each.requests} == set(part.uids)
    assert all(each.requests for each in part.placements)
    assert len(connected([each.requests for each in part.placements])) == 1, "two parts in one"
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
    for number, new in enumerate(each for part in decided.parts for each in part.placements):
        group = groups[new.node_group]
        nodes.append(_owned(Node(f"new-{number}", group.allocatable, group.labels, group.taints), set(new.requests)))
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
    order = sorted(candidates, key=lambda each: (-each.priority, each.created_at_seconds, each.uid))
    served: list[Candidate] = []
    for candidate in order:
        if any(_fits([*served, candidate], nodes) for nodes in _sizes(scenario)):
            served.append(candidate)
    return {candidate.uid for candidate in served}


def _sizes(scenario: Scenario) -> Iterator[list[Node]]:
    groups = [group for group in scenario.groups if group.id not in scenario.short]
    least = [max(0, group.min_size - group.target_size) for group in groups]
    most = [max(0, group.max_size - group.target_size) for group in groups]
    for counts in product(*(range(low, high + 1) for low, high in zip(least, most, strict=True))):
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
