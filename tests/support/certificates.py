"""An authority and the certificates that it issues, for tests of who is let in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self._name, self._key.public_key(), (), authority=True)

    def issue(self, name: str, *alternatives: x509.GeneralName) -> tuple[bytes, bytes]:
        """Certificate and key, as PEM, for 127.0.0.1. An empty name is none."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._sign(subject, key.public_key(), alternatives, authority=False), pem

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        alternatives: tuple[x509.GeneralName, ...],
        *,
        authority: bool,
    ) -> bytes:
        now = datetime.now(UTC)
        names = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1")), *alternatives])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(names, critical=False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
