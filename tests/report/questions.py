"""The question of consolidation of a small cluster."""

from __future__ import annotations

from pathlib import Path

from cagrpc.api.core.movability import MovingRules
from cagrpc.cluster.documents import DocumentReader
from cagrpc.errors import InvalidConfiguration
from cagrpc.offline.inputs import Inputs, read_inputs
from cagrpc.report.consolidation import MovingQuestion, moving_question
from cagrpc.report.problem import ReadCluster, question
from tests.report.clusters import Document, written

NOW = 1_800_000_000.0


def read(path: Path, items: list[Document], provisioners: Path | None = None) -> ReadCluster:
    inputs = Inputs((written(path / "cluster.json", items),), (provisioners,) if provisioners else ())
    problems: list[str] = []
    found = read_inputs(inputs, DocumentReader(NOW, "gang", moving=MovingRules()), problems)
    if problems:
        raise InvalidConfiguration(problems)
    return ReadCluster.of(found)


def asked(path: Path, items: list[Document], provisioners: Path | None = None) -> MovingQuestion:
    of = read(path, items, provisioners)
    return moving_question(of, question(of, of.first_kept()))
