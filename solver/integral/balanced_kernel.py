"""Filling nodes one after the other, compiled, each with pods that use up its resources together.

Where there are many pods, of sizes that complement each other, nodes can be full to a hundredth in every resource. What
keeps them from it is order: whatever suits best goes first, and what suits nothing is left for the last nodes. So a
node takes the pod whose mix of resources is closest to what it has left, the larger of two that are equally close; and
first of each row of pods no more than its part of those that are left, so that every node looks like the whole.

`packing` fills by patterns, each opened as often as its pods last: its work does not grow with the number of
nodes. This one's does, by some hundredths of a millisecond for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from solver.columns.loops import any_left, highest
from solver.compiled import Kernel, inner, kernel
from solver.reduction.reduced import Bools, Floats, Ints

_PART = 1.5
"""Of the pods that are left, as a multiple of a node's part by worth: at most so many of a row before others."""
_RISE = 1.01
"""What a kind is worth for its cost falls as pods run out, and may rise as their mix changes: by so much, it is
supposed, for each node that is opened until it is asked again."""


class PodRows(NamedTuple):
    """What is to be placed: rows of pods that are alike."""

    requests: Ints
    """Rows x resources."""
    values: Floats
    """Per row, positive: what placing a pod is worth, in millionths of $/h."""
    left: Ints
    """Per row: pods without a place. Filling nodes uses them up."""


class Standing(NamedTuple):
    """Nodes that stand, filled first, in their order."""

    free: Ints
    """Nodes x resources."""
    fits: Bools
    """Nodes x rows."""


class NewNodeKinds(NamedTuple):
    """New nodes that may be opened."""

    free: Ints
    """NewNodeKinds x resources."""
    fits: Bools
    """NewNodeKinds x rows."""
    cost: Floats
    """Per kind, in millionths of $/h."""
    ratio: Floats
    """Per kind: what a node is worth for its cost at most, however it is filled; only the best is asked."""
    room: Ints
    """Per kind: nodes that may still be opened. Opening uses it up."""
    use: Ints
    """NewNodeKinds x limits."""
    allowed: Ints
    """Per limit: what it still allows. Opening uses it up."""


class Filled(NamedTuple):
    """Where pods are: entry i says that so many `pods` of a `row` are on a `node`: of those that stand by its index, of
    new ones by the number of those that stand and its place in `kind`."""

    kind: Ints
    node: Ints
    row: Ints
    pods: Ints


class _NodeBeingFilled(NamedTuple):
    """One node while it is filled."""

    rest: Ints
    """Per resource: what is still free."""
    rows: Ints
    """Those that may still fit come first."""
    most: Ints
    """Per row: how many pods may be placed before others."""
    placed: Ints
    """Per row: pods."""


@inner
def _closest(pods: PodRows, weight: Floats, node: _NodeBeingFilled, rows: int) -> tuple[int, int]:
    """Return the row whose mix is closest to what is free, of those of which the node may have more (-1 for none), and
    how many rows still fit."""
    best, best_score, fitting, resources = -1, -1.0, 0, len(weight)
    free = 1e-300
    for r in range(resources):
        free += weight[r] * node.rest[r] * node.rest[r]
    for place in range(rows):
        row = node.rows[place]
        if node.placed[row] >= pods.left[row]:
            continue
        product, size, fits = 0.0, 1e-300, True
        for r in range(resources):
            need = pods.requests[row, r]
            if need > node.rest[r]:
                fits = False
                break
            product += weight[r] * need * node.rest[r]
            size += weight[r] * need * need
        if not fits:
            continue
        node.rows[fitting] = row
        fitting += 1
        close = product * product / (size * free)  # the square of the cosine
        close *= close
        close *= close
        score = close * close * math.sqrt(size)
        if score > best_score and node.placed[row] < node.most[row]:
            best, best_score = row, score
    return best, fitting


@inner
def _fill(pods: PodRows, free: Ints, fits: Bools, cost: float, weight: Floats, node: _NodeBeingFilled) -> float:
    """Fill a node; return what its pods are worth."""
    rows, left = 0, 1e-300
    for row in range(len(pods.left)):
        node.placed[row] = 0
        if pods.left[row] > 0 and fits[row]:
            node.rows[rows] = row
            rows += 1
            left += pods.left[row] * pods.values[row]
    for r in range(len(free)):
        node.rest[r] = free[r]
    for row in range(len(pods.left)):
        node.most[row] = int(min(1.0, _PART * cost / left) * pods.left[row]) + 1
    worth, capped = 0.0, True
    while rows:
        best, rows = _closest(pods, weight, node, rows)
        if best >= 0:
            node.placed[best] += 1
            worth += pods.values[best]
            for r in range(len(free)):
                node.rest[r] -= pods.requests[best, r]
        elif capped:
            capped = False
            for row in range(len(pods.left)):
                node.most[row] = pods.left[row]
        else:
            break
    return worth


@inner
def _keep(pods: PodRows, node: _NodeBeingFilled, number: int, out: Filled, entries: int) -> int:
    """Write down what was placed on a node; return the number of entries."""
    for row in range(len(pods.left)):
        if node.placed[row] > 0:
            pods.left[row] -= node.placed[row]
            out.node[entries], out.row[entries], out.pods[entries] = number, row, node.placed[row]
            entries += 1
    return entries


@inner
def _can_open(kinds: NewNodeKinds, kind: int) -> bool:
    if kinds.room[kind] <= 0:
        return False
    for row in range(len(kinds.allowed)):  # noqa: SIM110 - generators are not compiled
        if kinds.use[kind, row] > kinds.allowed[row]:
            return False
    return True


def _steps(pods: PodRows, standing: Standing, kinds: NewNodeKinds, weight: Floats, *_: Any) -> int:
    """Return how many steps `fill` takes where most nodes are opened at the first asking."""
    units, rows = int(pods.left.sum()), len(pods.left)
    nodes = len(standing.free) + len(kinds.ratio) + units
    return (nodes + units) * rows * (len(weight) + 2) + units * len(kinds.ratio)


@kernel(_steps)
def fill(
    pods: PodRows, standing: Standing, kinds: NewNodeKinds, weight: Floats, most_cost: float, out: Filled
) -> tuple[int, int]:
    """Fill nodes that stand, then new ones, of the kind that is worth most for its cost, until all pods have a place,
    nothing can be opened, or that would cost more than `most_cost`. Return how many nodes were opened, and how many
    entries were written. `weight` is what the square of a resource counts."""
    rows, number, opened, entries, cost = len(pods.left), len(standing.free), 0, 0, 0.0
    one_for_each = (np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.int64))
    node = _NodeBeingFilled(np.empty(len(weight), np.int64), *one_for_each)
    ratio = np.empty(len(kinds.ratio))
    for kind in range(len(ratio)):
        ratio[kind] = kinds.ratio[kind]
    for place in range(number):
        if _fill(pods, standing.free[place], standing.fits[place], 1e300, weight, node) > 0:
            entries = _keep(pods, node, place, out, entries)
    while len(ratio) and any_left(pods.left):
        kind = highest(ratio)
        if ratio[kind] <= 0 or cost > most_cost:
            break
        worth = 0.0
        if _can_open(kinds, kind):
            worth = _fill(pods, kinds.free[kind], kinds.fits[kind], kinds.cost[kind], weight, node)
        ratio[kind] = worth / (kinds.cost[kind] + 1.0)
        if worth <= 0 or ratio[highest(ratio)] > ratio[kind]:
            continue
        entries = _keep(pods, node, number + opened, out, entries)
        out.kind[opened] = kind
        opened += 1
        cost += kinds.cost[kind]
        kinds.room[kind] -= 1
        for row in range(len(kinds.allowed)):
            kinds.allowed[row] -= kinds.use[kind, row]
        for other in range(len(ratio)):
            ratio[other] = min(kinds.ratio[other], ratio[other] * _RISE)
    return opened, entries


def room_for(pods: int) -> Filled:
    """Return arrays for the places of so many pods."""
    return Filled(*(np.zeros(pods, dtype=np.int64) for _ in range(4)))


def examples() -> Iterator[tuple[Kernel[..., Any], tuple[Any, ...]]]:
    """What kernels are compiled for."""
    one, table, fits = np.ones(1, dtype=np.int64), np.ones((1, 1), dtype=np.int64), np.ones((1, 1), dtype=np.bool_)
    kinds = NewNodeKinds(table, fits, np.ones(1), np.ones(1), one.copy(), table, one.copy())
    yield fill, (PodRows(table, np.ones(1), one), Standing(table, fits), kinds, np.ones(1), 1.0, room_for(1))
