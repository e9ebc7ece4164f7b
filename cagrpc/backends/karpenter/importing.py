"""Provisioners from a cluster's NodePools, with the Karpenter backend's parameters. The result is sections of a
configuration, in YAML shape; nothing is changed in the cluster. Expiry and kubelet settings are Karpenter's and have no
counterpart."""

from __future__ import annotations

from typing import Any

from cagrpc.api.encoding.json_documents import Document, mapping, members, strings
from cagrpc.backends.karpenter.plugin import NodeClass
from cagrpc.backends.karpenter.pools import NODE_POOLS, NodePoolState, disk_bytes, explained, is_zero, node_pool
from cagrpc.backends.plugin import ImportedSections
from cagrpc.durations import duration_seconds
from cagrpc.errors import InvalidInput, NotFound
from cagrpc.fleet.catalogue import EPHEMERAL_STORAGE
from cagrpc.fleet.provisioners import storage_of_disk
from cagrpc.kube.client.client import Client
from solver.model.quantities import format_quantity


def read(client: Client, name: str, namespace: str) -> ImportedSections:
    """Read all NodePools, or the one of this name. Raises InvalidInput where there is none, and Unavailable."""
    if namespace:
        raise InvalidInput("--namespace: NodePools have no namespace")
    try:
        listed = client.get(NODE_POOLS)
    except NotFound as error:
        raise InvalidInput(f"{client.server} has no NodePools of karpenter.sh/v1: {error}") from error
    warnings: list[str] = []
    provisioners: list[dict[str, Any]] = []
    parameters: dict[str, dict[str, Any]] = {}
    states: list[NodePoolState] = []
    for document, _ in members(listed, "items"):
        found = str(mapping(document, "metadata").get("name"))
        if name and found != name:
            continue
        spec = mapping(document, "spec")
        place = f'NodePool "{found}"'
        if spec.get("replicas") is not None:
            warnings.append(
                f"{place}: is static (spec.replicas: {spec['replicas']}) and left out; give a provisioner of another"
                " name with node_groups whose min_size is that number"
            )
            continue
        states.append(node_pool(document))
        parameters[found] = _parameters(spec)
        node_class = parameters[found]["node_class"]
        disk = disk_bytes(client, NodeClass(*(str(node_class.get(key, "")) for key in ("group", "kind", "name"))))
        provisioners.append(_provisioner(found, spec, place, warnings, disk))
    if not provisioners:
        raise InvalidInput("; ".join([f"{client.server} has no NodePool {name}".rstrip() + " to read", *warnings]))
    backend = {"karpenter": {"provisioners": parameters}}
    return ImportedSections({"provisioners": provisioners, "backend": backend}, warnings, explained(states))


def _provisioner(name: str, spec: Document, place: str, warnings: list[str], disk: int | None) -> dict[str, Any]:
    template = mapping(spec, "template")
    of_nodes = mapping(template, "spec")
    limits = {resource: str(amount) for resource, amount in mapping(spec, "limits").items()}
    frozen = [resource for resource, amount in limits.items() if is_zero(amount)]
    if frozen:
        warnings.append(
            f"{place}: spec.limits.{frozen[0]} is 0, which freezes it and is not taken, nor is spec.disruption; write"
            " those that it had"
        )
    requirements = []
    for requirement, path in members(of_nodes, "requirements", "spec.template.spec", []):
        if requirement.get("minValues") is not None:
            warnings.append(f"{place}: {path}.minValues is left out: each increment is planned by cost alone")
        requirements.append(_given(requirement, "key", "operator", "values"))
    found = {
        "name": name,
        "weight": spec.get("weight"),
        "requirements": requirements,
        "labels": strings(mapping(template, "metadata"), "labels"),
        "taints": _taints(of_nodes, "taints"),
        "startup_taints": _taints(of_nodes, "startupTaints"),
        "limits": {resource: amount for resource, amount in limits.items() if resource not in frozen},
        "disruption": {} if frozen else _disruption(spec),
        "allocatable": {} if disk is None else {EPHEMERAL_STORAGE: _allocatable_of(disk)},
    }
    return {key: value for key, value in found.items() if value}


def _disruption(spec: Document) -> dict[str, Any]:
    written = mapping(spec, "disruption")
    found = {
        ours: written[theirs]
        for ours, theirs in (("consolidation_policy", "consolidationPolicy"), ("consolidate_after", "consolidateAfter"))
        if written.get(theirs)
    }
    if written.get("budgets") is not None:
        budgets = members(written, "budgets", "spec.disruption", [])
        found["budgets"] = [_given(each, "nodes", "reasons", "schedule", "duration") for each, _ in budgets]
    return found


def _allocatable_of(disk: int) -> str:
    return format_quantity(EPHEMERAL_STORAGE, storage_of_disk(disk))


def _parameters(spec: Document) -> dict[str, Any]:
    of_nodes = mapping(mapping(spec, "template"), "spec")
    reference = mapping(of_nodes, "nodeClassRef")
    grace = str(of_nodes.get("terminationGracePeriod") or "")
    found = {"node_class": _given(reference, "group", "kind", "name")}
    return found | ({"termination_grace_period": grace} if duration_seconds(grace) else {})


def _taints(of_nodes: Document, field: str) -> list[dict[str, Any]]:
    return [_given(taint, "key", "value", "effect") for taint, _ in members(of_nodes, field)]


def _given(document: Document, *keys: str) -> dict[str, Any]:
    return {key: document[key] for key in keys if document.get(key)}
