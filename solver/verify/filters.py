"""Which pods may be on a node and which pods a selector counts, as the checker judges it: written from what Kubernetes
says of its scheduler's filters (NodeAffinity, TaintToleration, NodePorts, VolumeBinding) and of label selectors. It
imports nothing of what the planner asks (`solver.model.eligibility`), so that no mistake there passes unseen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import ge, gt, le, lt

from solver.model import (
    HostPort,
    Labels,
    NodeSelectorTerm,
    Operator,
    PodSelector,
    PodSpec,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)

_ORDER = {Operator.GT: gt, Operator.LT: lt, Operator.GTE: ge, Operator.LTE: le}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_CANONICAL = re.compile(r"0|-?[1-9][0-9]*")
"""An integer as tolerations and taints are compared by; those of node affinity may be written otherwise, too."""
_INT64 = range(-(2**63), 2**63)
_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared, never bound


def holds(condition: Requirement, value: str | None) -> bool:
    """Return whether a condition holds of the value that its label has; None where there is no such label."""
    order = _ORDER.get(condition.operator)
    if order is not None:
        texts = (value or "", *condition.values)
        are_integers = all(_INTEGER.fullmatch(text) and int(text) in _INT64 for text in texts)
        return are_integers and len(texts) == 2 and order(*map(int, texts))
    if condition.operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST):
        return (value is None) is (condition.operator is Operator.DOES_NOT_EXIST)
    return (value in condition.values) is (condition.operator is Operator.IN)  # an absent label is in no set


def matches(term: NodeSelectorTerm, labels: Labels, name: str) -> bool:
    """Return whether a node with these labels and this name meets all conditions of a term, of which it has some."""
    conditions = [(each, labels.get(each.key)) for each in term.match_expressions]
    conditions += [(each, name if each.key == "metadata.name" else None) for each in term.match_fields]
    return bool(conditions) and all(holds(each, value) for each, value in conditions)


def is_selected(spec: PodSpec, labels: Labels, name: str) -> bool:
    """Return whether node selector and required node affinity of the pod match a node."""
    if any(labels.get(key) != value for key, value in spec.node_selector):
        return False
    return spec.affinity is None or any(matches(term, labels, name) for term in spec.affinity)


def tolerated(tolerations: Sequence[Toleration], taints: Sequence[Taint], effects: Sequence[TaintEffect]) -> bool:
    """Return whether each of the taints that has one of these effects is tolerated."""
    return all(any(_tolerates(each, taint) for each in tolerations) for taint in taints if taint.effect in effects)


HARD = (TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE)
"""Effects that keep pods away; PreferNoSchedule keeps nobody away."""


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    if toleration.key != taint.key:
        return False
    order = {"Gt": gt, "Lt": lt}.get(toleration.operator)
    if order is None:
        return toleration.value == taint.value
    texts = (taint.value, toleration.value)
    return all(_CANONICAL.fullmatch(text) and int(text) in _INT64 for text in texts) and order(*map(int, texts))


def fault(spec: PodSpec, labels: Labels, taints: Sequence[Taint], name: str) -> str | None:
    """Return why such a pod may not be on a node, None where it may. Resources are compared elsewhere."""
    if spec.unschedulable:
        return f"no node can take it: {spec.unschedulable}"
    out_of_reach = sum(not any(matches(term, labels, name) for term in terms) for terms in spec.node_terms)
    if out_of_reach:
        return f"{out_of_reach} of its volumes and claims cannot be reached there"
    if not is_selected(spec, labels, name):
        missing = [f"{key}={value}" for key, value in spec.node_selector if labels.get(key) != value]
        return f"its node selector asks for {missing[0]}" if missing else "its node affinity does not match"
    return None if tolerated(spec.tolerations, taints, HARD) else "it does not tolerate a taint there"


def counts(selector: PodSelector, namespace: str, labels: Labels) -> bool:
    """Return whether a selector counts pods with these labels in this namespace."""
    if selector.match_expressions is None or (selector.namespaces is not None and namespace not in selector.namespaces):
        return False
    return all(holds(each, labels.get(each.key)) for each in selector.match_expressions)


def clash(one: HostPort, other: HostPort) -> bool:
    """Return whether two pods with these host ports exclude each other from a node."""
    same_address = one.ip == other.ip or one.ip in _ANY_ADDRESS or other.ip in _ANY_ADDRESS
    return same_address and (one.port, one.protocol) == (other.port, other.protocol)
