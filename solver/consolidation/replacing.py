"""Nodes that go together, and what replaces them: one for one where new nodes cost hardly more than their pods are
worth; else all of their pods packed anew, and planned where that is not nearly the best and there is time."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from math import ceil, inf

import numpy as np

from solver.consolidation.cluster import NodeRemoval, Pods
from solver.consolidation.eligible import DomainSpread
from solver.consolidation.many_for_many import ManyForMany
from solver.consolidation.one_for_one import OneForOne
from solver.consolidation.steps import StepTrials, Trial
from solver.consolidation.written import written
from solver.model.budget import RunningBudget
from solver.model.capacity import limits_broken

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
        going, opened = self._one_for_one.found(nodes)
        if not going or self._dearer(opened) > _HARDLY:
            return None
        return self._steps.judged(NodeRemoval(tuple(sorted(going)), {}), written(self._cluster, {}, opened))

    def _packed(self, nodes: Sequence[int]) -> tuple[Trial | None, float]:
        """Return a step, and what new nodes cost as a multiple of what their pods are worth."""
        # Nodes that this pass opened come first: the last ones of a step are not full.
        onto = np.concatenate([np.arange(self._began, len(self._cluster.nodes)), self._staying])
        onto = onto[self._cluster.takes[onto]]
        found = self._many_for_many.found(nodes, onto[~np.isin(onto, nodes)])
        if found is None:
            return None, inf
        plan = written(self._cluster, found.placed, found.opened)
        trial = self._steps.judged(NodeRemoval(found.nodes, {}), plan)
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
