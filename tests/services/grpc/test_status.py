"""One error tree, one mapping to gRPC codes."""

from __future__ import annotations

import string
from urllib.parse import quote

import pytest

from cagrpc import errors
from cagrpc.services.grpc.status import status_of


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInput("x"), "INVALID_ARGUMENT"),
        (errors.InvalidConfiguration(["x"]), "INVALID_ARGUMENT"),
        (errors.NotFound("x"), "NOT_FOUND"),
        (errors.OutOfRange("x"), "OUT_OF_RANGE"),
        (errors.LimitExceeded("x"), "FAILED_PRECONDITION"),
        (errors.FailedPrecondition("x"), "FAILED_PRECONDITION"),
        (errors.OutOfCapacity("x"), "RESOURCE_EXHAUSTED"),
        (errors.DeadlineExpired("x"), "DEADLINE_EXCEEDED"),
        (errors.Unavailable("x"), "UNAVAILABLE"),
        (errors.NotImplementedByDesign("x"), "UNIMPLEMENTED"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_of_ours_has_its_code_and_its_words(error: errors.CagrpcError, code: str) -> None:
    got, details = status_of(error)
    assert (got.name, details) == (code, "x")


def _tree(kind: type[errors.CagrpcError]) -> set[type[errors.CagrpcError]]:
    return {kind}.union(*(_tree(below) for below in kind.__subclasses__()))


def test_every_error_of_the_tree_has_a_code() -> None:
    kinds = {kind for kind in _tree(errors.CagrpcError) if kind.__module__ == errors.__name__} - {errors.CagrpcError}
    assert len(kinds) >= 9
    for kind in kinds:
        error = kind(["x"]) if kind is errors.InvalidConfiguration else kind("x")
        assert status_of(error)[0].name != "INTERNAL", kind


def test_what_nobody_meant_to_raise_is_internal_without_its_words() -> None:
    code, details = status_of(KeyError("secret"))
    assert code.name == "INTERNAL"
    assert "secret" not in details


@pytest.mark.parametrize("text", ["x", "%", "é", "中", "\n", "\ud800"])
def test_long_details_are_cut_to_what_a_header_carries(text: str) -> None:
    details = status_of(errors.InvalidInput(text * 100_000))[1]
    assert details
    assert set(details) == {text}
    travels = quote(details, safe=string.printable.replace("%", "").replace("\n", ""), errors="replace")
    assert len(travels) <= 2000


def test_short_details_are_whole() -> None:
    assert status_of(errors.InvalidInput("100 % größer"))[1] == "100 % größer"
