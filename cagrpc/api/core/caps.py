"""How much of one pod is planned with: a hundred times what a sane pod has. What a pod has beyond that is counted
before it is read, and such a pod is left out with that reason. What it does to others where it runs is kept: what it
takes of its node, and, more coarsely than it says, who may not be beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cagrpc.api.core.constraints import PREFERRED, REQUIRED, pod_affinity_terms
from cagrpc.api.encoding.json_documents import Document, mapping, members, texts
from solver.model import PodAffinityTerm, PodSelector

MOST_TERMS = 100
"""Affinity and anti-affinity terms, required and preferred together."""
MOST_SPREADS = 100
MOST_NODE_TERMS = 200
"""Node affinity terms, required and preferred together."""
MOST_CONDITIONS = 2_000
"""Conditions in selectors and node affinity, labels in `nodeSelector` and `matchLabels` among them."""
MOST_VALUES = 20_000
"""Values of conditions, and names of namespaces."""
MOST_TOLERATIONS = 1_000
MOST_HOST_PORTS = 100
MOST_RESOURCES = 100
"""Kinds that its containers request."""
MOST_CLAIMS = 100
"""Claims on devices."""
MOST_VOLUMES = 500
MOST_LABELS = 1_000
"""Labels of the pod itself."""
MOST_NAMESPACES = 20_000
"""Namespaces that all of its terms come to, each counted for each term."""


def beyond(what: str, count: int, most: int) -> str:
    """Return why a pod with so many is not planned; empty where it is."""
    return f"has {count:,} {what}, more than the {most:,} that planning handles" if count > most else ""


def beyond_caps(spec: Document) -> str:
    """Return of what a v1.PodSpec in JSON shape has more than is planned with; empty for nothing. Malformed fields are
    reported where they are read."""
    terms, node_terms = list(pod_affinity_terms(spec)), list(_node_terms(spec))
    spreads = _members(spec, "topologySpreadConstraints")
    selectors = [mapping(each, "labelSelector") for each in (*terms, *spreads)]
    selectors += [mapping(each, "namespaceSelector") for each in terms]
    conditions = [
        condition
        for each in (*selectors, *node_terms)
        for name in ("matchExpressions", "matchFields")
        for condition in _members(each, name)
    ]
    labels = sum(len(mapping(each, "matchLabels")) for each in selectors) + len(mapping(spec, "nodeSelector"))
    lists = [(each, name) for each in terms for name in ("namespaces", "matchLabelKeys", "mismatchLabelKeys")]
    lists += [(each, "matchLabelKeys") for each in spreads] + [(each, "values") for each in conditions]
    containers = [*_members(spec, "initContainers"), *_members(spec, "containers")]
    resources = {name for each in containers for name in mapping(mapping(each, "resources"), "requests")}
    found = (
        beyond("terms of pod affinity and anti-affinity", len(terms), MOST_TERMS),
        beyond("topology spread constraints", len(spreads), MOST_SPREADS),
        beyond("terms of node affinity", len(node_terms), MOST_NODE_TERMS),
        beyond("conditions on labels", len(conditions) + labels, MOST_CONDITIONS),
        beyond("values of conditions", sum(len(texts(each, name)) for each, name in lists), MOST_VALUES),
        beyond("tolerations", len(_members(spec, "tolerations")), MOST_TOLERATIONS),
        beyond("host ports", sum(_host_ports(spec, each) for each in containers), MOST_HOST_PORTS),
        beyond("kinds of resources", len(resources), MOST_RESOURCES),
    )
    return "; ".join(filter(None, found))


def coarse_anti_affinity(spec: Document, namespace: str) -> tuple[PodAffinityTerm, ...]:
    """Return terms that keep away all whom the required anti-affinity of a v1.PodSpec keeps away, and whoever else is
    in these namespaces: one for each topology key."""
    of_all: dict[str, bool] = {}
    for term in _members(mapping(mapping(spec, "affinity"), "podAntiAffinity"), REQUIRED):
        key = term.get("topologyKey")
        if isinstance(key, str) and key and term.get("labelSelector") is not None:
            elsewhere = bool(texts(term, "namespaces")) or term.get("namespaceSelector") is not None
            of_all[key] = of_all.get(key, False) or elsewhere
    keys = sorted(of_all, key=lambda each: (not of_all[each], each))[:MOST_TERMS]
    return coarse_terms({key: of_all[key] for key in keys}, namespace)


def coarse_terms(of_all: Mapping[str, bool], namespace: str) -> tuple[PodAffinityTerm, ...]:
    """Return a term for each topology key that selects all pods of the namespace, or of all namespaces."""
    return tuple(PodAffinityTerm(key, PodSelector((), None if all_ else (namespace,))) for key, all_ in of_all.items())


def _node_terms(spec: Document) -> Iterator[Document]:
    holder = mapping(mapping(spec, "affinity"), "nodeAffinity")
    yield from _members(mapping(holder, REQUIRED), "nodeSelectorTerms")
    yield from (mapping(each, "preference") for each in _members(holder, PREFERRED))


def _host_ports(spec: Document, container: Document) -> int:
    ports = _members(container, "ports")
    return len(ports) if spec.get("hostNetwork") else sum(bool(each.get("hostPort")) for each in ports)


def _members(holder: Document, name: str) -> list[Document]:
    return [each for each, _ in members(holder, name)]
