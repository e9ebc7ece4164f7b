"""How one plan differs from another, and what limits cost, as JSON (an interface, written out field by field) and in
words: for plans and their explanations."""

from __future__ import annotations

from typing import Any

from solver.explanation.kinds import reason
from solver.explanation.model import Difference, WhyLimited
from solver.model.quantities import pluralize

_MOST_NAMED = 3


def difference_json(difference: Difference) -> dict[str, Any]:
    """Return what another plan has more."""
    return {
        "unserved": difference.unserved,
        "placeholders": difference.placeholders,
        "cost_per_hour": difference.cost_usd_per_hour,
        "tiers": [{"weight": weight, "cost_per_hour": cost} for weight, cost in difference.tiers],
        "increments": [{"node_group": each.node_group, "delta": each.delta} for each in difference.increments],
        "proven": difference.proven,
    }


def limited_json(limited: WhyLimited) -> dict[str, Any]:
    """Return sizes and limits that shape a plan, and what it would be without them."""
    return {
        "constraints": [
            {"kind": each.kind, "subject": each.subject, "key": each.key, "amount": each.before, "text": reason(each)}
            for each in limited.changes
        ],
        "without": difference_json(limited.without),
        "lower_bound_without": limited.lower_bound_usd_per_hour,
        "text": limited_words(limited),
    }


def limited_words(limited: WhyLimited) -> str:
    """Describe what shapes a plan, and what that costs."""
    rest = len(limited.changes) - _MOST_NAMED
    named = ", ".join(reason(each) for each in limited.changes[:_MOST_NAMED])
    more = f" and {pluralize(rest, 'more size or limit', 'more sizes and limits')}" if rest > 0 else ""
    them = "it" if len(limited.changes) == 1 else "them"
    least = limited.lower_bound_usd_per_hour
    bound = (
        "no bound on the cost without is proven yet"
        if least is None
        else f"no plan without {them} that serves as much costs less than ${least:.4f}/h"
    )
    return f"limited: {named}{more}; without {them} {difference_words(limited.without)}; {bound}"


def difference_words(difference: Difference) -> str:
    """Describe what decides between two plans, and their other differences."""
    if difference.unserved or difference.placeholders:
        pods = difference.unserved or difference.placeholders
        what = pluralize(abs(pods), "pod" if difference.unserved else "placeholder")
        words = f"{what} {'fewer' if pods > 0 else 'more'} {'is' if abs(pods) == 1 else 'are'} served"
    else:
        changed = [(weight, cost) for weight, cost in difference.tiers if cost]
        words = ", ".join(f"weight {weight} costs {_dollars(cost)}" for weight, cost in changed)
        words = words or "it would cost the same"
        if len(changed) > 1:
            words += f", in all {_dollars(difference.cost_usd_per_hour)}"
    nodes = ", ".join(f"{each.delta:+d} {each.node_group}" for each in difference.increments)
    unproven = "" if difference.proven else "; as far as was found in the time"
    return f"{words} ({nodes}{unproven})" if nodes else words


def _dollars(cost: float) -> str:
    return f"${abs(cost):.4f}/h {'more' if cost > 0 else 'less'}"
