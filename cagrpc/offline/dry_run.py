"""`--kubeconfig` of `cagrpc plan` and `explain`: the pods that wait in a running cluster, its nodes, and its own
provisioners. Nothing is changed there; how it is listed is `live`'s business."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cagrpc.backends.registry import cluster_sources
from cagrpc.config.files import expand_documents
from cagrpc.config.groups import Expanded
from cagrpc.errors import InvalidInput, NotFound
from cagrpc.fleet.catalogue import Catalogue
from cagrpc.kube.client.client import Client
from cagrpc.offline.live import OF_MOVING_PODS, ClusterObjects, read_resources


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """What was listed of a cluster. `provisioners` is None where other ones were asked for."""

    listed: ClusterObjects
    provisioners: Expanded | None
    warnings: tuple[str, ...]


def read_live(kubeconfig: Path, context: str, *, catalogue: Catalogue | None) -> LiveCluster:
    """Return the cluster of a kubeconfig's context, with a `catalogue` its own provisioners as well. Raises
    InvalidInput, and Unavailable where nodes or pods are not listed."""
    with closing(Client.connect(kubeconfig, context)) as client:
        listed = read_resources(client, without=OF_MOVING_PODS)
        provisioners = None if catalogue is None else _provisioners(client, catalogue)
    warnings = [f"{each.resource}: {each.meaning}" for each in listed.unread if not each.meaning.startswith("none")]
    return LiveCluster(listed, provisioners, tuple(warnings))


def _provisioners(client: Client, catalogue: Catalogue) -> Expanded:
    """Return those that the cluster has for a backend of ours: NodePools, or MachineDeployments."""
    why = []
    for source in cluster_sources().values():
        try:
            found = source.read(client, "", "")
        except (InvalidInput, NotFound) as error:
            why.append(str(error))
            continue
        documents: Mapping[str, Any] = dict(found.sections)
        expanded = expand_documents(documents["provisioners"], f"{source.name} of {client.server}", catalogue)
        return replace(expanded, warnings=(*found.warnings, *expanded.warnings))
    raise InvalidInput("\n".join(["--provisioners is needed: the cluster has none that could be read", *why]))
