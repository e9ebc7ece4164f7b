"""From a problem in people's terms to the small integer one that the algorithms see, and nothing else.

Whatever can be decided without optimising is decided here: what fits where, what can never be served.
"""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from solver.model import PODS, HostPort, Labels, Limit, NodeGroup, PodSpec, Problem, Resources, Taint
from solver.model.capacity import less_daemons, remaining, room_of, with_daemons, with_devices
from solver.model.eligibility import node_label_keys, read_node_names, why_not_eligible
from solver.model.plan import ClassKey, class_key
from solver.reduction.device_rows import device_rows
from solver.reduction.inter_row import Counter, counters, exclusions, needs, rules
from solver.reduction.reduced import Bools, Demand, Ints, Kind, Reduced, minimums, obliged, price_micros
from solver.reduction.rows import Layout, NodeTemplate
from solver.reduction.terms import avoids_any, soft_taints

_AGE_BUCKETS = 16
_COEFFICIENT_BITS = 40
_PLACES_AT_ONCE = 1024
_MOST_COUNTERS = 256
_NO_DAEMONS: list[PodSpec] = []
_NO_PORTS: frozenset[HostPort] = frozenset()


def reduce(problem: Problem, *, domains: bool = True, unbound_last: bool = False) -> Reduced:
    """Expects a validated problem (`model.validation`). Without `domains` preferences and constraints over anything but
    hostnames are left out, which is enough to compare increments; for `unbound_last` see `Reduction`."""
    return Reduction(problem, domains=domains).reduced(unbound_last=unbound_last)


class Reduction:
    """A problem's rows, which are the same in whatever order pods may come."""

    def __init__(self, problem: Problem, *, domains: bool = True) -> None:
        self._problem, self._standing, self._classes = problem, _NodeTemplates(problem), _classes(problem)
        self._layout = Layout([(c.spec, c.count) for c in self._classes], self._standing.places, rules=domains)

    def reduced(self, *, unbound_last: bool = False) -> Reduced:
        """Pods that a required spread counts and does not bind may come before those that it binds, which the plan then
        has to allow; with `unbound_last` they come after these, so that no plan that some order reaches is left out."""
        problem, layout = self._problem, self._layout.in_order(unbound_last=unbound_last)
        demands = tuple(replace(c, rows=rows) for c, rows in zip(self._classes, layout.rows_of, strict=True))
        table = _FitTable(problem, layout, self._standing)
        limits, uses = _limit_rows(problem.limits, problem.node_groups)
        counts = np.zeros(len(layout.rows), dtype=np.int64)
        for demand in demands:
            counts[list(demand.rows)] += demand.count
        new_kinds, families = _group_kinds(table, uses, limits, counts)
        kinds = (*new_kinds, *_node_kinds(table, len(limits), len(new_kinds)))
        return Reduced(
            problem,
            table.resources,
            layout.rows,
            table.requests,
            table.caps,
            table.exclusions,
            table.needs,
            rules(layout),
            tuple(layout.together),
            layout.every_bundle,
            demands,
            _infeasible(demands, kinds, len(layout.rows)),
            kinds,
            tuple(limits),
            _unavoidable_change(problem, kinds),
            families,
            layout.counts_unbound,
            unbound_last,
            table.served,
        )


class _NodeTemplates:
    """Groups, then nodes, each sorted by name, as the places that pods can be in."""

    def __init__(self, problem: Problem) -> None:
        self.groups = sorted(problem.node_groups, key=lambda g: g.id)
        self.nodes = sorted(problem.nodes, key=lambda n: n.name)
        daemon = _EligibilityTable(problem.daemon_sets)
        self.daemons: list[list[PodSpec]] = []
        self.places: list[NodeTemplate] = []
        for group in self.groups:
            mine, devices, ports, room = _NO_DAEMONS, group.devices, _NO_PORTS, group.allocatable
            if problem.daemon_sets:
                runs = daemon.row(group.labels, group.taints)
                mine = [spec for spec, here in zip(problem.daemon_sets, runs, strict=True) if here]
                mine, devices = with_devices(group.devices, mine)
                mine, room = with_daemons(group.allocatable, mine)
                ports = frozenset(port for spec in mine for port in spec.host_ports)
            self.daemons.append(mine)
            can_hold = room_of(group, problem.limits)[0] > 0
            self.places.append(
                NodeTemplate(
                    "", group.labels, group.taints, (), ports, can_hold, devices, room, tuple(mine), obliged(group) > 0
                )
            )
        for node in self.nodes:
            ports = frozenset(port for each in node.running for port in each.spec.host_ports)
            self.places.append(
                NodeTemplate(node.name, node.labels, node.taints, node.running, ports, True, node.devices)
            )


class _FitTable:
    """Rows against places: requests, free amounts, and what fits where."""

    def __init__(self, problem: Problem, layout: Layout, standing: _NodeTemplates) -> None:
        self.problem, self.standing = problem, standing
        specs = layout.specs
        offered = set[str]().union(*(g.allocatable for g in standing.groups), *(n.free for n in standing.nodes))
        self._names = (*sorted({name for spec in specs for name, _ in spec.requests if name in offered}), PODS)
        self._scales = _scales(self._names, specs)
        claimed = device_rows(layout)
        self.served = claimed.served
        counted, caps = _caps((*counters(layout), *claimed.counters), len(layout.rows))
        counted, beyond = _most_shared(counted)
        self._counters = counted
        self.resources = (*self._names, *(counter.name for counter in counted))
        self.exclusions = (*exclusions(layout), *claimed.exclusions, *(each.as_exclusion() for each in beyond))
        self.needs = needs(layout)
        per_spec = np.ones((len(specs), len(self._names)), dtype=np.int64)
        for number, spec in enumerate(specs):
            asked = dict(spec.requests)
            for column, name in enumerate(self._names[:-1]):
                per_spec[number, column] = asked.get(name, 0) // self._scales[column]
        self.requests = np.zeros((len(layout.rows), len(self.resources)), dtype=np.int64)
        parts = [(number, part.spec, part.pods) for number, row in enumerate(layout.rows) for part in row.parts]
        holders, held, pods = np.array(parts, dtype=np.int64).reshape(-1, 3).T
        np.add.at(self.requests[:, : len(self._names)], holders, per_spec[held] * pods[:, None])
        for column, counter in enumerate(counted, len(self._names)):
            self.requests[list(counter.takes), column] = list(counter.takes.values())
        lacking = np.array([any(r not in offered and n for r, n in spec.requests) for spec in specs], dtype=bool)
        self._lacking = np.array([any(lacking[part.spec] for part in row.parts) for row in layout.rows], dtype=bool)
        """Rows that ask for what no node has of."""
        self.caps = caps
        # By identity: rows on several sites share what they are made of, and hashing a spec takes longer than the rest.
        distinct = {id(part.variant.spec): part.variant.spec for row in layout.rows for part in row.parts}
        self._eligible = _EligibilityTable(tuple(distinct.values()))
        position = {spec: number for number, spec in enumerate(distinct)}
        self._first = np.array([position[id(row.parts[0].variant.spec)] for row in layout.rows], dtype=np.int64)
        self._others = [
            (number, position[id(part.variant.spec)])
            for number, row in enumerate(layout.rows)
            for part in row.parts[1:]
        ]
        self._soft = [
            (number, part.variant.spec)
            for number, row in enumerate(layout.rows)
            for part in row.parts
            if part.variant.avoids_soft_taints
        ]
        refused: dict[int, list[int]] = defaultdict(list)
        for place, found in claimed.refused.items():
            refused[place] = found.tolist()
        for each in beyond:
            for place, left in each.left.items():
                refused[place] += [row for row, units in each.takes.items() if units > left]
        self._closed, self._closed_to_row = layout.closed()
        self._refused = {place: np.array(found, dtype=np.int64) for place, found in refused.items()}
        self._site_of_row = np.array([-1 if row.site is None else row.site for row in layout.rows], dtype=np.int64)
        self._site_of_place = layout.site_numbers.tolist()
        self._lets_in: dict[object, bytes] = {}
        self._most_counted = tuple(counter.most for counter in counted)
        self._less_counted = frozenset(place for counter in counted for place in counter.left)
        self._shapes, self._shape = np.unique(self.requests, axis=0, return_inverse=True)
        self._between = tuple(each.most for each in self.exclusions), frozenset[int]()
        self._told_apart = frozenset(
            place for left in (*(each.left for each in self.exclusions), *(n.met for n in self.needs)) for place in left
        )

    def free(self, place: int) -> tuple[int, ...]:
        groups = self.standing.groups
        if place < len(groups):
            amounts = _free(groups[place].allocatable, self._names, self._scales, self.standing.daemons[place])
        else:
            amounts = _free(self.standing.nodes[place - len(groups)].free, self._names, self._scales)
        if place in self._less_counted:
            return (*amounts, *(counter.left.get(place, counter.most) for counter in self._counters))
        return amounts + self._most_counted

    def rows(self, places: range) -> Iterator[tuple[int, tuple[int, ...], bytes, bytes]]:
        """For each place: what is free, and per row whether a unit fits, and whether it would if sizes did not
        matter."""
        for start in range(places.start, places.stop, _PLACES_AT_ONCE):
            part = range(start, min(start + _PLACES_AT_ONCE, places.stop))
            free = [self.free(place) for place in part]
            numbers = {amounts: number for number, amounts in enumerate(dict.fromkeys(free))}
            # Resource by resource: many times faster than all at once.
            amounts = np.array(list(numbers), dtype=np.int64)
            room = np.ones((len(numbers), len(self._shapes)), dtype=bool)
            for column in range(self._shapes.shape[1]):
                room &= self._shapes[:, column] <= amounts[:, column, None]
            room = room.take(self._shape, axis=1) & ~self._lacking
            fits: dict[tuple[int, int], bytes] = {}
            for place, left in zip(part, free, strict=True):
                lets_in = self._let_in(place)
                key = numbers[left], id(lets_in)
                if key not in fits:
                    fits[key] = (room[key[0]] & np.frombuffer(lets_in, dtype=bool)).tobytes()
                yield place, left, fits[key], lets_in

    def _let_in(self, place: int) -> bytes:
        """Per row: whether labels, taints and running pods let it in. Equal places have one answer."""
        where, refused = self.standing.places[place], self._refused.get(place)
        eligible = self._eligible.row(where.labels, where.taints, where.name)
        soft, site = soft_taints(where.taints), self._site_of_place[place]
        closed = self._closed[place]
        key = id(eligible), soft, site, closed.tobytes(), None if refused is None else refused.tobytes()
        if key not in self._lets_in:
            result = eligible[self._first] & ((self._site_of_row < 0) | (self._site_of_row == site))
            for row, other in self._others:
                result[row] &= eligible[other]
            for row, spec in self._soft if soft else ():
                result[row] &= not avoids_any(spec, soft)
            if closed.any():
                result &= ~closed[self._closed_to_row]
            if refused is not None:
                result[refused] = False
            self._lets_in[key] = result.tobytes()
        return self._lets_in[key]

    def between(self, place: int) -> _Between:
        if place not in self._told_apart:
            return self._between
        met = frozenset(index for index, need in enumerate(self.needs) if place in need.met)
        return tuple(each.left.get(place, each.most) for each in self.exclusions), met


def _caps(found: Sequence[Counter], rows: int) -> tuple[list[Counter], Ints]:
    """A counter of one row alone is a cap on units per node; only shared ones become resources."""
    shared, caps = [], np.full(rows, np.iinfo(np.int64).max)
    for counter in found:
        if len(counter.takes) == 1 and not any(counter.left.values()):
            ((row, units),) = counter.takes.items()
            caps[row] = min(int(caps[row]), counter.most // units)
        if len(counter.takes) > 1 or counter.left:
            shared.append(counter)
    return shared, caps


def _most_shared(found: Sequence[Counter]) -> tuple[list[Counter], list[Counter]]:
    """Return the counters that become resources, and those that become exclusions, as which they take less: relaxations
    are made of every resource of every kind. Those that most rows take say most there."""
    able = [each for each in found if max(each.takes.values(), default=0) <= each.most]
    beyond = sorted(able, key=lambda each: -len(each.takes))[max(0, _MOST_COUNTERS - len(found) + len(able)) :]
    without = {id(each) for each in beyond}
    return [each for each in found if id(each) not in without], beyond


def _classes(problem: Problem) -> list[Demand]:
    """Return the demands without their rows."""
    ages: dict[ClassKey, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    examples: dict[ClassKey, str] = {}
    for pods in problem.pod_sets:
        if pods.count:
            key = class_key(pods)
            ages[key][pods.waiting_seconds] += pods.count
            examples[key] = min(examples.get(key, pods.name), pods.name)
    # Sorted by content: the order in which pods are given must not change the plan. Names alone mostly say enough.
    named = Counts(examples.values())
    keys = sorted(
        ages,
        key=lambda k: (k[3], -k[1], k[2] or "", examples[k], repr(k[0]) if named[examples[k]] > 1 else ""),
    )
    return [
        Demand(index, key[0], sum(ages[key].values()), examples[key], *key[1:], _buckets(ages[key]))
        for index, key in enumerate(keys)
    ]


def _buckets(ages: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """At most `_AGE_BUCKETS` steps, so that the model does not grow with the pods; a step has its pods' mean age."""
    steps = sorted(ages.items())
    if len(steps) <= _AGE_BUCKETS:
        return tuple(steps)
    merged = []
    for part in np.array_split(np.arange(len(steps)), _AGE_BUCKETS):
        chosen = [steps[i] for i in part]
        pods = sum(count for _, count in chosen)
        merged.append((sum(age * count for age, count in chosen) // pods, pods))
    return tuple(merged)


def _scales(resources: Sequence[str], specs: Sequence[PodSpec]) -> list[int]:
    """Per resource the greatest common divisor of all requests: amounts are compared with sums of requests only, so
    dividing by it (and rounding what is free down) loses nothing and keeps numbers small."""
    amounts: dict[str, list[int]] = defaultdict(list)
    for spec in specs:
        for name, amount in spec.requests:
            amounts[name].append(amount)
    return [max(1, math.gcd(*amounts[name])) if amounts[name] else 1 for name in resources]


def _limit_rows(limits: Sequence[Limit], groups: Sequence[NodeGroup]) -> tuple[list[int], dict[str, tuple[int, ...]]]:
    """One row per limit and resource. Amounts are divided by what they share; where they stay large all the same (odd
    byte counts of very large clusters), they are rounded to the safe side so that sums fit 64 bits."""
    allowed: list[int] = []
    uses: dict[str, list[int]] = {group.id: [] for group in groups}
    for limit in sorted(limits, key=lambda each: each.name):
        for name, left in sorted(remaining(limit).items()):
            use = {group.id: limit.counted(group).get(name, 0) for group in groups}
            if not any(use.values()):
                continue
            divisor = math.gcd(*use.values())
            divisor <<= max(0, (max(use.values()) // divisor).bit_length() - _COEFFICIENT_BITS)
            allowed.append(left // divisor)
            for group in groups:
                uses[group.id].append(-(-use[group.id] // divisor))
    return allowed, {name: tuple(use) for name, use in uses.items()}


def _free(
    amounts: Resources, resources: Sequence[str], scales: Sequence[int], daemons: Sequence[PodSpec] = ()
) -> tuple[int, ...]:
    left = less_daemons(amounts, daemons) if daemons else amounts
    return tuple(max(0, left.get(name, 0)) // scale for name, scale in zip(resources, scales, strict=True))


_Between = tuple[tuple[int, ...], frozenset[int]]
"""`Kind.spare` and `Kind.met`."""


def _group_kinds(
    table: _FitTable, uses: dict[str, tuple[int, ...]], limits: Sequence[int], counts: Ints
) -> tuple[list[Kind], tuple[bytes, ...]]:
    """Return the kinds, and the families that they are of."""
    members: dict[tuple[tuple[int, ...], bytes, int, int, tuple[int, ...], _Between], list[NodeGroup]]
    members = defaultdict(list)
    families: dict[bytes, int] = {}
    family_of: dict[object, int] = {}
    groups_in_order = table.standing.groups
    for place, free, fits, lets_in in table.rows(range(len(groups_in_order))):
        group = groups_in_order[place]
        key = (free, fits, price_micros(group), group.weight, uses[group.id], table.between(place))
        mine = members[key]
        if not mine:
            family_of[key] = families.setdefault(lets_in, len(families))
        mine.append(group)
    kinds: list[Kind] = []
    left = list(limits)  # minimum sizes are met as far as limits allow, in the order of ids
    before = _previous_deltas(table.problem)
    useful = {fits: int(np.frombuffer(fits, dtype=bool) @ counts) for fits in {key[1] for key in members}}
    for key, groups in sorted(members.items(), key=lambda item: item[1][0].id):
        free, fits, price, weight, use, (spare_beside, met) = key
        ceiling = min((most // per for most, per in zip(limits, use, strict=True) if per), default=None)
        spare = min((most // per for most, per in zip(left, use, strict=True) if per), default=None)
        room = sum(max(0, g.max_size - g.target_size) for g in groups)
        least = sum(obliged(g) for g in groups)
        least = least if spare is None else min(least, spare)
        left = [most - per * least for most, per in zip(left, use, strict=True)]
        limited = ceiling is not None and ceiling < room
        most = ceiling if ceiling is not None and limited else room
        # A node for every pod is as many as can be of use.
        most = min(most, least + useful[fits])
        ids = tuple(g.id for g in groups)
        previous = _previous(before, groups, least)[0] if before else least
        kinds.append(
            Kind(
                len(kinds), free, fits, price, weight, use, least, most, limited,
                groups=ids, spare=spare_beside, met=met, previous=previous, family=family_of[key],
            )
        )  # fmt: skip
    return kinds, tuple(families)


def _previous(deltas: Mapping[str, int], groups: Sequence[NodeGroup], least: int) -> tuple[int, int]:
    """Nodes of a kind whose groups get, of `least` and more nodes, what is nearest to the deltas that a previous plan
    had; and how far that is from them."""
    nodes = change = 0
    for group, obliged_nodes in zip(groups, minimums(groups, least).values(), strict=True):
        before = deltas.get(group.id, 0)
        kept = min(max(before, obliged_nodes), max(0, group.max_size - group.target_size))
        nodes, change = nodes + kept, change + abs(kept - before)
    return nodes, change


def _previous_deltas(problem: Problem) -> dict[str, int]:
    return {} if problem.previous is None else {each.node_group: each.delta for each in problem.previous.increments}


def _unavoidable_change(problem: Problem, kinds: Sequence[Kind]) -> int | None:
    if problem.previous is None:
        return None
    groups, deltas = {group.id: group for group in problem.node_groups}, _previous_deltas(problem)
    return sum(_previous(deltas, [groups[name] for name in kind.groups], kind.least)[1] for kind in kinds)


def _node_kinds(table: _FitTable, limit_rows: int, index: int) -> Iterator[Kind]:
    members: dict[tuple[tuple[int, ...], bytes, _Between], list[str]] = defaultdict(list)
    first, nodes = len(table.standing.groups), table.standing.nodes
    for place, free, fits, _ in table.rows(range(first, first + len(nodes))):
        if 1 in fits:
            members[free, fits, table.between(place)].append(nodes[place - first].name)
    unlimited = (0,) * limit_rows
    for number, ((free, fits, (spare, met)), names) in enumerate(members.items(), index):
        yield Kind(number, free, fits, 0, 0, unlimited, 0, len(names), nodes=tuple(names), spare=spare, met=met)


class _EligibilityTable:
    """Which specs may run on a node, asked once per distinct set of labels that the specs can distinguish."""

    def __init__(self, specs: Sequence[PodSpec]) -> None:
        self._specs = specs
        self._keys = sorted(node_label_keys(specs))
        self._by_name = read_node_names(specs)
        self._rows: dict[object, Bools] = {}
        alike: dict[tuple[tuple[str, ...], bool], list[int]] = defaultdict(list)
        for number, spec in enumerate(specs):
            alike[tuple(sorted(node_label_keys([spec]))), read_node_names([spec])].append(number)
        self._parts = [(*reads, numbers, dict[object, Bools]()) for reads, numbers in alike.items()]
        """Specs by what they read of a node: one that reads what differs everywhere has only itself compared with all
        nodes."""

    def row(self, labels: Labels, taints: tuple[Taint, ...], name: str = "") -> Bools:
        """`name` is empty for a group: its nodes have none yet, so conditions on metadata.name hold only for nodes that
        stand, as in CA."""
        seen = tuple(labels.get(key) for key in self._keys)
        key = (seen, taints, name if self._by_name else "")
        if key not in self._rows:
            self._rows[key] = np.zeros(len(self._specs), dtype=bool)
            for keys, by_name, numbers, known in self._parts:
                part = (*(labels.get(each) for each in keys), taints, name if by_name else "")
                if part not in known:
                    mine = (self._specs[number] for number in numbers)
                    found = [why_not_eligible(spec, labels, taints, name) is None for spec in mine]
                    known[part] = np.array(found, dtype=bool)
                self._rows[key][numbers] = known[part]
        return self._rows[key]


def _infeasible(demands: Sequence[Demand], kinds: Sequence[Kind], rows: int) -> frozenset[int]:
    reached = np.zeros(rows, dtype=bool)
    for kind in kinds:
        if kind.most:
            reached |= np.frombuffer(kind.fits, dtype=bool)
    alone = {d.index for d in demands if not reached[list(d.rows)].any()}
    lost_gangs = {d.gang for d in demands if d.index in alone and d.gang is not None}
    return frozenset(alone | {d.index for d in demands if d.gang in lost_gangs and d.gang is not None})
