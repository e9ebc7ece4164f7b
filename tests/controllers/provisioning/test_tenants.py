"""The controller of ProvisioningRequests with namespaces that ask for more than their share: what is written, and which
requests are served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

from cagrpc.cluster.node_info import nothing_reserved
from cagrpc.cluster.shortages import Shortages
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.provisioning.deciding import Deciding
from cagrpc.controllers.provisioning.decision.planning import Scenario as Room
from cagrpc.controllers.provisioning.fairness import Turns
from cagrpc.controllers.provisioning.progress import Granted
from cagrpc.controllers.settings import NamespaceSettings, RequestSettings
from solver.model import Budget
from tests.controllers.provisioning.conftest import Make
from tests.controllers.provisioning.test_fairness import asked
from tests.support.clocks import any_clock
from tests.support.fleet import group
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


def test_the_one_of_a_namespace_is_served_after_the_next_of_many_that_are_older(make: Make) -> None:
    world = make(group("a", max_size=1))
    names = [f"r{number:02}" for number in range(6)]
    for name in names:
        world.request(name, ("web", 4))
        world.clock.advance(0.001)
    world.run(LONG)
    world.request("other/r", ("web", 4))
    world.run(5)
    in_turn = []
    for _ in range(3):
        (served,) = [name for name in (*names, "other/r") if world.is_true(name, "Provisioned")]
        in_turn.append(served)
        world.delete(served)
        names = [name for name in names if name != served]
        world.run(130)
    assert [name == "other/r" for name in in_turn] == [False, False, True]


def test_what_a_overtaken_request_needs_is_reserved_for_no_longer_than_it_says(make: Make) -> None:
    world = make(group("a", max_size=2), overtaken_seconds=120)
    world.request("first", ("web", 4))
    world.run(LONG)
    world.request("big", ("web", 8))
    world.run(5)
    big = world.document("big")
    details = {**big["status"]["provisioningClassDetails"], "overtaken": "10"}
    world.api.put(path("big"), {**big, "status": {**big["status"], "provisioningClassDetails": details}})
    world.request("other/small", ("web", 4))
    world.run(30)
    assert "reserved for ns/big" in world.message("other/small", "Provisioned")
    world.run(250)
    assert world.is_true("other/small", "Provisioned")
    assert not world.is_true("big", "Provisioned")


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
    monkeypatch.setattr("cagrpc.controllers.provisioning.crowded.MOST_LABELS", 4)
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
    monkeypatch.setattr("cagrpc.controllers.provisioning.crowded.MOST_LABELS", 2)
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


def test_checks_take_no_longer_than_the_budget_of_one_decision() -> None:
    def never(*_: object) -> Any:
        raise AssertionError

    order = Turns(NamespaceSettings(), any_clock(lambda: 0.0))
    none = cast("Any", None)
    deciding = Deciding(
        none,
        none,
        Shortages(1.0, any_clock(lambda: 0.0)),
        Budget(seconds=1e-9),
        order,
        others=nothing_reserved,
        wanted=never,
        still_there=never,
        stopping=never,
    )
    due = [asked("greedy", f"r{number}", books=False) for number in range(9)]
    assert len(deciding.checks(due, Room(), ClusterState((), (), ()))) == 1
    for each in deciding.checks(due, Room(), ClusterState((), (), ())).values():
        assert not isinstance(each, Granted)
