"""A sink has what the server has, whatever goes wrong between them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from threading import Event
from typing import Any

import pytest

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.envelopes import Encoding, ObjectIdentity
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource, UnreadableObjects
from tests.support.scripted_api import (
    FakeApi,
    ScriptedAnswer,
    changed,
    fake_api,
    gone_event,
    listed,
    pod,
    refused,
    watch_event,
    watched,
)
from tests.support.waiting import AMPLE_SECONDS

PODS = "/api/v1/pods"
TOO_LARGE = "ResourceVersionTooLarge"


class Kept:
    """What a sink has, name -> resource version, and how often it had to begin anew."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}
        self.lists = 0

    def replaced(self, objects: Iterable[tuple[str, str]]) -> None:
        self.lists += 1
        self.objects = dict(objects)

    def applied(self, obj: tuple[str, str]) -> None:
        self.objects[obj[0]] = obj[1]

    def deleted(self, of: ObjectIdentity) -> None:
        self.objects.pop(of.name, None)


def _decode(data: bytes) -> tuple[str, str]:
    found = kubernetes_pb2.Pod.FromString(data).metadata
    if "poison" in found.labels:
        raise _POISONS[found.labels["poison"]]
    return found.name, found.resourceVersion


_POISONS = {
    str(error): error
    for error in (InvalidInput("meant"), ValueError("digits"), KeyError("metadata"), RecursionError("deep"))
}


def _poisoned(name: str, version: str = "1", poison: str = "digits") -> kubernetes_pb2.Pod:
    found = pod(name, version)
    found.metadata.labels["poison"] = poison
    return found


def _decode_json(document: dict[str, Any]) -> tuple[str, str]:
    return document["metadata"]["name"], document["metadata"]["resourceVersion"]


def _follow(api: FakeApi, resource: Resource[tuple[str, str]] | None = None) -> tuple[Kept, Informer[Any], list[float]]:
    """Follow until all is said that the server has to say."""
    kept, pauses = Kept(), list[float]()

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return not api.answers

    client = api.client()
    informer = Informer(client, resource or Resource(PODS, _decode), kept, wait=wait, jitter=lambda: 1.0)
    informer.run()
    client.close()
    return kept, informer, pauses


def _watches(api: FakeApi) -> list[str]:
    """From which resource versions watches were begun."""
    return [request.query["resourceVersion"] for request in api.requests if "watch" in request.query]


def test_pages_are_listed_and_watched_from_the_first_ones_version() -> None:
    with fake_api(
        listed(pod("a"), pod("b"), version="7", token="more"),
        listed(pod("c"), version="7"),
        watched(
            changed("MODIFIED", pod("a", "8")), changed("DELETED", pod("b", "9")), changed("ADDED", pod("d", "10"))
        ),
    ) as api:
        kept, informer, _ = _follow(api)
    assert kept.objects == {"a": "8", "c": "1", "d": "10"}
    assert kept.lists == 1
    assert informer.synced
    first, second, watch, resumed = (request.query for request in api.requests)
    assert first == {"limit": "500"}
    assert second == {"limit": "500", "continue": "more"}
    assert watch == {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": "7", "timeoutSeconds": "600"}
    assert resumed["resourceVersion"] == "10"
    assert {request.headers["user-agent"] for request in api.requests} == {"cagrpc"}


def test_frames_may_be_cut_anywhere() -> None:
    events = changed("ADDED", pod("a", "2")) + changed("ADDED", pod("b", "3"))
    with fake_api(listed(version="1"), watched(*(events[i : i + 1] for i in range(len(events))))) as api:
        kept, *_ = _follow(api)
    assert kept.objects == {"a": "2", "b": "3"}


def test_a_watch_cut_within_a_frame_is_resumed_from_what_was_seen() -> None:
    last = changed("ADDED", pod("b", "3"))
    with fake_api(
        listed(version="1"),
        watched(changed("ADDED", pod("a", "2")), last[:20], cut=True),
        watched(last),
    ) as api:
        kept, *_ = _follow(api)
    assert kept.objects == {"a": "2", "b": "3"}
    assert kept.lists == 1
    assert _watches(api) == ["1", "2", "3"]


def test_bookmarks_move_the_place_to_resume_from() -> None:
    with fake_api(
        listed(pod("a"), version="1"), watched(watch_event("BOOKMARK", pod("", "50").SerializeToString()))
    ) as api:
        kept, *_ = _follow(api)
    assert kept.objects == {"a": "1"}
    assert _watches(api) == ["1", "50"]


def test_events_that_come_twice_change_nothing() -> None:
    again = changed("ADDED", pod("a", "2")), changed("DELETED", pod("b", "3"))
    with fake_api(listed(pod("b"), version="1"), watched(*again, *again)) as api:
        kept, *_ = _follow(api)
    assert kept.objects == {"a": "2"}


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(refused(410), id="JSON"),
        pytest.param(refused(410, protobuf=True), id="protobuf"),
        pytest.param(watched(gone_event()), id="event"),
        pytest.param(refused(504, cause=TOO_LARGE), id="of the future, JSON"),
        pytest.param(refused(504, cause=TOO_LARGE, protobuf=True), id="of the future, protobuf"),
    ],
)
def test_a_watch_from_a_version_that_the_server_does_not_have_is_listed_again_at_once(end: ScriptedAnswer) -> None:
    with fake_api(
        listed(pod("a"), pod("b"), version="1"),
        end,
        listed(pod("b", "8"), version="9"),
        watched(changed("ADDED", pod("c", "10"))),
    ) as api:
        kept, _, pauses = _follow(api)
    assert kept.objects == {"b": "8", "c": "10"}
    assert kept.lists == 2
    assert _watches(api) == ["1", "9", "10"]
    assert len(pauses) == 1  # after the last answer


def test_a_list_that_takes_too_long_is_begun_anew_in_larger_pages() -> None:
    with fake_api(
        listed(pod("a"), version="1", token="more"),
        refused(410, protobuf=True),
        listed(pod("b"), version="2", token="more"),
        refused(410),
        listed(pod("c"), version="3", token="more"),
        listed(pod("d"), version="3"),
        watched(changed("ADDED", pod("e", "4"))),
        refused(410),
        listed(pod("f"), version="5"),
    ) as api:
        kept, *_ = _follow(api)
    lists = [request.query for request in api.requests if "watch" not in request.query]
    assert [query["limit"] for query in lists] == ["500", "500", "1000", "1000", "2000", "2000", "500"]
    assert kept.objects == {"f": "1"}


def test_a_server_in_trouble_is_asked_less_and_less_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO),
        fake_api(
            refused(500),
            refused(503),
            refused(500),
            listed(pod("a"), version="1"),
            watched(changed("ADDED", pod("b", "2"))),
        ) as api,
    ):
        kept, informer, pauses = _follow(api)
    assert kept.objects == {"a": "1", "b": "2"}
    assert pauses == [0.5, 1.0, 2.0, 0.5]
    assert informer.problem  # of the 500 after all was said
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


def test_pauses_have_a_longest() -> None:
    with fake_api(*[refused(500)] * 12) as api:
        _, informer, pauses = _follow(api)
    assert pauses[-4:] == [30.0] * 4
    assert not informer.synced
    assert "list pods" in str(informer.problem)


def test_a_right_that_is_missing_is_named() -> None:
    with fake_api(refused(403, 'pods is forbidden: User "u" cannot list resource "pods"')) as api:
        client = api.client()
        informer = Informer(client, Resource(PODS, _decode), Kept(), wait=lambda _: True)
        informer.run()
        client.close()
    assert "the right to list pods is missing" in str(informer.problem)


def test_watches_that_bring_nothing_end_in_a_new_list() -> None:
    """As when the server's storage was put back to an earlier day, and it does not know our version yet."""
    with fake_api(
        listed(pod("a"), version="900"), watched(), watched(), watched(cut=True), listed(pod("b"), version="20")
    ) as api:
        kept, _, pauses = _follow(api)
    assert kept.objects == {"b": "1"}
    assert _watches(api)[:3] == ["900"] * 3
    assert all(pauses)


@pytest.mark.parametrize(("now", "lists"), [("40", 2), ("900", 1), ("1000", 1), ("", 1), ("of another kind", 1)])
def test_a_server_that_was_restored_from_an_older_backup_is_listed_again_at_once(now: str, lists: int) -> None:
    """Its versions come again: it would tell nothing until it has come to ours, and never what happened before."""
    with fake_api(
        listed(pod("a"), version="900"), watched(cut=True), *([listed(pod("b"), version="40")] if lists == 2 else [])
    ) as api:
        api.version = now
        kept, _, _ = _follow(api)
    assert kept.lists == lists
    assert kept.objects == ({"b": "1"} if lists == 2 else {"a": "1"})
    assert set(_watches(api)) == ({"900", "40"} if lists == 2 else {"900"})


def test_a_quiet_kind_is_watched_on_without_a_pause_and_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cagrpc.kube.client.client._SILENCE_SECONDS", 1.0)
    monkeypatch.setattr("cagrpc.kube.informer.informers._SILENT_WATCHES", 2)
    end = Event()
    quiet = ScriptedAnswer(chunks=(), until=end)
    with fake_api(listed(version="1"), quiet, quiet, listed(pod("a", "5"), version="5")) as api:
        kept, _, pauses = _follow(api)
        end.set()
    assert _watches(api) == ["1", "1", "5"]
    assert kept.objects == {"a": "5"}  # listed again: the server may not have known the version
    assert pauses[0] < 0.5
    assert "timed out" not in caplog.text


@pytest.mark.parametrize("poison", sorted(_POISONS))
def test_no_object_can_fail_a_list_or_a_watch(poison: str, caplog: pytest.LogCaptureFixture) -> None:
    with fake_api(
        listed(_poisoned("p", poison=poison), pod("a"), version="1"),
        watched(changed("ADDED", _poisoned("q", "2", poison)), changed("ADDED", pod("b", "3"))),
    ) as api:
        kept, informer, _ = _follow(api)
    assert kept.objects == {"a": "1", "b": "3"}
    assert informer.synced
    assert (kept.lists, len(informer.undecoded)) == (1, 2)
    assert _watches(api) == ["1", "3"]
    assert caplog.text.count("default/p is left out") == caplog.text.count("default/q is left out") == 1


@pytest.mark.parametrize("change", ["MODIFIED", "DELETED"])
def test_an_object_that_changes_and_cannot_be_read_is_not_there_and_nothing_is_listed_again(change: str) -> None:
    flips = [
        changed(kind, found)
        for version in range(2, 40, 2)
        for kind, found in (
            (change, _poisoned("a", str(version))),
            ("ADDED" if change == "DELETED" else "MODIFIED", pod("a", str(version + 1))),
        )
    ]
    with fake_api(
        listed(pod("a"), pod("b"), version="1"), watched(*flips, changed(change, _poisoned("a", "90")))
    ) as api:
        kept, informer, _ = _follow(api)
    assert kept.objects == {"b": "1"}
    assert kept.lists == 1
    assert _watches(api) == ["1", "90"]
    assert len(informer.undecoded) == (change == "MODIFIED")


def test_what_is_left_out_is_told_once_and_counted_while_it_is_there(caplog: pytest.LogCaptureFixture) -> None:
    with fake_api(
        listed(_poisoned("p"), _poisoned("q"), version="1"),
        refused(410),
        listed(_poisoned("p"), pod("q"), version="2"),
        watched(changed("MODIFIED", _poisoned("q", "3"))),
    ) as api:
        _, informer, _ = _follow(api)
    assert len(informer.undecoded) == 2
    assert caplog.text.count("p is left out") == caplog.text.count("q is left out") == 1
    with fake_api(listed(_poisoned("p"), version="1"), watched(changed("DELETED", _poisoned("p", "2")))) as api:
        _, informer, _ = _follow(api)
    assert len(informer.undecoded) == 0


def test_a_change_of_which_nothing_can_be_read_is_listed_again_less_and_less(caplog: pytest.LogCaptureFixture) -> None:
    garbage = watched(changed("ADDED", pod("b", "2")), watch_event("MODIFIED", b"\xff"))
    with fake_api(
        listed(pod("a"), version="1"),
        garbage,
        listed(pod("b", "2"), version="3"),
        garbage,
        listed(pod("b", "2"), version="4"),
        watched(changed("MODIFIED", pod("b", "5"))),
    ) as api:
        kept, _, pauses = _follow(api)
    assert kept.objects == {"b": "5"}
    assert kept.lists == 3
    assert pauses[:2] == [0.5, 1.0]
    assert caplog.text.count("listing again") == 1


def test_who_makes_any_number_of_bad_objects_fills_neither_log_nor_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cagrpc.kube.informer.resource._MOST_KNOWN", 5)
    found = UnreadableObjects[int]("pods")
    for number in range(100):
        found.add(number, InvalidInput("x" * 10_000))
    assert len(found) == len(found._logged) == len(caplog.records) == 5
    assert max(len(record.getMessage()) for record in caplog.records) < 400
    found.only({1})
    found.add(101, InvalidInput("x"))
    assert (len(found), len(caplog.records)) == (2, 6)


def test_a_sink_that_fails_gets_everything_anew(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Kept):
        def applied(self, obj: tuple[str, str]) -> None:
            raise RuntimeError("a mistake")

    with fake_api(
        listed(version="1"), watched(changed("ADDED", pod("a", "2"))), listed(pod("a", "2"), version="2")
    ) as api:
        client, kept = api.client(), Failing()
        Informer(client, Resource(PODS, _decode), kept, wait=lambda _: not api.answers).run()
        client.close()
    assert kept.objects == {"a": "2"}
    assert "a mistake" in caplog.text


def test_custom_resources_come_as_json() -> None:
    first = {"metadata": {"name": "a", "resourceVersion": "1"}}
    second = {"metadata": {"name": "b", "resourceVersion": "2"}}
    events = [
        b'{"type":"ADDED","object":{"metadata":{"name":"b","resourceVersion":"2"}}}\n{"type":"BOOK',
        b'MARK","object":{"metadata":{"resourceVersion":"9"}}}\n',
        b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}\n',
    ]
    with fake_api(
        ScriptedAnswer(_json_list([first], "1")), watched(*events), ScriptedAnswer(_json_list([first, second], "11"))
    ) as api:
        resource = Resource("/apis/cagrpc.io/v1alpha1/plans", _decode_json, Encoding.JSON)
        kept, *_ = _follow(api, resource)
    assert kept.objects == {"a": "1", "b": "2"}
    assert _watches(api) == ["1", "11"]
    assert {request.headers["accept"] for request in api.requests} == {"application/json"}


@pytest.mark.parametrize("poison", ["[" * 5_000 + "]" * 5_000, "9" * 5_000], ids=["deep", "digits"])
def test_no_json_can_fail_a_list_or_a_watch(poison: str) -> None:
    """As a kind with free fields can have it."""
    bad = f'{{"metadata": {{"name": "p", "resourceVersion": "2", "free": {poison}}}}}'
    good = '{"metadata": {"name": "a", "resourceVersion": "1"}}'
    page = f'{{"metadata": {{"resourceVersion": "3"}}, "items": [{bad}, {good}]}}'
    event = b'{"type": "MODIFIED", "object": %s}\n' % bad.replace('"2"', '"4"').encode()
    with fake_api(ScriptedAnswer(page.encode()), watched(event)) as api:
        kept, informer, _ = _follow(api, Resource("/apis/x.io/v1/things", _decode_json, Encoding.JSON))
    assert kept.objects == {"a": "1", "p": "4"}
    assert kept.lists == 1
    assert informer.synced


def _json_list(items: list[Any], version: str) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": version}, "items": items}).encode()


def test_a_kind_that_the_cluster_does_not_know_is_none_of_it_and_asked_for_later() -> None:
    with fake_api(ScriptedAnswer(b"404 page not found", 404), ScriptedAnswer(_json_list([], "5"))) as api:
        resource = Resource("/apis/x.io/v1/things", _decode_json, Encoding.JSON, optional=True)
        kept, informer, pauses = _follow(api, resource)
    assert pauses[0] == 60.0
    assert informer.synced
    assert kept.lists == 2


def test_stopping_ends_a_watch_that_waits() -> None:
    seen, end = Event(), Event()

    class Telling(Kept):
        def applied(self, obj: tuple[str, str]) -> None:
            seen.set()

    with fake_api(listed(version="1"), ScriptedAnswer(chunks=[changed("ADDED", pod("a", "2"))], until=end)) as api:
        client = api.client()
        informer = Informer(client, Resource(PODS, _decode), Telling())
        informer.start()
        assert seen.wait(AMPLE_SECONDS)
        informer.stop()
        assert "informer-pods" not in [thread.name for thread in threading.enumerate()]
        informer.stop()
        end.set()
        client.close()
    assert informer.problem is None
