"""The report in words: what each step compares, and what to change. Both forms of the report have the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cagrpc.report.model import (
    ArchitectureChange,
    Bound,
    Cause,
    Consolidation,
    DisruptedNodes,
    GroupDelta,
    LeftOut,
    PodThatStays,
    Report,
    Saving,
)
from solver.model import NODES
from solver.model.money import DUST_USD_PER_HOUR, hourly, monthly
from solver.model.plan import proof_words
from solver.model.quantities import format_quantity, pluralize

_MOST_GROUPS = 4

HOW = {
    Cause.EMPTY: "Nodes that run only pods that come with every node, at their price.",
    Cause.STRANDED: (
        "The same pods are planned on the nodes that stand, no others and no more of them, with all rules but weights"
        " and limits; the nodes that this plan does not need."
    ),
    Cause.SHAPES: (
        "The same pods are planned on any node group that may be used, under all rules; negative where weights"
        " or limits ask for more expensive nodes than those that stand."
    ),
    Cause.WEIGHTS: "Planned again with all provisioners of one weight.",
    Cause.LIMITS: "And without maximum sizes and limits (capacity that is reserved stays bounded).",
    Cause.RULES: "And without topology spread, affinity and anti-affinity between pods, preferred ones too.",
    Cause.VOLUMES: "And with volumes that can be anywhere, any number of them on a node.",
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


def headline(report: Report) -> str:
    """Return what can be had."""
    found = report.consolidation
    if found is None:
        if report.present_usd_per_hour is None:
            placed = report.pods - report.planned.unplaced
            of = f"{placed:,} of " if report.planned.unplaced else ""
            return f"{of}{pluralize(report.pods, 'pod')} could run for {monthly(report.planned.usd_per_hour)}"
        return "Which pods run where is not known, so no saving is sure"
    saved, steps = found.saving_usd_per_hour, pluralize(len(found.steps), "step")
    if not found.steps:
        return "Nothing can be saved by moving pods now"
    if saved >= DUST_USD_PER_HOUR:
        return f"{monthly(saved)} can be saved in {steps}"
    more = f"{monthly(-saved)} more" if saved <= -DUST_USD_PER_HOUR else "nothing more"
    return f"{steps} can be taken, and {'cost' if len(found.steps) > 1 else 'costs'} {more}"


def summary(report: Report) -> str:
    """Return in a few sentences what the nodes cost, what the steps save, and the least that is proven."""
    found, present = report.consolidation, report.present_usd_per_hour
    if found is None or present is None:
        return anew(report)
    of = "" if found.nodes_before == report.nodes else f" of {report.nodes:,}"
    costs = "costs" if report.nodes == 1 else "cost"
    nodes = f"{pluralize(found.nodes_before, 'node')}{of} {costs} {hourly(present)} ({monthly(present)})."
    return f"{nodes} {way(found)}"


def way(found: Consolidation) -> str:
    """Return consolidation in two sentences: what its steps save, and the least that is proven."""
    least, all_moved = hourly(found.least_usd_per_hour), hourly(found.least_if_all_moved_usd_per_hour)
    bound = f"It is proven that moving pods leaves no less than {least}"
    if all_moved != least:
        bound += f", and no less than {all_moved} even if every pod could be moved"
    if not found.steps:
        return f"No step is worth taking. {bound}."
    saved, one = found.saving_usd_per_hour, len(found.steps) == 1
    verb = "save" if saved >= 0 else "cost"
    words = f"{hourly(saved)} ({monthly(saved)})" if saved >= 0 else f"{hourly(-saved)} more"
    move, leave = ("moves", "leaves") if one else ("move", "leave")
    moved = pluralize(found.pods_moved, "pod") if found.pods_moved else "no pod"
    return (
        f"{pluralize(len(found.steps), 'step')} {verb}{'s' if one else ''} {words}, {move} {moved} and {leave}"
        f" {pluralize(found.nodes_after, 'node')} at {hourly(found.cost_after_usd_per_hour)}. {bound}."
    )


def anew(report: Report) -> str:
    """Return what the pods would cost if none of them ran yet."""
    plan = report.planned
    least = None if plan.lower_bound_usd_per_hour is None else hourly(plan.lower_bound_usd_per_hour)
    proof = proof_words("no plan under the same rules", least, plan.gap, plan.unplaced, plan.unserved_unproven)
    found = f"the best plan found costs {hourly(plan.usd_per_hour)}, and {proof}"
    if report.present_usd_per_hour is None:
        return f"{pluralize(report.pods, 'pod')}: {found}."
    return f"{pluralize(report.pods, 'pod')} on nodes that cost {hourly(report.present_usd_per_hour)}: {found}."


def why_not(found: Consolidation) -> Iterator[str]:
    """Yield why the steps save no more: what keeps nodes, and what is neither found nor ruled out."""
    for each in found.stays:
        stay = "stays" if each.nodes == 1 else "stay"
        example = f"; for example {stays_words(each.examples[0])}" if each.examples else ""
        cost = f"{hourly(each.usd_per_hour)}, {hourly(each.unused_usd_per_hour)} unused"
        yield f"{pluralize(each.nodes, 'node')} ({cost}) {stay}: {each.because.value}{example}"
    between = found.cost_after_usd_per_hour - found.least_usd_per_hour
    if between >= DUST_USD_PER_HOUR:
        yield f"no step was found for the {hourly(between)} that is left above the proven least, and none is ruled out"


def stays_words(example: PodThatStays) -> str:
    """Return a pod that stays, its node, and the PodDisruptionBudgets that keep it."""
    pod = f"{example.namespace}/{example.name} on {example.node}" if example.name.text else str(example.node)
    return pod + (f" ({', '.join(map(str, example.budgets))})" if example.budgets else "")


def left_out_words(left_out: LeftOut) -> str:
    """Return which nodes a step leaves as they are, and why."""
    reason = f": {left_out.reason}" if left_out.reason.text else ""
    pods = pluralize(left_out.pods, "pod")
    if not left_out.nodes:
        return f"no plan on these nodes was found for {pods} such as {left_out.example}{reason}"
    stay = "node stays as it is" if left_out.nodes == 1 else "nodes stay as they are"
    have = "has" if left_out.pods == 1 else "have"
    return (
        f"{left_out.nodes:,} {stay}, as {pods} there {have} no place on the other nodes that stand, such as"
        f" {left_out.example}{reason}"
    )


def architecture_words(change: ArchitectureChange) -> str:
    """Return a warning of pods that would run on another architecture."""
    run = "runs" if change.pods == 1 else "run"
    return (
        f"{pluralize(change.pods, 'pod')} that {run} on another architecture now would run on {change.architecture},"
        " though no node selector or affinity of theirs says that they may: check first that their images are built"
        " for it"
    )


def warnings_of(report: Report) -> Iterator[str]:
    """Yield what to know before a step is taken, or a plan believed."""
    steps = report.consolidation.architectures if report.consolidation else ()
    yield from (f"in the steps, {architecture_words(each)}" for each in steps)
    yield from (f"placed anew, {architecture_words(each)}" for each in report.architectures if each not in steps)
    for each in report.steps:
        if each.left_out is not None:
            yield f'in the part "{each.cause.value}", {left_out_words(each.left_out)}'


def sentence(change: Saving) -> str:
    """Return what to change, and what that saves."""
    return f"{what_to_change(change)} Saves {hourly(change.usd_per_hour)}, {monthly(change.usd_per_hour)}."


def step_sentence(step: DisruptedNodes) -> str:
    """Return what a step of consolidation does, and what that saves."""
    coming, going = (groups_words(each for each in step.deltas if each.nodes * sign > 0) for sign in (1, -1))
    pods = f"{pluralize(step.pods_moved, 'pod')} moved" if step.pods_moved else "no pod moved"
    each_pod, saving = step.saving_usd_per_hour_per_pod, step.saving_usd_per_hour
    share = "" if each_pod is None or saving < 0 else f", {hourly(each_pod)} for each pod"
    words = "costs" if saving < -DUST_USD_PER_HOUR else "saves"
    nodes = f"{coming}, then {going}" if coming else going
    return f"{step.reason.value}: {nodes}; {pods}; {words} {hourly(abs(saving))}{share}."


def what_to_change(change: Saving) -> str:
    """Return what to change."""
    bounds = ", ".join(map(_bound, change.bounds)) or "maximum sizes and limits"
    pools = ", ".join(map(str, change.pools))
    workloads = _of_workloads(change)
    return {
        Cause.EMPTY: (
            f"Remove the {pluralize(change.nodes, 'node')} on which no pods run but DaemonSets':"
            f" {groups_words(change.deltas)}."
        ),
        Cause.STRANDED: (
            f"Drain nodes and move their pods to room that others have: {groups_words(change.deltas)}. The pods of"
            f" {pluralize(change.nodes, 'node')} find room on the rest."
        ),
        Cause.SHAPES: _of_shapes(change),
        Cause.WEIGHTS: f"Give the provisioners {pools} one weight, so that price decides.",
        Cause.LIMITS: f"Raise what the plan has used up: {bounds}.",
        Cause.RULES: f"Relax topology spread, affinity or anti-affinity between pods{workloads}.",
        Cause.VOLUMES: f"Free volumes from their zones or nodes{workloads}.",
        Cause.SELECTORS: (
            f"Let pods run on more nodes, by node selectors, node affinity and taints{workloads}."
            if workloads
            else "Let pods tolerate the taints of nodes with room, which none of them does now."
        ),
    }[change.cause]


def _of_shapes(change: Saving) -> str:
    fewer = [each for each in change.deltas if each.nodes < 0]
    more = [each for each in change.deltas if each.nodes > 0]
    if fewer and more:
        return f"Replace {groups_words(fewer, signed=False)} by {groups_words(more, signed=False)}."
    return f"Use other nodes instead: {groups_words(change.deltas)}."


def _of_workloads(change: Saving) -> str:
    if not change.workloads:
        return ""
    rest = f" and {change.more_workloads} more" if change.more_workloads else ""
    some = ", ".join(f"{each} ({pluralize(each.pods, 'pod')})" for each in change.workloads)
    return f", first of {some}{rest}"


def _bound(bound: Bound) -> str:
    if bound.amount is None:
        return str(bound.of)
    resource = bound.resource.text
    amount = str(bound.amount) if resource == NODES else format_quantity(resource, bound.amount)
    return f"{bound.of} (now {amount} {bound.resource})"


def groups_words(deltas: Iterable[GroupDelta], *, signed: bool = True) -> str:
    """Return nodes by node group, most nodes first."""
    found = sorted(deltas, key=lambda each: -abs(each.nodes))
    words = [f"{each.nodes:+,} {each.group}" if signed else f"{abs(each.nodes):,} {each.group}" for each in found]
    rest = len(words) - _MOST_GROUPS
    return ", ".join(words[:_MOST_GROUPS]) + (f" and {pluralize(rest, 'more node group')}" if rest > 0 else "")
