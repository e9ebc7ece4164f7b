"""The question of consolidation of a small cluster."""

from __future__ import annotations

from pathlib import Path

from cagrpc.config.files import load_provisioners
from cagrpc.config.prices import price_list
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.report.consolidation import MovingQuestion, moving_question
from cagrpc.report.problem import Offered, ReadCluster, question
from cagrpc.report.sources import read_files
from tests.report.clusters import Document, written

NOW = 1_800_000_000.0


def read(path: Path, items: list[Document], provisioners: Path | None = None) -> ReadCluster:
    objects = read_files([written(path / "cluster.json", items)])
    catalogue = embedded_catalogue()
    prices = price_list(catalogue, None)
    expanded = load_provisioners((provisioners,), catalogue) if provisioners else None
    offered = Offered(expanded, prices, gang_label="gang", now_seconds=NOW)
    return ReadCluster.read(objects, offered)


def asked(path: Path, items: list[Document], provisioners: Path | None = None) -> MovingQuestion:
    of = read(path, items, provisioners)
    return moving_question(of, question(of, of.first_kept()))
