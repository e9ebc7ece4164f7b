"""Quantities: each form of a quantity, each way of being none, and the properties that must hold of all."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.model.quantities import LARGEST_AMOUNT, Quantity, amount, format_quantity, parse_quantity, some_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("0", Fraction(0), id="zero"),
        pytest.param("500m", Fraction(1, 2), id="milli"),
        pytest.param("1", Fraction(1), id="plain"),
        pytest.param("+1", Fraction(1), id="plus sign"),
        pytest.param("1.5Gi", Fraction(3 * 2**29), id="binary with a fraction"),
        pytest.param("1.", Fraction(1), id="trailing point"),
        pytest.param(".5", Fraction(1, 2), id="leading point"),
        pytest.param("2k", Fraction(2000), id="decimal kilo"),
        pytest.param("1E", Fraction(10**18), id="E alone is exa"),
        pytest.param("1E3", Fraction(1000), id="E with digits is an exponent"),
        pytest.param("1e-3", Fraction(1, 1000), id="negative exponent"),
        pytest.param("100n", Fraction(1, 10**7), id="nano"),
        pytest.param("7u", Fraction(7, 10**6), id="micro"),
        pytest.param(4, Fraction(4), id="YAML integer"),
        pytest.param(0.1, Fraction(1, 10), id="YAML float means what is written"),
        pytest.param(1e17, Fraction(10**17), id="YAML float with an exponent"),
        pytest.param(Fraction(1, 3), Fraction(1, 3), id="fraction"),
    ],
)
def test_value(text: Quantity, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "is not a quantity", id="empty"),
        pytest.param(" 1", "is not a quantity", id="space"),
        pytest.param("1\n", "is not a quantity", id="newline"),
        pytest.param("1gb", "is not a quantity", id="unknown suffix"),
        pytest.param("1mi", "is not a quantity", id="wrong case"),
        pytest.param("1e3Gi", "is not a quantity", id="exponent and suffix"),
        pytest.param("\u0661", "is not a quantity", id="other digits"),
        pytest.param(".", "is not a quantity", id="point alone"),
        pytest.param("9" * 1000, "is not a quantity", id="very long"),
        pytest.param("NaN", "is not a quantity", id="nan text"),
        pytest.param(float("nan"), "is not a quantity", id="nan"),
        pytest.param(float("inf"), "is not a quantity", id="infinity"),
        pytest.param(True, "is not a quantity", id="boolean"),
        pytest.param("-1", "is negative", id="negative"),
        pytest.param("-0.5Gi", "is negative", id="negative with suffix"),
        pytest.param(-3, "is negative", id="negative number"),
        pytest.param("1e999999999", "out of range", id="exponent that would fill memory"),
        pytest.param("10E", "out of range", id="more than 64 bits"),
        pytest.param(10**30, "out of range", id="integer of more than 64 bits"),
    ],
)
def test_not_a_quantity(text: Quantity, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_quantity(text)


def test_cpu_has_64_bits_of_millicores() -> None:
    with pytest.raises(ValueError, match="cpu is counted in 64 bits"):
        amount("cpu", "9E")
    assert amount("memory", "9E") == 9 * 10**18


@pytest.mark.parametrize(
    ("resource", "text", "up", "down"),
    [
        pytest.param("cpu", "500m", 500, 500, id="whole millicores"),
        pytest.param("cpu", "1n", 1, 0, id="less than a millicore"),
        pytest.param("cpu", "1.0005", 1001, 1000, id="half a millicore more"),
        pytest.param("memory", "100m", 1, 0, id="less than a byte"),
        pytest.param("memory", "0.3Ki", 308, 307, id="part of a byte"),
        pytest.param("nvidia.com/gpu", "2", 2, 2, id="pieces"),
    ],
)
def test_rounding(resource: str, text: str, up: int, down: int) -> None:
    assert (amount(resource, text), amount(resource, text, round_up=False)) == (up, down)


@pytest.mark.parametrize(
    ("resource", "units", "text"),
    [
        pytest.param("cpu", 500, "500m", id="part of a core"),
        pytest.param("cpu", 4000, "4", id="whole cores"),
        pytest.param("cpu", 0, "0", id="no cpu"),
        pytest.param("memory", 2**30, "1Gi", id="gibibyte"),
        pytest.param("memory", 3 * 2**29, "1536Mi", id="mebibytes"),
        pytest.param("memory", 1000, "1000", id="bytes"),
        pytest.param("memory", 0, "0", id="no memory"),
        pytest.param("ephemeral-storage", 2**40, "1Ti", id="disk"),
        pytest.param("hugepages-2Mi", 2**21, "2Mi", id="huge pages"),
        pytest.param("pods", 1024, "1024", id="pieces have no suffix"),
        pytest.param("nvidia.com/gpu", 8, "8", id="devices"),
    ],
)
def test_format(resource: str, units: int, text: str) -> None:
    assert format_quantity(resource, units) == text


resources = st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu", "hugepages-2Mi"])


@given(resources, st.one_of(st.integers(0, 2**53), st.integers(0, 2**20).map(lambda n: n * 2**20)))
def test_what_is_formatted_reads_back_unchanged(resource: str, units: int) -> None:
    text = format_quantity(resource, units)
    assert amount(resource, text, round_up=True) == units
    assert amount(resource, text, round_up=False) == units


texts = st.builds(
    lambda whole, part, suffix: f"{whole}{part}{suffix}",
    st.integers(0, 10**4).map(str),
    st.one_of(st.just(""), st.integers(0, 10**9).map(lambda n: f".{n}")),
    st.sampled_from(["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e2", "E-4"]),
)


@given(resources, texts)
def test_rounding_goes_the_way_asked_and_less_than_one_unit(resource: str, text: str) -> None:
    exact = parse_quantity(text) * (1000 if resource == "cpu" else 1)
    up, down = amount(resource, text, round_up=True), amount(resource, text, round_up=False)
    assert down <= exact <= up
    assert up - down == (exact.denominator != 1)


@given(st.one_of(st.text(), st.floats(), st.integers()))
def test_anything_else_is_a_value_error(anything: Quantity) -> None:
    try:
        value = parse_quantity(anything)
    except ValueError:
        return
    assert 0 <= value <= LARGEST_AMOUNT


def test_a_part_of_a_millicore_is_rounded_up_or_down() -> None:
    assert (amount("cpu", "1.0001"), amount("cpu", "1.0001", round_up=False)) == (1001, 1000)


@pytest.mark.parametrize(("most", "said"), [(3, "a, b, c"), (2, "a, b and 1 more"), (1, "a and 2 more")])
def test_of_many_names_the_first_are_said_and_how_many_others_there_are(most: int, said: str) -> None:
    assert some_of(["a", "b", "c"], most) == said
