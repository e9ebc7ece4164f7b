"""A small cluster as the kube-scheduler sees it: Kubernetes objects in JSON's shape, and nodes that a node group could
still open. What volumes mean there is in `volumes`, what claims do in `devices`; nothing of cagrpc is used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HOSTNAME = "kubernetes.io/hostname"
ATTACHABLE = "attachable-volumes-csi-"


@dataclass(frozen=True)
class World:
    """A cluster, and the node groups that could grow."""

    objects: tuple[Any, ...]
    """Of every kind, nodes and pods among them, all in one namespace."""
    groups: tuple[Any, ...] = ()
    """As in cagrpc's configuration: id, allocatable, price, labels, max_size."""
    devices: tuple[Any, ...] = ()
    """As in cagrpc's configuration: what new nodes publish."""

    def of(self, kind: str) -> dict[str, Any]:
        return {each["metadata"]["name"]: each for each in self.objects if each["kind"] == kind}

    @property
    def waiting(self) -> dict[str, Any]:
        return {name: pod for name, pod in self.of("Pod").items() if "nodeName" not in pod["spec"]}


@dataclass(frozen=True)
class Machine:
    """A node, standing or new."""

    name: str
    labels: Mapping[str, str]
    cpu: int
    """In cores."""
    group: str = ""
    """Of a new one."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Volumes that each driver may attach, of drivers that say so."""
    extended: Mapping[str, int] = field(default_factory=dict)
    """What device plugins provide."""
    devices: tuple[Any, ...] = ()
    """Of a new one: driver, attributes, capacity of each."""


def machines(world: World) -> dict[str, Machine]:
    """Return all nodes: those that stand, and as many new ones as each group may have."""
    found = {}
    said = world.of("CSINode")
    for name, node in world.of("Node").items():
        drivers = said.get(name, {}).get("spec", {}).get("drivers", [])
        limits = {each["name"]: each["allocatable"]["count"] for each in drivers if each.get("allocatable")}
        has = node["status"]["allocatable"]
        cpu = int(has["cpu"])
        found[name] = Machine(name, node["metadata"].get("labels", {}), cpu, limits=limits, extended=_extended(has))
    for group in world.groups:
        of = group["allocatable"]
        limits = {key.removeprefix(ATTACHABLE): int(n) for key, n in of.items() if key.startswith(ATTACHABLE)}
        for number in range(group["max_size"]):
            name = f"new-{group['id']}-{number}"
            labels = {**group["labels"], HOSTNAME: name}
            devices = tuple(
                {"driver": each["driver"], "attributes": each["attributes"], "capacity": each["capacity"]}
                for each in world.devices
                if group["id"] in each["node_groups"]
                for _ in range(each["count"])
            )
            found[name] = Machine(name, labels, int(of["cpu"]), group["id"], limits, _extended(of), devices)
    return found


def _extended(allocatable: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(amount) for name, amount in allocatable.items() if "/" in name}


def cpu_of(pod: Any) -> int:
    return sum(int(each["resources"]["requests"]["cpu"]) for each in pod["spec"]["containers"])


def matches_terms(terms: Sequence[Any], labels: Mapping[str, str], name: str = "") -> bool:
    """Whether a node meets one of a v1.NodeSelector's terms."""
    return any(_matches_term(term, labels, name) for term in terms)


def _matches_term(term: Any, labels: Mapping[str, str], name: str) -> bool:
    asked = [(labels, each) for each in term.get("matchExpressions", ())]
    asked += [({"metadata.name": name}, each) for each in term.get("matchFields", ())]
    return bool(asked) and all(_meets(where.get(each["key"]), each) for where, each in asked)


def _meets(value: str | None, condition: Any) -> bool:
    match condition["operator"]:
        case "In":
            return value in condition["values"]
        case "NotIn":
            return value not in condition["values"]
        case "Exists":
            return value is not None
        case _:
            return value is None


def by_owner(pods: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the pods of each node, of (pod, node)."""
    found = defaultdict(list)
    for pod, node in pods:
        found[node].append(pod)
    return found
