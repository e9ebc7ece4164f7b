"""The client of a server's pages: with TLS and a token, and what it says where it is not let in."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from cagrpc.cli.main import main
from cagrpc.errors import Unavailable
from cagrpc.inspection.client import ServerAddress, get_json, get_list
from cagrpc.runtime.controller import JsonList, JsonPage
from cagrpc.services.http.access import Asked
from cagrpc.services.http.metrics import Metrics
from cagrpc.services.http.server import HttpServer
from cagrpc.services.http.site import HttpAnswer, Site, text_answer
from cagrpc.services.tls import LiveTls, TlsMaterial
from tests.support.certificates import Authority


class _OneToken:
    async def refusal(self, asked: Asked) -> HttpAnswer | None:
        return None if asked.authorization == "Bearer right" else text_answer(HTTPStatus.FORBIDDEN, "you may not")


@pytest.fixture(name="secured")
def _secured(tmp_path: Path) -> Iterator[ServerAddress]:
    authority = Authority()
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    pages = {"/slack": JsonPage(lambda: {"carrier": "pods"}), "/plans": JsonPage(lambda: JsonList([1, 2, 3]))}
    live = LiveTls(TlsMaterial(*authority.issue("server")))
    server = HttpServer("127.0.0.1", 0, Site(Metrics(tuple), lambda: pages), _OneToken(), live)
    server.start()
    yield ServerAddress(f"https://127.0.0.1:{server.port}", tmp_path / "ca.crt", "right")
    server.stop()


def test_a_page_is_read_with_tls_and_a_token(secured: ServerAddress) -> None:
    assert get_json(secured, "/slack") == {"carrier": "pods"}
    assert get_list(secured, "/plans?limit=2") == [1, 2, 3]


def test_who_is_not_let_in_reads_why(secured: ServerAddress, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"https://.*/slack answers 403 Forbidden: you may not$"):
        get_json(ServerAddress(secured.text, secured.authority, "wrong"), "/slack")
    (tmp_path / "other.crt").write_bytes(Authority().certificate)
    with pytest.raises(Unavailable, match=r"its certificate is not trusted .*--http-ca names the authority"):
        get_json(ServerAddress(secured.text, tmp_path / "other.crt", "right"), "/slack")


def test_a_token_is_never_sent_in_the_clear() -> None:
    assert ServerAddress("127.0.0.1:1", None, "right").headers() == {}
    assert ServerAddress("http://127.0.0.1:1", None, "right").headers() == {}


def test_commands_take_it_from_flags_or_the_environment(
    secured: ServerAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("right\n")
    flags = ["--http", secured.text, "--http-ca", str(secured.authority), "--token-file", str(tmp_path / "token")]
    assert main(["slack", *flags, "--output", "json"]) == 0
    assert '"pods"' in capsys.readouterr().out
    for name, value in (("CAGRPC_HTTP", secured.text), ("CAGRPC_HTTP_CA", str(secured.authority))):
        monkeypatch.setenv(name, value)
    assert main(["slack"]) != 0
    assert "you may not" in capsys.readouterr().err
    monkeypatch.setenv("CAGRPC_TOKEN", "right")
    assert main(["slack", "--output", "json"]) == 0
    assert main(["slack", "--token-file", str(tmp_path / "none")]) == 2
    assert "none: its token cannot be read" in capsys.readouterr().err
