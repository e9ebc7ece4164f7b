"""The custom resources that an earlier release wrote are read and finished by this one: also an Increment and a page
that are behind the root, which carries what they lack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cagrpc.fleet.records import Changes
from cagrpc.kube.journal import objects
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.journal.objects import FLEET_RECORDS, INCREMENTS
from tests.support.api_server import ApiServer, api_server
from tests.support.recorded_journals import as_recorded, check_reads_and_finishes, recorded


@pytest.fixture
def store() -> Iterator[ApiServer]:
    with api_server(INCREMENTS, FLEET_RECORDS) as made:
        for path, found in recorded("objects").items():
            made.put(path, found)
        yield made


def opened(store: ApiServer) -> ClusterJournal:
    return ClusterJournal(store.client(), "new", namespace="cagrpc")


def by_text(values: list[Any]) -> list[str]:
    return sorted(json.dumps(value, sort_keys=True) for value in values)


def test_the_objects_are_read_as_they_were_and_made_good(store: ApiServer) -> None:
    journal = opened(store)
    contents = journal.read()
    expected = recorded("records")
    assert {key: by_text(values) for key, values in as_recorded(contents).items()} == {
        key: by_text(values) for key, values in expected.items()
    }
    assert list(contents.increments) == [each["id"] for each in expected["increments"]]
    journal.commit(Changes())
    assert as_recorded(opened(store).read()) == as_recorded(contents)
    root = objects.unpack(store.objects[f"{FLEET_RECORDS}/journal"]["spec"]["content"])
    assert not any(root["pending"].values())


def test_an_increment_object_is_written_as_it_was(store: ApiServer) -> None:
    for path, found in recorded("objects").items():
        if path.startswith(INCREMENTS):
            body = objects.increment_body(objects.increment_from(found))
            assert body["spec"] == found["spec"]
            assert objects.unpack(body["status"]["content"]) == objects.unpack(found["status"]["content"])


def test_the_objects_are_finished(store: ApiServer) -> None:
    check_reads_and_finishes(opened(store))
