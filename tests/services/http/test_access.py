"""Who is let in over HTTP, on real sockets: readers whom the cluster lets, whoever is on the machine, nobody; and what
is said to the others. The reviews are those of a scripted API server."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from cagrpc.runtime.clock import MonotonicSeconds
from cagrpc.runtime.controller import JsonPage
from cagrpc.services.http import access
from cagrpc.services.http.access import ACCESS_REVIEWS, TOKEN_REVIEWS, Anybody, Nobody, PageAccess, Readers, ThisMachine
from cagrpc.services.http.metrics import Metrics
from cagrpc.services.http.server import HttpServer
from cagrpc.services.http.site import Site
from cagrpc.services.tls import LiveTls, TlsMaterial
from tests.support.certificates import Authority
from tests.support.scripted_api import FakeApi, ScriptedAnswer, fake_api
from tests.support.waiting import AMPLE_SECONDS

PROMETHEUS: Mapping[str, Any] = {
    "username": "system:serviceaccount:monitoring:prometheus",
    "uid": "u1",
    "groups": ["system:authenticated"],
}
TOKEN = "a-token"


def _status(**status: Any) -> ScriptedAnswer:
    return ScriptedAnswer(json.dumps({"status": status}).encode(), 201)


KNOWN = _status(authenticated=True, user={**PROMETHEUS, "extra": {"pod": ["a"]}})
ALLOWED = _status(allowed=True)
NOT_ALLOWED = _status(allowed=False, reason="no RBAC rule")


@dataclass
class _Answered:
    status: int
    text: str
    headers: http.client.HTTPMessage


@dataclass
class _Client:
    port: int
    trusted: ssl.SSLContext | None = None

    def ask(self, path: str, token: str = "", method: str = "GET", body: str | None = None, **more: str) -> _Answered:
        address = ("127.0.0.1", self.port)
        connection = (
            http.client.HTTPConnection(*address, timeout=AMPLE_SECONDS)
            if self.trusted is None
            else http.client.HTTPSConnection(*address, timeout=AMPLE_SECONDS, context=self.trusted)
        )
        headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **more}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return _Answered(response.status, response.read().decode(), response.headers)
        finally:
            connection.close()


@dataclass
class _Written:
    """The page that may be written."""

    value: Mapping[str, Any]

    def put(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        self.value = value
        return value


@contextmanager
def _served(access: PageAccess, tls: LiveTls | None = None, authority: Authority | None = None) -> Iterator[_Client]:
    written = _Written({"speed": 1})
    pages = {"/simulation": JsonPage(lambda: written.value, written.put), "/plans": JsonPage(lambda: {"plans": 1})}
    server = HttpServer("127.0.0.1", 0, Site(Metrics(tuple), lambda: pages), access, tls)
    server.start()
    trusted = None
    if authority is not None:
        trusted = ssl.create_default_context(cadata=authority.certificate.decode())
    try:
        yield _Client(server.port, trusted)
    finally:
        server.stop()


class _Clock:
    def __init__(self) -> None:
        self.now = MonotonicSeconds(0.0)

    def __call__(self) -> MonotonicSeconds:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now = MonotonicSeconds(self.now + seconds)


@dataclass
class _Secured:
    """A server that asks a scripted API."""

    api: FakeApi
    client: _Client
    clock: _Clock

    @property
    def asked(self) -> list[str]:
        return [each.path for each in self.api.requests]


@pytest.fixture(name="secured")
def _secured() -> Iterator[Callable[..., _Secured]]:
    with ExitStack() as stack:

        def start(*answers: ScriptedAnswer, audiences: tuple[str, ...] = ()) -> _Secured:
            api, clock, authority = stack.enter_context(fake_api(*answers)), _Clock(), Authority()
            live = LiveTls(TlsMaterial(*authority.issue("server")))
            client = stack.enter_context(_served(Readers(api.client(), audiences, clock), live, authority))
            return _Secured(api, client, clock)

        yield start


def test_a_reader_is_asked_about_with_who_it_is_and_what_it_wants(secured: Callable[..., _Secured]) -> None:
    it = secured(KNOWN, ALLOWED)
    answer = it.client.ask("/plans?limit=1", TOKEN)
    assert (answer.status, json.loads(answer.text)) == (200, {"plans": 1})
    review, access = it.api.requests
    assert (review.path, review.document) == (
        TOKEN_REVIEWS,
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": TOKEN}},
    )
    assert (access.path, access.document["kind"]) == (ACCESS_REVIEWS, "SubjectAccessReview")
    assert access.document["spec"] == {
        "user": "system:serviceaccount:monitoring:prometheus",
        "uid": "u1",
        "groups": ["system:authenticated"],
        "extra": {"pod": ["a"]},
        "nonResourceAttributes": {"path": "/plans", "verb": "get"},
    }


def test_who_is_not_known_or_has_no_right_is_refused_with_the_reason(secured: Callable[..., _Secured]) -> None:
    it = secured(_status(authenticated=False, error="expired"), KNOWN, NOT_ALLOWED)
    nobody = it.client.ask("/plans")
    assert (nobody.status, nobody.headers["WWW-Authenticate"]) == (401, 'Bearer realm="cagrpc"')
    assert nobody.text.startswith("a bearer token is needed")
    assert it.client.ask("/plans", Authorization="Basic eDp5").status == 401
    assert it.client.ask("/plans", "two words").status == 401
    assert it.client.ask("/plans", "x" * 20_000).status == 401
    assert it.asked == []  # of what cannot be a token nobody is asked
    unknown = it.client.ask("/plans", "of-yesterday")
    assert (unknown.status, unknown.text.partition(":")[0]) == (401, "the API server does not accept this token")
    other = it.client.ask("/plans", TOKEN)
    assert other.status == 403
    assert other.text.startswith("system:serviceaccount:monitoring:prometheus may not get /plans; the ClusterRole")
    assert it.asked == [TOKEN_REVIEWS, TOKEN_REVIEWS, ACCESS_REVIEWS]


def test_a_page_that_does_not_exist_is_told_only_to_readers(secured: Callable[..., _Secured]) -> None:
    it = secured(KNOWN, NOT_ALLOWED)
    assert "/simulation" not in it.client.ask("/nothing", TOKEN).text
    assert it.api.requests[-1].document["spec"]["nonResourceAttributes"]["path"] == "/nothing"


def test_writing_is_a_right_of_its_own(secured: Callable[..., _Secured]) -> None:
    it = secured(KNOWN, ALLOWED, NOT_ALLOWED, ALLOWED)
    assert it.client.ask("/simulation", TOKEN, "HEAD").status == 200
    refused = it.client.ask("/simulation", TOKEN, "PUT", '{"speed": 2}')
    assert (refused.status, refused.headers["Connection"]) == (403, "close")
    assert "cagrpc-simulation" in refused.text
    assert json.loads(it.client.ask("/simulation", TOKEN).text) == {"speed": 1}
    it.clock.passes(11)
    assert it.client.ask("/simulation", TOKEN, "PUT", '{"speed": 2}').status == 200
    assert json.loads(it.client.ask("/simulation", TOKEN).text) == {"speed": 2}
    verbs = [each.document["spec"]["nonResourceAttributes"]["verb"] for each in it.api.requests[1:]]
    assert verbs == ["get", "put", "put"]


def test_an_answer_is_good_for_a_minute_and_a_refusal_for_ten_seconds(secured: Callable[..., _Secured]) -> None:
    it = secured(KNOWN, NOT_ALLOWED, ALLOWED, _status(authenticated=False))
    assert it.client.ask("/plans", TOKEN).status == 403
    it.clock.passes(9)
    assert it.client.ask("/plans", TOKEN).status == 403
    it.clock.passes(2)
    assert it.client.ask("/plans", TOKEN).status == 200
    it.clock.passes(48)
    assert it.client.ask("/plans", TOKEN).status == 200
    assert it.asked == [TOKEN_REVIEWS, ACCESS_REVIEWS, ACCESS_REVIEWS]
    it.clock.passes(2)  # the token is asked about again
    assert it.client.ask("/plans", TOKEN).status == 401


def test_tokens_that_nobody_knows_drive_out_no_reader(
    secured: Callable[..., _Secured], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_MOST_KEPT", 2)
    it = secured(KNOWN, ALLOWED, *(_status(authenticated=False) for _ in range(6)))
    assert it.client.ask("/plans", TOKEN).status == 200
    for number in (0, 1, 2, 2, 1, 0):  # the first is forgotten, and asked about again
        assert it.client.ask("/plans", f"unknown-{number}").status == 401
    assert it.asked.count(TOKEN_REVIEWS) == 1 + 4
    assert it.client.ask("/plans", TOKEN).status == 200
    assert it.asked.count(TOKEN_REVIEWS) == 1 + 4


def test_probes_are_answered_without_a_token_and_without_asking(secured: Callable[..., _Secured]) -> None:
    it = secured()
    assert it.client.ask("/healthz").text == "ok\n"
    assert it.client.ask("/readyz?verbose").status == 200
    assert it.client.ask("/healthz", method="PUT", body="{}").status == 401
    assert it.asked == []


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param((ScriptedAnswer(b"overloaded", 503),), id="the API server does not answer"),
        pytest.param((ScriptedAnswer(b'{"message": "may not"}', 403),), id="cagrpc may not ask who"),
        pytest.param((KNOWN, ScriptedAnswer(b'{"message": "may not"}', 403)), id="cagrpc may not ask whether"),
        pytest.param((ScriptedAnswer(b"{}", 201),), id="no status"),
    ],
)
def test_what_cannot_be_asked_is_unavailable_and_asked_again(
    secured: Callable[..., _Secured], answers: tuple[ScriptedAnswer, ...], caplog: pytest.LogCaptureFixture
) -> None:
    it = secured(*answers, *((ALLOWED,) if len(answers) == 2 else (KNOWN, ALLOWED)))
    refused = it.client.ask("/plans", TOKEN)
    assert refused.status == 503
    assert it.api.url not in refused.text
    assert f"{'SubjectAccessReview' if len(answers) == 2 else 'TokenReview'} failed" in caplog.text
    assert it.client.ask("/plans", TOKEN).status == 200


@pytest.mark.parametrize(("of", "status"), [(["cagrpc", "other"], 200), (["other"], 401), (None, 401)])
def test_a_token_must_be_made_for_the_configured_audience(
    secured: Callable[..., _Secured], of: list[str] | None, status: int
) -> None:
    known = _status(authenticated=True, user=PROMETHEUS, **({"audiences": of} if of is not None else {}))
    it = secured(known, ALLOWED, audiences=("cagrpc",))
    assert it.client.ask("/plans", TOKEN).status == status
    assert it.api.requests[0].document["spec"]["audiences"] == ["cagrpc"]


def test_without_a_cluster_there_are_only_probes() -> None:
    with _served(Nobody()) as client:
        assert client.ask("/readyz").status == 200
        for each in ("/metrics", "/plans", "/nothing"):
            answer = client.ask(each, TOKEN)
            assert (answer.status, answer.text.partition(":")[0]) == (403, f"{each} is not served")
        assert client.ask("/simulation", method="PUT", body="{}").status == 403


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8088", "127.0.0.1:1", "[::1]:8088", "127.8.8.8", "LOCALHOST."]
)
def test_this_machine_is_asked_by_its_own_names(host: str) -> None:
    with _served(ThisMachine()) as client:
        assert client.ask("/plans", Host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8088", "10.0.0.1", "localhost.evil.example", "[::bad"])
def test_another_sites_page_in_a_browser_here_reads_nothing(host: str) -> None:
    with _served(ThisMachine()) as client:
        answer = client.ask("/simulation", method="PUT", body='{"speed": 2}', Host=host)
        assert (answer.status, "serves only this machine" in answer.text) == (421, True)
        assert client.ask("/plans", Host=host).status == 421
        assert client.ask("/healthz", Host=host).status == 200
        assert json.loads(client.ask("/simulation").text) == {"speed": 1}
    with _served(Anybody()) as client:
        assert client.ask("/plans", Host="cagrpc.example").status == 200


def test_every_response_has_the_headers_of_a_public_server(secured: Callable[..., _Secured]) -> None:
    client = secured(KNOWN, ALLOWED).client
    answers = [
        client.ask("/healthz"),
        client.ask("/plans"),
        client.ask("/plans", TOKEN),
        client.ask("/", method="POST"),
    ]
    assert [each.status for each in answers] == [200, 401, 200, 405]
    for each in answers:
        assert each.headers["X-Content-Type-Options"] == "nosniff"
        assert each.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'; frame-ancestors 'none'" in each.headers["Content-Security-Policy"]
        assert each.headers["Referrer-Policy"] == "no-referrer"
        assert "Server" not in each.headers
        assert "Strict-Transport-Security" not in each.headers  # it would be for other servers here, too


def test_browsers_are_told_to_come_by_https_only_elsewhere_than_on_this_machine() -> None:
    live = LiveTls(TlsMaterial(*(authority := Authority()).issue("server")))
    server = HttpServer("0.0.0.0", 0, Site(Metrics(tuple)), Nobody(), live)
    server.start()
    try:
        trusted = ssl.create_default_context(cadata=authority.certificate.decode())
        answer = _Client(server.port, trusted).ask("/healthz")
        assert answer.headers["Strict-Transport-Security"].startswith("max-age=")
    finally:
        server.stop()
