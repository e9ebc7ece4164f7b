"""The index of pods by their labels finds what comparing each selector with each pod finds, and compares fewer."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from solver.model import Operator, PodSelector, PodSpec, Requirement
from solver.model.eligibility import selects
from solver.reduction import selecting
from solver.reduction.selecting import PodsByLabel
from tests.support.examples import examples

NAMESPACES, KEYS, VALUES = ("", "a", "b"), ("app", "tier"), ("x", "y", "z")
LABELS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)).map(lambda of: tuple(sorted(of.items())))
SPECS = st.builds(
    lambda labels, namespace: PodSpec((), labels=labels, namespace=namespace), LABELS, st.sampled_from(NAMESPACES)
)
VALUED = st.builds(
    Requirement,
    st.sampled_from(KEYS),
    st.sampled_from((Operator.IN, Operator.NOT_IN)),
    st.lists(st.sampled_from(VALUES), min_size=1, unique=True).map(tuple),
)
BARE = st.builds(Requirement, st.sampled_from(KEYS), st.sampled_from((Operator.EXISTS, Operator.DOES_NOT_EXIST)))
SELECTORS = st.builds(
    PodSelector,
    st.none() | st.lists(VALUED | BARE, max_size=3).map(tuple),
    st.none() | st.lists(st.sampled_from(NAMESPACES), unique=True).map(lambda names: tuple(sorted(names))),
)


@given(st.lists(SPECS, max_size=12), st.lists(SELECTORS, max_size=5))
@examples(200)
def test_the_index_finds_what_comparing_finds(specs: list[PodSpec], selectors: list[PodSelector]) -> None:
    index = PodsByLabel(specs)
    for selector in selectors:
        counted = {n for n, spec in enumerate(specs) if selects(selector, spec.namespace, dict(spec.labels))}
        assert index.selected(selector) == counted


def test_a_selector_of_one_pod_is_compared_with_that_pod_alone() -> None:
    specs = [PodSpec((), labels=(("k", f"{number}"),), namespace="a") for number in range(1000)]
    index = PodsByLabel(specs)
    with patch.object(selecting, "selects", wraps=selects) as compared:
        for number in range(1000):
            condition = Requirement("k", Operator.IN, (f"{number}",))
            assert index.selected(PodSelector((condition,), ("a",))) == {number}
    assert compared.call_count == 1000
