"""The explanation of a plan as JSON and as tables: where pods go, why others are not served and what would serve them,
and why these node groups. The JSON is an interface and written out field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from cagrpc.offline.plan_report import requests_of, sentence_of_cost
from cagrpc.offline.planning import Planned
from cagrpc.tables import table
from solver import Explanation
from solver.explanation.choices import difference_json, difference_words, limited_json, limited_words
from solver.explanation.kinds import advice, reason
from solver.explanation.model import Alternative, Constraint, ConstraintChange, Way, WhyGroup, WhyUnserved
from solver.model.quantities import pluralize

_OTHERS = "pods of the same or a higher priority take the room"


def as_json(planned: Planned, explanation: Explanation) -> dict[str, Any]:
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
        **({"interrupted": True} if planned.interrupted else {}),
    }


def _constraint_json(constraint: Constraint) -> dict[str, Any]:
    if not isinstance(constraint, ConstraintChange):
        return {"kind": "others", "subject": "", "key": "", "amount": None, "class": None, "text": _OTHERS}
    return {
        "kind": constraint.kind,
        "subject": constraint.subject,
        "key": constraint.key,
        "amount": constraint.before,
        "class": _class_of(constraint),
        "text": reason(constraint),
    }


def _change_json(change: ConstraintChange) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "subject": change.subject,
        "key": change.key,
        "from": change.before,
        "to": change.after,
        "class": _class_of(change),
        "text": advice(change),
    }


def _class_of(change: ConstraintChange) -> int | None:
    """Return the class of the claim that changes; other pods are identified by their example, the subject."""
    return change.pods.index if change.pods is not None and change.pods.index >= 0 else None


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
        out.print(f"{explanation.claims_left_out} more are not served; they are not explained", soft_wrap=True)
    if explanation.chosen:
        out.print(_chosen(explanation))
    if explanation.chosen_left_out:
        out.print(f"{explanation.chosen_left_out} more node groups are opened; they are not explained", soft_wrap=True)
    for why in explanation.limited:
        out.print(limited_words(why), soft_wrap=True)
    out.print(sentence_of_cost(planned), soft_wrap=True)


def _placements(planned: Planned) -> Any:
    result = table("Where pods go", "pods", "like", "requests", "where", "why not", right=("pods",))
    for each in placements(planned):
        where = [
            f"{pods} on new nodes of {group_id} ({_of(planned, group_id)})"
            for group_id, pods in each["new_nodes"].items()
        ]
        if each["existing"]:
            where.append(f"{sum(each['existing'].values())} on {pluralize(len(each['existing']), 'existing node')}")
        if each["unplaced"]:
            where.append(f"{each['unplaced']} nowhere")
        requests = ", ".join(f"{name} {quantity}" for name, quantity in each["requests"].items())
        result.add_row(str(each["count"]), each["example"], requests, "\n".join(where), "\n".join(each["reasons"]))
    return result


def _of(planned: Planned, group_id: str) -> str:
    group = planned.groups[group_id]
    return f"weight {group.weight}, ${group.price_usd_per_hour:.4f}/h each"


def _unserved(explanation: Explanation) -> Any:
    result = table("What is not served", "what", "fit", "what keeps it out", "what would serve it")
    for why in explanation.unserved:
        what = f"gang {why.name}" if why.gang else f"pods like {why.name}"
        result.add_row(what, f"{why.fit} of {why.pods}", "\n".join(_core_lines(why)), "\n".join(_way_lines(why)))
    return result


def _core_lines(why: WhyUnserved) -> Iterator[str]:
    if why.servable:
        yield "nothing: the plan was made in too little time"
    elif not why.core:
        yield "there is nothing that it could run on" if why.proven else "not known: the time was up"
    yield from (reason(each) if isinstance(each, ConstraintChange) else _OTHERS for each in why.core)
    if why.core and not why.proven:
        yield "(not proven: the time was up)"


def _way_lines(why: WhyUnserved) -> Iterator[str]:
    if why.servable:
        yield "a larger --budget"
    for position, way in enumerate(why.ways):
        yield ("or " if position else "") + _way_words(way)
    if why.ways and why.in_place:
        yield "(with the other pods where the plan has them)"


def _way_words(way: Way) -> str:
    words = ", and ".join(advice(change) for change in way.changes)
    return words if way.proven else f"{words} (less may do)"


def _chosen(explanation: Explanation) -> Any:
    columns = ("weight", "nodes", "$/h")
    result = table("Why these node groups", "node group", *columns, "why not others", right=columns)
    for why in explanation.chosen:
        numbers = (str(why.weight), str(why.nodes), f"{why.cost_usd_per_hour:.4f}")
        result.add_row(why.node_group, *numbers, "\n".join(_choice_lines(why)))
    return result


def _choice_lines(why: WhyGroup) -> Iterator[str]:
    yield f"without it {difference_words(why.without)}"
    yield from (_alternative_words(other) for other in why.others)


def _alternative_words(other: Alternative) -> str:
    words = "limits allow none" if other.forced is None else f"with one of them {difference_words(other.forced)}"
    return f"{other.node_group} (weight {other.weight}, ${other.price_usd_per_hour:.4f}/h each): {words}"
