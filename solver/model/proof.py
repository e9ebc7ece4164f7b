"""What is proven of a cost, as numbers and as words: everybody who shows a bound shows it by these. A bound that is
merely not proven yet is none, and never shown as zero; nor is a gap, where pods are left out, without those."""

from __future__ import annotations

from solver.model.quantities import pluralize

_SHOWN_AS_NONE = 0.00005


def proven(cost: float, lower_bound: float) -> float | None:
    """Return the bound; None where there is a cost, and no bound on it yet."""
    return None if cost and not lower_bound else lower_bound


def gap(cost: float, lower_bound: float) -> float | None:
    """Return the part of the cost that is not proven to be necessary, 0 where nothing costs anything; None where no
    bound is proven yet."""
    if not cost:
        return 0.0
    return (cost - lower_bound) / cost if lower_bound else None


def gap_words(found: float | None, unserved: int) -> str:
    """Return a gap for people, of a plan that leaves so many pods out."""
    if found is None:
        return "not proven"
    if not unserved:
        return f"{found:.2%}"
    return f"{'none' if found < _SHOWN_AS_NONE else f'{found:.2%}'} for those served"


def proof_words(no_plan: str, least: str | None, found: float | None, unserved: int, unserved_unproven: int) -> str:
    """Return what is proven of a plan: that `no_plan` ("no plan that serves as much") costs less than `least`, which is
    None where nothing is proven; with the gap, of a plan that leaves so many pods out, and how many of them nothing
    proves to be left out in any plan."""
    gap_known = "" if found is None else f" (gap {gap_words(found, unserved)})"
    words = "no bound on the cost is proven yet" if least is None else f"{no_plan} costs less than {least}{gap_known}"
    if unserved_unproven:
        words += f"; leaving out {pluralize(unserved_unproven, 'pod')} is not proven to be necessary"
    return words


def at_least_words(least_usd_per_hour: float | None) -> str:
    """Return a bound for people, without a unit."""
    return "not proven" if least_usd_per_hour is None else f"{least_usd_per_hour:.4f}"
