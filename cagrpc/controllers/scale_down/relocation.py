"""Places for pods on existing nodes: for those of nodes that go, for those that wait, and for those of nodes that are
being removed. Pure; no node is opened. Whose pods these are, and onto which nodes they may, is `choice`'s.

Where each node by itself decides which pods it lets in, each pod takes the first node with room. The planner is asked
where that leaves a pod without, and where constraints reach beyond a node. Nodes to which no pod goes matter to these
constraints by who runs there; those that the constraints cannot tell apart are one (`CountingNodes`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice

import numpy as np

from cagrpc.api.core.selectors import SelectorsByLabel
from cagrpc.cluster.drop_invalid import faults, solve_valid
from cagrpc.cluster.node_info import DisplacedOwner, NodeInfo, Reservation, Reservations
from cagrpc.cluster.state import ClusterNode
from cagrpc.controllers.scale_down.constraints import (
    Relevance,
    counts,
    decided_by_node,
    domain_keys,
    full_at,
    has_partners,
    identity_of,
    is_partner,
    keep_apart,
    kept_out_of_domains,
    keys_kept_out_of,
    most_beside,
)
from solver.model import (
    CPU,
    HOSTNAME,
    MEMORY,
    PODS,
    Budget,
    DeviceClaim,
    Node,
    Plan,
    PodSet,
    PodSpec,
    Problem,
    RunningPods,
)
from solver.model.capacity import emptied
from solver.model.eligibility import is_spread_over_hosts, node_label_keys, read_node_names, without_preferences
from solver.reduction.node_columns import Bools, Ints, NodeColumns, amount_of, open_where

_DISPLACED = DisplacedOwner()
_LEAVING = "the node that is leaving"


class Room:
    """Nodes by position, in the order in which they are preferred; they change as pods are assumed there, and go. For
    one thread."""

    def __init__(self, nodes: Sequence[ClusterNode], reservations: Reservations) -> None:
        """`reservations` are assumed at once."""
        self.nodes = nodes
        self._infos: dict[int, NodeInfo] = {}
        """Of nodes that were asked for."""
        self._assumed: set[int] = set()
        """Positions of nodes where anything is assumed."""
        as_planned = [each.node for each in nodes]
        self.position = {node.name: number for number, node in enumerate(as_planned)}
        for name in reservations.keys() & self.position.keys():
            position = self.position[name]
            info = self.info(position)
            for each in reservations[name]:
                info.assume(each.owner, each.spec, each.count)
            self._assumed.add(position)
            as_planned[position] = info.node()
        self.columns = NodeColumns(as_planned)
        """Before any pods are assumed but those of the reservations."""
        self.there: Bools = np.ones(len(nodes), dtype=bool)
        self._free: dict[str, Ints] = {}
        self._with_devices: Bools | None = None
        self._unserved: dict[tuple[DeviceClaim, ...], Bools] = {}
        """Where such claims have found no devices."""
        self._before: dict[int, NodeInfo] | None = None

    def info(self, position: int) -> NodeInfo:
        found = self._infos.get(position)
        if found is None:
            found = self._infos[position] = NodeInfo(self.nodes[position].node)
        return found

    def free(self, resource: str) -> Ints:
        """Return what is free of a resource, by position."""
        if resource not in self._free:
            found = self._free[resource] = self.columns.free(resource).copy()
            for position in self._assumed:
                found[position] = amount_of(self._infos[position].free, resource)
        return self._free[resource]

    def open_to(self, spec: PodSpec) -> Bools:
        """Return where one such pod has room and may run. Host ports and other pods are not looked at, nor are devices
        before `unserved` was called."""
        found = self.there & self.columns.admits(spec)
        for resource, amount in (*spec.requests, (PODS, 1)):
            found &= open_where(self.free(resource), amount)
        if spec.claims:
            if self._with_devices is None:
                self._with_devices = np.array([bool(node.devices) for node in self.columns.nodes], dtype=bool)
            found &= self._with_devices
            if spec.claims in self._unserved:
                found &= ~self._unserved[spec.claims]
        return found

    def unserved(self, claims: tuple[DeviceClaim, ...], position: int) -> None:
        """Remember that such claims find no devices on a node: they are never more."""
        if claims not in self._unserved:
            self._unserved[claims] = np.zeros(len(self.nodes), dtype=bool)
        self._unserved[claims][position] = True

    def reservations(self, position: int) -> Sequence[Reservation]:
        """Return what is assumed on a node."""
        return self._infos[position].reservations if position in self._assumed else ()

    def all_assumed(self) -> Iterable[tuple[int, PodSpec, int]]:
        """Yield the pods that are assumed, with the positions of their nodes."""
        return ((at, each.spec, each.count) for at in self._assumed for each in self.reservations(at))

    def assume(self, position: int, spec: PodSpec, count: int) -> None:
        """Assume so many displaced pods on a node."""
        info = self.info(position)
        if self._before is not None and position not in self._before:
            self._before[position] = info.copy()
        info.assume(_DISPLACED, spec, count)
        self._assumed.add(position)
        self._look_again(position)

    def remove(self, position: int) -> None:
        """Drop a node with all that runs or is assumed on it."""
        self.there[position] = False

    def put_back(self, position: int) -> None:
        """Take back that a node was removed."""
        self.there[position] = True

    def begin(self) -> None:
        """Remember what is assumed from now on."""
        self._before = {}

    def end(self, *, undo: bool) -> None:
        """Forget what was assumed since `begin`, or keep it."""
        before, self._before = self._before or {}, None
        for position, info in before.items() if undo else ():
            self._infos[position] = info
            if not info.owners:
                self._assumed.discard(position)
            self._look_again(position)
        if undo and before:
            self._unserved.clear()

    def _look_again(self, position: int) -> None:
        free = self._infos[position].free
        for resource, amounts in self._free.items():
            amounts[position] = amount_of(free, resource)


Pods = Mapping[PodSpec, int]
MOST_TARGETS = 64
"""How many nodes with room the planner is given for each spec: planning over thousands takes half a second, over these
some milliseconds."""
_LEAST_TARGETS = 4
"""How many nodes of each domain it is given at least, where constraints reach beyond a node."""
_MOST_DOMAINS = 64
"""Of so many domains it is given nodes at most."""
_MOST_REFUSED = 64
"""How many nodes with room, but closed by other pods, are looked at before all of them are found at once."""
_MOST_NODES = 512
"""How many nodes may be in question where all pods are planned at once."""
_MOST_SPECS = 200
"""How many specs may be planned at once."""
_SPECS_AT_A_TIME = 10
"""So many specs of pods whose constraints reach beyond a node are planned together."""
_MOST_TARGETS = 256
"""Each of them is given so many nodes at most."""


@dataclass(frozen=True, slots=True)
class _SpecPlaces:
    """Where pods of one spec are, and how many on each of the nodes."""

    spec: PodSpec
    positions: Ints
    counts: Ints


class CountingNodes:
    """Tells on which nodes constraints between pods allow another pod. For one thread."""

    def __init__(self, room: Room, seen: Callable[[ClusterNode], Sequence[RunningPods]]) -> None:
        """`seen` returns a node's running pods as constraints see them."""
        self._room = room
        self._seen = seen
        self._closed: dict[PodSpec, Bools] = {}

    @cached_property
    def _running(self) -> tuple[_SpecPlaces, ...]:
        nodes = enumerate(self._room.nodes)
        return tuple(_by_spec((position, of.spec, of.count) for position, each in nodes for of in self._seen(each)))

    def closed_to(self, spec: PodSpec) -> Bools:
        """Return where pods that run keep such a pod out by constraints over hostnames, or host ports."""
        if spec not in self._closed:
            closed = self._no_nodes()
            for each in self._running:
                if keep_apart(spec, each.spec):
                    closed[each.positions] = True
            for spread, full in full_at(spec):
                there = np.zeros(len(closed), dtype=np.int64)
                for each in self._running:
                    if counts(spread, spec, each.spec):
                        np.add.at(there, each.positions, each.counts)
                closed |= there >= full
            self._closed[spec] = closed
        return self._closed[spec]

    def partners_of(self, spec: PodSpec) -> Bools | None:
        """Return where pods are that its affinity over hostnames selects; None without one."""
        if not has_partners(spec):
            return None
        found = self._no_nodes()
        for each in self._all():
            if is_partner(each.spec, spec):
                found[each.positions] = True
        return found

    def beside(self, targets: Collection[int], specs: Collection[PodSpec]) -> list[Node]:
        """Return nodes without room that represent all but the targets, with the pods that matter to pods of these
        specs."""
        relevance = Relevance(specs)
        matter = [each for each in self._all() if relevance.of(each.spec)]
        keys = domain_keys(specs).union(*(keys_kept_out_of(each.spec) for each in matter))
        spread = any(each.topology_key != HOSTNAME for spec in specs for each in spec.topology_spread)
        if spread:  # an empty domain counts too, where such a pod may run
            keys |= node_label_keys(specs)
        kinds, _ = self._room.columns.alike(keys, names=spread and read_node_names(specs))
        others = self._room.there.copy()
        others[list(targets)] = False
        running: dict[int, list[RunningPods]] = defaultdict(list)
        for each in matter:
            mine = others[each.positions]
            sums = np.bincount(kinds[each.positions[mine]], weights=each.counts[mine])
            for kind in np.flatnonzero(sums).tolist():
                running[kind].append(RunningPods(each.spec, int(sums[kind])))
        positions = np.flatnonzero(others)
        present, first = np.unique(kinds[positions], return_index=True)
        found = []
        for kind, position in zip(present.tolist(), positions[first].tolist(), strict=True):
            if spread or kind in running:
                node = self._room.nodes[position].node
                found.append(Node(node.name, {}, node.labels, node.taints, tuple(running[kind])))
        return found

    def _all(self) -> Iterator[_SpecPlaces]:
        """Yield all pods, those that run, then those that are assumed."""
        yield from self._running
        yield from _by_spec(self._room.all_assumed())

    def _no_nodes(self) -> Bools:
        return np.zeros(len(self._room.nodes), dtype=bool)


def _by_spec(pods: Iterable[tuple[int, PodSpec, int]]) -> Iterator[_SpecPlaces]:
    found: dict[int, tuple[PodSpec, list[int], list[int]]] = {}  # equal ones are mostly the same object
    for position, spec, count in pods:
        _, positions, counts = found.setdefault(id(spec), (spec, [], []))
        positions.append(position)
        counts.append(count)
    for spec, positions, counts in found.values():
        yield _SpecPlaces(spec, np.array(positions, dtype=np.int64), np.array(counts, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Relocated:
    """Pods by the name of the node that was found for them."""

    pods: Mapping[str, Pods]
    all: bool
    """Whether all pods have one."""

    @property
    def count(self) -> int:
        return sum(sum(pods.values()) for pods in self.pods.values())


def movable(node: ClusterNode) -> Sequence[RunningPods]:
    """Return a node's running pods as constraints of pods that move see them."""
    return node.movable


def seen_by_waiting(node: ClusterNode) -> Sequence[RunningPods]:
    """Return the same as constraints of pods that wait see them."""
    return node.node.running


class Relocation:
    """Finds places in a room, which changes as pods are assumed. For one thread."""

    def __init__(
        self,
        room: Room,
        keeping_out: Iterable[PodSpec] = (),
        seen: Callable[[ClusterNode], Sequence[RunningPods]] = movable,
    ) -> None:
        """`keeping_out` are the specs of all running pods whose anti-affinity reaches beyond their node. `seen` returns
        a node's running pods as the constraints of pods without a place see them."""
        self._room = room
        self._seen = seen
        self._counting = CountingNodes(room, seen)
        self._keeping_out: dict[str, SelectorsByLabel] = {}
        """By topology key: which pods anti-affinity keeps out of domains."""
        for spec in (*keeping_out, *(spec for _, spec, _ in room.all_assumed())):
            self._keep_out(spec)

    def assume(self, relocated: Relocated) -> None:
        """Assume pods in these places."""
        for name, pods in relocated.pods.items():
            for spec, count in pods.items():
                self._room.assume(self._room.position[name], spec, count)
                self._keep_out(spec)

    def place(self, pods: Pods, onto: Bools, budget: Budget) -> Relocated:
        """Return where these pods fit on the nodes of `onto` that are left, the first nodes preferred. Nothing is
        assumed."""
        hard: Counter[PodSpec] = Counter()
        for spec, count in pods.items():
            hard[without_preferences(spec)] += count
        if not all(self._may_fit(spec, count, onto) for spec, count in hard.items()):
            return Relocated({}, all=False)
        if all(map(self.decided_by_node, hard)):
            found = self.first_fit(hard, onto)
            if found.all:
                return found
        sets = tuple(PodSet(str(number), *each) for number, each in enumerate(hard.items()))
        return self.planned(sets, self.targets(hard, onto, MOST_TARGETS), budget)

    def decided_by_node(self, spec: PodSpec) -> bool:
        """Return whether each node by itself decides if it lets in pods of a spec without preferences."""
        return decided_by_node(spec) and not self._keys_against(spec) and _is_valid(spec)

    def first_fit(self, pods: Pods, onto: Bools) -> Relocated:
        """Return where pods of specs that are decided by each node fit, the largest first, each on the first node that
        takes it: as many as find one."""
        changed: dict[int, NodeInfo] = {}
        found: dict[str, Counter[PodSpec]] = {}
        everybody = True
        for spec, asked in sorted(pods.items(), key=lambda each: largest_first(each[0])):
            left = asked
            for position, most in self.open_to(spec, onto, changed) if asked else ():
                info = changed.setdefault(position, self._room.info(position).copy())
                here = min(left, most)
                info.assume(_DISPLACED, spec, here)
                found.setdefault(info.name, Counter())[spec] += here
                left -= here
                if not left:
                    break
            everybody &= not left
        return Relocated(found, everybody)

    def open_to(
        self, spec: PodSpec, onto: Bools, changed: Mapping[int, NodeInfo] | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield the positions of nodes that take such a pod, as far as each decides that by itself, and how many each
        takes. `changed` are nodes where more is assumed than in the room."""
        positions = np.flatnonzero(onto & self._room.open_to(spec))
        at = refused = 0
        while at < len(positions):
            position = int(positions[at])
            at += 1
            most = self._most(spec, position, (changed or {}).get(position))
            if most:
                yield position, most
                continue
            refused += position not in (changed or ())
            if refused == _MOST_REFUSED:
                positions, at = positions[at:], 0
                positions = positions[~self.closed_to(spec)[positions]]

    def closed_to(self, spec: PodSpec) -> Bools:
        """Return where pods that run keep such a pod out by constraints over hostnames, or host ports."""
        return self._counting.closed_to(spec)

    def targets(self, specs: Iterable[PodSpec], onto: Bools, most: int) -> list[int]:
        """Return the positions of the first nodes open to each of the specs, about so many for each, of all domains
        that constraints tell apart."""
        specs = tuple(specs)
        keys = domain_keys(specs).union(*map(self._keys_against, specs))
        domains = self._room.columns.alike(keys)[0] if keys else None
        found: set[int] = set()
        for spec in specs:
            found.update(self._first_open_to(spec, onto, most, domains))
            partners = self._counting.partners_of(spec)
            if partners is not None:
                found.update(self._first_open_to(spec, onto & partners, most, None))
        return sorted(found)

    def _first_open_to(self, spec: PodSpec, onto: Bools, most: int, domains: Ints | None) -> Iterator[int]:
        """Yield the positions of the first nodes open to a spec, so many of all `domains` together."""
        parts = [onto]
        if domains is not None:
            present, first = np.unique(domains[onto & self._room.open_to(spec)], return_index=True)
            parts = [onto & (domains == domain) for domain in present[np.argsort(first)[:_MOST_DOMAINS]]]
        for part in parts:
            of_each = max(_LEAST_TARGETS, most // len(parts))
            yield from (position for position, _ in islice(self.open_to(spec, part), of_each))

    def planned(self, pod_sets: tuple[PodSet, ...], targets: Collection[int], budget: Budget) -> Relocated:
        """Return what the planner finds for these pods on the nodes at these positions."""
        specs = tuple(dict.fromkeys(each.spec for each in pod_sets))
        relevance = Relevance(specs)
        nodes = [self._as_planned(position, relevance) for position in targets]
        if not nodes:
            return Relocated({}, all=False)
        if not all(map(self.decided_by_node, specs)):
            nodes += self._counting.beside(targets, specs)
        if any(map(is_spread_over_hosts, specs)):
            nodes.append(replace(emptied(nodes[0]), name=_LEAVING))  # one like those whose pods these are
        found = solve_valid(Problem(pod_sets, nodes=tuple(nodes)), budget)
        return Relocated(_by_node(found.plan), found.places_all)

    def _as_planned(self, position: int, relevance: Relevance) -> Node:
        """Return the planner's node, with those pods that matter."""
        runs = ((each.spec, each.count) for each in self._seen(self._room.nodes[position]))
        there = (*runs, *((each.spec, each.count) for each in self._room.reservations(position)))
        running = tuple(RunningPods(spec, count) for spec, count in there if relevance.of(spec))
        return replace(self._room.info(position).node(), running=running)

    def _keep_out(self, spec: PodSpec) -> None:
        for term in kept_out_of_domains(spec):
            self._keeping_out.setdefault(term.topology_key, SelectorsByLabel()).add(term.selector)

    def _keys_against(self, spec: PodSpec) -> set[str]:
        """Return the topology keys of the domains that anti-affinity of pods which have a place keeps such pods out
        of."""
        who = identity_of(spec)
        return {key for key, selectors in self._keeping_out.items() if selectors.is_matched(who)}

    def _may_fit(self, spec: PodSpec, count: int, onto: Bools) -> bool:
        """Return whether there is room for so many pods of a spec, as far as resources go."""
        positions = np.flatnonzero(onto & self._room.open_to(spec))
        if len(positions) >= count or not len(positions):
            return len(positions) > 0
        asked = ((name, amount) for name, amount in (*spec.requests, (PODS, 1)) if amount > 0)
        most = np.min([self._room.free(name)[positions] // amount for name, amount in asked], axis=0)
        return int(most.sum()) >= count

    def _most(self, spec: PodSpec, position: int, changed: NodeInfo | None) -> int:
        """Return how many such pods a node takes, as it is in the room or `changed`."""
        info = changed or self._room.info(position)
        most = info.most(spec)
        if not most:
            if spec.claims and changed is None and not spec.host_ports:
                self._room.unserved(spec.claims, position)
            return 0
        runs = [(each.spec, each.count) for each in self._seen(self._room.nodes[position])]
        return min(most, most_beside(spec, runs, [(each.spec, each.count) for each in info.reservations]))


def largest_first(spec: PodSpec) -> tuple[int, ...]:
    """Return a key to sort specs by."""
    asked = dict(spec.requests)
    return -asked.get(CPU, 0), -asked.get(MEMORY, 0)


@lru_cache(maxsize=10_000)
def _is_valid(spec: PodSpec) -> bool:
    return not faults(Problem((PodSet("pods", spec, 1),)))


def _by_node(plan: Plan) -> dict[str, Pods]:
    specs = {each.index: each.spec for each in plan.pod_classes}
    found: dict[str, Counter[PodSpec]] = {}
    for placed in plan.existing:
        here = found.setdefault(placed.node, Counter())
        for index, count in placed.pods.items():
            here[specs[index]] += count
    return {name: dict(pods) for name, pods in found.items()}


def reserve(
    room: Room, relocation: Relocation, pod_sets: Iterable[PodSet], budget: Budget
) -> Generator[None, None, Counter[PodSpec]]:
    """Assume as many of these pods as find room on any of the nodes, and return which. Their specs have no preferences.
    It pauses after each part of the work.

    Those with the fewest nodes come first. Where some are left, the planner is asked for all at once, unless too many
    nodes are in question."""
    in_question = np.zeros(len(room.nodes), dtype=bool)
    choices: list[tuple[int, tuple[int, ...], PodSet]] = []
    for each in pod_sets:
        if each.count and any(True for _ in relocation.open_to(each.spec, room.there)):
            open_to = room.open_to(each.spec)
            in_question |= open_to
            choices.append((int(open_to.sum()), largest_first(each.spec), each))
        yield
    sets = [each for *_, each in sorted(choices, key=lambda choice: choice[:2])]
    room.begin()
    found: list[Relocated] = []
    for each in sets:
        if relocation.decided_by_node(each.spec):
            found.append(relocation.first_fit({each.spec: each.count}, room.there))
            relocation.assume(found[-1])
            yield
    others = [each for each in sets if not relocation.decided_by_node(each.spec)]
    for start in range(0, len(others), _SPECS_AT_A_TIME):
        several = tuple(others[start : start + _SPECS_AT_A_TIME])
        most = min(max(MOST_TARGETS, sum(each.count for each in several)), _MOST_TARGETS)
        targets = relocation.targets([each.spec for each in several], room.there, most)
        found.append(relocation.planned(several, targets, budget))
        relocation.assume(found[-1])
        yield
    too_many = np.count_nonzero(in_question) > _MOST_NODES or len(sets) > _MOST_SPECS
    if all(each.all for each in found) or too_many:
        room.end(undo=False)
        return _placed(found)
    room.end(undo=True)
    together = relocation.planned(tuple(sets), np.flatnonzero(in_question).tolist(), budget)
    if together.count > sum(each.count for each in found):
        found = [together]
    for relocated in found:
        relocation.assume(relocated)
    return _placed(found)


def _placed(found: Iterable[Relocated]) -> Counter[PodSpec]:
    placed: Counter[PodSpec] = Counter()
    for each in found:
        for pods in each.pods.values():
            placed.update(pods)
    return placed
