"""The controller of ProvisioningRequests with namespaces that ask for more than their share: what is written, and which
requests are served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from cagrpc.cluster.node_info import nothing_reserved
from cagrpc.cluster.shortages import Shortages
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.provisioning import controller, crowded
from cagrpc.controllers.provisioning.classes import CHECK_CAPACITY
from cagrpc.controllers.provisioning.deciding import Deciding
from cagrpc.controllers.provisioning.decision.planning import Scenario as Room
from cagrpc.controllers.provisioning.fairness import Turns
from cagrpc.controllers.provisioning.progress import Granted
from cagrpc.controllers.settings import NamespaceSettings, RequestSettings
from solver.model import Budget
from tests.controllers.provisioning.test_fairness import asked
from tests.support.clocks import any_clock
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import IN_NAMESPACE, IN_OTHER, ProvisioningHarness
from tests.support.fleet import group

Make = Callable[..., ProvisioningHarness]
LONG = 3 * BOOT_SECONDS


@pytest.fixture
def make() -> Iterator[Make]:
    harnesses: list[ProvisioningHarness] = []

    def made(*groups: Any, booking_seconds: float = 9000, **few: Any) -> ProvisioningHarness:
        settings = RequestSettings(booking_seconds=booking_seconds, per_namespace=NamespaceSettings(**few))
        harnesses.append(ProvisioningHarness(groups or [group("a")], requests=settings))
        harnesses[-1].template("web", cpu=1000)
        return harnesses[-1]

    yield made
    for harness in harnesses:
        harness.close()


def reason(harness: ProvisioningHarness, name: str) -> str:
    found = harness.condition(name, "Provisioned")
    return "" if found is None else str(found["reason"])


@pytest.mark.parametrize("few", [{"requests": 2}, {"pods": 9}])
def test_what_is_more_than_a_namespace_may_have_waits_and_is_served_when_others_are_through(
    make: Make, few: dict[str, int]
) -> None:
    harness = make(group("a", max_size=9), **few)
    for number in range(4):
        harness.request(f"r{number}", ("web", 4))
    harness.request("other/r", ("web", 4))
    harness.run(LONG)
    assert [reason(harness, f"r{number}") for number in range(4)] == [
        "CapacityIsProvisioned",
        "CapacityIsProvisioned",
        "NamespaceShareIsUsed",
        "NamespaceShareIsUsed",
    ]
    assert f"provisioning_requests.per_namespace.{next(iter(few))}" in harness.message("r2", "Provisioned")
    assert "attempts" not in harness.details("r2")
    assert harness.is_true("other/r", "Provisioned")
    assert harness.requests.status()["provisioning_requests"]["over_share"] == {"ns": 2}
    assert [note.about.name for note in harness.notes_of("NamespaceShareIsUsed")] == ["r2", "r3"]
    writes = len(harness.api.calls)
    harness.run(600)
    assert len(harness.api.calls) == writes
    harness.delete("r0")
    harness.run(LONG)
    assert harness.is_true("r2", "Provisioned")
    assert reason(harness, "r3") == "NamespaceShareIsUsed"
    harness.consume("r1", 4)
    harness.run(LONG)
    assert harness.is_true("r3", "Provisioned")
    assert not any(harness.condition(f"r{number}", "Failed") for number in range(1, 4))


def test_a_request_larger_than_a_namespaces_share_says_so_until_its_time_is_over_and_holds_up_no_other(
    make: Make,
) -> None:
    harness = make(pods=5)
    harness.request("big", ("web", 6), ValidUntilSeconds="600")
    harness.request("small", ("web", 2))
    harness.run(LONG)
    assert harness.message("big", "Provisioned") == (
        "it asks for 6 pods, and a namespace may have capacity reserved for 5"
        " (provisioning_requests.per_namespace.pods)"
    )
    assert harness.is_true("small", "Provisioned")
    assert harness.condition("big", "Failed") is None
    harness.run(600)
    assert harness.condition("big", "Failed")["reason"] == "Expired"  # type: ignore[index]
    assert "it asks for 6 pods" in harness.message("big", "Failed")


def test_a_check_that_keeps_nothing_needs_no_share(make: Make) -> None:
    harness = make(group("a", max_size=1), requests=1)
    harness.request("r", ("web", 2))
    harness.run(LONG)
    harness.request("check", ("web", 2), of=CHECK_CAPACITY)
    harness.run(5)
    assert harness.is_true("check", "CapacityAvailable")


def test_the_one_of_a_namespace_is_served_after_the_next_of_many_that_are_older(make: Make) -> None:
    harness = make(group("a", max_size=1))
    names = [f"r{number:02}" for number in range(6)]
    for name in names:
        harness.request(name, ("web", 4))
        harness.clock.advance(0.001)
    harness.run(LONG)
    harness.request("other/r", ("web", 4))
    harness.run(5)
    in_turn = []
    for _ in range(3):
        (served,) = [name for name in (*names, "other/r") if harness.is_true(name, "Provisioned")]
        in_turn.append(served)
        harness.delete(served)
        names = [name for name in names if name != served]
        harness.run(130)
    assert [name == "other/r" for name in in_turn] == [False, False, True]


def test_what_a_overtaken_request_needs_is_reserved_for_no_longer_than_it_says(make: Make) -> None:
    harness = make(group("a", max_size=2), overtaken_seconds=120)
    harness.request("first", ("web", 4))
    harness.run(LONG)
    harness.request("big", ("web", 8))
    harness.run(5)
    big = harness.document("big")
    details = {**big["status"]["provisioningClassDetails"], "overtaken": "10"}
    harness.api.store.put(
        f"{IN_NAMESPACE}/big", {**big, "status": {**big["status"], "provisioningClassDetails": details}}
    )
    harness.request("other/small", ("web", 4))
    harness.run(30)
    assert "reserved for ns/big" in harness.message("other/small", "Provisioned")
    harness.run(250)
    assert harness.is_true("other/small", "Provisioned")
    assert not harness.is_true("big", "Provisioned")


def test_few_are_written_at_once_and_of_each_namespace_one_after_the_other(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "MOST_WRITTEN", 3)
    harness = make()
    for number in range(10):
        harness.request(f"r{number}", ("web", 1), What="else")
    harness.clock.advance(1.0)
    harness.request("other/r", ("web", 1), What="else")
    harness.step()
    assert [call.removeprefix("PATCH ") for call in harness.api.calls] == [
        f"{IN_NAMESPACE}/r0",
        f"{IN_OTHER}/r",
        f"{IN_NAMESPACE}/r1",
    ]
    harness.run(5)
    assert all(harness.is_true(f"r{number}", "Failed") for number in range(10))


def test_labels_of_requests_that_are_through_go_from_a_node_that_has_too_many(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowded, "MOST_LABELS", 4)
    harness = make(group("a", max_size=1))
    most = 0
    for number in range(12):
        harness.request(f"r{number}", ("web", 1))
        harness.run(LONG if not number else 5)
        assert harness.is_true(f"r{number}", "Provisioned")
        (pod,) = harness.consume(f"r{number}", 1)
        harness.run(5)
        harness.cluster.finish(pod)
        harness.run(5)
        most = max(most, len(harness.any_labels()))
    assert most <= 4
    assert harness.labelled(str(harness.document("r11")["metadata"]["uid"]))


def test_a_node_full_of_labels_gets_no_more_and_that_is_reported(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(crowded, "MOST_LABELS", 2)
    harness = make(group("a", max_size=1))
    for number in range(2):
        harness.request(f"r{number}", ("web", 1))
    harness.run(LONG)
    harness.request("r2", ("web", 1))
    harness.run(5)
    assert not harness.is_true("r2", "Provisioned")
    assert len(harness.any_labels()) == 2
    assert harness.requests.status()["provisioning_requests"]["nodes_with_most_labels"] == 1
    assert "has the labels of 2 bookings or more, and gets no other" in caplog.text
    harness.delete("r0")
    harness.run(700)
    assert harness.is_true("r2", "Provisioned")


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
