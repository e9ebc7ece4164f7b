"""The certificates that listening servers show and ask for, as values that may be replaced while they serve. Files are
read in `cagrpc.server.certificates`; when they are read again is `cagrpc.server.tls`'s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """A certificate, its key, and the authorities that may have signed the peer's, where one is asked for (a client's
    is with mTLS). PEM texts, which whoever has read them has checked."""

    certificate: bytes
    key: bytes
    authority: bytes | None = None


class LiveTls:
    """What is shown at new connections from now on; replaced as a whole. Thread-safe."""

    def __init__(self, tls: TlsMaterial) -> None:
        self._lock = Lock()
        self._now = tls
        self._authority_changes = 0
        self._followers: list[Callable[[TlsMaterial, int], None]] = []

    @property
    def now(self) -> TlsMaterial:
        return self._now

    @property
    def authority_changes(self) -> int:
        """How often the authority was replaced by another one: before the first time, each connection's handshake has
        checked its client against the present one."""
        return self._authority_changes

    def follow(self, use: Callable[[TlsMaterial, int], None]) -> None:
        """Call `use` with these, and with all that replace them, before anybody else sees them: what is shown, and how
        often the authority has changed then. It raises InvalidInput for what it cannot serve."""
        with self._lock:
            use(self._now, self._authority_changes)
            self._followers.append(use)

    def replace(self, tls: TlsMaterial) -> bool:
        """Show these from now on. Return whether they are others. Raises what a follower raises; then all stays as it
        is."""
        with self._lock:
            if tls == self._now:
                return False
            changes = self._authority_changes + (tls.authority != self._now.authority)
            for use in self._followers:
                use(tls, changes)
            # First: who reads both may at worst check a client twice.
            self._authority_changes = changes
            self._now = tls
            return True
