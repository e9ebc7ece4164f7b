"""How the HTTP side of a whole server is reached, by where it listens and what the section `http` says."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cagrpc.config.schema.listen import Address, HttpAccess, TlsPaths
from cagrpc.config.settings import Settings
from cagrpc.errors import InvalidInput
from cagrpc.server.server import Server
from tests.support.certificates import Authority
from tests.support.serving import settings_of
from tests.support.waiting import AMPLE_SECONDS

DEPLOY = Path(__file__).parents[2] / "deploy"
EVERYWHERE = Address("0.0.0.0", 0)


def _development(settings: Settings) -> Settings:
    certs = settings.state_directory / "certs"
    return replace(settings, tls=TlsPaths.made_in(certs))


@contextmanager
def _serving(settings: Settings) -> Iterator[Server]:
    server = Server(settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _ask(url: str, authority: Path | None = None, **headers: str) -> tuple[int, str]:
    trusted = ssl.create_default_context(cafile=authority) if authority is not None else None
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=AMPLE_SECONDS, context=trusted) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_elsewhere_than_on_this_machine_it_has_tls_and_without_a_cluster_only_probes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = _development(replace(settings_of(tmp_path), http=EVERYWHERE))
    authority = settings.state_directory / "certs" / "ca.crt"
    with _serving(settings) as server:
        assert "has probes only" in caplog.text
        assert _ask(f"https://{server.endpoints.http}/healthz", authority) == (200, "ok\n")
        assert _ask(f"https://{server.endpoints.http}/readyz?verbose", authority)[0] == 200
        for page in ("/metrics", "/plans", "/simulation"):
            code, text = _ask(f"https://{server.endpoints.http}{page}", authority, Authorization="Bearer x")
            assert code == 403
            assert "http: {insecure: true} serves whoever comes" in text
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            _ask(f"http://{server.endpoints.http}/healthz")
        listeners = {each["listener"] for each in server._status()["certificates"]}
        assert listeners == {"provider", "expander", "http"}


def test_it_is_plain_there_when_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = replace(settings_of(tmp_path), http=EVERYWHERE, http_access=HttpAccess(insecure=True))
    with _serving(settings) as server:
        assert "to whoever reaches it" in caplog.text
        assert _ask(f"http://{server.endpoints.http}/plans", Host="cagrpc.example")[0] == 200


def test_on_this_machine_it_is_plain_and_for_its_own_names(tmp_path: Path) -> None:
    with _serving(settings_of(tmp_path)) as server:
        assert _ask(f"http://{server.endpoints.http}/plans")[0] == 200
        assert _ask(f"http://{server.endpoints.http}/plans", Host="evil.example")[0] == 421


def test_it_may_have_a_certificate_of_its_own(tmp_path: Path) -> None:
    authority = Authority()
    for name, content in zip(("ca", "crt", "key"), (authority.certificate, *authority.issue("http")), strict=True):
        (tmp_path / name).write_bytes(content)
    access = HttpAccess(insecure=False, certificate=tmp_path / "crt", key=tmp_path / "key")
    with _serving(_development(replace(settings_of(tmp_path), http_access=access))) as server:
        assert _ask(f"https://{server.endpoints.http}/healthz", tmp_path / "ca")[0] == 200
        listeners = [each["listener"] for each in server._status()["certificates"] if each["certificate"] == "server"]
        assert sorted(listeners) == ["expander", "http", "provider"]


def test_without_any_certificate_it_does_not_start_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^http: 0\.0\.0\.0:0 is reached from other machines, .*insecure: true"):
        Server(replace(settings_of(tmp_path), http=EVERYWHERE))


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "crt").write_text("nothing")
    (tmp_path / "key").write_text("nothing")
    access = HttpAccess(insecure=False, certificate=tmp_path / "crt", key=tmp_path / "key")
    with pytest.raises(InvalidInput, match=f"^{tmp_path}/crt"):
        Server(replace(settings_of(tmp_path), http_access=access))


def test_every_page_is_a_readers_right_and_only_the_simulation_may_be_written(tmp_path: Path) -> None:
    def rule(name: str, file: str) -> dict[str, list[str]]:
        found = yaml.safe_load_all((DEPLOY / file).read_text())
        (role,) = [each for each in found if each["kind"] == "ClusterRole" and each["metadata"]["name"] == name]
        (only,) = role["rules"]
        return dict(only)

    with _serving(settings_of(tmp_path)) as server:
        _, text = _ask(f"http://{server.endpoints.http}/nothing")
        written = [path for path, page in server._runner.pages().items() if page.put is not None]
    pages = {each.strip() for each in text.strip().rpartition("; there is ")[2].split(", ")}
    reader = rule("cagrpc-reader", "rbac.yaml")
    assert set(reader["nonResourceURLs"]) == pages - {"/healthz", "/readyz"}
    assert reader["verbs"] == ["get"]
    simulation = rule("cagrpc-simulation", "rbac-simulated-nodes.yaml")
    assert (simulation["nonResourceURLs"], simulation["verbs"]) == (written, ["get", "put"])
