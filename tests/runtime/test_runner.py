"""Controllers that are run: each step in its turn, what fails after a back-off and logged once, health, an end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event

import pytest

from cagrpc.errors import StillStarting, Unavailable
from cagrpc.runtime.back_off import BackOff
from cagrpc.runtime.controller import Controller, JsonPage
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.runtime.runner import STARTING_SECONDS, Runner, Steps, StepTimes
from cagrpc.services.http.metrics import Metrics
from solver.compiled import waits
from solver.model.errors import NotCompiledError
from tests.support.clocks import any_clock
from tests.support.fleet import FakeClock
from tests.support.waiting import AMPLE_SECONDS

FIRST_SECONDS, LONGEST_SECONDS = 1.0, 4.0


class Loop(Controller):
    """A minimal controller, whose steps are given."""

    name = "a loop"
    every_seconds = 0.001
    back_off = BackOff(FIRST_SECONDS, LONGEST_SECONDS)

    def __init__(self, step: Callable[[], bool | None]) -> None:
        self._step = step

    def step(self) -> bool | None:
        return self._step()


def of_results(*results: object) -> Callable[[], bool | None]:
    """Steps that return or raise these, one after the other."""
    left = iter(results)

    def step() -> bool | None:
        result = next(left)
        if isinstance(result, Exception):
            raise result
        return None if result is None else bool(result)

    return step


@pytest.mark.parametrize("kind", [Unavailable, ValueError])
def test_the_same_problem_is_logged_once_until_it_is_over(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    results = None, kind("gone"), kind("gone"), kind("worse"), None, kind("gone"), kind("worse"), None, kind("worse")
    steps = Steps(Loop(of_results(*results)), clock)
    for number in range(len(results)):
        steps.take()
        clock.advance(LONGEST_SECONDS if number < 7 else 60.0)
    logged = [f"{record.message} {record.exc_info[1] if record.exc_info else ''}" for record in caplog.records]
    assert ["worse" in each for each in logged] == [False, True, True]


def test_a_controller_that_has_never_worked_is_waited_for_before_it_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    steps = Steps(Loop(of_results(*[Unavailable("still to come")] * 4)), clock)
    warned = []
    for _ in range(4):
        steps.take()
        clock.advance(LONGEST_SECONDS)
        warned.append(len(caplog.records))
    assert warned == [0, 0, 0, 1]
    assert clock() > STARTING_SECONDS


def test_who_waits_for_another_part_to_start_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = FakeClock()
    steps = Steps(Loop(of_results(*[StillStarting("reservations are unknown yet: compiling")] * 9, None)), clock)
    for _ in range(10):
        steps.take()
        clock.advance(LONGEST_SECONDS)
    assert clock() > FakeClock()() + STARTING_SECONDS
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("INFO", f"{steps.controller.name} waits: reservations are unknown yet: compiling")
    ]
    assert steps.heartbeat.failed_steps == 0


@pytest.mark.parametrize("failure", [Unavailable("gone"), ValueError("ours"), False])
def test_what_fails_is_tried_again_after_longer_and_longer(failure: object) -> None:
    clock, tried = FakeClock(0.0), list[float]()

    def step() -> bool | None:
        tried.append(clock())
        return of_results(failure)()

    steps = Steps(Loop(step), clock)
    for _ in range(130):
        steps.take()
        clock.advance(0.125)
    assert tried == [0.0, 1.0, 3.0, 7.0, 11.0, 15.0]
    assert steps.heartbeat.failed_steps == len(tried)


def test_after_a_step_that_worked_the_next_failure_is_the_first_again() -> None:
    clock = FakeClock()
    steps = Steps(Loop(of_results(False, False, None, False, None)), clock)
    taken = []
    for seconds in (0.0, 1.0, 2.0, 0.0, 1.0):
        clock.advance(seconds)
        taken.append(steps.take())
    assert taken == [False, False, True, False, True]


def test_a_step_that_waits_for_a_compiler_has_not_failed_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    def step() -> None:
        if not waits():  # within a step nobody waits
            raise NotCompiledError("the planner is being compiled")

    clock = FakeClock()
    steps = Steps(Loop(step), clock)
    with caplog.at_level("INFO"):
        for _ in range(3):
            assert not steps.take()
            clock.advance(10.0)
    assert steps.heartbeat.failed_steps == 0
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("INFO", f"{steps.controller.name} waits: the planner is being compiled")
    ]


def test_a_step_that_hangs_is_stuck_and_ends_within_its_deadline() -> None:
    clock, begun, end = FakeClock(), Event(), Event()

    def hang() -> None:
        begun.set()
        assert end.wait(AMPLE_SECONDS)

    loop = Loop(hang)
    loop.heartbeat = Heartbeat("a loop", 60.0, clock)
    runner = Runner()
    runner.add(loop)
    runner.start()
    assert begun.wait(AMPLE_SECONDS)
    assert runner.stuck == ""
    clock.advance(60)
    assert runner.stuck == "a loop makes no progress: in the middle of its step for 60 s"
    assert runner.status()["loops"] == {"a loop": "in the middle of its step for 60 s"}
    runner.stop(0)
    end.set()
    runner.stop(30)
    assert runner.stuck == ""


def test_whoever_is_woken_steps_at_once() -> None:
    stepped = Event()
    loop = Loop(stepped.set)
    loop.every_seconds, loop.wake = 1000.0, Event()
    runner = Runner()
    runner.add(loop)
    runner.start()
    loop.wake.set()
    assert stepped.wait(AMPLE_SECONDS)
    runner.stop(0)
    loop.wake.set()
    runner.stop(30)


def test_what_is_added_later_is_shown_at_once_and_started_with_the_rest() -> None:
    first, second = Event(), Event()

    class Shown(Loop):
        name = "shown"

        def status(self) -> dict[str, int]:
            return {"shown": 1}

        def pages(self) -> dict[str, JsonPage]:
            return {"/shown": JsonPage(dict)}

    runner = Runner()
    runner.add(Loop(first.set))
    runner.start()
    assert first.wait(AMPLE_SECONDS)
    runner.add(Shown(second.set))
    assert (runner.status()["shown"], list(runner.pages())) == (1, ["/shown"])
    assert not second.is_set()
    runner.start()
    assert second.wait(AMPLE_SECONDS)
    runner.stop(30)


def test_what_waits_to_be_woken_ends_at_once() -> None:
    stepped = Event()
    loop = Loop(stepped.set)
    loop.every_seconds, loop.wake = 10 * AMPLE_SECONDS, Event()
    runner = Runner()
    runner.add(loop)
    runner.start()
    assert stepped.wait(AMPLE_SECONDS)
    runner.stop(AMPLE_SECONDS)
    assert not runner._threads[0]._thread.is_alive()


def test_nothing_starts_after_the_end() -> None:
    stepped = Event()
    runner = Runner()
    runner.stop(0)
    runner.add(Loop(stepped.set))
    runner.start()
    assert not stepped.wait(0.05)


def test_metrics_tell_of_each_loop() -> None:
    clock = FakeClock()

    def step() -> bool:
        clock.advance(0.7)
        return False

    loop = Loop(step)
    loop.heartbeat = Heartbeat("a loop", clock=clock)
    runner = Runner(clock, any_clock(lambda: 1000.0))
    runner.add(loop)
    runner._threads[0].steps.take()
    clock.advance(12.5)
    lines = Metrics(runner.collectors).exposition()[1].decode().splitlines()
    assert {
        'cagrpc_loop_last_step_timestamp_seconds{loop="a loop"} 987.5',
        'cagrpc_loop_failed_steps_total{loop="a loop"} 1.0',
        'cagrpc_loop_step_duration_seconds_bucket{le="0.5",loop="a loop"} 0.0',
        'cagrpc_loop_step_duration_seconds_bucket{le="1.0",loop="a loop"} 1.0',
    } <= {*lines}


def test_a_step_takes_the_cpu_of_its_thread_whatever_it_comes_to() -> None:
    used = iter((1.0, 1.25, 8.0, 8.5))
    times = StepTimes(FakeClock(), lambda: next(used))
    with times.of("a loop"):
        pass
    with pytest.raises(ValueError, match="broken"), times.of("a loop"):
        raise ValueError("broken")
    lines = Metrics(times.collectors).exposition()[1].decode().splitlines()
    assert 'cagrpc_loop_cpu_seconds_total{loop="a loop"} 0.75' in lines
