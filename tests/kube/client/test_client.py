"""What goes over the wire for each call, and which error each refusal is."""

from __future__ import annotations

import gc
import json
import logging
import select
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import urllib3
from kubernetes.client import Configuration

from cagrpc.errors import CagrpcError, Conflict, InvalidInput, NotFound, Unavailable
from cagrpc.kube.client.access import Access, from_kubeconfig
from cagrpc.kube.client.client import Client, PatchKind
from cagrpc.kube.client.envelopes import Encoding
from cagrpc.kube.client.failures import Expired, Forbidden, TooManyRequests, request_info
from cagrpc.kube.client.metrics import ApiRequestMetrics
from cagrpc.server.certificates import ensure_certificates
from cagrpc.services.http.metrics import Metrics
from tests.support.clocks import any_clock
from tests.support.scripted_api import FakeApi, ScriptedAnswer, fake_api, refused

POD = "/api/v1/namespaces/n/pods/p"


def _one(api: FakeApi) -> Any:
    (request,) = api.requests
    return request


def test_create_replace_and_get_send_and_give_json() -> None:
    with fake_api(ScriptedAnswer(b'{"a":1}'), ScriptedAnswer(b'{"a":2}'), ScriptedAnswer(b'{"a":3}')) as api:
        client = api.client()
        assert client.create("/api/v1/namespaces/n/pods", {"kind": "Pod"}) == {"a": 1}
        assert client.replace(POD, {"kind": "Pod"}) == {"a": 2}
        assert client.get(POD, {"pretty": "a b"}) == {"a": 3}
        client.close()
    create, replace, get = api.requests
    assert (create.method, create.path, create.document) == ("POST", "/api/v1/namespaces/n/pods", {"kind": "Pod"})
    assert (replace.method, replace.headers["content-type"]) == ("PUT", "application/json")
    assert (get.method, get.query, get.body) == ("GET", {"pretty": "a b"}, b"")
    assert {request.headers["user-agent"] for request in api.requests} == {"cagrpc"}


def test_every_attempt_is_observed_with_its_code(tmp_path: Path) -> None:
    seen: list[tuple[str, int | None]] = []
    with fake_api(refused(429, "later", retry_after="1"), ScriptedAnswer(), refused(404, "gone")) as api:
        client = api.client(observe=lambda request, code, seconds: seen.append((str(request), code)))
        client.patch(POD, {})
        with pytest.raises(NotFound):
            client.hurried(5.0).get(POD)
        client.close()
    with pytest.raises(Unavailable):
        client.get(POD)  # nobody is there any more
    asked = ["patch pods p in namespace n"] * 2 + ["get pods p in namespace n"] * 2
    assert seen == list(zip(asked, (429, 200, 404, None), strict=True))


def test_requests_are_metrics_by_verb_resource_and_code() -> None:
    metrics = ApiRequestMetrics()
    metrics.observe(request_info("GET", POD, {}), 200, 0.3)
    metrics.observe(request_info("GET", "/apis/apps/v1/deployments", {"watch": "1"}), None, 5.0)
    text = Metrics(metrics.collectors).exposition()[1].decode()
    name = "cagrpc_kubernetes_request_duration_seconds"
    assert f'{name}_bucket{{code="200",le="0.5",resource="pods",verb="get"}} 1.0' in text
    assert f'{name}_count{{code="unreachable",resource="deployments.apps",verb="watch"}} 1.0' in text


@pytest.mark.parametrize("kind", PatchKind)
def test_patches_say_which_kind_they_are(kind: PatchKind) -> None:
    body = {"a": None}
    with fake_api(ScriptedAnswer()) as api:
        client = api.client()
        client.patch(POD, body, kind)
        client.close()
    request = _one(api)
    assert (request.method, request.headers["content-type"], request.document) == ("PATCH", kind, body)


def test_deleting_what_is_gone_is_no_error() -> None:
    with fake_api(ScriptedAnswer(), refused(404), refused(409), refused(409)) as api:
        client = api.client()
        client.delete(POD, uid="u", grace_seconds=0)
        client.delete(POD)
        client.delete(POD, uid="u")  # another pod of that name
        with pytest.raises(Conflict):
            client.delete(POD)
        client.close()
    assert api.requests[0].document == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u"},
        "gracePeriodSeconds": 0,
    }


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidInput),
        (401, Unavailable),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Expired),
        (422, InvalidInput),
        (429, TooManyRequests),
        (500, Unavailable),
        (504, Unavailable),
    ],
)
@pytest.mark.parametrize("protobuf", [False, True])
def test_refusals_are_errors_of_the_tree_with_the_servers_words(
    status: int, error: type[CagrpcError], *, protobuf: bool
) -> None:
    with fake_api(refused(status, "because of this", protobuf=protobuf)) as api:
        client = api.client()
        with pytest.raises(error, match="because of this") as raised:
            client.get(POD)
        client.close()
    assert type(raised.value) is error
    assert api.url in str(raised.value)


def test_a_missing_right_is_named_in_the_words_of_rbac() -> None:
    with fake_api(refused(403, "no")) as api:
        client = api.client()
        with pytest.raises(Unavailable, match=r"the right to create pods/binding is missing; the roles in deploy/"):
            client.create(f"{POD}/binding", {})
        client.close()


@pytest.mark.parametrize(
    ("method", "path", "query", "told"),
    [
        ("GET", "/api/v1/pods", {}, "list pods"),
        ("GET", "/api/v1/pods", {"watch": "1"}, "watch pods"),
        ("GET", "/api/v1/namespaces/n", {}, "get namespaces n"),
        ("GET", "/api/v1/namespaces/n/pods", {}, "list pods in namespace n"),
        ("PATCH", f"{POD}/status", {}, "patch pods/status p in namespace n"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", {}, "update leases.coordination.k8s.io l in"),
        ("DELETE", "/api/v1/nodes/n", {}, "delete nodes n"),
        ("GET", "/version", {}, "list /version"),
    ],
)
def test_requests_are_told_as_rbac_tells_them(method: str, path: str, query: dict[str, str], told: str) -> None:
    assert str(request_info(method, path, query)).startswith(told)


def test_a_server_that_asks_for_time_gets_it_up_to_ten_seconds() -> None:
    busy = refused(429, "busy", Retry_After="4")
    with fake_api(busy, busy, ScriptedAnswer(b'{"a":1}'), busy, busy, busy) as api:
        waits: list[float] = []
        client = api.client(waits)
        assert client.create("/api/v1/nodes", {}) == {"a": 1}
        assert waits == [4.0, 4.0]
        with pytest.raises(Unavailable, match="busy"):
            client.get(POD)
        client.close()
    assert not api.answers


def test_what_may_have_been_done_is_not_asked_again() -> None:
    with fake_api(
        refused(503, "down", Retry_After="1"), refused(503, "down", Retry_After="1"), ScriptedAnswer()
    ) as api:
        waits: list[float] = []
        client = api.client(waits)
        with pytest.raises(Unavailable, match="down"):
            client.create("/api/v1/nodes", {})
        assert not waits
        client.get(POD)
        assert waits == [1.0]
        client.close()


@pytest.mark.parametrize("body", [b"<html>", b"[]"])
def test_answers_that_are_not_of_an_api_server_are_no_answers(body: bytes) -> None:
    with fake_api(ScriptedAnswer(body)) as api:
        client = api.client()
        with pytest.raises(Unavailable, match="of an API server"):
            client.get(POD)
        client.close()


def test_a_server_out_of_reach_is_unavailable() -> None:
    with fake_api() as api:
        client = api.client()
    with pytest.raises(Unavailable, match="cannot be reached"):
        client.get(POD)


def _kubeconfig(tmp_path: Path, url: str, **user: Any) -> Path:
    path = tmp_path / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u"}},
            {"name": "two", "context": {"cluster": "elsewhere", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": url}},
            {"name": "elsewhere", "cluster": {"server": "http://127.0.0.2:9"}},
        ],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(document))
    return path


def test_a_kubeconfig_gives_server_and_token(tmp_path: Path) -> None:
    with fake_api(ScriptedAnswer()) as api:
        path = _kubeconfig(tmp_path, api.url, token="secret")
        client = Client.connect(path)
        client.get(POD)
        assert _one(api).headers["authorization"] == "Bearer secret"
        assert Client.connect(path, "two").server == "http://127.0.0.2:9"
        client.close()


@pytest.mark.parametrize("text", ["", "[]", "- {", "a: 1", "clusters: 3\ncurrent-context: x\ncontexts: []"])
def test_a_kubeconfig_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=str(path)):
        Client.connect(path)


def test_kubeconfigs_and_contexts_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere.*No such file"):
        Client.connect(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="context three"):
        Client.connect(_kubeconfig(tmp_path, "http://127.0.0.1:9"), "three")


def test_outside_a_cluster_there_is_no_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidInput, match=r"kubernetes\.in_cluster"):
        Client.connect(None)


def test_a_token_file_that_was_renewed_is_read_again_when_the_old_token_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    now = [0.0]
    with fake_api(
        ScriptedAnswer(), refused(401), ScriptedAnswer(), refused(401), refused(401), ScriptedAnswer()
    ) as api:
        path = _kubeconfig(tmp_path, api.url, tokenFile=str(token))
        client = Client(Access(from_kubeconfig(path), 2, clock=any_clock(lambda: now[0])))
        client.get(POD)
        token.write_text("new")
        now[0] = 60.0
        client.get(POD)
        with pytest.raises(Unavailable, match="does not accept our credentials"):
            client.get(POD)  # they were loaded just now
        now[0] = 120.0
        client.get(POD)
        client.close()
    sent = [request.headers["authorization"].removeprefix("Bearer ") for request in api.requests]
    assert sent == ["old", "old", "new", "new", "new", "new"]


def test_an_exec_plugin_is_asked_again_before_its_token_expires(tmp_path: Path) -> None:
    plugin, count = tmp_path / "plugin.py", tmp_path / "count"
    plugin.write_text(
        "import json, pathlib\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "calls = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(calls))\n"
        "expiry = '2020-01-01T00:00:00Z' if calls == 1 else '2999-01-01T00:00:00Z'\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',\n"
        "  'status': {'token': f'token-{calls}', 'expirationTimestamp': expiry}}))\n"
    )
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(plugin)],
        "interactiveMode": "Never",
    }
    with fake_api(ScriptedAnswer(), ScriptedAnswer()) as api:
        client = Client.connect(_kubeconfig(tmp_path, api.url, exec=command))
        client.get(POD)
        client.get(POD)
        client.close()
    assert [request.headers["authorization"] for request in api.requests] == ["Bearer token-2"] * 2


def test_credentials_that_vanish_are_unavailable(tmp_path: Path) -> None:
    now = [0.0]
    with fake_api(refused(401)) as api:
        path = _kubeconfig(tmp_path, api.url, token="t")
        client = Client(Access(from_kubeconfig(path), 2, clock=any_clock(lambda: now[0])))
        path.unlink()
        now[0] = 60.0
        with pytest.raises(Unavailable, match="there are no others"):
            client.get(POD)
        client.close()


def test_as_many_connections_are_kept_as_were_asked_for() -> None:
    def load(configuration: Configuration) -> None:
        configuration.host = "http://127.0.0.1:9/"

    session = Access(load, pool_size=5).session
    assert session.url == "http://127.0.0.1:9"
    assert session.pool.connection_pool_kw["maxsize"] == 5


def test_who_is_in_a_hurry_does_not_wait_for_a_late_answer() -> None:
    never = Event()
    with fake_api(ScriptedAnswer(chunks=(), until=never)) as api:
        client = api.client()
        with pytest.raises(Unavailable, match="timed out"):
            client.hurried(0.05).get(POD)
        never.set()
        client.close()


def test_a_stream_that_is_closed_before_it_is_read_leaves_no_connection_open() -> None:
    ended = Event()
    with fake_api(ScriptedAnswer(chunks=(b"a",), until=ended)) as api:
        client = api.client()
        stream = client.stream("/api/v1/pods", {"watch": "1"}, Encoding.JSON)
        stream.close()
        assert list(stream) == []
        ended.set()
        client.close()
        del stream
        gc.collect()  # a connection left open would be told here, which fails the test


def test_a_refusal_of_a_stream_that_breaks_off_is_unavailable() -> None:
    with fake_api(ScriptedAnswer(chunks=(b"because of",), status=500, cut=True)) as api:
        client = api.client()
        with pytest.raises(Unavailable, match="Connection broken"):
            client.stream("/api/v1/pods", {"watch": "1"}, Encoding.JSON)
        client.close()


def test_a_connection_that_is_reset_before_its_handshake_is_not_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    connect = urllib3.util.connection.create_connection

    def reset(*arguments: Any, **options: Any) -> socket.socket:
        connected = connect(*arguments, **options)
        server.close()  # it was not accepted yet
        told = select.poll()
        told.register(connected, 0)
        assert told.poll(10_000)
        return connected

    monkeypatch.setattr(urllib3.util.connection, "create_connection", reset)
    client = Client(Access(_unverified(f"https://127.0.0.1:{server.getsockname()[1]}"), pool_size=1))
    with pytest.raises(Unavailable, match="Connection reset by peer"):
        client.get(POD)
    client.close()
    gc.collect()  # as above


def test_a_server_that_is_not_verified_is_told_once_and_not_with_each_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ensure_certificates(tmp_path, ())
    with fake_api(*[ScriptedAnswer()] * 3, tls=tmp_path) as api, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        client = Client(Access(_unverified(api.url), pool_size=1))
        for _ in range(3):
            client.get(POD)
        client.close()
    assert (len(api.requests), warned) == (3, [])
    (told,) = caplog.records
    assert (told.levelno, told.name) == (logging.WARNING, "cagrpc.kube.client.access")
    assert told.getMessage().startswith(f"{api.url}: its certificate is not verified")


def test_nor_is_it_told_again_with_new_credentials(caplog: pytest.LogCaptureFixture) -> None:
    access = Access(_unverified("https://127.0.0.1:1"), 1, any_clock(iter((0.0, 60.0, 60.0)).__next__))
    assert access.renew(access.session)
    assert len(caplog.records) == 1


def _unverified(url: str) -> Callable[[Configuration], None]:
    def load(configuration: Configuration) -> None:
        configuration.host, configuration.verify_ssl = url, False

    return load
