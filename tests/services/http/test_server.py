"""The HTTP side over a real socket: probes, metrics, decisions, increments, and the switches of a simulation."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as text_string_to_openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from cagrpc.controllers.fleet import FleetController, IncrementMetrics
from cagrpc.errors import InvalidInput, Unavailable
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementSpec, Phase
from cagrpc.inspection.client import ServerAddress, get_json, get_list
from cagrpc.runtime.controller import JsonPage
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.services.decisions import ConsideredOption, Decision, DecisionLog
from cagrpc.services.grpc.metrics import CallMetrics
from cagrpc.services.http import server as http_server
from cagrpc.services.http import threads
from cagrpc.services.http.access import Anybody
from cagrpc.services.http.application import Application
from cagrpc.services.http.metrics import HttpMetrics, Metrics
from cagrpc.services.http.server import HttpServer
from cagrpc.services.http.site import LARGEST_PAGE_BYTES, Site
from tests.support.clocks import any_clock
from tests.support.fleet import FleetHarness, group
from tests.support.waiting import AMPLE_SECONDS


class _Simulation:
    def __init__(self) -> None:
        self.behaviour: dict[str, Any] = {"boot_seconds": 1}
        self.broken = False

    def get(self) -> Mapping[str, Any]:
        return self.behaviour

    def put(self, behaviour: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.broken:
            raise Unavailable("simulated backend: the disk is full")
        if set(behaviour) - {"boot_seconds"}:
            raise InvalidInput(f"unknown: {', '.join(behaviour)}; there is boot_seconds")
        self.behaviour.update(behaviour)
        return self.behaviour


class _Web:
    def __init__(self, *, simulation: _Simulation | None, slack: Mapping[str, Any] | None = None) -> None:
        increments = IncrementMetrics()
        self.harness = FleetHarness(groups=[group("a")], options={"moved": increments.moved})
        self.fleet: Fleet = self.harness.fleet()
        self.simulation = simulation
        fleet = FleetController(self.fleet, Heartbeat("a step of the fleet"), increments=increments)
        self.calls, self.decisions = CallMetrics(), DecisionLog(any_clock(lambda: 1.0))
        self.web = HttpMetrics()
        of_web = self.web.collectors()
        self.metrics = Metrics(
            lambda: (*self.calls.collectors(), *of_web, *self.decisions.collectors(), *fleet.collectors())
        )
        more = {"/slack": JsonPage(lambda: slack)} if slack is not None else {}
        if simulation is not None:
            more["/simulation"] = JsonPage(simulation.get, simulation.put)
        self.why_not = self.stuck = ""
        site = Site(
            self.metrics,
            lambda: {**self.decisions.pages(), **fleet.pages(), **more},
            lambda: self.why_not,
            lambda: self.stuck,
        )
        self.server = HttpServer("127.0.0.1", 0, site, observe=self.web.observe)
        self.server.start()

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, str, str]:
        """Status, content type and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=AMPLE_SECONDS)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.headers["Content-Type"] or "", response.read().decode()
        finally:
            connection.close()

    def close(self) -> None:
        self.server.stop()
        self.fleet.close()


@pytest.fixture(name="web")
def _web() -> Iterator[_Web]:
    web = _Web(simulation=_Simulation())
    yield web
    web.close()


def test_alive_and_ready(web: _Web) -> None:
    assert web.ask("/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
    assert web.ask("/readyz")[0] == 200
    web.why_not = "another replica holds the lease"
    assert web.ask("/readyz")[::2] == (503, "another replica holds the lease\n")
    assert web.ask("/healthz?verbose=1")[0] == 200
    web.stuck = "a step of the fleet does not go on"
    assert web.ask("/healthz")[::2] == (503, "a step of the fleet does not go on\n")


def test_metrics_show_calls_decisions_targets_and_increments(web: _Web) -> None:
    web.fleet.apply(IncrementSpec({"a": 2}, pods=frozenset({"u1"})))
    web.calls.observe("Refresh", "OK", 0.002)
    web.decisions.record(Decision(1.0, (), "a", "cheapest", "objective", 0.1), frozenset())
    web.decisions.record(Decision(1.0, (), "", "limits", "nothing", 0.1), frozenset())
    status, content_type, text = web.ask("/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    lines = set(text.splitlines())
    assert {
        'cagrpc_rpc_total{code="OK",method="Refresh"} 1.0',
        'cagrpc_rpc_duration_seconds_bucket{code="OK",le="0.0025",method="Refresh"} 1.0',
        'cagrpc_decisions_total{outcome="chosen",ranked_by="objective"} 1.0',
        'cagrpc_decisions_total{outcome="veto",ranked_by="nothing"} 1.0',
        'cagrpc_decision_duration_seconds_sum{ranked_by="objective"} 0.1',
        'cagrpc_node_group_target_size{node_group="a"} 2.0',
        'cagrpc_increments_in_flight{phase="planned"} 1.0',
        'cagrpc_increments_in_flight{phase="ready"} 0.0',
        'cagrpc_dependency_up{dependency="journal"} 1.0',
        'cagrpc_dependency_up{dependency="backend"} 1.0',
        "cagrpc_backend_refusing 0.0",
        "cagrpc_pods_in_flight 1.0",
    } <= lines


OPEN_METRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
"""Prometheus' own, but for protobuf, which it takes as one of several."""


def test_a_scraper_that_asks_for_it_gets_openmetrics_with_the_ids_of_increments(web: _Web) -> None:
    made = web.fleet.apply(IncrementSpec({"a": 2}))
    web.fleet.reconcile()
    web.harness.clock.advance(40.0)
    web.harness.backend.boot_all()
    web.fleet.reconcile()
    assert web.fleet.increment(made.id).phase is Phase.DONE
    status, content_type, text = web.ask("/metrics", Accept=OPEN_METRICS)
    assert (status, content_type) == (
        200,
        "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
    )
    families = {each.name: each for each in text_string_to_openmetrics_families(text)}  # type: ignore[no-untyped-call] # it has no types
    buckets = [each for each in families["cagrpc_increment_phase_duration_seconds"].samples if each.exemplar]
    assert {(each.labels["phase"], each.labels["le"]) for each in buckets} == {("ready", "60.0"), ("done", "60.0")}
    assert {each.exemplar.labels["increment_id"] for each in buckets if each.exemplar} == {made.id}
    assert text.endswith("# EOF\n")

    plain = web.ask("/metrics")
    assert plain[1] == "text/plain; version=0.0.4; charset=utf-8"
    assert made.id not in plain[2]
    assert "_created" not in plain[2] + text
    same = {sample for each in text_string_to_metric_families(plain[2]) for sample in _comparable(each)}
    of_open = {sample for each in families.values() for sample in _comparable(each)}
    assert {each for each in same ^ of_open if not each[0].startswith("cagrpc_http_")} == set()


def _comparable(family: Metric) -> Iterator[tuple[str, frozenset[tuple[str, str]], float]]:
    for each in family.samples:
        yield each.name, frozenset(each.labels.items()), each.value


def test_streams_are_no_requests_that_took_long(web: _Web) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", web.server.port, timeout=AMPLE_SECONDS)
    connection.request("GET", "/events")
    assert connection.getresponse().status == 200
    web.ask("/healthz")
    web.server.stop()  # ends the stream
    connection.close()
    text = web.metrics.exposition()[1].decode()
    assert 'page="/healthz"' in text
    assert "/events" not in text


def test_what_is_out_of_reach_is_in_the_metrics(web: _Web) -> None:
    web.harness.backend.unreachable = True
    with pytest.raises(Unavailable):
        web.fleet.reconcile()
    down = 'cagrpc_dependency_up{dependency="%s"} 0.0'
    assert down % "backend" in web.ask("/metrics")[2]
    assert down % "journal" not in web.ask("/metrics")[2]
    web.harness.backend.unreachable, web.harness.backend.problem = False, "no definition is installed"
    web.harness.journal.broken = True  # type: ignore[attr-defined] # it is the one in memory
    with pytest.raises(Unavailable):
        web.fleet.apply(IncrementSpec({"a": 1}))
    text = web.ask("/metrics")[2]
    assert down % "journal" in text
    assert "cagrpc_backend_refusing 1.0" in text


def test_requests_are_counted_by_page_and_code_and_strangers_make_no_series(web: _Web) -> None:
    web.ask("/healthz")
    web.ask("/healthz?verbose")
    web.ask("/nothing/here")
    web.ask("/decisions", "BREW")
    web.ask("/decisions?limit=0")
    (family,) = [
        each
        for each in text_string_to_metric_families(web.ask("/metrics")[2])
        if each.name == "cagrpc_http_request_duration_seconds"
    ]
    counts = {
        (each.labels["page"], each.labels["method"], each.labels["code"]): each.value
        for each in family.samples
        if each.name.endswith("_count")
    }
    assert counts == {
        ("/healthz", "GET", "200"): 2.0,
        ("other", "GET", "404"): 1.0,
        ("/decisions", "other", "405"): 1.0,
        ("/decisions", "GET", "400"): 1.0,
    }


def test_decisions_and_increments_are_json(web: _Web) -> None:
    option = ConsideredOption("a", 2, 5, ("ns/x",), (0.0, 0.2), 0.2, "cheapest")
    web.decisions.record(Decision(1.0, (option,), "a", "cheapest", "objective", 0.1), frozenset())
    asked = IncrementSpec({"a": 2}, reason="cheapest", plan="round 7", cost_usd_per_hour=0.2, gap=0.01)
    web.fleet.apply(asked)
    (decision,) = json.loads(web.ask("/decisions")[2])
    assert (decision["chosen"], decision["options"][0]["node_group"]) == ("a", "a")
    (increment,) = json.loads(web.ask("/increments")[2])
    assert (increment["deltas"], increment["phase"], increment["reason"]) == ({"a": 2}, "planned", "cheapest")
    assert (increment["plan"], increment["cost_usd_per_hour"], increment["gap"]) == ("round 7", 0.2, 0.01)
    assert (increment["held"], increment["short_groups"]) == ([], [])
    assert (increment["pods"], increment["requests"]) == (0, [])


def test_an_increment_for_requests_says_which(web: _Web) -> None:
    web.fleet.apply(IncrementSpec({"a": 2}, requests=frozenset({"u2", "u1"})))
    (increment,) = json.loads(web.ask("/increments")[2])
    assert (increment["pods"], increment["requests"]) == (0, ["u1", "u2"])
    assert "cagrpc_pods_in_flight 0.0" in web.ask("/metrics")[2].splitlines()


def test_a_simulation_is_read_and_set(web: _Web) -> None:
    assert json.loads(web.ask("/simulation")[2]) == {"boot_seconds": 1}
    assert json.loads(web.ask("/simulation", "PUT", b'{"boot_seconds": 9}')[2]) == {"boot_seconds": 9}
    assert json.loads(web.ask("/simulation")[2]) == {"boot_seconds": 9}


@pytest.mark.parametrize(
    ("body", "headers", "why"),
    [
        pytest.param(b"{", {}, "the body is not JSON", id="no JSON"),
        pytest.param(b"[" * 100_000, {}, "the body is not JSON", id="nested without end"),
        pytest.param(b"[]", {}, "the body is not a JSON object", id="no object"),
        pytest.param(b"\xff", {}, "the body is not JSON", id="no text"),
        pytest.param(b'{"\\ud800": 1}', {}, r"unknown: \ud800;", id="half a character"),
        pytest.param(b'{"speed": 1}', {}, "unknown: speed; there is boot_seconds", id="no such switch"),
        pytest.param(b"", {"Content-Length": "much"}, "bad Content-Length", id="no length"),
        pytest.param(b"", {"Content-Length": "9999999999"}, 'Content-Length is "9999999999"', id="too long"),
        pytest.param(
            b"2\r\n{}\r\n0\r\n\r\n",
            {"Content-Length": "2", "Transfer-Encoding": "chunked"},
            'Content-Length is ""',
            id="of unknown length, whatever it says",
        ),
    ],
)
def test_bad_input_is_a_bad_request_with_the_reason(web: _Web, body: bytes, headers: dict[str, str], why: str) -> None:
    status, _, text = web.ask("/simulation", "PUT", body, **headers)
    assert status == 400
    assert why in text
    assert json.loads(web.ask("/simulation")[2]) == {"boot_seconds": 1}


def test_a_simulation_out_of_reach_is_unavailable_with_the_reason(web: _Web) -> None:
    assert web.simulation is not None
    web.simulation.broken = True
    status, _, text = web.ask("/simulation", "PUT", b'{"boot_seconds": 9}')
    assert (status, text) == (503, "simulated backend: the disk is full\n")


def test_a_target_may_be_a_whole_url_but_not_half_of_one(web: _Web) -> None:
    assert web.ask("http://somewhere/healthz")[::2] == (200, "ok\n")
    status, _, text = web.ask("http://[::bad/healthz", Host="x")
    assert status == 400
    assert text.startswith("http://[::bad/healthz is not a URL")
    assert web.ask("http://[::bad/simulation", "PUT", b"{}", Host="x")[0] == 400


def test_head_is_get_without_the_body(web: _Web) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", web.server.port, timeout=AMPLE_SECONDS)
    connection.request("HEAD", "/healthz")
    response = connection.getresponse()
    assert (response.status, response.headers["Content-Length"], response.read()) == (200, "3", b"")
    connection.close()
    web.why_not = "no journal"
    assert web.ask("/readyz", "HEAD")[::2] == (503, "")


def test_without_a_simulation_there_is_no_switch() -> None:
    web = _Web(simulation=None)
    assert web.ask("/simulation")[0] == 404
    assert web.ask("/simulation", "PUT", b"{}")[0] == 405
    web.close()


def test_unknown_pages_name_the_known_ones(web: _Web) -> None:
    status, _, text = web.ask("/nothing")
    assert status == 404
    assert "/healthz, /readyz, /metrics, /status, /decisions, /nodegroups, /increments, /simulation, /events" in text
    assert web.ask("/metrics", "PUT", b"{}")[0] == 405


@pytest.mark.parametrize("error", [ZeroDivisionError, OSError])
def test_a_failing_page_is_an_error_and_the_server_lives_on(
    web: _Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    def broken(_: str) -> tuple[str, bytes]:
        raise error

    monkeypatch.setattr(web.metrics, "exposition", broken)
    assert web.ask("/metrics")[0] == 500
    assert "GET /metrics failed unexpectedly" in caplog.text
    assert web.ask("/healthz")[0] == 200


def test_a_port_that_is_taken_is_refused(web: _Web) -> None:
    site = Site(web.metrics)
    with pytest.raises(Unavailable, match=r"cannot listen on 127\.0\.0\.1:"):
        HttpServer("127.0.0.1", web.server.port, site)


def _full(web: _Web) -> None:
    """As many decisions of as many options as are kept, none of them short."""
    option = ConsideredOption("a", 2, 5, ("ns/" + "x" * 250,) * 3, (0.0, 0.2), 0.2, "cheapest", "y" * 500)
    for number in range(20):
        web.decisions.record(Decision(float(number), (option,) * 500, "a", "cheapest" * 1000, "objective", 0.1))


def test_a_list_comes_by_pages_the_newest_first(web: _Web) -> None:
    _full(web)
    connection = http.client.HTTPConnection("127.0.0.1", web.server.port, timeout=AMPLE_SECONDS)
    connection.request("GET", "/decisions")
    answer = connection.getresponse()
    body = answer.read()
    assert len(body) < LARGEST_PAGE_BYTES + 3
    newest = json.loads(body)
    assert [each["at_seconds"] for each in newest] == [float(n) for n in range(20 - len(newest), 20)]
    assert answer.headers["Link"] == f'</decisions?continue={len(newest)}>; rel="next"'
    connection.close()
    address = ServerAddress(f"127.0.0.1:{web.server.port}")
    assert [each["at_seconds"] for each in get_list(address, "/decisions")] == [float(n) for n in range(20)]
    assert [each["at_seconds"] for each in get_json(address, "/decisions?limit=1")] == [19.0]
    assert web.ask("/decisions?limit=none")[::2] == (400, 'limit is "none"; it must be a whole number of 1 or more\n')


def test_the_slack_is_cut_where_it_is_long() -> None:
    web = _Web(simulation=None, slack={"carrier": "", "shapes": [{"name": "x" * 1000}] * 9000})
    slack = json.loads(web.ask("/slack")[2])
    assert len(slack["shapes"]) + slack["left_out"]["shapes"] == 9000
    assert len(slack["shapes"]) > 3000
    web.close()


@contextmanager
def _open(web: _Web, count: int) -> Iterator[list[socket.socket]]:
    """Connections on which nothing is said."""
    with ExitStack() as stack:
        address = ("127.0.0.1", web.server.port)
        yield [stack.enter_context(socket.create_connection(address, timeout=AMPLE_SECONDS)) for _ in range(count)]


def test_connections_that_are_kept_open_are_few_and_keep_nobody_out(web: _Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_MOST_CONNECTIONS", 4)
    with _open(web, 12) as silent:
        assert silent[0].recv(1) == b""  # the oldest went first
        assert web.ask("/healthz")[0] == 200
        for each in silent[1:9]:
            assert each.recv(1) == b""
        silent[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert silent[-1].recv(12) == b"HTTP/1.1 200"


def test_a_client_that_says_little_at_a_time_is_ended(web: _Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_REQUEST_SECONDS", 0.2)
    with _open(web, 1) as (slow,):
        slow.settimeout(0.02)
        for _ in range(500):
            try:
                slow.sendall(b"G")
                assert slow.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:  # it is closed, and does not take any more
                pass
            return
        pytest.fail("it was listened to all the time")


@pytest.mark.parametrize(
    "headers", [[f"X-{number}: {'x' * 1000}" for number in range(90)], [f"X: {'x' * 60_000}"]], ids=["many", "long"]
)
def test_headers_are_no_longer_than_there_is_reason_for(web: _Web, headers: list[str]) -> None:
    with _open(web, 1) as (sender,):
        sender.sendall(b"GET /healthz HTTP/1.0\r\n" + "\r\n".join(headers).encode()[:33_000])
        assert sender.recv(12) == b"HTTP/1.1 431"


def test_few_pages_are_made_at_once_and_probes_do_not_wait_for_them(web: _Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "TURN_SECONDS", 0.05)
    entered, leave = threading.Semaphore(0), threading.Event()

    def slow(_: str) -> tuple[str, bytes]:
        entered.release()
        assert leave.wait(AMPLE_SECONDS)
        return "text/plain", b""

    monkeypatch.setattr(web.metrics, "exposition", slow)
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(web.ask, "/metrics") for _ in range(2)]
        assert all(entered.acquire(timeout=AMPLE_SECONDS) for _ in range(2))
        assert web.ask("/decisions")[::2] == (503, "the limit of 2 pages at once is reached; try again\n")
        assert web.ask("/healthz")[0] == 200
        assert web.ask("/readyz")[0] == 200
        leave.set()
        assert [each.result()[0] for each in made] == [200, 200]
    assert web.ask("/decisions")[0] == 200


def test_a_connection_that_comes_as_the_server_ends_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening, closing(socket.socket()) as client:
        listening.setblocking(False)
        application = Application(Site(Metrics(tuple)), Anybody(), hsts=False, observe=lambda *_: None)
        server = http_server.Listener(application, listening, None)

        async def a_connection_comes() -> None:
            await asyncio.sleep(0)  # the server waits for one
            client.connect(listening.getsockname())
            await asyncio.sleep(0)  # the loop has seen it, and accepts it after this task

        monkeypatch.setattr(server, "main_loop", a_connection_comes)
        asyncio.run(server.serve())
    assert not caplog.records
