"""Whatever stands in a file, reading it ends in settings or in InvalidConfiguration with a path in every sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.config.check import check_files
from cagrpc.config.files import load_provisioners
from cagrpc.config.load import default_text, parse_settings
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.catalogue import embedded_catalogue, parse_catalogue
from tests.support.examples import examples

WORDS = st.sampled_from(
    [
        "provisioners", "name", "weight", "requirements", "key", "operator", "values", "In", "Gt", "labels", "taints",
        "limits", "node_groups", "id", "instance_type", "m7i.large", "file", "apiVersion", "kind", "karpenter.sh/v1",
        "NodePool", "metadata", "spec", "template", "listen", "tls", "backend", "simulated", "catalogue", "cpu", "1Gi",
    ]
)  # fmt: skip
SCALARS = st.one_of(
    WORDS, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(WORDS, st.integers(), st.text(max_size=4)), inner, max_size=5),
    ),
    max_leaves=12,
)
DEFAULT: dict[str, Any] = yaml.safe_load(default_text())


def complaints(read: Callable[[], object]) -> Sequence[str] | None:
    """None where it can be read."""
    try:
        read()
    except InvalidConfiguration as error:
        return error.problems
    return None


def reads_or_complains(text: str) -> None:
    found = complaints(lambda: parse_settings(text, "c.yaml", Path("/nowhere")))
    assert found is None or found
    assert all(": " in problem for problem in found or ())


@given(st.text(max_size=200))
@examples(150)
def test_any_text(text: str) -> None:
    reads_or_complains(text)


@given(VALUES)
@examples(150)
def test_any_values(value: Any) -> None:
    reads_or_complains(yaml.safe_dump(value))


@given(st.sampled_from(sorted(DEFAULT)), VALUES)
@examples(80)
def test_one_section_replaced(section: str, value: Any) -> None:
    reads_or_complains(yaml.safe_dump(DEFAULT | {section: value}))


@given(st.integers(0, len(default_text()) - 1), st.integers(0, 40), st.text(max_size=3))
@examples(80)
def test_the_default_configuration_damaged_somewhere(start: int, length: int, instead: str) -> None:
    text = default_text()
    reads_or_complains(text[:start] + instead + text[start + length :])


@given(st.lists(VALUES, max_size=3))
@examples(80)
def test_any_documents_as_provisioners(tmp_path_factory: pytest.TempPathFactory, documents: list[Any]) -> None:
    path = tmp_path_factory.mktemp("any") / "p.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    found = complaints(lambda: load_provisioners([path], embedded_catalogue()))
    assert found is None or all(problem.startswith(f"{path}") for problem in found)


@given(st.binary(max_size=100), st.sampled_from(["f.yaml", "f.csv", "f.json"]))
@examples(80)
def test_check_never_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(content)
    (checked,) = check_files([path])
    assert bool(checked.problems) != bool(checked.summary)


@given(st.text(max_size=300))
@examples(100)
def test_any_text_as_a_catalogue(text: str) -> None:
    found = complaints(lambda: parse_catalogue(text, "c.csv"))
    assert found
    assert all(problem.startswith("c.csv") for problem in found)
