"""The TLS files of the server: where they are, which listener has which, and whether development certificates are made.
They are read again while they are served, so that they are rotated without a restart, and it is reported when they
expire. Making and checking them is in `certificates`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cagrpc.api.encoding.certificates import Lifetime, authority_lifetime, chain_lifetime
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.config.schema.listen import TlsPaths
from cagrpc.config.settings import Settings
from cagrpc.errors import InvalidInput
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.controller import Controller, Json
from cagrpc.runtime.log_once import LogOnce
from cagrpc.runtime.metrics import AtScrape, gauges
from cagrpc.server import certificates
from cagrpc.services.tls import LiveTls, TlsMaterial

log = logging.getLogger(__name__)

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
RELOAD_SECONDS = 5.0
RENEW_SECONDS = 3600.0


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
    ours = settings.tls is not None and settings.tls.directory == development_directory(settings)
    renew = partial(_make_certificates, settings) if ours else None
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


def development_directory(settings: Settings) -> Path:
    return settings.state_directory / "certs"


def in_state_directory(settings_tls: TlsPaths | None, before: Path, after: Path) -> TlsPaths | None:
    """Return the TLS files for another state directory: development certificates move with it."""
    if settings_tls is None or settings_tls.directory != before / "certs":
        return settings_tls
    return TlsPaths.made_in(after / "certs", settings_tls.client_names)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Files that are served by one or more listeners (provider, expander, http)."""

    listeners: tuple[str, ...]
    certificate: Path
    key: Path
    client_ca: Path | None = None

    def read(self, known: TlsMaterial | None, now: datetime) -> TlsMaterial:
        return certificates.load(self.certificate, self.key, self.client_ca, known=known, now=now)


class CertificateController(Controller):
    """Replaces what is served when the files have something newer that fits together; until then the old one stays."""

    name = "certificates"
    every_seconds = RELOAD_SECONDS

    def __init__(
        self,
        served: Sequence[tuple[CertificateFiles, LiveTls]],
        clock: EpochClock,
        renew: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """`renew` makes development certificates anew where they are about to expire."""
        self._served = tuple(served)
        self._clock = clock
        self._renew = renew
        self._renewed_at = clock()
        self._told = LogOnce()
        self._problem = ""

    def step(self) -> None:
        """Raises InvalidInput for what cannot be used, when all else is done."""
        if self._renew is not None and self._clock() >= self._renewed_at + RENEW_SECONDS:
            self._renewed_at = self._clock()
            if made := tuple(self._renew()):
                log.info("renewed development certificates: %s", ", ".join(made))
        problems = []
        for files, live in self._served:
            try:
                if live.replace(files.read(live.now, self._now())):
                    self._tell_of_new(files, live)
            except InvalidInput as problem:
                problems.append(str(problem))
        self._problem = "; ".join(problems)
        for each in (lifetime for files, live in self._served for lifetime in _in_use(files, live.now).values()):
            warning = each.warning(self._now())
            if warning and self._told.is_new(warning, about=each.path):
                log.warning("%s", warning)
        if problems:
            raise InvalidInput(f"{self._problem}; those in use stay")

    def status(self) -> Json:
        listed = [
            {
                "listener": listener,
                "certificate": name,
                "expires_seconds": each.expires.timestamp(),
                "warn_from_seconds": each.warn_from.timestamp(),
                "warning": each.warning(self._now()),
            }
            for files, live in self._served
            for listener in files.listeners
            for name, each in _in_use(files, live.now).items()
            if name != "client_ca" or listener == "provider"  # the others ask nobody for a certificate
        ]
        return {"certificates": listed, "certificates_problem": self._problem}

    def collectors(self) -> Iterable[Collector]:
        return (AtScrape(self._expiry),)

    def _expiry(self) -> Iterator[Metric]:
        found, labels = self.status()["certificates"], ("listener", "certificate")
        yield gauges(
            "cagrpc_certificate_expiration_timestamp_seconds",
            "When a certificate in use expires; `listener` is `provider`, `expander` or `http`, `certificate` is"
            " `server` or `client_ca`.",
            labels,
            {tuple(each[name] for name in labels): each["expires_seconds"] for each in found},
        )
        yield gauges(
            "cagrpc_certificate_warning_timestamp_seconds",
            "From when on that is a warning: 30 days before, or a fifth of its lifetime if that is less.",
            labels,
            {tuple(each[name] for name in labels): each["warn_from_seconds"] for each in found},
        )

    def _tell_of_new(self, files: CertificateFiles, live: LiveTls) -> None:
        until = min(each.expires for each in _in_use(files, live.now).values())
        log.info("%s: new certificates, good until %s", ", ".join(files.listeners), timestamp(until.timestamp()))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


def _in_use(files: CertificateFiles, tls: TlsMaterial) -> Mapping[str, Lifetime]:
    """Return the lifetimes by what they are of: `server`, `client_ca`."""
    found = {"server": chain_lifetime(files.certificate, tls.certificate)}
    if files.client_ca is not None and tls.authority is not None:
        found["client_ca"] = authority_lifetime(files.client_ca, tls.authority)
    return found
