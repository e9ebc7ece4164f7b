"""The entry point of consolidation: `consolidate(problem, budget) -> ConsolidationPlan`, its passes from top to bottom.

What must go is replaced, what is empty goes, pods go back to better weights, nodes go whose pods find room on others,
and then nodes are replaced by cheaper ones, those first that cost most for what their pods are worth. Each step is
taken only if it is better by itself: cheaper from the lowest weight up, as plans are compared. So the cost falls with
every step, and no plan is the reverse of another one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from solver.consolidation.cluster import Cluster, NodeRemoval
from solver.consolidation.eligible import DomainSpread
from solver.consolidation.least import least, repacking, worth_micros
from solver.consolidation.model import (
    ConsolidationPlan,
    ConsolidationProblem,
    ConsolidationStep,
    DisruptionReason,
)
from solver.consolidation.one_for_one import OneForOne
from solver.consolidation.onto_standing import emptied
from solver.consolidation.steps import StepTrials
from solver.consolidation.validation import validate_consolidation
from solver.consolidation.written import written
from solver.model import Budget, Plan, TierCost
from solver.model.budget import RunningBudget
from solver.model.capacity import limits_broken
from solver.planning.warm_up import warm_up
from solver.reduction.objective import dollars
from solver.reduction.reduced import MICROS, Floats

_WORTH_SHARE, _BOUND_SHARE, _STEP_SHARE = 0.1, 0.15, 0.01
"""Of the budget: what pods are worth, one bound, one step."""
_SEARCH_SHARE = 0.8
"""By when steps are found."""
_LEAST_SURPLUS = 0.01
"""Of a node's price: what it costs more than its pods are worth, at least, to be replaced."""
_HARDLY = 1.06
"""Of what pods are worth: what new nodes for them may cost, for their pods not to be packed anew."""


def consolidate(problem: ConsolidationProblem, budget: Budget | None = None) -> ConsolidationPlan:
    """Return steps that replace nodes by cheaper ones, and bounds on what any consolidation could save, within `budget`
    (default: ten seconds).

    Raises `ProblemError` for an invalid problem or budget, naming every fault. The result depends on nothing but the
    arguments where the budget is deterministic. Nodes that cost the same are never exchanged for fewer: that moves pods
    and saves nothing. Taints of `PreferNoSchedule` prevent no move.
    """
    warm_up()
    running = RunningBudget(budget or Budget(10.0))
    validate_consolidation(problem, running.granted)
    return _Consolidation(problem.with_hard_taints_only(), running).plan()


class _Consolidation:
    def __init__(self, problem: ConsolidationProblem, budget: RunningBudget) -> None:
        self.problem, self.budget = problem, budget
        self._search = replace(budget, until=_SEARCH_SHARE)
        self.cluster = Cluster(problem)
        self.steps = StepTrials(self.cluster)
        self.found: list[ConsolidationStep] = []
        self.stays: dict[str, str] = {}
        self.before = self._usd()
        self.packing = repacking(self.cluster)
        kept = any(standing.kept and standing.node_group for standing in problem.nodes)
        self.free_packing = repacking(self.cluster, everything=True) if kept else None
        self.cluster.set_worth(worth_micros(self.cluster, self.packing, budget.granted.part(_WORTH_SHARE)))

    def plan(self) -> ConsolidationPlan:
        self._replace_what_must_go()
        self._remove_empty()
        while not self._search.exhausted:
            known = len(self.found)
            self._empty_onto_others()
            self._improve_weights()
            self._replace()
            if len(self.found) == known:
                break
        return self._result()

    def _take(self, removal: NodeRemoval, plan: Plan, reason: DisruptionReason) -> None:
        saved = -sum(self.steps.change_micros(removal, plan).values()) / MICROS
        names = tuple(self.cluster.nodes[number].name for number in removal.nodes)
        self.found.append(ConsolidationStep(reason, names, plan, round(saved, 9)))
        self.cluster.remove(removal, plan)

    def _replace_what_must_go(self) -> None:
        must = [n for n, each in enumerate(self.problem.nodes) if each.must_go is not None]
        targets = self._targets([])
        for number in must:
            standing = self.problem.nodes[number]
            assert standing.must_go is not None
            if not self.cluster.alive[number]:
                continue
            if not self.cluster.may_go(number):
                self.stays[standing.node.name] = self._why_kept(number)
                continue
            removal = self.cluster.removal([number])
            plan = self.steps.planned(removal, targets, self.budget.next_plan(_STEP_SHARE))
            if plan.unplaced:
                example = plan.pod_classes[plan.unplaced[0].pod_class].example
                reason = next(iter(plan.unplaced[0].reasons), "there is no room")
                self.stays[standing.node.name] = f"its pods do not all fit elsewhere: {example}: {reason}"
            elif not self.steps.keeps_minimum_sizes(removal, plan):
                group = standing.node_group
                self.stays[standing.node.name] = f"node group {group} is at its minimum size and cannot grow"
            else:
                self._take(removal, plan, standing.must_go)

    def _remove_empty(self) -> None:
        left, going = Counter(self.cluster.target), []
        for number in self._candidates(price_order=True):
            group = self.cluster.group_of[number]
            if not self.cluster.pods[number] and left[group] > self.cluster.least[group]:
                left[group] -= 1
                going.append(number)
        most = self.problem.most_nodes_per_step
        for start in range(0, len(going), most):
            removal = NodeRemoval(tuple(sorted(going[start : start + most])), {})
            self._take(removal, written(self.cluster, {}), DisruptionReason.EMPTY)

    def _improve_weights(self) -> None:
        """Bring pods to better weights, from the lowest weight up."""
        weights = sorted({group.weight for group in self.cluster.groups.values()})
        for weight in weights[:-1]:
            mine = [n for n in self._candidates() if self.cluster.weight_of(n) == weight]
            better = [group.id for group in self.cluster.groups.values() if group.weight > weight]
            targets = [
                n for n in self._targets([]) if not self.cluster.group_of[n] or self.cluster.weight_of(n) > weight
            ]
            self._by_halves(mine, targets, better)

    def _empty_onto_others(self) -> None:
        candidates = self._candidates()
        found = emptied(
            self.cluster,
            self.steps.eligibility,
            DomainSpread(self.cluster, self.steps.rules),
            candidates,
            self._targets(candidates),
            self.steps.plain,
            self.problem.most_nodes_per_step,
            self.steps.least_micros_per_pod,
        )
        for each in found:
            plan = written(self.cluster, each.placed)
            self._take(NodeRemoval(tuple(sorted(each.nodes)), {}), plan, DisruptionReason.UNDERUTILIZED)
            if self._search.exhausted:
                break

    def _replace(self) -> None:
        candidates = self._candidates()
        surplus = self._surplus()
        worst = [n for n in candidates if surplus[n] > _LEAST_SURPLUS * self.cluster.micros_of(n)]
        self._by_halves(worst, self._targets(worst), None)

    def _by_halves(self, candidates: Sequence[int], targets: Sequence[int], open_to: Sequence[str] | None) -> None:
        """Try the candidates by as many as a step may have; where that is no step, both halves of them."""
        most = self.problem.most_nodes_per_step
        waiting = deque(tuple(candidates[i : i + most]) for i in range(0, len(candidates), most))
        one_for_one = OneForOne(self.cluster, DomainSpread(self.cluster, self.steps.rules), self.steps.plain, open_to)
        while waiting and not self._search.exhausted and (open_to is None or self._can_grow(open_to)):
            nodes = tuple(n for n in waiting.popleft() if self.cluster.may_go(n))
            if not nodes:
                continue
            if self._exchange(nodes, one_for_one):
                rest = tuple(n for n in nodes if self.cluster.may_go(n))
                waiting.extend((rest,) if rest else ())
            elif self._try(nodes, targets, open_to):
                one_for_one = OneForOne(
                    self.cluster, DomainSpread(self.cluster, self.steps.rules), self.steps.plain, open_to
                )
            elif len(nodes) > 1:
                half = (len(nodes) + 1) // 2
                waiting.extend((nodes[:half], nodes[half:]))

    def _exchange(self, nodes: Sequence[int], one_for_one: OneForOne) -> bool:
        """Take the step that replaces nodes one by one, where packing their pods anew would hardly cost less."""
        going, opened = one_for_one.found(nodes)
        cost = sum(self.cluster.micros[group] for group, _ in opened)
        if not going or cost > _HARDLY * sum(self.cluster.worth[n] for n in going):
            return False
        removal, plan = NodeRemoval(tuple(sorted(going)), {}), written(self.cluster, {}, opened)
        reason = self.steps.verdict(removal, plan)
        if reason is not None:
            self._take(removal, plan, reason)
        return reason is not None

    def _try(self, nodes: Sequence[int], targets: Sequence[int], open_to: Sequence[str] | None) -> bool:
        removal = self.cluster.removal(nodes)
        plan = self.steps.planned(removal, targets, self._search.next_plan(_STEP_SHARE), open_to)
        reason = self.steps.verdict(removal, plan)
        if reason is None:
            return False
        fewer = self._less_exchanged(removal, plan)
        if fewer and not self._search.exhausted:
            smaller = self.cluster.removal(fewer)
            other = self.steps.planned(smaller, targets, self._search.next_plan(_STEP_SHARE), open_to)
            better = self.steps.verdict(smaller, other)
            if better is not None and self._saved(smaller, other) >= 0.9 * self._saved(removal, plan):
                removal, plan, reason = smaller, other, better
        self._take(removal, plan, reason)
        return True

    def _can_grow(self, groups: Sequence[str]) -> bool:
        """Return whether there can be one more node of one of the groups."""
        cluster, limits = self.cluster, self.cluster.limits()
        for name in groups:
            group = cluster.groups[name]
            if cluster.target[name] < group.max_size and not limits_broken(limits, group, 1):
                return True
        return False

    def _less_exchanged(self, removal: NodeRemoval, plan: Plan) -> list[int]:
        """Return the nodes without those that would be exchanged for new ones of their group; none where that is all
        or none of them."""
        opened = Counter({each.node_group: each.delta for each in plan.increments})
        kept = []
        for number in reversed(self._in_order(removal.nodes)):
            if opened[self.cluster.group_of[number]] > 0:
                opened[self.cluster.group_of[number]] -= 1
            else:
                kept.append(number)
        return kept if len(kept) < len(removal.nodes) else []

    def _saved(self, removal: NodeRemoval, plan: Plan) -> int:
        return -sum(self.steps.change_micros(removal, plan).values())

    def _surplus(self) -> Floats:
        """Return, per node, what it costs more than its pods are worth, in millionths of $/h."""
        count = len(self.problem.nodes)
        surplus: Floats = self.cluster.micros_per_node - self.cluster.worth[:count]
        return surplus

    def _candidates(self, *, price_order: bool = False) -> list[int]:
        """Return nodes that may go, in the order in which they are tried."""
        nodes = [n for n in range(len(self.problem.nodes)) if self.cluster.may_go(n)]
        if price_order:
            return sorted(nodes, key=lambda n: (self.cluster.weight_of(n), -self.cluster.micros_of(n), n))
        return self._in_order(nodes)

    def _in_order(self, nodes: Iterable[int]) -> list[int]:
        """Sort nodes: the lowest weights first, then those with the largest surplus for each pod that moves."""
        per_pod = (self._surplus() / (1 + self.cluster.evictions[: len(self.problem.nodes)])).tolist()
        return sorted(nodes, key=lambda n: (self.cluster.weight_of(n), -per_pod[n], n))

    def _targets(self, candidates: Sequence[int]) -> list[int]:
        """Return the nodes that take pods: those first that stay in any case, then the last of the candidates."""
        rank = {number: place for place, number in enumerate(candidates)}
        takes: list[int] = np.flatnonzero(self.cluster.takes).tolist()
        return sorted(takes, key=lambda n: (n in rank, -rank.get(n, 0), n))

    def _cost(self) -> Counter[int]:
        """Return, per weight, what its nodes cost, in millionths of $/h."""
        cost: Counter[int] = Counter()
        for number in np.flatnonzero(self.cluster.alive).tolist():
            cost[self.cluster.weight_of(number)] += self.cluster.micros_of(number)
        return cost

    def _usd(self) -> float:
        groups, cluster = self.cluster.groups, self.cluster
        alive = np.flatnonzero(cluster.alive).tolist()
        return dollars(groups[cluster.group_of[n]].price_usd_per_hour for n in alive if cluster.group_of[n])

    def _result(self) -> ConsolidationPlan:
        reached = self._cost()
        found = least(self.cluster, self.packing, reached, self.budget.next_plan(_BOUND_SHARE))
        free = found
        if self.free_packing is not None:
            free = least(self.cluster, self.free_packing, reached, self.budget.next_plan(_BOUND_SHARE))
        after = self._usd()
        lowest = min(after, found.total / MICROS)
        tiers = tuple(
            TierCost(weight, reached[weight] / MICROS, min(reached[weight], found.by_weight.get(weight, 0)) / MICROS)
            for weight in sorted({group.weight for group in self.cluster.groups.values()}, reverse=True)
        )
        return ConsolidationPlan(
            tuple(self.found),
            self.before,
            after,
            lowest,
            min(lowest, free.total / MICROS),
            self._why_stays(),
            self.budget.elapsed_seconds(),
            tiers,
        )

    def _why_stays(self) -> Mapping[str, str]:
        must_go = {name: why for name, why in self.stays.items() if self.cluster.alive[self.cluster.index[name]]}
        return {**dict(self._reasons(self._surplus())), **must_go}

    def _reasons(self, surplus: Floats) -> Iterator[tuple[str, str]]:
        cluster = self.cluster
        for number, standing in enumerate(self.problem.nodes):
            if not cluster.alive[number] or not standing.node_group:
                continue
            if surplus[number] <= _LEAST_SURPLUS * cluster.micros_of(number):
                continue
            yield standing.node.name, self._why_kept(number) or self._why_not_worth_it(number, float(surplus[number]))

    def _why_kept(self, number: int) -> str:
        standing, cluster = self.problem.nodes[number], self.cluster
        if standing.kept:
            return standing.kept
        frozen = sorted(g for k in cluster.pods[number] if (g := cluster.classes[k].gang) in cluster.frozen and g)
        return f"its pods are of gang {frozen[0]} with pods on a node that stays" if frozen else ""

    def _why_not_worth_it(self, number: int, surplus: float) -> str:
        cluster = self.cluster
        group = cluster.group_of[number]
        if cluster.target[group] <= cluster.least[group]:
            return f"node group {group} is at its minimum size"
        evicted = cluster.evicted(cluster.pods[number])
        if surplus < self.steps.least_micros_per_pod * evicted:
            least = self.problem.least_saving_usd_per_hour_per_pod
            return f"saves less than {least:g} $/h per pod"
        return "no cheaper place for its pods"
