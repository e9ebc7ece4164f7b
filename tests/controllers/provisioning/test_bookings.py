"""Bookings: room that is reserved for requests, and how much of it their pods have taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.markers import booking_label
from cagrpc.cluster.node_info import ClusterCapacity, PodOwner, RequestOwner, Reservation
from cagrpc.cluster.state import ClusterNode, ClusterState, Consumer, ConsumerStage, PodRef
from cagrpc.controllers.provisioning.bookings import Booked, book, consumed, consumer_nodes, overfull
from cagrpc.controllers.provisioning.model import Booking
from solver import (
    HOSTNAME,
    HostPort,
    Node,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Requirement,
    RunningPods,
    Taint,
)
from solver.model import TaintEffect, Toleration
from tests.support.solver.problems import TAINT, node, spec

HEAD, WORKER = spec(cpu=1000), spec(cpu=4000)


def _state(*nodes: Node) -> ClusterState:
    return ClusterState((), tuple(ClusterNode(each, f"id-{each.name}", ready=True, held=False) for each in nodes), ())


def _of(*uids: str) -> dict[str, str]:
    return {booking_label(uid): "true" for uid in uids}


def _room(uid: str, spec_: PodSpec, count: int) -> Reservation:
    return Reservation(RequestOwner(uid), spec_, count)


def _left(each: Node, booked: Booked) -> Node:
    return ClusterCapacity([each], booked.reservations)[each.name].node()


def _booking(uid: str, *pods: tuple[PodSpec, int], anywhere: bool = False, coming: bool = False) -> Booking:
    return Booking(uid, f"ns/{uid}", pods, anywhere, coming)


def test_room_is_reserved_on_the_nodes_with_the_label_and_nowhere_else() -> None:
    state = _state(node("n1", 8000), node("n2", 8000, labels=_of("a")), node("n3", 4000, labels=_of("a")))
    booked = book([_booking("a", (HEAD, 6), (WORKER, 1))], state)
    assert booked.reservations == {"n2": (_room("a", WORKER, 1), _room("a", HEAD, 4)), "n3": (_room("a", HEAD, 2),)}
    assert booked.uids == {"n2": ("a",), "n3": ("a",)}
    assert not booked.short


def test_what_no_longer_finds_room_is_reported() -> None:
    booked = book([_booking("a", (WORKER, 3)), _booking("gone", (HEAD, 2))], _state(node("n1", 9000, labels=_of("a"))))
    assert booked.reservations == {
        "n1": (_room("a", WORKER, 2), _room("a", HEAD, 1))
    }  # what is left is its own all the same
    assert booked.short == {"a": 1, "gone": 2}


def test_what_first_fit_does_not_find_is_not_lost_where_there_is_enough_in_all() -> None:
    two, three = spec(cpu=2000), spec(cpu=3000)
    bookings = [_booking("a", (three, 1), (two, 2)), _booking("b", (three, 1))]
    # As planned: 3 and 3 on n1, 2 and 2 on n2. First fit puts one of 2 beside the first of 3.
    n1, n2 = node("n1", 6000, labels=_of("a", "b")), node("n2", 4000, labels=_of("a"))
    booked = book(bookings, _state(n1, n2))
    assert booked.short == {"b": 1}
    assert _left(n1, booked).free["cpu"] == 0  # the piece of 1 core that is left is nobody else's
    assert overfull(bookings, _state(n1, n2)) == frozenset()
    assert overfull(bookings, _state(n1, replace(n2, free={**n2.free, "cpu": 3000}))) == {"a", "b"}
    other = node("n3", 500, labels=_of("c"))
    assert overfull([*bookings, _booking("c", (HEAD, 1))], _state(n1, n2, other)) == {"c"}
    assert overfull([_booking("a", (two, 1))], _state(node("n4", 9000))) == {"a"}


def test_the_first_booking_has_the_first_choice_of_a_node_that_both_have() -> None:
    state = _state(node("n1", 8000, labels=_of("a", "b")))
    booked = book([_booking("b", (WORKER, 2)), _booking("a", (HEAD, 1))], state)
    assert booked.reservations == {"n1": (_room("b", WORKER, 2),)}
    assert booked.short == {"a": 1}
    assert booked.uids == {"n1": ("b",)}


def test_a_booking_without_nodes_of_its_own_is_reserved_wherever_there_is_room() -> None:
    state = _state(node("n1", 2000, taints=(TAINT,)), node("n2", 2000), node("n3", 8000))
    booked = book([_booking("a", (HEAD, 4), anywhere=True)], state)
    assert booked.reservations == {"n2": (_room("a", HEAD, 2),), "n3": (_room("a", HEAD, 2),)}


def test_a_node_that_may_be_back_in_a_moment_keeps_its_reservations() -> None:
    unreachable = Taint("node.kubernetes.io/unreachable", TaintEffect.NO_EXECUTE)
    cordoned = Taint("node.kubernetes.io/unschedulable", TaintEffect.NO_SCHEDULE)
    away = node("n1", 4000, labels=_of("a"), taints=(unreachable,))
    out = node("n2", 4000, labels=_of("b"), taints=(cordoned,))
    booked = book([_booking("a", (HEAD, 1)), _booking("b", (HEAD, 1))], _state(away, out))
    assert booked.reservations.keys() == {"n1"}
    assert booked.short == {"b": 1}


def test_room_of_others_is_left_to_them_where_there_is_enough_for_both() -> None:
    both = _of("a", "b")
    n1, n2 = node("n1", 4000, labels=both), node("n2", 4000, labels=both)
    others = {"n1": (Reservation(PodOwner("p"), HEAD, 3),), "gone": (Reservation(PodOwner("q"), HEAD),)}
    for where in ({"anywhere": True}, {}):
        booked = book([_booking("a", (HEAD, 5), **where)], _state(n1, n2), others)
        assert booked.reservations == {"n1": (_room("a", HEAD, 1),), "n2": (_room("a", HEAD, 4),)}
    larger = [_booking("a", (HEAD, 6)), _booking("b", (HEAD, 1))]
    booked = book(larger, _state(n1, n2), others)  # it was promised first
    assert booked.reservations == {"n1": (_room("a", HEAD, 2), _room("b", HEAD, 1)), "n2": (_room("a", HEAD, 4),)}
    assert not booked.short


def test_what_is_planned_for_nodes_in_flight_takes_no_room_of_others() -> None:
    others = {"n1": (Reservation(PodOwner("p"), HEAD, 3),)}
    booked = book([_booking("a", (HEAD, 6), coming=True)], _state(node("n1", 4000, labels=_of("a"))), others)
    assert booked.reservations == {"n1": (_room("a", HEAD, 1),)}
    assert booked.short == {"a": 5}


def test_ports_and_selectors_are_minded() -> None:
    serving = spec(cpu=1000, host_ports=(HostPort(80),))
    in_pool = spec(cpu=1000, node_selector={"pool": "x"})
    taken = node("n1", 8000, labels=_of("a"), running=(RunningPods(serving),))
    others = [node(f"n{number}", 8000, labels={**_of("a"), "pool": "x"}) for number in (2, 3)]
    booked = book([_booking("a", (serving, 3), (in_pool, 1))], _state(taken, *others))
    assert booked.short == {"a": 1}
    assert booked.reservations["n2"][0] == _room("a", serving, 1)
    assert "n1" not in booked.reservations


def test_room_is_reserved_apart_for_pods_with_anti_affinity() -> None:
    mine = PodSelector((Requirement("app", Operator.IN, ("db",)),))
    apart = spec(cpu=1000, labels=(("app", "db"),), pod_anti_affinity=(PodAffinityTerm(HOSTNAME, mine),))
    nodes = [node(f"n{number}", 8000, labels=_of("a")) for number in range(3)]
    booked = book([_booking("a", (apart, 4), (HEAD, 1))], _state(*nodes))
    assert booked.short == {"a": 1}
    assert sorted(
        running.count for name in booked.reservations for running in booked.reservations[name] if running.spec == apart
    ) == [1, 1, 1]


_SPECS = st.builds(lambda units: spec(cpu=1000 * units), st.integers(1, 4))
_PODS = st.lists(st.tuples(_SPECS, st.integers(0, 4)), min_size=1, max_size=3)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sets(st.sampled_from("abc"))), max_size=4),
    st.lists(st.tuples(st.sampled_from("abc"), _PODS, st.booleans()), unique_by=lambda each: each[0], max_size=3),
    st.lists(st.tuples(st.integers(0, 3), _SPECS), max_size=3),
)
def test_reserved_and_short_add_up_and_nothing_is_reserved_twice(
    rooms: list[tuple[int, set[str]]],
    asked: list[tuple[str, list[tuple[PodSpec, int]], bool]],
    planned: list[tuple[int, PodSpec]],
) -> None:
    nodes = [node(f"n{i}", 1000 * units, labels=_of(*sorted(uids))) for i, (units, uids) in enumerate(rooms)]
    bookings = [_booking(uid, *pods, anywhere=anywhere) for uid, pods, anywhere in asked]
    others = {f"n{i}": (Reservation(PodOwner(f"p{i}"), each),) for i, each in planned}
    booked = book(bookings, _state(*nodes), others)
    assert booked == book(bookings, _state(*nodes), others)
    kept = sum(running.count for pods in booked.reservations.values() for running in pods)
    wanted = sum(count for booking in bookings for _, count in booking.pods)
    pieces = kept + sum(booked.short.values()) - wanted
    assert 0 <= pieces <= len(nodes) * len(booked.short)
    for each in nodes:
        used = sum(
            dict(running.spec.requests)["cpu"] * running.count for running in booked.reservations.get(each.name, ())
        )
        assert used <= each.free["cpu"]
        assert _left(each, booked).free["cpu"] == each.free["cpu"] - used
    for booking in bookings:
        if booked.short.get(booking.uid):
            places = [each for each in nodes if booking.anywhere or booking_label(booking.uid) in each.labels]
            largest = max(dict(s.requests)["cpu"] for s, count in booking.pods if count)
            left = [_left(each, booked).free["cpu"] for each in places]
            assert all(free < largest for free in left), "room was left"


# Consumption


def _consumer(number: int, of: PodSpec, stage: ConsumerStage = ConsumerStage.BOUND) -> Consumer:
    return Consumer(PodRef(f"uid-{number}", "ns", f"pod-{number}"), "a", "class", of, stage, "n1")


def test_consumers_are_counted_in_the_pod_set_that_they_are_of() -> None:
    pods = [(WORKER, 4), (replace(WORKER, node_selector=(("pool", "x"),)), 4), (HEAD, 2)]
    admitted = replace(pods[1][0], tolerations=(Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute"),))
    there = [_consumer(1, HEAD), _consumer(2, admitted), _consumer(3, WORKER, ConsumerStage.SUCCEEDED)]
    waiting = [_consumer(4, WORKER, ConsumerStage.PENDING)]
    assert consumed(pods, [*there, *waiting], {}) == {0: 1, 1: 1, 2: 1}


def test_consumers_go_to_the_nodes_of_their_booking_and_stay_where_they_are_nominated() -> None:
    state = _state(node("n1", 4000, labels=_of("a")), node("n2", 5000, labels=_of("a")), node("n3", 9000))
    booked = book([_booking("a", (HEAD, 1), (WORKER, 2))], state)
    admitted = replace(WORKER, tolerations=(Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute"),))
    stages = {1: ConsumerStage.PENDING, 2: ConsumerStage.PENDING, 3: ConsumerStage.PENDING, 4: ConsumerStage.BOUND}
    pods = [_consumer(number, admitted, stage) for number, stage in stages.items()]
    nodes = consumer_nodes(booked, {"a": pods}, {"uid-2": "n2", "uid-3": "n3"})
    assert nodes == {"uid-2": "n2", "uid-1": "n1"}  # the third is one more than was booked
    assert consumer_nodes(booked, {"another": pods}, {}) == {}


def test_a_template_has_the_labels_of_its_pods_and_consumers_are_known_without() -> None:
    selecting = replace(WORKER, node_selector=(("pool", "x"),))
    pods = [(replace(each, namespace="ns", labels=(("app", "train"),)), 4) for each in (WORKER, selecting)]
    assert consumed(pods, [_consumer(1, selecting)], {}) == {0: 0, 1: 1}


def test_one_that_is_of_none_counts_where_pods_still_lack() -> None:
    other = spec(cpu=123)
    assert consumed([(WORKER, 1), (HEAD, 2)], [_consumer(n, other) for n in range(2)], {}) == {0: 1, 1: 1}
    assert consumed([(WORKER, 1)], [_consumer(n, other) for n in range(3)], {}) == {0: 1}


def test_a_pod_that_is_gone_stays_counted_and_its_replacement_is_not_counted_again() -> None:
    pods = [(WORKER, 4)]
    first = consumed(pods, [_consumer(n, WORKER) for n in range(3)], {})
    second = consumed(pods, [_consumer(9, WORKER)], first)
    assert first == second == {0: 3}
    assert consumed(pods, [_consumer(n, WORKER) for n in range(4)], second) == {0: 4}


@given(
    st.lists(st.tuples(_SPECS, st.integers(1, 4)), min_size=1, max_size=3),
    st.lists(st.tuples(_SPECS, st.sampled_from(ConsumerStage)), max_size=8),
    st.lists(st.integers(0, 5), min_size=3, max_size=3),
    st.randoms(use_true_random=False),
)
def test_no_consumer_is_counted_twice_whatever_their_order(
    pods: list[tuple[PodSpec, int]], asked: list[tuple[PodSpec, ConsumerStage]], known: list[int], random: object
) -> None:
    consumers = [_consumer(number, of, stage) for number, (of, stage) in enumerate(asked)]
    found = consumed(pods, consumers, {})
    there = Counter(of for of, stage in asked if stage is not ConsumerStage.PENDING)
    assert sum(found.values()) == min(there.total(), sum(count for _, count in pods))
    shuffled = consumers[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert consumed(pods, shuffled, {}) == found
    before = dict(enumerate(known[: len(pods)]))
    later = consumed(pods, consumers, before)
    assert all(min(before[n], count) <= later[n] <= count for n, (_, count) in enumerate(pods))
    assert consumed(pods, consumers, later) == later
