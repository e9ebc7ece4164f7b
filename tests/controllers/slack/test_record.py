"""The slack object: created, written, read again, and recreated; and what the controller does when writing fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from cagrpc.controllers.slack.model import SlackSettings, SlackState, TargetSettings
from cagrpc.controllers.slack.record import NAME, WRITE_SECONDS, SlackObject
from cagrpc.errors import Conflict, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.kube.journal.objects import unpack
from solver.model import PodSpec
from solver.slack.model import Copies, Role, SlackDemand, SlackShape
from tests.support.api_server import ApiServer, api_server
from tests.support.controllers.planner import PlannerHarness
from tests.support.fleet import FakeClock, group

SLACKS = "/apis/cagrpc.io/v1alpha1/namespaces/cagrpc/slacks"
PATH = f"{SLACKS}/{NAME}"
SHAPE = SlackShape("t/fixed/x", Role.FIXED, PodSpec((("cpu", 1000),)), 3, "as the test says")
STATE = SlackState(
    at_seconds=1_000_000.0,
    wanted=(SlackDemand((SHAPE,)),),
    placement={"t/fixed/x": {"a": 1, "b": 1}},
    pushed_out={"t/fixed/x": 1},
    left_over={"t/fixed/x": 1},
    cost_usd_per_hour={"t": 0.25},
    warnings=("told",),
)


class WholeObjectClient:
    """The client of a store that has no subresources: the status is a part of the object."""

    def __init__(self, store: ApiServer) -> None:
        self.store = store
        self._client: Client = store.client()
        self.writes = 0

    def get(self, path: str) -> dict[str, Any]:
        return self._client.get(path)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._client.create(path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.writes += 1
        return self._client.patch(path.removesuffix("/status"), {"metadata": {}, **body})

    def status(self) -> dict[str, Any]:
        return dict(self.store.objects[PATH]["status"])


@pytest.fixture
def server() -> Iterator[WholeObjectClient]:
    with api_server(SLACKS) as store:
        yield WholeObjectClient(store)


def test_what_is_written_is_read_by_the_next_process(server: WholeObjectClient) -> None:
    book = SlackObject(server, "cagrpc", carrier=lambda: "virtual", clock=FakeClock())
    assert book.placements() == {}
    book.write(STATE)
    assert SlackObject(server, "cagrpc").placements() == STATE.placement
    assert server.status() == {
        "carrier": "virtual",
        "since": "1970-01-12T13:46:40Z",
        "wanted": 3,
        "held": 2,
        "leftOver": 1,
        "costPerHour": 0.25,
        "targets": [{"name": "t", "wanted": 3, "held": 2, "pushedOut": 1, "leftOver": 1, "costPerHour": 0.25}],
        "warnings": ["told"],
        "placements": server.status()["placements"],
    }
    uid = server.store.objects[PATH]["metadata"]["uid"]
    assert book.owner() == {"apiVersion": "cagrpc.io/v1alpha1", "kind": "Slack", "name": "cagrpc", "uid": uid}


def test_it_is_written_now_and_then_and_the_last_word_counts(server: WholeObjectClient) -> None:
    clock = FakeClock()
    book = SlackObject(server, "cagrpc", clock=clock)
    book.placements()
    for second in range(12):
        book.write(replace(STATE, placement={"t/fixed/x": {f"n{second}": 1}}))
        clock.advance(1.0)
    assert server.writes == 3
    last = replace(STATE, placement={"t/fixed/x": {"last": 1}})
    for _ in range(20):
        book.write(last)
        clock.advance(WRITE_SECONDS)
    assert server.writes == 4
    assert unpack(server.status()["placements"]) == last.placement


def test_a_change_of_carrier_is_recorded_at_once(server: WholeObjectClient) -> None:
    carrier = ["virtual"]
    book = SlackObject(server, "cagrpc", carrier=lambda: carrier[0], clock=FakeClock())
    book.placements()
    book.write(STATE)
    carrier[0] = "pods"
    book.write(STATE)
    assert server.status()["carrier"] == "pods"


def test_somebody_deletes_it(server: WholeObjectClient) -> None:
    clock = FakeClock()
    book = SlackObject(server, "cagrpc", clock=clock)
    before = book.owner()["uid"]
    book.write(STATE)
    del server.store.objects[PATH]
    for _ in range(10):
        clock.advance(10.0)
        book.write(STATE)
    assert book.owner()["uid"] != before
    assert unpack(server.status()["placements"]) == STATE.placement
    del server.store.objects[PATH]
    clock.advance(10.0)
    other = replace(STATE, warnings=())
    with pytest.raises(Conflict, match="it is created again"):
        book.write(other)
    book.write(other)
    assert server.status()["warnings"] == []


@pytest.mark.parametrize("text", ["?", "e30", "eJyLBQAA+AC6", "eJyrVsrNz0lVslIqLU4tUrJSKkvMKQUANiYF8w=="])
def test_what_cannot_be_read_begins_anew(server: WholeObjectClient, text: str) -> None:
    server.store.put(PATH, {"metadata": {"name": NAME}, "status": {"placements": text}})
    assert SlackObject(server, "cagrpc").placements() == {}


def test_without_the_definition_it_says_what_to_do() -> None:
    with (
        api_server("/none") as store,
        pytest.raises(Unavailable, match=r"kubectl apply -f deploy/slack-crds\.yaml"),
    ):
        SlackObject(WholeObjectClient(store), "cagrpc").owner()


class Troubled:
    """A carrier that cannot write for a while."""

    def __init__(self) -> None:
        self.trouble = True
        self.calls = 0

    def carry(self, state: SlackState) -> bool:
        self.calls += 1
        if self.trouble:
            raise Unavailable("the cluster is away")
        return True

    def placements(self) -> None:
        """The slack's own holds."""

    def withdraw(self) -> None:
        """Nothing was written."""


def test_a_failing_carrier_is_tried_less_often_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    target = TargetSettings("t", fixed=(Copies("x", PodSpec((("cpu", 1000),)), 2),))
    harness, carrier = PlannerHarness([group("a")], slack=SlackSettings(targets=(target,))), Troubled()
    harness.carrier = carrier
    harness.restart()
    harness.run(100)
    assert harness.slack is not None
    assert carrier.calls <= 9
    assert harness.slack.problem == "the cluster is away"
    assert len([each for each in caplog.messages if "the cluster is away" in each]) == 1
    assert harness.targets() == {"a": 1}  # what is wanted is known all the same
    carrier.trouble = False
    harness.run(40)
    assert harness.slack.problem == ""
    assert harness.slack_record.state.placement == harness.slack.state.placement
    harness.close()
