"""Projections of pods to what selectors can see of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.selectors import LabelProjection, PodIdentity, PodProjection
from solver.model import Operator, PodSelector, PodSpec, Requirement
from solver.model.eligibility import selects
from tests.support.examples import examples

_KEYS, _VALUES, _NAMESPACES = ("app", "tier"), ("a", "b"), ("one", "two")

requirements = st.one_of(
    st.builds(
        Requirement,
        st.sampled_from(_KEYS),
        st.sampled_from((Operator.IN, Operator.NOT_IN)),
        st.lists(st.sampled_from(_VALUES), min_size=1, max_size=2, unique=True).map(sorted).map(tuple),
    ),
    st.builds(Requirement, st.sampled_from(_KEYS), st.sampled_from((Operator.EXISTS, Operator.DOES_NOT_EXIST))),
)
selectors = st.builds(
    PodSelector,
    st.none() | st.lists(requirements, max_size=2).map(tuple),
    st.none() | st.lists(st.sampled_from(_NAMESPACES), max_size=2, unique=True).map(sorted).map(tuple),
)
identities = st.builds(
    PodIdentity,
    st.sampled_from((*_NAMESPACES, "three")),
    st.dictionaries(st.sampled_from((*_KEYS, "other")), st.sampled_from((*_VALUES, "c"))),
)


@examples(300)
@given(st.lists(selectors, max_size=3), identities)
def test_a_running_pod_is_selected_as_what_it_is_projected_to(some: list[PodSelector], who: PodIdentity) -> None:
    seen = PodProjection(some, (), ()).runs(PodSpec(), who)
    for selector in some:
        selected = selects(selector, who.namespace, who.labels)
        assert selected is (seen is not None and selects(selector, seen.namespace, dict(seen.labels)))
    if seen is not None:  # what nothing can select is nothing
        assert any(selects(each, who.namespace, who.labels) or selects(each, "", {}) for each in some)


@examples(500)
@given(st.lists(selectors, max_size=3), st.lists(selectors, max_size=3), st.lists(selectors, max_size=2), identities)
def test_a_pod_is_the_same_by_both_unless_it_has_something_of_what_has_changed(
    gone: list[PodSelector], come: list[PodSelector], stay: list[PodSelector], who: PodIdentity
) -> None:
    before, now = [*gone, *stay], [*come, *stay]
    change = PodProjection(now, (), ()).since(PodProjection(before, (), ())).labels
    if change.of_all or who.namespace in change.namespaces or not change.keys.isdisjoint(who.labels):
        return
    if not change.labels.isdisjoint(who.labels.items()):
        return
    assert PodProjection(now, (), ()).runs(PodSpec(), who) == PodProjection(before, (), ()).runs(PodSpec(), who)
    whole = (LabelProjection(each).identified(PodSpec(), who) for each in (now, before))
    assert next(whole) == next(whole)
