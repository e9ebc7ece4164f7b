"""Objects of an informer together with our own writes, in any order in which the watch and the answers may come."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.kube.informer.written import WrittenObjects
from tests.support.fleet import FakeClock


def an_object(name: str = "a", version: int = 1, uid: str = "u", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version), **metadata}}


def gone(name: str = "a", uid: str = "u") -> ObjectIdentity:
    return ObjectIdentity(uid, "", name)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def objects(clock: FakeClock) -> WrittenObjects:
    return WrittenObjects(clock)


def test_a_write_is_there_before_the_watch_shows_it(objects: WrittenObjects) -> None:
    objects.wrote(an_object())
    assert objects.current() == {"a": an_object()}
    objects.replaced([])  # a list that was begun before
    assert objects.current() == {"a": an_object()}


def test_the_newer_of_both_is_taken(objects: WrittenObjects) -> None:
    objects.wrote(an_object(version=5))
    objects.applied(an_object(version=4))
    assert objects.current() == {"a": an_object(version=5)}
    objects.applied(an_object(version=6))
    assert objects.current() == {"a": an_object(version=6)}
    objects.wrote(an_object(version=5))  # an answer that comes late
    assert objects.current() == {"a": an_object(version=6)}


def test_an_answer_revives_nothing_that_is_gone(objects: WrittenObjects) -> None:
    objects.applied(an_object())
    objects.deleted(gone())
    objects.wrote(an_object())
    assert objects.current() == {}
    objects.wrote(an_object(uid="another", version=9))
    assert objects.current() == {"a": an_object(uid="another", version=9)}


def test_the_end_of_an_earlier_object_leaves_its_successor(objects: WrittenObjects) -> None:
    objects.applied(an_object(uid="new", version=9))
    objects.deleted(gone(uid="old"))
    assert objects.current() == {"a": an_object(uid="new", version=9)}


def test_an_accepted_deletion_shows_at_once(objects: WrittenObjects) -> None:
    objects.applied(an_object())
    objects.asked_to_delete(an_object())
    (found,) = objects.current().values()
    assert found["metadata"]["deletionTimestamp"]
    objects.applied(an_object(version=2, deletionTimestamp="2026-11-01T00:00:00Z"))
    assert objects.current() == {"a": an_object(version=2, deletionTimestamp="2026-11-01T00:00:00Z")}
    objects.deleted(gone())
    assert objects.current() == {}


def test_what_no_watch_ever_shows_is_forgotten(objects: WrittenObjects, clock: FakeClock) -> None:
    objects.applied(an_object("stays"))
    objects.asked_to_delete(an_object("stays"))
    objects.wrote(an_object("lost", uid="v"))
    clock.advance(31)
    assert objects.current() == {"stays": an_object("stays")}
