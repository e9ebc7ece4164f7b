"""The report in words: what each step compares, and what to change. Both forms of the report have the same."""

from __future__ import annotations

from collections.abc import Iterable

from cagrpc.report.model import Bound, Cause, Consolidation, DisruptedNodes, GroupDelta, Report, Saving
from solver.model import NODES
from solver.model.money import DUST_USD_PER_HOUR, hourly, monthly
from solver.model.plan import proof_words
from solver.model.quantities import format_quantity

_MOST_GROUPS = 4

HOW = {
    Cause.EMPTY: "Nodes on which nothing runs but what comes with every node, at their price.",
    Cause.STRANDED: (
        "The same pods are planned on the nodes that stand, no others and no more of them, with all rules but weights"
        " and limits; the nodes that this plan does not need."
    ),
    Cause.SHAPES: (
        "The same pods are planned on any node group that may be used, under all rules; less than nothing where weights"
        " or limits ask for dearer nodes than those that stand."
    ),
    Cause.WEIGHTS: "Planned again with all provisioners of one weight.",
    Cause.LIMITS: "And without maximum sizes and limits (capacity that is reserved stays bounded).",
    Cause.RULES: "And without topology spread, affinity and anti-affinity between pods, preferred ones too.",
    Cause.VOLUMES: "And with volumes that can be anywhere, any number on a node.",
    Cause.SELECTORS: (
        "And without node selectors, node affinity and taints; pods keep to operating systems and architectures that"
        " they may use now."
    ),
    Cause.UNPROVEN: (
        "What is left between the last plan and the bound that is proven: a better plan may exist, none below the"
        " bound."
    ),
}
"""How the part of each cause is computed."""


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: "1 node", "12,000 nodes"."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def summary(report: Report) -> str:
    """Return the report in a sentence."""
    plan = report.planned
    least = None if plan.lower_bound_usd_per_hour is None else hourly(plan.lower_bound_usd_per_hour)
    proof = proof_words("no plan under the same rules", least, plan.gap, plan.unplaced, plan.unserved_unproven)
    found = f"the best plan found costs {hourly(plan.usd_per_hour)}, and {proof}"
    if report.present_usd_per_hour is None:
        return f"{counted(report.pods, 'pod')}: {found}."
    saved = report.present_usd_per_hour - plan.usd_per_hour
    share = saved / report.present_usd_per_hour if report.present_usd_per_hour else 0.0
    words = f"{hourly(saved)} ({share:.1%}, {monthly(saved)}) less" if saved > 0 else "no less"
    return (
        f"{counted(report.pods, 'pod')} on nodes that cost {hourly(report.present_usd_per_hour)}: {found}. Packed"
        f" anew, that would be {words}."
    )


def sentence(change: Saving) -> str:
    """Return what to change, and what that saves."""
    return f"{_what(change)} Saves {hourly(change.usd_per_hour)}, {monthly(change.usd_per_hour)}."


def way(found: Consolidation) -> str:
    """Return consolidation in a sentence or two."""
    least, all_moved = found.least_usd_per_hour, found.least_if_all_moved_usd_per_hour
    bound = f"Moving pods that may be moved leaves no less than {hourly(least)}"
    bound += f", and {hourly(all_moved)} if all could be moved; both are proven."
    if not found.steps:
        return f"No step is worth taking: the nodes cost {hourly(found.cost_before_usd_per_hour)}. {bound}"
    saved = found.cost_before_usd_per_hour - found.cost_after_usd_per_hour
    verb = "save" if saved >= 0 else "cost"
    verb = f"{verb}s" if len(found.steps) == 1 else verb
    words = f"{verb} {hourly(saved)}, {monthly(saved)}" if saved >= 0 else f"{verb} {hourly(-saved)} more"
    return (
        f"{counted(len(found.steps), 'step')} {words}: from {hourly(found.cost_before_usd_per_hour)} and"
        f" {counted(found.nodes_before, 'node')} to {hourly(found.cost_after_usd_per_hour)} and"
        f" {counted(found.nodes_after, 'node')}, with {counted(found.pods_moved, 'pod')} evicted. {bound}"
    )


def step_sentence(step: DisruptedNodes) -> str:
    """Return what a step of consolidation does, and what that saves."""
    coming, going = (_groups(each for each in step.deltas if each.nodes * sign > 0) for sign in (1, -1))
    pods = f"{counted(step.pods_moved, 'pod')} moved" if step.pods_moved else "no pod moved"
    each_pod, saving = step.saving_usd_per_hour_per_pod, step.saving_usd_per_hour
    share = "" if each_pod is None or saving < 0 else f", {hourly(each_pod)} for each pod"
    words = "costs" if saving < -DUST_USD_PER_HOUR else "saves"
    nodes = f"{coming}, then {going}" if coming else going
    return f"{step.reason.value}: {nodes}; {pods}; {words} {hourly(abs(saving))}{share}."


def _what(change: Saving) -> str:
    bounds = ", ".join(map(_bound, change.bounds)) or "maximum sizes and limits"
    pools = ", ".join(map(str, change.pools))
    workloads = _of_workloads(change)
    return {
        Cause.EMPTY: (
            f"Remove the {counted(change.nodes, 'node')} on which no pods run but DaemonSets':"
            f" {_groups(change.deltas)}."
        ),
        Cause.STRANDED: (
            f"Drain nodes and move their pods to room that others have: {_groups(change.deltas)}. The pods of"
            f" {counted(change.nodes, 'node')} find room on the rest."
        ),
        Cause.SHAPES: _of_shapes(change),
        Cause.WEIGHTS: f"Give the provisioners {pools} one weight, so that price decides.",
        Cause.LIMITS: f"Raise what the plan has used up: {bounds}.",
        Cause.RULES: f"Relax topology spread, affinity or anti-affinity between pods{workloads}.",
        Cause.VOLUMES: f"Free volumes from their zones or nodes{workloads}.",
        Cause.SELECTORS: f"Let pods run on more nodes, by node selectors, node affinity and taints{workloads}.",
    }[change.cause]


def _of_shapes(change: Saving) -> str:
    fewer = [each for each in change.deltas if each.nodes < 0]
    more = [each for each in change.deltas if each.nodes > 0]
    if fewer and more:
        return f"Replace {_groups(fewer, signed=False)} by {_groups(more, signed=False)}."
    return f"Have other nodes: {_groups(change.deltas)}."


def _of_workloads(change: Saving) -> str:
    if not change.workloads:
        return ""
    rest = f" and {change.more_workloads} more" if change.more_workloads else ""
    some = ", ".join(f"{each} ({counted(each.pods, 'pod')})" for each in change.workloads)
    return f", first of {some}{rest}"


def _bound(bound: Bound) -> str:
    if bound.amount is None:
        return str(bound.of)
    resource = bound.resource.text
    amount = str(bound.amount) if resource == NODES else format_quantity(resource, bound.amount)
    return f"{bound.of} (now {amount} {bound.resource})"


def _groups(deltas: Iterable[GroupDelta], *, signed: bool = True) -> str:
    found = sorted(deltas, key=lambda each: -abs(each.nodes))
    words = [f"{each.nodes:+,} {each.group}" if signed else f"{abs(each.nodes):,} {each.group}" for each in found]
    rest = len(words) - _MOST_GROUPS
    return ", ".join(words[:_MOST_GROUPS]) + (f" and {rest} more node groups" if rest > 0 else "")
