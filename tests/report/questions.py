"""The question of consolidation of a small cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cagrpc.cluster.documents import Described, DocumentReader
from cagrpc.config.files import load_provisioners
from cagrpc.errors import InvalidInput
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.report.moving import MovingQuestion, moving_question
from cagrpc.report.prices import price_list
from cagrpc.report.problem import Offered, first_kept, question, reader_of
from cagrpc.report.sources import Objects, read_files
from cagrpc.report.standing import shapes, standing_nodes, texts_of
from tests.report.clusters import Document, written

NOW = 1_800_000_000.0


@dataclass(frozen=True)
class ReadCluster:
    objects: Objects
    reader: DocumentReader
    found: Described
    offered: Offered


def read(path: Path, items: list[Document], provisioners: Path | None = None) -> ReadCluster:
    objects = read_files([written(path / "cluster.json", items)])
    catalogue = embedded_catalogue()
    prices = price_list(catalogue, None)
    expanded = load_provisioners((provisioners,), catalogue) if provisioners else None
    offered = Offered(expanded, prices, gang_label="gang", now_seconds=NOW)
    reader = reader_of(objects, offered)
    found = reader.read()
    if reader.problems:
        raise InvalidInput("\n".join(reader.problems))
    return ReadCluster(objects, reader, found, offered)


def asked(path: Path, items: list[Document], provisioners: Path | None = None) -> MovingQuestion:
    of = read(path, items, provisioners)
    nodes = standing_nodes(of.found, of.offered.prices)
    found = shapes(nodes, texts_of(of.objects))
    repacking = question(of.reader, of.objects, nodes, found, of.offered, first_kept(nodes))
    return moving_question(of.found, nodes, found, of.offered, repacking)
