"""Does everything that a plan claims to serve land? Asked of the simulated kube-scheduler for any choice of new nodes,
under several scenarios, since the real one's order of nodes, of pods and of ties is not known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from solver.budgeting import Meter
from solver.model import Plan, Problem
from solver.realise_fleet import Fleet, Slot, layers_of, waves_of
from solver.reduce import Bools, Ints
from solver.scheduler import Outcome, Profile, Scenario, Scheduler

NOMINAL = Scenario(0)
"""The one that a realised plan tells."""
_SECONDS_PER_PAIR = 1e-8
"""What a simulation is charged under a deterministic budget, per pod and node."""
_PACES = (0, 1, 2, 4, 8)
"""How many pods are tried while one node is let go: 0.2 to 2 were seen with a thousand pods, more with few."""
_MOST_SCENARIOS = 16
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
        """One that was not there before: in turn pods of equal age mixed and class by class, the queue from its head
        and from anywhere, nodes at once and one by one, ages as they are told and less sure."""
        seed = self._next_seed
        self._next_seed += 1
        turns = seed // 2
        return Scenario(seed, turns // 8 % 2, seed % 2 == 1, _PACES[turns // 2 % len(_PACES)], turns % 2 == 1)

    def outcome(self, fleet: Fleet, scenario: Scenario) -> Outcome:
        return self.went_on(fleet, scenario, fleet.bound(len(self.problem.nodes)))

    def went_on(self, fleet: Fleet, scenario: Scenario, held: Ints) -> Outcome:
        """What became of it with these rows (class, node, pods) on their nodes already."""
        groups, waves = fleet.groups(), self.waves(fleet)
        self._meter.charge(_SECONDS_PER_PAIR * float(self.claim.sum()) * (len(self.problem.nodes) + len(groups)))
        return self._scheduler.run(groups, waves, held, scenario)

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

    def layers(self, fleet: Fleet) -> Mapping[int, int]:
        """Of each group of the fleet that is planned."""
        return layers_of(fleet, self.holds, self._waves)

    def lands_at_once(self, fleet: Fleet) -> bool:
        """Whether all that is claimed does, always, with all nodes let go at once; if so, they are from now on."""
        most, self._waves = self._waves, 1
        if self.lands(fleet):
            return True
        self._waves = most
        return False

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
