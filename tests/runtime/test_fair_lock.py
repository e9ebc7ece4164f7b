"""Whoever waits for a fair lock gets it before those who ask later, also before who has just given it up."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cagrpc.runtime.fair_lock import FairLock


def waiter(lock: FairLock, work: Callable[[], object]) -> threading.Thread:
    """Return a thread that waits for the lock, and does that while it holds it."""
    before = len(lock._waiting)

    def run() -> None:
        with lock:
            work()

    found = threading.Thread(target=run, daemon=True)
    found.start()
    while len(lock._waiting) == before:  # until it waits
        threading.Event().wait(0.001)
    return found


def test_it_is_had_in_the_order_in_which_it_was_asked_for() -> None:
    lock, had = FairLock(), list[int]()
    lock.acquire()
    threads = [waiter(lock, lambda number=number: had.append(number)) for number in range(8)]  # type: ignore[misc]
    lock.release()
    lock.acquire()  # which those who waited had before
    assert had == [*range(8)]
    lock.release()
    for each in threads:
        each.join()


def test_who_has_much_to_do_and_gives_it_up_between_its_pieces_has_every_second_turn_at_most() -> None:
    lock, turns = FairLock(), list[str]()
    lock.acquire()
    threads = []
    for number in range(5):
        threads.append(waiter(lock, lambda number=number: turns.append(f"other {number}")))  # type: ignore[misc]
        turns.append("much")
        lock.release()
        lock.acquire()
    lock.release()
    for each in threads:
        each.join()
    assert turns == [each for number in range(5) for each in ("much", f"other {number}")]


def test_what_fails_while_it_is_held_gives_it_up() -> None:
    lock = FairLock()
    with pytest.raises(StopIteration), lock:
        next(iter(()))
    with lock:
        assert not lock._waiting
