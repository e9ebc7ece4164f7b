"""The index of pods by their labels finds what comparing each selector with each pod finds, and compares none."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from solver.model import Operator, PodSelector, PodSpec, Requirement
from solver.model.eligibility import selects
from solver.reduction.selecting import PodsByLabel
from tests.support.examples import examples
from tests.support.steps import steps

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
    index = PodsByLabel(enumerate(specs))
    for selector in selectors:
        counted = {n for n, spec in enumerate(specs) if selects(selector, spec.namespace, dict(spec.labels))}
        assert index.selected(selector) == counted


def test_a_selector_takes_as_long_whether_it_selects_one_pod_or_all_but_one() -> None:
    specs = [PodSpec((), labels=(("k", f"{number}"),), namespace="a") for number in range(1000)]
    index = PodsByLabel(enumerate(specs))

    def ask(operator: Operator) -> Iterator[int]:
        for number in range(1000):
            yield index.mask(PodSelector((Requirement("k", operator, (f"{number}",)),), ("a",))).bit_count()

    assert set(ask(Operator.IN)) == {1}
    assert set(ask(Operator.NOT_IN)) == {999}
    index = PodsByLabel(enumerate(specs))
    assert steps(lambda: list(ask(Operator.NOT_IN))) < 40_000
