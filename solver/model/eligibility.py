"""The rules that need no arithmetic: may a pod run on a node at all (selectors, required node affinity, taints), which
pods a selector counts, which host ports exclude each other. Resources are not compared here.

Semantics are the kube-scheduler's NodeAffinity, TaintToleration and NodePorts filters (k8s.io/component-helpers
nodeaffinity, v1 helper ToleratesTaint, framework HostPortInfo), with Karpenter's Gte and Lte added, and apimachinery's
label selectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from solver.model import (
    HOSTNAME,
    HostPort,
    Labels,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
    TopologySpread,
)

_INTEGER = re.compile("[+-]?[0-9]+")
"""What Go's ParseInt reads; Python's int reads "1_000", too."""
_INT64 = range(-(2**63), 2**63)
EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, never bound


def matches_requirement(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Whether `labels` meet one requirement. NotIn and DoesNotExist hold for an absent label; the comparing operators
    need a label and a single value that are both integers, and fail otherwise, as upstream."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case Operator.IN:
            return value is not None and value in requirement.values
        case Operator.NOT_IN:
            return value is None or value not in requirement.values
        case Operator.EXISTS:
            return value is not None
        case Operator.DOES_NOT_EXIST:
            return value is None
    return value is not None and _compares(requirement.operator, value, requirement.values)


def _compares(operator: Operator, value: str, bounds: Sequence[str]) -> bool:
    if len(bounds) != 1 or not all(_INTEGER.fullmatch(text) for text in (value, *bounds)):
        return False
    found, bound = int(value), int(bounds[0])
    if found not in _INT64 or bound not in _INT64:
        return False
    match operator:
        case Operator.GT:
            return found > bound
        case Operator.LT:
            return found < bound
        case Operator.GTE:
            return found >= bound
        case _:
            return found <= bound


def matches_term(term: NodeSelectorTerm, labels: Labels, node_name: str = "") -> bool:
    """Whether every condition of a term holds; a term without conditions matches nothing."""
    if not term.match_expressions and not term.match_fields:
        return False
    return all(matches_requirement(r, labels) for r in term.match_expressions) and all(
        matches_requirement(r, {"metadata.name": node_name}) for r in term.match_fields
    )


def selects(selector: PodSelector, namespace: str, labels: Labels) -> bool:
    """Whether a pod with these labels in this namespace is one that the selector counts."""
    if selector.match_expressions is None:
        return False
    if selector.namespaces is not None and namespace not in selector.namespaces:
        return False
    return all(matches_requirement(requirement, labels) for requirement in selector.match_expressions)


def required_affinity(spec: PodSpec) -> tuple[PodAffinityTerm, ...]:
    """The pod's required affinity terms as the kube-scheduler reads them: of several, each counts only the pods that
    the selectors of all of them match."""
    terms = tuple(term for term in spec.pod_affinity if not term.alone)
    alone = tuple(term for term in spec.pod_affinity if term.alone)
    if len(terms) < 2:
        return (*terms, *alone)
    expressions: dict[Requirement, None] | None = {}
    namespaces: set[str] | None = None
    for selector in (term.selector for term in terms):
        if selector.match_expressions is None or expressions is None:
            expressions = None
        else:
            expressions.update(dict.fromkeys(selector.match_expressions))
        if selector.namespaces is not None:
            namespaces = set(selector.namespaces) & (set(selector.namespaces) if namespaces is None else namespaces)
    together = PodSelector(
        None if expressions is None else tuple(expressions), None if namespaces is None else tuple(sorted(namespaces))
    )
    return (*(PodAffinityTerm(key, together) for key in dict.fromkeys(term.topology_key for term in terms)), *alone)


def ports_collide(one: HostPort, other: HostPort) -> bool:
    """Whether two pods with these host ports cannot share a node."""
    if one.port != other.port or one.protocol != other.protocol:
        return False
    return one.ip == other.ip or one.ip in EVERY_ADDRESS or other.ip in EVERY_ADDRESS


def any_ports_collide(one: PodSpec, other: PodSpec) -> bool:
    """Whether two pods of these specs cannot share a node for their host ports."""
    return any(ports_collide(mine, its) for mine in one.host_ports for its in other.host_ports)


_DECIMAL = re.compile("0|-?[1-9][0-9]*")
"""What apimachinery's IsDecimalInteger takes for an integer."""


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """v1.Toleration.ToleratesTaint, with its comparing operators."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if not toleration.key:
        return False
    if toleration.operator in (Operator.GT, Operator.LT):
        are_integers = all(_DECIMAL.fullmatch(text) for text in (toleration.value, taint.value))
        return are_integers and _compares(Operator(toleration.operator), taint.value, (toleration.value,))
    return toleration.value == taint.value


def untolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that keeps the pod away; PreferNoSchedule keeps nobody away."""
    for taint in taints:
        if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE and not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None


def why_not_eligible(spec: PodSpec, labels: Labels, taints: Sequence[Taint], node_name: str = "") -> str | None:
    """None where the pod may run on such a node, otherwise the first reason why not, for people."""
    return next(all_why_not_eligible(spec, labels, taints, node_name), None)


def all_why_not_eligible(spec: PodSpec, labels: Labels, taints: Sequence[Taint], node_name: str = "") -> Iterator[str]:
    """Every reason why the pod may not run on such a node, for people."""
    if spec.unschedulable:
        yield spec.unschedulable
    for key, value in spec.node_selector:
        if labels.get(key) != value:
            yield f"node selector {key}={value} not met"
    if spec.affinity is not None and not any(matches_term(term, labels, node_name) for term in spec.affinity):
        yield "required node affinity not met"
    for terms in spec.node_terms:
        if not any(matches_term(term, labels, node_name) for term in terms):
            yield f"out of reach of its volumes or devices, which need {node_terms_text(terms)}"
    for taint in taints:
        if untolerated((taint,), spec.tolerations) is not None:
            yield f"taint {taint} not tolerated"


@lru_cache(maxsize=10_000)
def without_preferences(spec: PodSpec) -> PodSpec:
    """Return the spec with what it requires alone: preferences keep no pod from a node."""
    hard = tuple(each for each in spec.topology_spread if each.is_required)
    if hard == spec.topology_spread and not (spec.preferred_nodes or spec.preferred_pods or spec.preferred_domains):
        return spec
    return replace(spec, topology_spread=hard, preferred_nodes=(), preferred_pods=(), preferred_domains=())


def is_spread_over_hosts(spec: PodSpec) -> bool:
    """Whether a required spread of the pod counts each node by itself."""
    return any(spread.topology_key == HOSTNAME for spread in spec.topology_spread if spread.is_required)


def counts_domain(
    spread: TopologySpread, spec: PodSpec, labels: Labels, taints: Sequence[Taint], node_name: str = ""
) -> bool:
    """Whether a spread of the pod counts such a node and what is on it: by nodeAffinityPolicy and nodeTaintsPolicy, and
    where it is required only if the node has the keys of all required spreads of the pod."""
    if spread.is_required:
        hard = (each.topology_key for each in spec.topology_spread if each.is_required)
        if any(key not in labels for key in hard if key != HOSTNAME):
            return False
    asked = PodSpec(node_selector=spec.node_selector, affinity=spec.affinity)
    if spread.honor_node_affinity and why_not_eligible(asked, labels, (), node_name) is not None:
        return False
    return not spread.honor_node_taints or untolerated(taints, spec.tolerations) is None


def node_terms_text(terms: Sequence[NodeSelectorTerm]) -> str:
    """Terms of which one must match, in words: "topology.kubernetes.io/zone in (a, b)"."""
    return " or ".join(" and ".join(map(_condition, (*t.match_expressions, *t.match_fields))) for t in terms) or "none"


def _condition(requirement: Requirement) -> str:
    words = {
        Operator.IN: "in",
        Operator.NOT_IN: "not in",
        Operator.EXISTS: "present",
        Operator.DOES_NOT_EXIST: "absent",
        Operator.GT: ">",
        Operator.LT: "<",
        Operator.GTE: ">=",
        Operator.LTE: "<=",
    }
    word, values = words[requirement.operator], ", ".join(requirement.values)
    if requirement.operator in (Operator.IN, Operator.NOT_IN):
        return f"{requirement.key} {word} ({values})"
    return f"{requirement.key} {word} {values}".rstrip()


def on_nodes(spec: PodSpec) -> PodSpec:
    """The part of a spec that decides which nodes it may run on: specs with equal parts are eligible for the same."""
    return PodSpec(
        node_selector=spec.node_selector,
        affinity=spec.affinity,
        tolerations=spec.tolerations,
        node_terms=spec.node_terms,
        unschedulable=spec.unschedulable,
    )


def required_terms(spec: PodSpec) -> Iterator[NodeSelectorTerm]:
    """Every term of a node that the spec requires, of its node affinity and of its volumes and claims."""
    yield from spec.affinity or ()
    for terms in spec.node_terms:
        yield from terms


def node_label_keys(specs: Iterable[PodSpec]) -> set[str]:
    """The node labels that decide whether these specs may run on a node."""
    specs = tuple(specs)
    keys = {key for spec in specs for key, _ in spec.node_selector}
    return keys | {r.key for spec in specs for term in required_terms(spec) for r in term.match_expressions}


def read_node_names(specs: Iterable[PodSpec]) -> bool:
    """Whether a node's name decides whether some of these specs may run on it."""
    return any(term.match_fields for spec in specs for term in required_terms(spec))
