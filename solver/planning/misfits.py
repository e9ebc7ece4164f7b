"""Sentences on why groups and nodes do not fit, with where they are true. The sentences are `reasons`'s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from solver.model import Node, NodeGroup
from solver.reduction.reduced import Bools


class Misfits:
    """Sentences on why groups and nodes do not fit, and of how many each is true; of a single one, of which."""

    def __init__(self, groups: Sequence[NodeGroup], nodes: Sequence[Node]) -> None:
        self._groups, self._nodes = groups, nodes
        self._counts: Counter[str] = Counter()
        self._single: dict[str, str] = {}

    def add(self, sentence: str, count: int, position: int | None) -> None:
        """Add places; a single one by its position, groups first."""
        self._counts[sentence] += count
        if position is not None:
            node = position - len(self._groups)
            name = f"node group {self._groups[position].id}" if node < 0 else f"node {self._nodes[node].name}"
            self._single[sentence] = name

    def add_nodes(self, sentence: str, nodes: Bools) -> None:
        """Add the nodes of a mask."""
        count = int(nodes.sum())
        self.add(sentence, count, len(self._groups) + int(np.argmax(nodes)) if count == 1 else None)

    def sentences(self) -> Iterator[str]:
        """Yield the sentences, those of most places first."""
        for sentence, count in sorted((+self._counts).items(), key=lambda item: (-item[1], item[0])):
            where = self._single[sentence] if count == 1 else f"{count} nodes or node groups"
            yield f"{sentence} ({where})"
