"""Why pods are not placed, in sentences for users, most specific first: what can be found at once for any number of
classes, of groups and nodes that do not fit, of what is short of nodes and of room on them, and of devices. Which
constraints exactly stand in the way, and what would help, is found by `solver.explain`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property

import numpy as np

from solver.model import (
    PODS,
    DeviceClaim,
    Devices,
    HostPort,
    Node,
    NodeGroup,
    NodeGroupIncrease,
    PlacedOnNode,
    PodSpec,
    Problem,
    Resources,
    Unplaced,
    WhenUnsatisfiable,
)
from solver.model.allocation import after_pods, allocate, why_not_allocated
from solver.model.capacity import new_node, remaining, room_of
from solver.model.eligibility import on_nodes, ports_collide
from solver.model.quantities import format_quantity, pluralize, resource_words
from solver.reduction.devices import is_planned
from solver.reduction.node_columns import NodeColumns
from solver.reduction.reduced import Bools, Demand, Ints, Reduced
from solver.reduction.selecting import PodsByLabel
from solver.reduction.terms import RunningPodIndex, Sort, Term, helpers, is_host, terms_of


class Misfits:
    """Sentences on why groups and nodes do not fit, and of how many each is true; of a single one, of which."""

    def __init__(self, groups: Sequence[NodeGroup], nodes: Sequence[Node]) -> None:
        self._groups, self._nodes = groups, nodes
        self._counts: Counter[str] = Counter()
        self._single: dict[str, str] = {}

    def add(self, sentence: str, count: int, position: int | None) -> None:
        """Add places; a single one by its position, groups first."""
        self._counts[sentence] += count
        if position is not None:
            node = position - len(self._groups)
            name = f"node group {self._groups[position].id}" if node < 0 else f"node {self._nodes[node].name}"
            self._single[sentence] = name

    def add_nodes(self, sentence: str, nodes: Bools) -> None:
        """Add the nodes of a mask."""
        count = int(nodes.sum())
        self.add(sentence, count, len(self._groups) + int(np.argmax(nodes)) if count == 1 else None)

    def sentences(self) -> Iterator[str]:
        """Yield the sentences, those of most places first."""
        for sentence, count in sorted((+self._counts).items(), key=lambda item: (-item[1], item[0])):
            where = self._single[sentence] if count == 1 else f"{count} nodes or node groups"
            yield f"{sentence} ({where})"


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
            sentence = f"limit {limit.name} allows {format_quantity(resource, limit.maxima[resource])} {resource}"
            for group_id, mine in counted.items():
                if mine and mine > spare:
                    found[group_id].append(sentence)
    return {group_id: tuple(sentences) for group_id, sentences in found.items()}


def too_small(spec: PodSpec, groups: Sequence[tuple[Resources, Resources]], *, alone: bool) -> Iterator[str]:
    """Yield which resource is short on all eligible groups, and the most there is of it. Of each group its nodes'
    allocatable, and what DaemonSets leave of it. `alone`: the pod requires nothing of other pods."""
    if not groups:
        return
    asked: Resources = {**dict(spec.requests), PODS: 1}
    for resource, amount in asked.items():
        most = max(free.get(resource, 0) for _, free in groups)
        if amount > most:
            beside = " beside DaemonSets" if most < max(whole.get(resource, 0) for whole, _ in groups) else ""
            yield (
                f"needs {format_quantity(resource, amount)} {resource_words(resource)}, "
                f"the largest eligible node has {format_quantity(resource, most)}{beside}"
            )
    each_somewhere = all(any(free.get(r, 0) >= a for _, free in groups) for r, a in asked.items())
    if each_somewhere and alone:
        yield f"no eligible node has all it needs together ({pluralize(len(groups), 'node group')} too small)"


BESIDE_OTHERS = "its resource claims may find no devices beside those of the pods that are served"
_ENTANGLED = "its resource claims can be met in more ways than are planned: one request may take what another needs"


class DeviceReasons:
    """Groups and nodes, compared once for all classes."""

    def __init__(self, problem: Problem, specs: Mapping[int, PodSpec], placed: Sequence[PlacedOnNode]) -> None:
        """`specs` by class index; `placed` are the plan's pods on existing nodes."""
        self._problem, self._specs = problem, specs
        self._placed = {each.node: each.pods for each in placed}
        self._new: dict[str, tuple[Devices, ...]] = {}
        self._known: dict[tuple[tuple[Devices, ...], tuple[DeviceClaim, ...]], str | None] = {}
        self._left: dict[str, tuple[Devices, ...]] = {}

    def why_not(self, where: NodeGroup | Node, claims: tuple[DeviceClaim, ...]) -> str | None:
        """Return why a node, empty but for what runs there, does not serve the claims; None where it does."""
        if not claims:
            return None
        key = (self._devices(where), claims)
        if key not in self._known:
            reason = why_not_allocated(*key)
            self._known[key] = reason or (None if is_planned(*key) else _ENTANGLED)
        return self._known[key]

    def taken(self, claims: tuple[DeviceClaim, ...]) -> Bools:
        """Return per existing node whether the plan's pods leave it too few devices for one more pod."""
        return np.array([allocate(self._after_plan(node), claims) is None for node in self._problem.nodes], dtype=bool)

    def _devices(self, where: NodeGroup | Node) -> tuple[Devices, ...]:
        if isinstance(where, Node):
            return where.devices
        if where.id not in self._new:
            self._new[where.id] = new_node(where, self._problem.daemon_sets).devices
        return self._new[where.id]

    def _after_plan(self, node: Node) -> tuple[Devices, ...]:
        if node.name not in self._left:
            pods = self._placed.get(node.name, {})
            claims = [self._specs[index].claims for index, count in pods.items() for _ in range(count)]
            self._left[node.name] = after_pods(node.devices, claims)
        return self._left[node.name]


_MOST_REASONS = 6
_MOST_CONSTRAINTS_NAMED = 5
"""Constraints of one pod in one reason."""
_UNKNOWN = ("no place was found beside the pods that are served",)


def unplaced(
    reduced: Reduced,
    missing: dict[Demand, int],
    increments: Sequence[NodeGroupIncrease],
    placed: Sequence[PlacedOnNode],
) -> tuple[Unplaced, ...]:
    """Return one entry per demand with pods left out; `increments` and `placed` are the plan's, to name what it filled
    up."""
    if not missing:
        return ()
    colocation = _CoLocationReasons(reduced, missing)
    places = _Places(reduced, {increment.node_group: increment.delta for increment in increments}, placed, colocation)
    return tuple(
        Unplaced(demand.index, count, tuple(_reasons(reduced, demand, places))[:_MOST_REASONS] or _UNKNOWN)
        for demand, count in sorted(missing.items(), key=lambda item: item[0].index)
    )


def _reasons(reduced: Reduced, demand: Demand, places: _Places) -> Iterator[str]:
    problem, spec = reduced.problem, demand.spec
    if spec.unschedulable:
        yield spec.unschedulable
        return
    if not problem.node_groups and not problem.nodes:
        yield "there is no node group to open, and no node"
        return
    if demand.gang is not None:
        yield from _gang(reduced, demand)
        yield from places.most_of_gang(demand)
    kinds = np.asarray(reduced.fits[:, list(demand.rows)].any(axis=1), dtype=bool)
    if places.colocation.without_helpers(spec):
        asked = _joined(between_pods(PodSpec(pod_affinity=spec.pod_affinity)))
        yield f"it has {asked}, and no matching pod runs or is planned"
    rules = [f"it has {found}"] if (found := _joined(between_pods(places.relevant(spec)))) else []
    exhausted, misfits = places.exhausted(spec, kinds), places.misfits(spec, kinds)
    if places.have_room(spec, kinds):
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
        if term.alone:
            yield f"a claim shared with other pods, all in one {term.topology_key}"
        else:
            yield f"a required pod affinity over {term.topology_key}"
    for term in spec.pod_anti_affinity:
        if term.alone:
            yield "a disk that no other pod of its node may have"
        else:
            yield f"a required pod anti-affinity over {term.topology_key}"
    for spread in spec.topology_spread:
        if spread.when_unsatisfiable is not WhenUnsatisfiable.SCHEDULE_ANYWAY:
            fewest = f" and minDomains {spread.min_domains}" if spread.min_domains > 1 else ""
            yield f"a spread over {spread.topology_key} with maxSkew {spread.max_skew}{fewest}"


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
        """By class, the affinity terms that no unplaced class can help to satisfy."""
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
        """By number and protocol."""
        found: dict[tuple[int, str], list[HostPort]] = defaultdict(list)
        for port in dict.fromkeys(port for spec in (*self._served, *self._daemons) for port in spec.host_ports):
            found[port.port, port.protocol].append(port)
        return found

    @cached_property
    def _running_ports(self) -> Mapping[tuple[int, str], Sequence[tuple[int, HostPort]]]:
        """By number and protocol, with the nodes."""
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
        claimed = {(each.topology_key, each.selector) for each in spec.pod_affinity if each.alone}
        for term in self._terms(spec):
            if term.sort is not Sort.ANTI and not is_host(term):
                sentence = f"no label {term.key}, over which it has a required {_SORTS[term.sort]}"
                yield sentence, self._within(term, frozenset({None}))
            if term.sort is Sort.AFFINITY:
                domains = self._domains(term)
                running = frozenset(domains[number] for number in self._standing.counted(term)) - {None}
                if running if term.counts(spec) else term in self._alone[spec]:
                    sentence = (
                        "no pod that shares its claim runs there"
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
    """Groups and nodes, compared once for all classes: there may be thousands of both."""

    def __init__(
        self,
        reduced: Reduced,
        deltas: Mapping[str, int],
        placed: Sequence[PlacedOnNode],
        colocation: _CoLocationReasons,
    ) -> None:
        problem = reduced.problem
        self._reduced = reduced
        self.colocation = colocation
        self._groups = sorted(problem.node_groups, key=lambda g: g.id)
        self._nodes = problem.nodes
        of_groups = {name: kind.index for kind in reduced.kinds for name in kind.groups}
        of_nodes = {name: kind.index for kind in reduced.kinds for name in kind.nodes}
        # -1 where nothing at all fits.
        self._group_kinds = np.array([of_groups.get(g.id, -1) for g in self._groups], dtype=np.int64)
        self._node_kinds = np.array([of_nodes.get(n.name, -1) for n in self._nodes], dtype=np.int64)
        self._reached = limits_reached(problem, deltas)
        self._full = {g.id for g in self._groups if g.target_size + deltas.get(g.id, 0) >= g.max_size}
        self._exhausted: dict[bytes, tuple[str, ...]] = {}
        self._open_groups = np.array([g.id not in self._full and not self._reached[g.id] for g in self._groups], bool)
        self._daemon_sets, self._limits = problem.daemon_sets, problem.limits
        self._new_nodes: dict[str, Resources] = {}
        self._used = _used(reduced.demands, problem.nodes, placed)
        self._devices = DeviceReasons(problem, {d.index: d.spec for d in reduced.demands}, placed)
        self._columns = NodeColumns([*(Node("", {}, g.labels, g.taints) for g in self._groups), *self._nodes])
        self._causes: dict[object, tuple[list[str], Ints]] = {}

    def relevant(self, spec: PodSpec) -> PodSpec:
        """Return the spec without what excludes it from no place: all that it requires of other pods where no place is
        eligible anyway, host ports that are free, and affinity that `without_helpers` reports."""
        eligible = self._eligibility(spec)[1] < 0
        if not eligible.any():
            return PodSpec()
        nodes = eligible[len(self._groups) :]
        ports = tuple(port for port in spec.host_ports if self.colocation.takes(port, nodes))
        return replace(
            spec, host_ports=ports, pod_affinity=() if self.colocation.without_helpers(spec) else spec.pod_affinity
        )

    def have_room(self, spec: PodSpec, kinds: Bools) -> bool:
        """Return whether one more pod would find the resources it requests, were there no constraints between pods."""
        nodes = _of_kinds(kinds, self._node_kinds)
        groups = _of_kinds(kinds, self._group_kinds) & self._open_groups
        return bool(groups.any()) or (bool(nodes.any()) and bool((nodes & ~self._taken(spec)).any()))

    def _taken(self, spec: PodSpec) -> Bools:
        """Return per node whether the plan leaves too little room for one more pod."""
        short = np.zeros(len(self._nodes), dtype=bool)
        for name, asked in (*spec.requests, (PODS, 1)):
            short |= self._amounts(name) - self._used.get(name, 0) < asked
        return short | self._devices.taken(spec.claims) if spec.claims else short

    def exhausted(self, spec: PodSpec, kinds: Bools) -> Iterator[str]:
        """Yield why there are no more nodes of the kinds that a class fits."""
        key = kinds.tobytes()
        if key not in self._exhausted:
            self._exhausted[key] = tuple(self._exhaustion(kinds))
        yield from self._exhausted[key]
        nodes = _of_kinds(kinds, self._node_kinds)
        taken = int((nodes & self._taken(spec)).sum()) if nodes.any() else 0
        if taken:
            yield f"the free room of {pluralize(taken, 'existing node')} that it fits is taken by other pods"

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
            fitting = f"of {named(groups)}, which pods like {demand.example} fit"
            yield f"{fitting}, there may be at most {pluralize(room, 'more node')}{by}"

    def misfits(self, spec: PodSpec, kinds: Bools) -> Iterator[str]:
        """Yield why a class does not fit the other groups and nodes, with their numbers."""
        sentences, cause = self._eligibility(spec)
        found = Misfits(self._groups, self._nodes)
        for number, count in enumerate(np.bincount(cause[cause >= 0], minlength=len(sentences)).tolist()):
            found.add(sentences[number], count, int(np.argmax(cause == number)) if count == 1 else None)
        groups = len(self._groups)
        open_nodes = (cause[groups:] < 0) & ~_of_kinds(kinds, self._node_kinds)
        for name, asked in (*spec.requests, (PODS, 1)) if open_nodes.any() else ():
            short = open_nodes & (self._amounts(name) < asked)
            found.add_nodes(f"not enough {resource_words(name)} free on existing nodes", short)
            open_nodes &= ~short
        without_helpers = self.colocation.without_helpers(spec)
        for sentence, where in self.colocation.without(spec) if open_nodes.any() else ():
            if not without_helpers:  # already reported for all nodes
                found.add_nodes(sentence, open_nodes & where)
            open_nodes &= ~where
        found.add_nodes("excluded by pods that run on existing nodes", open_nodes)
        if not kinds.any():
            eligible = [self._groups[i] for i in np.flatnonzero(cause[:groups] < 0)]
            sizes = [(group.allocatable, self._new_node(group)) for group in eligible]
            yield from too_small(spec, sizes, alone=not any(between_pods(spec)))
        yield from found.sentences()

    def _new_node(self, group: NodeGroup) -> Resources:
        """Return what a new node of the group has beside DaemonSets."""
        if group.id not in self._new_nodes:
            self._new_nodes[group.id] = new_node(group, self._daemon_sets).free
        return self._new_nodes[group.id]

    def _amounts(self, resource: str) -> Ints:
        return self._columns.free(resource)[len(self._groups) :]

    def _eligibility(self, spec: PodSpec) -> tuple[list[str], Ints]:
        """Return sentences, and per group and node the number of the one that excludes the pod, or -1."""
        who = (on_nodes(spec), spec.claims)
        if who not in self._causes:
            sentences, causes = self._columns.causes(spec)
            numbers = {sentence: number for number, sentence in enumerate(sentences)}
            for position in np.flatnonzero(causes < 0).tolist() if spec.claims else ():
                node = position - len(self._groups)
                where = self._groups[position] if node < 0 else self._nodes[node]
                reason = self._devices.why_not(where, spec.claims)
                if reason is not None:
                    causes[position] = numbers.setdefault(reason, len(numbers))
            self._causes[who] = list(numbers), causes
        return self._causes[who]


def _used(demands: Sequence[Demand], nodes: Sequence[Node], placed: Sequence[PlacedOnNode]) -> dict[str, Ints]:
    """Return by resource what planned pods take of each node."""
    position = {node.name: number for number, node in enumerate(nodes)}
    asked = {demand.index: (*demand.spec.requests, (PODS, 1)) for demand in demands}
    used: dict[str, Ints] = defaultdict(lambda: np.zeros(len(nodes), dtype=np.int64))
    for each in placed:
        for index, count in each.pods.items():
            for name, amount in asked[index]:
                used[name][position[each.node]] += amount * count
    return dict(used)


def _of_kinds(kinds: Bools, kind_of: Ints) -> Bools:
    """Return per place whether its kind is among `kinds`; -1 is in none."""
    return np.append(kinds, False)[kind_of]
