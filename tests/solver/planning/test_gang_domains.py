"""Gangs that ask for one topology domain each: against an exact reference, against plans of the same pods that need not
be together, and where the fewest domains are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from cagrpc.api.core.topology import mark
from solver import Budget, solve
from solver.model import (
    HOSTNAME,
    Limit,
    NewDomains,
    Node,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    Plan,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    PreferredDomain,
    Problem,
    Requirement,
    RunningPods,
    Status,
)
from solver.model.domains import GANG_MARK, gang_terms, with_new_domains
from solver.model.objective import Goal
from solver.model.plan import gap
from solver.verify.check import faults_of
from tests.support.solver.gangs import in_one_domain
from tests.support.solver.reference import as_micros, best_objective, bounds_as_micros

BUDGET = Budget(deterministic_seconds=2.0)
RACK, BLOCK = "rack", "block"


def together(gang: str, *keys: str) -> tuple[PodAffinityTerm, ...]:
    return tuple(mark(gang, key) for key in keys)


def gang(name: str, count: int, gpus: int = 1, priority: int = 0) -> PodSet:
    return in_one_domain(name, PodSpec((("cpu", 1000), ("gpu", gpus))), count, RACK, priority=priority)


def group(name: str, gpus: int, price: float, most: int, new: NewDomains | None = None, **labels: str) -> NodeGroup:
    free = {"cpu": 96_000, "pods": 110, "gpu": gpus}
    return NodeGroup(name, free, price, labels=labels, max_size=most, new_domains=new)


def racks(count: int, gpus: int = 8, price: float = 20.0, most: int = 16) -> list[NodeGroup]:
    return [group(f"{gpus}-r{number}", gpus, price, most, rack=f"r{number}") for number in range(count)]


def begun(plan: Plan) -> tuple[float, float]:
    """Return the domains that are begun, and how many are proven to be."""
    (found,) = (each for each in plan.objective if each.stage.goal is Goal.DOMAINS)
    return found.value, found.lower_bound


def domains_of(plan: Plan, problem: Problem, name: str, key: str = RACK) -> set[object]:
    """Return where the pods of a gang are."""
    groups = {each.id: each for each in problem.node_groups}
    nodes = {each.name: each for each in problem.nodes}
    mine = {each.index for each in plan.pod_classes if each.gang == name}
    found: set[object] = {
        (each.node_group, each.domain) if each.domain else groups[each.node_group].labels.get(key)
        for each in plan.nodes
        if mine & each.pods.keys()
    }
    return found | {nodes[each.node].labels.get(key) for each in plan.existing if mine & each.pods.keys()}


def served(plan: Plan) -> bool:
    return not plan.unplaced


# One gang


def test_a_gang_goes_where_all_of_it_has_room_though_elsewhere_it_would_be_cheaper() -> None:
    problem = Problem((gang("a", 16),), (*racks(2, most=1), group("large", 8, 25.0, 2, rack="r9")))
    plan = solve(problem, BUDGET)
    assert served(plan)
    assert domains_of(plan, problem, "a") == {"r9"}
    assert plan.certificate.cost_usd_per_hour == 50.0


def test_it_is_left_out_whole_where_no_domain_holds_it_and_the_reason_says_so() -> None:
    plan = solve(Problem((gang("a", 24),), tuple(racks(3, most=2))), BUDGET)
    (left,) = plan.unplaced
    assert left.count == 24
    assert "it has a required topology of one rack for the gang" in left.reasons
    assert not plan.increments


def test_a_reason_says_what_the_domains_lack_that_come_nearest() -> None:
    groups = (*racks(1, most=2), group("b", 8, 9.0, 1, rack="b"), group("new", 2, 9.0, 9, NewDomains((RACK,), 2)))
    (left,) = solve(Problem((gang("a", 20),), groups), BUDGET).unplaced
    lacking = "rack r0 lacks room for 4, rack b for 12, rack (new of new) for 16"
    assert f"no domain has room for all of its 20 pods: {lacking}" in left.reasons
    (other,) = solve(Problem((gang("a", 16), gang("b", 16, priority=1)), groups), BUDGET).unplaced
    assert not any("no domain has room" in each for each in other.reasons)


def test_nodes_that_stand_and_new_ones_are_mixed_in_one_domain() -> None:
    standing = tuple(Node(f"n{number}", {"cpu": 96_000, "pods": 110, "gpu": 8}, {"rack": "r1"}) for number in range(2))
    problem = Problem((gang("a", 32),), tuple(racks(3)), standing)
    plan = solve(problem, BUDGET)
    assert plan.certificate.status is Status.OPTIMAL
    assert plan.certificate.cost_usd_per_hour == 40.0
    assert domains_of(plan, problem, "a") == {"r1"}
    assert begun(plan) == (0, 0)


def test_pods_go_to_the_domain_of_those_of_their_gang_that_run() -> None:
    pods = gang("a", 8)
    there = Node("n", {"cpu": 0, "pods": 100, "gpu": 0}, {"rack": "r2"}, running=(RunningPods(pods.spec, 4),))
    problem = Problem((pods,), (*racks(2), group("dear", 8, 30.0, 4, rack="r2")), (there,))
    plan = solve(problem, BUDGET)
    assert domains_of(plan, problem, "a") == {"r2"}
    assert plan.certificate.cost_usd_per_hour == 30.0


def test_levels_nest_parts_of_a_gang_in_their_racks_and_all_of_it_in_one_block() -> None:
    first, second = (
        PodSet(
            f"ns/a{part}",
            PodSpec(
                requests=(("gpu", 1),),
                labels=((f"{GANG_MARK}a", ""), (f"{GANG_MARK}a slice {part}", "")),
                pod_affinity=(*together("a", BLOCK), *together(f"a slice {part}", RACK)),
            ),
            16,
            gang="a",
        )
        for part in range(2)
    )
    small = [group(f"b1-r{n}", 8, 10.0, 1, block="b1", rack=f"r{n}") for n in range(4)]
    large = [group(f"b2-r{n}", 8, 15.0, 2, block="b2", rack=f"s{n}") for n in range(2)]
    problem = Problem((first, second), (*small, *large))
    plan = solve(problem, BUDGET)
    assert served(plan)
    assert domains_of(plan, problem, "a", BLOCK) == {"b2"}
    assert {each.node_group for each in plan.nodes} == {"b2-r0", "b2-r1"}


# Domains that come with the nodes


def test_each_gang_gets_a_new_domain_of_bounded_size() -> None:
    new = group("new", 8, 20.0, 100, NewDomains((RACK,), 4))
    problem = Problem((gang("a", 32), gang("b", 24), gang("c", 8)), (new,))
    plan = solve(problem, BUDGET)
    assert served(plan)
    assert plan.certificate.cost_usd_per_hour == 160.0
    assert all(len(domains_of(plan, problem, name)) == 1 for name in "abc")
    assert begun(plan) == (2, 2)
    sizes = {each.domain: 0 for each in plan.nodes}
    for each in plan.nodes:
        sizes[each.domain] += each.count
    assert max(sizes.values()) == 4


def test_a_gang_that_is_larger_than_a_new_domain_is_left_out() -> None:
    plan = solve(Problem((gang("a", 40),), (group("new", 8, 20.0, 100, NewDomains((RACK,), 4)),)), BUDGET)
    assert not served(plan)


def test_pods_that_ask_for_no_domain_are_ordered_without_one() -> None:
    new = group("new", 8, 20.0, 100, NewDomains((RACK,)))
    plan = solve(Problem((replace(gang("a", 8), spec=PodSpec(requests=(("gpu", 1),))),), (new,)), BUDGET)
    assert [each.domain for each in plan.nodes] == [""]


# Spares


def spared(plan: Plan) -> dict[str, int]:
    """Return the nodes without pods, by group."""
    return {each.node_group: each.count for each in plan.nodes if not each.pods}


def test_spares_come_with_the_nodes_of_a_gang_into_its_domain_and_are_paid_for() -> None:
    new = replace(group("new", 8, 20.0, 100, NewDomains((RACK,), 4)), spares=1)
    alone = replace(gang("single", 1), gang=None, spec=PodSpec(requests=(("gpu", 1),)))
    problem = Problem((gang("a", 24), gang("b", 24), alone), (new,))
    plan = solve(problem, BUDGET)
    assert served(plan)
    assert sorted(each.count for each in plan.nodes if not each.pods) == [1, 1]
    assert {each.domain for each in plan.nodes if not each.pods} == {each.domain for each in plan.nodes if each.domain}
    assert plan.certificate.cost_usd_per_hour == 20.0 * sum(each.count for each in plan.nodes)


def test_pods_of_no_gang_bring_none() -> None:
    pods = PodSet("p", PodSpec(requests=(("gpu", 1),)), 8)
    assert not spared(solve(Problem((pods,), tuple(replace(each, spares=2) for each in racks(1))), BUDGET))


def test_no_gang_is_left_out_for_spares_and_a_domain_with_room_for_them_is_taken() -> None:
    tight = replace(group("tight", 8, 20.0, 2, rack="r1"), spares=2)
    roomy = replace(group("roomy", 8, 21.0, 3, rack="r2"), spares=2)
    assert spared(solve(Problem((gang("a", 16),), (tight,)), BUDGET)) == {}
    assert spared(solve(Problem((gang("a", 16),), (tight, roomy)), BUDGET)) == {"roomy": 1}


def test_spares_keep_the_limits() -> None:
    wide = replace(group("g", 8, 20.0, 9, rack="r1"), spares=4)
    limit = Limit("all", {"nodes": 5}, {"nodes": 1})
    plan = solve(Problem((gang("a", 16),), (wide,), limits=(limit,)), BUDGET)
    assert spared(plan) == {"g": 2}


def test_the_checker_sees_a_gang_in_two_new_domains_and_one_that_is_too_large() -> None:
    new = group("new", 8, 20.0, 100, NewDomains((RACK,), 2))
    problem = Problem((gang("a", 16),), (new,))
    plan = solve(problem, BUDGET)
    assert not list(faults_of(problem, plan))
    (nodes,) = plan.nodes
    apart = replace(plan, nodes=(replace(nodes, count=1), replace(nodes, count=1, domain="other")))
    assert any("rack" in fault for fault in faults_of(problem, apart))
    smaller = replace(problem, node_groups=(replace(new, new_domains=NewDomains((RACK,), 1)),))
    assert any("2 nodes in its new domain" in fault for fault in faults_of(smaller, plan))


# Domains that are preferred


def prefers(name: str, count: int, gpus: int = 1, *, after_cost: bool = False) -> PodSet:
    wish = PreferredDomain(mark(name, RACK), after_cost)
    labels = ((f"{GANG_MARK}{name}", ""),)
    return PodSet(f"ns/{name}", PodSpec((("gpu", gpus),), labels=labels, preferred_domains=(wish,)), count)


def value(plan: Plan, goal: Goal) -> tuple[float, float]:
    """Return what the plan reaches in a stage, and what is proven of it."""
    (found,) = (each for each in plan.objective if each.stage.goal is goal)
    return found.value, found.lower_bound


@pytest.mark.parametrize("new", [True, False])
def test_one_domain_is_had_at_its_price_or_only_where_it_costs_nothing_more(*, new: bool) -> None:
    small = [group(name, 2, 0.95, 1, rack=name) for name in ("r1", "r2")]
    large = group("large", 2, 1.0, 9, NewDomains((RACK,), 2)) if new else group("large", 2, 1.0, 9, rack="r3")
    before = solve(Problem((prefers("a", 4),), (*small, large)), BUDGET)
    assert {each.node_group for each in before.nodes} == {"large"}
    assert len({each.domain for each in before.nodes}) == 1
    assert (value(before, Goal.SPREAD), before.certificate.cost_usd_per_hour) == ((0, 0), 2.0)
    after = solve(Problem((prefers("a", 4, after_cost=True),), (*small, large)), BUDGET)
    assert (value(after, Goal.SPREAD_AFTER_COST)[0], after.certificate.cost_usd_per_hour) == (1, 1.9)
    same = replace(large, price_usd_per_hour=0.95)
    equal = solve(Problem((prefers("a", 4, after_cost=True),), (*small, same)), BUDGET)
    assert (value(equal, Goal.SPREAD_AFTER_COST)[0], equal.certificate.cost_usd_per_hour) == (0, 1.9)


def test_as_few_domains_as_can_be_where_one_has_no_room() -> None:
    new = group("new", 2, 1.0, 9, NewDomains((RACK,), 2))
    plan = solve(Problem((prefers("a", 10),), (new,)), BUDGET)
    assert served(plan)
    assert len({each.domain for each in plan.nodes}) == 3
    assert value(plan, Goal.SPREAD) == (2, 2)
    assert plan.certificate.status is Status.OPTIMAL


def test_the_domain_of_those_that_run_is_the_first_and_nodes_in_none_are_one_more() -> None:
    pods = prefers("a", 4)
    there = Node("n", {"pods": 9, "cpu": 9000}, {RACK: "r2"}, running=(RunningPods(pods.spec, 1),))
    bare = Node("bare", {"pods": 9, "cpu": 9000, "gpu": 4}, {})
    dear = group("dear", 2, 9.0, 2, rack="r2")
    plan = solve(Problem((pods,), (dear,), (there, bare)), BUDGET)
    assert ({each.node_group: each.count for each in plan.nodes}, value(plan, Goal.SPREAD)[0]) == ({"dear": 2}, 0)
    plan = solve(Problem((pods,), (replace(dear, max_size=1),), (there, bare)), BUDGET)
    assert (value(plan, Goal.SPREAD)[0], plan.certificate.cost_usd_per_hour) == (1, 0)


def test_the_checker_counts_the_domains_by_itself() -> None:
    groups = (group("a", 2, 1.0, 1, rack="r1"), group("b", 2, 1.0, 1, rack="r2"))
    problem = Problem((prefers("a", 4),), groups)
    plan = solve(problem, BUDGET)
    assert not list(faults_of(problem, plan))
    wrong = tuple(replace(e, value=0, lower_bound=0) if e.stage.goal is Goal.SPREAD else e for e in plan.objective)
    assert any("reports 0 as spread, found 1" in fault for fault in faults_of(problem, replace(plan, objective=wrong)))


@st.composite
def _wishing(draw: st.DrawFn) -> Problem:
    """Small enough to try all sets of domains for each."""
    groups = [
        group(
            f"g{n}", draw(st.integers(1, 3)), draw(st.sampled_from([1.0, 2.0])), draw(st.integers(0, 2)), rack=f"r{n}"
        )
        for n in range(draw(st.integers(1, 2)))
    ]
    if draw(st.booleans()):
        groups.append(group("new", 2, 2.0, 1, NewDomains((RACK,), 1)))
    standing = [Node("n", {"cpu": 9000, "pods": 9, "gpu": draw(st.integers(0, 3))}, {RACK: "r0"})]
    after = draw(st.booleans())
    sets = [
        prefers(f"w{n}", draw(st.integers(1, 4)), draw(st.integers(1, 2)), after_cost=after)
        for n in range(draw(st.integers(1, 2)))
    ]
    return Problem(tuple(sets), tuple(groups), tuple(standing))


def _among(pods: PodSet, values: tuple[str, ...]) -> PodSet:
    there = NodeSelectorTerm((Requirement(RACK, Operator.IN, values),))
    return replace(pods, spec=replace(pods.spec, preferred_domains=(), node_terms=((there,),)))


@settings(max_examples=25, deadline=None)
@given(_wishing())
def test_plans_with_wishes_are_as_good_as_the_best_of_all_sets_of_domains(problem: Problem) -> None:
    plan = solve(problem, BUDGET)
    whole = with_new_domains(problem, (RACK,), 9)
    labels = [*(group.labels for group in whole.node_groups), *(node.labels for node in whole.nodes)]
    values = sorted({each[RACK] for each in labels if RACK in each})
    subsets = [each for size in range(1, len(values) + 1) for each in combinations(values, size)]
    after = problem.pod_sets[0].spec.preferred_domains[0].after_cost
    found = []
    for chosen in product(subsets, repeat=len(problem.pod_sets)):
        sets = tuple(_among(pods, mine) for pods, mine in zip(problem.pod_sets, chosen, strict=True))
        unserved, waiting, _, cost, _ = best_objective(replace(whole, pod_sets=sets))
        spread = sum(len(each) - 1 for each in chosen)
        found.append((unserved, waiting, *((cost, spread) if after else (spread, cost))))
    reached = [round(each.value * (10**6 if each.stage.goal is Goal.COST else 1)) for each in plan.objective]
    assert reached[:4] == list(min(found))
    bounds = [round(each.lower_bound * (10**6 if each.stage.goal is Goal.COST else 1)) for each in plan.objective]
    assert bounds[:4] <= list(min(found))


# Several gangs


@pytest.mark.parametrize(
    ("sizes", "fewest"),
    [
        ((128,), 1),
        ((64, 64), 1),
        ((96, 96, 32, 32), 2),
        ((80, 80, 48, 48), 2),
        ((72, 72, 72), 3),
        ((56, 56, 56, 40, 40, 40, 32, 32, 32), 3),
    ],
)
def test_gangs_share_domains_so_that_as_few_as_can_be_are_begun(sizes: tuple[int, ...], fewest: int) -> None:
    """Racks hold 128."""
    problem = Problem(tuple(gang(f"g{number}", size) for number, size in enumerate(sizes)), tuple(racks(8)))
    plan = solve(problem, BUDGET)
    assert served(plan)
    assert plan.certificate.status is Status.OPTIMAL
    assert begun(plan) == (fewest, fewest)


def test_the_gang_of_the_higher_priority_gets_the_domain() -> None:
    problem = Problem((gang("a", 96), gang("b", 96, priority=1)), tuple(racks(1)))
    plan = solve(problem, BUDGET)
    (left,) = plan.unplaced
    assert plan.pod_classes[left.pod_class].gang == "a"


def test_a_gang_leaves_the_domain_to_pods_that_have_no_other() -> None:
    """Which of two it gets costs it nothing."""
    standing = tuple(Node(f"n{n}", {"cpu": 96_000, "pods": 110, "gpu": 8}, {"rack": f"r{n}"}) for n in range(2))
    for only in ("r0", "r1"):
        other = PodSet("ns/plain", PodSpec(requests=(("gpu", 8),), node_selector=(("rack", only),)), 1)
        plan = solve(Problem((gang("a", 8), other), tuple(racks(2)), standing), BUDGET)
        assert plan.certificate.status is Status.OPTIMAL
        assert plan.certificate.cost_usd_per_hour == 0.0


def test_pods_that_differ_in_nothing_but_what_they_wish_or_ask_for_are_told_apart() -> None:
    """A worker of a gang that is to be in one domain, and others like it that are not, or wish for it."""
    asks = gang("a", 2)
    wish = PreferredDomain(mark("a", RACK))
    loose = replace(asks.spec, pod_affinity=())
    specs = (
        asks.spec,
        loose,
        *(replace(loose, preferred_domains=(each,)) for each in (wish, replace(wish, after_cost=True))),
    )
    standing = tuple(Node(f"n{n}", {"cpu": 96_000, "pods": 110, "gpu": 1}, {"rack": f"r{n}"}) for n in range(4))
    for first, second in combinations(specs, 2):
        for groups in ((*racks(2, 2, 1.0),), ()):
            sets = tuple(replace(asks, name=f"ns/{n}", spec=spec, count=2) for n, spec in enumerate((first, second)))
            problem = Problem(sets, groups, standing)
            plan = solve(problem, BUDGET)
            assert {each.spec for each in plan.pod_classes} == {first, second}
            assert served(plan) is (bool(groups) or not {first, second} & {asks.spec})


def test_minimum_sizes_are_kept_beside_gangs() -> None:
    least = replace(group("least", 8, 30.0, 4), min_size=2)
    plan = solve(Problem((gang("a", 8),), (*racks(1), least)), BUDGET)
    assert {each.node_group: each.delta for each in plan.increments} == {"8-r0": 1, "least": 2}


def test_limits_are_kept_over_domains() -> None:
    groups = tuple(racks(2))
    limit = Limit("cluster", {"nodes": 3})
    plan = solve(Problem((gang("a", 16), gang("b", 16)), groups, limits=(limit,)), BUDGET)
    assert sum(each.delta for each in plan.increments) == 2
    assert sum(each.count for each in plan.unplaced) == 16


@st.composite
def _problems(draw: st.DrawFn) -> Problem:
    """Small enough for the reference."""
    values = draw(st.integers(1, 3))
    new = draw(st.sampled_from([None, NewDomains((RACK,), 1), NewDomains((RACK,), 2)]))
    groups = [
        group(f"{gpus}-r{n}", gpus, draw(st.sampled_from([1.0, 2.0, 2.5])), draw(st.integers(0, 2)), rack=f"r{n}")
        for gpus in draw(st.sampled_from([(2,), (2, 4)]))
        for n in range(values)
    ]
    if new is not None:
        groups.append(group("new", 2, 3.0, 2, new))
    standing = tuple(
        Node(f"n{n}", {"cpu": 9000, "pods": 9, "gpu": draw(st.integers(0, 3))}, {"rack": f"r{n}"})
        for n in range(draw(st.integers(0, 2)))
    )
    sets = [
        gang(f"g{n}", draw(st.integers(1, 5)), draw(st.integers(1, 2)), priority=draw(st.integers(0, 1)))
        for n in range(draw(st.integers(1, 3)))
    ]
    if draw(st.booleans()):
        sets.append(PodSet("ns/plain", PodSpec(requests=(("gpu", 1),)), draw(st.integers(1, 3))))
    if draw(st.booleans()):
        only = draw(st.integers(0, len(sets) - 1))
        apart = PodAffinityTerm(HOSTNAME, PodSelector(()))
        sets[only] = replace(sets[only], spec=replace(sets[only].spec, pod_anti_affinity=(apart,)))
    return Problem(tuple(sets), tuple(groups), standing)


@settings(max_examples=60, deadline=None)
@given(_problems())
def test_plans_are_as_good_as_the_reference_s(problem: Problem) -> None:
    plan = solve(problem, BUDGET)
    whole = with_new_domains(problem, (RACK,), len(gang_terms(problem)))
    before_nodes = sum(each.stage.goal not in (Goal.DOMAINS, Goal.NODES) for each in plan.objective)
    best = best_objective(whole)[:before_nodes]
    assert as_micros(plan, whole)[:before_nodes] == best
    assert bounds_as_micros(plan, whole)[:before_nodes] <= best


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([8, 16, 32, 64]), st.sampled_from([1, 2])), min_size=1, max_size=10),
    st.booleans(),
)
def test_being_together_costs_little(sizes: list[tuple[int, int]], small: bool) -> None:
    """Racks of 16 nodes of eight devices each, and of as many small ones."""
    sets = tuple(gang(f"g{number}", count, gpus) for number, (count, gpus) in enumerate(sizes))
    groups = (*racks(12), *(racks(12, 1, 3.0) if small else ()))
    plan = solve(Problem(sets, groups), BUDGET)
    apart = solve(
        Problem(tuple(replace(each, spec=replace(each.spec, pod_affinity=())) for each in sets), groups), BUDGET
    )
    assert served(plan)
    found = gap(plan.certificate.cost_usd_per_hour, apart.certificate.cost_usd_per_hour)
    assert found is not None
    assert found < 0.08
