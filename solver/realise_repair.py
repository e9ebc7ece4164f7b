"""What a plan is repaired with: new nodes for pods that would stay pending, planned like any others, and then whatever
turns out not to be needed taken away again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from solver.budgeting import Meter
from solver.model import Budget, Increment, Limit, Node, NodeGroup, PodSet, Problem, RunningPods
from solver.realise_fleet import Fleet, Slot
from solver.reduce import Ints, obliged
from solver.rehearsal import NOMINAL, Rehearsal, group_numbers
from solver.solve import solve

_PLANNING_SHARE = 0.1
"""Of the time that is left, for planning one repair."""
_PATIENCE = 3
"""Repairs in a row that leave more than half of the pods pending that they were made for, until these are given up."""
_PART = 4
"""Nodes of a slot are taken away in parts of at most a quarter."""


def mend(rehearsal: Rehearsal, fleet: Fleet, meter: Meter) -> Fleet:
    """Adds nodes until everything claimed lands. What no repair makes land, or none within the budget, is given up."""
    number = group_numbers(rehearsal.problem)
    strikes, last, before = 0, (NOMINAL, 0), fleet
    while True:
        missing = rehearsal.first_missing(fleet)
        pods = int(missing.sum())
        if not pods:
            return fleet
        scenario, asked = rehearsal.scenarios[0], last
        if scenario == asked[0] and pods * 2 > asked[1] > 0:
            strikes += 1
        else:
            strikes, before = 0, fleet
        last = scenario, pods
        if meter.left_seconds() <= 0:
            for scenario in rehearsal.scenarios:
                rehearsal.give_up(rehearsal.missing(fleet, scenario))
            return fleet
        increments = repaired_by(rehearsal, fleet, missing, meter) if strikes < _PATIENCE else ()
        if increments:
            fleet = fleet.more(increments, number)
        else:
            rehearsal.give_up(missing)
            strikes, last, fleet = 0, (NOMINAL, 0), before


def repair_budget(meter: Meter, share: float = _PLANNING_SHARE) -> Budget:
    """For planning one repair: a share of the time that is left."""
    left = meter.left_seconds(1.0) * share
    return replace(meter.budget, seconds=left, deterministic_seconds=left if meter.deterministic else None)


def repaired_by(rehearsal: Rehearsal, fleet: Fleet, missing: Ints, meter: Meter) -> tuple[Increment, ...]:
    """What the missing pods need, beside the fleet."""
    budget = repair_budget(meter)
    plan = solve(rest(rehearsal, fleet, missing), budget)
    meter.charge(budget.seconds)
    return plan.increments


def pod_sets(rehearsal: Rehearsal, counts: Ints) -> tuple[PodSet, ...]:
    """So many pods of each class."""
    return tuple(
        PodSet(cls.example, cls.spec, int(counts[cls.index]), cls.priority, 0, cls.gang, cls.placeholder)
        for cls in rehearsal.plan.pod_classes
        if counts[cls.index]
    )


def rest(rehearsal: Rehearsal, fleet: Fleet, missing: Ints) -> Problem:
    """The problem once the fleet is there, of the missing pods only. Nodes are full; they are told for their pods'
    sake, where pods ask for the company of others."""
    problem, classes = rehearsal.problem, rehearsal.plan.pod_classes
    deltas = fleet.deltas()
    groups = tuple(
        replace(group, target_size=group.target_size + deltas[number])
        for number, group in enumerate(problem.node_groups)
    )
    sets = pod_sets(rehearsal, missing)
    limits = tuple(_used(limit, problem, deltas) for limit in problem.limits)
    social = any(
        spec.pod_affinity or spec.pod_anti_affinity or spec.topology_spread or spec.preferred_pods
        for spec in (cls.spec for cls in classes)
    )
    nodes = tuple(_full(rehearsal, fleet)) if social else ()
    return replace(problem, pod_sets=sets, node_groups=groups, nodes=nodes, limits=limits, previous=None)


def _used(limit: Limit, problem: Problem, deltas: Mapping[int, int]) -> Limit:
    used = Counter(limit.used)
    for number, count in deltas.items():
        group = problem.node_groups[number]
        if limit.node_groups is None or group.id in limit.node_groups:
            used.update({name: amount * count for name, amount in group.counted_capacity.items()})
    return replace(limit, used=dict(used))


def _full(rehearsal: Rehearsal, fleet: Fleet) -> Iterator[Node]:
    problem, classes = rehearsal.problem, rehearsal.plan.pod_classes
    held = rehearsal.outcome(fleet, NOMINAL).pods()
    for number, node in enumerate(problem.nodes):
        pods = tuple(RunningPods(classes[who].spec, count) for who, count in held.get(number, {}).items())
        yield replace(node, free={}, running=(*node.running, *pods))
    for number, group in enumerate(fleet.groups().tolist(), len(problem.nodes)):
        of = problem.node_groups[group]
        pods = tuple(RunningPods(classes[who].spec, count) for who, count in held.get(number, {}).items())
        yield Node(f"new/{number}", {}, of.labels, of.taints, pods)  # no name of a node has a slash


def trim(rehearsal: Rehearsal, fleet: Fleet, has_time: Callable[[], bool]) -> Fleet:
    """Takes nodes away while all that is claimed still lands: idle ones, then of the lowest tier first and the dearest
    first."""
    if has_time():
        idle = rehearsal.idle(fleet)
        smaller = fleet
        for slot, count in idle.items():
            smaller = smaller.changed(slot, -min(count, _spare(rehearsal, smaller, slot)))
        if rehearsal.lands(smaller):
            fleet = smaller
    groups = rehearsal.problem.node_groups
    for slot in sorted(fleet.nodes, key=lambda s: _worth(groups[s.group], s)):
        step = max(1, fleet.nodes[slot] // _PART)
        while step and has_time():
            step = min(step, _spare(rehearsal, fleet, slot))
            smaller = fleet.changed(slot, -step)
            if step and rehearsal.lands(smaller):
                fleet = smaller
            else:
                step //= 2
    return fleet


def _worth(group: NodeGroup, slot: Slot) -> tuple[int, float, Slot]:
    return group.weight, -group.price_usd_per_hour, slot


def _spare(rehearsal: Rehearsal, fleet: Fleet, slot: Slot) -> int:
    """Nodes of the slot that may go: none with bound pods, none that their group's minimum size asks for."""
    if slot.bound:
        return 0
    group = rehearsal.problem.node_groups[slot.group]
    return max(0, min(fleet.nodes.get(slot, 0), fleet.deltas()[slot.group] - obliged(group)))
