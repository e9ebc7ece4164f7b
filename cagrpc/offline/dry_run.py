"""`--kubeconfig` of `cagrpc plan` and `explain`: the pods that wait in a running cluster, its nodes, and its own
provisioners. Nothing is changed there; how it is listed is `live`'s business."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cagrpc.api.files.documents import ManifestDocument
from cagrpc.api.files.manifests import ManifestReader, Manifests
from cagrpc.backends.registry import BACKENDS
from cagrpc.config.files import expand_documents
from cagrpc.config.groups import Expanded
from cagrpc.errors import InvalidInput, NotFound
from cagrpc.fleet.catalogue import Catalogue
from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from cagrpc.kube.client.client import Client
from cagrpc.offline.live import OF_WAITING_PODS, RESOURCES, SharedSpecs, read_resources
from solver.model import NODES, Limit, Node

_MOST_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """What was read of a cluster. `provisioners` is None where other ones were asked for."""

    manifests: Manifests
    provisioners: Expanded | None
    warnings: tuple[str, ...]


def read_live(
    kubeconfig: Path,
    context: str,
    *,
    now_seconds: float,
    gang_label: str,
    schedulers: AbstractSet[str],
    catalogue: Catalogue | None,
) -> LiveCluster:
    """Return the cluster of a kubeconfig's context, with a `catalogue` its own provisioners as well. An object that
    cannot be read is left out, with a warning. Raises InvalidInput, and Unavailable where nodes or pods are not
    listed."""
    client = Client.connect(kubeconfig, context)
    try:
        listed = read_resources(client, (*RESOURCES, *OF_WAITING_PODS), SharedSpecs())
        provisioners = None if catalogue is None else _provisioners(client, catalogue)
    finally:
        client.close()
    manifests, problems = _resolved(listed.items, lambda: ManifestReader(now_seconds, gang_label, schedulers))
    warnings = [f"{each.resource}: {each.meaning}" for each in listed.unread if not each.meaning.startswith("none")]
    warnings += [f"left out: {problem}" for problem in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        warnings.append(f"left out: and {len(problems) - _MOST_PROBLEMS} more problems of objects")
    return LiveCluster(manifests, provisioners, tuple(warnings))


def _resolved(
    documents: Sequence[ManifestDocument], make: Callable[[], ManifestReader]
) -> tuple[Manifests, Sequence[str]]:
    """Return what the documents say, but for those with problems, and the problems."""
    problems: list[str] = []
    while True:
        reader = make()
        reader.documents += documents
        found = reader.resolve()
        if not reader.problems:
            return found, problems
        problems += dict.fromkeys(reader.problems)
        left = [each for each in documents if not any(said.startswith(f"{each.place}: ") for said in reader.problems)]
        if len(left) == len(documents):
            raise InvalidInput("\n".join(problems))
        documents = left


def _provisioners(client: Client, catalogue: Catalogue) -> Expanded:
    """Return those that the cluster has for a backend of ours: NodePools, or MachineDeployments."""
    sources = [source for each in BACKENDS if (source := getattr(each, "cluster_source", None)) is not None]
    why = []
    for source in sources:
        try:
            found = source.read(client, "", "")
        except (InvalidInput, NotFound) as error:
            why.append(str(error))
            continue
        documents: Mapping[str, Any] = dict(found.sections)
        expanded = expand_documents(documents["provisioners"], f"{source.name} of {client.server}", catalogue)
        return replace(expanded, warnings=(*found.warnings, *expanded.warnings))
    raise InvalidInput("\n".join(["--provisioners is needed: the cluster has none that could be read", *why]))


def with_nodes(limits: Sequence[Limit], expanded: Expanded, nodes: Sequence[Node]) -> tuple[Limit, ...]:
    """Return the limits with what the nodes that stand take of them, by Karpenter's label of the provisioner."""
    provisioner_of = {each.id: each.provisioner for each in expanded.groups}
    found = []
    for limit in limits:
        mine = None if limit.node_groups is None else {provisioner_of.get(each) for each in limit.node_groups}
        used = Counter(limit.used)
        for node in nodes:
            if mine is None or node.labels.get(NODEPOOL_LABEL) in mine:
                used.update({**node.allocatable, NODES: 1})
        found.append(replace(limit, used=dict(used)))
    return tuple(found)
