"""Fairness between namespaces: whose ProvisioningRequests are considered and served first, and how many one may have at
once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.classes import Terms
from cagrpc.controllers.provisioning.decision.planning import MOST_AT_ONCE
from cagrpc.controllers.provisioning.fairness import Shares, Turns, due, one_by_one
from cagrpc.controllers.provisioning.model import Booking, ProvisioningRequest, Service
from cagrpc.controllers.provisioning.observation import Ours, RequestsObservation
from cagrpc.controllers.provisioning.progress import Next, Pods, RequestPhase
from cagrpc.controllers.settings import ClassBehaviour, NamespaceSettings
from cagrpc.fleet.model import FleetSnapshot
from solver.model import PodSpec
from tests.support.clocks import any_clock
from tests.support.examples import examples

SPEC = PodSpec((("cpu", 1000),))
ANY = NamespaceSettings()


def asked(
    namespace: str,
    name: str = "r",
    *,
    created: float = 0.0,
    pods: int = 1,
    priority: int = 0,
    overtaken: int = 0,
    books: bool = True,
) -> Ours:
    details = {conditions.OVERTAKEN: str(overtaken)}
    request = ProvisioningRequest(
        f"{namespace}/{name}", namespace, name, "c", (), created_at_seconds=created, details=details
    )
    service = Service(ClassBehaviour.ATOMIC if books else ClassBehaviour.CHECK, books)
    return Ours(request, service, Terms(), Pods(((SPEC, pods),), priority), RequestPhase.WAITING)


def turns(seconds: float = 3600.0) -> Turns:
    return Turns(NamespaceSettings(overtaken_seconds=seconds), any_clock(lambda: 0.0))


def looked_at(found: Sequence[Ours], order: Turns, most: NamespaceSettings = ANY, *, joins: str = "") -> list[Ours]:
    """Those that are decided next; requests of these namespaces only join the others."""
    ours = {each.request.uid: each for each in found}
    look = RequestsObservation(0.0, {}, ours, FleetSnapshot(1, {}, (), {}), {}, ClusterState((), (), ()), {})
    nexts = {
        each.request.uid: Next(
            RequestPhase.WAITING, wants=each.request.namespace not in joins, joins=each.request.namespace in joins
        )
        for each in found
    }
    return due(look, nexts, ClassBehaviour.ATOMIC, order, Shares((), most))


def keys(found: Sequence[Ours]) -> list[str]:
    return [each.request.key for each in found]


def test_namespaces_take_turns_and_each_has_its_oldest_served_first() -> None:
    found = [asked("a", f"r{age}", created=age) for age in (3, 1, 2)] + [asked("b", "r9", created=9)]
    order = turns()
    assert keys(order.in_order(found)) == ["a/r1", "b/r9", "a/r2", "a/r3"]
    order.served(["a"])
    assert keys(order.in_order(found)) == ["b/r9", "a/r1", "a/r2", "a/r3"]
    order.served(["b"])
    assert keys(order.in_order(found)) == ["a/r1", "b/r9", "a/r2", "a/r3"]


def test_namespaces_that_are_new_each_time_do_not_come_before_one_that_waits() -> None:
    big, order = asked("a", created=50.0), turns()
    order.served(["a"])
    for number in range(5):
        assert keys(order.in_order([big, asked(f"new-{number}", created=number)]))[0] == "a/r"
        order.served([f"new-{number}"])


def test_priority_comes_before_turns() -> None:
    found = [asked("a", "low"), asked("b", "high", priority=5), asked("b", "higher", priority=6)]
    order = turns()
    order.served(["b"])
    assert keys(order.in_order(found)) == ["b/higher", "b/high", "a/low"]


def test_a_thousand_of_one_namespace_leave_places_for_the_one_of_another() -> None:
    many = [asked("greedy", f"r{number:04}", created=number) for number in range(1000)]
    one = asked("modest", created=5000.0)
    found = looked_at([*many, one], turns())
    assert len(found) == MOST_AT_ONCE
    assert keys(found)[:2] == ["greedy/r0000", "modest/r"]


def test_a_thousand_overtaken_requests_leave_places_for_the_one_of_another_namespace() -> None:
    many = [asked("greedy", f"r{number:04}", created=number, overtaken=9) for number in range(1000)]
    found = looked_at(
        [asked("c", "due"), *many, asked("modest", created=5000.0, overtaken=1)], turns(), joins="greedy modest"
    )
    assert "modest/r" in keys(found)
    assert len(found) == MOST_AT_ONCE


HOSTILE = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 9)), max_size=150)
"""Namespaces, when they ask, and how often they were overtaken."""


@examples(100)
@given(HOSTILE, st.integers(0, 40), st.lists(st.sampled_from(["a", "b", "c", "modest"]), max_size=5))
def test_whatever_others_ask_for_a_request_is_among_the_next_considered(
    others: list[tuple[str, int, int]], created: int, before: list[str]
) -> None:
    found = [asked(of, f"r{n}", created=at, overtaken=times) for n, (of, at, times) in enumerate(others)]
    order = turns()
    order.served(before)
    mine = asked("modest", created=created)
    place = keys(looked_at([*found, mine], order)).index("modest/r")
    assert place <= 3  # at most one of each namespace comes before it


@examples(100)
@given(st.lists(st.lists(st.sampled_from("ab"), max_size=4), min_size=20, max_size=20), st.integers(0, 10))
def test_where_one_is_served_at_a_time_each_namespace_is_served_after_as_many_as_there_are(
    coming: list[list[str]], asks_at: int
) -> None:
    order, waiting, served_at = turns(), dict[str, Ours](), None
    for step, namespaces in enumerate(coming):
        more = [asked(of, f"r{step}-{number}", created=step) for number, of in enumerate(namespaces)]
        more += [asked("modest", created=step)] if step == asks_at else []
        waiting |= {each.request.uid: each for each in more}
        if waiting:
            first = looked_at(list(waiting.values()), order)[0]
            order.served([first.request.namespace])
            del waiting[first.request.uid]
            if first.request.namespace == "modest":
                served_at = step
    assert served_at is not None
    assert served_at - asks_at <= 2


def test_a_namespace_has_so_many_requests_and_pods_kept_at_once() -> None:
    few = NamespaceSettings(requests=2, pods=10)
    booked = [Booking("1", "a/r1", ((SPEC, 3), (SPEC, 2)))]
    shares = Shares(booked, few)
    assert shares.why_not(asked("a", pods=5)) == ""
    assert "more than 10 of namespace a (provisioning_requests.per_namespace.pods)" in shares.why_not(
        asked("a", pods=6)
    )
    assert "asks for 11 pods" in shares.why_not(asked("b", pods=11))
    assert shares.why_not(asked("a", pods=6, books=False)) == ""  # nothing is kept for it
    assert keys(shares.taken([asked("a", "r2"), asked("a", "r3"), asked("b", pods=10)], 9)) == ["a/r2", "b/r"]
    assert shares.why_not(asked("a")).startswith("capacity is reserved for 2 requests of namespace a, the most at once")
    assert len(Shares(booked, few).taken([asked("b", f"r{number}") for number in range(9)], 1)) == 1


@examples(100)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "modest"]), st.integers(1, 30)), max_size=20),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 30)), max_size=40),
    st.integers(1, 10),
)
def test_what_others_have_takes_nothing_of_a_namespace(
    booked: list[tuple[str, int]], others: list[tuple[str, int]], pods: int
) -> None:
    most = NamespaceSettings(requests=5, pods=50)
    bookings = [Booking(str(n), f"{of}/{n}", ((SPEC, count),)) for n, (of, count) in enumerate(booked)]
    shares = Shares(bookings, most)
    taken = shares.taken([asked(of, f"r{n}", pods=count) for n, (of, count) in enumerate(others)], 99)
    has = Counter(of for of, _ in booked) + Counter(each.request.namespace for each in taken)
    for namespace, requests in Counter(each.request.namespace for each in taken).items():
        assert requests <= most.requests
        assert has[namespace] <= most.requests
    mine = [count for of, count in booked if of == "modest"]
    may = len(mine) < most.requests and sum(mine) + pods <= most.pods
    assert bool(shares.why_not(asked("modest", pods=pods))) is not may


def test_a_overtaken_request_has_its_reservation_for_a_time_and_then_none_for_as_long() -> None:
    now = [0.0]
    order = Turns(NamespaceSettings(overtaken_seconds=100.0), any_clock(lambda: now[0]))
    may = []
    for seconds in range(0, 500, 50):
        now[0] = float(seconds)
        may.append(order.may_keep("a"))
        if may[-1]:
            order.kept(["a"])
    assert may == [True, True, False, False, True, True, False, False, True, True]
    assert order.may_keep("b")


def test_one_by_one() -> None:
    assert one_by_one(["a1", "a2", "a3", "b1", "c1", "c2"], lambda each: each[0]) == [
        "a1",
        "b1",
        "c1",
        "a2",
        "c2",
        "a3",
    ]


@pytest.mark.parametrize("asks", [1, 3])
def test_those_that_are_served_longest_ago_are_remembered_for_so_many_namespaces(
    asks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cagrpc.controllers.provisioning.fairness._MOST_NAMESPACES", asks)
    order = turns()
    order.served(["a", "b", "c", "a"])
    assert len(order._served) == min(asks, 3)
    assert "a" in order._served
