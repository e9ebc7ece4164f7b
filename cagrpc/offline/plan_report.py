"""A plan and its explanation as JSON, which is an interface and written out field by field. For people it is
`plan_words`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cagrpc.offline.plan_words import daemons_without_room, placements, sentence_of_cost
from cagrpc.offline.planning import Planned
from solver import Explanation
from solver.explanation.choices import difference_json, limited_json
from solver.explanation.kinds import advice, reason
from solver.explanation.model import Constraint, ConstraintChange
from solver.explanation.waiting import OTHERS, ways_of
from solver.model import MayGetStuck, Relaxed
from solver.model.quantities import format_quantities


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
            {
                "id": each.index,
                "count": each.count,
                "requests": format_quantities(each.spec.requests),
                "example": each.example,
            }
            for each in plan.pod_classes
        ],
        "nodes": [
            {
                "node_group": n.node_group,
                "count": n.count,
                "pods": _by_class(n.pods),
                **({"domain": n.domain} if n.domain else {}),
            }
            for n in plan.nodes
        ],
        "existing": [{"node": n.node, "pods": _by_class(n.pods)} for n in plan.existing],
        "unplaced": [{"class": u.pod_class, "count": u.count, "reasons": list(u.reasons)} for u in plan.unplaced],
        **({"may_get_stuck": stuck} if (stuck := [_risk_json(each) for each in plan.may_get_stuck]) else {}),
        **({"may_get_stuck_unless_nominated": free} if (free := _unless_nominated_json(planned)) else {}),
        **({"limited": limited_json(planned.limited)} if planned.limited else {}),
        **({"daemons_without_room": waiting} if (waiting := list(daemons_without_room(planned))) else {}),
        **({"relaxed": [_relaxed_json(each) for each in plan.relaxed]} if plan.relaxed else {}),
    }


def _risk_json(risk: MayGetStuck) -> dict[str, Any]:
    return {"class": risk.pod_class, "count": risk.count, "reason": risk.reason}


def _unless_nominated_json(planned: Planned) -> list[dict[str, Any]]:
    return [{"class": index, "count": count} for index, count in sorted(planned.unless_nominated.items())]


def _relaxed_json(relaxed: Relaxed) -> dict[str, Any]:
    why = {"reason": relaxed.reason} if relaxed.reason else {}
    return {"class": relaxed.pod_class, "count": relaxed.count, "preferences": list(relaxed.preferences), **why}


def _by_class(pods: Mapping[int, int]) -> dict[str, int]:
    return {str(index): count for index, count in sorted(pods.items())}


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
