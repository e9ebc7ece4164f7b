"""Builders for problems in tests: a case names what matters to it, the rest has defaults."""

from __future__ import annotations

from collections.abc import Mapping

from solver import Certificate, NodeGroup, NodeGroupIncrease, Plan, PodSet, PodSpec, Requirement, Status, Toleration
from solver.model import Node, NodeSelectorTerm, Operator, Taint, TaintEffect

GPU = "nvidia.com/gpu"
GIB = 2**30


def spec(cpu: int = 1000, memory_gib: int = 0, gpu: int = 0, **other: object) -> PodSpec:
    """Return a spec with `cpu` in millicores. `other`: node_selector as a mapping, the remaining fields as they are."""
    amounts = {"cpu": cpu, "memory": memory_gib * GIB, GPU: gpu}
    requests = tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
    if isinstance(other.get("node_selector"), Mapping):
        other["node_selector"] = tuple(sorted(other["node_selector"].items()))  # type: ignore[attr-defined]
    return PodSpec(requests, **other)  # type: ignore[arg-type]


def pods(name: str, count: int, of: PodSpec | None = None, **other: object) -> PodSet:
    return PodSet(name, of or spec(), count, **other)  # type: ignore[arg-type]


def group(
    name: str, cpu: int = 4000, price: float = 1.0, extra: Mapping[str, int] | None = None, **other: object
) -> NodeGroup:
    """Return a group of nodes with `cpu` millicores, 110 pods and, by default, 64 GiB, and with the fields of
    `extra`."""
    allocatable = {"cpu": cpu, "memory": 64 * GIB, "pods": 110}
    return NodeGroup(name, {**allocatable, **(extra or {})}, price, **other)  # type: ignore[arg-type]


def node(name: str, cpu: int, **other: object) -> Node:
    return Node(name, {"cpu": cpu, "memory": 64 * GIB, "pods": 110}, **other)  # type: ignore[arg-type]


def wants(key: str, operator: str, *values: str) -> tuple[NodeSelectorTerm, ...]:
    """Return required node affinity with one condition."""
    return (NodeSelectorTerm((Requirement(key, Operator(operator), values),)),)


def previous(deltas: Mapping[str, int]) -> Plan:
    """Return a previous plan, as far as planning reads it: its increments."""
    certificate = Certificate(Status.FEASIBLE, 0.0, 0.0, (), 0.0)
    increments = tuple(NodeGroupIncrease(name, delta) for name, delta in sorted(deltas.items()) if delta)
    return Plan((), increments, (), (), (), certificate, 0.0)


def gap_of(plan: Plan) -> float:
    """Return the gap of a plan for which one is proven."""
    assert plan.certificate.gap is not None, plan.certificate
    return plan.certificate.gap


TAINT = Taint("dedicated", TaintEffect.NO_SCHEDULE, "gpu")
TOLERATION = Toleration("dedicated", "Equal", "gpu", "NoSchedule")
