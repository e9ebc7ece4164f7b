"""What a cluster shows of its cluster-autoscaler, its NodePools, nodes and pods, by get and list requests alone. What
may not be read, or is not there, is a sentence in the result, and no error. What a configuration makes of it is said
in `first_configuration`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULER
from cagrpc.api.encoding.json_documents import Document, mapping, members, strings
from cagrpc.backends.plugin import ImportedSections
from cagrpc.backends.registry import cluster_sources
from cagrpc.cluster.bound_pods import ENDED
from cagrpc.controllers.autoscaler import read_priorities, read_status
from cagrpc.errors import CagrpcError, InvalidInput, NotFound
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.prices import PriceList, capacity_type_label, place_of
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.failures import Forbidden
from cagrpc.offline.first_configuration import (
    API_GROUPS,
    AutoscalerObjects,
    AutoscalerWorkload,
    ClusterFindings,
    NodeLabelCounts,
    PodCounts,
)

T = TypeVar("T")

FLAGS = (
    "cloud-provider",
    "expander",
    "namespace",
    "status-config-map-name",
    "scan-interval",
    "bypassed-scheduler-names",
    "expendable-pods-priority-cutoff",
    "max-node-provision-time",
    "balance-similar-node-groups",
)
"""Those of the cluster-autoscaler that are read."""
GANG_LABELS = frozenset({DEFAULT_GANG_LABEL, "pod-group.scheduling.sigs.k8s.io", "kueue.x-k8s.io/pod-group-name"})
"""Labels by which schedulers and queues know pods of one gang."""
CLOUDS: Mapping[str, str] = {
    "eks.amazonaws.com/": "EKS",
    "cloud.google.com/gke-": "GKE",
    "kubernetes.azure.com/": "AKS",
    "karpenter.sh/": "Karpenter",
    "cluster-api.cattle.io/": "Rancher",
    "node.cluster.x-k8s.io/": "Cluster API",
}
"""How labels begin, and whose they are."""
WORKLOADS: Mapping[str, str] = {
    "/apis/apps/v1/deployments": "Deployment",
    "/apis/apps/v1/statefulsets": "StatefulSet",
    "/apis/apps/v1/daemonsets": "DaemonSet",
}
_PROGRAM = "cluster-autoscaler"
_IMAGE = re.compile(rf"{_PROGRAM}(-(amd64|arm64|s390x|ppc64le|arm))?")
_VERSION = re.compile(r"v?([0-9]+\.[0-9]+(\.[0-9]+)?)")


def discover(kubeconfig: Path, context: str) -> ClusterFindings:
    """Return what the cluster of a kubeconfig's context shows. Raises InvalidInput for an invalid kubeconfig, and
    Unavailable where nothing answers."""
    with closing(Client.connect(kubeconfig, context)) as client:
        return findings(client, kubeconfig, context)


def findings(client: Client, kubeconfig: Path, context: str) -> ClusterFindings:
    """Return what the cluster of a client shows. Raises Unavailable where nothing answers."""
    version = _version(client)
    look = _Look(client)
    found = [each for path, kind in WORKLOADS.items() for each in look.read(path, partial(_workloads, kind)) or ()]
    pods, alone = look.read("/api/v1/pods", _pods) or (None, ())
    autoscalers = (*found, *alone)
    if not autoscalers:
        look.unread.append(f"a {_PROGRAM}: no workload or pod that could be read runs its program")
    chosen = next((each for each in autoscalers if each.has_own_provider), next(iter(autoscalers), None))
    return ClusterFindings(
        server=client.server,
        kubeconfig=kubeconfig.absolute(),
        context=context,
        version=version,
        autoscalers=autoscalers,
        objects=_objects(look, chosen.flags if chosen is not None else {}),
        node_pools=_node_pools(look),
        nodes=look.read("/api/v1/nodes", _nodes),
        pods=pods,
        api_groups=frozenset(
            each for each in API_GROUPS if look.get(f"/apis/{each}", f"the API group {each}") is not None
        ),
        unread=tuple(look.unread),
    )


def _version(client: Client) -> str:
    try:
        return str(client.get("/version").get("gitVersion") or "")
    except (NotFound, Forbidden, InvalidInput):
        return ""


@dataclass(slots=True)
class _Look:
    """Reads, and keeps what could not be read."""

    client: Client
    unread: list[str] = field(default_factory=list)

    def read(self, path: str, what: Callable[[Iterator[Document]], T]) -> T | None:
        """Return what is made of all objects of a collection; None where they cannot be read."""
        try:
            return what(self.client.items(path))
        except CagrpcError as error:
            self.unread.append(f"{path.rpartition('/')[2]} could not be read: {error}")
            return None

    def get(self, path: str, name: str, query: Mapping[str, str] | None = None) -> Document | None:
        """Return what is at a path; None where nothing is there, or it cannot be read. `name` is for people."""
        try:
            return self.client.get(path, query)
        except NotFound:
            self.unread.append(f"{name}: is not there")
        except CagrpcError as error:
            self.unread.append(f"{name} could not be read: {error}")
        return None


def _workloads(kind: str, documents: Iterable[Document]) -> list[AutoscalerWorkload]:
    found = ((each, mapping(mapping(mapping(each, "spec"), "template"), "spec")) for each in documents)
    return [autoscaler for each, spec in found if (autoscaler := _autoscaler(kind, each, spec)) is not None]


def _pods(documents: Iterable[Document]) -> tuple[PodCounts, Sequence[AutoscalerWorkload]]:
    """Return what pods say, and those that are a cluster-autoscaler of no workload, such as static ones."""
    count, schedulers, gangs = 0, Counter[str](), Counter[str]()
    alone = []
    for each in documents:
        if mapping(each, "status").get("phase") in ENDED:
            continue
        count += 1
        metadata, spec = mapping(each, "metadata"), mapping(each, "spec")
        schedulers[str(spec.get("schedulerName") or DEFAULT_SCHEDULER)] += 1
        gangs.update(strings(metadata, "labels").keys() & GANG_LABELS)
        owners = {owner.get("kind") for owner, _ in members(metadata, "ownerReferences")}
        if owners <= {"Node"} and (autoscaler := _autoscaler("Pod", each, spec)) is not None:
            alone.append(autoscaler)
    return PodCounts(count, schedulers, gangs), alone


def _autoscaler(kind: str, document: Document, spec: Document) -> AutoscalerWorkload | None:
    """Return the cluster-autoscaler that a spec of pods runs; None where it runs none."""
    for container, _ in members(spec, "containers"):
        image = str(container.get("image") or "")
        name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
        words = _words(container)
        if _IMAGE.fullmatch(name) or any(word.rpartition("/")[2] == _PROGRAM for word in words):
            metadata = mapping(document, "metadata")
            version = _VERSION.match(tag)
            where = f"{kind} {metadata.get('namespace')}/{metadata.get('name')}"
            return AutoscalerWorkload(where, version[1] if version else "", read_flags(words))
    return None


def _words(container: Document) -> list[str]:
    """Return a container's command line in words, those of a shell's command too."""
    written = []
    for part in ("command", "args"):
        value = container.get(part)
        written += [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
    return [word for each in written for word in ([each] if each.startswith("-") else each.split())]


def read_flags(words: Sequence[str]) -> dict[str, str]:
    """Return the flags of a command line that are of interest. What an environment variable says is not known."""
    found = {}
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if not equals:
            value = following if following and not following.startswith("-") else "true"
        if name.startswith("-") and name.lstrip("-") in FLAGS and "$(" not in value:
            found[name.lstrip("-")] = value
    return found


def _objects(look: _Look, flags: Mapping[str, str]) -> AutoscalerObjects:
    """Return what the cluster-autoscaler's ConfigMaps say."""
    names = AutoscalerObjects()
    names = replace(
        names,
        namespace=flags.get("namespace") or names.namespace,
        status_name=flags.get("status-config-map-name") or names.status_name,
    )
    return replace(
        names,
        sizes=_said(look, names.status, "status", read_status),
        priorities=_said(look, names.priority, "priorities", read_priorities),
    )


def _said(look: _Look, name: str, key: str, read: Callable[[str], T]) -> T | None:
    """Return what a ConfigMap says under a key; None where it cannot be read."""
    namespace, _, own = name.removeprefix("ConfigMap ").partition("/")
    # As a server follows it, which takes the same right.
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
    listed = look.get(path, name, {"fieldSelector": f"metadata.name={own}"})
    if listed is None:
        return None
    found = [each for each, _ in members(listed, "items") if mapping(each, "metadata").get("name") == own]
    if not found:
        look.unread.append(f"{name}: is not there")
        return None
    text = strings(found[0], "data").get(key)
    if text is None:
        look.unread.append(f"{name}: has no key {key}")
        return None
    try:
        return read(text)
    except InvalidInput as error:
        look.unread.append(f"{name}: {error}")
        return None


def _node_pools(look: _Look) -> ImportedSections | None:
    try:
        return cluster_sources()["node-pools"].read(look.client, "", "")
    except CagrpcError as error:
        look.unread.append(f"NodePools of Karpenter: {error}")
        return None


def _nodes(documents: Iterable[Document]) -> NodeLabelCounts:
    count = 0
    clouds, capacity_types, priced, unpriced = (Counter[str]() for _ in range(4))
    spot: Counter[tuple[str, str]] = Counter()
    prices = PriceList(embedded_catalogue())
    for each in documents:
        count += 1
        labels = strings(mapping(each, "metadata"), "labels")
        clouds.update({cloud for begin, cloud in CLOUDS.items() if any(key.startswith(begin) for key in labels)})
        place = place_of(labels)
        if said := capacity_type_label(labels):
            capacity_types[place.capacity_type] += 1
            spot.update([said] if place.capacity_type == "spot" else [])
        if place.instance_type:
            known = priced if prices.of(place) is not None else unpriced
            known[place.instance_type + (" spot" if place.capacity_type == "spot" else "")] += 1
    return NodeLabelCounts(count, clouds, capacity_types, spot, priced, unpriced)
