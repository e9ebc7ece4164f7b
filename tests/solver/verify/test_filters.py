"""The checker's own judgement of what may be where, against the planner's: written apart, they agree."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from solver.model import (
    HostPort,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Problem,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from solver.model.eligibility import (
    matches_requirement,
    ports_collide,
    required_affinity,
    selects,
    untolerated,
    why_not_eligible,
)
from solver.verify.claims import Rule, constraints_of
from solver.verify.filters import HARD, clash, counts, fault, holds, tolerated
from tests.support.examples import examples
from tests.support.solver.strategies import constrained_problems

KEYS = ("zone", "size")
VALUES = ("a", "3", "5", "+5", "007", "5_0", "", "9223372036854775808")
_COMPARING = (Operator.GT, Operator.LT, Operator.GTE, Operator.LTE)


@st.composite
def requirements(draw: st.DrawFn, keys: tuple[str, ...] = KEYS) -> Requirement:
    operator = draw(st.sampled_from(Operator))
    most = 0 if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST) else 1 if operator in _COMPARING else 3
    values = tuple(draw(st.lists(st.sampled_from(VALUES), min_size=min(1, most), max_size=most)))
    return Requirement(draw(st.sampled_from(keys)), operator, values)


NAMES = st.builds(
    Requirement,
    st.just("metadata.name"),
    st.sampled_from((Operator.IN, Operator.NOT_IN)),
    st.tuples(st.sampled_from(("n0", "n1"))),
)
TERMS = st.lists(
    st.builds(
        NodeSelectorTerm,
        st.lists(requirements(), max_size=2).map(tuple),
        st.lists(NAMES, max_size=1).map(tuple),
    ),
    max_size=2,
).map(tuple)
TAINTS = st.builds(Taint, st.sampled_from(KEYS), st.sampled_from(TaintEffect), st.sampled_from(VALUES))
TOLERATIONS = st.one_of(
    st.builds(
        Toleration,
        st.sampled_from(KEYS),
        st.sampled_from(("Equal", "Gt", "Lt")),
        st.sampled_from(VALUES),
        st.just(""),
    ),
    st.builds(
        Toleration,
        st.sampled_from(("", *KEYS)),
        st.just("Exists"),
        st.just(""),
        st.sampled_from(("", *(effect.value for effect in TaintEffect))),
    ),
)
SPECS = st.builds(
    PodSpec,
    node_selector=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=1).map(tuple),
    affinity=st.none() | TERMS,
    tolerations=st.lists(TOLERATIONS, max_size=2).map(tuple),
    node_terms=st.lists(TERMS, max_size=2).map(tuple),
    unschedulable=st.sampled_from(("", "", "", "waits")),
)
LABELS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))


@examples(300)
@given(requirements(), st.none() | st.sampled_from(VALUES))
def test_conditions_hold_of_the_same_values(condition: Requirement, value: str | None) -> None:
    labels = {} if value is None else {condition.key: value}
    assert holds(condition, value) == matches_requirement(condition, labels)


@examples(300)
@given(SPECS, LABELS, st.lists(TAINTS, max_size=2), st.sampled_from(("", "n0", "n1")))
def test_pods_may_be_on_the_same_nodes(spec: PodSpec, labels: dict[str, str], taints: list[Taint], name: str) -> None:
    assert (fault(spec, labels, taints, name) is None) == (why_not_eligible(spec, labels, taints, name) is None)
    assert tolerated(spec.tolerations, taints, HARD) == (untolerated(taints, spec.tolerations) is None)


@examples(100)
@given(constrained_problems())
def test_both_agree_on_whole_problems(problem: Problem) -> None:
    places = [(each.labels, each.taints, "") for each in problem.node_groups]
    places += [(each.labels, each.taints, each.name) for each in problem.nodes]
    for pods, place in product(problem.pod_sets, places):
        assert (fault(pods.spec, *place) is None) == (why_not_eligible(pods.spec, *place) is None)


SELECTORS = st.builds(
    PodSelector,
    st.none() | st.lists(requirements(), max_size=2).map(tuple),
    st.none() | st.sets(st.sampled_from(("x", "y"))).map(lambda names: tuple(sorted(names))),
)


@examples(200)
@given(st.lists(st.tuples(SELECTORS, st.booleans()), max_size=3), LABELS, st.sampled_from("xy"))
def test_selectors_and_several_of_them_count_the_same_pods(
    drawn: list[tuple[PodSelector, bool]], labels: dict[str, str], namespace: str
) -> None:
    for selector, _ in drawn:
        assert counts(selector, namespace, labels) == selects(selector, namespace, labels)
    spec = PodSpec(pod_affinity=tuple(PodAffinityTerm("zone", selector, alone) for selector, alone in drawn))
    terms = [each.term for each in constraints_of(0, spec, 1, ()) if each.rule is Rule.AFFINITY and each.term]
    counting = [counts(each.selector, namespace, labels) for each in terms]
    assert all(counting) == all(selects(each.selector, namespace, labels) for each in required_affinity(spec))
    assert {each.alone for each in terms} == {alone for _, alone in drawn}


def test_host_ports_exclude_the_same_ones() -> None:
    addresses = ("", "0.0.0.0", "::", "10.0.0.1", "10.0.0.2")
    ports = [HostPort(*each) for each in product((80, 81), ("TCP", "UDP"), addresses)]
    assert all(clash(one, other) == ports_collide(one, other) for one in ports for other in ports)
