"""The certificates that listening servers show and ask for, as values that may be replaced while they serve. Files are
read in `cagrpc.server.certificates`; when they are read again is `cagrpc.server.tls`'s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from cagrpc.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """A certificate, its key, and the authority that has to have signed the peer's, as PEM."""

    certificate: bytes
    key: bytes
    authority: bytes


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM texts. `client_ca` has the authorities that may have signed a client's certificate, where one is asked for
    (mTLS)."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None

    def check(self) -> None:
        """Check the files. Raises InvalidInput for what TLS libraries would only fail on later, without saying why."""
        try:
            certificate = x509.load_pem_x509_certificates(self.certificate)[0]
        except ValueError as error:
            raise InvalidInput(f"the server's certificate is not PEM: {error}") from error
        try:
            key = load_pem_private_key(self.key, password=None)
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"the server's key is not an unencrypted PEM private key: {error}") from error
        if key.public_key() != certificate.public_key():
            raise InvalidInput("the server's key does not belong to its certificate")
        if self.client_ca is not None:
            try:
                x509.load_pem_x509_certificates(self.client_ca)
            except ValueError as error:
                raise InvalidInput(f"the clients' certificate authority is not PEM: {error}") from error


class LiveTls:
    """What is shown at new connections from now on; replaced as a whole. Thread-safe."""

    def __init__(self, tls: ServerTls) -> None:
        """Raises InvalidInput for what cannot be served."""
        tls.check()
        self._lock = Lock()
        self._now = tls
        self._authority_changes = 0
        self._followers: list[Callable[[ServerTls, int], None]] = []

    @property
    def now(self) -> ServerTls:
        return self._now

    @property
    def authority_changes(self) -> int:
        """How often `client_ca` was replaced by another one: before the first time, each connection's handshake has
        checked its client against the present one."""
        return self._authority_changes

    def follow(self, use: Callable[[ServerTls, int], None]) -> None:
        """Call `use` with these, and with all that replace them, before anybody else sees them: what is shown, and how
        often the authority has changed then. It raises InvalidInput for what it cannot serve."""
        with self._lock:
            use(self._now, self._authority_changes)
            self._followers.append(use)

    def replace(self, tls: ServerTls) -> bool:
        """Show these from now on. Return whether they are others. Raises InvalidInput; then all stays as it is."""
        with self._lock:
            if tls == self._now:
                return False
            tls.check()
            changes = self._authority_changes + (tls.client_ca != self._now.client_ca)
            for use in self._followers:
                use(tls, changes)
            # First: who reads both may at worst check a client twice.
            self._authority_changes = changes
            self._now = tls
            return True
