"""From a problem in people's terms to the small integer one that the algorithms see, and nothing else.

Pods that no plan can tell apart become one demand; node groups that none can tell apart become one *kind*, and so do
equal existing nodes. Whatever can be said without optimising is said here: what fits where, what can never be served.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from solver.eligibility import why_not_eligible
from solver.model import PODS, Limit, Node, NodeGroup, PodClass, PodSpec, Problem, Resources
from solver.validate import remaining

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MICROS = 1_000_000
"""Prices are counted in millionths of a dollar per hour, so that costs are exact integers."""
_AGE_BUCKETS = 16
_COEFFICIENT_BITS = 40
_NODES_AT_ONCE = 1024


def price_micros(group: NodeGroup) -> int:
    """What a node counts in the objective. One that costs nothing (a reserved instance) counts one millionth, so that
    a lower tier is not opened for pods that a higher one can serve just because it is free."""
    return max(1, round(group.price_usd_per_hour * MICROS))


@dataclass(frozen=True, slots=True)
class Demand:
    """Pods of one class: equal spec, priority, gang and kind of claim."""

    index: int
    spec: int
    """Row of `Reduced.requests`."""
    count: int
    priority: int
    gang: str | None
    placeholder: bool
    ages: tuple[tuple[int, int], ...]
    """(waiting seconds, pods), youngest first: the order in which pods of the class go unserved."""
    example: str


@dataclass(frozen=True, slots=True)
class Kind:
    """Node groups (or existing nodes) that no plan can tell apart."""

    index: int
    free: tuple[int, ...]
    """Scaled amounts in the order of `Reduced.resources`."""
    fits: bytes
    """Per spec 1 where it is eligible and one pod fits an empty node, else 0; a tuple takes eight times as much."""
    price_micros: int
    weight: int
    """Tier; meaningless for existing nodes."""
    use: tuple[int, ...]
    """Per limit row: what one node takes."""
    least: int
    """Nodes that must be opened (groups below their minimum)."""
    most: int
    """Nodes that can be opened; for existing nodes, how many there are."""
    limited: bool = False
    """Whether limits rather than sizes set `most`."""
    groups: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def existing(self) -> bool:
        return bool(self.nodes)


@dataclass(frozen=True)
class Reduced:
    """The problem as the algorithms see it."""

    problem: Problem
    resources: tuple[str, ...]
    specs: tuple[PodSpec, ...]
    requests: Ints
    """specs x resources, scaled; `pods` is 1."""
    demands: tuple[Demand, ...]
    hopeless: frozenset[int]
    """Demands that fit nowhere, or whose gang has one that does: unserved in every plan."""
    kinds: tuple[Kind, ...]
    limit_names: tuple[str, ...]
    limits: tuple[int, ...]
    """What each limit row still allows, in the units of `Kind.use`."""

    @cached_property
    def new_kinds(self) -> tuple[Kind, ...]:
        return tuple(kind for kind in self.kinds if not kind.existing)

    @cached_property
    def existing_kinds(self) -> tuple[Kind, ...]:
        return tuple(kind for kind in self.kinds if kind.existing)

    @cached_property
    def tiers(self) -> tuple[int, ...]:
        """Weights in use, lowest first: the order in which their costs are minimised."""
        return tuple(sorted({kind.weight for kind in self.new_kinds}))

    @cached_property
    def free(self) -> Ints:
        """kinds x resources."""
        return np.array([kind.free for kind in self.kinds], dtype=np.int64).reshape(
            len(self.kinds), len(self.resources)
        )

    @cached_property
    def fits(self) -> Bools:
        """kinds x specs."""
        joined = b"".join(kind.fits for kind in self.kinds)
        return np.frombuffer(joined, dtype=bool).reshape(len(self.kinds), len(self.specs))

    @cached_property
    def use(self) -> Ints:
        """kinds x limit rows."""
        rows = [kind.use for kind in self.kinds]
        return np.array(rows, dtype=np.int64).reshape(len(self.kinds), len(self.limits))

    @cached_property
    def wanted(self) -> Ints:
        """Per spec: pods that could be served."""
        total = np.zeros(len(self.specs), dtype=np.int64)
        for demand in self.live:
            total[demand.spec] += demand.count
        return total

    @cached_property
    def enough(self) -> Ints:
        """Per kind: nodes beyond which none is of use, for every pod that fits it could have one of its own."""
        return np.asarray(self.fits @ self.wanted, dtype=np.int64)

    @cached_property
    def live(self) -> tuple[Demand, ...]:
        """Demands that some plan may serve."""
        return tuple(demand for demand in self.demands if demand.index not in self.hopeless)

    @cached_property
    def priorities(self) -> tuple[int, ...]:
        """Priorities of real pods, highest first."""
        return tuple(sorted({demand.priority for demand in self.demands if not demand.placeholder}, reverse=True))

    def pod_classes(self) -> tuple[PodClass, ...]:
        return tuple(
            PodClass(d.index, self.specs[d.spec], d.count, d.example, d.priority, d.gang, d.placeholder)
            for d in self.demands
        )


def most_per_node(reduced: Reduced, kinds: Ints) -> Ints:
    """Kinds x specs: how many pods of the spec alone an empty node holds, at most as many as are wanted; 0 where the
    spec may not run there."""
    rows = np.zeros((len(kinds), len(reduced.specs)), dtype=np.int64)
    need = np.maximum(reduced.requests, 1)
    for row, kind in enumerate(kinds):
        fit = np.where(reduced.requests > 0, reduced.free[kind] // need, np.iinfo(np.int64).max).min(axis=1)
        rows[row] = np.where(reduced.fits[kind], np.minimum(fit, reduced.wanted), 0)
    return rows


def reduce(problem: Problem) -> Reduced:
    """Expects a validated problem (`solver.validate`)."""
    specs, demands = _classes(problem)
    resources = (*sorted({name for spec in specs for name, _ in spec.requests}), PODS)
    scales = _scales(resources, specs)
    requests = np.ones((len(specs), len(resources)), dtype=np.int64)
    for row, spec in enumerate(specs):
        wanted = dict(spec.requests)
        for column, name in enumerate(resources[:-1]):
            requests[row, column] = wanted.get(name, 0) // scales[column]
    limit_names, limits, uses = _limit_rows(problem.limits, problem.node_groups)
    groups = _group_kinds(problem, specs, resources, scales, requests, uses, limits, _counts(len(specs), demands))
    numbered = (
        *(replace(kind, index=index) for index, kind in enumerate(groups)),
        *_node_kinds(problem.nodes, specs, resources, scales, requests, len(limits), len(groups)),
    )
    return Reduced(
        problem,
        resources,
        specs,
        requests,
        demands,
        _hopeless(demands, numbered, len(specs)),
        numbered,
        limit_names,
        tuple(limits),
    )


def _classes(problem: Problem) -> tuple[tuple[PodSpec, ...], tuple[Demand, ...]]:
    ages: dict[tuple[PodSpec, int, str | None, bool], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    examples: dict[tuple[PodSpec, int, str | None, bool], str] = {}
    for pods in problem.pod_sets:
        if pods.count:
            key = (pods.spec, pods.priority, pods.gang, pods.placeholder)
            ages[key][pods.waiting_seconds] += pods.count
            examples[key] = min(examples.get(key, pods.name), pods.name)
    # Sorted by content: the order in which pods are given must not change the plan.
    keys = sorted(ages, key=lambda k: (k[3], -k[1], k[2] or "", examples[k], repr(k[0])))
    specs = tuple(sorted({key[0] for key in keys}, key=repr))
    row = {spec: number for number, spec in enumerate(specs)}
    demands = tuple(
        Demand(index, row[key[0]], sum(ages[key].values()), key[1], key[2], key[3], _buckets(ages[key]), examples[key])
        for index, key in enumerate(keys)
    )
    return specs, demands


def _counts(specs: int, demands: Sequence[Demand]) -> Ints:
    """Pods per spec."""
    counts = np.zeros(specs, dtype=np.int64)
    for demand in demands:
        counts[demand.spec] += demand.count
    return counts


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


def _limit_rows(
    limits: Sequence[Limit], groups: Sequence[NodeGroup]
) -> tuple[tuple[str, ...], list[int], dict[str, list[int]]]:
    """One row per limit and resource. Amounts are divided by what they share; where they stay large all the same (odd
    byte counts of very large clusters), they are rounded to the safe side so that sums fit 64 bits."""
    names: list[str] = []
    allowed: list[int] = []
    uses: dict[str, list[int]] = {group.id: [] for group in groups}
    for limit in sorted(limits, key=lambda each: each.name):
        for name, left in sorted(remaining(limit).items()):
            bounded = limit.node_groups
            use = {g.id: g.counted_capacity.get(name, 0) if bounded is None or g.id in bounded else 0 for g in groups}
            if not any(use.values()):
                continue
            divisor = math.gcd(*use.values())
            divisor <<= max(0, (max(use.values()) // divisor).bit_length() - _COEFFICIENT_BITS)
            names.append(f"{limit.name} ({name})")
            allowed.append(left // divisor)
            for group in groups:
                uses[group.id].append(-(-use[group.id] // divisor))
    return tuple(names), allowed, uses


def _free(
    amounts: Resources, resources: Sequence[str], scales: Sequence[int], taken: Iterable[PodSpec] = ()
) -> tuple[int, ...]:
    left = dict(amounts)
    for spec in taken:
        need = {**dict(spec.requests), PODS: 1}
        # One that the node has no room for waits there, and takes nothing.
        if all(left.get(name, 0) >= amount for name, amount in need.items()):
            left.update((name, left.get(name, 0) - amount) for name, amount in need.items())
    return tuple(max(0, left.get(name, 0)) // scale for name, scale in zip(resources, scales, strict=True))


def _group_kinds(
    problem: Problem,
    specs: Sequence[PodSpec],
    resources: Sequence[str],
    scales: Sequence[int],
    requests: Ints,
    uses: dict[str, list[int]],
    limits: Sequence[int],
    counts: Ints,
) -> list[Kind]:
    eligible = _EligibilityTable(specs)
    daemon = _EligibilityTable(problem.daemon_sets)
    members: dict[tuple[tuple[int, ...], bytes, int, int, tuple[int, ...]], list[NodeGroup]] = defaultdict(list)
    for group in sorted(problem.node_groups, key=lambda g: g.id):
        runs = daemon.row(group)
        taken = [spec for spec, here in zip(problem.daemon_sets, runs, strict=True) if here]
        free = _free(group.allocatable, resources, scales, taken)
        fits = _fitting(requests, [free])[0] & eligible.row(group)
        price = price_micros(group)
        members[free, fits.tobytes(), price, group.weight, tuple(uses[group.id])].append(group)
    kinds = []
    left = list(limits)  # minimum sizes are met as far as limits allow, in the order of ids
    for (free, fits_bytes, price, weight, use), groups in sorted(members.items(), key=lambda item: item[1][0].id):
        fits = np.frombuffer(fits_bytes, dtype=bool)
        ceiling = min((most // per for most, per in zip(limits, use, strict=True) if per), default=None)
        spare = min((most // per for most, per in zip(left, use, strict=True) if per), default=None)
        room = sum(max(0, g.max_size - g.target_size) for g in groups)
        least = sum(max(0, min(g.min_size, g.max_size) - g.target_size) for g in groups)
        least = least if spare is None else min(least, spare)
        left = [most - per * least for most, per in zip(left, use, strict=True)]
        limited = ceiling is not None and ceiling < room
        most = ceiling if ceiling is not None and limited else room
        # A node for every pod is as many as can be of use.
        most = min(most, least + int(fits @ counts))
        ids = tuple(g.id for g in groups)
        kinds.append(Kind(0, free, fits_bytes, price, weight, use, least, most, limited, groups=ids))
    return sorted(kinds, key=lambda k: k.groups)


def _node_kinds(
    nodes: Sequence[Node],
    specs: Sequence[PodSpec],
    resources: Sequence[str],
    scales: Sequence[int],
    requests: Ints,
    limit_rows: int,
    first_index: int,
) -> list[Kind]:
    eligible = _EligibilityTable(specs)
    members: dict[tuple[tuple[int, ...], bytes], list[str]] = defaultdict(list)
    ordered = sorted(nodes, key=lambda n: n.name)
    for start in range(0, len(ordered), _NODES_AT_ONCE):
        part = ordered[start : start + _NODES_AT_ONCE]
        free = [_free(node.free, resources, scales) for node in part]
        for node, amounts, room in zip(part, free, _fitting(requests, free), strict=True):
            fits = eligible.row(node) & room
            if fits.any():
                members[amounts, fits.tobytes()].append(node.name)
    unlimited = (0,) * limit_rows
    return [
        Kind(index, free_amounts, fits_bytes, 0, 0, unlimited, 0, len(names), nodes=tuple(names))
        for index, ((free_amounts, fits_bytes), names) in enumerate(members.items(), first_index)
    ]


def _fitting(requests: Ints, free: Sequence[tuple[int, ...]]) -> Bools:
    """Nodes x specs: whether one pod fits by size. Resource by resource: many times faster than all at once."""
    amounts = np.array(free, dtype=np.int64)
    fits = np.ones((len(free), len(requests)), dtype=bool)
    for column in range(requests.shape[1]):
        fits &= requests[:, column] <= amounts[:, column, None]
    return fits


class _EligibilityTable:
    """Which specs may run on a node, asked once per distinct set of labels that the specs can tell apart."""

    def __init__(self, specs: Sequence[PodSpec]) -> None:
        self._specs = specs
        self._keys = sorted(_label_keys(specs))
        self._by_name = any(term.match_fields for spec in specs for term in spec.affinity or ())
        self._rows: dict[object, Bools] = {}

    def row(self, node: NodeGroup | Node) -> Bools:
        # A group's template has no name yet, as in CA: conditions on metadata.name hold for nodes that stand.
        name = node.name if isinstance(node, Node) else ""
        seen = tuple(node.labels.get(key) for key in self._keys)
        key = (seen, node.taints, name if self._by_name else "")
        if key not in self._rows:
            self._rows[key] = np.array(
                [why_not_eligible(spec, node.labels, node.taints, name) is None for spec in self._specs], dtype=bool
            )
        return self._rows[key]


def _label_keys(specs: Sequence[PodSpec]) -> set[str]:
    keys: set[str] = set()
    for spec in specs:
        keys.update(key for key, _ in spec.node_selector)
        for term in spec.affinity or ():
            keys.update(requirement.key for requirement in term.match_expressions)
    return keys


def _hopeless(demands: Sequence[Demand], kinds: Sequence[Kind], specs: int) -> frozenset[int]:
    served = np.zeros(specs, dtype=bool)
    for kind in kinds:
        if kind.most:
            served |= np.frombuffer(kind.fits, dtype=bool)
    alone = {d.index for d in demands if not served[d.spec]}
    lost_gangs = {d.gang for d in demands if d.index in alone and d.gang is not None}
    return frozenset(alone | {d.index for d in demands if d.gang in lost_gangs and d.gang is not None})
