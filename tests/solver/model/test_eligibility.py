"""The scheduler's rules on selectors, affinity and taints, by named cases."""

from __future__ import annotations

import pytest

from solver.model import (
    HostPort,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from solver.model.eligibility import (
    matches_requirement,
    matches_term,
    ports_collide,
    required_affinity,
    selects,
    tolerates,
    untolerated,
    why_not_eligible,
)
from tests.support.solver.problems import TAINT, TOLERATION, wants

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
        pytest.param(("cpus", "Lt", "+9"), True, id="lt-signed"),
        pytest.param(("cpus", "Lt", "1_0"), False, id="lt-with-what-only-python-reads"),
        pytest.param(("cpus", "Lt", str(2**63)), False, id="lt-beyond-64-bits"),
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


WEB = (Requirement("app", Operator.IN, ("web", "shop")),)


@pytest.mark.parametrize(
    ("selector", "namespace", "labels", "expected"),
    [
        pytest.param(PodSelector(WEB), "x", {"app": "web"}, True, id="label"),
        pytest.param(PodSelector(WEB), "x", {"app": "db"}, False, id="another-value"),
        pytest.param(PodSelector(WEB), "x", {}, False, id="no-label"),
        pytest.param(PodSelector(()), "x", {}, True, id="empty-selects-all"),
        pytest.param(PodSelector(None), "x", {"app": "web"}, False, id="none-selects-nothing"),
        pytest.param(PodSelector((), ("x", "y")), "y", {}, True, id="namespace"),
        pytest.param(PodSelector((), ("x",)), "y", {}, False, id="another-namespace"),
        pytest.param(PodSelector((), ()), "", {}, False, id="no-namespace-at-all"),
        pytest.param(
            PodSelector((*WEB, Requirement("canary", Operator.DOES_NOT_EXIST))),
            "x",
            {"app": "web", "canary": ""},
            False,
            id="all-conditions",
        ),
        pytest.param(PodSelector((Requirement("app", Operator.NOT_IN, ("web",)),)), "x", {}, True, id="not-in-absent"),
    ],
)
def test_pod_selectors(selector: PodSelector, namespace: str, labels: dict[str, str], expected: bool) -> None:
    assert selects(selector, namespace, labels) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        pytest.param(HostPort(80), HostPort(80), True, id="same"),
        pytest.param(HostPort(80), HostPort(81), False, id="another-port"),
        pytest.param(HostPort(80), HostPort(80, "UDP"), False, id="another-protocol"),
        pytest.param(HostPort(80, ip="10.0.0.1"), HostPort(80, ip="10.0.0.2"), False, id="another-address"),
        pytest.param(HostPort(80, ip="10.0.0.1"), HostPort(80, ip="10.0.0.1"), True, id="same-address"),
        pytest.param(HostPort(80, ip="10.0.0.1"), HostPort(80), True, id="no-address-is-all"),
        pytest.param(HostPort(80, ip="0.0.0.0"), HostPort(80, ip="10.0.0.1"), True, id="v4-wildcard"),
        pytest.param(HostPort(80, ip="10.0.0.1"), HostPort(80, ip="::"), True, id="v6-wildcard"),
    ],
)
def test_host_ports(one: HostPort, other: HostPort, expected: bool) -> None:
    assert ports_collide(one, other) is expected
    assert ports_collide(other, one) is expected


def test_of_several_affinity_terms_each_counts_what_all_of_them_match() -> None:
    web, any_of_x = PodSelector(WEB), PodSelector((), ("x", "y"))
    both = PodSelector(WEB, ("x", "y"))
    terms = (PodAffinityTerm("zone", web), PodAffinityTerm("host", any_of_x))
    assert required_affinity(PodSpec(pod_affinity=terms[:1])) == terms[:1]
    assert required_affinity(PodSpec(pod_affinity=terms)) == (
        PodAffinityTerm("zone", both),
        PodAffinityTerm("host", both),
    )
    nothing = (*terms, PodAffinityTerm("zone", PodSelector(None, ("y", "z"))))
    assert required_affinity(PodSpec(pod_affinity=nothing))[0].selector == PodSelector(None, ("y",))
