"""The fluid relaxation: pods as liquid, nodes in fractions. A lower bound on every stage of the objective, and the
value of a pod of each spec, in one linear program that grows with specs x kinds and never with the number of pods.

Disaggregated by kind: pods of each spec on each kind are variables of their own, so that a spec pays for the kind that
it is on, and no kind holds more of a spec per node than fits one node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from solver.model.objective import ObjectiveStage
from solver.reduction.objective import unavoidable_value
from solver.reduction.reduced import Floats, Ints, Kind, Reduced
from solver.relaxation.claims import Claims
from solver.relaxation.linear_program import INFINITY, LinearProgram


@dataclass(frozen=True)
class FluidModel:
    """The constraints of the relaxation; `minimise` adds an objective."""

    reduced: Reduced
    active: Ints
    """Kinds taken part, as of `dominance.needed_kinds`."""
    claimed: Claims

    def minimise(
        self, stage: ObjectiveStage, fixed: Mapping[ObjectiveStage, int], seconds: float | None = None
    ) -> float | None:
        """Return the least value of a stage where earlier stages have at most their `fixed` values, with what no plan
        can avoid; None after `seconds`."""
        program, _, _ = self._program({stage: 1.0}, fixed)
        solution = program.solve(seconds)
        return None if solution is None else solution.objective + unavoidable_value(stage, self.reduced)

    def relaxed(
        self, weights: Mapping[ObjectiveStage, float], seconds: float | None = None
    ) -> tuple[Floats, float, Floats] | None:
        """Return the duals of serving one more pod of each spec with all stages weighed into one objective, that
        objective's least value (approximate), and the values of the demand-side variables. None when time runs out."""
        program, serve, claimed = self._program(weights, {})
        solution = program.solve(seconds, roughly=True)
        return None if solution is None else (solution.duals[serve], solution.objective, solution.values[claimed])

    def _program(
        self, weights: Mapping[ObjectiveStage, float], fixed: Mapping[ObjectiveStage, int]
    ) -> tuple[LinearProgram, Ints, Ints]:
        """Return the program, the rows of serving pods, and the variables of the demand side."""
        reduced, program = self.reduced, LinearProgram()
        kinds = [reduced.kinds[i] for i in self.active]
        opened_cost = [sum(w * _per_node(stage, kind) for stage, w in weights.items()) for kind in kinds]
        opened = program.add_variables(
            opened_cost, most=[float(k.most) for k in kinds], least=[float(k.least) for k in kinds]
        )
        spec_of, kind_of = np.nonzero(reduced.fits[self.active].T & (reduced.wanted > 0)[:, None])
        placed = program.add_variables(np.zeros(len(spec_of)))
        constants = np.array([constant for _, constant in self.claimed.needed], dtype=np.float64)
        serve = program.add_rows(constants, INFINITY, len(reduced.rows))
        program.add_entries(serve[spec_of], placed, 1.0)
        self._capacity_rows(program, opened, placed, spec_of, kind_of)
        if reduced.limits:
            rows = program.add_rows(-INFINITY, np.array(reduced.limits, dtype=np.float64), len(reduced.limits))
            use = reduced.use[self.active].astype(np.float64)
            program.add_entries(rows[None, :], opened[:, None], use)
        claimed = self._claims(program, weights, serve)
        for stage, most in fixed.items():
            row = program.add_rows(-INFINITY, float(most - unavoidable_value(stage, reduced)), 1)
            program.add_entries(row, opened, np.array([_per_node(stage, kind) for kind in kinds]))
            terms = self.claimed.stages.get(stage, ())
            program.add_entries(row, claimed[[v for v, _ in terms]], [float(c) for _, c in terms])
        return program, serve, claimed

    def _capacity_rows(self, program: LinearProgram, opened: Ints, placed: Ints, spec_of: Ints, kind_of: Ints) -> None:
        reduced = self.reduced
        free = reduced.free[self.active].astype(np.float64)
        kinds, resources = free.shape
        per_resource = program.add_rows(-INFINITY, 0.0, kinds * resources).reshape(kinds, resources)
        # Rows are scaled by the node's size: GLOP works best with coefficients around one.
        scale = 1.0 / np.maximum(free, 1.0)
        used = reduced.requests[spec_of].astype(np.float64) * scale[kind_of]
        program.add_entries(per_resource[kind_of], placed[:, None], used)
        program.add_entries(per_resource, opened[:, None], -free * scale)
        # Not more of one spec than whole pods fit; added only where it is tighter than the resource rows.
        need = np.maximum(reduced.requests[spec_of], 1)
        ratio = np.where(reduced.requests[spec_of] > 0, reduced.free[self.active][kind_of] / need, INFINITY)
        whole = np.minimum(np.floor(ratio.min(axis=1)), reduced.caps[spec_of])
        tight = np.flatnonzero(whole < ratio.min(axis=1) - 1e-9)
        rows = program.add_rows(-INFINITY, 0.0, len(tight))
        program.add_entries(rows, placed[tight], 1.0)
        program.add_entries(rows, opened[kind_of[tight]], -whole[tight])

    def _claims(self, program: LinearProgram, weights: Mapping[ObjectiveStage, float], serve: Ints) -> Ints:
        """Add the demand side, relaxed; return its variables."""
        linear = self.claimed.linear
        cost = np.zeros(len(linear.uppers))
        for stage, weight in weights.items():
            for variable, amount in self.claimed.stages.get(stage, ()):
                cost[variable] += weight * amount
        variables = program.add_variables(cost, most=np.array(linear.uppers, dtype=np.float64))
        needed = [(row, v, -float(c)) for row, (terms, _) in enumerate(self.claimed.needed) for v, c in terms]
        _add(program, serve, variables, needed)
        lower = [-INFINITY if low is None else float(low) for _, low, _ in linear.rows]
        upper = [INFINITY if high is None else float(high) for _, _, high in linear.rows]
        rows = program.add_rows(lower, upper, len(linear.rows))
        entries = [(row, v, float(c)) for row, (terms, _, _) in enumerate(linear.rows) for v, c in terms]
        _add(program, rows, variables, entries)
        return variables


def _add(program: LinearProgram, rows: Ints, variables: Ints, entries: Sequence[tuple[int, int, float]]) -> None:
    """Add (row, variable, coefficient) entries, by their places in `rows` and `variables`."""
    if entries:
        row, variable, value = (np.array(part) for part in zip(*entries, strict=True))
        program.add_entries(rows[row], variables[variable], value)


def _per_node(stage: ObjectiveStage, kind: Kind) -> float:
    return 0.0 if kind.existing else float(stage.node_cost(kind.price_micros, kind.weight))
