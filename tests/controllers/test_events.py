"""Events on objects: what is written, how often, and that writing them blocks nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.cluster.state import PodRef
from cagrpc.controllers.events import EventRecorder, EventSource, Note, ObjectRef, Rate, pod_object
from tests.support.fleet import FakeClock


class ScriptedWriter:
    """An API server that keeps Events."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.trouble: errors.CagrpcError | None = None

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._call(f"POST {path}")
        self.events[f"{path}/{body['metadata']['name']}"] = dict(body)
        return dict(body)

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        self._call(f"PATCH {path}")
        if path not in self.events:
            raise errors.NotFound(path)
        self.events[path].update(body)
        return self.events[path]

    def _call(self, call: str) -> None:
        self.calls.append(call)
        if self.trouble is not None:
            raise self.trouble


def _note(number: int, text: str, reason: str = "NotPlanned") -> Note:
    pod = PodRef(f"uid-{number}", "shop", f"web-{number}")
    return Note(pod_object(pod), reason, text)


def _events(writer: Any, clock: FakeClock, **options: Any) -> EventRecorder:
    return EventRecorder(writer, EventSource("cagrpc.io/planner", "Planning"), clock=clock, **options)


@pytest.fixture
def writer() -> ScriptedWriter:
    return ScriptedWriter()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000.25)


def test_an_event_says_which_pod_and_why(writer: Any, clock: FakeClock) -> None:
    events = EventRecorder(writer, EventSource("cagrpc.io/planner", "Planning", "cagrpc-0"), clock=clock)
    events.event(_note(1, "no node group fits"))
    assert events.write_due() == 1
    ((path, event),) = writer.events.items()
    assert path.startswith("/apis/events.k8s.io/v1/namespaces/shop/events/web-1.")
    del event["metadata"]
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2023-11-14T22:13:20.250000Z",
        "type": "Warning",
        "reason": "NotPlanned",
        "action": "Planning",
        "note": "no node group fits",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-1", "uid": "uid-1"},
        "reportingController": "cagrpc.io/planner",
        "reportingInstance": "cagrpc-0",
    }


@pytest.mark.parametrize("namespace", ["shop", ""])
def test_an_event_on_any_object_is_found_with_it(writer: Any, clock: FakeClock, namespace: str) -> None:
    about = ObjectRef("cagrpc.io/v1alpha1", "ProvisioningClass", namespace, "gold", "uid-9")
    events = EventRecorder(writer, EventSource("cagrpc.io/requests", "Provisioning"), clock=clock)
    events.event(Note(about, "Accepted", "ready in about 60 s"))
    assert events.write_due() == 1
    ((path, event),) = writer.events.items()
    assert path.startswith(f"/apis/events.k8s.io/v1/namespaces/{namespace or 'default'}/events/gold.")
    assert event["metadata"]["namespace"] == (namespace or "default")
    regarding = {"apiVersion": "cagrpc.io/v1alpha1", "kind": "ProvisioningClass", "name": "gold", "uid": "uid-9"}
    assert event["regarding"] == ({**regarding, "namespace": namespace} if namespace else regarding)
    assert (event["type"], event["reason"], event["action"]) == ("Normal", "Accepted", "Provisioning")
    assert event["reportingController"] == "cagrpc.io/requests"


def test_the_same_event_is_written_every_five_minutes_at_most_and_then_as_a_series(
    writer: Any, clock: FakeClock
) -> None:
    events = _events(writer, clock)
    for _ in range(60):
        events.event(_note(1, "no room"))
        events.write_due()
        clock.advance(10)
    assert [call.split()[0] for call in writer.calls] == ["POST", "PATCH"]
    (event,) = writer.events.values()
    assert event["series"] == {"count": 2, "lastObservedTime": "2023-11-14T22:18:20.250000Z"}


def test_a_warning_in_which_only_counts_have_changed_is_written_once_in_five_minutes_and_then_as_it_is(
    writer: Any, clock: FakeClock
) -> None:
    events = _events(writer, clock)
    for number in range(60):
        events.event(_note(1, f"{number} of 60 pods fit now: node group g-{number // 50} is at its maximum size 9"))
        events.write_due()
        clock.advance(10)
    assert [event["note"] for event in writer.events.values()] == [
        "0 of 60 pods fit now: node group g-0 is at its maximum size 9",
        "30 of 60 pods fit now: node group g-0 is at its maximum size 9",
        "50 of 60 pods fit now: node group g-1 is at its maximum size 9",
    ]


def test_other_increments_and_other_times_are_news(writer: Any, clock: FakeClock) -> None:
    events = _events(writer, clock)
    for note in (
        _note(1, "increment 12345678: a+1", "Planned"),
        _note(1, "increment 87654321: a+1", "Planned"),
        _note(1, "backed off after a shortage: a until 2026-11-23T12:00:00Z"),
        _note(1, "backed off after a shortage: a until 2026-11-23T12:05:00Z"),
    ):
        events.event(note)
        events.write_due()
    assert len(writer.events) == 4


def test_an_event_that_has_expired_is_made_anew(writer: Any, clock: FakeClock) -> None:
    events = _events(writer, clock)
    events.event(_note(1, "no room"))
    events.write_due()
    writer.events.clear()
    clock.advance(4000)
    events.event(_note(1, "no room"))
    events.write_due()
    assert [call.split()[0] for call in writer.calls] == ["POST", "PATCH", "POST"]


def test_news_about_a_pod_replaces_what_was_not_yet_written(writer: Any, clock: FakeClock) -> None:
    events = _events(writer, clock)
    events.event(_note(1, "no room"))
    events.event(_note(1, "a limit"))
    events.event(_note(1, "increment x", "Planned"))
    events.write_due()
    assert [event["note"] for event in writer.events.values()] == ["a limit", "increment x"]


def test_events_on_many_pods_are_written_at_a_limited_rate(writer: Any, clock: FakeClock) -> None:
    events = _events(writer, clock, rate=Rate(per_second=10, burst=20), most_queued=130)
    for number in range(10_000):
        events.event(_note(number, "no room"))
    assert events.write_due() == 20
    for _ in range(10):
        clock.advance(1)
        assert events.write_due() == 10
    clock.advance(3600)
    assert events.write_due() == 10
    assert len(writer.events) == 130


def test_a_warning_that_no_longer_holds_is_not_written(writer: Any, clock: FakeClock) -> None:
    events = _events(writer, clock, still_so=lambda note: note.about.uid == "uid-2", rate=Rate(1, 1))
    for number in (1, 2):
        events.event(_note(number, "no room"))
    assert events.write_due() == 1
    assert [event["regarding"]["uid"] for event in writer.events.values()] == ["uid-2"]


def test_an_unreachable_api_server_is_no_error_and_logged_once(
    writer: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    events = _events(writer, clock)
    writer.trouble = errors.Unavailable("the API server does not answer")
    for number in range(5):
        events.event(_note(number, "no room"))
        assert events.write_due() == 0
    assert len(caplog.records) == 1
    writer.trouble = None
    events.event(_note(9, "no room"))
    assert events.write_due() == 1


def test_long_notes_and_names_fit_what_the_api_server_takes(writer: Any, clock: FakeClock) -> None:
    events = _events(writer, clock)
    about = pod_object(PodRef("uid", "shop", "x" * 229 + "-" + "y" * 20))
    events.event(Note(about, "NotPlanned", "é" * 2000))
    events.write_due()
    (event,) = writer.events.values()
    assert len(event["note"].encode()) <= 1024
    name = event["metadata"]["name"]
    assert len(name) <= 253
    assert "-." not in name


def test_the_increment_and_the_round_that_it_is_about_are_labels(writer: Any, clock: FakeClock) -> None:
    events = _events(writer, clock)
    events.event(replace(_note(1, "increment 3f9a: 2 x a", "Planned"), increment="3f9a", plan="9d02"))
    events.event(replace(_note(2, "no room"), plan="9d02"))
    events.event(_note(3, "no room"))
    assert events.write_due() == 3
    found = [each["metadata"].get("labels") for each in writer.events.values()]
    assert found == [{"cagrpc.io/increment": "3f9a", "cagrpc.io/plan": "9d02"}, {"cagrpc.io/plan": "9d02"}, None]


def test_a_slow_api_server_keeps_no_step_for_long(clock: FakeClock) -> None:
    class Slow(ScriptedWriter):
        def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
            clock.advance(0.2)
            return super().create(path, body)

    writer = Slow()
    events = _events(writer, clock)
    for number in range(10):
        events.event(_note(number, "no node group fits"))
    assert [events.write_due() for _ in range(4)] == [3, 3, 3, 1]
    assert len(writer.events) == 10
