"""The journal in a real API server: the suite of every journal, the schema of deploy/crds.yaml, sizes, restarts, and
two servers of which one leads. Faults that must come at one moment are played in tests/kube."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.fleet.journal import Journal
from cagrpc.fleet.model import Phase
from cagrpc.fleet.records import Changes, Member, MemberState
from cagrpc.kube.client.client import Client
from cagrpc.kube.journal import objects
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.lease import LeaderElection, LeaseTiming
from tests.fleet.test_journal import (  # noqa: F401 - collected here too, with the `opener` below
    test_a_closed_journal_is_unavailable_and_closing_may_be_repeated,
    test_a_new_journal_is_empty,
    test_an_increment_comes_back_as_it_was,
    test_deletions_are_kept_updated_and_forgotten,
    test_groups_are_kept_updated_and_forgotten,
    test_increments_are_forgotten,
    test_order_of_creation_survives_updates_and_reopening,
)
from tests.kube.journal.test_journal import BEFORE, CHANGES, LATER, large, record, told
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import clear_journal, install_crds, remove_crds

INCREMENTS = objects.INCREMENTS


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    install_crds(cluster.admin)
    client = cluster.plane.client()
    yield client
    client.close()
    clear_journal(cluster.admin)


@pytest.fixture
def opener(client: Client) -> Callable[[], Journal]:
    return lambda: ClusterJournal(client, "test")


def test_people_see_what_matters(cluster: Cluster, client: Client) -> None:
    made = large("0a1b2c", nodes=3, pods=2)
    ClusterJournal(client, "server-1").commit(Changes(increments=(made,)))
    rows = _table(cluster, INCREMENTS)
    assert {name: rows[0][name] for name in ("Name", "Phase", "Groups", "$/h", "Gap", "Pods", "Origin")} == {
        "Name": "0a1b2c",
        "Phase": "planned",
        "Groups": "m7i.large-us-east-1a+3",
        "$/h": 1234.5678,
        "Gap": 0.0123,
        "Pods": 6,
        "Origin": "cagrpc",
    }
    (root,) = _table(cluster, objects.FLEET_RECORDS)
    assert (root["Name"], root["Writer"], root["Commit"], root["Increments"]) == ("journal", "server-1", 2, 1)


def _table(cluster: Cluster, path: str) -> list[dict[str, Any]]:
    """What `kubectl get -o wide` shows."""
    api = cluster.admin
    headers = {**api._headers, "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = api._pool.request("GET", api._server + path, headers=headers).json()
    names = [column["name"] for column in table["columnDefinitions"]]
    return [dict(zip(names, row["cells"], strict=True)) for row in table["rows"]]


def _changed(body: dict[str, Any], part: str, **fields: Any) -> dict[str, Any]:
    return {**body, part: {**body[part], **fields}}


@pytest.mark.parametrize(
    ("part", "fields", "found"),
    [
        ("status", {"phase": "finished"}, "Unsupported value"),
        ("spec", {"origin": "me"}, "Unsupported value"),
        ("spec", {"groups": []}, "should have at least 1"),
        ("spec", {"groups": [{"nodeGroup": "a", "nodes": 0}]}, "greater than or equal to 1"),
        ("spec", {"groups": [{"nodeGroup": "a", "nodes": 1}] * 2}, "Duplicate"),
        ("spec", {"gap": 1.5}, "less than or equal to 1"),
        ("status", {"content": ""}, "at least 1"),
    ],
)
def test_increments_that_nobody_could_mean_are_refused(
    client: Client, part: str, fields: dict[str, Any], found: str
) -> None:
    with pytest.raises(errors.InvalidInput, match=found):
        client.create(INCREMENTS, _changed(objects.increment_body(record("wrong")), part, **fields))


@pytest.mark.parametrize(
    ("path", "patch", "found"),
    [
        (f"{INCREMENTS}/old", {"spec": {"pods": 7}}, "cannot be changed"),
        (f"{INCREMENTS}/gone", {"status": {"phase": "planned"}}, "stays so"),
        (f"{objects.FLEET_RECORDS}/journal", {"spec": {"sequence": 1}}, "commits do not go back"),
        (f"{objects.FLEET_RECORDS}/journal", {"spec": {"sequence": None}}, "has commits"),
    ],
)
def test_what_is_written_is_not_taken_back(client: Client, path: str, patch: dict[str, Any], found: str) -> None:
    ClusterJournal(client, "test").commit(BEFORE)
    with pytest.raises(errors.InvalidInput, match=found):
        client.patch(path, patch)


def test_what_the_journal_takes_the_api_server_takes(client: Client) -> None:
    """An increment that is too large for one object, through all of its life."""
    made = large("big", nodes=25_000, pods=4)
    journal = ClusterJournal(client, "test")
    assert objects.size(objects.increment_body(made)) > 2 * objects.LARGEST_BYTES
    journal.commit(Changes(increments=(made,)))
    members = tuple(
        Member(m.token, m.node_group, MemberState.ORDERED, f"aws:///us-east-1a/i-{n * 0x9E3779B97F4A7C15 % 2**68:017x}")
        for n, m in enumerate(made.members)
    )
    for phase in (Phase.CREATING, Phase.READY, Phase.DONE):
        made = replace(made, phase=phase, members=members)
        journal.commit(Changes(increments=(made,)))
        assert not journal._behind.increments
    assert ClusterJournal(client, "test").read().increments == {"big": made}
    journal = ClusterJournal(client, "test")
    journal.commit(Changes(forgotten_increments=("big",)))
    left = {item["metadata"]["name"] for item in client.get(objects.FLEET_RECORDS)["items"]}
    assert not {name for name in left if name.startswith("part-")}


def test_a_full_root_is_taken_too(client: Client) -> None:
    """One object of exactly the largest size."""
    body = objects.increment_body(record("full"))
    body["spec"]["content"] = ""
    body["spec"]["content"] = "x" * (objects.LARGEST_BYTES - objects.size(body))
    assert objects.size(body) == objects.LARGEST_BYTES
    client.create(INCREMENTS, body)


def test_the_api_server_is_restarted_between_and_during_commits(cluster: Cluster, client: Client) -> None:
    journal = ClusterJournal(client, "test")
    journal.commit(BEFORE)
    contents, stop = journal.read(), threading.Event()
    cluster.plane.restart_apiserver()
    journal.commit(CHANGES)
    contents, answers = contents.after(CHANGES), [""]

    def commit_on() -> None:
        nonlocal contents
        while not stop.is_set() and not journal.closed_because:
            changes = Changes(increments=(record(f"n{len(answers)}"),))
            try:
                journal.commit(changes)
            except errors.Unavailable as error:
                answers.append(str(error))
                stop.wait(0.1)
            else:
                answers.append("")
                contents = contents.after(changes)

    committing = threading.Thread(target=commit_on)
    committing.start()
    cluster.plane.restart_apiserver()
    stop.set()
    committing.join()
    found = ClusterJournal(client, "next").read()
    assert len(answers) > 1
    if journal.closed_because:  # of the last one it did not find out
        found = found.after(Changes(forgotten_increments=(f"n{len(answers) - 1}",)))
    assert told(found) == told(contents)


def test_of_two_servers_one_leads_and_only_that_one_writes(cluster: Cluster, client: Client) -> None:
    stop, pace = threading.Event(), LeaseTiming(duration=2, renew=0.2, retry=0.2, give_up=1.0)
    first = LeaderElection(client, cluster.namespace, identity="first", pace=pace)
    second = LeaderElection(client, cluster.namespace, identity="second", pace=pace)
    assert first.acquire(stop)
    paused = ClusterJournal(client, "first")  # it does not ask again: as if paused between its look and its write
    paused.commit(BEFORE)
    waiting = ClusterJournal(client, "second", check=second.check)
    with pytest.raises(errors.Unavailable, match="not asked for yet"):
        waiting.read()
    assert second.acquire(stop)  # the first one does not renew
    before = waiting.read()
    with pytest.raises(errors.Unavailable, match="lost by first"):
        first.check()
    with pytest.raises(errors.Unavailable, match="another writer took over: second"):
        paused.commit(CHANGES)
    waiting.commit(LATER)
    assert told(waiting.read()) == told(before.after(LATER))
    stop.set()
    second.keep(stop)
    assert LeaderElection(client, cluster.namespace, identity="third", pace=pace).step()


def test_without_the_definitions_it_says_what_to_do(cluster: Cluster, client: Client) -> None:
    remove_crds(cluster.admin)
    with pytest.raises(errors.InvalidConfiguration, match=r"kubectl apply -f deploy/crds\.yaml"):
        ClusterJournal(client, "test").read()
    install_crds(cluster.admin)
