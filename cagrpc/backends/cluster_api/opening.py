"""Opens the Cluster API backend: access to the management cluster, its versions, and the informers."""

from __future__ import annotations

from cagrpc.backends.cluster_api.backend import ClusterApiBackend
from cagrpc.backends.cluster_api.kinds import Kinds
from cagrpc.backends.cluster_api.settings import ClusterApiSettings
from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.client import Client

_FIRST_LISTS_SECONDS = 5.0
"""How long to wait for them; they may also come later."""


def open_backend(settings: ClusterApiSettings, context: BackendContext) -> OpenBackend:
    """Open it. Raises InvalidInput and Unavailable, with nothing left open."""
    own = Client.connect(settings.access.kubeconfig, settings.access.context) if settings.access.is_another else None
    client = own or context.client
    if client is None:
        raise InvalidInput(
            "backend.cluster_api: needs the section kubernetes, or a kubeconfig of the management cluster"
        )
    backend: ClusterApiBackend | None = None

    def close() -> None:
        if backend is not None:
            backend.close()
        if own is not None:
            own.close()

    try:
        backend = ClusterApiBackend(client, Kinds(client, settings.namespace), settings, context.clock)
        backend.follow_templates()
        backend.objects.wait(_FIRST_LISTS_SECONDS)
    except BaseException:
        close()
        raise
    return OpenBackend(backend, close)
