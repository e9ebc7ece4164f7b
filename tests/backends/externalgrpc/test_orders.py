"""Increments of a fleet over a provider whose calls are not safe to repeat: answers that are lost or late, shortages in
each of their forms, what is owed, and somebody else's hand."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

import grpc
import pytest

from cagrpc import errors
from cagrpc.backends.externalgrpc.orders import GroupOrders
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.model import IncrementSpec, Instance, InstanceState, Phase
from tests.support.fleet import MemoryJournal
from tests.support.played_provider import Habits, PlayedCloud


class Run:
    """A fleet over a played provider, with the fleet's journal and the backend's records on one shelf."""

    def __init__(self, habits: Habits | None = None, deadline_seconds: float = 600.0) -> None:
        self.cloud = PlayedCloud(habits)
        self.provider, self.channel = self.cloud.provider, self.cloud.channel
        self._deadline_seconds = deadline_seconds
        self.restart()

    def restart(self) -> None:
        """Begin the next process, as after `kill -9`."""
        self.backend = self.cloud.backend()
        settings = FleetSettings(self.cloud.node_groups, increment_deadline_seconds=self._deadline_seconds)
        self.fleet = Fleet(
            settings, self.backend, MemoryJournal(self.cloud.shelf), clock=self.cloud.clock, submit=lambda work: work()
        )
        self.step()

    def step(self, seconds: float = 0.0) -> None:
        """Let time pass in steps of the fleet."""
        until = self.cloud.clock() + seconds
        while True:
            with suppress(errors.Unavailable):
                self.fleet.reconcile()
            if self.cloud.clock() >= until:
                return
            self.cloud.advance(min(5.0, until - self.cloud.clock()))

    def ask(self, **deltas: int) -> str:
        return self.fleet.apply(IncrementSpec({f"pool-{key}": number for key, number in deltas.items()})).id

    def phase(self, increment_id: str) -> Phase:
        return self.fleet.increment(increment_id).phase

    def target(self, group: str) -> int:
        return self.provider.groups[group].target

    def increases(self) -> int:
        return sum(method == "NodeGroupIncreaseSize" for method, _ in self.provider.calls)

    def listed(self, group: str) -> tuple[Instance, ...]:
        return self.fleet.snapshot.groups[group].instances

    def kept(self, group: str) -> GroupOrders:
        found = self.cloud.shelf[0].backend.get(group)
        return GroupOrders() if found is None else GroupOrders.from_json(found.value)


def test_an_increase_that_is_carried_out_late_is_not_asked_for_twice() -> None:
    run = Run()
    run.channel.delay_seconds = 60.0
    increment = run.ask(a=3)
    run.step(30.0)
    assert run.target("pool-a") == 0
    assert run.kept("pool-a").doubt is not None
    run.channel.recover()
    run.restart()
    run.step(120.0)
    assert run.phase(increment) is Phase.DONE
    assert (run.target("pool-a"), run.increases(), len(run.cloud.machines())) == (3, 1, 3)


def test_an_increase_that_never_arrived_is_asked_for_again_once_that_is_sure() -> None:
    run = Run()
    increment = run.ask(a=2)
    run.channel.delay_seconds = 1e9
    run.step()
    run.channel.recover()
    run.step(80.0)
    assert run.target("pool-a") == 0, "asked again while it was in doubt"
    run.step(60.0)
    assert run.phase(increment) is Phase.DONE
    assert run.target("pool-a") == 2


def test_a_group_in_doubt_is_asked_for_nothing_else() -> None:
    run = Run()
    first = run.ask(a=2)
    run.channel.delay_seconds = 1e9
    run.step()
    run.channel.recover()
    second = run.ask(a=1, b=1)
    run.step(60.0)
    assert run.target("pool-a") == run.target("pool-b") == 0
    run.step(120.0)
    assert run.phase(first) is run.phase(second) is Phase.DONE
    assert (run.target("pool-a"), run.target("pool-b")) == (3, 1)


def test_an_increase_that_somebody_repeats_is_said_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    run.channel.repeats = True
    increment = run.ask(a=2)
    run.step(60.0)
    assert run.phase(increment) is Phase.DONE
    assert len(run.listed("pool-a")) == 4, "the two of nobody count"
    assert run.fleet.snapshot.groups["pool-a"].target_size == run.target("pool-a") == 4
    assert "somebody else has raised it" in caplog.text


@pytest.mark.parametrize("shortage", ["refuse", "error", "fall", "never"])
@pytest.mark.parametrize("placeholders", [False, True])
def test_a_shortage_of_any_form_rolls_all_groups_back(shortage: str, placeholders: bool) -> None:
    run = Run(Habits(shortage=shortage, placeholders=placeholders, partial=True))
    run.provider.groups["pool-b"].stock = 0
    increment = run.ask(a=2, b=2)
    run.step(660.0)
    status = run.fleet.increment(increment)
    assert status.phase is Phase.ROLLED_BACK
    assert status.short_groups == ("pool-b",)
    assert not run.cloud.machines()
    assert run.target("pool-a") == 0
    assert run.fleet.snapshot.groups["pool-b"].target_size == 0


@pytest.mark.parametrize(("shortage", "seconds"), [("refuse", 0.0), ("error", 5.0), ("fall", 130.0)])
def test_a_shortage_that_is_told_is_found_before_the_deadline(shortage: str, seconds: float) -> None:
    run = Run(Habits(shortage=shortage))
    run.provider.groups["pool-a"].stock = 0
    increment = run.ask(a=1)
    run.step(seconds)
    assert run.fleet.increment(increment).short_groups == ("pool-a",)


def test_a_group_that_refused_says_when_it_is_asked_again() -> None:
    run = Run()
    run.provider.groups["pool-a"].stock = 0
    run.ask(a=1)
    run.step(10.0)
    second = run.ask(a=1)
    run.step()
    assert run.increases() == 1
    assert run.fleet.increment(second).retry_after_seconds == pytest.approx(80.0)
    run.provider.groups["pool-a"].stock = None
    run.step(90.0)
    third = run.ask(a=1)
    run.step(30.0)
    assert run.phase(third) is Phase.DONE


def test_a_refusal_that_comes_true_later_is_paid_back() -> None:
    run = Run()
    run.provider.groups["pool-a"].refusal = (grpc.StatusCode.UNKNOWN, "operation timed out")
    increment = run.ask(a=2)
    run.step()
    assert run.phase(increment) is Phase.ROLLED_BACK
    run.provider.groups["pool-a"].refusal = None
    run.provider.raise_by_hand("pool-a", 2)
    run.step(60.0)
    assert not run.cloud.machines()
    assert run.target("pool-a") == 0
    run.step(100.0)
    assert run.kept("pool-a") == GroupOrders()


def test_what_never_comes_is_owed_and_taken_by_the_next_order(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(Habits(shortage="never"), deadline_seconds=100.0)
    run.provider.groups["pool-a"].stock = 0
    first = run.ask(a=2)
    run.step(120.0)
    assert run.phase(first) is Phase.ROLLED_BACK
    assert run.kept("pool-a").owed == run.target("pool-a") == 2
    assert "2 of its target were ordered, are not wanted any more" in caplog.text
    run.restart()
    second = run.ask(a=3)
    run.step(5.0)
    assert run.target("pool-a") == 3, "two of three were owed"
    run.provider.restock("pool-a")
    run.step(60.0)
    assert run.phase(second) is Phase.DONE
    assert len(run.cloud.machines()) == 3
    assert run.kept("pool-a").owed == 0


def test_the_status_says_what_there_is_to_know_of_each_provider_for_as_long_as_it_is_so() -> None:
    run = Run(Habits(shortage="never"), deadline_seconds=100.0)
    (told,) = run.backend.status().values()
    assert told == f"answers; it has {len(run.provider.groups)} node groups"
    run.provider.groups["pool-a"].stock = 0
    run.ask(a=2)
    run.step(120.0)
    (told,) = run.backend.status().values()
    assert "pool-a: 2 of its target were ordered, are not wanted any more" in told
    run.provider.groups["pool-a"].target = 0
    run.provider.raise_by_hand("pool-b", 2)
    run.step(15.0)
    (told,) = run.backend.status().values()
    assert "pool-b: its target is 2, 2 more than is listed and was ordered: somebody else has raised it" in told
    run.channel.delay_seconds = 1e9
    run.ask(b=1)
    run.step(15.0)
    (told,) = run.backend.status().values()
    assert "pool-b: an increase is in doubt" in told
    run.channel.is_cut = True
    run.step(15.0)
    (told,) = run.backend.status().values()
    assert "connection refused; pool-b: an increase is in doubt" in told
    run.channel.recover()
    run.step(200.0)
    (told,) = run.backend.status().values()
    assert told.startswith("answers; ")
    assert "in doubt" not in told


def test_what_is_owed_is_settled_by_the_first_instance_that_comes() -> None:
    run = Run(Habits(shortage="never", go_seconds=20.0), deadline_seconds=100.0)
    run.provider.groups["pool-a"].stock = 0
    run.ask(a=2)
    run.step(120.0)
    run.restart()
    run.provider.restock("pool-a")
    run.step(60.0)
    assert not run.cloud.machines()
    assert run.target("pool-a") == run.kept("pool-a").owed == 0
    assert not run.listed("pool-a")


def test_what_is_owed_is_settled_by_a_target_that_falls() -> None:
    run = Run(Habits(shortage="never"), deadline_seconds=100.0)
    run.provider.groups["pool-a"].stock = 0
    run.ask(a=2)
    run.step(120.0)
    run.provider.groups["pool-a"].target = 0
    run.step(100.0)
    assert run.kept("pool-a") == GroupOrders()


@pytest.mark.parametrize("answered", [True, False])
def test_a_placeholder_that_is_given_back_takes_nothing_from_others(answered: bool) -> None:
    """Deleting one sets the whole target of the group to what is there, as on AWS."""
    run = Run(Habits(placeholders=True, shortage="never"))
    run.provider.groups["pool-a"].stock = 0
    first, second = run.ask(a=2), run.ask(a=3)
    run.step(10.0)
    assert run.target("pool-a") == 5
    run.channel.losing = None if answered else 0
    run.fleet.withdraw(first, "not wanted any more")
    run.step()
    run.channel.recover()
    run.step(100.0)
    assert run.phase(first) is Phase.ROLLED_BACK
    assert run.target("pool-a") == 3, "what the second still wants was ordered anew"
    run.provider.restock("pool-a")
    run.step(60.0)
    assert run.phase(second) is Phase.DONE
    assert len(run.cloud.machines()) == 3


def test_instances_of_others_are_counted_and_never_taken_for_ordered_ones() -> None:
    run = Run()
    run.provider.raise_by_hand("pool-a", 2)
    run.step(60.0)
    theirs = {each.id for each in run.listed("pool-a")}
    assert len(theirs) == 2
    increment = run.ask(a=1)
    run.step()
    run.restart()
    run.step(60.0)
    assert run.phase(increment) is Phase.DONE
    (ours,) = {each.id for each in run.listed("pool-a")} - theirs
    run.fleet.delete_instances("pool-a", sorted(theirs))
    run.step(120.0)
    assert {each.id for each in run.listed("pool-a")} == {ours}


def test_a_target_lowered_by_hand_fails_what_is_awaited() -> None:
    run = Run(Habits(shortage="never"))
    run.provider.groups["pool-a"].stock = 0
    increment = run.ask(a=2)
    run.step(10.0)
    run.provider.groups["pool-a"].target = 0
    run.step(100.0)
    status = run.fleet.increment(increment)
    assert status.phase is Phase.ROLLED_BACK
    assert "the target of node group pool-a fell to 0" in status.message


def test_a_deletion_that_the_provider_refuses_is_said_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(Habits(minimum=1))
    increment = run.ask(a=1)
    run.step(60.0)
    assert run.phase(increment) is Phase.DONE
    run.fleet.delete_instances("pool-a", [each.id for each in run.listed("pool-a")])
    run.step(10.0)
    assert "min size reached" in caplog.text
    assert len(run.cloud.machines()) == 1
    run.provider.habits = Habits()
    run.step(120.0)
    assert not run.cloud.machines()


def test_ids_that_change_are_told_once_they_are_final() -> None:
    run = Run(Habits(pending_ids=True, states=False, boot_seconds=60.0))
    run.ask(a=2)
    run.step(30.0)
    assert {each.id.rpartition("-")[2] for each in run.listed("pool-a")} == {"1", "2"}
    assert {each.state for each in run.listed("pool-a")} == {InstanceState.CREATING}
    run.step(60.0)
    assert {each.id for each in run.listed("pool-a")} == {"played:///pool-a/i-0001", "played:///pool-a/i-0002"}


def test_only_the_leader_asks(caplog: pytest.LogCaptureFixture) -> None:
    """What is asked is journalled before, and a journal that is another's takes nothing."""
    caplog.set_level(logging.CRITICAL)
    run = Run()
    journal = MemoryJournal(run.cloud.shelf)
    run.fleet.apply(IncrementSpec({"pool-a": 1}))
    run.backend._records._journal = journal  # as if another had taken over
    journal.broken = True
    run.step(10.0)
    assert run.increases() == 0


def test_an_increase_in_doubt_is_not_confused_with_a_deletion_that_comes_late() -> None:
    """Each changes the target, which is all that there is to tell whether the increase was carried out."""
    run = Run()
    run.ask(a=3)
    run.step(60.0)
    run.channel.delay_seconds = 30.0
    run.fleet.delete_instances("pool-a", [run.listed("pool-a")[0].id])
    run.step()
    run.channel.delay_seconds = 40.0
    run.ask(a=1)
    run.step(1.0)
    run.channel.recover()
    run.step(300.0)
    assert (run.target("pool-a"), len(run.cloud.machines()), len(run.listed("pool-a"))) == (3, 3, 3)


def calls_of_a_minute(run: Run) -> int:
    """Return how many lists as many calls are as a minute takes, in steps of a second."""
    run.provider.calls.clear()
    for _ in range(60):
        run.step(1.0)
    return len(run.provider.calls) // (2 + 2 * len(run.cloud.node_groups))


@pytest.mark.parametrize("deletes", [False, True])
def test_a_doubt_is_waited_for_at_the_pace_of_lists(deletes: bool) -> None:
    """Some clouds take so many calls an hour, and a Refresh may be one of theirs for each group."""
    run = Run(Habits(late=False))
    run.cloud.access = replace(run.cloud.access, list_every_seconds=10.0)
    run.restart()
    run.ask(a=3, b=3)
    run.step(60.0)
    assert calls_of_a_minute(run) <= 7
    run.channel.delay_seconds = 1e9
    first = run.listed("pool-a")[0]
    if deletes:
        run.fleet.delete_instances("pool-a", [first.id])
    else:
        run.ask(a=1)
    run.step(1.0)
    increments = [run.ask(a=1, b=1) for _ in range(5)]
    run.step(1.0)
    run.channel.recover()
    assert calls_of_a_minute(run) <= 7
    run.step(240.0)
    assert {run.phase(each) for each in increments} == {Phase.DONE}
    assert run.target("pool-a") == (7 if deletes else 9)
