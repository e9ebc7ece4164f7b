"""The controller of ProvisioningRequests with namespaces that ask for more than their share: what is written, and which
requests are served."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.controllers.provisioning import deciding, decisions, fairness
from cagrpc.controllers.provisioning.scenario import Scenario
from cagrpc.controllers.settings import NamespaceSettings, RequestSettings
from cagrpc.runtime.back_off import LONGEST_REST_SECONDS
from cagrpc.runtime.fair_lock import FairLock
from solver.model import Budget, PodSet
from tests.controllers.provisioning.conftest import Make
from tests.support.examples import examples
from tests.support.fleet import FakeClock, group
from tests.support.requests import CHECK, RequestWorld, path
from tests.support.world import BOOT_SECONDS

LONG = 3 * BOOT_SECONDS


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as worlds:

        def made(*groups: Any, booking_seconds: float = 9000, **few: Any) -> RequestWorld:
            settings = RequestSettings(booking_seconds=booking_seconds, per_namespace=NamespaceSettings(**few))
            world = worlds.enter_context(RequestWorld(*(groups or [group("a")]), requests=settings))
            world.template("web", cpu=1000)
            return world

        yield made


def reason(world: RequestWorld, name: str) -> str:
    found = world.condition(name, "Provisioned")
    return "" if found is None else str(found["reason"])


@pytest.mark.parametrize("few", [{"requests": 2}, {"pods": 9}])
def test_what_is_more_than_a_namespace_may_have_waits_and_is_served_when_others_are_through(
    make: Make, few: dict[str, int]
) -> None:
    world = make(group("a", max_size=9), **few)
    for number in range(4):
        world.request(f"r{number}", ("web", 4))
    world.request("other/r", ("web", 4))
    world.run(LONG)
    assert [reason(world, f"r{number}") for number in range(4)] == [
        "CapacityIsProvisioned",
        "CapacityIsProvisioned",
        "NamespaceShareIsUsed",
        "NamespaceShareIsUsed",
    ]
    assert f"provisioning_requests.per_namespace.{next(iter(few))}" in world.message("r2", "Provisioned")
    assert "attempts" not in world.details("r2")
    assert world.is_true("other/r", "Provisioned")
    assert world.shown["over_share"] == {"ns": 2}
    assert [each.name for each in world.events("NamespaceShareIsUsed")] == ["r2", "r3"]
    writes = len(world.writes())
    world.run(600)
    assert len(world.writes()) == writes
    world.delete("r0")
    world.run(LONG)
    assert world.is_true("r2", "Provisioned")
    assert reason(world, "r3") == "NamespaceShareIsUsed"
    world.consume("r1", 4)
    world.run(LONG)
    assert world.is_true("r3", "Provisioned")
    assert not any(world.condition(f"r{number}", "Failed") for number in range(1, 4))


def test_a_request_larger_than_a_namespaces_share_says_so_until_its_time_is_over_and_holds_up_no_other(
    make: Make,
) -> None:
    world = make(pods=5)
    world.request("big", ("web", 6), ValidUntilSeconds="600")
    world.request("small", ("web", 2))
    world.run(LONG)
    assert world.message("big", "Provisioned") == (
        "it asks for 6 pods, and a namespace may have capacity reserved for 5"
        " (provisioning_requests.per_namespace.pods)"
    )
    assert world.is_true("small", "Provisioned")
    assert world.condition("big", "Failed") is None
    world.run(600)
    assert world.condition("big", "Failed")["reason"] == "Expired"
    assert "it asks for 6 pods" in world.message("big", "Failed")


def test_a_check_that_keeps_nothing_needs_no_share(make: Make) -> None:
    world = make(group("a", max_size=1), requests=1)
    world.request("r", ("web", 2))
    world.run(LONG)
    world.request("check", ("web", 2), of=CHECK)
    world.run(5)
    assert world.is_true("check", "CapacityAvailable")


class Turns:
    """Requests of room for one of them, which those that have it give back one after the other."""

    def __init__(self, world: RequestWorld, holder: str = "z/first") -> None:
        self.world, self.holder, self.asked = world, holder, list[str]()
        world.namespaces = [*"abz"]
        world.template("web")
        for priority in (5, 6):
            world.priority_class(f"p{priority}", priority)
            world.template(f"p{priority}", priorityClassName=f"p{priority}")
        self.world.request(holder, ("web", 4))
        self.world.run(LONG, step=5.0)

    def ask(self, *names: str) -> None:
        """One is a second older than the next; one called `p5` has this priority."""
        for name in names:
            self.world.request(name, (name[2:] if name[2:] in ("p5", "p6") else "web", 4))
            self.world.clock.advance(1.0)
        self.asked += names

    def next(self) -> str:
        """Return whose turn it is when the room is given back."""
        self.world.run(5, step=5.0)
        self.world.delete(self.holder)
        self.world.run(10, step=5.0)
        (self.holder,) = [name for name in self.asked if self.world.is_true(name, "Provisioned")]
        self.asked.remove(self.holder)
        return self.holder


@pytest.mark.parametrize(
    ("asked", "in_turn", "holder", "remembered"),
    [
        ("a/r1 a/r2 a/r3 b/r9", "a/r1 b/r9 a/r2 a/r3", "z/first", 9),
        ("a/low b/p5 b/p6", "b/p6 b/p5 a/low", "z/first", 9),
        ("b/new a/r", "a/r b/new", "a/first", 9),
        ("b/new a/r", "b/new a/r", "a/first", 1),
    ],
    ids=["each in turn, with its oldest", "by priority", "who is new comes last", "who is forgotten is new"],
)
def test_namespaces_take_turns(
    make: Make, asked: str, in_turn: str, holder: str, remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cagrpc.controllers.provisioning.fairness._MOST_NAMESPACES", remembered)
    turns = Turns(make(group("a", max_size=1)), holder)
    turns.ask(*asked.split())
    assert [turns.next() for _ in asked.split()] == in_turn.split()


@examples(4)
@given(st.lists(st.lists(st.sampled_from("ab"), max_size=3), min_size=6, max_size=6), st.integers(0, 2))
def test_whatever_others_ask_for_a_namespace_is_served_after_as_many_as_there_are(
    coming: list[list[str]], asks_at: int
) -> None:
    with (
        patch("cagrpc.controllers.provisioning.decisions._MOST_EXPLAINED", 0),
        RequestWorld(group("a", max_size=1)) as world,
    ):
        turns, served = Turns(world), list[str]()
        for step, namespaces in enumerate(coming):
            turns.ask(*(f"{of}/r{step}-{number}" for number, of in enumerate(namespaces)))
            if step == asks_at:
                turns.ask("z/r")
            served.append(turns.next() if turns.asked and turns.holder else "")
        assert "z/r" in served[asks_at : asks_at + 3]


@pytest.mark.parametrize("waits", [False, True])
def test_many_of_one_namespace_leave_places_for_the_one_of_another(
    make: Make, *, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are new, and where they wait for their next attempt and only join those that are due."""
    monkeypatch.setattr("cagrpc.controllers.provisioning.fairness.MOST_AT_ONCE", 4)
    world = make(group("a", max_size=1), group("b", cpu=900))
    world.template("tiny", cpu=500)
    world.request("first", ("web", 4))
    world.run(LONG)
    many = [f"greedy-{number}" for number in range(9)]
    for name, overtaken in (*((name, 9) for name in many), ("other/modest", 1)):
        world.request(name, ("web", 4))
        details = {"overtaken": str(overtaken), "attempts": "1", "retryAt": timestamp(world.clock() + 100)}
        if waits:
            world.api.change(path(name), status={"provisioningClassDetails": details})
        world.clock.advance(1.0)
    if waits:
        world.request("due", ("tiny", 1))
    world.step()
    before = {"overtaken": "9"} if waits else {}
    considered = {each for each in many if world.details(each).get("overtaken") != before.get("overtaken")}
    assert considered == ({"greedy-0", "greedy-1"} if waits else {"greedy-0", "greedy-1", "greedy-2"})
    assert world.details("other/modest")["overtaken"] == ("2" if waits else "0")


def test_what_a_bypassed_request_needs_is_reserved_for_no_longer_than_it_says(make: Make) -> None:
    world = make(group("a", max_size=2), bypassed_seconds=120)
    world.request("first", ("web", 4))
    world.run(LONG)
    world.request("big", ("web", 8))
    world.run(5)
    big = world.document("big")
    details = {**big["status"]["provisioningClassDetails"], "overtaken": "10"}
    world.api.put(path("big"), {**big, "status": {**big["status"], "provisioningClassDetails": details}})
    served = []
    for number in range(14):
        name = f"other/small-{number}"
        world.request(name, ("web", 4))
        world.run(25, step=5.0)
        served.append(world.is_true(name, "Provisioned") or world.is_true(name, "Accepted"))
        assert served[-1] or "reserved for ns/big" in world.message(name, "Provisioned")
        world.delete(name)
        world.run(5, step=5.0)
    assert [each for each, _ in groupby(served)][:3] == [False, True, False], "and then again"


def test_few_are_written_at_once_and_of_each_namespace_one_after_the_other(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cagrpc.controllers.provisioning.controller.MOST_WRITTEN", 3)
    world = make()
    world.step()
    for number in range(10):
        world.request(f"r{number}", ("web", 1), What="else")
    world.clock.advance(1.0)
    world.request("other/r", ("web", 1), What="else")
    world.step()
    assert [each.removeprefix("PATCH ") for each in world.writes()] == [path("r0"), path("other/r"), path("r1")]
    world.run(5)
    assert all(world.is_true(f"r{number}", "Failed") for number in range(10))


def test_labels_of_requests_that_are_through_go_from_a_node_that_has_too_many(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cagrpc.controllers.provisioning.labels.MOST_LABELS", 4)
    world = make(group("a", max_size=1))
    most = 0
    for number in range(12):
        world.request(f"r{number}", ("web", 1))
        world.run(LONG if not number else 5)
        assert world.is_true(f"r{number}", "Provisioned")
        (pod,) = world.consume(f"r{number}", 1)
        world.run(5)
        world.cluster.finish(pod)
        world.run(5)
        most = max(most, len(world.any_labels()))
    assert most <= 4
    assert world.labelled(str(world.document("r11")["metadata"]["uid"]))


def test_a_node_full_of_labels_gets_no_more_and_that_is_reported(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cagrpc.controllers.provisioning.labels.MOST_LABELS", 2)
    world = make(group("a", max_size=1))
    for number in range(2):
        world.request(f"r{number}", ("web", 1))
    world.run(LONG)
    world.request("r2", ("web", 1))
    world.run(5)
    assert not world.is_true("r2", "Provisioned")
    assert len(world.any_labels()) == 2
    assert world.shown["nodes_with_most_labels"] == 1
    assert "has the labels of 2 bookings or more, and gets no other" in caplog.text
    world.delete("r0")
    world.run(700)
    assert world.is_true("r2", "Provisioned")


def test_checks_take_no_longer_than_the_budget_of_one_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.world.BUDGET", Budget(seconds=1e-9))
    with RequestWorld(group("a")) as world:
        world.template("web")
        world.step()
        for number in range(9):
            world.request(f"r{number}", ("web", 1), of=CHECK)
        for decided in range(1, 10):
            world.step()
            assert sum(world.is_true(f"r{number}", "Failed") for number in range(9)) == decided
            world.clock.advance(1.0)


def test_whoever_else_plans_comes_between_requests_that_reserve_and_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Noted(FairLock):
        def acquire(self) -> None:
            super().acquire()
            done.append("turn")

        def release(self) -> None:
            done.append("given up")
            super().release()

    def noted(what: str) -> None:
        before = getattr(deciding, what)

        def called(*given: Any) -> Any:
            done.append(what)
            return before(*given)

        monkeypatch.setattr(deciding, what, called)

    monkeypatch.setattr("cagrpc.controllers.assume_cache.cache.FairLock", Noted)
    noted("decide")
    noted("check")
    with RequestWorld(group("a")) as world:
        world.template("web")
        world.step()
        world.request("whole", ("web", 1))
        for number in range(2):
            world.request(f"r{number}", ("web", 1), of=CHECK)
        world.step()
        assert done == ["turn", "decide", "given up", "turn", "check", "check", "given up"]


class Planned:
    """How many pods each plan is asked for that chooses who is served; it takes so long where not all are."""

    def __init__(self, world: RequestWorld, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        self.world, self.seconds, self.pods = world, seconds, list[int]()
        self.attempt = decisions._attempt
        monkeypatch.setattr(decisions, "_attempt", self)

    def __call__(self, scenario: Scenario, pod_sets: Sequence[PodSet], budget: Budget) -> decisions.Attempt:
        self.pods.append(sum(each.count for each in pod_sets))
        found = self.attempt(scenario, pod_sets, budget)
        if not found.serves_all:
            self.world.clock.advance(self.seconds)
        return found


def test_what_counting_refuses_is_not_planned_whatever_room_is_made(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(group("a", max_size=2))
    world.request("other/first", ("web", 4))
    world.run(LONG)
    for number in range(3):
        world.request(f"r{number}", ("web", 8))
    world.run(5)
    assert "4 of 8 pods fit now" in world.message("r0", "Provisioned")
    planned = Planned(world, monkeypatch)
    for number in range(4):
        world.request(f"other/r{number}", ("web", 1))
        world.run(LONG if not number else 12)
        assert world.is_true(f"other/r{number}", "Provisioned")
        world.delete(f"other/r{number}")
        world.run(12)
    assert set(planned.pods) == {1, 8}, "never together"
    assert planned.pods.count(8) <= 3 + 4, "once each, when its next attempt is due, and when the oldest is bypassed"
    world.delete("other/first")
    world.run(LONG)
    assert world.is_true("r0", "Provisioned")


def test_a_namespace_whose_requests_take_long_to_refuse_has_a_share_of_time_and_others_do_not_wait(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(group("a", max_size=3))
    world.template("more", cpu=1001)
    world.request("other/first", ("web", 4))
    world.run(LONG)
    planned = Planned(world, monkeypatch, seconds=20.0)

    def steps(count: int) -> None:
        for _ in range(count):
            world.step()
            world.clock.advance(1.0)

    world.request("hard", ("web", 5), ("more", 5))
    steps(2)
    assert reason(world, "hard") == "CapacityIsNotFound"
    refused_at, planned.pods = world.clock(), []
    world.request("easy", ("web", 1))
    world.request("other/r", ("web", 1))
    steps(2)
    assert world.is_true("other/r", "Accepted"), "it does not wait for anything of the other namespace"
    assert not world.is_true("easy", "Accepted")
    world.delete("other/r")
    world.delete("other/first")
    while not world.is_true("hard", "Accepted"):
        steps(1)
    assert 0.8 * LONGEST_REST_SECONDS <= world.clock() - refused_at <= LONGEST_REST_SECONDS + 40
    assert planned.pods[0] == 1


def test_each_namespace_rests_for_its_part_of_what_was_refused_and_a_minute_at_most() -> None:
    turns = fairness.Turns(NamespaceSettings(), clock := FakeClock())
    turns.refused(["a", "a", "a", "b"], 4.0)
    assert (turns.rests("a"), turns.rests("b"), turns.rests("c")) == (True, True, False)
    clock.advance(4.0)
    assert (turns.rests("a"), turns.rests("b")) == (True, False), "each for its part"
    clock.advance(8.0)
    assert not turns.rests("a")
    turns.refused(["a"], 1000.0)
    clock.advance(LONGEST_REST_SECONDS)
    assert not turns.rests("a")
