"""The TLS files of the server: where they are, which listener has which, and whether development certificates are made.
Making and checking them is in `certificates`, reading them again in `rotation`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cagrpc.config.schema.listen import TlsPaths
from cagrpc.config.settings import Settings
from cagrpc.errors import InvalidInput
from cagrpc.runtime.clock import EpochClock
from cagrpc.server import certificates
from cagrpc.server.rotation import CertificateController, CertificateFiles
from cagrpc.services.tls import LiveTls

log = logging.getLogger(__name__)

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


@dataclass(frozen=True, slots=True)
class Listeners:
    """The certificates of all that listens; None where it is plain."""

    grpc: LiveTls | None
    http: LiveTls | None
    rotation: CertificateController | None
    """Reads them again; None where there are none."""


def open_listeners(settings: Settings, clock: EpochClock) -> Listeners:
    """Return the server's certificates, checked; make development certificates in the state directory where the
    configuration names no others. Raises InvalidInput, which names the file."""
    renew = partial(_make_certificates, settings) if makes_certificates(settings) else None
    if renew is not None and (made := renew()):
        log.info("made development certificates in %s: %s", development_directory(settings), ", ".join(made))
    files, own, secured = settings.tls, settings.http_access, settings.http_is_secured
    served: list[tuple[CertificateFiles, LiveTls]] = []

    def live(listeners: tuple[str, ...], *paths: Path) -> LiveTls:
        certificate_files = CertificateFiles(listeners, *paths)
        found = LiveTls(certificate_files.read(None, datetime.fromtimestamp(clock(), UTC)))
        served.append((certificate_files, found))
        return found

    grpc = http = None
    if files is not None:
        shared = secured and own.certificate is None
        own_provider = ("provider",) if settings.provider is not None else ()
        listeners = (*own_provider, "expander", *(("http",) if shared else ()))
        grpc = live(listeners, files.certificate, files.key, files.client_ca)
        http = grpc if shared else None
    if secured and own.certificate is not None and own.key is not None:
        http = live(("http",), own.certificate, own.key)
    if secured and http is None:
        raise InvalidInput(
            f"http: {settings.http} is reached from other machines, and there is no certificate for it: give"
            " http.certificate and http.key, or http: {insecure: true} for plain HTTP"
        )
    return Listeners(grpc, http, CertificateController(served, clock, renew) if served else None)


def _make_certificates(settings: Settings) -> tuple[str, ...]:
    addresses = (settings.provider, settings.expander, settings.http)
    hosts = [each.host for each in addresses if each is not None and each.host not in WILDCARDS]
    return certificates.ensure_certificates(development_directory(settings), hosts, keep_hosts=True)


def makes_certificates(settings: Settings) -> bool:
    """Return whether development certificates are made: only in the state directory."""
    return settings.tls is not None and settings.tls.directory == development_directory(settings)


def development_directory(settings: Settings) -> Path:
    """Return the directory of development certificates."""
    return settings.state_directory / "certs"


def in_state_directory(settings_tls: TlsPaths | None, before: Path, after: Path) -> TlsPaths | None:
    """Return the TLS files for another state directory: development certificates move with it."""
    if settings_tls is None or settings_tls.directory != before / "certs":
        return settings_tls
    moved = after / "certs"
    return replace(
        settings_tls,
        certificate=moved / "server.crt",
        key=moved / "server.key",
        client_ca=moved / "ca.crt",
        directory=moved,
    )
