"""A server is ready once it knows all that it follows, and says what it waits for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cagrpc.api.gen import api_pb2
from cagrpc.controllers.settings import ClusterSettings, Drive, JournalKind, KueueSettings, RequestSettings
from cagrpc.runtime.controller import JsonPage
from cagrpc.server.server import Server
from cagrpc.services.http.overview.digest import Digest
from solver.planning.warm_up import COMPILING
from tests.support.controlplane.processes import wait_for
from tests.support.http_server import serving
from tests.support.scripted_api import PROTOBUF, enveloped
from tests.support.serving import ask, kubeconfig_of, settings_of
from tests.support.waiting import AMPLE_SECONDS

_KUEUE = "/apis/kueue.x-k8s.io"
_FOLLOWED = {
    "/api/v1/pods": "pods",
    "/apis/apps/v1/deployments": "deployments.apps",
    "/apis/scheduling.x-k8s.io/v1alpha1/podgroups": "podgroups.scheduling.x-k8s.io",
    "/api/v1/podtemplates": "podtemplates",
    "/apis/autoscaling.x-k8s.io/v1/provisioningrequests": "provisioningrequests.autoscaling.x-k8s.io",
    f"{_KUEUE}/v1beta2/workloads": "workloads.kueue.x-k8s.io",
    _KUEUE: "Kueue",
}
"""What the server waits for, by path."""


@dataclass
class _SilentApi:
    """An API server with nothing in it."""

    url: str = ""
    held: dict[str, Event] = field(default_factory=dict)
    """Paths that are answered only once this is set."""
    refused: dict[str, int] = field(default_factory=dict)
    """Paths that are answered with this code."""
    closed: Event = field(default_factory=Event)
    asked: set[str] = field(default_factory=set)

    def answer(self, path: str, query: dict[str, Any], accept: str) -> tuple[int, bytes]:
        self.asked.add(path)
        if path in self.held:
            self.held[path].wait(AMPLE_SECONDS)
        if path in self.refused:
            return self.refused[path], b"{}"
        if "watch" in query:
            return 200, b""
        if path == _KUEUE:
            return 200, json.dumps({"versions": [{"version": "v1beta2"}]}).encode()
        if "/leases/" in path:
            return 200, json.dumps({"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "other"}}).encode()
        if accept == PROTOBUF:
            return 200, enveloped(api_pb2.List(metadata={"resourceVersion": "1"}).SerializeToString())
        return 200, json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode()


class _SilentHandler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        api: _SilentApi = self.server.api  # type: ignore[attr-defined]
        code, body = api.answer(url.path, parse_qs(url.query), self.headers["accept"])
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body)
        if not body:  # a watch
            api.closed.wait(AMPLE_SECONDS)


@pytest.fixture(name="api")
def _api() -> Iterator[_SilentApi]:
    api = _SilentApi()
    with serving(_SilentHandler) as (server, api.url):
        server.api = api  # type: ignore[attr-defined]
        yield api
        for event in (api.closed, *api.held.values()):
            event.set()


@contextmanager
def _served(api: _SilentApi, directory: Path, journal: JournalKind = JournalKind.SQLITE) -> Iterator[Server]:
    settings = replace(
        settings_of(directory),
        drive=Drive.PLAN,
        cluster=ClusterSettings(kubeconfig_of(directory, api.url), journal=journal),
        requests=RequestSettings(),
        kueue=KueueSettings(),
    )
    server = Server(settings)
    server.start()
    try:
        yield server
    finally:
        api.closed.set()
        for event in api.held.values():
            event.set()
        server.stop()


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.kube.informer.informers._FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("cagrpc.server.server.STOP_SECONDS", 0.2)


def _ready(server: Server) -> bool:
    return ask(server, "/readyz") == (200, "ok\n")


def test_the_page_comes_first_and_readiness_with_the_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Event()

    def load(server: Server) -> None:
        assert loaded.wait(60)
        server._imported.set()

    monkeypatch.setattr(Server, "_load_planner", load)
    server = Server(settings_of(tmp_path))
    starting = Thread(target=server.start)
    try:
        starting.start()
        wait_for(lambda: ask(server, "/")[0] == 200, "the page")
        assert ask(server, "/readyz") == (503, "starting\n")
        assert starting.is_alive()
        loaded.set()
        starting.join(60)
        assert _ready(server)
    finally:
        loaded.set()
        starting.join(60)
        server.stop()


def test_status_and_page_say_that_the_planner_is_being_compiled_and_it_is_ready_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Event()
    why = COMPILING
    monkeypatch.setattr("solver.planning.warm_up.in_background", begun.set)
    monkeypatch.setattr("solver.planning.warm_up.why_wait", lambda: why)
    server = Server(settings_of(tmp_path))
    try:
        server.start()
        assert begun.wait(AMPLE_SECONDS)
        assert _ready(server)
        status = json.loads(ask(server, "/status")[1])
        assert status["compiling"] == COMPILING
        assert Digest().sections({"/status": JsonPage(lambda: status)})["status"]["warnings"] == [COMPILING]
        why = ""
        assert "compiling" not in json.loads(ask(server, "/status")[1])
    finally:
        server.stop()


@pytest.mark.parametrize(
    "paths", [pytest.param([_KUEUE], id="Kueue"), pytest.param(sorted({*_FOLLOWED} - {_KUEUE}), id="all others")]
)
def test_it_is_ready_once_everything_has_been_listed_and_names_what_has_not(
    paths: list[str], api: _SilentApi, tmp_path: Path
) -> None:
    """Answered one after the other; what is there of Kueue is followed only once its versions are known."""
    api.held = {path: Event() for path in paths}
    with _served(api, tmp_path) as server:
        for done, path in enumerate(paths):
            missing = set(paths[done:])

            def all_but(missing: set[str] = missing) -> bool:
                code, text = ask(server, "/readyz?verbose")
                late = {line[3:].partition(" ")[0] for line in text.splitlines() if line.startswith("[-]")}
                begun = "podtemplates" in text and ("resourceflavors" in text or _KUEUE in missing)  # all is followed
                told = {_FOLLOWED[each] for each in missing} - {"Kueue"}
                return begun and missing <= api.asked and (code, late) == (503, told)

            wait_for(all_but, "all others are known")
            code, text = ask(server, "/readyz")
            assert code == 503
            assert any(_FOLLOWED[each] in text for each in missing)
            assert len(missing) > 1 or _FOLLOWED[path] in text
            assert ask(server, "/readyz?verbose")[1].endswith(f"readyz check failed: {text}")
            api.held[path].set()
        wait_for(lambda: _ready(server), "it is ready")
        code, text = ask(server, "/readyz?verbose")
        assert (code, "[-]" in text) == (200, False)
        assert text.endswith("readyz check passed\n")
        for name in sorted({*_FOLLOWED.values()} - {"Kueue"}):
            assert f"[+]{name} ok\n" in text


def test_what_the_cluster_does_not_know_or_shows_to_nobody_is_done_without(api: _SilentApi, tmp_path: Path) -> None:
    unknown, forbidden = "/apis/jobset.x-k8s.io/v1alpha2/jobsets", "/apis/cagrpc.io/v1alpha1/provisioningclasses"
    api.refused = {_KUEUE: 404, unknown: 404, forbidden: 403}
    with _served(api, tmp_path) as server:
        wait_for(lambda: _ready(server), "it is ready")
        text = ask(server, "/readyz?verbose")[1]
        assert "[+]jobsets.jobset.x-k8s.io ok\n" in text
        assert "[+]provisioningclasses.cagrpc.io ok, done without: " in text
        assert "kueue" not in text


def test_it_stays_ready_and_says_what_it_does_not_learn_of_any_more(api: _SilentApi, tmp_path: Path) -> None:
    with _served(api, tmp_path) as server:
        wait_for(lambda: _ready(server), "it is ready")
        api.refused["/api/v1/podtemplates"] = 500
        api.closed.set()  # watches end
        wait_for(lambda: "podtemplates ok, not followed for now: " in ask(server, "/readyz?verbose")[1], "it is told")
        assert _ready(server)
        told = json.loads(ask(server, "/status")[1])
        assert (told["ready"], list(told["not_followed"])) == (True, ["podtemplates"])
        assert 'cagrpc_unreadable_objects{resource="podtemplates"} 0.0' in ask(server, "/metrics")[1]


def test_a_standby_waits_for_nothing_that_it_does_not_start(api: _SilentApi, tmp_path: Path) -> None:
    with _served(api, tmp_path, JournalKind.CLUSTER) as server:
        wait_for(lambda: "held by other" in ask(server, "/readyz")[1], "it stands by")
        text = ask(server, "/readyz?verbose")[1]
        assert "]pods " in text
        assert "podtemplates" not in text
