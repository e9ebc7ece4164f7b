"""Plans of pods with claims on devices whose best is known by hand, and what is said of those that are left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver import Budget, Devices, Plan, PodSet, PodSpec, Problem, solve
from solver.integral.warm_start import known_nodes
from solver.model import HOSTNAME, Operator, PodAffinityTerm, PodSelector, Requirement
from solver.model.devices import Claims
from solver.reduction.colocation import CoLocation
from solver.reduction.reduce import reduce
from tests.support.solver.device_examples import (
    GPUS,
    MIXED,
    NUMA,
    PAIR,
    PAIRS,
    SOCKETS,
    asks,
    claim,
    devices,
    first_of,
    together,
)
from tests.support.solver.problems import group, node, pods, spec


def planned(problem: Problem) -> Plan:
    return solve(problem, Budget(deterministic_seconds=5))


def asking(name: str, count: int, claims: Claims, **other: object) -> PodSet:
    return pods(name, count, spec(10, claims=claims), **other)


@pytest.mark.parametrize(
    ("there", "claims", "count", "nodes"),
    [
        pytest.param(GPUS, claim(count=2), 8, 2, id="count"),
        pytest.param(GPUS, claim(count=3), 8, 4, id="what-is-left-over-is-of-no-use"),
        pytest.param(GPUS, claim(all=True), 3, 3, id="all"),
        pytest.param(GPUS, claim(count=1) * 2, 8, 2, id="two-claims-of-a-pod"),
        pytest.param(GPUS, claim(all=True, admin_access=True), 50, 1, id="admin-access"),
        pytest.param(PAIRS, PAIR, 8, 2, id="pairs"),
        pytest.param(SOCKETS, together(NUMA, asks(count=3)), 8, 4, id="blocks"),
        pytest.param(SOCKETS, claim(count=8), 2, 2, id="over-blocks"),
        pytest.param(GPUS, first_of(("big", 1), ("gpu", 2)), 8, 2, id="second-choice"),
        pytest.param(MIXED, first_of(("big", 1), ("gpu", 2)), 8, 2, id="first-choice"),
    ],
)
def test_how_many_nodes_claims_take(there: tuple[Devices, ...], claims: Claims, count: int, nodes: int) -> None:
    plan = planned(Problem((asking("p", count, claims),), (group("g", devices=there), group("none", price=0.1))))
    assert not plan.unplaced
    assert sum(each.delta for each in plan.increments if each.node_group == "g") == nodes


def test_pods_that_may_take_what_others_need_are_kept_apart_from_them_as_far_as_they_must() -> None:
    """Four big devices and four others: of two pods that need big ones and six for any, whichever comes first may take
    a big one, so that four pods in all may be where a big one is needed."""
    sets = (asking("any", 6, claim("gpu")), asking("big", 2, claim("big")))
    plan = planned(Problem(sets, (group("g", devices=MIXED),)))
    assert not plan.unplaced
    assert sum(each.count for each in plan.nodes) == 2
    (with_big,) = [each for each in plan.nodes if 1 in each.pods]
    assert sum(with_big.pods.values()) <= 4


def test_devices_of_standing_nodes_come_first_and_go_as_far_as_they_are_free() -> None:
    standing = node("n", 4000, devices=(devices("gpu", count=3, taken=5),))
    plan = planned(Problem((asking("p", 4, claim()),), (group("g", devices=GPUS),), (standing,)))
    assert not plan.unplaced
    assert plan.existing[0].pods == {0: 3}
    assert [(each.node_group, each.delta) for each in plan.increments] == [("g", 1)]


def test_a_gang_with_claims_is_served_whole_or_not_at_all() -> None:
    groups = (group("a", devices=GPUS, max_size=1), group("b", devices=SOCKETS, max_size=1))
    whole = planned(Problem((asking("p", 4, claim(count=4), gang="red"),), groups))
    assert not whole.unplaced
    more = planned(Problem((asking("p", 5, claim(count=4), gang="red"),), groups))
    assert [each.count for each in more.unplaced] == [5]


def test_daemons_take_devices_of_new_nodes_unless_they_have_admin_access() -> None:
    problem = Problem((asking("p", 8, claim()),), (group("g", devices=GPUS),))
    takes = planned(replace(problem, daemon_sets=(PodSpec(claims=claim()),)))
    assert sum(each.delta for each in takes.increments) == 2
    watches = planned(replace(problem, daemon_sets=(PodSpec(claims=claim(all=True, admin_access=True)),)))
    assert sum(each.delta for each in watches.increments) == 1


def test_a_daemon_that_finds_no_devices_takes_nothing() -> None:
    daemon = PodSpec((("cpu", 3990),), claims=claim("fpga"))
    plan = planned(Problem((asking("p", 8, claim()),), (group("g", devices=GPUS),), daemon_sets=(daemon,)))
    assert sum(each.delta for each in plan.increments) == 1


def test_pods_that_share_a_claim_are_on_one_node_of_which_it_takes_devices_once() -> None:
    """As whoever builds the problem gives it: the claim is one pod's, and all are tied to one node."""
    selector = PodSelector((Requirement("claim", Operator.IN, ("shared",)),))
    tied = spec(10, labels=(("claim", "shared"),), pod_affinity=(PodAffinityTerm(HOSTNAME, selector),))
    sets = (pods("first", 1, replace(tied, claims=claim(count=8))), pods("others", 3, tied))
    plan = planned(Problem(sets, (group("g", devices=GPUS),)))
    assert not plan.unplaced
    assert [dict(each.pods) for each in plan.nodes] == [{0: 1, 1: 3}]


def test_a_plan_before_is_kept_as_far_as_devices_still_allow() -> None:
    sets = (asking("any", 3, claim("gpu")), asking("big", 1, claim("big")))
    problem = Problem(sets, (), (node("n", 4000, devices=MIXED),))
    before = planned(problem)
    assert before.existing[0].pods == {0: 3, 1: 1}
    fewer = (devices("gpu", "big", count=2, taken=2), MIXED[1])
    after = replace(problem, nodes=(node("n", 4000, devices=fewer),), previous=before)
    (known,) = known_nodes(reduce(after))
    assert CoLocation(reduce(after)).admits(reduce(after).kinds[known.kind], dict(known.pods))
    assert sum(planned(after).existing[0].pods.values()) == 3


@pytest.mark.parametrize(
    ("there", "claims", "reason"),
    [
        pytest.param((), claim(), "no devices for its resource claims (node group g)", id="none"),
        pytest.param(
            GPUS,
            claim("fpga"),
            "request fpga of its resource claims: no device matches (node group g)",
            id="kind",
        ),
        pytest.param(
            GPUS,
            claim(count=9),
            "request gpu of its resource claims: asks for 9 devices, free and matching: 8 (node group g)",
            id="count",
        ),
        pytest.param(
            (devices("gpu", count=6, taken=2),),
            claim(all=True),
            "request gpu of its resource claims: asks for all devices that match, taken: 2 of 8 (node group g)",
            id="all",
        ),
        pytest.param(
            SOCKETS,
            together(NUMA, asks(count=5)),
            "request gpu of its resource claims: asks for 5 devices with one value of example.com/numa, and fewer are"
            " free (node group g)",
            id="attribute",
        ),
        pytest.param(
            GPUS,
            claim(count=5) * 2,
            "its resource claims find their devices one by one, but not together (node group g)",
            id="together",
        ),
        pytest.param(
            (devices("gpu", count=40),),
            claim(count=33),
            "request gpu of its resource claims: asks for 33 devices, a claim can have 32 (node group g)",
            id="most",
        ),
    ],
)
def test_why_devices_do_not_serve_claims(there: tuple[Devices, ...], claims: Claims, reason: str) -> None:
    (left,) = planned(Problem((asking("p", 1, claims),), (group("g", devices=there),))).unplaced
    assert left.reasons == (reason,)


def test_a_claim_that_may_be_met_in_several_ways_is_served_where_one_of_them_holds() -> None:
    """One request may take what another needs: that is no rule of the plan, so the pod is tried once it is made."""
    there = (devices("gpu", "a", numa="0"), devices("gpu", "b", numa="1"), devices("gpu", "c", numa="0"))
    asked = asking("p", 1, together(NUMA, asks("gpu"), asks("a")))
    assert not planned(Problem((asked,), (group("g", devices=there),))).unplaced


def test_what_is_said_of_pods_whose_devices_others_have() -> None:
    sets = (asking("p", 3, claim(), priority=1), asking("q", 1, claim()))
    (left,) = planned(Problem(sets, (), (node("n", 4000, devices=(devices("gpu", count=3),)),))).unplaced
    assert left.reasons == ("the free room of 1 existing node that it fits is taken by other pods",)
    sets = (asking("p", 1, claim("big"), priority=1), asking("q", 4, claim()))
    (left,) = planned(Problem(sets, (), (node("n", 4000, devices=MIXED),))).unplaced
    assert left.reasons[0] == "its resource claims may find no devices beside those of the pods that are served"


def test_claims_that_count_alike_everywhere_are_one_more_dimension() -> None:
    """Nodes with other devices, selectors that match all or some of them: one virtual resource is enough; and none
    where nothing has claims."""
    plain = Problem((pods("p", 2),), tuple(group(f"g{n}", devices=(devices("gpu", count=n),)) for n in range(9)))
    assert reduce(plain).resources == ("cpu", "pods")
    claimed = replace(plain, pod_sets=(asking("p", 2, claim()), asking("q", 1, claim(count=4)), pods("r", 1)))
    large = group("large", devices=(devices("gpu", "large", count=8),))
    several = replace(
        claimed,
        pod_sets=(*claimed.pod_sets, asking("s", 1, claim("large"))),
        node_groups=(*claimed.node_groups, large),
    )
    assert reduce(several).resources == ("cpu", "pods", "devices 0")
    assert not reduce(several).exclusions
