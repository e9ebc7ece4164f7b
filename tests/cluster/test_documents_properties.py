"""The same cluster, from files and from watches."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.encoding.messages import plain
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.documents import DocumentReader
from tests.cluster.view.test_properties import nodes, pods
from tests.support.controllers.cluster_objects import NOW, Fed, comparable
from tests.support.examples import examples


def document(message: Message) -> ManifestDocument:
    kind = message.DESCRIPTOR.name
    body = {"kind": kind, **plain(message)}
    return ManifestDocument(f"{kind} {body['metadata']['name']}", body)


def named(found: list[Any]) -> list[Any]:
    """Return the last of each name; a pod of no containers is none."""
    latest = {each.metadata.name: each for each in found}
    return [each for each in latest.values() if each.DESCRIPTOR.name != "Pod" or each.spec.containers]


@examples(300)
@given(st.lists(pods(), max_size=8), st.lists(nodes, max_size=2))
def test_files_describe_what_is_watched(found: list[kubernetes_pb2.Pod], standing: list[kubernetes_pb2.Node]) -> None:
    watched = Fed()
    watched.relist(named(standing), path="/api/v1/nodes")
    watched.relist(named(found))
    reader = DocumentReader(NOW)
    reader.documents += map(document, (*named(found), *named(standing)))
    described = reader.read()
    one, of_nodes = comparable(watched.state())
    other, of_others = comparable(described.state)
    assert (one.waiting, one.nodes, of_nodes) == (other.waiting, other.nodes, of_others)
    assert (one.incomplete_gangs, one.consumers, one.half_consumers) == (
        other.incomplete_gangs, other.consumers, other.half_consumers
    )  # fmt: skip
    unreadable = {each.metadata.name for each in named(found) if "many" in str(each.spec)}
    assert {each.partition(": ")[0] for each in reader.problems} == {f"Pod {name}" for name in unreadable}
