"""Whoever may create objects in one namespace keeps nobody else's pods from being planned."""

from __future__ import annotations

from typing import Any

from cagrpc.api.core.slack import MIRROR
from cagrpc.api.gen import api_pb2, kubernetes_pb2
from tests.support.controlplane.cluster import pod_spec
from tests.support.controlplane.live import Live, group

_DIGITS = "9" * 5_000
_MARK = {"annotations": {MIRROR: _DIGITS}}
_HONEST = 12


def poison(live: Live) -> None:
    """What each stopped everybody: numbers of thousands of digits, text that is no UTF-8, a ReplicaSet that is its own
    owner, requests that no number holds."""
    cluster, admin = live.cluster, live.cluster.admin
    nowhere: dict[str, Any] = {"nodeSelector": {"no": "node"}}
    cluster.create_pod("digits", {"cpu": "1"}, metadata=_MARK, **nowhere)
    cluster.create_pod("huge", {"cpu": "1e30", "memory": "9E"}, **nowhere)
    cluster.create_deployment("digits", 1, {"cpu": "1"}, metadata=_MARK, **nowhere)
    admin.merge(cluster.path("deployments", "digits", api="apis/apps/v1"), {"metadata": _MARK})
    body = {"metadata": {"name": "digits", **_MARK}, "template": {"metadata": _MARK, "spec": pod_spec({"cpu": "1e30"})}}
    admin.create(cluster.path("podtemplates"), body)
    labels = {"app": "own"}
    template = {"metadata": {"labels": labels}, "spec": pod_spec({"cpu": "1"}, **nowhere)}
    sets = cluster.path("replicasets", api="apis/apps/v1")
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    made = admin.create(sets, {"metadata": {"name": "own"}, "spec": spec})
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "own", "uid": made["metadata"]["uid"]}
    admin.merge(f"{sets}/own", {"metadata": {"ownerReferences": [{**owner, "controller": True}]}})
    assert admin.ask("POST", cluster.path("pods"), _no_utf_8(), kind="application/vnd.kubernetes.protobuf")


def _no_utf_8() -> bytes:
    container = kubernetes_pb2.Container(name="main").SerializeToString() + b"\x12\x10example.com/none"
    pod = kubernetes_pb2.Pod(metadata={"name": "no-utf-8", "annotations": {"note": "NOTE"}})
    pod.spec.containers.add().MergeFromString(container)
    pod.spec.nodeSelector["no"] = "node"
    raw = pod.SerializeToString().replace(b"NOTE", b"\xff\xfe\xfd\xfc")
    return b"k8s\x00" + api_pb2.Unknown(typeMeta={"apiVersion": "v1", "kind": "Pod"}, raw=raw).SerializeToString()


def test_a_cluster_full_of_poison_is_planned_as_any_other(live: Live) -> None:
    poison(live)
    live.configure([{"name": "all", "node_groups": [group("only", "4", "8Gi", 0.2)]}])
    live.start()
    live.wait_for(lambda: live.serving.get("/status")["ready"], "all is known")
    live.cluster.create_deployment("web", _HONEST, {"cpu": "1500m", "memory": "1Gi"})
    live.wait_for_running(_HONEST)
    live.wait_until_settled()
    assert len(live.nodes()) == _HONEST // 2
    poison_again(live)
    live.cluster.admin.merge(live.cluster.path("deployments", "web", api="apis/apps/v1"), {"spec": {"replicas": 14}})
    live.wait_for_running(_HONEST + 2)
    assert live.serving.get("/readyz") == "ok\n"
    assert "podtemplates ok\n" in live.serving.get("/readyz?verbose")
    assert 'cagrpc_unreadable_objects{resource="pods"} 0.0' in live.serving.get("/metrics")


def poison_again(live: Live) -> None:
    """The same as changes of what is watched."""
    cluster = live.cluster
    for flip in range(5):
        annotations = {MIRROR: _DIGITS if flip % 2 else "1"}
        cluster.admin.merge(cluster.path("pods", "digits"), {"metadata": {"annotations": annotations}})
