"""An exact reference for small problems: one variable per (pod set, preferences given up, node slot), no patterns, no
reductions.

Slow and plain on purpose. It shares nothing with the solver but the model and the eligibility rules; constraints
between pods are in `reference_terms`. Semantics: docs/reference/constraints.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from ortools.sat.python import cp_model

from solver import Plan, Problem
from solver.model import PODS, HostPort, NodeGroup, PodSpec, SharedVolume
from solver.model.eligibility import ports_collide, why_not_eligible
from solver.model.objective import Goal, StageValue
from solver.reduction.reduced import MICROS
from tests.support.solver.device_allocations import add_claims
from tests.support.solver.reference_terms import Slot, add_terms, can_use, keeps_on_node, preferences

_MOST = 2**50
"""Stages are solved together as long as their weights stay below."""


@dataclass(frozen=True)
class _Stage:
    name: str
    terms: tuple[tuple[int, cp_model.IntVar], ...]
    """(coefficient, variable), none negative."""


class _Model:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.model = cp_model.CpModel()
        self.slots = _slots(problem)
        self.opened = [self.model.new_bool_var("") for _ in self.slots]
        self.left = [self.model.new_int_var(0, pods.count, "") for pods in problem.pod_sets]
        self.place: dict[tuple[int, int, int], cp_model.IntVar] = {}
        """(pod set, preferences given up, slot) -> pods."""
        for p, pods in enumerate(problem.pod_sets):
            levels = len(preferences(pods.spec)) + 1
            for s, slot in enumerate(self.slots):
                if (
                    can_use(pods.spec, slot)
                    and why_not_eligible(pods.spec, slot.labels, slot.taints, slot.name) is None
                ):
                    for level in range(levels):
                        if keeps_on_node(pods.spec, level, slot):
                            self.place[p, level, s] = self.model.new_int_var(0, pods.count, "")
            self.model.add(self.left[p] + sum(self.of(p)) == pods.count)
        self._capacity()
        self._ports()
        self._gangs()
        self._sizes_and_limits()
        add_terms(self.model, problem, self.slots, self.place, self.opened)
        if any(pods.spec.claims for pods in problem.pod_sets):
            sets = range(len(problem.pod_sets))
            held = [[self.of(p, s) for p in sets] for s in range(len(self.slots))]
            add_claims(self.model, problem, [slot.devices for slot in self.slots], held)

    def of(self, pod_set: int, slot: int | None = None) -> list[cp_model.IntVar]:
        return [v for (p, _, s), v in self.place.items() if p == pod_set and slot in (None, s)]

    def _capacity(self) -> None:
        for s, slot in enumerate(self.slots):
            here = [(self.problem.pod_sets[p].spec, v) for (p, _, q), v in self.place.items() if q == s]
            attached = self._attached(here, slot)
            for name in {name for spec, _ in here for name, _ in spec.requests} | {PODS}:
                need = [({**dict(spec.requests), PODS: 1}.get(name, 0), v) for spec, v in here]
                shared = [sum(resource == name for resource, _ in spec.shared_volumes) for spec, _ in here]
                alone = sum((n - less) * v for (n, v), less in zip(need, shared, strict=True))
                have = max(0, slot.free.get(name, 0))
                once = sum(there for (resource, _), there in attached.items() if resource == name)
                self.model.add(alone + once <= have * self.opened[s])

    def _attached(
        self, here: Sequence[tuple[PodSpec, cp_model.IntVar]], slot: Slot
    ) -> dict[SharedVolume, cp_model.IntVar]:
        """Per volume that pods share, and that is not on the node already: whether any of them is there."""
        found: dict[SharedVolume, cp_model.IntVar] = {}
        for spec, pods in here:
            for volume in spec.shared_volumes:
                if volume not in slot.volumes:
                    there = found.setdefault(volume, self.model.new_bool_var(""))
                    self.model.add(pods <= _upper(self.model, pods) * there)
        return found

    def _ports(self) -> None:
        takers = [p for p, pods in enumerate(self.problem.pod_sets) if pods.spec.host_ports]
        for s, slot in enumerate(self.slots):
            for p in takers:
                mine = self.problem.pod_sets[p].spec.host_ports
                free = not _collide(mine, slot.ports)
                self.model.add(sum(self.of(p, s)) <= free)
            for p, q in combinations(takers, 2):
                if _collide(self.problem.pod_sets[p].spec.host_ports, self.problem.pod_sets[q].spec.host_ports):
                    self.model.add(sum(self.of(p, s)) + sum(self.of(q, s)) <= 1)

    def _gangs(self) -> None:
        whole: dict[str, cp_model.IntVar] = {}
        for p, pods in enumerate(self.problem.pod_sets):
            if pods.gang is not None:
                whole.setdefault(pods.gang, self.model.new_bool_var(""))
                self.model.add(self.left[p] == pods.count * (1 - whole[pods.gang]))

    def opened_of(self, group: NodeGroup) -> list[cp_model.IntVar]:
        return [self.opened[s] for s, slot in enumerate(self.slots) if slot.group is group]

    def _sizes_and_limits(self) -> None:
        for group in self.problem.node_groups:
            mine = self.opened_of(group)
            self.model.add(sum(mine) >= max(0, min(group.min_size, group.max_size) - group.target_size))
            for first, second in pairwise(mine):
                self.model.add(first >= second)
        for limit in self.problem.limits:
            bounded = [g for g in self.problem.node_groups if limit.node_groups is None or g.id in limit.node_groups]
            for name, most in limit.maxima.items():
                room = max(0, most - limit.used.get(name, 0))
                uses = [g.counted_capacity.get(name, 0) * sum(self.opened_of(g)) for g in bounded]
                self.model.add(sum(uses) <= room)

    def stages(self) -> list[_Stage]:
        claims: dict[int, list[int]] = defaultdict(list)
        slack = []
        for p, pods in enumerate(self.problem.pod_sets):
            if pods.count and pods.placeholder:
                slack.append(p)
            elif pods.count:
                claims[pods.priority].append(p)
        stages = []
        for priority in sorted(claims, reverse=True):
            mine = claims[priority]
            stages.append(_Stage("unserved", tuple((1, self.left[p]) for p in mine)))
            ages = [self.problem.pod_sets[p].waiting_seconds for p in mine]
            stages.append(_Stage("waiting", tuple((age, self.left[p]) for age, p in zip(ages, mine, strict=True))))
        if slack:
            stages.append(_Stage("placeholders", tuple((1, self.left[p]) for p in slack)))
        stages.append(_Stage("preferences", tuple((level, v) for (_, level, _), v in self.place.items())))
        groups = self.problem.node_groups
        for weight in sorted({g.weight for g in groups}):
            priced = [
                (round(g.price_usd_per_hour * MICROS), v)
                for g in groups
                if g.weight == weight
                for v in self.opened_of(g)
            ]
            stages.append(_Stage("cost", tuple(priced)))
        stages.append(_Stage("nodes", tuple((1, v) for g in groups for v in self.opened_of(g))))
        if self.problem.previous is not None:
            stages.append(_Stage("change", tuple((1, v) for v in self._changes())))
        return stages

    def _changes(self) -> list[cp_model.IntVar]:
        assert self.problem.previous is not None
        before = {each.node_group: each.delta for each in self.problem.previous.increments}
        found = []
        for group in self.problem.node_groups:
            mine = self.opened_of(group)
            change = self.model.new_int_var(0, len(mine) + before.get(group.id, 0), "")
            self.model.add_abs_equality(change, sum(mine) - before.get(group.id, 0))
            found.append(change)
        return found


def best_objective(problem: Problem, seconds: float = 60.0) -> tuple[int, ...]:
    """Return the optimal lexicographic objective: unserved and waiting by priority, placeholders (where there are any),
    preferences given up, cost in micros by tier from the lowest, number of nodes, change (with a previous plan)."""
    built = _Model(problem)
    stages = built.stages()
    values: list[int] = []
    while len(values) < len(stages):
        batch, weighted = _together(built.model, stages[len(values) :])
        built.model.minimize(weighted)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_time_in_seconds = seconds
        assert solver.solve(built.model) == cp_model.OPTIMAL, "the reference must be exact"
        for stage in batch:
            values.append(sum(c * solver.value(v) for c, v in stage.terms))
            built.model.add(sum(c * v for c, v in stage.terms) <= values[-1])
    return tuple(values)


def _together(model: cp_model.CpModel, stages: Sequence[_Stage]) -> tuple[list[_Stage], cp_model.LinearExprT]:
    """The next stages, as many as one objective can weigh exactly against each other, and this objective."""
    batch: list[_Stage] = []
    spans: list[tuple[int, int]] = []
    """Per stage: what its coefficients share, and how many values it can take."""
    for stage in stages:
        divisor = math.gcd(*(c for c, _ in stage.terms)) or 1
        most = sum(c // divisor * _upper(model, v) for c, v in stage.terms)
        if batch and math.prod(span for _, span in spans) * (1 + most) > _MOST:
            break
        batch.append(stage)
        spans.append((divisor, 1 + most))
    weight = 1
    parts: list[cp_model.LinearExprT] = []
    for stage, (divisor, span) in zip(reversed(batch), reversed(spans), strict=True):
        parts.extend(weight * (c // divisor) * v for c, v in stage.terms)
        weight *= span
    return batch, sum(parts)


def _upper(model: cp_model.CpModel, variable: cp_model.IntVar) -> int:
    _, upper = model.proto.variables[variable.index].domain
    return int(upper)


def _slots(problem: Problem) -> list[Slot]:
    slots = [
        Slot(
            n.free,
            n.labels,
            n.taints,
            None,
            n.name,
            n.running,
            tuple(p for r in n.running for p in r.spec.host_ports),
            n.devices,
            volumes=n.volumes,
        )
        for n in problem.nodes
    ]
    pods = sum(p.count for p in problem.pod_sets)
    for group in problem.node_groups:
        free = dict(group.allocatable)
        daemons: list[PodSpec] = []
        for daemon in problem.daemon_sets:
            need = {**dict(daemon.requests), PODS: 1}
            fits = all(free.get(name, 0) >= amount for name, amount in need.items())
            if fits and why_not_eligible(daemon, group.labels, group.taints) is None:
                free |= {name: free.get(name, 0) - amount for name, amount in need.items()}
                daemons.append(daemon)
        obliged = max(0, min(group.min_size, group.max_size) - group.target_size)
        room = max(0, min(group.max_size - group.target_size, max(pods, obliged)))
        ports = tuple(port for daemon in daemons for port in daemon.host_ports)
        new = Slot(free, group.labels, group.taints, group, ports=ports, devices=group.devices, daemons=tuple(daemons))
        slots.extend(new for _ in range(room))
    return slots


def _collide(some: Sequence[HostPort], others: Sequence[HostPort]) -> bool:
    return any(ports_collide(one, other) for one in some for other in others)


def as_micros(plan: Plan, problem: Problem) -> tuple[int, ...]:
    """Return a plan's objective in the reference's stages and units: cost in micros; no preferences given up where the
    plan has no stage for them, because nothing can be; without domains that gangs begin, which it knows nothing of."""
    return _in_stages([each.value for each in _known(plan)], problem)


def bounds_as_micros(plan: Plan, problem: Problem) -> tuple[int, ...]:
    """Return the bounds of a plan's objective likewise."""
    return _in_stages([each.lower_bound for each in _known(plan)], problem)


def _known(plan: Plan) -> list[StageValue]:
    return [each for each in plan.objective if each.stage.goal is not Goal.DOMAINS]


def _in_stages(vector: Sequence[float], problem: Problem) -> tuple[int, ...]:
    names = [stage.name for stage in _Model(problem).stages()]
    if len(vector) < len(names):
        first = names.index("preferences")
        vector = (*vector[:first], 0.0, *vector[first:])
    return tuple(round(v * MICROS) if name == "cost" else round(v) for v, name in zip(vector, names, strict=True))
