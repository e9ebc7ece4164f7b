"""A running cluster as what a report reads; how it is listed is `cagrpc.offline.live`'s business."""

from __future__ import annotations

from pathlib import Path

from cagrpc.kube.client.client import Client
from cagrpc.offline.live import OF_WAITING_PODS, read_resources
from cagrpc.report.sources import Objects


def read_cluster(kubeconfig: Path, context: str = "") -> Objects:
    """Return what the cluster of a kubeconfig's context has. Raises InvalidInput for an invalid kubeconfig, Unavailable
    where nodes or pods cannot be listed."""
    client = Client.connect(kubeconfig, context)
    try:
        return read_objects(client)
    finally:
        client.close()


def read_objects(client: Client) -> Objects:
    """Return what the cluster has."""
    listed = read_resources(client, without=OF_WAITING_PODS)
    found = Objects(bound=listed.bound, unread=listed.unread, listed=listed.listed)
    for each in listed.documents:
        found.add(each)
    return found
