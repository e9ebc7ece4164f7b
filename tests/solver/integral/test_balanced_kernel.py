"""Nodes filled one after the other: nothing is lost, nothing overflows, and where pods complement each other nodes are
nearly full."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from solver.integral.balanced_kernel import NewNodeKinds, PodRows, Standing, fill, room_for
from solver.reduction.reduced import Ints


def kinds_of(free: list[list[int]], cost: list[float], rows: int, room: int = 1000) -> NewNodeKinds:
    """Return kinds without limits that take every row."""
    count = len(free)
    return NewNodeKinds(
        np.array(free, dtype=np.int64),
        np.ones((count, rows), dtype=np.bool_),
        np.array(cost),
        np.full(count, np.inf),
        np.full(count, room, dtype=np.int64),
        np.zeros((count, 0), dtype=np.int64),
        np.zeros(0, dtype=np.int64),
    )


@st.composite
def questions(draw: st.DrawFn) -> tuple[PodRows, Standing, NewNodeKinds, float]:
    rows, resources = draw(st.integers(1, 5)), draw(st.integers(1, 3))

    def table(count: int, least: int, most: int, width: int = resources) -> Ints:
        each = st.lists(st.integers(least, most), min_size=width, max_size=width)
        found = draw(st.lists(each, min_size=count, max_size=count))
        return np.array(found, dtype=np.int64).reshape(count, width)

    standing, kinds, limits = draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 2))
    requests = table(rows, 0, 5)
    requests[:, -1] = 1
    pods = PodRows(requests, table(rows, 1, 9, 1)[:, 0].astype(float), table(rows, 0, 12, 1)[:, 0])
    return (
        pods,
        Standing(table(standing, -2, 9), table(standing, 0, 1, rows).astype(np.bool_)),
        NewNodeKinds(
            table(kinds, 0, 9),
            table(kinds, 0, 1, rows).astype(np.bool_),
            table(kinds, 0, 9, 1)[:, 0].astype(float),
            np.full(kinds, np.inf),
            table(kinds, 0, 4, 1)[:, 0],
            table(kinds, 0, 2, limits),
            table(limits, 0, 9, 1)[:, 0],
        ),
        draw(st.sampled_from([0.0, 5.0, np.inf])),
    )


@given(questions())
def test_pods_are_where_they_fit_or_left(question: tuple[PodRows, Standing, NewNodeKinds, float]) -> None:
    pods, standing, kinds, most_cost = question
    before, room, allowed = pods.left.copy(), kinds.room.copy(), kinds.allowed.copy()
    out = room_for(int(before.sum()))
    opened, entries = fill(pods, standing, kinds, np.ones(pods.requests.shape[1]), most_cost, out)
    new = out.kind[:opened]
    rest = np.concatenate([standing.free, kinds.free[new]])
    fits = np.concatenate([standing.fits, kinds.fits[new]])
    placed = np.zeros_like(before)
    for node, row, count in zip(out.node[:entries], out.row[:entries], out.pods[:entries], strict=True):
        assert count > 0
        assert fits[node, row]
        placed[row] += count
        rest[node] -= count * pods.requests[row]
        assert (rest[node] >= 0).all()
    assert (placed + pods.left == before).all()
    assert (np.bincount(new, minlength=len(room)) + kinds.room == room).all()
    assert (kinds.room >= 0).all()
    assert (kinds.allowed == allowed - (kinds.use[new].sum(axis=0) if opened else 0)).all()
    assert (kinds.allowed >= 0).all()
    if not pods.left.any():
        assert kinds.cost[new[:-1]].sum() <= most_cost


@given(st.integers(0, 10**6))
def test_pods_that_complement_each_other_fill_nodes_together(seed: int) -> None:
    """Half of the pods need twice the memory for their CPU that a node has, half need none: apart, on nodes of shapes
    that suit them, they cost a tenth more than together. The larger each pod is, the fewer there are."""
    rng = np.random.default_rng(seed)
    requests = np.array([[c, m, 1] for c in (1, 2, 4, 8) for m in (2 * c, 0)], dtype=np.int64)
    left = np.repeat(rng.integers(20, 60, 4) * (8, 4, 2, 1), 2)
    kinds = kinds_of([[32, 32, 100], [32, 64, 100], [32, 0, 100]], [1e6, 1.5e6, 0.7e6], len(requests))
    out = room_for(int(left.sum()))
    least = float(left @ requests[:, 0]) / 32
    worth = np.array([0.6, 0.4, 0.0])
    pods = PodRows(requests, requests @ worth / 32 * 1e6, left)
    standing = Standing(kinds.free[:0], kinds.fits[:0])
    opened, _ = fill(pods, standing, kinds, (worth + 0.05) / 32**2, np.inf, out)
    assert not left.any()
    assert kinds.cost[out.kind[:opened]].sum() / 1e6 <= least * 1.05 + 1
