"""A relaxation between the fluid one and that of columns: some kinds of nodes are filled with liquid, all others with
patterns. Where a kind's patterns are many and hard to find, and few of its nodes are opened, little is lost by it, and
pod values that are nearly the best ones are there long before its columns are.
"""

from __future__ import annotations

import numpy as np

from solver.columns.pool import Pool, RelaxedMaster, Weighting
from solver.reduction.reduced import Floats, Ints, most_per_node
from solver.relaxation.linear_program import INFINITY


class PartlyFluid(RelaxedMaster):
    """The relaxation over a pool, with `kinds` fluid."""

    def __init__(self, pool: Pool, weights: Weighting, kinds: Ints) -> None:
        super().__init__(pool, weights)
        self._state(pool.reduced)
        self._scarce: dict[int, Ints] = {}
        """Per fluid kind: a row for each resource."""
        for kind, whole in zip(kinds.tolist(), most_per_node(pool.reduced, kinds), strict=True):
            self._fill(kind, whole)

    def _fill(self, kind: int, whole: Ints) -> None:
        """Add the kind's nodes, and the pods on them: no more than there is of any resource, nor more of one spec than
        whole pods fit."""
        program, reduced = self._program, self._pool.reduced
        specs = np.flatnonzero(whole)
        share = reduced.requests[specs] / np.maximum(reduced.free[kind], 1)
        opened = program.add_variables(self._weights.node_cost[[kind]])
        placed = program.add_variables(np.zeros(len(specs)))
        program.add_entries(self._serve[specs], placed, np.ones(len(specs)))
        rows = self._scarce[kind] = self._at_most(opened, np.ones(share.shape[1]))
        spec, resource = np.nonzero(share)
        program.add_entries(rows[resource], placed[spec], share[spec, resource])
        tight = np.flatnonzero(share.max(axis=1, initial=0.0) * whole[specs] < 1 - 1e-9)
        program.add_entries(self._at_most(opened, whole[specs[tight]]), placed[tight], np.ones(len(tight)))
        if self._room[kind] >= 0:
            program.add_entries(self._room[[kind]], opened, np.ones(1))
        limits = np.flatnonzero(reduced.use[kind])
        program.add_entries(self._limits[limits], np.repeat(opened, len(limits)), reduced.use[kind, limits])

    def _at_most(self, opened: Ints, amounts: Floats | Ints) -> Ints:
        """Add rows for what so many nodes of a kind hold of several things, `amounts` each."""
        rows = self._program.add_rows(np.full(len(amounts), -INFINITY), np.zeros(len(amounts)))
        self._program.add_entries(rows, np.repeat(opened, len(amounts)), -amounts)
        return rows

    def prices(self, kind: int) -> Floats:
        """Return, per resource, what a unit of it on a fluid kind was worth at the last solve."""
        duals = self.last_duals[self._scarce[kind]]
        return np.asarray(np.maximum(-duals, 0.0) / np.maximum(self._pool.reduced.free[kind], 1))
