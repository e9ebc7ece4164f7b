"""The process is killed before, or after, each single call that the controller of ProvisioningRequests makes, and
restarted: it reaches the same end state as one that was not killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.fleet.model import Phase
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import ProvisioningHarness
from tests.support.fleet import group
from tests.support.kills import Killed

Story = Callable[[ProvisioningHarness, Callable[[float], None]], None]
MOST_CALLS = 12
LONG = 3 * BOOT_SECONDS


def new_nodes(harness: ProvisioningHarness, run: Callable[[float], None]) -> None:
    harness.request("r", ("web", 6), ("wide", 1))
    run(LONG)


def nodes_that_stand_and_new_ones(harness: ProvisioningHarness, run: Callable[[float], None]) -> None:
    _some_room(harness)
    harness.request("r", ("web", 6))
    run(LONG)


def nodes_that_stand(harness: ProvisioningHarness, run: Callable[[float], None]) -> None:
    _some_room(harness)
    harness.request("r", ("web", 3))
    run(LONG)


def a_shortage(harness: ProvisioningHarness, run: Callable[[float], None]) -> None:
    harness.backend.set_behaviour("*", Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=0))
    harness.request("r", ("web", 6))
    run(30)
    harness.backend.set_behaviour("*", Behaviour(boot_seconds=BOOT_SECONDS))
    run(800)


def deleted_on_its_way(harness: ProvisioningHarness, run: Callable[[float], None]) -> None:
    _some_room(harness)
    harness.request("r", ("web", 6))
    run(BOOT_SECONDS / 2)
    harness.delete("r")
    run(LONG)


def _some_room(harness: ProvisioningHarness) -> None:
    harness.request("before", ("web", 4))
    harness.run(LONG)
    harness.delete("before")
    harness.run(5)


def _told(story: Story, calls: int | None, *, after: bool) -> tuple[object, bool]:
    """What there is in the end, and whether the process was killed."""
    harness = ProvisioningHarness([group("a"), group("b", cpu=9000, price=0.3)])
    harness.template("web", cpu=1000)
    harness.template("wide", cpu=8000)
    made, left = 0, calls

    def count() -> None:
        nonlocal left
        if left is not None and story_runs:
            left -= 1
            if left < 0:
                raise Killed

    story_runs, killed = False, False

    def run(seconds: float) -> None:
        nonlocal story_runs, killed, left
        story_runs = True
        try:
            harness.run(seconds, step=seconds / 60)
        except Killed:
            killed, left = True, None
            harness.restart()
            harness.run(seconds, step=seconds / 60)
        story_runs = False

    harness.api.before, harness.api.after = ((lambda: None), count) if after else (count, (lambda: None))
    try:
        story(harness, run)
        harness.run(LONG)
        made = len(harness.increments())
        there = "r" in {path.rpartition("/")[2] for path in harness.api.store.objects}
        conditions = {
            kind: harness.condition("r", kind)["status"]  # type: ignore[index]
            for kind in ("Accepted", "Provisioned", "Failed", "CapacityRevoked", "BookingExpired")
            if there and harness.condition("r", kind) is not None
        }
        details = harness.details("r") if there else {}
        reported = {key: details.get(key) for key in ("nodes", "nodeGroups", "attempts", "costPerHour")}
        uid = harness.document("r")["metadata"]["uid"] if there else "gone"
        done = sum(each.phase is Phase.DONE for each in harness.increments())
        flying = sum(each.phase.in_flight for each in harness.increments())
        labels = len(harness.labelled(uid)), len(harness.any_labels())
        return (
            conditions,
            reported,
            labels,
            made,
            done,
            flying,
            harness.targets(),
            harness.requests.bookings(),
        ), killed
    finally:
        harness.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "story", [new_nodes, nodes_that_stand_and_new_ones, nodes_that_stand, a_shortage, deleted_on_its_way]
)
def test_killed_at_any_call_it_comes_to_the_same_end(story: Story, after: bool) -> None:
    expected, _ = _told(story, None, after=after)
    for calls in range(MOST_CALLS):
        found, killed = _told(story, calls, after=after)
        assert found == expected, f"killed at call {calls}"
        if not killed:
            assert calls >= 2
            return
    pytest.fail(f"there are more than {MOST_CALLS} calls")
