"""What every controller is asked for by the contract, while the API server fails: it steps, it ends, it reports."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cagrpc.controllers.consolidation.queue import UnfinishedStep
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import DisruptedNode, Disruption, DisruptionPhase
from cagrpc.fleet.records import Changes
from cagrpc.runtime.clock import SteadyClock
from cagrpc.runtime.controller import Controller, JsonList
from cagrpc.runtime.runner import Runner, Steps
from cagrpc.server.cluster import ClusterConnection
from cagrpc.server.leader import Leader
from cagrpc.services.decisions import DecisionLog
from cagrpc.services.http.metrics import Metrics
from cagrpc.services.http.site import ListOptions, list_page, object_page
from tests.support.http_server import serving
from tests.support.serving import settings_of_everything
from tests.support.waiting import AMPLE_SECONDS

STOP_SECONDS = 5.0
NAMES = (
    "the cluster view",
    "a step of the fleet",
    "samples of the last day",
    "ProvisioningRequests",
    "writing Events of cagrpc.io/provisioning-requests",
    "placing pods",
    "releasing nodes",
    "the slack",
    "the planner loop",
    "writing Events of cagrpc.io/planner",
    "consolidation",
    "writing Events of cagrpc.io/consolidation",
    "what the autoscaler may scale down",
    "Kueue's admission checks",
    "writing Events of cagrpc.io/provisioning-request",
    "the life of simulated nodes",
    "following the cluster-autoscaler's ConfigMaps",
    "keeping failed scale-ups",
    "comparing with the autoscaler",
)
"""All that there are, in their order."""


class _Failing(BaseHTTPRequestHandler):
    """An API server that fails whatever it is asked for."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(500)
        self.end_headers()


@pytest.fixture(name="controllers")
def _controllers(tmp_path: Path) -> Iterator[dict[str, Controller]]:
    """By name, as a leader with everything configured has them; none is started."""
    with _leading(tmp_path) as controllers:
        yield controllers


@contextmanager
def _leading(directory: Path, **changes: Any) -> Iterator[dict[str, Controller]]:
    """The controllers of a leader with everything configured, but for the changes of its settings."""
    with ExitStack() as stack:
        _, url = stack.enter_context(serving(_Failing))
        settings = replace(settings_of_everything(directory, url), **changes)
        settings.state_directory.mkdir(exist_ok=True)
        assert settings.cluster is not None
        cluster = ClusterConnection(settings.cluster, settings)
        stack.callback(cluster.client.close)
        journal = SqliteJournal(settings.state_directory / "journal.sqlite")
        leader = Leader(settings, journal, DecisionLog(SteadyClock()), cluster)
        stack.callback(leader.close)
        yield {each.name: each for each in (cluster.view, *leader.controllers)}


def test_these_are_all(controllers: dict[str, Controller]) -> None:
    assert tuple(controllers) == NAMES


def test_a_step_that_is_under_way_is_undone_where_consolidation_is_off(tmp_path: Path) -> None:
    with _leading(tmp_path, consolidation=None) as controllers:
        assert UnfinishedStep.name not in controllers
    journal = SqliteJournal(tmp_path / "state" / "journal.sqlite")
    node = DisruptedNode("n1", "id-1", "small")
    journal.commit(Changes(disruptions=(Disruption("d", "Empty", DisruptionPhase.MOVING, (node,), 0.0, 900.0),)))
    journal.close()
    with _leading(tmp_path, consolidation=None) as controllers:
        assert isinstance(controllers[UnfinishedStep.name], UnfinishedStep)
        assert "consolidation" not in controllers
    with _leading(tmp_path) as controllers:
        assert UnfinishedStep.name not in controllers


def _own_threads() -> set[threading.Thread]:
    """All but those of the API server, whose connections end when it notices that the client has closed them."""
    return {thread for thread in threading.enumerate() if "process_request_thread" not in thread.name}


@pytest.mark.parametrize("name", NAMES)
def test_it_starts_steps_while_the_api_server_fails_and_stops_within_its_deadline(
    name: str, controllers: dict[str, Controller]
) -> None:
    controller = controllers[name]
    stepped = threading.Event()
    step = controller.step

    def observed() -> bool | None:
        try:
            return step()
        finally:
            stepped.set()

    controller.step = observed  # type: ignore[method-assign]
    before = _own_threads()
    runner = Runner()
    runner.add(controller)
    runner.start()
    if controller.every_seconds is not None:
        assert stepped.wait(AMPLE_SECONDS)
    assert runner.stuck == ""
    runner.stop(AMPLE_SECONDS)
    assert _own_threads() <= before
    runner.stop(0.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_fails_is_counted_and_the_next_one_waits(name: str, controllers: dict[str, Controller]) -> None:
    controller = controllers[name]
    steps = Steps(controller)
    worked = steps.take()
    assert (steps.heartbeat.failed_steps == 0) is worked
    assert steps.take()  # nothing is done in a back-off, and nothing fails
    assert 0 < controller.back_off.first_seconds <= controller.back_off.longest_seconds
    assert steps.heartbeat.problem == ""


@pytest.mark.parametrize("name", NAMES)
def test_what_it_shows_is_json_before_anything_is_known(name: str, controllers: dict[str, Controller]) -> None:
    controller = controllers[name]
    json.dumps(dict(controller.status()))
    for path, page in controller.pages().items():
        assert path.startswith("/")
        content = page.get()
        if isinstance(content, JsonList):
            json.loads(list_page(content.items, content.as_json, ListOptions())[0])
        else:
            json.loads(object_page(content))
    follows = {each.name for each in controller.informers()}
    assert any(each in controller.still_to_come() for each in follows) or not follows


def test_metrics_have_help_and_no_name_twice(controllers: dict[str, Controller]) -> None:
    runner = Runner()
    runner.add(*controllers.values())
    families = list(text_string_to_metric_families(Metrics(runner.collectors).exposition()[1].decode()))
    assert {"cagrpc_kueue_actions", "cagrpc_slack_placeholders", "cagrpc_plan_gap_ratio", "cagrpc_bookings"} <= {
        each.name for each in families
    }
    assert [each.name for each in families if not each.documentation] == []
    assert [name for name, count in Counter(each.name for each in families).items() if count > 1] == []


def test_members_of_the_status_and_pages_belong_to_one_controller_each(controllers: dict[str, Controller]) -> None:
    members = Counter(member for each in controllers.values() for member in each.status())
    pages = Counter(path for each in controllers.values() for path in each.pages())
    assert [name for name, count in (members + pages).items() if count > 1] == []
    assert {*pages} == {
        "/nodegroups",
        "/increments",
        "/nodes",
        "/history",
        "/simulation",
        "/plans",
        "/provisioningrequests",
        "/slack",
        "/consolidation",
        "/episodes",
    }
