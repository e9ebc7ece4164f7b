"""Reads the constraints of a v1.PodSpec (in JSON shape), required and preferred: tolerations, node affinity, host
ports, inter-pod affinity, topology spread. How the planner satisfies them is in docs/reference/constraints.md."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from cagrpc.api.core.feature_gates import TAINT_TOLERATION_COMPARISON_OPERATORS, is_enabled
from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.api.core.selectors import (
    NOBODY,
    NODE_OPERATORS,
    Conditions,
    KnownNamespaces,
    NoNamespaces,
    PodIdentity,
    counted_labels,
    label_selector,
    requirements,
)
from cagrpc.api.encoding.json_documents import LARGEST_INT32, Problems, mapping, members, one_of, texts, whole
from cagrpc.errors import shown
from solver.model import (
    HostPort,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PreferredNodes,
    PreferredPods,
    Toleration,
    TopologySpread,
    WhenUnsatisfiable,
)
from solver.model.eligibility import EVERY_ADDRESS, matches_requirement
from solver.model.validation import PROTOCOLS

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
POD_AFFINITIES = ("podAffinity", "podAntiAffinity")

_LABEL_VALUE = re.compile("(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_MOST_WEIGHT = 100
_MOST_PORT = 65535
_MOST_COMPARED = 1_000
"""Namespaces by which a term of a pod that runs is read as the scheduler does. They may be most of the cluster's; with
more of them it counts as selecting all."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The context in which a pod's constraints are read. `notes` collects a message, beginning with the path, for each
    namespace selector that the known namespaces cannot resolve."""

    identity: PodIdentity = NOBODY
    namespaces: KnownNamespaces = field(default_factory=NoNamespaces)
    notes: list[str] = field(default_factory=list)


def tolerations(spec: Mapping[str, Any], path: str, problems: Problems) -> tuple[Toleration, ...]:
    """Return the tolerations of a v1.PodSpec in JSON shape, each once, sorted."""
    found = set()
    for toleration, at in members(spec, "tolerations", path, problems):
        if toleration.get("key") == START_UP_TAINT:
            continue  # our own, of a node that was dedicated to this pod
        operator = toleration.get("operator") or "Equal"
        if operator in ("Gt", "Lt") and not is_enabled(TAINT_TOLERATION_COMPARISON_OPERATORS):
            continue  # they tolerate nothing (ToleratesTaint)
        if operator not in ("Equal", "Exists", "Gt", "Lt"):
            problems.append(f"{at}.operator: {shown(operator)} is not one of Equal, Exists, Gt, Lt")
            continue
        found.add(
            Toleration(
                key=str(toleration.get("key") or ""),
                operator=operator,
                value=str(toleration.get("value") or ""),
                effect=str(toleration.get("effect") or ""),
            )
        )
    return tuple(sorted(found, key=toleration_order))


def toleration_order(toleration: Toleration) -> tuple[str, str, str, str]:
    """Return the sort key of a toleration in a `PodSpec`."""
    return toleration.key, toleration.operator, toleration.value, toleration.effect


def host_ports(spec: Mapping[str, Any], path: str, problems: Problems) -> tuple[HostPort, ...]:
    """Return the host ports of the containers and sidecars, sorted, as in the kube-scheduler (`GetHostPorts`). On the
    host network every container port is one, as the API server defaults it."""
    of_host = bool(spec.get("hostNetwork"))
    found = set()
    for container, at in _running_to_the_end(spec, path):
        for port, here in members(container, "ports", at, problems):
            number = whole(port, "hostPort", here, problems, 0, _MOST_PORT)
            if of_host and not number:
                number = whole(port, "containerPort", here, problems, 0, _MOST_PORT)
            protocol = one_of(port, "protocol", here, problems, PROTOCOLS)
            address = _address(port, here, problems)
            if number:
                found.add(HostPort(number, protocol, address))
    return tuple(sorted(found, key=lambda port: (port.port, port.protocol, port.ip)))


def _running_to_the_end(spec: Mapping[str, Any], path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    # `effective_requests` reports a malformed list of containers, once
    for container, at in members(spec, "initContainers", path, []):
        if container.get("restartPolicy") == "Always":
            yield container, at
    yield from members(spec, "containers", path, [])


def _address(port: Mapping[str, Any], path: str, problems: Problems) -> str:
    address = str(port.get("hostIP") or "")
    if address in EVERY_ADDRESS:
        return ""
    try:
        ip_address(address)
    except ValueError:
        problems.append(f"{path}.hostIP: {shown(address)} is not an IP address")
    return address


def required_pods(
    spec: Mapping[str, Any], kind: str, path: str, problems: Problems, around: Surroundings
) -> tuple[PodAffinityTerm, ...]:
    """Return the required inter-pod affinity terms; `kind` is `podAffinity` or `podAntiAffinity`."""
    holder, at = _affinity(spec, kind, path, problems)
    anti = kind == "podAntiAffinity"
    found = (
        _pod_term(term, here, problems, around, anti=anti) for term, here in members(holder, REQUIRED, at, problems)
    )
    return tuple(term for term in found if term)


def preferred_pods(
    spec: Mapping[str, Any], path: str, problems: Problems, around: Surroundings
) -> tuple[PreferredPods, ...]:
    """Return the preferred inter-pod affinity, then anti-affinity terms, each in the order given."""
    found = []
    for kind in POD_AFFINITIES:
        holder, at = _affinity(spec, kind, path, [])
        anti = kind == "podAntiAffinity"
        for weighted, here in members(holder, PREFERRED, at, problems):
            weight = whole(weighted, "weight", here, problems, 1, _MOST_WEIGHT)
            inner = mapping(weighted, "podAffinityTerm", here, problems)
            term = _pod_term(inner, f"{here}.podAffinityTerm", problems, around, anti=anti)
            if weight and term:
                found.append(PreferredPods(weight, term, anti))
    return tuple(found)


def _pod_term(
    term: Mapping[str, Any], path: str, problems: Problems, around: Surroundings, *, anti: bool
) -> PodAffinityTerm | None:
    key = _topology_key(term, path, problems)
    selected = counted_labels(term, path, problems, around.identity)
    if not key:
        return None
    named = set(texts(term, "namespaces", path, problems))
    conditions = label_selector(term, "namespaceSelector", path, problems)
    if conditions is None:
        return PodAffinityTerm(key, PodSelector(selected, tuple(sorted(named or {around.identity.namespace}))))
    if all(matches_requirement(each, {}) for each in conditions):
        # As kube-scheduler 1.36 acts: mergeAffinityTermNamespacesIfNotEmpty (plugins/interpodaffinity/plugin.go) takes
        # the term by value, so that its selector stays, and is compared with no labels at all where pods are counted:
        # one of nothing but NotIn and DoesNotExist matches every namespace. Anti-affinity of a pod that runs is
        # compared with the labels of the incoming pod's namespace (getExistingAntiAffinityCounts in filtering.go).
        running = None
        if anti and conditions:
            matching, complete = around.namespaces.matching(conditions)
            if complete and len(matching) <= _MOST_COMPARED:
                running = PodSelector(selected, _with_named(matching, named))
        return PodAffinityTerm(key, PodSelector(selected), running=running)
    matching, complete = around.namespaces.matching(conditions)
    if not complete:
        taken = "all namespaces are" if anti else "only namespaces that match for sure are"
        around.notes.append(f"{path}.namespaceSelector: the labels of namespaces are not known; {taken} searched")
        if anti:
            return PodAffinityTerm(key, PodSelector(selected))
    return PodAffinityTerm(key, PodSelector(selected, _with_named(matching, named)))


def _with_named(matching: tuple[str, ...], named: Collection[str]) -> tuple[str, ...]:
    if not named:
        return matching
    found = list(matching)  # which may be many: sorting them for each term would cost more
    for name in sorted(named):
        at = bisect_left(found, name)
        if found[at : at + 1] != [name]:
            found.insert(at, name)
    return tuple(found)


def topology_spread(
    spec: Mapping[str, Any], path: str, problems: Problems, around: Surroundings
) -> tuple[TopologySpread, ...]:
    """Return the topology spread constraints in the order given; they count pods of the pod's own namespace."""
    found = []
    for constraint, at in members(spec, "topologySpreadConstraints", path, problems):
        key = _topology_key(constraint, at, problems)
        when = one_of(constraint, "whenUnsatisfiable", at, problems, tuple(WhenUnsatisfiable), default="")
        skew = whole(constraint, "maxSkew", at, problems, 1, LARGEST_INT32)
        domains = whole(constraint, "minDomains", at, problems, 1, LARGEST_INT32, default=1)
        if when == WhenUnsatisfiable.SCHEDULE_ANYWAY and constraint.get("minDomains") is not None:
            problems.append(f"{at}.minDomains: only with whenUnsatisfiable DoNotSchedule")
        affinity = one_of(constraint, "nodeAffinityPolicy", at, problems, ("Honor", "Ignore"))
        taints = one_of(constraint, "nodeTaintsPolicy", at, problems, ("Ignore", "Honor"))
        # kube-scheduler's countPodsMatchSelector counts nobody by an empty selector, as by none; of pods that are only
        # nominated it counts all by an empty one, and none by none (`nominated_together`).
        selected = counted_labels(constraint, at, problems, around.identity)
        missing = PodSelector(None, () if selected is None else None)
        if key and when and skew:
            found.append(
                TopologySpread(
                    topology_key=key,
                    max_skew=skew,
                    selector=PodSelector(selected, (around.identity.namespace,)) if selected else missing,
                    when_unsatisfiable=WhenUnsatisfiable(when),
                    min_domains=domains,
                    honor_node_affinity=affinity == "Honor",
                    honor_node_taints=taints == "Honor",
                )
            )
    return tuple(found)


def node_term(term: Mapping[str, Any], path: str, problems: Problems) -> NodeSelectorTerm:
    """Read a v1.NodeSelectorTerm. One that kube-scheduler cannot parse matches nothing, as one without conditions."""
    found = _node_term(term, path, problems)
    return NodeSelectorTerm() if _unparsed(found) else found


def _node_term(term: Mapping[str, Any], path: str, problems: Problems) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        match_expressions=requirements(term, "matchExpressions", path, problems, NODE_OPERATORS),
        match_fields=requirements(term, "matchFields", path, problems, NODE_OPERATORS),
    )


def _unparsed(term: NodeSelectorTerm) -> list[str]:
    """Return the values that no label can have, even those of NotIn, and those that are compared and are no integers
    (apimachinery's NewRequirement). The API server takes some of them."""
    return [
        value
        for each in term.match_expressions
        for value in each.values
        if not _LABEL_VALUE.fullmatch(value)
        or (each.operator in (Operator.GT, Operator.LT) and not (value.isdecimal() and int(value) < 2**63))
    ]


def required_nodes(spec: Mapping[str, Any], path: str, problems: Problems) -> tuple[NodeSelectorTerm, ...] | None:
    """Return the required node affinity terms, one of which must match; None where there is none."""
    holder, at = _affinity(spec, "nodeAffinity", path, problems)
    if holder.get(REQUIRED) is None:
        return None
    required = mapping(holder, REQUIRED, at, problems)
    terms = members(required, "nodeSelectorTerms", f"{at}.{REQUIRED}", problems)
    return tuple(node_term(term, here, problems) for term, here in terms)


def preferred_nodes(spec: Mapping[str, Any], path: str, problems: Problems) -> tuple[PreferredNodes, ...]:
    """Return the preferred node affinity terms in the order given. A term without conditions matches every node and is
    left out."""
    holder, at = _affinity(spec, "nodeAffinity", path, [])
    found = []
    for preferred, here in members(holder, PREFERRED, at, problems):
        weight = whole(preferred, "weight", here, problems, 1, _MOST_WEIGHT)
        term = _node_term(mapping(preferred, "preference", here, problems), f"{here}.preference", problems)
        if unparsed := _unparsed(term):
            values = ", ".join(map(shown, unparsed))
            problems.append(
                f"{here}.preference: kube-scheduler cannot parse {values}, and binds no such pod that has a choice of"
                " nodes: In and NotIn take what a label can have as its value, Gt and Lt an integer"
            )
        if weight and (term.match_expressions or term.match_fields):
            found.append(PreferredNodes(weight, term))
    return tuple(found)


def namespace_selectors(spec: Mapping[str, Any]) -> frozenset[Conditions]:
    """Return the conditions by which terms of the spec select namespaces. Malformed ones are reported where the terms
    are read."""
    if spec.get("affinity") is None:
        return frozenset()
    terms = pod_affinity_terms(spec)
    return frozenset(filter(None, (label_selector(term, "namespaceSelector", "", []) for term in terms)))


def own_label_keys(spec: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the keys of the pod's own labels that its inter-pod constraints read, by `matchLabelKeys` and
    `mismatchLabelKeys`; None where it has no such constraint, so that the spec does not depend on the pod's identity.
    Malformed fields are reported where the constraints are read."""
    if spec.get("affinity") is None and spec.get("topologySpreadConstraints") is None:
        return None
    terms = [*(term for term, _ in members(spec, "topologySpreadConstraints")), *pod_affinity_terms(spec)]
    names = ("matchLabelKeys", "mismatchLabelKeys")
    keys = {key for term in terms for name in names for key in texts(term, name)}
    return tuple(sorted(keys)) if terms else None


def pod_affinity_terms(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the terms of affinity and anti-affinity between pods, required and preferred. Malformed ones are reported
    where they are read."""
    for kind in POD_AFFINITIES:
        holder, _ = _affinity(spec, kind, "", [])
        yield from (term for term, _ in members(holder, REQUIRED))
        yield from (mapping(term, "podAffinityTerm") for term, _ in members(holder, PREFERRED))


def _affinity(spec: Mapping[str, Any], kind: str, path: str, problems: Problems) -> tuple[Mapping[str, Any], str]:
    if spec.get("affinity") is None:
        return {}, path
    # report a malformed `affinity` once rather than for each kind; the readers of required terms report each kind
    affinity = mapping(spec, "affinity", path, problems if kind == "nodeAffinity" else [])
    return mapping(affinity, kind, f"{path}.affinity", problems), f"{path}.affinity.{kind}"


def _topology_key(term: Mapping[str, Any], path: str, problems: Problems) -> str:
    key = term.get("topologyKey")
    if isinstance(key, str) and key:
        return key
    problems.append(f"{path}.topologyKey: missing; write the node label whose values are the domains")
    return ""
