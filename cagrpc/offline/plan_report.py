"""A plan as JSON, which is an interface and written out field by field, and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from cagrpc.offline.planning import Planned
from cagrpc.tables import table
from solver import PodClass
from solver.explanation.choices import limited_json, limited_words
from solver.model import Relaxed
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
        **({"interrupted": True} if planned.interrupted else {}),
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
        out.print(_unplaced(planned))
    if plan.relaxed:
        out.print(_relaxed(planned))
    out.print(
        f"{wanted - unplaced} of {pluralize(wanted, 'pod')} placed ({existing} on existing nodes),"
        f" {pluralize(sum(each.delta for each in plan.increments), 'new node')}",
        soft_wrap=True,
    )
    if planned.limited is not None:
        out.print(limited_words(planned.limited), soft_wrap=True)
    out.print(sentence_of_cost(planned), soft_wrap=True)


def sentence_of_cost(planned: Planned) -> str:
    """Describe the certificate in a sentence."""
    plan, certificate = planned.plan, planned.plan.certificate
    least = None if certificate.least_usd_per_hour is None else f"${certificate.least_usd_per_hour:.4f}/h"
    unplaced = sum(each.count for each in plan.unplaced)
    proof = proof_words("no plan that serves as much", least, certificate.gap, unplaced, certificate.unserved_unproven)
    words = (
        f"{certificate.status.value}: new nodes cost ${certificate.cost_usd_per_hour:.4f}/h; {proof};"
        f" planned in {plan.elapsed_seconds:.2f} s"
    )
    if certificate.price_of_priority_usd_per_hour:
        words += f"; with all weights equal it would cost ${certificate.price_of_priority_usd_per_hour:.4f}/h less"
    return words


def _increments(planned: Planned) -> Any:
    columns = ("weight", "nodes", "$/h")
    result = table("New nodes", "node group", "provisioner", "instance type", "zone", *columns, right=columns)
    for increment in planned.plan.increments:
        group = planned.groups[increment.node_group]
        cost = f"{increment.delta * group.price_usd_per_hour:.4f}"
        words = (group.id, group.provisioner, group.instance_type, group.zone, str(group.weight))
        result.add_row(*words, str(increment.delta), cost)
    return result


def _tiers(planned: Planned) -> Any:
    columns = ("weight", "$/h", "at least $/h")
    result = table("Cost by tier", *columns, right=columns)
    for tier in planned.plan.certificate.tiers:
        result.add_row(str(tier.weight), f"{tier.cost_usd_per_hour:.4f}", at_least_words(tier.least_usd_per_hour))
    return result


def _unplaced(planned: Planned) -> Any:
    return _of_classes(
        planned,
        "Pods without a place",
        "why",
        ((each.pod_class, each.count, each.reasons) for each in planned.plan.unplaced),
    )


def _relaxed(planned: Planned) -> Any:
    return _of_classes(
        planned,
        "Pods with a place against their preferences",
        "given up",
        (
            (each.pod_class, each.count, (*each.preferences, *([f"because {each.reason}"] if each.reason else ())))
            for each in planned.plan.relaxed
        ),
    )


def _of_classes(planned: Planned, title: str, last: str, rows: Iterable[tuple[int, int, Sequence[str]]]) -> Any:
    """Return a table with a row for each class: its number of pods and the messages about them."""
    classes = {each.index: each for each in planned.plan.pod_classes}
    result = table(title, "pods", "like", "requests", last, right=("pods",))
    for index, count, messages in rows:
        requests = ", ".join(f"{name} {quantity}" for name, quantity in requests_of(classes[index]).items())
        result.add_row(str(count), classes[index].example, requests, "\n".join(messages))
    return result
