"""The objective and limits of a merged relaxation, and the nodes that it may use: new kinds one by one, existing nodes
merged into clusters of similar shape. Solves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.reduction.reduced import Bools, Floats, Ints, Reduced

_MOST_CLUSTERS = 40


@dataclass(frozen=True, slots=True)
class Ask:
    """What is minimised, and what may not be exceeded. The problem's own limits need not be named."""

    node_cost: Floats
    """Per kind; zero for existing ones."""
    unserved_cost: Floats
    """Per demand index, per pod; infinite where none may be left out."""
    rows: Sequence[tuple[Floats, Floats, float]] = ()
    """(use per node of a kind, use per unserved pod of a demand, most)."""


@dataclass(frozen=True, slots=True)
class Supply:
    """New kinds one by one, then existing nodes merged into clusters, as rows of the same arrays."""

    kind: Ints
    """-1 for a cluster."""
    free: Floats
    most: Floats
    least: Floats
    cost: Floats
    use: Floats
    """Rows x (limits and rows of the ask)."""
    fits: Bools
    """Rows x specs."""


def supply_of(reduced: Reduced, active: Ints, ask: Ask) -> Supply:
    """Return the supply for an ask over the `active` kinds."""
    new = active[~reduced.existing[active]]
    old = active[reduced.existing[active]]
    nodes = np.array([reduced.kinds[k].most for k in old.tolist()], dtype=np.float64)
    cluster = _clusters(reduced.free[old])
    clusters = int(cluster.max(initial=-1)) + 1
    resources, specs = reduced.free.shape[1], len(reduced.wanted)
    free = np.zeros((clusters, resources))
    np.add.at(free, cluster, reduced.free[old] * nodes[:, None])
    fits = np.zeros((clusters, specs), dtype=bool)
    for c in range(clusters):
        fits[c] = reduced.fits[old[cluster == c]].any(axis=0)
    rows = len(reduced.limits) + len(ask.rows)
    use = np.zeros((len(new) + clusters, rows))
    use[: len(new), : len(reduced.limits)] = reduced.use[new]
    for column, (per_kind, _, _) in enumerate(ask.rows, len(reduced.limits)):
        use[: len(new), column] = per_kind[new]
    return Supply(
        np.concatenate([new, np.full(clusters, -1)]),
        np.concatenate([reduced.free[new].astype(np.float64), free]),
        np.concatenate([[float(reduced.kinds[k].most) for k in new], np.ones(clusters)]),
        np.concatenate([[float(reduced.kinds[k].least) for k in new], np.zeros(clusters)]),
        np.concatenate([ask.node_cost[new], np.zeros(clusters)]),
        use,
        np.concatenate([reduced.fits[new], fits]),
    )


def _clusters(free: Ints) -> Ints:
    """Return the cluster of each existing kind: by size and shape, as fine as leaves few clusters."""
    if not len(free):
        return np.zeros(0, dtype=np.int64)
    logs = np.log2(free + 1.0)
    step = 0.5
    while True:
        cluster = np.unique(np.round(logs / step).astype(np.int64), axis=0, return_inverse=True)[1].ravel()
        if cluster.max() < _MOST_CLUSTERS or step > 64:
            return np.asarray(cluster, dtype=np.int64)
        step *= 1.5
