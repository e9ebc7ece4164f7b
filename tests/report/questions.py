"""The question of consolidation of a small cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cagrpc.config.files import load_provisioners
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.report.moving import MovingQuestion, moving_question
from cagrpc.report.prices import price_list
from cagrpc.report.problem import Offered, first_kept, question
from cagrpc.report.sources import Objects, read_files
from cagrpc.report.standing import ReportedNode, shapes, standing_nodes, texts_of
from tests.report.clusters import Document, written

NOW = 1_800_000_000.0


@dataclass(frozen=True)
class ReadCluster:
    objects: Objects
    nodes: Sequence[ReportedNode]
    offered: Offered


def read(path: Path, items: list[Document], provisioners: Path | None = None) -> ReadCluster:
    objects = read_files([written(path / "cluster.json", items)])
    catalogue = embedded_catalogue()
    prices = price_list(catalogue, None)
    expanded = load_provisioners((provisioners,), catalogue) if provisioners else None
    offered = Offered(expanded, prices, gang_label="gang", now_seconds=NOW)
    return ReadCluster(objects, standing_nodes(objects, prices), offered)


def asked(path: Path, items: list[Document], provisioners: Path | None = None) -> MovingQuestion:
    of = read(path, items, provisioners)
    found = shapes(of.nodes, texts_of(of.objects))
    kept = first_kept(of.nodes, of.offered.schedulers)
    repacking = question(of.objects, of.nodes, found, of.offered, kept)
    return moving_question(of.objects, of.nodes, found, of.offered, repacking)
