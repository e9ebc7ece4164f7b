"""The server's TLS files: where they are, and whether development certificates are made. Making and checking them is in
`certificates`."""

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
    """Return the server's certificates, checked; make development certificates in the state directory where the
    configuration names no others. Raises InvalidInput, which names the file."""
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
