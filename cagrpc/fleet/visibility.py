"""The selection of node groups that are shown to CA. Each costs CA time in every loop, so of the hundreds that a
provisioner may expand to only some are shown; the fleet serves all of them, and the planner plans with all of them.

Nothing here changes a group. The selection depends on the groups and, only in its last places, on their targets, so
that it is stable for CA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import log

import numpy as np
import numpy.typing as npt

from cagrpc.fleet.catalogue import GPU_NAME, WELL_KNOWN_LABELS
from solver.model import ATTACHABLE_VOLUMES, CPU, MEMORY, PODS, NodeGroup, Taint

DEFAULT_SHOWN_GROUPS = 50

_Kind = tuple[int, str, tuple[str, ...]]
_Ranked = tuple[tuple[str, ...], int]


@dataclass(slots=True)
class ShownGroups:
    """The rule that the fleet applies whenever groups or targets may have changed.

    Shown are, in the groups' own order: every group of `always` (the explicitly configured ones) and every one with a
    target above 0; at least one group for each tier, zone and GPU kind; then, up to `count` in all, the groups that
    lower the cost of a range of demands most. A group that another one dominates (eligible for the same pods, at least
    as large, at most as expensive) is shown only by one of the first two rules, and so is one whose maximum is 0 or
    that is among `without_room`.
    `count` is exceeded only by the first three rules together.
    """

    count: int = DEFAULT_SHOWN_GROUPS
    always: frozenset[str] = frozenset()
    without_room: frozenset[str] = frozenset()
    """Ids of groups of which limits allow not a single node."""
    _groups: tuple[NodeGroup, ...] = field(default=(), init=False, repr=False)
    _ranked: _Ranked = field(default=((), 0), init=False, repr=False)

    def __call__(self, groups: Sequence[NodeGroup], targets: Mapping[str, int]) -> tuple[str, ...]:
        """Return the ids of the groups to show; `targets` by id, absent ones 0."""
        ranked, needed = self._ranking(groups)
        shown = {group.id for group in groups if group.id in self.always or targets.get(group.id, 0) > 0}
        shown.update(ranked[:needed])
        for group_id in ranked[needed:]:
            if len(shown) >= self.count:
                break
            shown.add(group_id)
        return tuple(group.id for group in groups if group.id in shown)

    def _ranking(self, groups: Sequence[NodeGroup]) -> _Ranked:
        """Return the ranking, cached for a list of groups, because it does not depend on targets."""
        same = len(groups) == len(self._groups) and all(a is b for a, b in zip(groups, self._groups, strict=True))
        if not same:
            self._groups, self._ranked = (
                tuple(groups),
                _rank([each for each in groups if each.id not in self.without_room], self.count),
            )
        return self._ranked


def _rank(groups: Sequence[NodeGroup], count: int) -> _Ranked:
    """Return ids, best first, and how many of the first are shown whatever the count: one for each kind."""
    front = _non_dominated([group for group in groups if group.max_size > 0])
    if not front:
        return (), 0
    costs = np.array([_log_costs(group) for group in front])
    pools = _numbered(_eligibility(group) for group in front)
    kinds = _numbered(_kind(group) for group in front)
    # The lowest cost of each demand so far in each eligibility class.
    best = np.full((max(pools) + 1, costs.shape[1]), _LOG_NOT_SERVED)
    pool_of = np.array(pools)
    # A catalogue has many kinds of GPU; together they weigh as much as one class without.
    with_devices = np.array([any(_gpu_kind(group)) for group in front])
    weight = np.where(with_devices, 1 / max(1, len(set(pool_of[with_devices].tolist()))), 1.0)
    waiting = set(kinds)
    needed = len(waiting)
    chosen: list[int] = []
    while len(chosen) < min(max(count, needed), len(front)):
        gains: npt.NDArray[np.float64] = np.maximum(best[pool_of] - costs, 0).sum(axis=1) * weight
        open_to = [i for i in range(len(front)) if i not in chosen and (not waiting or kinds[i] in waiting)]
        index = max(open_to, key=lambda i: (round(float(gains[i]), 9), -i))
        chosen.append(index)
        waiting.discard(kinds[index])
        best[pools[index]] = np.minimum(best[pools[index]], costs[index])
    return tuple(front[i].id for i in chosen), needed


def _kind(group: NodeGroup) -> _Kind:
    """Return the group's tier, zone and GPU kind."""
    return group.weight, group.zone, _gpu_kind(group)


def _gpu_kind(group: NodeGroup) -> tuple[str, ...]:
    devices = sorted(resource for resource, amount in group.allocatable.items() if "/" in resource and amount)
    return (*devices, group.labels.get(GPU_NAME, ""))


_Eligibility = tuple[str, int, str, str, tuple[tuple[str, str], ...], frozenset[Taint], tuple[str, ...]]
_OF_THE_TYPE = WELL_KNOWN_LABELS - {"kubernetes.io/arch", "kubernetes.io/os"}


def _eligibility(group: NodeGroup) -> _Eligibility:
    """Return what decides which pods may run there and which limits count it, without the labels of its type or size:
    few pods select one type by name, and showing every type would be no selection."""
    others = tuple(sorted((key, value) for key, value in group.labels.items() if key not in _OF_THE_TYPE))
    return (
        group.provisioner,
        group.weight,
        group.zone,
        group.capacity_type,
        others,
        frozenset(group.taints),
        _gpu_kind(group),
    )


def _non_dominated(groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    """Return, of groups with equal eligibility, those for which no other is at least as large in every resource and as
    cheap; of equal ones the first."""
    by_eligibility: dict[_Eligibility, list[tuple[int, NodeGroup]]] = {}
    for position, group in enumerate(groups):
        by_eligibility.setdefault(_eligibility(group), []).append((position, group))
    found: list[tuple[int, NodeGroup]] = []
    for members in by_eligibility.values():
        named = {resource for _, group in members for resource in group.allocatable}
        # CA counts no volumes on new nodes.
        resources = sorted(name for name in named if not name.startswith(ATTACHABLE_VOLUMES))
        sizes = np.array([[group.allocatable.get(resource, 0) for resource in resources] for _, group in members])
        # In order of price, and of size at one price, only those before can dominate.
        order = sorted(
            range(len(members)),
            key=lambda i: (members[i][1].price_usd_per_hour, *(-int(size) for size in sizes[i]), members[i][0]),
        )
        alive: list[int] = []
        for i in order:
            if not alive or not bool((sizes[alive] >= sizes[i]).all(axis=1).any()):
                alive.append(i)
        found.extend(members[i] for i in alive)
    return [group for _, group in sorted(found, key=lambda member: member[0])]


_MIB = 2**20
_CORES = (0.25, 1, 4, 16, 48, 128)
_MIB_PER_CORE = (1024, 3072, 6144, 14_336)
_DEVICES = (1, 4, 8)
_PODS_AT_ONCE = (1, 8, 64)
"""Demands by which groups are ranked: pods of a quarter core to most of a large node, with memory as on
compute-optimised, general, memory-optimised and high-memory types, in various numbers; on groups with devices, pods
that request them."""

_LOG_NOT_SERVED = 12.0
"""Above the cost of any pod: serving a demand outweighs serving it cheaply."""


def _log_costs(group: NodeGroup) -> list[float]:
    """Return for each demand the logarithm of dollars per hour and pod, so that a relative saving counts the same for
    small and large pods. Groups with and without devices have the same number of demands."""
    allocatable = group.allocatable
    devices = sum(amount for resource, amount in allocatable.items() if "/" in resource)
    costs: list[float] = []
    for cores, mib_per_core, pods in product(_CORES, _MIB_PER_CORE, _PODS_AT_ONCE):
        fit = min(
            allocatable.get(PODS, 0),
            int(allocatable.get(CPU, 0) // (cores * 1000)),
            int(allocatable.get(MEMORY, 0) // (cores * mib_per_core * _MIB)),
        )
        for wanted in _DEVICES:
            at_most = min(fit, devices // wanted) if devices else fit
            nodes = -(-pods // at_most) if at_most else 0
            costs.append(log(max(group.price_usd_per_hour, 1e-4) * nodes / pods) if nodes else _LOG_NOT_SERVED)
    return costs


def _numbered(values: Iterable[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
