"""Steps that are done again and again: what goes wrong is told once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from threading import Event

import pytest

from cagrpc.errors import Unavailable
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.runtime.loop import Loop
from tests.support.fleet import FakeClock


@pytest.mark.parametrize("kind", [Unavailable, ValueError])
def test_the_same_trouble_is_told_once_until_it_is_over(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    done = Event()

    def steps() -> Iterator[Exception | None]:
        yield from (kind("gone"), kind("gone"), kind("worse"), None, kind("worse"))
        done.set()
        while True:
            yield None

    left = steps()

    def step() -> None:
        if (error := next(left)) is not None:
            raise error

    loop = Loop("a step", step, 0.001)
    with caplog.at_level(logging.WARNING):
        loop.start()
        assert done.wait(30)
        loop.stop(30)
    told = [f"{record.message} {record.exc_info[1] if record.exc_info else ''}" for record in caplog.records]
    assert ["worse" in each for each in told] == [False, True, True]


@pytest.mark.parametrize("kind", [Unavailable, ValueError])
def test_what_comes_first_is_tried_again_until_it_does_not_fail(kind: type[Exception]) -> None:
    done, did = Event(), list[str]()

    def first() -> None:
        did.append("first")
        if len(did) < 3:
            raise kind("not yet")

    def step() -> None:
        did.append("step")
        done.set()

    loop = Loop("a step", step, 0.001, first=first)
    loop.start()
    assert done.wait(30)
    loop.stop(30)
    assert did[:4] == ["first", "first", "first", "step"]
    assert loop.heartbeat.failed_steps == 2


def test_a_step_that_has_told_of_its_failure_itself_is_counted() -> None:
    done, answers = Event(), iter([False, None, False, True, 0])

    def step() -> object:
        answer = next(answers, done)
        if answer is done:
            done.set()
        return answer

    loop = Loop("a step", step, 0.001)
    loop.start()
    assert done.wait(30)
    loop.stop(30)
    assert loop.heartbeat.failed_steps == 2


def test_a_step_that_hangs_is_stuck() -> None:
    clock, begun, end = FakeClock(), Event(), Event()

    def hang() -> None:
        begun.set()
        assert end.wait(30)

    loop = Loop("a step", hang, 0.001, heartbeat=Heartbeat("a step", 60.0, clock))
    loop.start()
    assert begun.wait(30)
    assert loop.heartbeat.problem == ""
    clock.advance(60)
    assert loop.heartbeat.problem == "a step does not go on: in the middle of its step for 60 s"
    loop.stop(0)
    end.set()
    loop.stop(30)
    assert loop.heartbeat.problem == ""
