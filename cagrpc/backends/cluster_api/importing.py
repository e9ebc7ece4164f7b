"""Node groups from what the cluster-autoscaler would scale: the MachineDeployments and MachinePools of a Cluster, with
the annotations by which it scales from zero (upstream: cluster-autoscaler/cloudprovider/clusterapi). The result is
sections of a configuration, in YAML shape; nothing is changed in the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cagrpc.api.encoding.json_documents import Document, mapping, members, strings
from cagrpc.backends.cluster_api.bodies import CORE, TEMPLATE, Kinds, reference
from cagrpc.backends.cluster_api.plugin import Reference
from cagrpc.backends.plugin import ImportedSections
from cagrpc.errors import CagrpcError, InvalidInput, shown
from cagrpc.fleet.catalogue import ARCH, INSTANCE_TYPE, OS, ZONE
from cagrpc.kube.client.client import Client
from solver.model import CPU, MEMORY, PODS
from solver.model.quantities import parse_quantity

CAPACITY = "capacity.cluster-autoscaler.kubernetes.io/"
MAX_SIZE = f"{CORE}/cluster-api-autoscaler-node-group-max-size"
PRICE = "cagrpc.io/price-usd-per-hour"
"""An annotation of ours, for machines whose price somebody knows."""
_DEFAULT_PODS = "110"
_USD_PER_CPU, _USD_PER_GIB, _USD_PER_GPU = 0.03, 0.004, 1.0
"""Prices of machines that have none, in proportion to their size, so that the planner has something to compare."""
_COPIED = "node-role.kubernetes.io"
_COPIED_WITH_SUBDOMAINS = ("node-restriction.kubernetes.io", "node.cluster.x-k8s.io")
"""Domains of labels that Cluster API copies from a Machine to its Node."""
_NOT_ASKED_FOR = ("kubernetes.io/hostname", OS)
_OWNERS = (("MachineDeployment", "machine_deployment"), ("MachinePool", "machine_pool"))


@dataclass(frozen=True, slots=True)
class _Described:
    """One MachineDeployment or MachinePool."""

    field: str
    """The field of the section that names it."""
    document: Document
    infrastructure: Document
    """Its infrastructure template; empty where it cannot be read."""

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def annotations(self) -> Mapping[str, str]:
        return strings(mapping(self.document, "metadata"), "annotations")

    @property
    def template(self) -> Document:
        return mapping(mapping(self.document, "spec"), "template")

    @property
    def machine(self) -> Document:
        """Return the spec of its Machines."""
        return mapping(self.template, "spec")


def read(client: Client, cluster: str, namespace: str) -> ImportedSections:
    """Return the sections `backend` and `provisioners` for a Cluster, the namespace's only one where no name is given.
    Raises InvalidInput where there is none, and Unavailable."""
    namespace = namespace or "default"
    kinds = Kinds(client, namespace)
    warnings: list[str] = []
    all_of: list[_Described] = []
    for kind, field in _OWNERS:
        try:
            found = client.get(kinds.core(kind).path).get("items") or ()
        except CagrpcError as error:
            warnings.append(f"{kind}s cannot be listed: {error}")
            continue
        all_of += [_Described(field, each, _infrastructure(client, kinds, each)) for each in found]
    cluster = cluster or _only_cluster(all_of, namespace)
    described = [each for each in all_of if mapping(each.document, "spec").get("clusterName") == cluster]
    groups: list[dict[str, Any]] = []
    sources: dict[str, Any] = {}
    for each in described:
        try:
            groups.append(_group(each, warnings))
        except (InvalidInput, ValueError) as error:
            warnings.append(f"{each.field} {each.name} is left out: {error}")
        else:
            sources[each.name] = {each.field: each.name, **_template(each, warnings)}
    if not groups:
        raise InvalidInput("; ".join([f"Cluster {namespace}/{cluster}: no node group can be made", *warnings]))
    backend = {"cluster_api": {"cluster": cluster, "namespace": namespace, "node_groups": sources}}
    return ImportedSections(
        {"backend": backend, "provisioners": [{"name": cluster, "node_groups": groups}]}, tuple(warnings)
    )


def _only_cluster(described: Sequence[_Described], namespace: str) -> str:
    names = sorted({str(mapping(each.document, "spec").get("clusterName")) for each in described})
    if len(names) != 1:
        found = f"those of {', '.join(names)}" if names else "none"
        raise InvalidInput(f"found {found} in namespace {namespace}, expected those of one Cluster; name it")
    return names[0]


def _infrastructure(client: Client, kinds: Kinds, document: Document) -> Document:
    spec = mapping(mapping(mapping(document, "spec"), "template"), "spec")
    try:
        found = reference(mapping(spec, "infrastructureRef"))
        return client.get(f"{kinds.of(found).path}/{found.name}")
    except (CagrpcError, KeyError):
        return {}  # it only adds to the annotations


def _group(each: _Described, warnings: list[str]) -> dict[str, Any]:
    """Return the node group. Raises InvalidInput and ValueError where its shape is unknown or invalid."""
    capacity = _capacity(each)
    labels = _labels(each)
    price = each.annotations.get(PRICE)
    if price is None:
        warnings.append(f"{each.field} {each.name} has no annotation {PRICE}: its price is in proportion to its size")
    group: dict[str, Any] = {
        "id": each.name,
        "allocatable": capacity,
        "price_usd_per_hour": float(price) if price is not None else _price(capacity),
    }
    for field, key in (("arch", ARCH), ("instance_type", INSTANCE_TYPE), ("zone", ZONE)):
        value = labels.pop(key, "")
        if value:
            group[field] = value
    arch = mapping(mapping(each.infrastructure, "status"), "nodeInfo").get("architecture")
    if arch:
        group.setdefault("arch", str(arch))
    most = each.annotations.get(MAX_SIZE)
    return {
        **group,
        **({"max_size": int(most)} if most else {}),
        **({"labels": labels} if labels else {}),
        **({"taints": taints} if (taints := list(_taints(each))) else {}),
    }


def _capacity(each: _Described) -> dict[str, Any]:
    """Return the resources of one node: the infrastructure template's status.capacity under the annotations."""
    found: dict[str, Any] = dict(mapping(mapping(each.infrastructure, "status"), "capacity"))
    annotations = each.annotations
    for resource, annotation in ((CPU, "cpu"), (MEMORY, "memory"), ("ephemeral-storage", "ephemeral-disk")):
        if value := annotations.get(f"{CAPACITY}{annotation}"):
            found[resource] = value
    gpus, gpu_type = annotations.get(f"{CAPACITY}gpu-count"), annotations.get(f"{CAPACITY}gpu-type")
    if gpus and gpu_type:
        found[gpu_type] = int(gpus)
    found[PODS] = int(annotations.get(f"{CAPACITY}maxPods") or _DEFAULT_PODS)
    absent = [resource for resource in (CPU, MEMORY) if not found.get(resource)]
    if absent:
        wanted = " and ".join(f"{CAPACITY}{resource}" for resource in absent)
        raise InvalidInput(f"found no annotation {wanted}, which the cluster-autoscaler needs too to scale from zero")
    return found


def _labels(each: _Described) -> dict[str, str]:
    """Return the labels of one node: those that Cluster API copies, under those of the annotation."""
    of_machine = strings(mapping(each.template, "metadata"), "labels")
    found = {key: value for key, value in of_machine.items() if _is_copied(key)}
    for written in filter(None, each.annotations.get(f"{CAPACITY}labels", "").split(",")):
        key, equals, value = written.partition("=")
        if not equals:
            raise InvalidInput(f"annotation {CAPACITY}labels: found {shown(written)}, expected key=value")
        found[key] = value
    return {key: value for key, value in found.items() if key not in _NOT_ASKED_FOR}


def _is_copied(label: str) -> bool:
    domain = label.partition("/")[0]
    return domain == _COPIED or any(f".{domain}".endswith(f".{each}") for each in _COPIED_WITH_SUBDOMAINS)


def _taints(each: _Described) -> Iterator[dict[str, str]]:
    """Yield the taints of one node: its Machines' (MachineTaintPropagation) under those of the annotation."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for taint, _ in members(each.machine, "taints"):
        key, effect = str(taint.get("key")), str(taint.get("effect"))
        found[key, effect] = {"key": key, "value": str(taint.get("value") or ""), "effect": effect}
    for written in filter(None, each.annotations.get(f"{CAPACITY}taints", "").split(",")):
        text, colon, effect = written.rpartition(":")
        key, _, value = text.partition("=")
        if not colon:
            raise InvalidInput(f"annotation {CAPACITY}taints: found {shown(written)}, expected key=value:effect")
        found[key, effect] = {"key": key, "value": value, "effect": effect}
    for taint in found.values():
        yield {key: value for key, value in taint.items() if value}


def _price(capacity: Mapping[str, Any]) -> float:
    """Return a price in proportion to the size."""
    cpus, gib = float(parse_quantity(capacity[CPU])), float(parse_quantity(capacity[MEMORY])) / 2**30
    gpus = sum(float(parse_quantity(amount)) for resource, amount in capacity.items() if "gpu" in resource)
    return round(_USD_PER_CPU * cpus + _USD_PER_GIB * gib + _USD_PER_GPU * gpus, 4)


def _template(each: _Described, warnings: list[str]) -> dict[str, Any]:
    """Return the infrastructure template that a MachinePool's Machines need: its own makes a pool of the cloud."""
    if each.field == "machine_deployment":
        return {}
    found: Reference = reference(mapping(each.machine, "infrastructureRef"))
    kind = found.kind.removesuffix("MachinePool") + f"Machine{TEMPLATE}"
    warnings.append(
        f"machine_pool {each.name}: {found.kind} makes no single machines; infrastructure_template is a guess, name one"
    )
    return {"infrastructure_template": {"api_group": found.api_group, "kind": kind, "name": each.name}}
