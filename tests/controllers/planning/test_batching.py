"""When a planning round is due."""

from __future__ import annotations

from cagrpc.cluster.state import Arrivals
from cagrpc.controllers.planning.batching import (
    RETRY_SECONDS,
    WAIT_FOR_OTHERS,
    BatchingState,
    notice,
    planned,
    round_due,
)
from cagrpc.controllers.settings import PlannerSettings

SETTINGS = PlannerSettings(idle_seconds=1.0, window_seconds=10.0)
NOTHING = Arrivals(0, None)


def test_nothing_is_due_while_no_pod_waits() -> None:
    assert not round_due(notice(BatchingState(), NOTHING, "state", 100.0), NOTHING, 200.0, SETTINGS).due


def test_a_round_waits_until_no_pod_has_come_for_the_idle_time() -> None:
    one = Arrivals(1, 100.0, {"a": 100.0})
    memory = notice(BatchingState(), one, "state", 100.0)
    assert not round_due(memory, one, 100.9, SETTINGS).due
    more = Arrivals(2, 100.0, {"a": 100.9})
    memory = notice(memory, more, "state", 100.9)
    assert not round_due(memory, more, 101.5, SETTINGS).due
    assert round_due(memory, more, 101.9, SETTINGS).due


def test_pods_that_keep_coming_are_planned_when_the_window_is_over() -> None:
    memory, due_at = BatchingState(), []
    for tick in range(100, 131):
        arrivals = Arrivals(tick, 100.0, {"a": float(tick)})
        memory = notice(memory, arrivals, "state", float(tick))
        if round_due(memory, arrivals, float(tick), SETTINGS).due:
            due_at.append(tick)
            memory = planned(arrivals, "state", float(tick))
    assert due_at == [110, 121]  # the second window begins with the first pod after the first round


def test_pods_still_to_be_created_are_planned_like_those_that_are_there() -> None:
    arrivals = Arrivals(0, 100.0, {"a": 100.0}, expected=3)
    memory = notice(BatchingState(), arrivals, "state", 100.0)
    assert not round_due(memory, arrivals, 100.5, SETTINGS).due
    assert round_due(memory, arrivals, 101.0, SETTINGS).due
    memory = planned(arrivals, "state", 101.0)
    came = Arrivals(3, 101.5, {"a": 100.0})
    assert not round_due(notice(memory, came, "state", 105.0), came, 110.0, SETTINGS).due


def test_an_old_pod_that_is_not_served_does_not_shorten_the_window_of_new_ones() -> None:
    old = Arrivals(1, 100.0, {"a": 100.0})
    memory = planned(old, "state", 101.0)
    new = Arrivals(2, 100.0, {"a": 150.0})
    memory = notice(memory, new, "state", 150.2)
    assert not round_due(memory, new, 150.9, SETTINGS).due
    assert round_due(memory, new, 151.0, SETTINGS).due


def test_a_change_in_the_cluster_is_news_for_pods_that_wait() -> None:
    arrivals = Arrivals(1, 100.0, {"a": 100.0})
    memory = planned(arrivals, "state", 101.0)
    assert not round_due(notice(memory, arrivals, "state", 110.0), arrivals, 120.0, SETTINGS).due
    memory = notice(memory, arrivals, "another state", 110.0)
    assert not round_due(memory, arrivals, 110.5, SETTINGS).due
    assert round_due(notice(memory, arrivals, "another state", 111.0), arrivals, 111.0, SETTINGS).due


def test_pending_pods_are_replanned_now_and_then_without_news() -> None:
    arrivals = Arrivals(1, 100.0, {"a": 100.0})
    memory = planned(arrivals, "state", 101.0)
    assert not round_due(memory, arrivals, 101.0 + RETRY_SECONDS - 1, SETTINGS).due
    assert round_due(memory, arrivals, 101.0 + RETRY_SECONDS, SETTINGS).due


def test_placeholders_without_room_are_reason_enough() -> None:
    left = Arrivals(0, None, placeholders=2)
    memory = notice(planned(NOTHING, ("state", 0), 100.0), left, ("state", 2), 110.0)
    assert not round_due(memory, left, 110.5, SETTINGS).due
    memory = notice(memory, left, ("state", 2), 111.0)
    assert round_due(memory, left, 111.0, SETTINGS).due
    memory = planned(left, ("state", 2), 111.0)
    assert not round_due(notice(memory, left, ("state", 2), 115.0), left, 115.0, SETTINGS).due


def test_news_while_nothing_waits_does_not_hurry_what_comes_later() -> None:
    memory = notice(planned(NOTHING, "state", 100.0), NOTHING, "another state", 110.0)
    one = Arrivals(1, 200.0, {"a": 200.0})
    memory = notice(memory, one, "another state", 200.0)
    assert not round_due(memory, one, 200.5, SETTINGS).due
    assert round_due(memory, one, 201.0, SETTINGS).due


def test_a_namespace_in_which_there_is_no_end_of_news_keeps_others_waiting_for_a_short_time_only() -> None:
    """Its workloads grow and shrink, or its pods are created and deleted, all the time."""
    memory, waited = BatchingState(), []
    came = 100.0
    for tick in range(1000, 1400):
        now = tick / 10
        arrivals = Arrivals(2, 100.0, {"noisy": now, "modest": came})
        memory = notice(memory, arrivals, "state", now)
        if round_due(memory, arrivals, now, SETTINGS).due:
            waited.append(now - came)
            memory = planned(arrivals, "state", now)
            came = now + 0.1
    assert len(waited) > 10
    assert max(waited) <= WAIT_FOR_OTHERS * SETTINGS.idle_seconds + 0.11
    assert min(waited) > SETTINGS.idle_seconds  # a little it is waited for, lest every round be over a part


def test_so_does_a_cluster_that_changes_all_the_time() -> None:
    arrivals = Arrivals(1, 100.0, {"modest": 100.0})
    memory, now = notice(BatchingState(), arrivals, 100.0, 100.0), 100.0
    while not round_due(memory, arrivals, now, SETTINGS).due:
        now += 0.25
        memory = notice(memory, arrivals, now, now)
    assert now == 103.0


def test_of_one_namespace_alone_all_of_a_burst_is_planned_at_once() -> None:
    memory = BatchingState()
    for tick in range(41):
        now = 100.0 + tick / 4
        arrivals = Arrivals(tick + 1, 100.0, {"noisy": now})
        memory = notice(memory, arrivals, "state", now)
        assert round_due(memory, arrivals, now, SETTINGS).due is (now >= 110.0)
