"""A plan and its explanation for people: what is opened, what that costs and what is proven of it; a line for each set
of pods without a place; three sentences for each node group. All that is known is printed with `verbose`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console

from cagrpc.offline.planning import Planned
from cagrpc.tables import paragraph, table
from solver import Explanation, PodClass
from solver.explanation.choices import difference_words, limited_words
from solver.explanation.model import Alternative, Difference, WhyGroup
from solver.explanation.waiting import core_of, ways_of
from solver.model import NodeGroup
from solver.model.capacity import without_room
from solver.model.money import DUST_USD_PER_HOUR, hourly, more_or_less
from solver.model.plan import Status, at_least_words, proof_words
from solver.model.quantities import format_quantities, format_quantity, pluralize

_MOST_SETS = 10
_MOST_NAMED = 2
_INDENT = "  "


def print_plan(planned: Planned, out: Console, *, verbose: bool = False) -> None:
    """Print new nodes, pods without a place, and what the plan costs."""
    plan = planned.plan
    if plan.increments:
        out.print(_increments(planned, verbose=verbose))
    if verbose and len(plan.certificate.tiers) > 1:
        out.print(_tiers(planned))
    _print_sets(planned, out, "Pods without a place", _unplaced(planned, verbose=verbose), verbose=verbose)
    _print_sets(planned, out, "Pods with a place against their preferences", _relaxed(planned), verbose=verbose)
    risks = ((each.pod_class, each.count, each.reason) for each in plan.may_get_stuck)
    _print_sets(planned, out, "Pods that may get stuck without a node", risks, verbose=verbose)
    if planned.unless_nominated:
        _say(out, f"warning: {_unless_nominated(planned)}")
    wanted, opened = sum(each.count for each in plan.pod_classes), sum(each.delta for each in plan.increments)
    unplaced = sum(each.count for each in plan.unplaced)
    existing = sum(sum(each.pods.values()) for each in plan.existing)
    if not wanted:
        out.print("no pending pods: there is nothing to plan")
        return
    out.print(
        f"{wanted - unplaced:,} of {pluralize(wanted, 'pod')} placed ({existing:,} on existing nodes),"
        f" {pluralize(opened, 'new node')}; planned in {plan.elapsed_seconds:.2f} s"
    )
    if planned.limited is not None:
        _say(out, limited_words(planned.limited))
    for each in daemons_without_room(planned):
        _say(out, f"warning: {each}")
    _say(out, sentence_of_cost(planned))


def _unless_nominated(planned: Planned) -> str:
    which = ", ".join(planned.plan.pod_classes[index].example for index in [*planned.unless_nominated][:_MOST_NAMED])
    pods = pluralize(sum(planned.unless_nominated.values()), "pod")
    return (
        f"{pods} ({which}) may get stuck without a node where nothing nominates pods to their nodes, as `drive: plan`"
        " does: the scheduler binds each to a node of its own choice"
    )


def print_explanation(planned: Planned, explanation: Explanation, out: Console, *, verbose: bool = False) -> None:
    """Print why pods are without a place and what would serve them, and why these node groups."""
    if verbose:
        out.print(_placements(planned))
    if explanation.unserved:
        out.print("What is not served", style="bold")
    for why in explanation.unserved:
        what = f"gang {why.name}" if why.gang else f"pods like {why.name}"
        fit = f", of which {why.fit} would fit" if why.gang else ""
        _say(out, f"{why.unserved} of {why.pods} {what}{fit}: {'; '.join(core_of(why))}", _INDENT)
        ways = ways_of(why)
        shown = ways if verbose else ways[:_MOST_NAMED]
        more = f"; or {len(ways) - len(shown)} other ways" if len(shown) < len(ways) else ""
        _say(out, f"What would serve them: {'; or '.join(shown)}{more}", _INDENT * 2)
    if explanation.claims_left_out:
        left = pluralize(explanation.claims_left_out, "more set of pods", "more sets of pods")
        out.print(f"{left} not explained: a longer --budget may do")
    if explanation.chosen:
        out.print("Why these node groups", style="bold")
    for chosen in explanation.chosen:
        _print_chosen(planned, chosen, out, verbose=verbose)
    if explanation.chosen_left_out:
        left = pluralize(explanation.chosen_left_out, "more node group")
        out.print(f"{left} not explained: a longer --budget may do")
    for limited in explanation.limited if verbose else explanation.limited[:1]:
        _say(out, limited_words(limited))
    _say(out, sentence_of_cost(planned))


def sentence_of_cost(planned: Planned) -> str:
    """Describe the certificate in a sentence or two."""
    plan, certificate = planned.plan, planned.plan.certificate
    unplaced = sum(each.count for each in plan.unplaced)
    if certificate.status is Status.INFEASIBLE:
        them = "the pod" if unplaced == 1 else f"any of the {unplaced:,} pods"
        return f"infeasible: it is proven that no plan places {them}"
    costs = f"{certificate.status.value}: new nodes cost {hourly(certificate.cost_usd_per_hour)}"
    if not plan.increments:
        costs = f"{certificate.status.value}: no new nodes"
    proof = ""
    if certificate.cost_usd_per_hour or certificate.unserved_unproven:
        least = None if certificate.least_usd_per_hour is None else hourly(certificate.least_usd_per_hour)
        proof = "; " + proof_words(
            "no plan that serves as much", least, certificate.gap, unplaced, certificate.unserved_unproven
        )
    return f"{costs}{proof}{_price_of_weights(planned)}"


def _price_of_weights(planned: Planned) -> str:
    price = planned.plan.certificate.price_of_priority_usd_per_hour
    if abs(price) < DUST_USD_PER_HOUR:
        return ""
    return f"; the weights cost {hourly(price)} of that"


def daemons_without_room(planned: Planned) -> Iterator[str]:
    """Yield what DaemonSets will not run on nodes that the plan opens, as these have no room for their pods."""
    found: dict[str, list[str]] = {}
    for increment in planned.plan.increments:
        group = planned.groups[increment.node_group]
        for spec in without_room(group, planned.problem.daemon_sets):
            asked = ", ".join(f"{name} {format_quantity(name, amount)}" for name, amount in spec.requests)
            found.setdefault(asked, []).append(group.id)
    for asked, groups in found.items():
        named = f"{groups[0]} and {pluralize(len(groups) - 1, 'other node group')}" if len(groups) > 1 else groups[0]
        yield f"new nodes of {named} have no room for a DaemonSet's pod that requests {asked}, and run without it"


def _say(out: Console, text: str, indent: str = "") -> None:
    """Print a paragraph; what it begins with stands out at the left."""
    out.print(paragraph(text, out.width, indent, f"{indent}{_INDENT}"))


def _increments(planned: Planned, *, verbose: bool) -> Any:
    columns = ("weight", "nodes", "cost")
    beside = ("provisioner", "instance type", "zone") if verbose else ()
    result = table("New nodes", "node group", *beside, *columns, right=columns)
    for increment in planned.plan.increments:
        group = planned.groups[increment.node_group]
        named = (group.provisioner, group.instance_type, group.zone) if verbose else ()
        cost = hourly(increment.delta * group.price_usd_per_hour)
        result.add_row(
            _shape(group) if not verbose else group.id, *named, str(group.weight), str(increment.delta), cost
        )
    return result


def _shape(group: NodeGroup) -> str:
    """Return a node group's id, with the instance type where that is no part of it."""
    known = not group.instance_type or group.instance_type in group.id
    return group.id if known else f"{group.id} ({group.instance_type})"


def _tiers(planned: Planned) -> Any:
    columns = ("weight", "cost", "at least")
    result = table("Cost by tier", *columns, right=columns)
    for tier in planned.plan.certificate.tiers:
        result.add_row(str(tier.weight), hourly(tier.cost_usd_per_hour), at_least_words(tier.least_usd_per_hour))
    return result


_Set = tuple[int, int, str]
"""A class of pods, how many of them, and what is said of them."""


def _unplaced(planned: Planned, *, verbose: bool) -> Iterator[_Set]:
    for each in planned.plan.unplaced:
        causes = each.reasons if verbose else each.reasons[:_MOST_NAMED]
        rest = len(each.reasons) - len(causes)
        yield each.pod_class, each.count, "; ".join(causes) + (f"; and {pluralize(rest, 'more cause')}" if rest else "")


def _relaxed(planned: Planned) -> Iterator[_Set]:
    for each in planned.plan.relaxed:
        why = (f"because {each.reason}",) if each.reason else ()
        yield each.pod_class, each.count, "; ".join(("given up: " + ", ".join(each.preferences), *why))


def _print_sets(planned: Planned, out: Console, title: str, sets: Iterable[_Set], *, verbose: bool) -> None:
    """Print a line for each set of pods, those of most pods first."""
    classes = {each.index: each for each in planned.plan.pod_classes}
    found = sorted(sets, key=lambda each: -each[1])
    if not found:
        return
    out.print(title, style="bold")
    shown = found if verbose else found[:_MOST_SETS]
    for index, count, words in shown:
        _say(out, f"{_pods(classes[index], count)}: {words}", _INDENT)
    rest = found[len(shown) :]
    if rest:
        pods = pluralize(sum(each[1] for each in rest), "pod")
        _say(out, f"{pods} of {pluralize(len(rest), 'more kind')}: --verbose shows them", _INDENT)


def _pods(pod_class: PodClass, count: int) -> str:
    requests = ", ".join(f"{name} {quantity}" for name, quantity in format_quantities(pod_class.spec.requests).items())
    return f"{pluralize(count, 'pod')} like {pod_class.example}" + (f" ({requests})" if requests else "")


def placements(planned: Planned) -> list[dict[str, Any]]:
    """Return for each class where its pods are, and why others are unplaced."""
    plan = planned.plan
    unplaced = {each.pod_class: each for each in plan.unplaced}
    classes = []
    for each in plan.pod_classes:
        on_new: dict[str, int] = {}
        for nodes in plan.nodes:
            if each.index in nodes.pods:
                on_new[nodes.node_group] = on_new.get(nodes.node_group, 0) + nodes.count * nodes.pods[each.index]
        missing = unplaced.get(each.index)
        classes.append(
            {
                "id": each.index,
                "example": each.example,
                "count": each.count,
                "requests": format_quantities(each.spec.requests),
                "new_nodes": on_new,
                "existing": {node.node: node.pods[each.index] for node in plan.existing if each.index in node.pods},
                "unplaced": missing.count if missing else 0,
                "reasons": list(missing.reasons) if missing else [],
            }
        )
    return classes


def _placements(planned: Planned) -> Any:
    result = table("Where pods go", "pods", "like", "requests", "where", "why not", right=("pods",))
    for each in placements(planned):
        where = [f"{pods} on new nodes of {group_id}" for group_id, pods in each["new_nodes"].items()]
        if each["existing"]:
            where.append(f"{sum(each['existing'].values())} on {pluralize(len(each['existing']), 'existing node')}")
        if each["unplaced"]:
            where.append(f"{each['unplaced']} nowhere")
        requests = ", ".join(f"{name} {quantity}" for name, quantity in each["requests"].items())
        result.add_row(str(each["count"]), each["example"], requests, "\n".join(where), "\n".join(each["reasons"]))
    return result


def _print_chosen(planned: Planned, why: WhyGroup, out: Console, *, verbose: bool) -> None:
    nodes, cost = pluralize(why.nodes, "node"), hourly(why.cost_usd_per_hour)
    group = _shape(planned.groups[why.node_group])
    _say(out, f"{group}: {nodes}, {cost}, weight {why.weight}", _INDENT)
    out.print(paragraph(" ".join(_sentences(planned, why)), out.width, _INDENT * 2))
    if verbose:
        _say(out, f"Without this group {difference_words(why.without)}.", _INDENT * 2)
        for other in why.others:
            _say(out, f"{_alternative_words(other)}.", _INDENT * 2)


def _sentences(planned: Planned, why: WhyGroup) -> Iterator[str]:
    """Yield why a group is opened, the nearest alternative, and what that would change: the best plan without the
    group is meant. What is within the gap of the plan is no difference."""
    pods, without, certificate = _on(planned, why.node_group), why.without, planned.plan.certificate
    least, instead = certificate.least_usd_per_hour, _instead(without)
    if without.unserved > 0 or without.placeholders > 0:
        left = pluralize(without.unserved or without.placeholders, "pod" if without.unserved else "placeholder")
        yield f"It serves {pods}: without it {left} more would have no place."
        yield f"The nearest alternative is {instead}." if instead else "There is no alternative."
        return
    gap = 0.0 if least is None else max(0.0, certificate.cost_usd_per_hour - least)
    cost, matters = without.cost_usd_per_hour, abs(without.cost_usd_per_hour) > gap + DUST_USD_PER_HOUR
    decides = next((weight for weight, cost in without.tiers if abs(cost) > DUST_USD_PER_HOUR), why.weight)
    if decides != why.weight and not (matters and cost > 0):
        yield f"It serves {pods}: weight {why.weight} comes before weight {decides}."
    elif matters:
        yield f"It serves {pods} at the least cost."
    else:
        yield f"It serves {pods} at a cost that other node groups match."
    yield f"The nearest alternative is {instead or 'a plan with fewer nodes'}."
    so_far = "" if without.proven else ", as far as was found in the time"
    if matters:
        yield f"With that, the plan would cost {more_or_less(cost)}{so_far}."
    elif gap > DUST_USD_PER_HOUR:
        yield f"What that would cost differs by less than the gap of the plan, {hourly(gap)}."
    else:
        yield f"With that, the plan would cost the same{so_far}."


def _on(planned: Planned, node_group: str) -> str:
    """Return the pods on new nodes of a group, in words."""
    classes = {each.index: each for each in planned.plan.pod_classes}
    pods: Counter[int] = Counter()
    for nodes in planned.plan.nodes:
        if nodes.node_group == node_group:
            pods.update({index: nodes.count * count for index, count in nodes.pods.items()})
    if not pods:
        return "its minimum size"
    (index, _), *others = pods.most_common()
    return f"{pluralize(pods.total(), 'pod')}{', most' if others else ''} like {classes[index].example}"


def _instead(without: Difference) -> str:
    """Return the nodes that come in another plan, in words; empty where none do."""
    more = sorted((each for each in without.increments if each.delta > 0), key=lambda each: -each.delta)
    named = [f"{pluralize(each.delta, 'more node')} of {each.node_group}" for each in more[:_MOST_NAMED]]
    rest = len(more) - len(named)
    return " and ".join(named) + (f" and of {pluralize(rest, 'other node group')}" if rest else "")


def _alternative_words(other: Alternative) -> str:
    words = "limits allow none" if other.forced is None else f"with one of them {difference_words(other.forced)}"
    return f"{other.node_group} (weight {other.weight}, {hourly(other.price_usd_per_hour)} each): {words}"
