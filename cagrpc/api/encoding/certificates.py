"""Certificates and keys as PEM texts, checked before a TLS library sees them: such a library fails late, without a
reason, and gRPC's ends the process where a key is empty. Paths are for messages; nothing is read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.errors import InvalidInput

WARN_BEFORE_EXPIRY = timedelta(days=30)
WARN_SHARE = 0.2
"""Of a certificate's lifetime: whoever renews does so at a third of it or earlier, as cert-manager does."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Until when what is in a file is good."""

    path: Path
    expires: datetime
    warn_from: datetime

    def warning(self, now: datetime) -> str:
        """Return what is to be said of it; empty as long as it is good for a while."""
        if now < self.warn_from:
            return ""
        verb = "expired" if self.expires <= now else "expires"
        return f"{self.path} {verb} at {timestamp(self.expires.timestamp())}, and no newer one has come"


def chain_lifetime(path: Path, pem: bytes) -> Lifetime:
    """Return the lifetime of a certificate with its chain, which is good until the first of them expires."""
    chain = x509.load_pem_x509_certificates(pem)
    return _lifetime(path, min(chain, key=lambda each: each.not_valid_after_utc))


def authority_lifetime(path: Path, pem: bytes) -> Lifetime:
    """Return the lifetime of authorities, which are good as long as one of them is."""
    authorities = x509.load_pem_x509_certificates(pem)
    return _lifetime(path, max(authorities, key=lambda each: each.not_valid_after_utc))


def _lifetime(path: Path, certificate: x509.Certificate) -> Lifetime:
    begins, expires = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return Lifetime(path, expires, expires - min(WARN_SHARE * (expires - begins), WARN_BEFORE_EXPIRY))


def check_pair(
    certificate_path: Path, certificate_pem: bytes, key_path: Path, key_pem: bytes, *, now: datetime | None = None
) -> None:
    """Raises InvalidInput, which names the file, unless this is a certificate in force and its key."""
    certificate = parse_certificate(certificate_path, certificate_pem)
    if parse_key(key_path, key_pem).public_key() != certificate.public_key():
        raise InvalidInput(f"{key_path} is not the key of {certificate_path}")
    _check_dates(certificate_path, certificate, now)


def check_authority(path: Path, pem: bytes, *, now: datetime | None = None) -> None:
    """Raises InvalidInput, which names the file, unless one of its certificates is in force; while an authority is
    replaced, a file has the old and the new one."""
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise InvalidInput(f"{path} is not a PEM certificate") from error
    problems = []
    for each in certificates:
        try:
            _check_dates(path, each, now)
        except InvalidInput as problem:
            problems.append(problem)
        else:
            return
    raise problems[0]


def _check_dates(path: Path, certificate: x509.Certificate, now: datetime | None) -> None:
    moment = now or datetime.now(UTC)
    ends, begins = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    if ends < moment:
        raise InvalidInput(f"{path} expired at {timestamp(ends.timestamp())}; `cagrpc certs` renews its own")
    if begins > moment:
        raise InvalidInput(f"{path} is valid only from {timestamp(begins.timestamp())} on")


def parse_certificate(path: Path, content: bytes) -> x509.Certificate:
    """Return the first certificate of a PEM file, all of which can be read. Raises InvalidInput, which names the
    file."""
    try:
        return x509.load_pem_x509_certificates(content)[0]
    except ValueError as error:
        raise InvalidInput(f"{path} is not a PEM certificate") from error


def parse_key(path: Path, content: bytes) -> PrivateKeyTypes:
    """Return the unencrypted private key of a PEM file. Raises InvalidInput, which names the file."""
    try:
        return load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{path} is not an unencrypted PEM private key") from error
