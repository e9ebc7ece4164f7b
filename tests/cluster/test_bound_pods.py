"""Bound pods that differ in nothing that planning reads are kept once."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.files.documents import ManifestDocument
from cagrpc.cluster.bound_pods import StandingPod, StandingPods


def document(name: str, node: str = "n", *, labels: dict[str, str] | None = None, **spec: Any) -> ManifestDocument:
    container = {"name": "it", "resources": {"requests": {"cpu": "1"}}, "env": [{"name": "A", "value": name}]}
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "labels": labels or {},
        "managedFields": [name],
    }
    spec = {"containers": [container], "nodeName": node, **spec}
    return ManifestDocument(name, {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Running"}})


def test_equal_pods_are_kept_once_without_what_planning_does_not_read() -> None:
    bound = StandingPods()
    assert all(map(bound.add, (document("a", "one"), document("b", "two"))))
    (alike,) = bound.alike
    assert alike.pods == [StandingPod("one", "a", "uid-a", 0), StandingPod("two", "b", "uid-b", 0)]
    assert "env" not in alike.like.spec["containers"][0]
    assert "managedFields" not in alike.like.metadata


@pytest.mark.parametrize(
    "other",
    [
        document("b", labels={"app": "web"}),
        document("b", tolerations=[{"operator": "Exists"}]),
        document("b", schedulingGroup={"podGroupName": "gang"}),
        document("b", volumes=[{"name": "scratch", "emptyDir": {}}]),
        document("b", restartPolicy="Never"),
        document("b", containers="none"),
    ],
    ids=lambda each: ",".join(sorted(each.spec.keys() - {"nodeName"})),
)
def test_what_planning_reads_tells_pods_apart(other: ManifestDocument) -> None:
    bound = StandingPods()
    bound.add(document("a"))
    bound.add(other)
    assert [len(each.pods) for each in bound.alike] == [1, 1]


def test_pods_with_claims_are_each_their_own() -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    bound = StandingPods()
    bound.add(document("a", volumes=volumes))
    bound.add(document("b", volumes=volumes))
    assert [len(each.pods) for each in bound.alike] == [1, 1]


def test_pods_that_wait_or_have_ended_are_none() -> None:
    ended = document("a")
    ended.body["status"]["phase"] = "Succeeded"
    bound = StandingPods()
    assert not any(map(bound.add, (ended, document("b", ""), ManifestDocument("n", {"kind": "Node"}))))
    assert not bound
