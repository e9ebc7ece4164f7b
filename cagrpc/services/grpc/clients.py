"""Whether a client that is connected may still call after the authority of clients' certificates was replaced. gRPC
checks a certificate at the handshake only, and its connections last for days."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping

from cryptography import x509
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from cagrpc.services.tls import LiveTls

log = logging.getLogger(__name__)

_MOST_KNOWN = 1000

# What a certificate may be used for was checked at the handshake, as gRPC does; here it is who has signed it.
_CA_POLICY = ExtensionPolicy.permit_all().require_present(x509.BasicConstraints, Criticality.AGNOSTIC, None)
_LEAF_POLICY = ExtensionPolicy.permit_all()


class ConnectedClients:
    """Checks the certificates of connections that began before a rotation. Thread-safe."""

    def __init__(self, tls: LiveTls) -> None:
        self._tls = tls
        self._known: dict[tuple[int, bytes], bool] = {}

    @property
    def authority_changes(self) -> int:
        """How often the authority was replaced: what `trusted` says holds until the next time."""
        return self._tls.authority_changes

    def trusted(self, peer: Mapping[str, Iterable[bytes]]) -> bool:
        """Return whether the present authority vouches for a connection's client; `peer` is its auth context."""
        changes = self._tls.authority_changes
        if not changes:
            return True
        chain = [pem for name in ("x509_pem_cert", "x509_pem_cert_chain") for pem in peer.get(name, ())]
        key = changes, hashlib.sha256(b"\n".join(chain)).digest()
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known = {}
            known = self._known[key] = self._vouched_for(chain)
        return known

    def _vouched_for(self, chain: list[bytes]) -> bool:
        authority = self._tls.now.client_ca
        if not chain or authority is None:
            return False
        try:
            leaf = x509.load_pem_x509_certificate(chain[0])
            others = [each for pem in chain[1:] for each in x509.load_pem_x509_certificates(pem)]
            policy = (
                PolicyBuilder()
                .store(Store(x509.load_pem_x509_certificates(authority)))
                .extension_policies(ca_policy=_CA_POLICY, ee_policy=_LEAF_POLICY)
            )
            policy.build_client_verifier().verify(leaf, others)
        except (ValueError, VerificationError) as error:
            log.info("a connected client's certificate is not of the present authority: %s", error)
            return False
        return True
