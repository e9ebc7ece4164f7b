"""The cluster of `bench.cluster_view` is what it says it is, and its changes leave it as large."""

from __future__ import annotations

from bench import cluster_objects as objects
from bench.cluster_server import change
from cagrpc.cluster.view.objects import PodReader, PodStage, read_node
from cagrpc.kube.client.envelopes import Encoding, WatchEventType, event, frames

_READER = PodReader("gang", {"default-scheduler"}, "cagrpc")


def test_pods_are_on_nodes_or_wait() -> None:
    daemon = _READER.read(objects.pod(7))
    assert (daemon.stage, daemon.node, daemon.pod.warning) == (PodStage.FIXED, "node-00001", "")
    running = _READER.read(objects.pod(30_001))
    assert (running.stage, running.node) == (PodStage.MOVABLE, "node-00001")
    waiting = _READER.read(objects.pod(objects.PODS - 1))
    assert (waiting.stage, waiting.node) == (PodStage.WAITING, "")
    assert dict(running.pod.spec.requests)["cpu"] == 200
    assert read_node(objects.node(1)).bare.node.allocatable["pods"] == 110


def test_a_created_pod_is_bound_and_deleted_again() -> None:
    seen: dict[str, list[tuple[WatchEventType, PodStage | None]]] = {}
    for version in range(500):
        (frame,) = frames(Encoding.PROTOBUF, [change(version)])
        told = event(Encoding.PROTOBUF, frame)
        read = _READER.read(told.item)
        seen.setdefault(read.key, []).append((told.change, read.stage))
        assert told.resource_version == str(version)
    created = _READER.read(objects.pod(objects.PODS + 10)).key
    assert seen[created] == [
        (WatchEventType.ADDED, PodStage.WAITING),
        (WatchEventType.MODIFIED, PodStage.MOVABLE),
        (WatchEventType.MODIFIED, PodStage.MOVABLE),
        (WatchEventType.DELETED, PodStage.MOVABLE),
    ]
