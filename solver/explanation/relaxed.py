"""First guesses by counting: which constraints keep pods out even where only nodes, pods and totals are counted, and
how few of them would have to go. The planner itself has the last word (`question`).

The model relaxes the question: pods are spread over a group's nodes without regard to which pod is on which. A
constraint holds where its literal does; the literals are CP-SAT's assumptions, and those that it needs for its proof
are the core. What is infeasible here is infeasible in truth, with the same core. Made elastic, with a price on every
constraint that does not hold, the same model finds which ones to give up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from solver.explanation.kinds import KINDS
from solver.explanation.model import KEPT_PODS, Constraint, ConstraintChange
from solver.explanation.pods import REQUEST
from solver.explanation.question import ServiceQuestion
from solver.model import PODS, Labels, PodSet, PodSpec, Resources, Taint
from solver.model.capacity import after_daemons, remaining
from solver.model.eligibility import why_not_eligible
from solver.relaxation.cp_sat import Model, new_solver

_SIZE = 20_000
"""Pod sets times places, up to which the model is worth its time."""
_SECONDS = 0.2
"""Deterministic ones."""


def relaxed_core(question: ServiceQuestion, constraints: Sequence[Constraint]) -> frozenset[Constraint] | None:
    """Return constraints that keep the pods out together; None where counting does not decide it, or takes too long."""
    counting = _counting(question, constraints)
    return counting.core() if counting else None


def fewest_given_up(question: ServiceQuestion, changes: Sequence[ConstraintChange]) -> frozenset[ConstraintChange]:
    """Return as few changes as let the pods in where only totals count; of sizes and limits rather than of pods."""
    counting = _counting(question, changes)
    return counting.elastic() if counting else frozenset()


def _counting(question: ServiceQuestion, constraints: Sequence[Constraint]) -> _Counting | None:
    problem = question.problem
    size = len(problem.pod_sets) * (len(problem.node_groups) + len(problem.nodes))
    return _Counting(question, constraints) if size <= _SIZE else None


@dataclass(frozen=True, slots=True)
class _Place:
    """The nodes of a group, or one existing node."""

    labels: Labels
    taints: tuple[Taint, ...]
    name: str
    free: Resources
    nodes: cp_model.IntVar | int
    group: str = ""


class _Counting:
    def __init__(self, question: ServiceQuestion, constraints: Sequence[Constraint]) -> None:
        self._model = Model()
        self._problem = question.problem
        self._literals = {constraint: self._model.new_bool_var("") for constraint in constraints}
        self._claims = len(question.claim.classes)
        self._changes = [
            [
                c
                for c in constraints
                if isinstance(c, ConstraintChange) and c.pods is not None and c.pods.index == each.index
            ]
            for each in question.claim.classes
        ]
        self._of_subject = {
            (c.kind, c.subject, c.key): c for c in constraints if isinstance(c, ConstraintChange) and c.pods is None
        }
        self._opened = {g.id: self._model.new_int_var(0, self._pods(), "") for g in self._problem.node_groups}
        self._bound_nodes()
        placed: list[list[cp_model.IntVar]] = [[] for _ in self._problem.pod_sets]
        for place in self._places():
            self._fill(place, placed)
        for number, (pods, here) in enumerate(zip(self._problem.pod_sets, placed, strict=True)):
            total = self._model.add(sum(here) == pods.count)
            if number >= self._claims and KEPT_PODS in self._literals:
                total.only_enforce_if(self._literals[KEPT_PODS])

    def core(self) -> frozenset[Constraint] | None:
        by_index = {literal.index: constraint for constraint, literal in self._literals.items()}
        self._model.add_assumptions(list(self._literals.values()))
        solver = self._solver()
        if solver.solve(self._model) != cp_model.INFEASIBLE:
            return None
        return frozenset(by_index[index] for index in solver.sufficient_assumptions_for_infeasibility())

    def elastic(self) -> frozenset[ConstraintChange]:
        prices = {c: 3 if c.pods else 2 for c in self._literals if isinstance(c, ConstraintChange)}
        self._model.minimize(sum(price * (1 - self._literals[change]) for change, price in prices.items()))
        solver = self._solver()
        if solver.solve(self._model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return frozenset()
        return frozenset(change for change in prices if not solver.value(self._literals[change]))

    def _solver(self) -> cp_model.CpSolver:
        solver = new_solver()
        solver.parameters.max_deterministic_time = _SECONDS
        return solver

    def _pods(self) -> int:
        return sum(pods.count for pods in self._problem.pod_sets)

    def _while(self, constraint: Constraint | None, row: cp_model.Constraint) -> None:
        """Enforce the row while the constraint holds; always, where that is none that can be removed."""
        if constraint in self._literals:
            row.only_enforce_if(self._literals[constraint])

    def _bound_nodes(self) -> None:
        for group in self._problem.node_groups:
            room = max(0, group.max_size - group.target_size)
            self._while(
                self._of_subject.get(("max_size", group.id, "")), self._model.add(self._opened[group.id] <= room)
            )
        for limit in self._problem.limits:
            for name, left in remaining(limit).items():
                bounded = [
                    g for g in self._problem.node_groups if limit.node_groups is None or g.id in limit.node_groups
                ]
                use = [g.counted_capacity.get(name, 0) for g in bounded]
                if any(use):
                    divisor = math.gcd(*use)
                    total = cp_model.LinearExpr.weighted_sum(
                        [self._opened[g.id] for g in bounded], [amount // divisor for amount in use]
                    )
                    most = min(left // divisor, sum(use) // divisor * self._pods())
                    self._while(self._of_subject.get(("limit", limit.name, name)), self._model.add(total <= most))

    def _places(self) -> Iterator[_Place]:
        for group in self._problem.node_groups:
            free = after_daemons(group, self._problem.daemon_sets)
            yield _Place(group.labels, group.taints, "", free, self._opened[group.id], group.id)
        for node in self._problem.nodes:
            yield _Place(node.labels, node.taints, node.name, node.free, 1)

    def _fill(self, place: _Place, placed: Sequence[list[cp_model.IntVar]]) -> None:
        """Add the pods on the nodes of one place: which may be there, how many fit a node, what they take together."""
        taken: dict[str, list[tuple[cp_model.IntVar, int]]] = {}
        for number, pods in enumerate(self._problem.pod_sets):
            changes = self._changes[number] if number < self._claims else []
            spec = _changed(pods.spec, [c for c in changes if c.kind != REQUEST.name])
            if why_not_eligible(spec, place.labels, place.taints, place.name) is not None:
                continue
            here = self._model.new_int_var(0, pods.count, "")
            placed[number].append(here)
            for change in changes:
                others = _changed(pods.spec, [c for c in changes if c.kind != REQUEST.name and c != change])
                if change.kind != REQUEST.name and why_not_eligible(others, place.labels, place.taints, place.name):
                    self._while(change, self._model.add(here == 0))
            asked = {c.key: c for c in changes if c.kind == REQUEST.name}
            for name, variable, amount in self._asked(place, pods, here, asked):
                taken.setdefault(name, []).append((variable, amount))
        for name, parts in taken.items():
            divisor = math.gcd(*(amount for _, amount in parts))
            total = cp_model.LinearExpr.weighted_sum([v for v, _ in parts], [amount // divisor for _, amount in parts])
            row = self._model.add(total <= max(0, place.free.get(name, 0)) // divisor * place.nodes)
            self._while(self._per_node(place, name), row)

    def _per_node(self, place: _Place, resource: str) -> ConstraintChange | None:
        return self._of_subject.get(("pods_per_node", place.group, "")) if resource == PODS else None

    def _asked(
        self, place: _Place, pods: PodSet, here: cp_model.IntVar, requests: Mapping[str, ConstraintChange]
    ) -> Iterator[tuple[str, cp_model.IntVar, int]]:
        """Yield, by resource, the pods that request it and the amount. Pods whose request can be removed count only
        while it holds."""
        for name, amount in ((PODS, 1), *pods.spec.requests):
            if not amount:
                continue
            asking, request = here, requests.get(name)
            if request in self._literals:
                asking = self._model.new_int_var(0, pods.count, "")
                self._while(request, self._model.add(asking == here))
            row = self._model.add(asking <= max(0, place.free.get(name, 0)) // amount * place.nodes)
            self._while(self._per_node(place, name), row)
            yield name, asking, amount


def _changed(spec: PodSpec, changes: Sequence[ConstraintChange]) -> PodSpec:
    for change in changes:
        edit = KINDS[change.kind].edit_pods
        spec = spec if edit is None else edit(spec, change)
    return spec
