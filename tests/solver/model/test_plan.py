"""What is shown of a bound: nothing that is merely not proven yet as zero, and no gap without the pods left out."""

from __future__ import annotations

import pytest

from solver.model import Certificate, Status, TierCost
from solver.model.plan import PlanProgress, at_least_words, gap_words, proof_words


def certificate(cost: float, bound: float, unserved_unproven: int = 0) -> Certificate:
    return Certificate(Status.FEASIBLE, cost, bound, (TierCost(0, cost, bound),), 0.0, unserved_unproven)


@pytest.mark.parametrize(
    ("cost", "bound", "unproven", "least", "gap"),
    [
        (4.0, 3.0, 0, 3.0, 0.25),
        (4.0, 4.0, 0, 4.0, 0.0),
        (4.0, 0.0, 0, None, None),
        (4.0, 3.0, 2, 3.0, None),
        (0.0, 0.0, 0, 0.0, 0.0),
        (0.0, 0.0, 2, None, None),
    ],
)
def test_a_bound_is_shown_where_one_is_proven(
    cost: float, bound: float, unproven: int, least: float | None, gap: float | None
) -> None:
    found = certificate(cost, bound, unproven)
    assert (found.least_usd_per_hour, found.gap) == (least, gap)


def test_progress_has_no_gap_while_pods_have_no_place() -> None:
    assert PlanProgress(0, 4.0, 3.0).gap == 0.25
    assert PlanProgress(0, 4.0, 0.0).gap is None
    assert PlanProgress(1, 4.0, 4.0).gap is None


@pytest.mark.parametrize(
    ("least", "gap", "unserved", "unproven", "words"),
    [
        ("$3/h", 0.25, 0, 0, "no plan costs less than $3/h (gap 25.00%)"),
        ("$3/h", 0.25, 2, 0, "no plan costs less than $3/h (gap 25.00% for those served)"),
        ("$4/h", 0.0, 2, 0, "no plan costs less"),
        ("$3/h", None, 2, 1, "no plan costs less than $3/h; leaving out 1 pod is not proven to be necessary"),
        (None, None, 0, 0, "no bound on the cost is proven yet"),
        (None, None, 3, 3, "no bound on the cost is proven yet; leaving out 3 pods is not proven to be necessary"),
    ],
)
def test_the_same_in_words(least: str | None, gap: float | None, unserved: int, unproven: int, words: str) -> None:
    assert proof_words("no plan", least, gap, unserved, unproven) == words


def test_numbers_in_tables() -> None:
    assert [gap_words(0.0, 0), gap_words(None, 3), gap_words(0.0, 3)] == [
        "0.00%",
        "not proven",
        "none for those served",
    ]
    assert [at_least_words(1.5), at_least_words(None)] == ["$1.50/h", "not proven"]
