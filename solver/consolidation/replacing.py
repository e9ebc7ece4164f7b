"""Nodes that go together, and what replaces them. One for one, each by a node of the cheapest group that holds all of
its pods, where new nodes cost hardly more than their pods are worth: thousands of full nodes change their weight or
their shape in no time. Else all of their pods packed anew, onto room that there is and onto new nodes, by filling one
node after the other (`solver.integral.balanced_kernel`), which takes milliseconds; and planned where that is not nearly
the best and there is time. Plain pods of no gang only.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice, repeat
from math import ceil, inf

import numpy as np

from solver.consolidation.cluster import Cluster, NodeRemoval, Pods, Replacement
from solver.consolidation.eligible import Domains, DomainSpread, Eligibility, NewNodeEligibility
from solver.consolidation.steps import StepTrials, Trial
from solver.integral import balanced_kernel as balanced
from solver.model import NodeGroup
from solver.model.budget import RunningBudget
from solver.model.capacity import limits_broken, remaining, with_nodes
from solver.reduction.reduced import Bools, Floats, Ints


class OneForOne:
    """Groups that may replace nodes, in the order in which they are better."""

    def __init__(
        self, cluster: Cluster, spread: DomainSpread, plain: Sequence[bool], open_to: Iterable[str] | None
    ) -> None:
        self._cluster, self._spread, self._plain = cluster, spread, plain
        allowed = set(cluster.groups) if open_to is None else set(open_to)
        groups = [group for group in cluster.groups.values() if group.id in allowed]
        # The highest weight first: what is opened there costs nothing in the tiers below.
        self._new = NewNodeEligibility(
            cluster, sorted(groups, key=lambda each: (-each.weight, cluster.micros[each.id], each.id))
        )

    def found(self, nodes: Iterable[int]) -> Replacement:
        """Return those of the nodes that have a cheaper or better group, and nodes of it in their places."""
        cluster = self._cluster
        limits = cluster.limits()
        opened: Counter[str] = Counter()
        left = Counter(cluster.target)
        going: list[int] = []
        result: list[tuple[str, Pods]] = []
        for node in nodes:
            pods, mine = cluster.pods[node], cluster.group_of[node]
            if not pods or left[mine] <= cluster.least[mine] or not all(self._plain[k] for k in pods):
                continue
            need = sum(cluster.requests[k] * count for k, count in pods.items())
            for index in np.flatnonzero((self._new.room >= need).all(axis=1)).tolist():
                group = self._new.groups[index]
                if not self._is_better(group, node):
                    continue
                if cluster.target[group.id] + opened[group.id] >= group.max_size or limits_broken(limits, group, 1):
                    continue
                if self._takes(index, node, pods):
                    opened[group.id] += 1
                    left[mine] -= 1
                    limits = tuple(with_nodes(limit, cluster.groups, {group.id: 1}) for limit in limits)
                    going.append(node)
                    result.append((group.id, Counter(pods)))
                    break
        return Replacement(tuple(sorted(going)), opened=result)

    def _is_better(self, group: NodeGroup, node: int) -> bool:
        weight, micros = self._cluster.weight_of(node), self._cluster.micros_of(node)
        return group.weight > weight or (group.weight == weight and self._cluster.micros[group.id] < micros)

    def _takes(self, index: int, node: int, pods: Pods) -> bool:
        for k in pods:
            domains = self._spread.stay_in(k, node)
            if domains is None or not self._new.take(k, domains)[index]:
                return False
        return True


_LEAST_VALUE = 0.05
"""Of what a pod's share of the cheapest node costs: what placing it is worth at least."""
_TIMES, _MOST_CHANGE = 5, 2.0
"""How often pods are packed, each time at what they cost the time before, and how much that may differ: what they are
worth in the whole cluster does not say which of them are hard to place here."""
_LEAST_WEIGHT = 0.05
"""Of a resource that costs nothing, beside the dearest one, when pods are fitted to what is free."""


@dataclass
class _PodRow:
    """Pods that are alike for whoever packs them."""

    example: int
    """One of their classes."""
    domains: Domains
    pods: Pods = field(default_factory=Counter)


class ManyForMany:
    """New nodes that may replace others, and what pods are worth on them."""

    def __init__(
        self,
        cluster: Cluster,
        eligibility: Eligibility,
        spread: DomainSpread,
        plain: Sequence[bool],
        open_to: Iterable[str] | None,
    ) -> None:
        """Groups `open_to` are of better weights than the nodes that go; None for those of the nodes' own weight."""
        self._cluster, self._eligibility, self._spread, self._plain = cluster, eligibility, spread, plain
        self._better = open_to is not None
        by_weight: dict[int, list[NodeGroup]] = defaultdict(list)
        for name in cluster.groups if open_to is None else open_to:
            by_weight[cluster.groups[name].weight].append(cluster.groups[name])
        self._offers = {weight: _Offers(cluster, groups) for weight, groups in sorted(by_weight.items(), reverse=True)}
        room = np.concatenate([offers.room for offers in self._offers.values()])
        micros = np.concatenate([offers.cost for offers in self._offers.values()])
        self._values = np.maximum(cluster.pod_worth, _LEAST_VALUE * _shares(cluster.requests, room, micros) + 1e-6)
        largest = np.maximum(room.max(axis=0), 1).astype(np.float64)
        worth = _worth_of_resources(cluster.requests / largest, self._values)
        self._weight = (_LEAST_WEIGHT + worth / max(float(worth.max()), 1e-9)) / largest**2
        self._worth = worth / largest
        """Of a unit of each resource: pods are worth no more than what they take."""

    def can_pack(self, node: int) -> bool:
        """Return whether all of the node's pods are such as are packed here."""
        pods = self._cluster.pods[node]
        return bool(pods) and all(self._plain[k] and self._spread.stay_in(k, node) is not None for k in pods)

    def found(self, nodes: Iterable[int], targets: Ints) -> Replacement | None:
        """Return those of the nodes, all of one weight, that may go together, and where their pods go: onto `targets`,
        nodes that stand, then onto new ones, all of the highest weight that has room for them. None where none has, or
        for no less than the nodes cost."""
        going = self._sized(nodes)
        rows = self._rows(going)
        for weight, offers in self._offers.items() if rows else ():
            if self._better or weight == self._cluster.weight_of(going[0]):
                found = self._packed(going, rows, targets, offers)
                if found is not None:
                    return found
        return None

    def _packed(
        self, going: Sequence[int], rows: Sequence[_PodRow], targets: Ints, offers: _Offers
    ) -> Replacement | None:
        cluster, examples = self._cluster, [row.example for row in rows]
        requests, wanted = cluster.requests[examples], np.array([row.pods.total() for row in rows], dtype=np.int64)
        targets = targets[(cluster.free[targets] >= requests.min(axis=0)).all(axis=1)]
        standing = balanced.Standing(cluster.free[targets], self._fits(rows, targets))
        kinds, groups = offers.kinds(rows)
        # To a better weight pods go at any price.
        most = np.inf if self._better else float(sum(map(cluster.micros_of, going)))
        values, least, best = self._values[examples], np.inf, None
        for _ in range(_TIMES):
            left, out = wanted.copy(), balanced.room_for(int(wanted.sum()))
            worth = self._worth * float((values / (requests @ self._worth)).max())
            now = kinds._replace(
                ratio=kinds.free @ worth / (kinds.cost + 1.0), room=kinds.room.copy(), allowed=kinds.allowed.copy()
            )
            opened, entries = balanced.fill(
                balanced.PodRows(requests, values, left), standing, now, self._weight, most, out
            )
            cost = float(kinds.cost[out.kind[:opened]].sum())
            if left.any():
                break
            if cost < least:
                least, best = cost, (opened, entries, out)
            values = _paid(values, kinds.cost, len(targets), opened, entries, out)
        return None if best is None else _written(going, rows, targets, groups, *best)

    def _sized(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes without those that keep their groups at their minimum sizes."""
        left, going = Counter(self._cluster.target), []
        for node in nodes:
            group = self._cluster.group_of[node]
            if left[group] > self._cluster.least[group]:
                left[group] -= 1
                going.append(node)
        return going

    def _rows(self, nodes: Iterable[int]) -> list[_PodRow]:
        rows: dict[object, _PodRow] = {}
        for node in nodes:
            for k, count in self._cluster.pods[node].items():
                domains = self._spread.stay_in(k, node)
                assert domains is not None  # as `can_pack` says
                key = self._cluster.requests[k].tobytes(), self._eligibility.part_of(k), domains
                rows.setdefault(key, _PodRow(k, domains)).pods[k] += count
        return list(rows.values())

    def _fits(self, rows: Sequence[_PodRow], targets: Ints) -> Bools:
        """Return targets x rows."""
        fits = np.zeros((len(targets), len(rows)), dtype=bool)
        for number, row in enumerate(rows):
            fits[:, number] = self._eligibility.of(row.example)[targets]
            if row.domains:
                fits[:, number] &= self._spread.nodes_in(row.domains)[targets]
        return fits


class _Offers:
    """New nodes of one weight, as the kernel is told of them: groups that no pods tell apart are one kind."""

    def __init__(self, cluster: Cluster, groups: Sequence[NodeGroup]) -> None:
        self._cluster, self._new = cluster, NewNodeEligibility(cluster, groups)
        self.room = self._new.room
        self.cost = np.array([float(cluster.micros[group.id]) for group in groups])
        self._limits = [(number, name) for number, limit in enumerate(cluster.problem.limits) for name in limit.maxima]
        limits = cluster.problem.limits
        use = [[limits[number].counted(group).get(name, 0) for number, name in self._limits] for group in groups]
        self._use = np.array(use, dtype=np.int64).reshape(len(groups), len(self._limits))
        self._same = [(self.room[i].tobytes(), self.cost[i], self._use[i].tobytes()) for i in range(len(groups))]

    def kinds(self, rows: Sequence[_PodRow]) -> tuple[balanced.NewNodeKinds, list[Iterator[str]]]:
        """Return the kinds as they are now, and per kind the group of each new node."""
        cluster, groups = self._cluster, self._new.groups
        fits = np.ascontiguousarray(np.array([self._new.take(row.example, row.domains) for row in rows]).T)
        room = np.array([max(0, each.max_size - cluster.target[each.id]) for each in groups], dtype=np.int64)
        members: dict[object, list[int]] = defaultdict(list)
        for index in range(len(groups)):
            members[self._same[index], fits[index].tobytes()].append(index)
        first = [each[0] for each in members.values()]
        names: list[Iterator[str]] = [
            chain.from_iterable(repeat(groups[index].id, int(room[index])) for index in each)
            for each in members.values()
        ]
        left = [remaining(limit) for limit in cluster.limits()]
        kinds = balanced.NewNodeKinds(
            self.room[first],
            fits[first],
            self.cost[first],
            np.full(len(first), np.inf),
            np.array([room[each].sum() for each in members.values()], dtype=np.int64),
            self._use[first],
            np.array([left[number][name] for number, name in self._limits], dtype=np.int64),
        )
        return kinds, names


def _paid(values: Floats, cost: Floats, standing: int, opened: int, entries: int, out: balanced.Filled) -> Floats:
    """Return what pods cost on the new nodes, each its part of its node's price by its value."""
    new = np.flatnonzero(out.node[:entries] >= standing)
    node, row = out.node[new] - standing, out.row[new]
    parts = out.pods[new] * values[row]
    parts *= (cost[out.kind[:opened]] / np.maximum(np.bincount(node, parts, opened), 1e-9))[node]
    count = np.bincount(row, out.pods[new], len(values))
    paid = np.where(count > 0, np.bincount(row, parts, len(values)) / np.maximum(count, 1), values)
    return np.clip(paid, values / _MOST_CHANGE, values * _MOST_CHANGE)


def _written(
    going: Sequence[int],
    rows: Sequence[_PodRow],
    targets: Ints,
    groups: Sequence[Iterator[str]],
    opened: int,
    entries: int,
    out: balanced.Filled,
) -> Replacement:
    placed: dict[int, Pods] = defaultdict(Counter)
    filled: list[tuple[str, Pods]] = [(next(groups[kind]), Counter()) for kind in out.kind[:opened].tolist()]
    stock = [list(row.pods.items()) for row in rows]
    for node, row, count in zip(*(each[:entries].tolist() for each in (out.node, out.row, out.pods)), strict=True):
        onto = placed[int(targets[node])] if node < len(targets) else filled[node - len(targets)][1]
        onto.update(_taken(stock[row], count))
    return Replacement(tuple(sorted(going)), dict(placed), filled)


def _shares(requests: Ints, room: Ints, micros: Floats) -> Floats:
    """Return, per class, what its share of a node costs where that is least; 0 where it has no room on any."""
    found = np.full(len(requests), np.inf)
    for free, cost in zip(room, micros, strict=True):
        share = (requests / np.maximum(free, 1)).max(axis=1)
        np.minimum(found, np.where(share <= 1, share * cost, np.inf), out=found)
    return np.where(np.isfinite(found), found, 0.0)


def _worth_of_resources(taken: Floats, values: Floats) -> Floats:
    """Return what resources are worth so that no pod is worth more than what it takes of them, and hardly less."""
    worth = np.maximum(np.linalg.lstsq(taken, values, rcond=None)[0], 0.0)
    worth = np.maximum(worth, 1e-3 * worth.max(initial=1e-6))  # none nothing: some pods may take it alone
    scaled: Floats = worth * float((values / (taken @ worth)).max(initial=0.0))
    return scaled


def _taken(stock: list[tuple[int, int]], count: int) -> Pods:
    """Take so many pods out of the stock: classes with how many there are of each."""
    taken: Pods = Counter()
    while count:
        k, there = stock.pop()
        taken[k] = min(count, there)
        count -= taken[k]
        if there > taken[k]:
            stock.append((k, there - taken[k]))
    return taken


STEP_SHARE = 0.01
"""Of the budget, for planning one step."""
_HARDLY = 1.02
"""Of what pods are worth: what new nodes for them may cost, for no other way to cost much less."""
_FEW_PODS = 200
"""Of more pods, planning finds no better step in the time."""
_FAR = 1.05
"""And what they cost where pods of other nodes may be missing to fill them."""
_SHAPES = 8
"""Of how many shapes other nodes are tried."""
_LEAST_PART = 0.2
"""Of as many nodes as a step may have: fewer are not tried with others."""
_IN_TURN = 20
"""How many steps choose their nodes in turn."""


class Replacing:
    """One pass over nodes that may go."""

    def __init__(
        self,
        steps: StepTrials,
        search: RunningBudget,
        candidates: Sequence[int],
        targets: Sequence[int],
        open_to: Sequence[str] | None = None,
    ) -> None:
        """`candidates` are nodes that may go, those first that are tried first; `targets` nodes that take pods. Where
        groups are given, of better weights than all candidates, only they are opened."""
        self._steps, self._cluster, self._search = steps, steps.cluster, search
        self._candidates, self._targets, self._open_to = candidates, targets, open_to
        apart = set(candidates)
        self._staying = np.array([node for node in targets if node not in apart], dtype=np.int64)
        self._began = len(self._cluster.nodes)

    def trials(self) -> Iterator[Trial]:
        """Yield steps; whoever asks for the next has taken the ones before. Candidates are tried by as many as a step
        may have; where that is no step, both halves of them."""
        if not self._candidates:
            return
        self._look()
        waiting = deque(self._together())
        while waiting and not self._search.exhausted and self._can_grow():
            nodes = tuple(n for n in waiting.popleft() if self._cluster.may_go(n))
            trial, planned = self._best(nodes, len(waiting) + 1) if nodes else (None, False)
            if trial is not None:
                yield trial
                if planned:
                    self._look()
                elif left := tuple(n for n in nodes if self._cluster.may_go(n)):
                    waiting.append(left)
            elif len(nodes) > 1:
                half = (len(nodes) + 1) // 2
                waiting.extend((nodes[:half], nodes[half:]))

    def _look(self) -> None:
        """See where pods that spread are now."""
        steps, cluster = self._steps, self._cluster
        spread = DomainSpread(cluster, steps.rules)
        self._one_for_one = OneForOne(cluster, spread, steps.plain, self._open_to)
        self._many_for_many = ManyForMany(cluster, steps.eligibility, spread, steps.plain, self._open_to)

    def _together(self) -> Iterator[tuple[int, ...]]:
        """Yield the candidates by as many as a step may have. Where there are many, steps choose theirs in turn: what
        the pods of one shape leave free suits those of another."""
        cluster, most = self._cluster, self._cluster.problem.most_nodes_per_step
        several = len(self._candidates) > most
        packed = [node for node in self._candidates if several and self._many_for_many.can_pack(node)]
        for weight in sorted({cluster.weight_of(node) for node in packed}):
            mine = [node for node in packed if cluster.weight_of(node) == weight]
            for start in range(0, len(mine), most * _IN_TURN):
                part = mine[start : start + most * _IN_TURN]
                steps = ceil(len(part) / most)
                yield from (tuple(part[step::steps]) for step in range(steps))
        apart = set(packed)
        others = [node for node in self._candidates if node not in apart]
        yield from (tuple(others[start : start + most]) for start in range(0, len(others), most))

    def _best(self, nodes: Sequence[int], waiting: int) -> tuple[Trial | None, bool]:
        """Return a step for the nodes, or some of them, and whether it was planned. `waiting` is for how many there are
        steps to be found."""
        exchanged = self._exchanged(nodes)
        if exchanged is not None:
            return exchanged, False
        packed = None
        if all(map(self._many_for_many.can_pack, nodes)):
            packed, dearer = self._packed(nodes)
            if dearer > _FAR:
                with_others = (self._packed(each)[0] for each in self._with_others(nodes))
                packed = max(filter(None, (packed, *with_others)), key=lambda each: each.saved_micros, default=None)
            few = self._cluster.moved(NodeRemoval(tuple(nodes), {})).total() <= _FEW_PODS
            if dearer <= _HARDLY or not few or not self._search.affords(waiting, STEP_SHARE):
                return packed, False
        planned = self._planned(nodes)
        if planned is None or (packed is not None and packed.order <= planned.order):
            return packed, False
        return planned, True

    def _with_others(self, nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield the first of the nodes with as many others, of one shape, that cost hardly more than their pods are
        worth: alone, pods that need little of a resource leave it unused."""
        cluster, most = self._cluster, self._cluster.problem.most_nodes_per_step
        if len(nodes) < _LEAST_PART * min(most, len(self._candidates)):
            return
        mates = min(len(nodes), most // 2)
        for shape in self._shapes:
            found = (n for n in shape if cluster.may_go(n) and self._many_for_many.can_pack(n))
            others = tuple(islice((n for n in found if cluster.weight_of(n) == cluster.weight_of(nodes[0])), mates))
            if others:
                yield (*nodes[: most - mates], *others)

    @cached_property
    def _shapes(self) -> Sequence[Sequence[int]]:
        """Nodes that may go and are no candidates, by what they cost and have: the shapes of which there are most."""
        shapes: dict[object, list[int]] = defaultdict(list)
        cluster = self._cluster
        staying = self._staying.tolist() if self._open_to is None else ()
        for node in self._steps.in_order(node for node in staying if cluster.may_go(node)):
            group = cluster.groups[cluster.group_of[node]]
            shapes[group.price_usd_per_hour, tuple(sorted(group.allocatable.items()))].append(node)
        return sorted(shapes.values(), key=len, reverse=True)[:_SHAPES]

    def _exchanged(self, nodes: Sequence[int]) -> Trial | None:
        found = self._one_for_one.found(nodes)
        if not found.nodes or self._dearer(found.opened) > _HARDLY:
            return None
        return self._steps.replaced(found)

    def _packed(self, nodes: Sequence[int]) -> tuple[Trial | None, float]:
        """Return a step, and what new nodes cost as a multiple of what their pods are worth."""
        # Nodes that this pass opened come first: the last ones of a step are not full.
        onto = np.concatenate([np.arange(self._began, len(self._cluster.nodes)), self._staying])
        onto = onto[self._cluster.takes[onto]]
        found = self._many_for_many.found(nodes, onto[~np.isin(onto, nodes)])
        if found is None:
            return None, inf
        trial = self._steps.replaced(found)
        return trial, inf if trial is None else self._dearer(found.opened)

    def _dearer(self, opened: Sequence[tuple[str, Pods]]) -> float:
        """Return what new nodes cost as a multiple of what their pods are worth."""
        cluster = self._cluster
        cost = sum(cluster.micros[group] for group, _ in opened)
        worth = sum(cluster.summed(cluster.pod_worth, pods) for _, pods in opened)
        return cost / worth if worth else inf if cost else 1.0

    def _planned(self, nodes: Sequence[int]) -> Trial | None:
        trial = self._plan(nodes)
        if trial is None:
            return None
        fewer = self._less_exchanged(trial)
        if fewer and not self._search.exhausted:
            smaller = self._plan(fewer)
            if smaller is not None and smaller.saved_micros >= 0.9 * trial.saved_micros:
                return smaller
        return trial

    def _plan(self, nodes: Sequence[int]) -> Trial | None:
        removal = self._cluster.removal(nodes)
        targets = [*range(self._began, len(self._cluster.nodes)), *self._targets]
        plan = self._steps.planned(removal, targets, self._search.next_plan(STEP_SHARE), self._open_to)
        return self._steps.judged(removal, plan)

    def _less_exchanged(self, trial: Trial) -> list[int]:
        """Return the nodes without those that would be exchanged for new ones of their group; none where that is all
        or none of them."""
        opened = Counter({each.node_group: each.delta for each in trial.plan.increments})
        kept = []
        for number in reversed(self._steps.in_order(trial.removal.nodes)):
            if opened[self._cluster.group_of[number]] > 0:
                opened[self._cluster.group_of[number]] -= 1
            else:
                kept.append(number)
        return kept if len(kept) < len(trial.removal.nodes) else []

    def _can_grow(self) -> bool:
        """Return whether there can be one more node of one of the groups."""
        if self._open_to is None:
            return True
        cluster, limits = self._cluster, self._cluster.limits()
        groups = (cluster.groups[name] for name in self._open_to)
        return any(cluster.target[g.id] < g.max_size and not limits_broken(limits, g, 1) for g in groups)
