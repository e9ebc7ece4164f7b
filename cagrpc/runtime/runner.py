"""Runs controllers: a thread for the steps of each, back-off after failures, the same problem logged once, health,
`/status`, metrics, and an end with a deadline. What they do is their own business."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from cagrpc.errors import CagrpcError, StillStarting
from cagrpc.runtime.back_off import Retry
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from cagrpc.runtime.controller import Controller, JsonPage, described
from cagrpc.runtime.health import SyncedResource, not_followed, still_to_come, unreadable
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.runtime.log_once import LogOnce
from cagrpc.runtime.metrics import AtScrape, gauges
from cagrpc.runtime.stopping import STOP_SECONDS, stop_all
from solver.compiled import not_waiting
from solver.model.errors import NotCompiledError
from solver.model.quantities import pluralize

_log = logging.getLogger(__name__)

WOKEN_SECONDS = 0.02
"""What comes together is done together: at least so long between two steps, however often a controller is woken."""


class Runner:
    """Controllers of one process, from when each is added. Those of a standby are added when the process begins, those
    of the leader once it leads."""

    def __init__(self, clock: MonotonicClock = monotonic, now: EpochClock = epoch) -> None:
        self._clock = clock
        self._now = now
        self._took = StepTimes(clock)
        self._threads: tuple[_StepThread, ...] = ()
        self._started = 0
        self._stopped = False

    def add(self, *controllers: Controller) -> None:
        """Show what they have to show from now on; `start` starts them."""
        self._threads += tuple(_StepThread(each, self._clock, self._took) for each in controllers)

    @property
    def controllers(self) -> tuple[Controller, ...]:
        """Return all that were added, in that order."""
        return tuple(each.steps.controller for each in self._threads)

    def start(self) -> None:
        """Start those that were added since the last call; nothing once all were stopped."""
        if self._stopped:
            return
        new, self._started = self._threads[self._started :], len(self._threads)
        for each in new:
            each.steps.controller.start()
        for each in new:
            each.start()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Begin no further step; wait at most so long for what is under way, all together. May be repeated."""
        self._stopped = True
        threads = self._threads
        stop_all([*(each.steps.controller.stop for each in threads), *(each.stop for each in threads)], wait_seconds)

    # ---- what it shows

    @property
    def stuck(self) -> str:
        """Return what does not go on; empty where all does."""
        of_queues = (
            each for controller in self.controllers for queue in controller.queues() for each in queue.heartbeats
        )
        return "; ".join(each.problem for each in (*self._heartbeats(), *of_queues) if each.problem)

    def informers(self) -> tuple[SyncedResource, ...]:
        """Return all that is followed."""
        return tuple(each for controller in self.controllers for each in controller.informers())

    def still_to_come(self) -> str:
        """Return why not all that controllers work on is known yet; empty once it is."""
        why_not = (each.still_to_come() for each in self.controllers)
        return still_to_come(self.informers()) or next(filter(None, why_not), "")

    def status(self) -> Mapping[str, Any]:
        """Return the members of `/status`."""
        informers = self.informers()
        members: dict[str, Any] = {}
        for each in self.controllers:
            members |= each.status()
        return {
            **members,
            "not_followed": not_followed(informers),
            "left_out": {name: count for name, count in unreadable(informers).items() if count},
            "loops": {each.name: _progress(each) for each in self._heartbeats()},
        }

    def pages(self) -> Mapping[str, JsonPage]:
        """Return the controllers' pages, by path."""
        return {path: page for controller in self.controllers for path, page in controller.pages().items()}

    def collectors(self) -> tuple[Collector, ...]:
        """Return the metrics of controllers as such, and those that each brings."""
        own = AtScrape(self._metrics), *self._took.collectors()
        return (*own, *(each for controller in self.controllers for each in controller.collectors()))

    def _metrics(self) -> Iterator[Metric]:
        informers, loops, now = self.informers(), self._heartbeats(), self._now()
        yield gauges(
            "cagrpc_unreadable_objects",
            "Objects of the cluster that cannot be read and are left out, by resource.",
            ("resource",),
            {(resource,): count for resource, count in sorted(unreadable(informers).items())},
        )
        stale = not_followed(informers)
        yield gauges(
            "cagrpc_resource_followed",
            "1 while changes of a resource of the cluster are seen.",
            ("resource",),
            {(each,): each not in stale for each in sorted({informer.name for informer in informers})},
        )
        yield gauges(
            "cagrpc_loop_last_step_timestamp_seconds",
            "When a loop finished its last step; the longest pause is 5 s, after failures 30 s.",
            ("loop",),
            {(loop.name,): now - loop.seconds_since_step for loop in loops},
        )
        failed = CounterMetricFamily(
            "cagrpc_loop_failed_steps", "Steps of loops that failed; each is tried again.", labels=("loop",)
        )
        for loop in loops:
            failed.add_metric((loop.name,), loop.failed_steps)
        yield failed

    def _heartbeats(self) -> list[Heartbeat]:
        return [each.steps.heartbeat for each in self._threads if each.steps.controller.every_seconds is not None]


_SECONDS_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Most steps find nothing to do; one that plans takes its budget, some seconds."""


class StepTimes:
    """How long steps took, and how much of a core: one that waits for others takes its time and no CPU."""

    def __init__(self, clock: MonotonicClock, cpu: Callable[[], float] = time.thread_time) -> None:
        """`cpu` returns the CPU seconds of the thread."""
        self._clock = clock
        self._thread_cpu = cpu
        self._seconds = Histogram(
            "cagrpc_loop_step_duration_seconds",
            "How long steps of loops took, failed or not.",
            ("loop",),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )
        self._cpu = Counter(
            "cagrpc_loop_cpu_seconds", "CPU of the threads of loops, in their steps.", ("loop",), registry=None
        )

    @contextmanager
    def of(self, loop: str) -> Iterator[None]:
        """Measure a step, on its thread."""
        began, used = self._clock(), self._thread_cpu()
        try:
            yield
        finally:
            self._seconds.labels(loop).observe(self._clock() - began)
            self._cpu.labels(loop).inc(self._thread_cpu() - used)

    def collectors(self) -> tuple[Collector, ...]:
        return self._seconds, self._cpu


STARTING_SECONDS = 10.0
"""For so long a controller that has never worked may fail without a warning."""
_OVER_SECONDS = 60.0
"""What has failed is logged anew once nothing has failed for so long: steps may fail and work in turn."""


class Steps:
    """The steps of one controller, one after the other: none before its back-off is over, and each with what it came
    to. For one thread."""

    def __init__(
        self, controller: Controller, clock: MonotonicClock = monotonic, took: StepTimes | None = None
    ) -> None:
        self.controller = controller
        self._took = took or StepTimes(clock)
        self.heartbeat = controller.heartbeat or Heartbeat(controller.name, controller.patience_seconds, clock)
        self._retry = Retry(controller.back_off, clock)
        self._reported = LogOnce()
        self._clock = clock
        self._starting_until: float | None = clock() + STARTING_SECONDS
        self._failed_at = float("-inf")

    def take(self) -> bool:
        """Take the next step, where it is time and the controller is not stopping. Whether nothing failed."""
        if self.controller.stopping or not self._retry.due:
            return True
        with self._took.of(self.heartbeat.name):
            worked = self._attempt()
        if worked:
            self._starting_until = None
        return worked

    def _attempt(self) -> bool:
        try:
            worked = self._worked()
        except (StillStarting, NotCompiledError) as error:  # another part is, and no step has failed
            if self._is_new(str(error)):
                _log.info("%s waits: %s", self.controller.name, error)
            self._retry.failed()
            return False
        if worked:
            self._retry.worked()
        else:
            self.heartbeat.failed_steps += 1
            self._retry.failed()
        return worked

    def _worked(self) -> bool:
        name = self.controller.name
        try:
            with self.heartbeat.step(), not_waiting():
                return self._step()
        except (StillStarting, NotCompiledError):
            raise
        except CagrpcError as error:
            # While a process starts, controllers wait for one another.
            starting = self._starting_until is not None and self._clock() < self._starting_until
            level = logging.INFO if starting else logging.WARNING
            if self._is_new((level, str(error))):
                _log.log(level, "%s failed and is tried again: %s", name, error)
            return False
        except Exception as error:  # noqa: BLE001 - logged, and tried again
            if self._is_new(repr(error)):
                _log.exception("%s failed unexpectedly and is tried again", name)
            return False

    def _step(self) -> bool:
        try:
            return self.controller.step() is not False
        except Exception as error:
            self.controller.waits_for = described(error)
            raise

    def _is_new(self, problem: Hashable) -> bool:
        """Return whether a failure is to be logged: once for each text, as long as steps go on failing."""
        now, before = self._clock(), self._failed_at
        self._failed_at = now
        if now >= before + _OVER_SECONDS:
            self._reported.all_over()
        return self._reported.is_new(problem, about=problem)


class _StepThread:
    def __init__(self, controller: Controller, clock: MonotonicClock, took: StepTimes) -> None:
        self.steps = Steps(controller, clock, took)
        self._stopping = threading.Event()
        # A daemon: a step that waits for what does not answer must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=controller.name, daemon=True)

    def start(self) -> None:
        if self.steps.controller.every_seconds is not None:
            self._thread.start()

    def stop(self, wait_seconds: float) -> None:
        self._stopping.set()
        if self.steps.controller.wake is not None:
            self.steps.controller.wake.set()
        if self._thread.is_alive():
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        while True:
            self.steps.take()
            if self._paused():
                return

    def _paused(self) -> bool:
        """Wait until the next step is to be taken. Whether none is."""
        controller = self.steps.controller
        if controller.wake is None:
            return self._stopping.wait(controller.every_seconds)
        controller.wake.wait(controller.every_seconds)
        controller.wake.clear()
        return self._stopping.wait(WOKEN_SECONDS)


def _progress(loop: Heartbeat) -> str:
    failed = f", {pluralize(loop.failed_steps, 'step')} failed" if loop.failed_steps else ""
    return (loop.doing or f"{loop.seconds_since_step:.1f} s since a step") + failed
