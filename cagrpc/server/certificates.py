"""Making development certificates (`cagrpc certs`), and loading any certificates (`serve`, `replay`), checked as
`cagrpc.api.encoding.certificates` does. No sockets, no flags. Development certificates are for a laptop and test
clusters; production brings its own.

A directory holds `ca.crt`, `server.crt` (provider and expander) and `client.crt` (the cluster-autoscaler), each with
its `.key` beside it, readable by the owner only.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from cagrpc.api.encoding.certificates import check_authority, check_pair, parse_certificate, parse_key
from cagrpc.errors import InvalidInput, reason_of, shown
from cagrpc.services.tls import TlsMaterial

ALWAYS_HOSTS = ("localhost", "127.0.0.1", "::1")
AUTHORITY_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=365)
RENEW_BEFORE_EXPIRY = timedelta(days=7)
CLOCK_SKEW = timedelta(hours=1)
"""Certificates are valid from this long ago, for peers whose clocks are behind."""

AUTHORITY = "ca"
SERVER = "server"
CLIENT = "client"


@dataclass(frozen=True, slots=True)
class _Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def ensure_certificates(
    directory: Path, hosts: Sequence[str] = (), *, keep_hosts: bool = False, now: datetime | None = None
) -> tuple[str, ...]:
    """Make certificates that are missing, about to expire or for other `hosts`; return the names of the pairs made.

    `localhost`, 127.0.0.1 and ::1 are always among the server's names; with `keep_hosts` so are those of its current
    certificate. Raises InvalidInput where the directory has files that were not made here.
    """
    moment = now or datetime.now(UTC)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        current = _server_hosts(directory) if keep_hosts else ()
        return _ensure(directory, tuple(dict.fromkeys(_normal(h) for h in (*ALWAYS_HOSTS, *current, *hosts))), moment)
    except OSError as error:
        raise InvalidInput(f"{error.filename or directory}: {reason_of(error)}; give a writable directory") from error


def _ensure(directory: Path, hosts: tuple[str, ...], now: datetime) -> tuple[str, ...]:
    made = []
    authority = _existing(directory, AUTHORITY)
    if authority is None or _expires_soon(authority, now):
        authority = _issue(directory, AUTHORITY, "cagrpc development CA", None, (), now)
        made.append(AUTHORITY)
    for name, common_name, names in ((SERVER, "cagrpc", hosts), (CLIENT, "cluster-autoscaler", ())):
        pair = _existing(directory, name)
        if pair is not None and AUTHORITY not in made:
            _refuse_foreign(directory / f"{name}.crt", pair, authority)
        if pair is None or AUTHORITY in made or _expires_soon(pair, now) or _names(pair.certificate) != set(names):
            _issue(directory, name, common_name, authority, names, now)
            made.append(name)
    return tuple(made)


def _existing(directory: Path, name: str) -> _Pair | None:
    """Return the existing pair; None where there is none, or the key does not match."""
    certificate_path, key_path = directory / f"{name}.crt", directory / f"{name}.key"
    if not certificate_path.exists():
        return None
    certificate = parse_certificate(certificate_path, certificate_path.read_bytes())
    if not key_path.exists():
        raise InvalidInput(
            f"{certificate_path} has no {key_path.name} beside it: restore the key, or remove the certificate"
        )
    key = parse_key(key_path, key_path.read_bytes())
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidInput(f"{key_path} was not made by `cagrpc certs`: give another directory")
    return _Pair(certificate, key) if key.public_key() == certificate.public_key() else None


def _server_hosts(directory: Path) -> tuple[str, ...]:
    pair = _existing(directory, SERVER)
    return tuple(sorted(_names(pair.certificate))) if pair else ()


def host_of(certificate: Path) -> str | None:
    """Return the first name of a server's certificate by which other machines may call it; None where it has none."""
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return None
    hosts = names.get_values_for_type(x509.DNSName)
    return next((host for host in hosts if host != "localhost" and not host.startswith("*")), None)


def _refuse_foreign(path: Path, pair: _Pair, authority: _Pair) -> None:
    try:
        pair.certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise InvalidInput(
            f"{path} was not issued by the ca.crt beside it, so it is not replaced: remove it or give another directory"
        ) from error


def _expires_soon(pair: _Pair, now: datetime) -> bool:
    return pair.certificate.not_valid_after_utc - now < RENEW_BEFORE_EXPIRY


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _normal(host: str) -> str:
    return str(_general_name(host).value)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", host):
        raise InvalidInput(f"--host {shown(host)} is neither an address nor an ASCII host name")
    return x509.DNSName(host)


def _issue(
    directory: Path, name: str, common_name: str, issuer: _Pair | None, hosts: Sequence[str], now: datetime
) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    signer_key = issuer.key if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + (LEAF_LIFETIME if issuer else AUTHORITY_LIFETIME))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None if issuer else 0), critical=True)
        .add_extension(_key_usage(authority=issuer is None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False)
    )
    if issuer:
        usage: ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        )
    pair = _Pair(builder.sign(signer_key, hashes.SHA256()), key)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(directory / f"{name}.key", private, 0o600)  # first: a certificate without its key is an error
    _write(directory / f"{name}.crt", pair.certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return pair


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically, with its mode from the start."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    temporary.replace(path)


def load(
    certificate: Path,
    key: Path,
    authority: Path | None = None,
    *,
    known: TlsMaterial | None = None,
    now: datetime | None = None,
) -> TlsMaterial:
    """Return the files of one side of a connection, checked unless they have what is `known` already: readable, PEM, a
    matching key, not expired.

    Raises InvalidInput, which names the file: also for a certificate whose key is still to be written.
    """
    found = TlsMaterial(_read_pem(certificate), _read_pem(key), None if authority is None else _read_pem(authority))
    if found != known:
        check_pair(certificate, found.certificate, key, found.key, now=now)
        if authority is not None and found.authority is not None:
            check_authority(authority, found.authority, now=now)
    return found


def _read_pem(path: Path) -> bytes:
    """Return a file's content. Raises InvalidInput, which names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{path}: {reason_of(error)}; `cagrpc certs --dir {path.parent}` makes development files"
        ) from error
