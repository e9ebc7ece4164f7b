"""Does everything that a plan claims to serve land? Asked of the simulated kube-scheduler for any choice of new nodes,
under several scenarios, since the real one's order of nodes, of pods and of ties is not known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from solver.budgeting import Meter
from solver.model import Plan, Problem
from solver.realise_fleet import Fleet, Slot, waves_of
from solver.reduce import Bools, Ints
from solver.scheduler import Outcome, Profile, Scenario, Scheduler

NOMINAL = Scenario(0)
"""The one that a realised plan tells."""
_SECONDS_PER_PAIR = 1e-8
"""What a simulation is charged under a deterministic budget, per pod and node."""
_PACES = (0, 0, 2)
"""How many pods are tried while one node is let go: none or few, since whoever lets go does so in parallel."""
_MOST_SCENARIOS = 8
_ROUNDS = 40
"""Simulations of each scenario that there should be time for."""


class Rehearsal:
    """`claim`: per class how many pods must land; `scenarios` those that they must land under."""

    def __init__(self, problem: Problem, plan: Plan, profile: Profile, waves: int, meter: Meter) -> None:
        self.problem, self.plan = problem, plan
        self._scheduler = Scheduler(problem, plan.pod_classes, profile)
        self._meter, self._waves = meter, waves
        self.claim = np.array([cls.count for cls in plan.pod_classes], dtype=np.int64)
        for left in plan.unplaced:
            self.claim[left.pod_class] -= left.count
        self.scenarios: list[Scenario] = [NOMINAL]
        self._next_seed = 1

    def more_scenarios(self, seconds_each: float) -> None:
        """As many as there is time for, at least two in all."""
        affordable = int(self._meter.left_seconds() / max(1e-9, seconds_each * _ROUNDS))
        while len(self.scenarios) < min(_MOST_SCENARIOS, max(2, affordable)):
            self.scenarios.append(self.fresh())

    def fresh(self) -> Scenario:
        """One that was not there before: in turn pods of equal age mixed and class by class, nodes at once and one by
        one, ages as they are told and less sure."""
        seed = self._next_seed
        self._next_seed += 1
        return Scenario(seed, seed % 8 // 4, seed % 2 == 1, _PACES[seed // 2 % len(_PACES)])

    def outcome(self, fleet: Fleet, scenario: Scenario) -> Outcome:
        standing = len(self.problem.nodes)
        groups, waves = fleet.groups(), self.waves(fleet)
        self._meter.charge(_SECONDS_PER_PAIR * float(self.claim.sum()) * (standing + len(groups)))
        return self._scheduler.run(groups, waves, fleet.bound(standing), scenario)

    def waves(self, fleet: Fleet) -> Ints:
        return waves_of(fleet, self.holds, self._waves)

    @property
    def holds(self) -> Bools:
        return self._scheduler.holds

    def missing(self, fleet: Fleet, scenario: Scenario) -> Ints:
        """Per class the claimed pods that stay pending."""
        missing: Ints = np.maximum(0, self.claim - self.outcome(fleet, scenario).landed)
        return missing

    def first_missing(self, fleet: Fleet) -> Ints:
        """What is missing under the first scenario under which anything is, which is asked first the next time; zeros
        where all that is claimed always lands."""
        missing = np.zeros_like(self.claim)
        for position, scenario in enumerate(self.scenarios):
            missing = self.missing(fleet, scenario)
            if missing.any():
                self.scenarios.insert(0, self.scenarios.pop(position))
                break
        return missing

    def lands(self, fleet: Fleet) -> bool:
        """Whether all that is claimed does, always."""
        return not self.first_missing(fleet).any()

    def need_fewer_waves(self, fleet: Fleet) -> None:
        """As few waves as everything claimed lands with: each of them takes time."""
        most = self._waves
        for self._waves in range(1, most):
            if self._meter.left_seconds() <= 0:
                break
            if self.lands(fleet):
                return
        self._waves = most

    def idle(self, fleet: Fleet) -> dict[Slot, int]:
        """Per slot how many of its nodes hold nothing, whatever the scenario."""
        first = len(self.problem.nodes)
        ends = np.cumsum([0, *fleet.nodes.values()]) + first
        least = dict(fleet.nodes)
        for scenario in self.scenarios:
            used = np.array(sorted(self.outcome(fleet, scenario).pods()), dtype=np.int64)
            within = np.searchsorted(used, ends)
            for slot, taken in zip(fleet.nodes, np.diff(within).tolist(), strict=True):
                least[slot] = min(least[slot], fleet.nodes[slot] - taken)
        return least

    def at_risk(self, fleet: Fleet, realised: Plan) -> int:
        """Pods that the plan serves and that stay pending in the worst case."""
        served = np.array([cls.count for cls in realised.pod_classes], dtype=np.int64)
        for left in realised.unplaced:
            served[left.pod_class] -= left.count
        landed = (self.outcome(fleet, scenario).landed for scenario in self.scenarios)
        return max((int(np.maximum(0, served - each).sum()) for each in landed), default=0)

    def give_up(self, missing: Ints) -> None:
        """These are not claimed any more, nor are the gangs that they belong to."""
        self.claim = np.maximum(0, self.claim - missing)
        gangs = {cls.gang for cls in self.plan.pod_classes if missing[cls.index]} - {None}
        for cls in self.plan.pod_classes:
            if cls.gang in gangs:
                self.claim[cls.index] = 0


def group_numbers(problem: Problem) -> Mapping[str, int]:
    return {group.id: number for number, group in enumerate(problem.node_groups)}
