"""A case is a small cluster in one JSON object: `namespaces`, `nodes`, `bound`, `pending`, `daemonsets`, `podgroups`
and `runtimeclasses` are Kubernetes objects, `objects` are all others (volumes, claims, classes), `provisioners` and
`devices` are as in cagrpc's configuration, and `catalogue` is a table of instance types, or null for the embedded one.
Here it is planned as `cagrpc plan` plans files, and becomes a question to the scheduler."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.nodes import node_document
from cagrpc.cluster.documents import DocumentReader
from cagrpc.cluster.state import PodRef
from cagrpc.controllers.planning.increments import AssignedPods, assign_pods
from cagrpc.controllers.planning.problem import Question
from cagrpc.errors import InvalidConfiguration
from cagrpc.offline.inputs import Inputs, problem_of, read_inputs
from solver import Budget, Plan, Problem, solve
from solver.model import ATTACHABLE_VOLUMES, NodeGroup, PodSpec
from solver.model.plan import ClassKey, class_key
from solver.planning.own_way import keys_of_one_domain, nominated_together

Case = Mapping[str, Any]
LISTS = ("namespaces", "nodes", "bound", "pending", "daemonsets", "podgroups", "runtimeclasses", "objects")
"""The parts of a case that are lists of Kubernetes objects."""
BUDGET = Budget(deterministic_seconds=0.5)


class NotReadError(Exception):
    """The case is no input of a plan; its problems are in the message."""


class NotPlannedError(Exception):
    """The planner failed; the exception that it raised is the cause."""


@dataclass(frozen=True)
class PlannedCase:
    problem: Problem
    plan: Plan
    assigned: AssignedPods
    read: Mapping[str, tuple[PodSpec, int]]
    """The pods that were planned, `namespace/name`, with their priorities."""


def name_of(body: Mapping[str, Any]) -> str:
    metadata = body["metadata"]
    return f"{metadata.get('namespace') or 'default'}/{metadata['name']}"


def planned(case: Case, directory: Path, budget: Budget = BUDGET) -> PlannedCase:
    """Plan a case, with files in the directory. Raises NotReadError and NotPlannedError."""
    objects = directory / "objects.json"
    items = [_whole(part, each) for part in LISTS for each in case.get(part, ())]
    objects.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    provisioners = directory / "provisioners.yaml"
    provisioners.write_text(json.dumps(case["provisioners"]))
    devices = catalogue = None
    if case.get("devices"):
        devices = directory / "devices.yaml"
        devices.write_text(json.dumps({"devices": case["devices"]}))
    if case.get("catalogue"):
        catalogue = directory / "catalogue.csv"
        catalogue.write_text(case["catalogue"])
    problems: list[str] = []
    reader = DocumentReader()
    inputs = Inputs(pods=(objects,), provisioners=(provisioners,), devices=devices, catalogue=catalogue)
    try:
        read = read_inputs(inputs, reader, problems)
    except InvalidConfiguration as error:
        raise NotReadError(str(error)) from error
    if problems or read.expanded is None:
        raise NotReadError("\n".join(problems))
    problem = problem_of(read.found, read.expanded.groups, read.expanded.limits, read.tables)
    try:
        plan = solve(problem, budget)
    except Exception as error:  # whatever it is, it is a fault of the planner
        raise NotPlannedError(str(error)) from error
    pods: defaultdict[ClassKey, tuple[PodRef, ...]] = defaultdict(tuple)
    for each in read.found.state.waiting:
        spec = read.found.state.devices.left_out(each.pod_set.spec)
        pods[class_key(replace(each.pod_set, spec=spec))] += each.pods
    assigned = assign_pods(plan, Question(problem, pods, frozenset()))
    known = {
        f"{ref.namespace}/{ref.name}": (spec, priority) for (spec, priority, *_), refs in pods.items() for ref in refs
    }
    return PlannedCase(problem, plan, assigned, known)


def _whole(part: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    kinds = {"nodes": "Node", "bound": "Pod", "pending": "Pod", "namespaces": "Namespace"}
    return {"apiVersion": "v1", "kind": kinds[part], **body} if part in kinds else body


def question(case: Case, found: PlannedCase, *, nominated: bool) -> dict[str, Any]:
    """Return what the scheduler is asked about the plan; with `nominated`, pods are nominated to where they go as the
    placement controller does."""
    groups = {each.id: each for each in found.problem.node_groups}
    bodies = {name_of(each): each for each in case["pending"]}
    nodes: list[Any] = [_whole("nodes", each) for each in case["nodes"]]
    objects: list[Any] = [
        _whole(part, each) for part in ("namespaces", "runtimeclasses", "objects") for each in case.get(part, ())
    ]
    # where they do not all fit, others come first than in the files
    objects += reversed(case.get("daemonsets", ()))
    placements = []
    placed: set[str] = set()
    opening = (groups[each.node_group].labels for each in found.assigned.new)
    of_one_domain = keys_of_one_domain([*(each.labels for each in found.problem.nodes), *opening])

    def place(pods: Sequence[PodRef], node: str) -> None:
        names = [f"{ref.namespace}/{ref.name}" for ref in pods]
        together = nominated_together([found.read[name] for name in names], of_one_domain)
        for name, can_be in zip(names, together, strict=True):
            placed.add(name)
            placements.append({"pod": bodies[name], "node": node, "nominated": nominated and can_be})

    for node, pods in found.assigned.existing.items():
        place(pods, node)
    opened: defaultdict[str, int] = defaultdict(int)
    for new in found.assigned.new:
        name = f"new-{_as_name(new.node_group)}-{opened[new.node_group]}"
        opened[new.node_group] += 1
        nodes.append(node_document(groups[new.node_group], name))
        objects += _beside(case, groups[new.node_group], name)
        place(new.pods, name)
    empty = []
    for group in groups.values():
        if _may_grow(found.problem, group, opened):
            name = f"empty-{_as_name(group.id)}"
            empty.append(node_document(group, name))
            objects += _beside(case, group, name)
    unplaced = [body for name, body in bodies.items() if name not in placed and not _in_gang(body)]
    standing = [each["metadata"]["name"] for each in case["nodes"]]
    return {
        "nodes": nodes, "standing": standing, "bound": list(case["bound"]), "objects": objects,
        "placements": placements, "unplaced": unplaced, "empty": empty,
    }  # fmt: skip


def _in_gang(body: Mapping[str, Any]) -> bool:
    """Whether a pod waits for others, as who schedules gangs lets it."""
    labels = body["metadata"].get("labels") or {}
    return DEFAULT_GANG_LABEL in labels or "schedulingGroup" in body["spec"]


def _as_name(group: str) -> str:
    return group.replace("/", ".")


def _beside(case: Case, group: NodeGroup, node: str) -> Iterator[dict[str, Any]]:
    """Yield what drivers say of a new node: a CSINode, where there are storage classes, and its devices."""
    drivers = sorted({each["provisioner"] for each in case.get("objects", ()) if each["kind"] == "StorageClass"})
    if drivers:
        most = {driver: group.allocatable.get(ATTACHABLE_VOLUMES + driver) for driver in drivers}
        zone = ["topology.ebs.csi.aws.com/zone"] if group.zone else []
        yield {
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node},
            "spec": {"drivers": [
                {
                    "name": driver, "nodeID": node, "topologyKeys": zone,
                    **({} if count is None else {"allocatable": {"count": count}}),
                }
                for driver, count in most.items()
            ]},
        }  # fmt: skip
    by_driver: defaultdict[str, list[Any]] = defaultdict(list)
    for each in case.get("devices", ()):
        if group.id in each.get("node_groups", [group.id]):
            for _ in range(each["count"]):
                mine = by_driver[each["driver"]]
                kinds = {str: "string", int: "int", bool: "bool"}
                attributes = {key: {kinds[type(of)]: of} for key, of in each.get("attributes", {}).items()}
                capacity = {key: {"value": of} for key, of in each.get("capacity", {}).items()}
                mine.append({"name": f"d{len(mine)}", "attributes": attributes, "capacity": capacity})
    for driver, devices in by_driver.items():
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        yield {
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-{driver}"},
            "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices},
        }  # fmt: skip


def _may_grow(problem: Problem, group: NodeGroup, opened: Mapping[str, int]) -> bool:
    """Whether one more node of the group is within its maximum and all limits, after the plan."""
    if group.target_size + opened.get(group.id, 0) >= group.max_size:
        return False
    groups = {each.id: each for each in problem.node_groups}
    for limit in problem.limits:
        counted = limit.counted(group)
        for resource, most in limit.maxima.items():
            used = limit.used.get(resource, 0)
            used += sum(count * limit.counted(groups[of]).get(resource, 0) for of, count in opened.items())
            if counted.get(resource, 0) and used + counted[resource] > most:
                return False
    return True
