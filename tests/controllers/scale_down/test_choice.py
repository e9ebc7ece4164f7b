"""Which nodes may go: in the order of weights, all of them together, and without a new node in their place."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.node_info import PlaceholderOwner, RequestOwner, Reservation
from cagrpc.controllers.scale_down.choice import (
    AT_MINIMUM,
    ENOUGH,
    IN_FLIGHT,
    IN_USE,
    NOT_YET,
    Bookings,
    booked_for,
    no_room,
    no_room_with_slack,
)
from cagrpc.controllers.scale_down.known import TO_BE_DELETED
from cagrpc.fleet.model import InstanceState
from solver import solve
from solver.model import (
    Budget,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    Taint,
    TaintEffect,
)
from tests.support.clocks import any_clock
from tests.support.controllers.scale_down import QUICK, Play, Played, spec, tier
from tests.support.examples import examples

HIGH, MIDDLE, LOW = tier("high", 100, price=3.0), tier("middle", 50, price=2.0), tier("low", 10)
TIERS = (HIGH, MIDDLE, LOW)


def _with(pods: int, cpu: int = 1000) -> Counter[PodSpec]:
    return Counter({spec(cpu): pods})


def test_pods_move_up_or_within_their_tier_and_never_down() -> None:
    play = Play([Played("h", HIGH, _with(1)), Played("m", MIDDLE, _with(1)), Played("l", LOW, _with(1))], TIERS)
    verdicts = play.verdicts()
    assert verdicts.go == ("l", "m")  # the lowest first, and both have room on the high one
    assert verdicts.stay == {"h": no_room(100)}


def test_a_node_of_a_high_tier_goes_only_where_its_own_tier_has_room() -> None:
    play = Play([Played("h1", HIGH, _with(1)), Played("h2", HIGH, _with(3)), Played("l", LOW, _with(3))], TIERS)
    assert play.verdicts().go == ("h1",)
    play.named("h2").pods = _with(4)
    verdicts = play.verdicts()
    assert not verdicts.go
    assert verdicts.stay == {"h1": no_room(100), "h2": IN_USE, "l": IN_USE}


def test_booked_nodes_stay_with_whom_they_are_booked_for_as_reason() -> None:
    play = Play([Played("l1", LOW), Played("l2", LOW), Played("f", LOW, _with(4))], TIERS, in_flight=frozenset({"f"}))
    assert play.verdicts().go == ("l1", "l2")
    play.bookings = Bookings(nodes={"l1": "ml/train", "f": "ml/train"})
    verdicts = play.verdicts()
    assert verdicts.go == ("l2",)
    assert verdicts.stay == {"l1": booked_for("ml/train"), "f": IN_FLIGHT}
    assert "l1" in verdicts.low  # CA might take it, so it is told first
    play.bookings = Bookings()
    assert play.verdicts().go == ("l2", "l1")


def booked(count: int) -> tuple[Reservation, ...]:
    return (Reservation(RequestOwner("u"), spec(1000), count),)


def test_room_that_is_booked_is_not_there_for_pods_that_would_move() -> None:
    play = Play([Played("h", HIGH, _with(2)), Played("l", LOW, _with(1))], TIERS)
    assert play.verdicts().go == ("l",)
    play.bookings = Bookings({"h": booked(2)}, {"h": "ml/train"})
    assert play.verdicts().stay == {"h": booked_for("ml/train"), "l": no_room(10)}
    play.bookings = Bookings({"h": booked(1)}, {"h": "ml/train"})
    assert play.verdicts().go == ("l",)


def test_a_booking_that_has_lost_its_room_leaves_none() -> None:
    play = Play([Played("h", HIGH, _with(3)), Played("l", LOW, _with(1))], TIERS)
    play.bookings = Bookings({"h": booked(9)}, {"h": "ml/train"})
    assert play.verdicts().stay == {"h": booked_for("ml/train"), "l": no_room(10)}


def test_the_lowest_tier_goes_first_where_there_is_room_for_one() -> None:
    nodes = [Played("m", MIDDLE, _with(1, 1500)), Played("l", LOW, _with(1, 1500)), Played("f", HIGH, _with(1, 2500))]
    assert Play(nodes, TIERS).verdicts().go == ("l",)


def test_of_equal_nodes_the_one_that_may_go_already_stays_the_one() -> None:
    nodes = [Played(name, LOW, _with(1)) for name in ("a", "b")]
    play = Play(nodes, TIERS, may_go=frozenset({"b"}))
    assert play.verdicts().go == ("b",)
    assert play.verdicts().go == ("b",)
    assert Play(nodes, TIERS).verdicts().go == ("a",)


def test_of_one_tier_what_costs_most_for_nothing_goes_first() -> None:
    dear = tier("dear", 10, price=5.0)
    play = Play([Played("a", LOW, _with(1)), Played("b", dear, _with(1))], (LOW, dear))
    assert play.verdicts().go == ("b",)


def test_empty_nodes_go_down_to_the_groups_minimum() -> None:
    kept = replace(LOW, min_size=1)
    play = Play([Played(name, kept) for name in "abc"], (kept,))
    verdicts = play.verdicts()
    assert verdicts.go == ("a", "b")
    assert verdicts.stay == {"c": AT_MINIMUM}


def test_room_is_reserved_for_pending_pods() -> None:
    play = Play([Played("a", LOW), Played("b", LOW)], (LOW,), waiting=_with(3))
    assert len(play.verdicts().go) == 1
    play.waiting = _with(5)
    assert not play.verdicts().go
    play.waiting = Counter({spec(5000): 3})  # fit on no node that stands
    assert len(play.verdicts().go) == 2


def test_nodes_that_an_increment_in_flight_counts_on_stay_and_are_no_room() -> None:
    play = Play([Played("a", LOW, _with(1)), Played("new", LOW)], (LOW,), in_flight=frozenset({"new"}))
    assert play.verdicts().stay == {"a": no_room(10), "new": IN_FLIGHT}
    play = Play([Played("a", LOW, _with(1)), Played("new", LOW, held=True)], (LOW,))
    assert play.verdicts().stay == {"a": no_room(10), "new": IN_FLIGHT}


@pytest.mark.parametrize("how", ["tainted", "deleting", "not ready"])
def test_nodes_that_leave_are_no_room_and_their_pods_need_some(how: str) -> None:
    leaves = Played("leaves", LOW, _with(3))
    if how == "tainted":
        leaves.taints = (Taint(TO_BE_DELETED, TaintEffect.NO_SCHEDULE),)
    leaves.ready = how != "not ready"
    leaves.state = InstanceState.DELETING if how == "deleting" else InstanceState.RUNNING
    play = Play([Played("a", LOW, _with(1)), Played("b", LOW, _with(1)), leaves], (LOW,))
    verdicts = play.verdicts()
    assert verdicts.go == ("leaves",)  # b has room for a's pod, but not for the others as well
    assert verdicts.stay == {"a": no_room(10), "b": no_room(10)}


def test_a_node_that_leaves_counts_for_the_minimum() -> None:
    kept = replace(LOW, min_size=1)
    leaves = Played("x", kept, taints=(Taint(TO_BE_DELETED, TaintEffect.NO_SCHEDULE),))
    play = Play([Played("a", kept), Played("b", kept), leaves], (kept,))
    assert play.verdicts().go == ("a", "x")


def test_an_unmanaged_node_counts_as_room_and_is_never_annotated() -> None:
    theirs = Played("theirs", LOW, disabled="true")
    stranger = Played("stranger", None, allocatable={"cpu": 1000, "memory": 2**30, "pods": 10})
    play = Play([Played("a", LOW, _with(1)), Played("b", HIGH, _with(1)), theirs, stranger], TIERS)
    verdicts = play.verdicts()
    assert verdicts.go == ("a", "b")
    assert not verdicts.stay


def test_pods_that_fit_elsewhere_only_by_their_selector_stay() -> None:
    bound = spec(1000, node_selector=(("tier", "low"),))
    play = Play([Played("l", LOW, Counter({bound: 1})), Played("h", HIGH, _with(1))], TIERS)
    assert play.verdicts().stay == {"l": no_room(10), "h": no_room(100)}


def test_pods_that_avoid_each_other_move_to_different_nodes() -> None:
    apart = _apart(500)
    nodes = [Played(name, LOW, Counter({apart: 1})) for name in "abc"]
    assert not Play(nodes, (LOW,)).verdicts().go
    assert Play([*nodes, Played("d", HIGH, _with(2))], TIERS).verdicts().go == ("a",)


def test_a_round_has_an_end_and_the_next_goes_on() -> None:
    """The first four have no room but below, and are looked at first."""
    apart = _apart(1900)
    nodes = [Played(f"n{i}", MIDDLE, Counter({apart: 1})) for i in range(4)]
    small = tier("small", 100, cpu=2000)
    nodes += [Played(f"m{i}", small, _with(1, 500)) for i in range(2)]
    nodes += [Played(f"below{i}", LOW, disabled="true") for i in range(4)]
    play = Play(nodes, (*TIERS, small))
    rules = replace(QUICK, evaluations=2)
    rounds = [play.verdicts(rules) for _ in range(3)]
    assert [sum(why == NOT_YET for why in each.stay.values()) for each in rounds] == [4, 2, 0]
    assert [each.swept for each in rounds] == [False, False, True]
    assert [each.go for each in rounds] == [(), (), ("m0",)]
    assert play.verdicts(rules).go == ("m0",)


def _apart(cpu: int) -> PodSpec:
    mine = PodSelector((Requirement("app", Operator.IN, ("db",)),), ("ns",))
    term = PodAffinityTerm("kubernetes.io/hostname", mine)
    return spec(cpu, namespace="ns", labels=(("app", "db"),), pod_anti_affinity=(term,))


def test_only_so_many_nodes_with_pods_go_at_a_time() -> None:
    play = Play([*(Played(f"n{i}", LOW, _with(1)) for i in range(8)), Played("empty", LOW)], (LOW,))
    verdicts = play.verdicts(replace(QUICK, most=2))
    assert verdicts.go == ("empty", "n0", "n1")
    assert set(verdicts.stay.values()) == {ENOUGH}


def test_time_ends_a_round_too_but_takes_nothing_back_that_was_said() -> None:
    play = Play([Played(f"n{i}", LOW, _with(1)) for i in range(4)], (LOW,))
    fresh = Play(play.nodes, play.groups)
    said = play.verdicts().go
    assert len(said) == 3
    rules = replace(QUICK, evaluation_seconds=1.0)
    play.clock, fresh.clock = (
        any_clock(itertools.count(0.0, 0.5).__next__),
        any_clock(itertools.count(0.0, 0.5).__next__),
    )  # each look takes half a second
    assert play.verdicts(rules).go == said
    assert fresh.verdicts(rules).go == said[:1]


_PODS = st.lists(st.sampled_from([300, 700, 1100, 1900]), max_size=5)
_NODES = st.lists(st.tuples(st.sampled_from(TIERS), _PODS), min_size=1, max_size=9)


def _placed_now(play: Play) -> int:
    """How many of those that wait fit on what stands."""
    sets = tuple(PodSet(f"w{i}", each, count) for i, (each, count) in enumerate(play.waiting.items()))
    plan = solve(Problem(sets, nodes=tuple(each.node for each in play.nodes)), Budget(deterministic_seconds=1.0))
    return sum(play.waiting.values()) - sum(each.count for each in plan.unplaced)


@examples(60)
@given(_NODES, st.lists(st.sampled_from([500, 1500]), max_size=4))
def test_all_that_may_go_may_go_together(drawn: list[tuple[object, list[int]]], waiting: list[int]) -> None:
    nodes = []
    for number, (group, sizes) in enumerate(drawn):
        pods: Counter[PodSpec] = Counter()
        for size in sizes:
            if sum(dict(s.requests)["cpu"] * n for s, n in pods.items()) + size <= 4000:
                pods[spec(size)] += 1
        nodes.append(Played(f"n{number}", group, pods))  # type: ignore[arg-type]
    play = Play(nodes, TIERS, waiting=Counter(spec(size) for size in waiting))
    placed_before = _placed_now(play)
    verdicts = play.verdicts()
    assert set(verdicts.go) | set(verdicts.stay) == {each.name for each in nodes}
    gone = [play.named(name) for name in verdicts.go]
    assert all(each.used < 0.5 for each in gone)
    # One problem for all pods that lose their node, on what stays; labels say from which weights a node takes pods.
    sets = [PodSet(f"w{i}", each, count) for i, (each, count) in enumerate(play.waiting.items())]
    for each in gone:
        for moved, count in each.pods.items():
            sets.append(PodSet(each.name, replace(moved, node_selector=((f"from-{_weight(each)}", ""),)), count))
    left = [
        replace(each.node, labels={f"from-{weight}": "" for weight in (10, 50, 100) if weight <= _weight(each)})
        for each in nodes
        if each.name in verdicts.stay
    ]
    plan = solve(Problem(tuple(sets), nodes=tuple(left)), Budget(deterministic_seconds=1.0))
    assert sum(each.count for each in plan.unplaced) <= sum(play.waiting.values()) - placed_before


def _weight(each: Played) -> int:
    return each.group.weight if each.group else 0


@pytest.mark.parametrize("seed", range(4))
def test_in_twenty_loops_nothing_goes_down_only_to_come_up_again(seed: int) -> None:
    """The autoscaler takes what may go and is little used, the scheduler places their pods as it likes, and the planner
    never has to open a node for them. Meanwhile workloads end, so that there is always something to take."""
    chance = random.Random(seed)
    nodes = [Played(f"n{number:02}", chance.choice(TIERS)) for number in range(40)]
    for each in nodes:
        while each.used < 0.8 and chance.random() < 0.9:
            size = chance.choice([250, 500, 750, 1000])
            if each.node.free["cpu"] >= size:
                each.pods[spec(size)] += 1
    play = Play(nodes, TIERS)
    taken = 0
    for _ in range(20):
        for each in play.nodes:
            for running, count in list(each.pods.items()):
                each.pods[running] -= sum(chance.random() < 0.03 for _ in range(count))
            each.pods += Counter()
        verdicts = play.verdicts()
        low = [name for name in verdicts.go if play.named(name).used < 0.5]
        now = chance.sample(low, min(len(low), 5))
        taken += len(now)
        play.remove(now)
        play.schedule(chance)
        plan = play.planned()
        assert not plan.increments, f"{now} went, and {plan.increments} would come"
    assert taken >= 10
    assert not play.waiting


def placeholders(count: int, cpu: int = 1000) -> tuple[Reservation, ...]:
    return (Reservation(PlaceholderOwner("all/p"), spec(cpu), count),)


def test_r3_a_node_that_holds_slack_stays_unless_the_slack_has_room_elsewhere() -> None:
    play = Play([Played("h", HIGH, _with(2)), Played("l", LOW)], TIERS)
    assert play.verdicts().go == ("l",)
    play.bookings = Bookings(slack={"l": placeholders(3)})  # two would fit on h
    verdicts = play.verdicts()
    assert (verdicts.go, verdicts.stay) == ((), {"l": no_room_with_slack(10), "h": IN_USE})
    assert "l" in verdicts.low  # as the autoscaler sees it, it is empty
    play.bookings = Bookings(slack={"l": placeholders(2)})
    assert play.verdicts().go == ("l",)


def test_r3_pods_that_move_do_not_take_the_room_of_the_slack() -> None:
    play = Play([Played("h", HIGH, _with(2)), Played("l", LOW, _with(1))], TIERS)
    assert play.verdicts().go == ("l",)
    play.bookings = Bookings(slack={"h": placeholders(2)})
    assert play.verdicts().stay == {"h": IN_USE, "l": no_room(10)}
    play.bookings = Bookings(slack={"h": placeholders(1)})
    assert play.verdicts().go == ("l",)


def test_r3_the_slack_of_two_nodes_that_may_go_together_has_room_elsewhere_together() -> None:
    play = Play([Played("h", HIGH, _with(2)), Played("l1", LOW), Played("l2", LOW)], TIERS)
    play.bookings = Bookings(slack={"l1": placeholders(2), "l2": placeholders(2)})
    verdicts = play.verdicts()  # one of them moves onto h, or beside the other
    assert len(verdicts.go) == 1
    play.bookings = Bookings(slack={"l1": placeholders(1), "l2": placeholders(1)})
    assert play.verdicts().go == ("l1", "l2")


def test_r3_placeholders_that_keep_apart_stay_apart() -> None:
    apart_ = PodAffinityTerm("kubernetes.io/hostname", PodSelector((Requirement("app", Operator.IN, ("db",)),)))
    mirror = replace(spec(1000), labels=(("app", "db"),), pod_anti_affinity=(apart_,))
    play = Play([Played("h", HIGH, _with(2)), Played("l", LOW)], TIERS)
    mirrored = (Reservation(PlaceholderOwner("mirrors/db"), mirror),)
    play.bookings = Bookings(slack={"h": mirrored, "l": mirrored})
    assert play.verdicts().stay["l"] == no_room_with_slack(10)
    play.bookings = Bookings(slack={"l": mirrored})
    assert play.verdicts().go == ("l",)


def test_a_node_that_cannot_be_drained_stays_and_no_other_one_stays_for_it() -> None:
    # Both cannot go: each has what only the other one has room for.
    play = Play([Played("a", LOW, _with(1)), Played("b", LOW, _with(1)), Played("full", LOW, _with(4))], TIERS)
    assert play.verdicts().go == ("a",)
    why = "PodDisruptionBudget ns/web lets none of its pods go now"
    play.may_go, play.undrainable = frozenset(), {"a": why, "full": why}
    verdicts = play.verdicts()
    assert verdicts.go == ("b",), "its pods go where a's stay"
    assert verdicts.stay == {"a": why, "full": IN_USE}
    assert "a" in verdicts.low


def test_only_nodes_that_are_little_used_are_asked_about_budgets() -> None:
    play = Play(
        [Played("low", LOW, _with(1)), Played("used", LOW, _with(3)), Played("leaves", LOW, ready=False)], TIERS
    )
    assert "low" in play.verdicts().go
    assert play.asked_about == {"low"}


def test_pods_that_keep_apart_find_the_one_node_beyond_hundreds_that_have_one() -> None:
    apart = _apart(500)
    nodes = [Played("low", LOW, Counter({apart: 1}))]
    nodes += [Played(f"m{i:03}", MIDDLE, _with(2) + Counter({apart: 1})) for i in range(200)]
    assert not Play(nodes, TIERS).verdicts().go
    assert Play([*nodes, Played("z", HIGH, _with(3))], TIERS).verdicts().go == ("low",)


def test_pods_on_nodes_of_lower_weight_count_for_constraints_over_zones() -> None:
    """They are no room for pods of a higher tier, and keep them out of their zone all the same."""
    alone = PodAffinityTerm("zone", PodSelector((Requirement("app", Operator.IN, ("db",)),), ("ns",)))
    apart = spec(500, namespace="ns", labels=(("app", "db"),), pod_anti_affinity=(alone,))
    a, b = (replace(HIGH, id=f"high-{zone}", labels={"zone": zone}) for zone in "ab")
    below = replace(LOW, labels={"zone": "b"})
    moves, room = Played("moves", a, Counter({apart: 1})), Played("room", b, _with(3))
    assert Play([moves, room, Played("below", below, _with(3))], (a, b, below)).verdicts().go == ("moves",)
    below_has_one = Played("below", below, _with(3) + Counter({apart: 1}))
    assert not Play([moves, room, below_has_one], (a, b, below)).verdicts().go


_KEEPING_APART = st.sampled_from(
    [
        spec(cpu, namespace="ns", labels=(("app", app),), pod_anti_affinity=terms)
        for cpu in (300, 1100)
        for app in ("a", "b")
        for terms in (
            (),
            *(
                (PodAffinityTerm(key, PodSelector((Requirement("app", Operator.IN, ("a",)),), ("ns",))),)
                for key in ("kubernetes.io/hostname", "zone")
            ),
        )
    ]
)


@examples(100)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(_KEEPING_APART, max_size=2)), min_size=2, max_size=7),
    st.lists(_KEEPING_APART, max_size=2),
)
def test_pods_that_keep_apart_may_all_go_together_too(
    drawn: list[tuple[str, list[PodSpec]]], waiting: list[PodSpec]
) -> None:
    groups = {zone: replace(LOW, id=f"low-{zone}", labels={"zone": zone}) for zone in "ab"}
    nodes = [Played(f"n{i}", groups[zone], Counter(pods)) for i, (zone, pods) in enumerate(drawn)]
    play = Play(nodes, tuple(groups.values()), waiting=Counter(waiting))

    def placed(pods: Counter[PodSpec], names: Iterable[str]) -> int:
        """How many of them the planner places on these nodes beside what runs there."""
        sets = tuple(PodSet(f"{i}", each, count) for i, (each, count) in enumerate(pods.items()))
        there = [play.named(name) for name in names]
        on = tuple(replace(node.node, running=node.running) for node in there)
        plan = solve(Problem(sets, nodes=on), Budget(deterministic_seconds=1.0))
        return pods.total() - sum(each.count for each in plan.unplaced)

    verdicts = play.verdicts()
    displaced = sum((play.named(name).pods for name in verdicts.go), Counter[PodSpec]())
    had_room = placed(play.waiting, [each.name for each in nodes])
    assert placed(displaced + play.waiting, verdicts.stay) >= displaced.total() + had_room
