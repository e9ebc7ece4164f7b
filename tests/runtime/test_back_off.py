"""Waits that double up to a limit; problems that are logged once."""

from __future__ import annotations

from cagrpc.runtime.back_off import BackOff, Retry
from cagrpc.runtime.log_once import LogOnce
from tests.support.fleet import FakeClock


def test_each_failure_in_a_row_doubles_the_wait_up_to_the_longest() -> None:
    assert [BackOff(0.5, 3.0).seconds(failures) for failures in (1, 2, 3, 4, 1000)] == [0.5, 1, 2, 3, 3]


def test_jitter_chooses_between_half_and_all_of_it() -> None:
    assert [BackOff(8.0, jitter=lambda of=of: of).seconds(1) for of in (0.0, 0.5, 1.0)] == [4, 6, 8]  # type: ignore[misc]


def test_what_failed_is_due_again_after_its_wait() -> None:
    clock = FakeClock()
    retry = Retry(BackOff(1.0), clock)
    assert retry.due
    retry.failed()
    assert not retry.due
    clock.advance(1)
    retry.failed()
    clock.advance(1)
    assert not retry.due
    clock.advance(1)
    assert retry.due
    retry.worked()
    retry.failed()
    clock.advance(1)
    assert retry.due


def test_a_problem_is_new_once_until_it_changes_or_is_over() -> None:
    once = LogOnce(most=2)
    assert [once.is_new("a"), once.is_new("a"), once.is_new("b")] == [True, False, True]
    assert (once.over(), once.over(), once.is_new("b")) == (True, False, True)
    assert [once.is_new("a", about="x"), once.is_new("a", about="y")] == [True, False]  # there are two already
    once.only(["x"])
    assert [once.is_new("a", about="x"), once.is_new("b")] == [False, True]
    once.all_over()
    assert once.is_new("b")
