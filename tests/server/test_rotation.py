"""Certificates that are replaced while they are served: no call fails, half of a pair changes nothing, clients of an
authority that is gone are refused, and what is about to expire is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from cagrpc.config.schema.listen import Address, TlsPaths
from cagrpc.errors import InvalidInput
from cagrpc.runtime.clock import EpochSeconds, epoch
from cagrpc.server.server import Server
from cagrpc.server.tls import RENEW_SECONDS, CertificateController, CertificateFiles
from cagrpc.services.http.metrics import Metrics
from cagrpc.services.tls import LiveTls
from tests.support.certificates import Authority
from tests.support.grpc_servers import GrpcClient
from tests.support.serving import settings_of
from tests.support.waiting import AMPLE_SECONDS

pytestmark = pytest.mark.usefixtures("both_fronts")


class _Secret:
    """The files of one pair, as a Secret that is mounted has them."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.certificate, self.key, self.authority = (directory / name for name in ("tls.crt", "tls.key", "ca.crt"))
        self.issue(authority)
        self.trust(authority)

    def issue(self, authority: Authority) -> bytes:
        certificate, key = authority.issue("server")
        self.certificate.write_bytes(certificate)
        self.key.write_bytes(key)
        return certificate

    def trust(self, *authorities: Authority) -> None:
        self.authority.write_bytes(b"".join(each.certificate for each in authorities))

    def controller(self) -> tuple[CertificateController, LiveTls]:
        files = CertificateFiles(("provider", "expander"), self.certificate, self.key, self.authority)
        controller = CertificateController([(files, LiveTls(files.read(None, datetime.now(UTC))))], epoch)
        return controller, controller._served[0][1]


@pytest.fixture(name="authority")
def _authority() -> Authority:
    return Authority()


@pytest.fixture(name="secret")
def _secret(tmp_path: Path, authority: Authority) -> _Secret:
    return _Secret(tmp_path, authority)


def test_half_of_a_pair_changes_nothing_until_the_other_half_comes(secret: _Secret, authority: Authority) -> None:
    controller, live = secret.controller()
    before = live.now
    certificate, key = authority.issue("server")
    secret.certificate.write_bytes(certificate)
    with pytest.raises(InvalidInput, match=r"tls\.key is not the key of .*tls\.crt; those in use stay"):
        controller.step()
    assert live.now is before
    assert "is not the key of" in controller.status()["certificates_problem"]
    secret.key.write_bytes(key)
    controller.step()
    assert (live.now.certificate, live.now.key) == (certificate, key)
    assert controller.status()["certificates_problem"] == ""


@pytest.mark.parametrize("content", [b"", b"nonsense", None], ids=["empty", "nonsense", "gone"])
def test_files_that_cannot_be_used_change_nothing(secret: _Secret, content: bytes | None) -> None:
    controller, live = secret.controller()
    for path in (secret.certificate, secret.key, secret.authority):
        before = path.read_bytes()
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        with pytest.raises(InvalidInput, match=path.name):
            controller.step()
        path.write_bytes(before)
    first = live.now
    controller.step()
    assert live.now is first


def test_one_secret_that_is_broken_keeps_no_other_from_being_read(tmp_path: Path, authority: Authority) -> None:
    secrets = []
    for name in ("grpc", "http"):
        (tmp_path / name).mkdir()
        secrets.append(_Secret(tmp_path / name, authority))
    served = []
    for listener, secret in zip(("provider", "http"), secrets, strict=True):
        files = CertificateFiles((listener,), secret.certificate, secret.key)
        served.append((files, LiveTls(files.read(None, datetime.now(UTC)))))
    controller = CertificateController(served, epoch)
    secrets[0].key.write_bytes(b"half")
    newer = secrets[1].issue(authority)
    with pytest.raises(InvalidInput, match=r"grpc/tls\.key is not an unencrypted PEM private key"):
        controller.step()
    assert served[1][1].now.certificate == newer


def test_what_expires_is_a_metric_and_a_warning_once(secret: _Secret, caplog: pytest.LogCaptureFixture) -> None:
    """The test authority's certificates are good for an hour from now, and began an hour ago."""
    caplog.set_level(logging.WARNING, "cagrpc.server.tls")
    files = CertificateFiles(("provider", "expander"), secret.certificate, secret.key, secret.authority)
    now = datetime.now(UTC).timestamp()
    live = LiveTls(files.read(None, datetime.now(UTC)))
    controller = CertificateController([(files, live)], lambda: EpochSeconds(now))
    controller.step()
    expires = x509.load_pem_x509_certificate(live.now.certificate).not_valid_after_utc.timestamp()
    family, warns = text_string_to_metric_families(Metrics(controller.collectors).exposition()[1].decode())
    assert warns.name == "cagrpc_certificate_warning_timestamp_seconds"
    warn_from = {(s.labels["listener"], s.labels["certificate"]): s.value for s in warns.samples}
    assert warn_from["provider", "server"] == pytest.approx(expires - 0.2 * 7200, abs=2)
    assert family.name == "cagrpc_certificate_expiration_timestamp_seconds"
    samples = {(s.labels["listener"], s.labels["certificate"]): s.value for s in family.samples}
    assert set(samples) == {("provider", "server"), ("provider", "client_ca"), ("expander", "server")}
    assert samples["provider", "server"] == samples["expander", "server"] == expires
    assert caplog.messages == []
    now += 2400  # less than a fifth of two hours is left
    for _ in range(2):
        controller.step()
    assert len(caplog.messages) == 2
    assert all("expires at" in message for message in caplog.messages)
    now += 3600
    controller.step()
    assert "tls.crt expired at" in caplog.messages[2]
    told = {each["listener"]: each["warning"] for each in controller.status()["certificates"]}
    assert "tls.crt expired at" in told["expander"]


def test_development_certificates_are_renewed_while_they_are_served(secret: _Secret, authority: Authority) -> None:
    made: list[bytes] = []

    def renew() -> tuple[str, ...]:
        made.append(secret.issue(authority))
        return ("server",)

    now = datetime.now(UTC).timestamp() - RENEW_SECONDS / 2
    files = CertificateFiles(("provider",), secret.certificate, secret.key)
    live = LiveTls(files.read(None, datetime.now(UTC)))
    controller = CertificateController([(files, live)], lambda: EpochSeconds(now), renew)
    controller.step()
    assert made == []
    now += RENEW_SECONDS
    controller.step()
    assert made == [live.now.certificate]


@contextmanager
def _serving(directory: Path, secret: _Secret) -> Iterator[tuple[Server, CertificateController]]:
    anywhere = Address("127.0.0.1", 0)
    paths = TlsPaths(secret.certificate, secret.key, secret.authority)
    server = Server(replace(settings_of(directory), provider=anywhere, expander=anywhere, http=anywhere, tls=paths))
    server.start()
    try:
        yield server, next(each for each in server._runner.controllers if isinstance(each, CertificateController))
    finally:
        server.stop()


class _Caller:
    """An autoscaler that never stops asking, over one connection and over a new one for each call."""

    def __init__(self, server: Server, authority: Authority, trusted: bytes) -> None:
        certificate, key = authority.issue("cluster-autoscaler")
        self._credentials = grpc.ssl_channel_credentials(trusted, key, certificate)
        self._address = server.endpoints.provider
        self._expander = server.endpoints.expander
        self._ended = threading.Event()
        self._called = threading.Condition()
        self.calls = 0
        self.failures: list[tuple[str, str]] = []
        self._threads = [threading.Thread(target=self._run, args=(fresh,), daemon=True) for fresh in (True, False)]
        for each in self._threads:
            each.start()

    def wait(self, more: int) -> None:
        with self._called:
            least = self.calls + more
            assert self._called.wait_for(lambda: self.calls >= least, AMPLE_SECONDS)

    def end(self) -> None:
        self._ended.set()
        for each in self._threads:
            each.join(AMPLE_SECONDS)

    def _run(self, fresh: bool) -> None:
        kept = None
        while not self._ended.is_set():
            options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
            channel = kept or grpc.secure_channel(self._address, self._credentials, options)
            code, details = GrpcClient(channel).code("NodeGroups", timeout=AMPLE_SECONDS)
            if fresh:
                channel.close()
            else:
                kept = channel
            with self._called:
                self.calls += 1
                if code != "OK":
                    self.failures.append((code, details))
                self._called.notify_all()
        if kept is not None:
            kept.close()


def test_all_certificates_are_rotated_under_load_and_no_call_fails(
    tmp_path: Path, secret: _Secret, authority: Authority
) -> None:
    """As it is done: the new authority is trusted beside the old one, all get new certificates, the old one goes."""
    successor = Authority("its successor")
    both = authority.certificate + successor.certificate
    with _serving(tmp_path, secret) as (server, controller):
        old = _Caller(server, authority, both)
        old.wait(20)
        secret.trust(authority, successor)
        secret.issue(successor)
        controller.step()
        old.wait(20)
        new = _Caller(server, successor, successor.certificate)
        new.wait(20)
        old.end()
        assert (old.failures, new.failures) == ([], [])
        secret.trust(successor)
        controller.step()
        new.wait(20)
        new.end()
        assert new.failures == []
        assert controller.status()["certificates_problem"] == ""


def test_clients_of_an_authority_that_is_gone_are_refused_also_on_old_connections(
    tmp_path: Path, secret: _Secret, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "cagrpc.services.grpc.interceptor")
    successor = Authority("its successor")
    with _serving(tmp_path, secret) as (server, controller):
        certificate, key = authority.issue("cluster-autoscaler")
        credentials = grpc.ssl_channel_credentials(authority.certificate, key, certificate)
        with grpc.secure_channel(server.endpoints.provider, credentials) as connected:
            client = GrpcClient(connected)
            assert client.code("NodeGroups")[0] == "OK"
            secret.trust(successor)
            controller.step()
            for _ in range(3):
                code, details = client.code("NodeGroups")
                assert code == "UNAUTHENTICATED"
                assert "the certificate of cluster-autoscaler is not of the present authority" in details
            assert len(caplog.messages) == 1
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.secure_channel(server.endpoints.provider, credentials, options) as again:
                assert GrpcClient(again).code("NodeGroups")[0] == "UNAVAILABLE"  # not even a handshake
            secret.trust(authority, successor)
            controller.step()
            assert client.code("NodeGroups")[0] == "OK"
