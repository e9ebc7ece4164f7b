"""The small integer problem that the algorithms see; `reduction` makes it from one in people's terms.

Pods that no plan distinguishes are one demand, the ways of serving them are rows, and node groups (or existing nodes)
that no plan distinguishes are one *kind*.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solver.model import NodeGroup, PodClass, Problem
from solver.model.objective import Goal, ObjectiveStage
from solver.reduction.device_rows import ServedClaims
from solver.reduction.inter_row import NodeExclusion, NodeNeed
from solver.reduction.rows import Row
from solver.reduction.rules import Rule

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MICROS = 1_000_000
"""Prices are counted in millionths of a dollar per hour, so that costs are exact integers."""


def price_micros(group: NodeGroup) -> int:
    """What a node counts in the objective. One that costs nothing (a reserved instance) counts one millionth, so that
    a lower tier is not opened for pods that a higher one can serve just because it is free."""
    return max(1, round(group.price_usd_per_hour * MICROS))


def obliged(group: NodeGroup) -> int:
    """Nodes that bring a group to its minimum size."""
    return max(0, min(group.min_size, group.max_size) - group.target_size)


def minimums(groups: Iterable[NodeGroup], least: int) -> dict[str, int]:
    """How many of `least` obliged nodes each group gets, in the order given: where limits leave fewer than the minimum
    sizes ask for, the last groups stay below theirs."""
    shares: dict[str, int] = {}
    for group in groups:
        shares[group.id] = min(obliged(group), least)
        least -= shares[group.id]
    return shares


@dataclass(frozen=True, slots=True)
class Demand(PodClass):
    """A class of pods, as planning sees it."""

    ages: tuple[tuple[int, int], ...] = ()
    """(waiting seconds, pods), youngest first: the order in which pods of the class go unserved."""
    rows: tuple[int, ...] = ()
    """Rows that can serve it (`solver.reduction.rows`): one, where neither its domain nor a preference matters."""

    @property
    def counted_in(self) -> tuple[ObjectiveStage, ...]:
        """The stages of the objective in which unserved pods of it count."""
        if self.placeholder:
            return (ObjectiveStage(Goal.PLACEHOLDERS),)
        return ObjectiveStage(Goal.UNSERVED, self.priority), ObjectiveStage(Goal.WAITING, self.priority)

    @property
    def row(self) -> int:
        """The row of a demand that has one only, as all have once rows are chosen (`solver.integral.quotas`)."""
        (row,) = self.rows
        return row


@dataclass(frozen=True, slots=True)
class Kind:
    """Node groups (or existing nodes) that no plan distinguishes."""

    index: int
    free: tuple[int, ...]
    """Scaled amounts in the order of `Reduced.resources`."""
    fits: bytes
    """Per row 1 where it is eligible and one unit fits an empty node, else 0; a tuple takes eight times as much."""
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
    spare: tuple[int, ...] = ()
    """Per exclusion: counted pods that it allows beside a carrier."""
    met: frozenset[int] = frozenset()
    """Needs (indices) that running pods meet."""
    previous: int = 0
    """Nodes that the previous plan opens and this one can."""
    family: int = -1
    """Of groups: index of `Reduced.families`."""

    @property
    def existing(self) -> bool:
        return bool(self.nodes)


class Links(NamedTuple):
    """Rows and the exclusions that concern them, sorted by row and exclusion."""

    first: Ints
    """Per row, and one more: where its links begin."""
    exclusion: Ints
    carries: Bools
    """Per link: whether the row carries the exclusion."""
    counts: Ints
    """Per link: how many pods of a unit the exclusion counts."""


def _ints(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, dtype=np.int64)


@dataclass(frozen=True)
class Reduced:
    """The problem as the algorithms see it."""

    problem: Problem
    resources: tuple[str, ...]
    """Names; the last ones are counters (`solver.reduction.inter_row`), and `pods` before them."""
    rows: tuple[Row, ...]
    requests: Ints
    """rows x resources, scaled, per unit."""
    caps: Ints
    """Per row: units that one node may hold, whatever its size."""
    exclusions: tuple[NodeExclusion, ...]
    needs: tuple[NodeNeed, ...]
    rules: tuple[Rule, ...]
    together: tuple[tuple[int, ...], ...]
    """Bundles (rows) of which at most one unit may be served."""
    every_bundle: bool
    """Whether all possible ones are among the rows; otherwise a plan over them may not be the best, and a bound over
    them is none."""
    demands: tuple[Demand, ...]
    infeasible: frozenset[int]
    """Demands that fit nowhere, or whose gang has one that does: unserved in every plan."""
    kinds: tuple[Kind, ...]
    limits: tuple[int, ...]
    """What each limit row still allows, in the units of `Kind.use`."""
    changed: int | None = None
    """Nodes by which every plan differs from the previous one; None where there is none."""
    families: tuple[bytes, ...] = ()
    """Of kinds of new nodes: per row 1 where it may run on them, apart from their size."""
    counts_unbound: bool = False
    """Whether a required spread counts pods that it does not bind."""
    unbound_last: bool = False
    """Whether these come after those that it binds, and not before."""
    served: ServedClaims = field(default_factory=ServedClaims)

    @cached_property
    def new_kinds(self) -> tuple[Kind, ...]:
        return tuple(kind for kind in self.kinds if not kind.existing)

    @cached_property
    def existing_kinds(self) -> tuple[Kind, ...]:
        return tuple(kind for kind in self.kinds if kind.existing)

    @cached_property
    def existing(self) -> Bools:
        """Return whether the nodes of each kind exist."""
        return np.array([kind.existing for kind in self.kinds], dtype=bool)

    @cached_property
    def tiers(self) -> tuple[int, ...]:
        """Weights in use, lowest first: the order in which their costs are minimised."""
        return tuple(sorted({kind.weight for kind in self.new_kinds}))

    @cached_property
    def price_steps(self) -> Mapping[int, int]:
        """Per weight: what all prices of its nodes are multiples of, in millionths of $/h."""
        prices: dict[int, set[int]] = defaultdict(set)
        for kind in self.new_kinds:
            prices[kind.weight].add(kind.price_micros)
        return {weight: math.gcd(*found) for weight, found in prices.items()}

    @cached_property
    def free(self) -> Ints:
        """Return kinds x resources."""
        return np.array([kind.free for kind in self.kinds], dtype=np.int64).reshape(
            len(self.kinds), len(self.resources)
        )

    @cached_property
    def fits(self) -> Bools:
        """Return kinds x specs."""
        # Writable like all other arrays, though nobody writes: compiled code is compiled anew for those that are not.
        joined = bytearray().join(kind.fits for kind in self.kinds)
        return np.frombuffer(joined, dtype=bool).reshape(len(self.kinds), len(self.rows))

    @cached_property
    def use(self) -> Ints:
        """Return kinds x limit rows."""
        rows = [kind.use for kind in self.kinds]
        return np.array(rows, dtype=np.int64).reshape(len(self.kinds), len(self.limits))

    @cached_property
    def spare(self) -> Ints:
        """Return kinds x exclusions."""
        rows = [kind.spare for kind in self.kinds]
        return np.array(rows, dtype=np.int64).reshape(len(self.kinds), len(self.exclusions))

    @cached_property
    def links(self) -> Links:
        """Which exclusions concern which rows."""
        exclusions = self.exclusions
        carriers = _ints(row for each in exclusions for row in each.carriers)
        counted = _ints(row for each in exclusions for row, _ in each.counted)
        indices = np.arange(len(exclusions))
        of_carriers = np.repeat(indices, [len(each.carriers) for each in exclusions])
        of_counted = np.repeat(indices, [len(each.counted) for each in exclusions])
        number = max(1, len(exclusions))
        both = np.concatenate([carriers * number + of_carriers, counted * number + of_counted])
        keys, position = np.unique(both, return_inverse=True)
        carries, counts = np.zeros(len(keys), dtype=bool), np.zeros(len(keys), dtype=np.int64)
        carries[position[: len(carriers)]] = True
        counts[position[len(carriers) :]] = _ints(pods for each in exclusions for _, pods in each.counted)
        first = np.searchsorted(keys, number * np.arange(len(self.rows) + 1))
        return Links(first, keys % number, carries, counts)

    @cached_property
    def wanted(self) -> Ints:
        """Per row: units that could be served."""
        total = np.zeros(len(self.rows), dtype=np.int64)
        for demand in self.live:
            for row in demand.rows:
                total[row] = 1 if self.rows[row].bundle else total[row] + demand.count
        return total

    @cached_property
    def enough(self) -> Ints:
        """Per kind: nodes beyond which none is of use, for every pod that fits it could have one of its own."""
        # As floats, which multiply many times faster; in parts, since they take eight times the room.
        wanted, at_once = self.wanted.astype(np.float64), 1024
        parts = [self.fits[k : k + at_once] @ wanted for k in range(0, len(self.kinds), at_once)]
        return np.concatenate([np.zeros(0), *parts]).astype(np.int64)

    @cached_property
    def live(self) -> tuple[Demand, ...]:
        """Return the demands that some plan may serve."""
        return tuple(demand for demand in self.demands if demand.index not in self.infeasible)

    @cached_property
    def counted(self) -> Mapping[ObjectiveStage, tuple[Demand, ...]]:
        """Return the demands whose unserved pods count in a stage, by stage."""
        found: dict[ObjectiveStage, list[Demand]] = defaultdict(list)
        for demand in self.demands:
            for stage in demand.counted_in:
                found[stage].append(demand)
        return {stage: tuple(demands) for stage, demands in found.items()}

    @cached_property
    def lost(self) -> Mapping[int, int]:
        """Return demand -> pods, of those that no plan can serve."""
        return {demand.index: demand.count for demand in self.demands if demand.index in self.infeasible}

    @cached_property
    def priorities(self) -> tuple[int, ...]:
        """Priorities of real pods, highest first."""
        return tuple(sorted({demand.priority for demand in self.demands if not demand.placeholder}, reverse=True))

    def pod_classes(self) -> tuple[PodClass, ...]:
        return tuple(
            PodClass(d.index, d.spec, d.count, d.example, d.priority, d.gang, d.placeholder) for d in self.demands
        )


def most_per_node(reduced: Reduced, kinds: Ints) -> Ints:
    """Kinds x rows: how many units of the row alone an empty node holds, at most as many as are wanted; 0 where the
    row may not run there."""
    most = np.tile(np.minimum(reduced.wanted, reduced.caps), (len(kinds), 1))
    for resource in range(reduced.requests.shape[1]):
        # Most resources are asked for by few, and most kinds have amounts that others have too.
        asking = np.flatnonzero(reduced.requests[:, resource])
        amounts, amount = np.unique(reduced.free[kinds, resource], return_inverse=True)
        fit = (amounts[:, None] // reduced.requests[asking, resource])[amount]
        if len(asking) == most.shape[1]:
            np.minimum(most, fit, out=most)
        else:
            most[:, asking] = np.minimum(most[:, asking], fit)
    return np.where(reduced.fits[kinds], most, 0)
