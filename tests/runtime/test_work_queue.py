"""Keys are handled once each, in order, and again where they failed."""

from __future__ import annotations

import logging
from itertools import pairwise
from threading import Event, Lock
from typing import Any

import pytest

from cagrpc.errors import Unavailable
from cagrpc.kube.client.parallel import in_parallel
from cagrpc.runtime.heartbeat import PATIENCE_SECONDS
from cagrpc.runtime.work_queue import WorkQueue
from tests.support.clocks import any_clock
from tests.support.waiting import AMPLE_SECONDS


class Time:
    now = 0.0

    def __call__(self) -> Any:
        return self.now


class Recorded:
    """A queue over a handler that remembers its keys; those in `failing` fail, those in `again` come back."""

    def __init__(self) -> None:
        self.time = Time()
        self.handled: list[str] = []
        self.failing: dict[str, str] = {}
        self.again: dict[str, float] = {}
        self.queue: WorkQueue[str] = WorkQueue("test", self._handle, workers=2, clock=self.time, jitter=lambda: 1.0)

    def _handle(self, key: str) -> float | None:
        self.handled.append(key)
        if key in self.failing:
            raise Unavailable(self.failing[key])
        return self.again.get(key)

    def at(self, now: float) -> list[str]:
        """What is handled then."""
        self.time.now = now
        self.handled.clear()
        self.queue.run_due()
        return list(self.handled)


def test_a_key_is_handled_once_however_often_it_was_added_and_in_order() -> None:
    work = Recorded()
    for key in "abacb":
        work.queue.add(key)
    assert work.at(0) == ["a", "b", "c"]
    assert work.at(1) == []


def test_a_key_can_wait_and_be_brought_forward_but_not_back() -> None:
    work = Recorded()
    work.queue.add("a", 10)
    work.queue.add("b", 5)
    work.queue.add("a", 2)
    work.queue.add("a", 8)
    assert work.at(1) == []
    assert work.at(2) == ["a"]
    assert work.at(20) == ["b"]


def test_a_key_that_asks_for_it_comes_again() -> None:
    work = Recorded()
    work.again["a"] = 3
    work.queue.add("a")
    assert [work.at(now) for now in (0, 2, 3, 5, 6)] == [["a"], [], ["a"], [], ["a"]]


def test_what_fails_is_tried_again_after_longer_and_longer_and_nothing_hurries_it() -> None:
    work = Recorded()
    work.failing["a"] = "away"
    work.queue.add("a")
    tries = []
    for tenth in range(400):
        work.queue.add("a")  # more news of it
        tries += [tenth / 10] * len(work.at(tenth / 10))
    pauses = [round(later - sooner, 1) for sooner, later in pairwise(tries)]
    assert pauses == [0.5, 1, 2, 4, 8, 16]
    assert work.queue.problem == "away"
    work.failing.clear()
    assert work.at(1000) == ["a"]
    assert work.queue.problem is None


def test_the_same_trouble_is_told_once_however_many_have_it(caplog: pytest.LogCaptureFixture) -> None:
    work = Recorded()
    caplog.set_level(logging.INFO)
    work.failing = dict.fromkeys("abc", "the server is away")
    for key in "abcd":
        work.queue.add(key)
    for now in range(20):
        work.at(now)
    assert [record.message for record in caplog.records] == ["test: tried again later: the server is away"]
    work.failing = {"c": "the server is away"}
    work.at(100)
    assert work.queue.problem is not None
    work.failing = {}
    work.at(200)
    assert [record.message for record in caplog.records][1:] == ["test: everything that had failed is done"]
    work.failing = {"a": "the server is away"}
    work.queue.add("a")
    work.at(300)
    assert len(caplog.records) == 3


def test_a_mistake_of_ours_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    handled = []

    def handle(key: str) -> None:
        handled.append(key)
        if key == "bad":
            raise ZeroDivisionError("ours")

    queue: WorkQueue[str] = WorkQueue("test", handle, workers=1, clock=any_clock(lambda: 0.0))
    queue.add("bad")
    queue.add("good")
    queue.run_due()
    assert handled == ["bad", "good"]
    assert "ZeroDivisionError" in caplog.text


def test_a_thread_that_hangs_is_stuck_with_its_key() -> None:
    time, begun, end = Time(), Event(), Event()

    def hang(_: str) -> None:
        begun.set()
        assert end.wait(AMPLE_SECONDS)

    queue: WorkQueue[str] = WorkQueue("test", hang, workers=2, clock=time)
    queue.start()
    time.now = 10_000.0
    assert [each.problem for each in queue.heartbeats] == ["", ""]
    queue.add("a")
    assert begun.wait(AMPLE_SECONDS)
    time.now += PATIENCE_SECONDS
    (stuck,) = (each.problem for each in queue.heartbeats if each.problem)
    assert stuck.endswith("makes no progress: in the middle of a for 300 s")
    end.set()
    queue.stop(10)


def test_threads_share_the_work_and_a_key_is_never_handled_twice_at_once() -> None:
    lock, busy, both = Lock(), set[str](), Event()
    twice = []
    counts = {"a": 0, "b": 0}
    done = Event()

    def handle(key: str) -> float | None:
        with lock:
            if key in busy:
                twice.append(key)
            busy.add(key)
            counts[key] += 1
            if busy == {"a", "b"}:
                both.set()
        both.wait(AMPLE_SECONDS)
        queue.add(key)
        with lock:
            busy.discard(key)
            if min(counts.values()) > 50:
                done.set()
        return None

    queue: WorkQueue[str] = WorkQueue("test", handle, workers=4)
    queue.start()
    queue.add("a")
    queue.add("b")
    assert done.wait(AMPLE_SECONDS)
    queue.stop(30.0)
    assert both.is_set()
    assert twice == []


def test_in_parallel_keeps_the_order_and_ends_at_the_first_error() -> None:
    assert in_parallel("test", lambda n: n * n, range(100), 8) == [n * n for n in range(100)]
    assert in_parallel("test", lambda n: n, [], 8) == []
    begun = []

    def fail(number: int) -> None:
        begun.append(number)
        if number == 10:
            raise Unavailable("away")

    with pytest.raises(Unavailable, match="away"):
        in_parallel("test", fail, range(10_000), 4)
    assert len(begun) < 10_000
