"""The server's TLS files: which of them are ours to make, and where they are."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from cagrpc.config.schema.tls import TlsPaths
from cagrpc.config.settings import Settings
from cagrpc.server import certificates
from cagrpc.services.grpc.servers import ServerTls

log = logging.getLogger(__name__)

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


def load_tls(settings: Settings) -> ServerTls | None:
    """The server's certificates, checked; development certificates are made in the state directory where the
    configuration names no others. Raises InvalidInput naming the file."""
    files = settings.tls
    if files is None:
        return None
    if makes_certificates(settings):
        hosts = [a.host for a in (settings.provider, settings.expander) if a.host not in WILDCARDS]
        made = certificates.ensure_certificates(development_directory(settings), hosts, keep_hosts=True)
        if made:
            log.info("made development certificates in %s: %s", files.directory, ", ".join(made))
    loaded = certificates.load(files.certificate, files.key, files.client_ca)
    return ServerTls(loaded.certificate, loaded.key, loaded.authority)


def makes_certificates(settings: Settings) -> bool:
    """Whether the certificates are ours to make: only those in the state directory are."""
    return settings.tls is not None and settings.tls.directory == development_directory(settings)


def development_directory(settings: Settings) -> Path:
    return settings.state_directory / "certs"


def in_state_directory(settings_tls: TlsPaths | None, before: Path, after: Path) -> TlsPaths | None:
    """The TLS files when the state directory moves: development certificates move with it."""
    if settings_tls is None or settings_tls.directory != before / "certs":
        return settings_tls
    kept = after / "certs"
    return replace(
        settings_tls,
        certificate=kept / "server.crt",
        key=kept / "server.key",
        client_ca=kept / "ca.crt",
        directory=kept,
    )
