"""The part of `validate` for pods: what a spec must not contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from solver.model import (
    PODS,
    DeviceClaim,
    Devices,
    HostPort,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Requirement,
    TaintEffect,
    Toleration,
    TopologySpread,
    WhenUnsatisfiable,
)

MAX_AMOUNT = 10**15
"""Of one resource on one node or pod: a pebibyte. More is a slip of units, and would overflow what is summed."""
MAX_COUNT = 10**9
"""Pods of one set, nodes of one group."""
MAX_DEVICES = 10**6
"""Of one kind on one node."""
MAX_PORT = 65535
MAX_WEIGHT = 100
PROTOCOLS = ("TCP", "UDP", "SCTP")
_SETS = (Operator.IN, Operator.NOT_IN)
_PRESENCE = (Operator.EXISTS, Operator.DOES_NOT_EXIST)


def amounts(place: str, found: Mapping[str, int], maximum: int = MAX_AMOUNT) -> Iterator[str]:
    """Faults of quantities."""
    for name, amount in found.items():
        if not isinstance(amount, int) or isinstance(amount, bool):
            yield f"{place} {name}: {amount!r} is not a whole number of base units"
        elif not 0 <= amount <= maximum:
            yield f"{place} {name}: {amount} is not between 0 and {maximum}"


class SpecFaults:
    """Faults of specs, found once for each spec: thousands of running pods may share one."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, ...]] = {}

    def faults(self, place: str, spec: PodSpec) -> Iterator[str]:
        """`place` names whose spec it is."""
        if id(spec) not in self._known:
            self._known[id(spec)] = tuple(_spec(spec))
        yield from (f"{place}: {fault}" for fault in self._known[id(spec)])


def _spec(spec: PodSpec) -> Iterator[str]:
    names = [name for name, _ in spec.requests]
    if PODS in names:
        yield f"requests {PODS}: every pod takes one, which the solver adds itself"
    if names != sorted(set(names)):
        yield "requests must be sorted by name, each name once"
    yield from amounts("requests", dict(spec.requests))
    keys = [key for key, _ in spec.labels]
    if keys != sorted(set(keys)):
        yield "labels must be sorted by key, each key once"
    for term in spec.affinity or ():
        yield from _node_term("node affinity", term)
    for terms in spec.node_terms:
        if not terms:
            yield "node terms: a member without terms; where no node can take the pod, say why in unschedulable"
        for term in terms:
            yield from _node_term("node terms", term)
    for toleration in spec.tolerations:
        yield from _toleration(toleration)
    yield from _ports(spec.host_ports)
    for nodes in spec.preferred_nodes:
        yield from _weight("preferred node affinity", nodes.weight)
        yield from _node_term("preferred node affinity", nodes.term)
    yield from _between_pods(spec)
    yield from _claims(spec.claims)


def _between_pods(spec: PodSpec) -> Iterator[str]:
    for each in spec.pod_affinity:
        yield from _pod_term("pod affinity", each)
    for each in spec.pod_anti_affinity:
        yield from _pod_term("pod anti-affinity", each)
    for spread in spec.topology_spread:
        yield from _spread(spread, spec)
    for pods in spec.preferred_pods:
        name = f"preferred pod {'anti-affinity' if pods.anti else 'affinity'}"
        yield from _weight(name, pods.weight)
        yield from _pod_term(name, pods.term)


def _claims(claims: Iterable[DeviceClaim]) -> Iterator[str]:
    for number, claim in enumerate(claims):
        yield from _claim(f"claim {number}", claim)


def _claim(place: str, claim: DeviceClaim) -> Iterator[str]:
    known: list[str] = []
    for request in claim.requests:
        known.append(request.name)
        if not request.alternatives:
            yield f"{place}: request {request.name}: no alternatives, needs at least one"
        for alternative in request.alternatives:
            if alternative.name:
                known.append(f"{request.name}/{alternative.name}")
            if not 1 <= alternative.count <= MAX_COUNT:
                yield f"{place}: request {request.name}: count {alternative.count} is not between 1 and {MAX_COUNT}"
    for name in sorted({name for name in known if known.count(name) > 1}):
        yield f"{place}: request {name}: given {known.count(name)} times, names must be unique"
    for names, attribute in claim.match_attributes:
        if not attribute:
            yield f"{place}: a constraint without an attribute; name one, such as resource.kubernetes.io/pcieRoot"
        for name in sorted(names - set(known)):
            yield f"{place}: constraint on {attribute}: no request is called {name}, only {', '.join(known)}"


def device_faults(place: str, devices: Iterable[Devices]) -> Iterator[str]:
    """Faults of a node's devices."""
    for number, each in enumerate(devices):
        for name, count in (("count", each.count), ("taken", each.taken)):
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_DEVICES:
                yield f"{place} {number}: {name} {count!r} is not a whole number between 0 and {MAX_DEVICES}"
        if each.uncertain and (each.count or each.taken):
            yield f"{place} {number}: uncertain devices are not counted, found {each.count} and {each.taken} taken"
        keys = [key for key, _ in each.attributes]
        if keys != sorted(set(keys)):
            yield f"{place} {number}: attributes must be sorted by name, each name once"


def _weight(name: str, weight: int) -> Iterator[str]:
    if not 1 <= weight <= MAX_WEIGHT:
        yield f"{name}: weight {weight} is not between 1 and {MAX_WEIGHT}"


def _toleration(toleration: Toleration) -> Iterator[str]:
    if toleration.operator not in ("Equal", "Exists"):
        yield f"toleration of {toleration.key}: operator {toleration.operator!r} is neither Equal nor Exists"
    if toleration.effect and toleration.effect not in tuple(TaintEffect):
        known = ", ".join(TaintEffect)
        yield f"toleration of {toleration.key}: effect {toleration.effect!r} is none of {known}, nor empty for all"


def _ports(ports: Iterable[HostPort]) -> Iterator[str]:
    for port in ports:
        if not 1 <= port.port <= MAX_PORT:
            yield f"host port {port.port} is not between 1 and {MAX_PORT}"
        if port.protocol not in PROTOCOLS:
            yield f"host port {port.port}: protocol {port.protocol!r} is none of {', '.join(PROTOCOLS)}"


def _node_term(name: str, term: NodeSelectorTerm) -> Iterator[str]:
    for requirement in (*term.match_expressions, *term.match_fields):
        yield from _requirement(name, requirement, tuple(Operator))


def _pod_term(name: str, term: PodAffinityTerm) -> Iterator[str]:
    if not term.topology_key:
        yield f"{name}: the topology key is empty; name a node label, such as kubernetes.io/hostname"
    yield from _selector(f"{name} over {term.topology_key}", term.selector)


def _spread(spread: TopologySpread, spec: PodSpec) -> Iterator[str]:
    name = f"topology spread over {spread.topology_key}"
    if not spread.topology_key:
        yield "topology spread: the topology key is empty; name a node label, such as kubernetes.io/hostname"
    if not 1 <= spread.max_skew <= MAX_COUNT:
        yield f"{name}: max_skew {spread.max_skew} is not between 1 and {MAX_COUNT}"
    if not 1 <= spread.min_domains <= MAX_COUNT:
        yield f"{name}: min_domains {spread.min_domains} is not between 1 and {MAX_COUNT}"
    if spread.min_domains > 1 and spread.when_unsatisfiable is WhenUnsatisfiable.SCHEDULE_ANYWAY:
        yield f"{name}: min_domains {spread.min_domains} needs DoNotSchedule, found ScheduleAnyway"
    if spread.selector.namespaces is not None and spread.selector.namespaces != (spec.namespace,):
        found = list(spread.selector.namespaces)
        yield f"{name}: namespaces {found}, but only the pod's own ({spec.namespace}) is counted"
    yield from _selector(name, spread.selector)


def _selector(name: str, selector: PodSelector) -> Iterator[str]:
    for requirement in selector.match_expressions or ():
        yield from _requirement(name, requirement, (*_SETS, *_PRESENCE))
    if selector.namespaces is not None and list(selector.namespaces) != sorted(set(selector.namespaces)):
        yield f"{name}: namespaces must be sorted, each once"


def _requirement(name: str, requirement: Requirement, allowed: tuple[Operator, ...]) -> Iterator[str]:
    place = f"{name}: {requirement.key} {requirement.operator}"
    if not requirement.key:
        yield f"{name}: a condition without a label key"
    if requirement.operator not in allowed:
        yield f"{place}: the operator must be one of {', '.join(allowed)}"
    elif requirement.operator in _SETS and not requirement.values:
        yield f"{place}: needs at least one value"
    elif requirement.operator in _PRESENCE and requirement.values:
        yield f"{place}: takes no values, found {list(requirement.values)}"
