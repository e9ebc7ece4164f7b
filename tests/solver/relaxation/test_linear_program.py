"""Linear programs that GLOP ends abnormally are no solution at first, and no end of the search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
from ortools.math_opt import result_pb2
from pybind11_abseil import status

from solver.relaxation.linear_program import AbnormalEndError, LinearProgram, optimal


def _abnormal(*_: object) -> NoReturn:
    raise status.StatusNotOk(status.internal_error("Unexpected GLOP termination reason: ABNORMAL"))


class _GivesUp:
    def update(self, update: object) -> bool:
        return True

    solve: Callable[..., NoReturn] = staticmethod(_abnormal)


def _growing() -> LinearProgram:
    """At least 6 of two things, of which one costs 2 and gives 3, the other costs 1, gives 1 and is had twice."""
    program = LinearProgram()
    row = program.add_rows(6.0, np.inf, 1)
    program.add_entries(row, program.add_variables([2.0]), 3.0)
    assert program.solve() is not None
    program.add_entries(row, program.add_variables([0.5], 2.0), 1.0)
    return program


def test_a_growing_program_goes_on_after_an_abnormal_end() -> None:
    program = _growing()
    program._solver = _GivesUp()
    assert program.solve() is None
    again, fresh = program.solve(), _growing().solve()
    assert fresh is not None
    assert again is not None
    assert again.objective == fresh.objective == pytest.approx(1.0 + 8 / 3)
    assert again.values.tolist() == fresh.values.tolist()


def test_only_internal_errors_are_abnormal_ends() -> None:
    with pytest.raises(AbnormalEndError):
        optimal(_abnormal)

    def invalid() -> NoReturn:
        raise status.StatusNotOk(status.invalid_argument_error("NaN"))

    with pytest.raises(status.StatusNotOk):
        optimal(invalid)


def test_an_imprecise_answer_is_none() -> None:
    imprecise = result_pb2.SolveResultProto()
    imprecise.termination.reason = result_pb2.TERMINATION_REASON_IMPRECISE
    with pytest.raises(AbnormalEndError):
        optimal(lambda: imprecise)


def test_guides_are_solved_again_in_units_of_the_dearest(monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[float] = []
    load, real = LinearProgram._load, LinearProgram._optimal

    def notes(self: LinearProgram, scale: float) -> None:
        scales.append(scale)
        load(self, scale)

    def fails_unscaled(self: LinearProgram, parameters: Any) -> Any:
        if scales[-1] == 1.0:
            raise AbnormalEndError
        return real(self, parameters)

    monkeypatch.setattr(LinearProgram, "_load", notes)
    monkeypatch.setattr(LinearProgram, "_optimal", fails_unscaled)
    program = LinearProgram()
    program.add_variables([3e9, 5e3])
    program.add_entries(program.add_rows(2.0, 9.0, 1), [0, 1], [1.0, 1.0])
    assert program.solve() is None
    found = program.solve(roughly=True)
    assert found is not None
    assert found.objective == pytest.approx(1e4)
    assert found.duals.tolist() == pytest.approx([5e3])
    assert scales[:2] == [1.0, 1.0]
    assert scales[2] * 3e9 == pytest.approx(0.7, abs=0.3)
