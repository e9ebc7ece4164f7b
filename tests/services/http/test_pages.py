"""JSON pages: of bounded size, and together complete."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.errors import InvalidInput
from cagrpc.services.http import site
from cagrpc.services.http.site import ListOptions, list_options, list_page, object_page

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3),
    max_leaves=5,
)


@pytest.fixture(name="most", autouse=True)
def _most(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(site, "LARGEST_PAGE_BYTES", 100)
    return 100


@given(st.lists(_JSON, max_size=12), st.none() | st.integers(1, 5))
def test_pages_together_are_the_list_and_each_is_bounded(items: list[Any], limit: int | None) -> None:
    found: list[Any] = []
    page = ListOptions(limit)
    while True:
        body, following = list_page(items, lambda item: item, page)
        part = json.loads(body)
        assert len(body) < 100 + 3 or len(part) == 1
        assert limit is None or len(part) <= limit
        found[:0] = part
        if not following:
            break
        assert part
        page = list_options(following)
        assert page.limit == limit
    assert found == items


@given(st.dictionaries(st.text(max_size=5), _JSON | st.lists(_JSON, max_size=30), max_size=4))
def test_an_object_loses_only_the_ends_of_long_lists_and_says_so(value: dict[str, Any]) -> None:
    body = object_page(value)
    shown = json.loads(body)
    left_out = shown.pop("left_out", {}) if "left_out" not in value else {}
    for name, member in value.items():
        if isinstance(member, list):
            assert shown[name] == member[: len(member) - left_out.get(name, 0)]
        else:
            assert shown[name] == member
    others = sum(len(json.dumps({name: each})) for name, each in value.items() if not isinstance(each, list))
    lists = sum(len(body) + 10 for body in map(json.dumps, (name for name in value)))
    assert len(body) <= 100 + others + 2 * lists + 30


def test_of_a_long_list_the_beginning_is_shown() -> None:
    shown = json.loads(object_page({"first": 1, "long": ["x" * 30] * 9, "also": [1, 2], "last": 2, "empty": []}))
    assert shown == {
        "first": 1, "long": ["x" * 30] * 2, "also": [], "last": 2, "empty": [], "left_out": {"long": 7, "also": 2},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("limit=0", 'limit is "0"; it must be a whole number of 1 or more'),
        ("limit=x", 'limit is "x"; it must be'),
        ("continue=-1", 'continue is "-1"; it must be a whole number of 0 or more'),
        ("continue=" + "9" * 5000, 'continue is "9999'),
        ("limit=²", 'limit is "²"'),
        ("&".join("x=1" for _ in range(30)), "the query is invalid"),
    ],
)
def test_an_invalid_query_is_refused(query: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        list_options(query)
    assert why in str(refused.value)


def test_other_parameters_are_for_others() -> None:
    assert list_options("verbose=1&limit=3&limit=4&continue=0") == ListOptions(4, 0)
