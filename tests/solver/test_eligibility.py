"""The scheduler's rules on selectors, affinity and taints, by named cases."""

from __future__ import annotations

import pytest

from solver.eligibility import matches_requirement, matches_term, tolerates, untolerated, why_not_eligible
from solver.model import NodeSelectorTerm, Operator, PodSpec, Requirement, Taint, TaintEffect, Toleration
from tests.solver.build import TAINT, TOLERATION, wants

LABELS = {"zone": "a", "cpus": "8", "empty": ""}


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        pytest.param(("zone", "In", "a", "b"), True, id="in"),
        pytest.param(("zone", "In", "b"), False, id="in-another-value"),
        pytest.param(("none", "In", "a"), False, id="in-absent"),
        pytest.param(("empty", "In", ""), True, id="in-empty-value"),
        pytest.param(("zone", "NotIn", "a"), False, id="not-in"),
        pytest.param(("none", "NotIn", "a"), True, id="not-in-absent-label-holds"),
        pytest.param(("zone", "Exists"), True, id="exists"),
        pytest.param(("none", "Exists"), False, id="exists-absent"),
        pytest.param(("none", "DoesNotExist"), True, id="does-not-exist"),
        pytest.param(("zone", "DoesNotExist"), False, id="does-not-exist-present"),
        pytest.param(("cpus", "Gt", "7"), True, id="gt"),
        pytest.param(("cpus", "Gt", "8"), False, id="gt-equal"),
        pytest.param(("cpus", "Lt", "9"), True, id="lt"),
        pytest.param(("cpus", "Lt", "8"), False, id="lt-equal"),
        pytest.param(("cpus", "Gte", "8"), True, id="gte-equal"),
        pytest.param(("cpus", "Lte", "8"), True, id="lte-equal"),
        pytest.param(("cpus", "Lte", "7"), False, id="lte-above"),
        pytest.param(("zone", "Gt", "1"), False, id="gt-on-text"),
        pytest.param(("none", "Lt", "1"), False, id="lt-on-absent-label"),
        pytest.param(("cpus", "Gt", "x"), False, id="gt-with-text-bound"),
        pytest.param(("cpus", "Gt", "1", "2"), False, id="gt-with-two-bounds"),
    ],
)
def test_operators(requirement: tuple[str, ...], expected: bool) -> None:
    key, operator, *values = requirement
    assert matches_requirement(Requirement(key, Operator(operator), tuple(values)), LABELS) is expected


def test_a_term_without_conditions_matches_no_node() -> None:
    assert not matches_term(NodeSelectorTerm(), LABELS)


def test_conditions_on_fields_look_at_the_node_name() -> None:
    term = NodeSelectorTerm(match_fields=(Requirement("metadata.name", Operator.IN, ("n1",)),))
    assert matches_term(term, {}, "n1")
    assert not matches_term(term, {}, "n2")
    assert not matches_term(term, {})


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        pytest.param(TOLERATION, True, id="equal"),
        pytest.param(Toleration("dedicated", "Equal", "cpu", "NoSchedule"), False, id="another-value"),
        pytest.param(Toleration("dedicated", "Exists"), True, id="exists-any-effect"),
        pytest.param(Toleration("", "Exists"), True, id="everything"),
        pytest.param(Toleration("", "Equal", "gpu"), False, id="empty-key-needs-exists"),
        pytest.param(Toleration("other", "Exists"), False, id="another-key"),
        pytest.param(Toleration("dedicated", "Equal", "gpu", "NoExecute"), False, id="another-effect"),
    ],
)
def test_tolerations(toleration: Toleration, expected: bool) -> None:
    assert tolerates(toleration, TAINT) is expected


def test_prefer_no_schedule_keeps_nobody_away() -> None:
    soft = Taint("soft", TaintEffect.PREFER_NO_SCHEDULE)
    assert untolerated([soft], []) is None
    assert untolerated([soft, TAINT], []) == TAINT


def test_affinity_terms_are_alternatives() -> None:
    spec = PodSpec(affinity=(*wants("zone", "In", "b"), *wants("cpus", "Gt", "4")))
    assert why_not_eligible(spec, LABELS, ()) is None
    assert why_not_eligible(PodSpec(affinity=()), LABELS, ()) == "required node affinity not met"


def test_the_reason_names_what_is_in_the_way() -> None:
    assert why_not_eligible(PodSpec(node_selector=(("zone", "b"),)), LABELS, ()) == "node selector zone=b not met"
    assert why_not_eligible(PodSpec(), LABELS, (TAINT,)) == "taint dedicated=gpu:NoSchedule not tolerated"
