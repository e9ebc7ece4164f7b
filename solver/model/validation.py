"""Refuse invalid problems and budgets, naming every fault at once.

Says nothing about whether a problem can be solved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from solver.model import (
    PODS,
    Budget,
    DeviceClaim,
    Devices,
    HostPort,
    Limit,
    Node,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    Plan,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    TaintEffect,
    Toleration,
    TopologySpread,
)
from solver.model.errors import ProblemError

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
    """Yield the faults of quantities."""
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
        """Yield the faults of a spec; `place` names whose it is."""
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
    yield from _shared_volumes(spec)


def _shared_volumes(spec: PodSpec) -> Iterator[str]:
    if list(spec.shared_volumes) != sorted(set(spec.shared_volumes)):
        yield "shared volumes must be sorted, each once"
    requests = dict(spec.requests)
    for resource, count in Counter(resource for resource, _ in spec.shared_volumes).items():
        if count > requests.get(resource, 0):
            yield f"shared volumes: {count} of {resource}, requests have {requests.get(resource, 0)}"


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
    for wish in spec.preferred_domains:
        yield from _pod_term("preferred domain", wish.term)


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
    """Yield the faults of a node's devices."""
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
    if toleration.operator not in ("Equal", "Exists", "Gt", "Lt"):
        yield f"toleration of {toleration.key}: operator {toleration.operator!r} is none of Equal, Exists, Gt, Lt"
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
    if spread.min_domains > 1 and not spread.is_required:
        yield f"{name}: min_domains {spread.min_domains} needs DoNotSchedule, found ScheduleAnyway"
    if spread.selector.namespaces not in (None, (), (spec.namespace,)):
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


__all__ = ["MAX_COUNT", "validate"]

MAX_PRICE_USD_PER_HOUR = 10**6
MAX_TOTAL_USD_PER_HOUR = 10**12
MAX_WAITED_SECONDS = 10**18
MAX_BUDGET_SECONDS = 10**9
MAX_WORKERS = 1000


def validate(problem: Problem, budget: Budget | None = None) -> None:
    """Raises `ProblemError` with every fault, of the budget too where one is given."""
    faults = [
        *(_budget(budget) if budget is not None else ()),
        *_duplicates("node group", [group.id for group in problem.node_groups]),
        *_duplicates("node", [node.name for node in problem.nodes]),
        *_duplicates("limit", [limit.name for limit in problem.limits]),
    ]
    specs = SpecFaults()
    for pod_set in problem.pod_sets:
        faults.extend(_pod_set(pod_set))
        faults.extend(specs.faults(f"pod set {pod_set.name}", pod_set.spec))
    for group in (*problem.node_groups, *(group for each in problem.possible for group in each.node_groups)):
        faults.extend(_node_group(group))
        faults.extend(device_faults(f"node group {group.id}: devices", group.devices))
    for node in problem.nodes:
        faults.extend(_node(node, specs))
    for number, spec in enumerate(problem.daemon_sets):
        faults.extend(specs.faults(f"daemon set {number}", spec))
    if problem.previous is not None:
        faults.extend(_previous(problem.previous))
    for limit in problem.limits:
        faults.extend(_limit(limit))
    faults.extend(_sums(problem))
    if faults:
        raise ProblemError(faults)


def _budget(budget: Budget) -> Iterator[str]:
    """None at all, 0 seconds, is allowed: what is found without searching is a plan too."""
    for name, seconds in (("seconds", budget.seconds), ("deterministic_seconds", budget.deterministic_seconds)):
        if seconds is not None and not 0 <= seconds <= MAX_BUDGET_SECONDS:  # nor is nan
            yield f"budget: {name} {seconds} is not between 0 and {MAX_BUDGET_SECONDS}"
    workers = budget.workers
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= MAX_WORKERS:
        yield f"budget: workers {workers!r} is not a whole number between 1 and {MAX_WORKERS}"


def _duplicates(what: str, names: list[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{what} {name}: given {count} times, names must be unique"


def _pod_set(pod_set: PodSet) -> Iterator[str]:
    place = f"pod set {pod_set.name}"
    if not 0 <= pod_set.count <= MAX_COUNT:
        yield f"{place}: count {pod_set.count} is not between 0 and {MAX_COUNT}"
    if pod_set.waiting_seconds < 0:
        yield f"{place}: waiting_seconds {pod_set.waiting_seconds} is negative"
    if pod_set.placeholder and pod_set.gang is not None:
        yield f"{place}: a placeholder cannot belong to a gang"


def _node_group(group: NodeGroup) -> Iterator[str]:
    place = f"node group {group.id}"
    yield from amounts(f"{place}: allocatable", group.allocatable)
    yield from amounts(f"{place}: capacity", group.capacity)
    if not 0 <= group.min_size <= group.max_size <= MAX_COUNT:
        yield f"{place}: sizes must be 0 <= min <= max <= {MAX_COUNT}, found {group.min_size} and {group.max_size}"
    if not 0 <= group.target_size <= MAX_COUNT:
        yield f"{place}: target size {group.target_size} is not between 0 and {MAX_COUNT}"
    if not 0 <= group.spares <= MAX_COUNT:
        yield f"{place}: {group.spares} spares are not between 0 and {MAX_COUNT}"
    if not 0 <= group.weight <= 100:
        yield f"{place}: weight {group.weight} is not between 0 and 100"
    price = group.price_usd_per_hour
    if not (math.isfinite(price) and 0 <= price <= MAX_PRICE_USD_PER_HOUR):
        yield f"{place}: price {price} is not between 0 and {MAX_PRICE_USD_PER_HOUR} $/h"


def _node(node: Node, specs: SpecFaults) -> list[str]:
    """Thousands stand, and mostly nothing is wrong with any: that is found first."""
    faults: list[str] = []
    for amount in node.free.values():
        if type(amount) is not int or not 0 <= amount <= MAX_AMOUNT:
            faults.extend(amounts(f"node {node.name}: free", node.free))
            break
    if node.devices:
        faults.extend(device_faults(f"node {node.name}: devices", node.devices))
    for number, running in enumerate(node.running):
        place = f"node {node.name}: running pods {number}"
        if not 1 <= running.count <= MAX_COUNT:
            faults.append(f"{place}: count {running.count} is not between 1 and {MAX_COUNT}")
        faults.extend(specs.faults(place, running.spec))
    return faults


def _previous(plan: Plan) -> Iterator[str]:
    """Only its increments are read. Groups that a problem does not have are passed over."""
    yield from _duplicates("previous plan: increment of", [increment.node_group for increment in plan.increments])
    for increment in plan.increments:
        if not 0 <= increment.delta <= MAX_COUNT:
            yield (
                f"previous plan: increment of {increment.node_group}: {increment.delta} nodes are not between 0 and"
                f" {MAX_COUNT}"
            )


def _sums(problem: Problem) -> Iterator[str]:
    """What is added up over all pods must fit 64 bits."""
    pods = sum(max(0, p.count) for p in problem.pod_sets) + sum(max(0, g.min_size) for g in problem.node_groups)
    prices = [g.price_usd_per_hour for g in problem.node_groups if math.isfinite(g.price_usd_per_hour)]
    if pods * max(prices, default=0.0) > MAX_TOTAL_USD_PER_HOUR:
        yield (
            f"{pods} pods at up to {max(prices)} $/h a node may cost more than {MAX_TOTAL_USD_PER_HOUR:.0e} $/h,"
            " which cannot be counted exactly; plan fewer at once"
        )
    waited = sum(p.count * p.waiting_seconds for p in problem.pod_sets)
    if waited > MAX_WAITED_SECONDS:
        yield f"pods have waited {waited} s together, at most {MAX_WAITED_SECONDS} can be counted; cap waiting_seconds"


def _limit(limit: Limit) -> Iterator[str]:
    place = f"limit {limit.name}"
    ceiling = MAX_AMOUNT * MAX_COUNT
    yield from amounts(f"{place}: maximum", limit.maxima, ceiling)
    yield from amounts(f"{place}: used", limit.used, ceiling)
