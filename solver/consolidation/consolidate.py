"""The entry point of consolidation: `consolidate(problem, budget) -> ConsolidationPlan`, its passes from top to bottom.

What must go is replaced, what is empty goes, pods go back to better weights, nodes go whose pods find room on others,
and then nodes are replaced by cheaper ones, those first that cost most for what their pods are worth. Each step is
taken only if it is better by itself: cheaper from the lowest weight up, as plans are compared. So the cost falls with
every step, and no plan is the reverse of another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from solver.consolidation.cluster import Cluster, NodeRemoval, Replacement
from solver.consolidation.eligible import DomainSpread
from solver.consolidation.least import least, repacking, worth_micros
from solver.consolidation.model import (
    ConsolidationPlan,
    ConsolidationProblem,
    ConsolidationStep,
    DisruptionReason,
    validate_consolidation,
)
from solver.consolidation.onto_standing import emptied
from solver.consolidation.replacing import STEP_SHARE, Replacing
from solver.consolidation.steps import StepTrials, Trial
from solver.model import Budget, Plan, TierCost
from solver.model.budget import RunningBudget
from solver.model.money import hourly
from solver.planning.warm_up import while_small
from solver.reduction.objective import dollars
from solver.reduction.reduced import MICROS, Floats

_WORTH_SHARE, _BOUND_SHARE = 0.1, 0.15
"""Of the budget: what pods are worth, one bound."""
_SEARCH_SHARE = 0.8
"""By when steps are found."""
_LEAST_SURPLUS = 0.02
"""Of a node's price: what it costs more than its pods are worth, at least, to be replaced."""


def consolidate(problem: ConsolidationProblem, budget: Budget | None = None) -> ConsolidationPlan:
    """Return steps that replace nodes by cheaper ones, and bounds on what any consolidation could save, within `budget`
    (default: ten seconds).

    Raises `ProblemError` for an invalid problem or budget, naming every fault. The result depends on nothing but the
    arguments where the budget is deterministic. Nodes that cost the same are never exchanged for fewer: that moves pods
    and saves nothing. Taints of `PreferNoSchedule` prevent no move.
    """
    return while_small(lambda granted: _consolidate(problem, granted), budget or Budget(10.0))


def _consolidate(problem: ConsolidationProblem, budget: Budget) -> ConsolidationPlan:
    running = RunningBudget(budget)
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
        self._spares = frozenset(number for number, each in enumerate(problem.nodes) if each.spare)
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

    def _take(self, trial: Trial) -> None:
        names = tuple(self.cluster.nodes[number].name for number in trial.removal.nodes)
        self.found.append(ConsolidationStep(trial.reason, names, trial.plan, round(trial.saved_micros / MICROS, 9)))
        self.cluster.remove(trial.removal, trial.plan)

    def _replace_what_must_go(self) -> None:
        for number, standing in enumerate(self.problem.nodes):
            if standing.must_go is None or not self.cluster.alive[number]:
                continue
            name = standing.node.name
            for removal, spares in self._ways_to_go(number):
                plan = self._planned_to_go(removal, spares)
                if plan.unplaced:
                    example = plan.pod_classes[plan.unplaced[0].pod_class].example
                    reason = next(iter(plan.unplaced[0].reasons), "there is no room")
                    self.stays[name] = f"its pods do not all fit elsewhere: {example}: {reason}"
                elif not self.steps.keeps_minimum_sizes(removal, plan):
                    group = standing.node_group
                    self.stays[name] = f"node group {group} is at its minimum size and cannot grow"
                else:
                    self._take(self.steps.trial(standing.must_go, removal, plan))
                    break
            else:
                self.stays.setdefault(name, self._why_kept(number))

    def _planned_to_go(self, removal: NodeRemoval, spares: Sequence[int]) -> Plan:
        """Plan the pods of nodes that must go; onto spares of their domain alone where some are given."""
        targets = [*spares] if spares else self._targets([])
        return self.steps.planned(removal, targets, self.budget.next_plan(STEP_SHARE), () if spares else None)

    def _ways_to_go(self, number: int) -> Iterator[tuple[NodeRemoval, Sequence[int]]]:
        """Yield what may be taken away where a node must go, the best first, and the spares that its pods are to find
        room on. It goes alone where the pods of its gangs find room in their domains, or with all of these: with its
        domain first, where nodes share their fate."""
        cluster = self.cluster
        standing, asked = self.problem.nodes[number], cluster.domain_keys(number)
        if standing.kept:
            return
        alone = NodeRemoval((number,), {})
        spares = {n for key in asked for n in cluster.sharing(number, key) if cluster.takes[n] and self._is_spare(n)}
        if spares:
            yield alone, sorted(spares)
        whole = [cluster.removal([number])] if cluster.may_go(number) else []
        ways, fate = [alone, *whole], cluster.groups[standing.node_group].shared_fate
        domain = [n for n in cluster.sharing(number, fate) if cluster.may_go(n) or self._is_free_spare(n)]
        if asked and number in domain:
            ways = [cluster.removal(domain), *whole, alone]
        yield from ((each, ()) for place, each in enumerate(ways) if each not in ways[:place])

    def _is_spare(self, number: int) -> bool:
        """Return whether the node is empty still for pods of its domain."""
        return number in self._spares and not self.cluster.pods[number]

    def _is_free_spare(self, number: int) -> bool:
        """Return whether it is one that nothing else keeps."""
        return self._is_spare(number) and not self.problem.nodes[number].kept

    def _remove_empty(self) -> None:
        left, going = Counter(self.cluster.target), []
        for number in self._candidates(price_order=True):
            group = self.cluster.group_of[number]
            if not self.cluster.pods[number] and left[group] > self.cluster.least[group]:
                left[group] -= 1
                going.append(number)
        most = self.problem.most_nodes_per_step
        for start in range(0, len(going), most):
            replacement = Replacement(tuple(sorted(going[start : start + most])))
            self._take(self.steps.sure(DisruptionReason.EMPTY, replacement))

    def _improve_weights(self) -> None:
        """Bring pods to better weights, from the lowest weight up."""
        weights = sorted({group.weight for group in self.cluster.groups.values()})
        for weight in weights[:-1]:
            mine = [n for n in self._candidates() if self.cluster.weight_of(n) == weight]
            better = [group.id for group in self.cluster.groups.values() if group.weight > weight]
            targets = [
                n for n in self._targets([]) if not self.cluster.group_of[n] or self.cluster.weight_of(n) > weight
            ]
            for trial in Replacing(self.steps, self._search, mine, targets, better).trials():
                self._take(trial)

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
        for replacement in found:
            self._take(self.steps.sure(DisruptionReason.UNDERUTILIZED, replacement))
            if self._search.exhausted:
                break

    def _replace(self) -> None:
        surplus, cluster = self.cluster.surplus(), self.cluster
        worst = [
            node
            for node in self._candidates()
            if surplus[node] > _LEAST_SURPLUS * cluster.micros_of(node)
            and surplus[node] >= self.steps.least_micros_per_pod * cluster.evictions[node]
        ]
        for trial in Replacing(self.steps, self._search, worst, self._targets(worst)).trials():
            self._take(trial)

    def _candidates(self, *, price_order: bool = False) -> list[int]:
        """Return nodes that may go, in the order in which they are tried."""
        nodes = [n for n in range(len(self.problem.nodes)) if self.cluster.may_go(n)]
        if price_order:
            return sorted(nodes, key=lambda n: (self.cluster.weight_of(n), -self.cluster.micros_of(n), n))
        return self.steps.in_order(nodes)

    def _targets(self, candidates: Sequence[int]) -> list[int]:
        """Return the nodes that take pods: those first that stay in any case, then the last of the candidates."""
        rank = {number: place for place, number in enumerate(candidates)}
        takes = [number for number in np.flatnonzero(self.cluster.takes).tolist() if number not in self._spares]
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
        return {**dict(self._reasons(self.cluster.surplus())), **must_go}

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
        if standing.kept or standing.spare:
            return standing.kept or "it is a spare of its topology domain"
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
            return f"saves less than {hourly(least)} per pod"
        return "no cheaper place for its pods"
