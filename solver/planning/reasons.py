"""Why pods are not placed, in sentences for users, most specific first: what can be found at once for any number of
classes, of groups and nodes that do not fit, of what is short of nodes and of room on them, and of devices. Which
constraints exactly stand in the way, and what would help, is found by `solver.explain`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cache, cached_property

import numpy as np

from solver.model import (
    PODS,
    HostPort,
    Node,
    NodeGroup,
    PlacedOnNode,
    Plan,
    PodAffinityTerm,
    PodSpec,
    Problem,
    SharedVolume,
    Unplaced,
)
from solver.model.allocation import AllocatableDevices, after_pods
from solver.model.capacity import new_node, remaining, room_of, taken
from solver.model.devices import Claims
from solver.model.domains import is_of_gang
from solver.model.eligibility import ports_collide
from solver.model.plan import class_key
from solver.model.quantities import amount_words, format_quantity, pluralize
from solver.reduction.device_rows import ServedClaims, distinct_devices
from solver.reduction.devices import is_planned, nameless
from solver.reduction.node_columns import NodeColumns
from solver.reduction.reduce import reduce
from solver.reduction.reduced import Bools, Demand, Ints, Reduced
from solver.reduction.selecting import PodsByLabel
from solver.reduction.terms import RunningPodIndex, Sort, Term, helpers, is_host, terms_of

_MOST_GROUPS_NAMED = 3


def named(groups: Sequence[NodeGroup], *, sizes: bool = False) -> str:
    """Return the first few groups by name, with `sizes` with their maxima, and how many more there are."""
    rest = len(groups) - _MOST_GROUPS_NAMED
    names = ", ".join(f"{g.id} ({g.max_size})" if sizes else g.id for g in groups[:_MOST_GROUPS_NAMED])
    return f"{names} and {rest} more" if rest > 0 else names


def limits_reached(problem: Problem, deltas: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Return by group the limits that leave no room for one more node of it."""
    groups = {group.id: group for group in problem.node_groups}
    found: dict[str, list[str]] = {group_id: [] for group_id in groups}
    for limit in sorted(problem.limits, key=lambda each: each.name):
        for resource, left in remaining(limit).items():
            counted = {name: limit.counted(group).get(resource, 0) for name, group in groups.items()}
            spare = left - sum(counted.get(g, 0) * delta for g, delta in deltas.items())
            sentence = f"limit {limit.name} allows {amount_words(resource, limit.maxima[resource])}"
            for group_id, mine in counted.items():
                if mine and mine > spare:
                    found[group_id].append(sentence)
    return {group_id: tuple(sentences) for group_id, sentences in found.items()}


BESIDE_OTHERS = "its resource claims may find no devices beside those of the pods that are served"
_ENTANGLED = "its resource claims can be met in more ways than are planned: one request may take what another needs"


_MOST_SEARCHED = 5_000
"""Pods and kinds of nodes for which devices are looked for among those that the plan leaves."""


class DeviceReasons:
    """Nodes, compared once for all that are alike."""

    def __init__(
        self,
        new: Sequence[Node],
        standing: Sequence[Node],
        specs: Mapping[int, PodSpec],
        placed: Sequence[PlacedOnNode],
        served: ServedClaims,
    ) -> None:
        """`new` is what new nodes would be, `specs` are by class index, `placed` the plan's pods on those that stand,
        and `served` what is known already."""
        self._new, self._standing, self._specs = new, standing, specs
        self._placed = {each.node: each.pods for each in placed}
        self._left_to_search = _MOST_SEARCHED
        self._served = served
        self._why_not: dict[Claims, Mapping[str, Sequence[int]]] = {}

    @cached_property
    def _before(self) -> Sequence[tuple[AllocatableDevices, int | None, Sequence[int]]]:
        """Return devices, with their number among those that are known, and the nodes that have them."""
        places, devices = distinct_devices([node.devices for node in (*self._new, *self._standing)])
        numbers = map(self._served.devices.get, devices)
        return [*zip(map(AllocatableDevices, devices), numbers, places, strict=True)]

    @cached_property
    def _after(self) -> Sequence[tuple[AllocatableDevices, Sequence[int]]]:
        """Return what the plan leaves of devices where it puts pods with claims, and on which nodes."""
        claims = {
            number: [self._specs[index].claims for index, count in pods.items() for _ in range(count)]
            for number, node in enumerate(self._standing)
            if (pods := self._placed.get(node.name))
        }
        changed = [number for number, each in claims.items() if any(each)]
        there = (self._standing[number].devices for number in changed)
        places, left = distinct_devices([after_pods(d, claims[n]) for n, d in zip(changed, there, strict=True)])
        nodes = [[changed[place] for place in here] for here in places]
        return [*zip(map(AllocatableDevices, left), nodes, strict=True)]

    def why_not(self, claims: Claims) -> Mapping[str, Sequence[int]]:
        """Return why nodes, empty but for what runs there, do not serve the claims, and the positions of these, new
        ones first."""
        if claims not in self._why_not:
            found: dict[str, list[int]] = defaultdict(list)
            mine = self._served.claims.get(nameless(claims))
            for there, number, here in self._before if claims else ():
                known = mine is not None and number is not None
                able = self._served.able[number, mine] if known else is_planned(there, claims)
                if not able:
                    found[there.why_not(claims) or _ENTANGLED] += here
            self._why_not[claims] = found
        return self._why_not[claims]

    def taken(self, claims: Claims, nodes: Bools) -> Bools:
        """Return which of these nodes that stand the plan's pods leave too few devices for one more pod. They do where
        looking for them is too much."""
        found = np.zeros(len(self._standing), dtype=bool)
        for there, here in self._after if claims else ():
            if nodes[here].any():
                self._left_to_search -= 1
                found[here] = self._left_to_search < 0 or there.allocate(claims) is None
        return found & nodes


_MOST_REASONS = 10
_MOST_CONSTRAINTS_NAMED = 5
"""Constraints of one pod in one reason."""
NO_PLACE_FOUND = "the pods that are served leave no place for it"
"""The reason where there is no other."""
OUT_OF_TIME = "planning ran out of time before it found a place"


def with_reasons(problem: Problem, plan: Plan, reduced: Reduced | None = None) -> Plan:
    """Return the plan with why pods are left out, beside what is said of them already: that comes first. This takes its
    time, and is for plans that are handed out. `reduced` is of the problem, if there is one."""
    if not plan.unplaced:
        return plan
    if reduced is None or len(reduced.problem.nodes) < len(problem.nodes):  # reasons speak of all nodes
        reduced = reduce(problem)
    demands = {class_key(each): each for each in reduced.demands}
    of_class = {each.pod_class: demands[class_key(plan.pod_classes[each.pod_class])] for each in plan.unplaced}
    missing = {of_class[each.pod_class]: each.count for each in plan.unplaced}
    places = _Places(reduced, plan, _CoLocationReasons(reduced, missing))

    def explained(each: Unplaced) -> Unplaced:
        found = tuple(_reasons(reduced, of_class[each.pod_class], places))[:_MOST_REASONS]
        told = tuple(reason for reason in each.reasons if reason not in found)
        return replace(each, reasons=(*told, *found) or (NO_PLACE_FOUND,))

    return replace(plan, unplaced=tuple(map(explained, plan.unplaced)))


def _reasons(reduced: Reduced, demand: Demand, places: _Places) -> Iterator[str]:
    problem, spec = reduced.problem, demand.spec
    if spec.unschedulable:
        yield spec.unschedulable
        return
    if not (problem.node_groups or problem.nodes or problem.possible):
        yield "there are no nodes, and no node groups to open"
        return
    if demand.gang is not None:
        yield from _gang(reduced, demand)
        yield from places.most_of_gang(demand)
    yield from places.missing(spec)
    kinds = np.asarray(reduced.fits[:, list(demand.rows)].any(axis=1), dtype=bool)
    if places.colocation.without_helpers(spec):
        asked = _joined(between_pods(PodSpec(pod_affinity=spec.pod_affinity)))
        yield f"it has {asked}, and no matching pod runs or is planned"
    rules = [f"it has {found}"] if (found := _joined(between_pods(places.relevant(spec)))) else []
    taken = places.taken(spec, kinds)
    exhausted, misfits = places.exhausted(kinds, taken), places.misfits(spec, kinds)
    if places.have_room(kinds, taken):
        beside = [BESIDE_OTHERS] if spec.claims and kinds.any() else []
        yield from (*rules, *beside, *exhausted, *misfits)
    else:
        yield from (*exhausted, *rules, *misfits) if kinds.any() else (*misfits, *rules)


def _joined(parts: Iterable[str]) -> str:
    """Return the first of these, each once, and how many more there are; empty where there is none."""
    found = list(dict.fromkeys(parts))
    more = [f"{len(found) - _MOST_CONSTRAINTS_NAMED} more"] if len(found) > _MOST_CONSTRAINTS_NAMED else []
    return " and ".join((*found[:_MOST_CONSTRAINTS_NAMED], *more))


def between_pods(spec: PodSpec) -> Iterator[str]:
    """Yield what a pod requires of other pods, in words."""
    for port in spec.host_ports:
        yield f"the host port {port.port}"
    for term in spec.pod_affinity:
        yield _affinity(term, spec)
    for term in spec.pod_anti_affinity:
        if not term.alone:
            yield f"a required pod anti-affinity over {term.topology_key}"
        elif term not in spec.pod_affinity:
            yield "a disk that no other pod on its node may use"
    for spread in spec.topology_spread:
        if spread.is_required:
            fewest = f" and minDomains {spread.min_domains}" if spread.min_domains > 1 else ""
            yield f"a spread over {spread.topology_key} with maxSkew {spread.max_skew}{fewest}"


def _affinity(term: PodAffinityTerm, spec: PodSpec) -> str:
    if is_of_gang(term):
        return f"a required topology of one {term.topology_key} for the gang"
    if not term.alone:
        return f"a required pod affinity over {term.topology_key}"
    if term in spec.pod_anti_affinity:
        return "a claim that only one pod may use"
    return f"a claim shared with other pods, all in one {term.topology_key}"


def _gang(reduced: Reduced, demand: Demand) -> Iterator[str]:
    members = [d for d in reduced.demands if d.gang == demand.gang]
    pods = sum(d.count for d in members)
    yield f"gang {demand.gang} is served whole or not at all, and not all of its {pluralize(pods, 'pod')} can be placed"
    for other in members:
        if other.index != demand.index and not any(
            k.most and any(k.fits[row] for row in other.rows) for k in reduced.kinds
        ):
            yield f"its pod {other.example} fits nowhere"


class _CoLocationReasons:
    """Reasons that come from other pods: those that run, and those that the plan serves."""

    def __init__(self, reduced: Reduced, missing: Mapping[Demand, int]) -> None:
        problem = reduced.problem
        self._nodes = problem.nodes
        self._daemons = problem.daemon_sets
        self._waiting = tuple(dict.fromkeys(d.spec for d in reduced.demands if not d.spec.unschedulable))
        self._served = dict.fromkeys(d.spec for d in reduced.demands if d.count > missing.get(d, 0))
        self._terms = cache(terms_of)
        self._absent: dict[Term, bool] = {}
        self._known_domains: dict[str, list[str | None]] = {}
        self._masks: dict[tuple[str, frozenset[str | None]], Bools] = {}

    @cached_property
    def _standing(self) -> RunningPodIndex:
        return RunningPodIndex([node.running for node in self._nodes])

    @cached_property
    def _alone(self) -> Mapping[PodSpec, frozenset[Term]]:
        """Return by class the affinity terms that no unplaced class can help to satisfy."""
        helping = helpers(self._waiting, PodsByLabel(enumerate(self._waiting)))
        return {
            spec: frozenset(t for t in self._terms(spec) if t.sort is Sort.AFFINITY and not helping(number, t))
            for number, spec in enumerate(self._waiting)
            if spec.pod_affinity
        }

    @cached_property
    def _planned(self) -> PodsByLabel:
        return PodsByLabel(enumerate(self._served))

    @cached_property
    def _planned_ports(self) -> Mapping[tuple[int, str], Sequence[HostPort]]:
        """Return the host ports of planned pods, by number and protocol."""
        found: dict[tuple[int, str], list[HostPort]] = defaultdict(list)
        for port in dict.fromkeys(port for spec in (*self._served, *self._daemons) for port in spec.host_ports):
            found[port.port, port.protocol].append(port)
        return found

    @cached_property
    def _running_ports(self) -> Mapping[tuple[int, str], Sequence[tuple[int, HostPort]]]:
        """Return the host ports of running pods, by number and protocol, with the nodes."""
        found: dict[tuple[int, str], list[tuple[int, HostPort]]] = defaultdict(list)
        for node, each in enumerate(self._nodes):
            for port in (port for pods in each.running for port in pods.spec.host_ports):
                found[port.port, port.protocol].append((node, port))
        return found

    def without_helpers(self, spec: PodSpec) -> bool:
        """Return whether the pod requires pods beside it of which none runs or is planned, anywhere."""
        return any(t.sort is Sort.AFFINITY and not t.counts(spec) and self._is_absent(t) for t in self._terms(spec))

    def _is_absent(self, term: Term) -> bool:
        if term not in self._absent:
            self._absent[term] = not (self._standing.counted(term) or self._planned.mask(term.selector))
        return self._absent[term]

    def takes(self, port: HostPort, nodes: Bools) -> bool:
        """Return whether another pod uses the port: one that runs on one of `nodes`, or one that is planned."""
        which = port.port, port.protocol
        running = (mine for node, mine in self._running_ports.get(which, ()) if nodes[node])
        return any(ports_collide(port, mine) for mine in (*self._planned_ports.get(which, ()), *running))

    def without(self, spec: PodSpec) -> Iterator[tuple[str, Bools]]:
        """Yield why nodes lack the pods that this one requires: a sentence, and a mask of the nodes it is true of."""
        alone = [each for each in spec.pod_affinity if each.alone]
        claimed = {(each.topology_key, each.selector) for each in alone}
        of_gang = {(each.topology_key, each.selector) for each in alone if is_of_gang(each)}
        for term in self._terms(spec):
            if term.sort is not Sort.ANTI and not is_host(term):
                sentence = f"no label {term.key}, over which it has a required {_SORTS[term.sort]}"
                yield sentence, self._within(term, frozenset({None}))
            if term.sort is Sort.AFFINITY:
                domains = self._domains(term)
                running = frozenset(domains[number] for number in self._standing.counted(term)) - {None}
                if running if term.counts(spec) else term in self._alone[spec]:
                    sentence = (
                        "no pod of its gang runs there"
                        if (term.key, term.selector) in of_gang
                        else "no pod that shares its claim runs there"
                        if (term.key, term.selector) in claimed
                        else f"no pod that its required pod affinity over {term.key} selects runs there"
                    )
                    yield sentence, ~self._within(term, running)

    def _within(self, term: Term, domains: frozenset[str | None]) -> Bools:
        """Return per node whether its domain is one of these; None stands for no domain."""
        key = term.key, domains
        if key not in self._masks:
            self._masks[key] = np.array([domain in domains for domain in self._domains(term)], dtype=bool)
        return self._masks[key]

    def _domains(self, term: Term) -> Sequence[str | None]:
        """Return the domain of each node."""
        if term.key not in self._known_domains:
            self._known_domains[term.key] = [
                node.name if is_host(term) else node.labels.get(term.key) for node in self._nodes
            ]
        return self._known_domains[term.key]


_SORTS = {Sort.AFFINITY: "pod affinity", Sort.SPREAD: "spread"}


class _Places:
    """Groups and nodes, compared once for all classes: there may be thousands of both. Groups that are not to be had
    come after the others, then nodes."""

    def __init__(
        self,
        reduced: Reduced,
        plan: Plan,
        colocation: _CoLocationReasons,
    ) -> None:
        problem, placed = reduced.problem, plan.existing
        deltas = {increment.node_group: increment.delta for increment in plan.increments}
        specs = {each.index: each.spec for each in plan.pod_classes}
        self._reduced = reduced
        self.colocation = colocation
        possible = {group.id: each.reason for each in problem.possible for group in each.node_groups}
        self._groups = [
            *sorted(problem.node_groups, key=lambda g: g.id),
            *(group for each in problem.possible for group in each.node_groups),
        ]
        self._nodes = problem.nodes
        of_groups = {name: kind.index for kind in reduced.kinds for name in kind.groups}
        of_nodes = {name: kind.index for kind in reduced.kinds for name in kind.nodes}
        # -1 where nothing at all fits.
        self._group_kinds = np.array([of_groups.get(g.id, -1) for g in self._groups], dtype=np.int64)
        self._node_kinds = np.array([of_nodes.get(n.name, -1) for n in self._nodes], dtype=np.int64)
        self._reached = limits_reached(problem, deltas)
        self._full = {g.id for g in self._groups if g.target_size + deltas.get(g.id, 0) >= g.max_size}
        self._exhausted: dict[bytes, tuple[str, ...]] = {}
        self._open_groups = np.array(
            [g.id not in self._full and not self._reached.get(g.id) for g in self._groups], bool
        )
        self._limits = problem.limits
        self._used = _used(specs, problem.nodes, placed)
        none = frozenset[SharedVolume]()
        brought = {each.node: none.union(*(specs[index].shared_volumes for index in each.pods)) for each in placed}
        self._volumes = [*(none for _ in self._groups), *(node.volumes for node in self._nodes)]
        """Volumes that pods share, by place."""
        self._volumes_then = [node.volumes | brought.get(node.name, none) for node in self._nodes]
        """By node that stands, with those that the plan brings there."""
        new = [new_node(group, problem.daemon_sets) for group in self._groups]
        self._devices = DeviceReasons(new, problem.nodes, specs, placed, reduced.served)
        self._columns = NodeColumns([*new, *self._nodes])
        self._ready = np.array([each.ready for each in (*new, *self._nodes)], dtype=bool)
        self._missing = [possible.get(group.id) for group in self._groups]
        self._latest: tuple[PodSpec | None, dict[str, Bools]] = (None, {})
        """The causes of the class that is looked at; of all together they would fill the memory."""

    def relevant(self, spec: PodSpec) -> PodSpec:
        """Return the spec without what excludes it from no place: all that it requires of other pods where no place
        would take it alone, host ports that are free, and affinity that `without_helpers` reports."""
        excluded = self._excluded(spec)
        if excluded.all():
            return PodSpec()
        ports = tuple(port for port in spec.host_ports if self.colocation.takes(port, ~excluded[len(self._groups) :]))
        return replace(
            spec, host_ports=ports, pod_affinity=() if self.colocation.without_helpers(spec) else spec.pod_affinity
        )

    def have_room(self, kinds: Bools, taken: Bools) -> bool:
        """Return whether one more pod of a class would find the resources it requests, were there no constraints
        between pods; `taken` are the nodes where it would not."""
        groups = _of_kinds(kinds, self._group_kinds) & self._open_groups
        return bool(groups.any()) or bool((_of_kinds(kinds, self._node_kinds) & ~taken).any())

    def taken(self, spec: PodSpec, kinds: Bools) -> Bools:
        """Return the nodes of these kinds on which the plan leaves too little room for one more pod."""
        nodes = _of_kinds(kinds, self._node_kinds)
        short = np.zeros(len(self._nodes), dtype=bool)
        for name, asked in (*spec.requests, (PODS, 1)) if nodes.any() else ():
            less = _attached(spec, name, self._volumes_then)
            short |= self._columns.free(name)[len(self._groups) :] - self._used.get(name, 0) < asked - less
        return (nodes & short) | self._devices.taken(spec.claims, nodes & ~short)

    def exhausted(self, kinds: Bools, taken: Bools) -> Iterator[str]:
        """Yield why there are no more nodes of the kinds that a class fits; `taken` are those without room for it."""
        key = kinds.tobytes()
        if key not in self._exhausted:
            self._exhausted[key] = tuple(self._exhaustion(kinds))
        yield from self._exhausted[key]
        if taken.any():
            nodes = pluralize(int(taken.sum()), "existing node")
            yield f"the free room of {nodes} that it fits is taken by other pods"

    def _exhaustion(self, kinds: Bools) -> Iterator[str]:
        full: list[NodeGroup] = []
        limited: dict[str, list[NodeGroup]] = {}
        for position in np.flatnonzero(_of_kinds(kinds, self._group_kinds)):
            group = self._groups[position]
            reached = self._reached.get(group.id, ())
            for limit in reached:
                limited.setdefault(limit, []).append(group)
            if not reached and group.id in self._full:
                full.append(group)
        for limit, groups in limited.items():
            yield f"{limit}: no room for one more node of {named(groups)}"
        if len(full) == 1:
            yield f"node group {full[0].id} is at its maximum size {full[0].max_size}"
        elif full:
            yield f"{len(full)} node groups are at their maximum sizes: {named(full, sizes=True)}"

    def most_of_gang(self, demand: Demand) -> Iterator[str]:
        """Yield how many more nodes there can be of the groups that a gang's pods fit, where that is fewer than it has
        pods: the plan has none of them, so none is used up."""
        kinds = [kind for kind in self._reduced.kinds if kind.groups and any(kind.fits[row] for row in demand.rows)]
        groups = [group for group in self._groups if any(group.id in kind.groups for kind in kinds)]
        rooms = [room_of(group, self._limits) for group in groups]
        room = sum(nodes for nodes, _ in rooms)
        if groups and room < demand.count:
            limits = dict.fromkeys(limit for _, limit in rooms if limit)
            by = f" (limit {', '.join(limits)})" if limits else ""
            fitting = f"of {named(groups)}, on which pods like {demand.example} fit"
            yield f"there may be at most {pluralize(room, 'more node')} {fitting}{by}"

    def missing(self, spec: PodSpec) -> Iterator[str]:
        """Yield why groups are not to be had that would take such a pod alone."""
        open_groups = ~self._excluded(spec)[: len(self._groups)]
        for reason in dict.fromkeys(filter(None, self._missing)):
            here = open_groups & np.array([each == reason for each in self._missing], dtype=bool)
            if here.any():
                yield f"{reason} ({self._where(np.append(here, np.zeros(len(self._nodes), dtype=bool)))})"

    def misfits(self, spec: PodSpec, kinds: Bools) -> Iterator[str]:
        """Yield every cause for which groups and nodes do not take such a pod, and of how many each is true, those of
        most first; of a single one, of which. A place with several causes counts for each."""
        found = dict(self._causes_of(spec))
        nodes = np.append(np.zeros(len(self._groups), dtype=bool), ~_of_kinds(kinds, self._node_kinds))
        left = ~self._excluded(spec) & nodes
        without_helpers = self.colocation.without_helpers(spec)
        for sentence, on_nodes_ in self.colocation.without(spec) if left.any() else ():
            where = np.append(np.zeros(len(self._groups), dtype=bool), on_nodes_)
            if not without_helpers:  # already reported for all nodes
                found[sentence] = left & where
            left &= ~where
        found["excluded by pods that run there"] = left
        counts = {sentence: int(where.sum()) for sentence, where in found.items()}
        for sentence in sorted(found, key=lambda each: (-counts[each], each)):
            if counts[sentence]:
                yield f"{sentence} ({self._where(found[sentence])})"

    def _where(self, places: Bools) -> str:
        """Return which places these are: a single group or node by name, of several how many of how many."""
        parts = []
        for kind, names, here in (
            ("node group", [group.id for group in self._groups], places[: len(self._groups)]),
            ("node", [node.name for node in self._nodes], places[len(self._groups) :]),
        ):
            count = int(here.sum())
            if count == 1:
                parts.append(f"{kind} {names[int(np.argmax(here))]}")
            elif count:
                parts.append(f"{count} of {len(names)} {kind}s")
        return " and ".join(parts)

    def _excluded(self, spec: PodSpec) -> Bools:
        """Return which places would not take such a pod even if the plan had nothing else."""
        excluded = np.zeros(len(self._columns), dtype=bool)
        for where in self._causes_of(spec).values():
            excluded |= where
        return excluded

    def _causes_of(self, spec: PodSpec) -> dict[str, Bools]:
        """Return every cause that is of a place alone, beside what runs there, and the places that it excludes."""
        if self._latest[0] is not spec:
            found = {**self._columns.causes(spec), "not Ready": ~self._ready}
            for name, whole in (*spec.requests, (PODS, 1)):
                asked = whole - _attached(spec, name, self._volumes)
                short = self._columns.free(name) < asked
                if name == PODS:
                    short &= self._ready
                for least in np.unique(np.broadcast_to(asked, short.shape)[short]).tolist():
                    here = short & (asked == least)
                    found[self._too_little(name, least, here, beside_attached=least < whole)] = here
            for reason, positions in self._devices.why_not(spec.claims).items():
                here = np.zeros(len(self._columns), dtype=bool)
                here[positions] = True
                found[reason] = here & self._ready
            self._latest = spec, found
        return self._latest[1]

    def _too_little(self, name: str, asked: int, short: Bools, *, beside_attached: bool) -> str:
        most = int(self._columns.free(name)[short].max())
        whole = (each.allocatable.get(name, 0) for each, here in zip(self._groups, short, strict=False) if here)
        beside = " beside DaemonSets" if max(whole, default=0) >= asked else ""
        needs = "needs room for one more pod" if name == PODS else f"needs {amount_words(name, asked)}"
        if beside_attached:
            needs += " beside volumes that are attached there"
        free = f"at most {format_quantity(name, most)} is free" if most > 0 else "none is free"
        return f"{needs}, {free}{beside}"


def _attached(spec: PodSpec, resource: str, there: Sequence[AbstractSet[SharedVolume]]) -> Ints | int:
    """Return how many of the attachments that a pod asks for each place has already, with these volumes."""
    mine = frozenset(each for each in spec.shared_volumes if each[0] == resource)
    return np.array([len(mine & each) for each in there], dtype=np.int64) if mine else 0


def _used(specs: Mapping[int, PodSpec], nodes: Sequence[Node], placed: Sequence[PlacedOnNode]) -> dict[str, Ints]:
    """Return by resource what planned pods take of each node."""
    position = {node.name: number for number, node in enumerate(nodes)}
    used: dict[str, Ints] = defaultdict(lambda: np.zeros(len(nodes), dtype=np.int64))
    for each in placed:
        number = position[each.node]
        pods = ((specs[index], count) for index, count in each.pods.items())
        for name, amount in taken(pods, nodes[number].volumes).items():
            used[name][number] += amount
    return dict(used)


def _of_kinds(kinds: Bools, kind_of: Ints) -> Bools:
    """Return per place whether its kind is among `kinds`; -1 is in none."""
    return np.append(kinds, False)[kind_of]
