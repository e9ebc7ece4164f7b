"""Pod specs of the planner to v1.PodSpecs in JSON shape: the inverse of `pods.pod_spec`. The pods have the spec's
requests and constraints, and run one idle container."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from cagrpc.api.core.constraints import PREFERRED, REQUIRED
from cagrpc.api.core.volume_binding import without_attachments
from solver.model import (
    HostPort,
    NodeSelectorTerm,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Requirement,
    Toleration,
    TopologySpread,
)
from solver.model.quantities import format_quantities

Body = dict[str, Any]


def pod_body(spec: PodSpec, image: str, namespace: str) -> Body:
    """Return a v1.PodSpec of one container for pods in `namespace`. Constraints that select the spec's own namespace
    select `namespace` as well, so that these pods select each other. Such pods have no volumes and no claims, and so
    take neither attachments nor claimed devices of a node."""
    affinity = _affinity(spec, namespace)
    ports = [_port(port) for port in spec.host_ports]
    container = {"name": "main", "image": image, "resources": _resources(spec), **({"ports": ports} if ports else {})}
    fields: Body = {
        "containers": [container],
        "nodeSelector": dict(spec.node_selector),
        "tolerations": [_toleration(each) for each in spec.tolerations],
        "affinity": affinity,
        "topologySpreadConstraints": [_spread(each) for each in spec.topology_spread],
    }
    return {name: value for name, value in fields.items() if value}


def _resources(spec: PodSpec) -> Body:
    """Return the requests, with equal limits where the API server requires them: extended resources and huge pages."""
    asked = without_attachments(dict(spec.requests))
    requests = format_quantities(asked.items())
    limits = {name: text for name, text in requests.items() if "/" in name or name.startswith("hugepages-")}
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _port(port: HostPort) -> Body:
    address = {"hostIP": port.ip} if port.ip else {}
    return {"containerPort": port.port, "hostPort": port.port, "protocol": port.protocol, **address}


def _toleration(toleration: Toleration) -> Body:
    fields = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
    }
    return {name: value for name, value in fields.items() if value}


def _affinity(spec: PodSpec, namespace: str) -> Body:
    nodes: Body = {}
    nodes_of = [*([spec.affinity] if spec.affinity is not None else ()), *spec.node_terms]
    if nodes_of:
        nodes[REQUIRED] = {"nodeSelectorTerms": [_node_term(term) for term in map(_together, product(*nodes_of))]}
    if spec.preferred_nodes:
        nodes[PREFERRED] = [
            {"weight": each.weight, "preference": _node_term(each.term)} for each in spec.preferred_nodes
        ]
    kinds: Body = {"nodeAffinity": nodes}
    for kind, required, anti in (
        ("podAffinity", spec.pod_affinity, False),
        ("podAntiAffinity", spec.pod_anti_affinity, True),
    ):
        found = {
            REQUIRED: [_pod_term(term, spec.namespace, namespace) for term in required],
            PREFERRED: [
                {"weight": each.weight, "podAffinityTerm": _pod_term(each.term, spec.namespace, namespace)}
                for each in spec.preferred_pods
                if each.anti is anti
            ],
        }
        kinds[kind] = {name: terms for name, terms in found.items() if terms}
    return {kind: found for kind, found in kinds.items() if found}


def _together(terms: Iterable[NodeSelectorTerm]) -> NodeSelectorTerm:
    terms = tuple(terms)
    if len(terms) == 1:
        return terms[0]
    return NodeSelectorTerm(
        tuple(dict.fromkeys(each for term in terms for each in term.match_expressions)),
        tuple(dict.fromkeys(each for term in terms for each in term.match_fields)),
    )


def _node_term(term: NodeSelectorTerm) -> Body:
    found = {
        "matchExpressions": _conditions(term.match_expressions),
        "matchFields": _conditions(term.match_fields),
    }
    return {name: conditions for name, conditions in found.items() if conditions}


def _pod_term(term: PodAffinityTerm, own: str, namespace: str) -> Body:
    namespaces = term.selector.namespaces
    if namespaces is None:
        where: Body = {"namespaceSelector": {}}
    else:
        where = {"namespaces": sorted({*namespaces, *({namespace} if own in namespaces else ())})}
    return {"topologyKey": term.topology_key, **_labels(term.selector), **where}


def _spread(spread: TopologySpread) -> Body:
    least = {"minDomains": spread.min_domains} if spread.min_domains > 1 else {}
    return {
        "topologyKey": spread.topology_key,
        "maxSkew": spread.max_skew,
        "whenUnsatisfiable": spread.when_unsatisfiable.value,
        "nodeAffinityPolicy": "Honor" if spread.honor_node_affinity else "Ignore",
        "nodeTaintsPolicy": "Honor" if spread.honor_node_taints else "Ignore",
        **({"labelSelector": {}} if _is_empty(spread.selector) else _labels(spread.selector)),
        **(least if spread.is_required else {}),
    }


def _is_empty(selector: PodSelector) -> bool:
    """Return whether it is an empty selector of a spread, which counts nominated pods alone, and not a missing one."""
    return selector.match_expressions is None and selector.namespaces is None


def _labels(selector: PodSelector) -> Body:
    if selector.match_expressions is None:
        return {}
    conditions = _conditions(selector.match_expressions)
    return {"labelSelector": {"matchExpressions": conditions} if conditions else {}}


def _conditions(conditions: Iterable[Requirement]) -> list[Mapping[str, Any]]:
    return [
        {
            "key": each.key,
            "operator": each.operator.value,
            **({"values": list(each.values)} if each.values else {}),
        }
        for each in conditions
    ]
