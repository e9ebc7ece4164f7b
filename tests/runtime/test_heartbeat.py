"""A step that does nothing new for its patience is stuck, and at what is told; a slow one is not."""

from __future__ import annotations

from threading import Event, Thread

from cagrpc.kube.client.parallel import in_parallel
from cagrpc.runtime import heartbeat
from cagrpc.runtime.heartbeat import Heartbeat
from tests.support.fleet import FakeClock
from tests.support.scripted_api import ScriptedAnswer, fake_api
from tests.support.waiting import AMPLE_SECONDS


def test_what_does_nothing_new_is_stuck_from_its_patience_on_until_it_does() -> None:
    clock = FakeClock()
    beating = Heartbeat("the loop", 300.0, clock)
    clock.advance(10_000)
    assert (beating.problem, beating.doing, beating.seconds_since_step) == ("", "", 10_000)
    with beating.step():
        clock.advance(299)
        assert beating.problem == ""
        clock.advance(1)
        assert beating.problem == "the loop makes no progress: in the middle of its step for 300 s"
        heartbeat.beat("list pods")
        assert (beating.problem, beating.doing) == ("", "in the middle of list pods for 0 s")
        clock.advance(300)
        assert "list pods for 300 s" in beating.problem
    assert (beating.problem, beating.seconds_since_step) == ("", 0)
    heartbeat.beat("what is no step")
    assert beating.doing == ""


def test_many_slow_requests_are_progress_also_side_by_side() -> None:
    clock = FakeClock()
    beating = Heartbeat("the loop", 300.0, clock)
    seen: list[str] = []

    def ask(_: int) -> None:
        client.get("/api/v1/nodes/n")
        seen.append(beating.doing)

    with fake_api(*(ScriptedAnswer(b"{}") for _ in range(4))) as api, beating.step():
        client = api.client()
        for number in range(2):
            clock.advance(200)
            ask(number)
        in_parallel("test", ask, range(2), 2)
        client.close()
    assert seen == ["in the middle of get nodes n for 0 s"] * 4


def test_each_thread_has_its_own_step() -> None:
    clock = FakeClock()
    first, second = Heartbeat("first", 300.0, clock), Heartbeat("second", 300.0, clock)
    begun, end = Event(), Event()

    def hang() -> None:
        with first.step():
            begun.set()
            assert end.wait(AMPLE_SECONDS)

    thread = Thread(target=hang)
    thread.start()
    assert begun.wait(AMPLE_SECONDS)
    clock.advance(300)
    with second.step():
        heartbeat.beat("something")
    assert (bool(first.problem), second.problem) == (True, "")
    end.set()
    thread.join(AMPLE_SECONDS)
    assert first.problem == ""
