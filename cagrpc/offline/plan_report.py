"""A plan and its explanation, as JSON, which is an interface and written out field by field, and as tables: where pods
go, why others are not served and what would serve them, and why these node groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from cagrpc.offline.planning import Planned
from cagrpc.tables import table
from solver import Explanation, PodClass
from solver.explanation.choices import difference_json, difference_words, limited_json, limited_words
from solver.explanation.kinds import advice, reason
from solver.explanation.model import Alternative, Constraint, ConstraintChange, WhyGroup
from solver.explanation.waiting import OTHERS, core_of, ways_of
from solver.model import Relaxed
from solver.model.capacity import without_room
from solver.model.money import hourly
from solver.model.plan import at_least_words, proof_words
from solver.model.quantities import format_quantity, pluralize


def as_json(planned: Planned) -> dict[str, Any]:
    """Return the plan as JSON. Costs are US dollars per hour, `gap` is a fraction; what is not proven is null."""
    plan, certificate = planned.plan, planned.plan.certificate
    return {
        "status": certificate.status.value,
        "cost_per_hour": certificate.cost_usd_per_hour,
        "lower_bound": certificate.least_usd_per_hour,
        "gap": certificate.gap,
        "unserved_unproven": certificate.unserved_unproven,
        "elapsed_seconds": plan.elapsed_seconds,
        **({"interrupted": True} if planned.budget.interrupted else {}),
        "price_of_priority": certificate.price_of_priority_usd_per_hour,
        "tiers": [
            {"weight": t.weight, "cost_per_hour": t.cost_usd_per_hour, "lower_bound": t.least_usd_per_hour}
            for t in certificate.tiers
        ],
        "increments": [
            {
                "node_group": increment.node_group,
                "provisioner": group.provisioner,
                "instance_type": group.instance_type,
                "zone": group.zone,
                "weight": group.weight,
                "delta": increment.delta,
            }
            for increment in plan.increments
            for group in (planned.groups[increment.node_group],)
        ],
        "pod_classes": [
            {"id": each.index, "count": each.count, "requests": requests_of(each), "example": each.example}
            for each in plan.pod_classes
        ],
        "nodes": [{"node_group": n.node_group, "count": n.count, "pods": _by_class(n.pods)} for n in plan.nodes],
        "existing": [{"node": n.node, "pods": _by_class(n.pods)} for n in plan.existing],
        "unplaced": [{"class": u.pod_class, "count": u.count, "reasons": list(u.reasons)} for u in plan.unplaced],
        **({"limited": limited_json(planned.limited)} if planned.limited else {}),
        **({"daemons_without_room": waiting} if (waiting := list(daemons_without_room(planned))) else {}),
        **({"relaxed": [_relaxed_json(each) for each in plan.relaxed]} if plan.relaxed else {}),
    }


def _relaxed_json(relaxed: Relaxed) -> dict[str, Any]:
    why = {"reason": relaxed.reason} if relaxed.reason else {}
    return {"class": relaxed.pod_class, "count": relaxed.count, "preferences": list(relaxed.preferences), **why}


def requests_of(pod_class: PodClass) -> dict[str, str]:
    """Return the class's requests as Kubernetes quantities."""
    return {resource: format_quantity(resource, amount) for resource, amount in pod_class.spec.requests}


def _by_class(pods: Mapping[int, int]) -> dict[str, int]:
    return {str(index): count for index, count in sorted(pods.items())}


def print_plan(planned: Planned, out: Console) -> None:
    """Print tables: new nodes, their cost, and unplaced pods."""
    plan, certificate = planned.plan, planned.plan.certificate
    wanted = sum(each.count for each in plan.pod_classes)
    unplaced = sum(each.count for each in plan.unplaced)
    existing = sum(sum(each.pods.values()) for each in plan.existing)
    if plan.increments:
        out.print(_increments(planned))
    if len(certificate.tiers) > 1:
        out.print(_tiers(planned))
    if plan.unplaced:
        without = ((each.pod_class, each.count, each.reasons) for each in plan.unplaced)
        out.print(_of_classes(planned, "Pods without a place", "why", without))
    if plan.relaxed:
        given_up = (
            (each.pod_class, each.count, (*each.preferences, *([f"because {each.reason}"] if each.reason else ())))
            for each in plan.relaxed
        )
        out.print(_of_classes(planned, "Pods with a place against their preferences", "given up", given_up))
    out.print(
        f"{wanted - unplaced} of {pluralize(wanted, 'pod')} placed ({existing} on existing nodes),"
        f" {pluralize(sum(each.delta for each in plan.increments), 'new node')}"
    )
    if planned.limited is not None:
        out.print(limited_words(planned.limited))
    for each in daemons_without_room(planned):
        out.print(f"warning: {each}")
    out.print(sentence_of_cost(planned))


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


def sentence_of_cost(planned: Planned) -> str:
    """Describe the certificate in a sentence."""
    plan, certificate = planned.plan, planned.plan.certificate
    least = None if certificate.least_usd_per_hour is None else hourly(certificate.least_usd_per_hour)
    unplaced = sum(each.count for each in plan.unplaced)
    proof = proof_words("no plan that serves as much", least, certificate.gap, unplaced, certificate.unserved_unproven)
    words = (
        f"{certificate.status.value}: new nodes cost {hourly(certificate.cost_usd_per_hour)}; {proof};"
        f" planned in {plan.elapsed_seconds:.2f} s"
    )
    if certificate.price_of_priority_usd_per_hour:
        words += f"; with all weights equal it would cost {hourly(certificate.price_of_priority_usd_per_hour)} less"
    return words


def _increments(planned: Planned) -> Any:
    columns = ("weight", "nodes", "cost")
    result = table("New nodes", "node group", "provisioner", "instance type", "zone", *columns, right=columns)
    for increment in planned.plan.increments:
        group = planned.groups[increment.node_group]
        cost = hourly(increment.delta * group.price_usd_per_hour)
        words = (group.id, group.provisioner, group.instance_type, group.zone, str(group.weight))
        result.add_row(*words, str(increment.delta), cost)
    return result


def _tiers(planned: Planned) -> Any:
    columns = ("weight", "cost", "at least")
    result = table("Cost by tier", *columns, right=columns)
    for tier in planned.plan.certificate.tiers:
        result.add_row(str(tier.weight), hourly(tier.cost_usd_per_hour), at_least_words(tier.least_usd_per_hour))
    return result


def _of_classes(planned: Planned, title: str, last: str, rows: Iterable[tuple[int, int, Sequence[str]]]) -> Any:
    """Return a table with a row for each class: its number of pods and the messages about them."""
    classes = {each.index: each for each in planned.plan.pod_classes}
    result = table(title, "pods", "like", "requests", last, right=("pods",))
    for index, count, messages in rows:
        requests = ", ".join(f"{name} {quantity}" for name, quantity in requests_of(classes[index]).items())
        result.add_row(str(count), classes[index].example, requests, "\n".join(messages))
    return result


def explanation_as_json(planned: Planned, explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON. Costs are US dollars per hour; amounts are millicores, bytes or pieces;
    differences are the other plan's more."""
    return {
        "classes": placements(planned),
        "unserved": [
            {
                "name": why.name,
                "gang": why.gang,
                "classes": list(why.pod_classes),
                "pods": why.pods,
                "unserved": why.unserved,
                "fit": why.fit,
                "servable": why.servable,
                "proven": why.proven,
                "in_place": why.in_place,
                "core": [_constraint_json(each) for each in why.core],
                "ways": [
                    {"proven": way.proven, "changes": [_change_json(change) for change in way.changes]}
                    for way in why.ways
                ],
                "would_serve": list(ways_of(why)),
            }
            for why in explanation.unserved
        ],
        "unserved_left_out": explanation.claims_left_out,
        "chosen": [
            {
                "node_group": why.node_group,
                "nodes": why.nodes,
                "weight": why.weight,
                "cost_per_hour": why.cost_usd_per_hour,
                "without": difference_json(why.without),
                "others": [
                    {
                        "node_group": other.node_group,
                        "weight": other.weight,
                        "price_per_hour": other.price_usd_per_hour,
                        "forced": None if other.forced is None else difference_json(other.forced),
                    }
                    for other in why.others
                ],
            }
            for why in explanation.chosen
        ],
        "chosen_left_out": explanation.chosen_left_out,
        "limited": [limited_json(why) for why in explanation.limited],
        "price_of_priority": explanation.price_of_priority_usd_per_hour,
        "summary": sentence_of_cost(planned),
        **({"interrupted": True} if planned.budget.interrupted else {}),
    }


def _constraint_json(constraint: Constraint) -> dict[str, Any]:
    if not isinstance(constraint, ConstraintChange):
        return {"kind": "others", "subject": "", "key": "", "amount": None, "class": None, "text": OTHERS}
    return _of_change(constraint, {"amount": constraint.before}, reason(constraint))


def _change_json(change: ConstraintChange) -> dict[str, Any]:
    return _of_change(change, {"from": change.before, "to": change.after}, advice(change))


def _of_change(change: ConstraintChange, amounts: Mapping[str, Any], text: str) -> dict[str, Any]:
    # The class is that of the claim that changes; other pods are identified by their example, the subject.
    pod_class = change.pods.index if change.pods is not None and change.pods.index >= 0 else None
    names = {"kind": change.kind, "subject": change.subject, "key": change.key}
    return {**names, **amounts, "class": pod_class, "text": text}


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
                "requests": requests_of(each),
                "new_nodes": on_new,
                "existing": {node.node: node.pods[each.index] for node in plan.existing if each.index in node.pods},
                "unplaced": missing.count if missing else 0,
                "reasons": list(missing.reasons) if missing else [],
            }
        )
    return classes


def print_explanation(planned: Planned, explanation: Explanation, out: Console) -> None:
    """Print tables: where pods go, why others are unplaced, and why these groups."""
    out.print(_placements(planned))
    if explanation.unserved:
        out.print(_unserved(explanation))
    if explanation.claims_left_out:
        out.print(f"{explanation.claims_left_out} more are not served; they are not explained")
    if explanation.chosen:
        out.print(_chosen(explanation))
    if explanation.chosen_left_out:
        out.print(f"{explanation.chosen_left_out} more node groups are opened; they are not explained")
    for why in explanation.limited:
        out.print(limited_words(why))
    out.print(sentence_of_cost(planned))


def _placements(planned: Planned) -> Any:
    result = table("Where pods go", "pods", "like", "requests", "where", "why not", right=("pods",))
    for each in placements(planned):
        where = [
            f"{pods} on new nodes of {group_id} ({_of_group(planned, group_id)})"
            for group_id, pods in each["new_nodes"].items()
        ]
        if each["existing"]:
            where.append(f"{sum(each['existing'].values())} on {pluralize(len(each['existing']), 'existing node')}")
        if each["unplaced"]:
            where.append(f"{each['unplaced']} nowhere")
        requests = ", ".join(f"{name} {quantity}" for name, quantity in each["requests"].items())
        result.add_row(str(each["count"]), each["example"], requests, "\n".join(where), "\n".join(each["reasons"]))
    return result


def _of_group(planned: Planned, group_id: str) -> str:
    group = planned.groups[group_id]
    return f"weight {group.weight}, {hourly(group.price_usd_per_hour)} each"


def _unserved(explanation: Explanation) -> Any:
    result = table("What is not served", "what", "fit", "what keeps it out", "what would serve it")
    for why in explanation.unserved:
        what = f"gang {why.name}" if why.gang else f"pods like {why.name}"
        result.add_row(what, f"{why.fit} of {why.pods}", "\n".join(core_of(why)), "\nor ".join(ways_of(why)))
    return result


def _chosen(explanation: Explanation) -> Any:
    columns = ("weight", "nodes", "cost")
    result = table("Why these node groups", "node group", *columns, "why not others", right=columns)
    for why in explanation.chosen:
        numbers = (str(why.weight), str(why.nodes), hourly(why.cost_usd_per_hour))
        result.add_row(why.node_group, *numbers, "\n".join(_choice_lines(why)))
    return result


def _choice_lines(why: WhyGroup) -> Iterator[str]:
    yield f"without it {difference_words(why.without)}"
    yield from (_alternative_words(other) for other in why.others)


def _alternative_words(other: Alternative) -> str:
    words = "limits allow none" if other.forced is None else f"with one of them {difference_words(other.forced)}"
    return f"{other.node_group} (weight {other.weight}, {hourly(other.price_usd_per_hour)} each): {words}"
