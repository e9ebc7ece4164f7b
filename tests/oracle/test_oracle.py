"""The scheduler's own word, asked about what is known of the scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracle import KubeScheduler

ZONE = "topology.kubernetes.io/zone"


@pytest.fixture(name="newest")
def _newest(oracle: Path) -> Iterator[KubeScheduler]:
    with KubeScheduler(oracle, "--scores") as found:
        yield found


@pytest.fixture(name="scheduler", params=["newest", pytest.param("oldest", marks=pytest.mark.long("another release"))])
def _scheduler(request: pytest.FixtureRequest, oracle: Path) -> Iterator[KubeScheduler]:
    if request.param == "oldest":
        oracle = request.getfixturevalue("oldest_oracle")
    with KubeScheduler(oracle, "--scores") as found:
        yield found


def node(name: str, zone: str = "a", **spec: Any) -> dict[str, Any]:
    labels = {ZONE: zone, "kubernetes.io/hostname": name}
    status = {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"}}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}


def pod(name: str, cpu: str = "1", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}]
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels or {"app": "a"}},
        "spec": {"containers": containers, **spec},
    }


def spread() -> dict[str, Any]:
    constraint = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**constraint, "labelSelector": {"matchLabels": {"app": "a"}}}]}


def on(name: str, *pods: dict[str, Any], nominated: bool = False) -> list[dict[str, Any]]:
    return [{"pod": each, "node": name, "nominated": nominated} for each in pods]


def refused(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["pod"], each["plugin"]) for each in answer["refused"]]


def claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def using(name: str) -> dict[str, Any]:
    return {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]}


def test_an_order_is_found_where_the_order_given_would_be_refused(scheduler: KubeScheduler) -> None:
    """Three pods of one zone and two of another: spread by one, they go there in turn, whatever comes first here."""
    placements = on("n1", *(pod(f"p{n}", **spread()) for n in range(3)))
    placements += on("n2", *(pod(f"q{n}", **spread()) for n in range(2)))
    answer = scheduler.ask({"nodes": [node("n1"), node("n2", "b")], "placements": placements})
    assert (answer["refused"], answer["undecided"]) == ([], 0)


def test_what_no_order_binds_is_refused_with_the_plug_in(scheduler: KubeScheduler) -> None:
    placements = on("n1", *(pod(f"p{n}", **spread()) for n in range(3)))
    answer = scheduler.ask({"nodes": [node("n1"), node("n2", "b")], "placements": placements})
    assert refused(answer) == [("default/p1", "PodTopologySpread"), ("default/p2", "PodTopologySpread")]
    assert answer["undecided"] == 0


def test_what_one_binding_takes_counts_for_the_next(scheduler: KubeScheduler) -> None:
    ports = {"containers": [{"name": "c", "image": "x", "ports": [{"containerPort": 80, "hostPort": 80}]}]}
    placements = on("n1", pod("p0", "3"), pod("p1", "3"), {**pod("q0"), "spec": ports}, {**pod("q1"), "spec": ports})
    answer = scheduler.ask({"nodes": [node("n1")], "placements": placements})
    assert refused(answer) == [("default/p1", "NodeResourcesFit"), ("default/q1", "NodePorts")]


def test_a_volume_ties_the_pods_that_share_it_and_counts_against_the_node(scheduler: KubeScheduler) -> None:
    driver = "csi.example.com"
    fast = {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": driver,
        "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "volumeBindingMode": "WaitForFirstConsumer",
    }  # fmt: skip
    drivers = [
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
            "spec": {
                "drivers": [{"name": driver, "nodeID": name, "topologyKeys": [ZONE], "allocatable": {"count": 2}}],
            },
        }
        for name in ("n1", "n2")
    ]  # fmt: skip
    placements = on("n1", pod("p0", **using("c1"))) + on("n2", pod("p1", **using("c1")))
    placements += on("n1", pod("p2", **using("c2")), pod("p3", **using("c3")))
    answer = scheduler.ask(
        {
            "nodes": [node("n1"), node("n2", "b")],
            "objects": [fast, *drivers, *map(claim, ("c1", "c2", "c3"))],
            "placements": placements, "unplaced": [pod("u", **using("c1"))],
        }
    )  # fmt: skip
    assert refused(answer) == [("default/p1", "VolumeBinding"), ("default/p3", "NodeVolumeLimits")]
    assert answer["takes"] == {"default/u": ["n1"]}


def test_devices_that_a_pod_has_are_not_the_next_ones(newest: KubeScheduler) -> None:
    about = {"apiVersion": "resource.k8s.io/v1"}
    selector = {"cel": {"expression": "device.driver == 'gpu.example.com'"}}
    requests = [{"name": "g", "exactly": {"deviceClassName": "gpu"}}]
    objects = [
        {**about, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}},
        {
            **about, "kind": "ResourceClaimTemplate", "metadata": {"name": "one", "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": requests}}},
        },
        {
            **about, "kind": "ResourceSlice", "metadata": {"name": "n1"},
            "spec": {
                "driver": "gpu.example.com", "nodeName": "n1", "devices": [{"name": "g0"}, {"name": "g1"}],
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            },
        },
    ]  # fmt: skip
    pods = [pod(f"p{n}", resourceClaims=[{"name": "g", "resourceClaimTemplateName": "one"}]) for n in range(4)]
    answer = newest.ask(
        {"nodes": [node("n1"), node("n2")], "objects": objects, "placements": on("n1", *pods[:3]), "unplaced": pods[3:]}
    )
    assert refused(answer) == [("default/p2", "DynamicResources")]
    assert answer["takes"] == {"default/p3": []}


def test_a_pod_that_goes_where_it_likes_can_leave_another_stuck(scheduler: KubeScheduler) -> None:
    """A small pod fits either node, a large one the first alone: who comes first matters, unless they are nominated."""
    nodes = [node("n1"), {**node("n2", "b"), "status": {"capacity": {"cpu": "2", "memory": "8Gi", "pods": "110"}}}]
    small, large = pod("small", "2"), pod("large", "4")
    free = scheduler.ask({"nodes": nodes, "placements": on("n2", small) + on("n1", large)})
    assert [each["pod"] for each in free["stuck"]] == ["default/large"]
    steered = scheduler.ask(
        {"nodes": nodes, "placements": on("n2", small, nominated=True) + on("n1", large, nominated=True)}
    )
    assert steered["stuck"] == []
    assert steered["orders_tried"] > 1


def test_what_is_left_out_is_tried_on_all_nodes_and_an_empty_one(scheduler: KubeScheduler) -> None:
    answer = scheduler.ask(
        {
            "nodes": [node("n1"), node("n2", "b", taints=[{"key": "k", "effect": "NoSchedule"}])],
            "placements": on("n1", pod("p", "3")), "unplaced": [pod("small"), pod("large", "4"), pod("huge", "5")],
            "empty": [node("empty", "c")],
        }
    )  # fmt: skip
    assert answer["takes"] == {"default/small": ["n1", "empty"], "default/large": ["empty"], "default/huge": []}


def test_daemon_sets_have_their_pods_on_nodes_that_do_not_stand_yet(scheduler: KubeScheduler) -> None:
    template = {"metadata": {"labels": {"d": "s"}}, "spec": pod("", "1")["spec"]}
    daemons = {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ds", "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": {"d": "s"}}, "template": template},
    }  # fmt: skip
    asked = {"nodes": [node("n1")], "objects": [daemons], "placements": on("n1", pod("p", "4"))}
    assert refused(scheduler.ask(asked)) == [("default/p", "NodeResourcesFit")]
    assert scheduler.ask({**asked, "standing": ["n1"]})["refused"] == []


def test_objects_are_admitted(scheduler: KubeScheduler) -> None:
    """A RuntimeClass adds its overhead, a PriorityClass says who is first."""
    objects = [
        {
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "heavy"}, "handler": "heavy",
            "overhead": {"podFixed": {"cpu": "2"}},
        },
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 10},
    ]  # fmt: skip
    heavy = pod("heavy", "3", runtimeClassName="heavy")
    answer = scheduler.ask({"nodes": [node("n1")], "objects": objects, "placements": on("n1", heavy)})
    assert refused(answer) == [("default/heavy", "NodeResourcesFit")]
    first = [pod("low", "3"), pod("high", "3", priorityClassName="high")]
    answer = scheduler.ask(
        {"nodes": [node("n1")], "objects": objects, "placements": on("n1", *first[:1]), "unplaced": first[1:]}
    )
    (stuck,) = answer["stuck"]
    assert (stuck["pod"], stuck["order"], stuck["instead"]) == (
        "default/low",
        ["default/high", "default/low"],
        ["default/high"],
    )


def test_label_keys_are_in_the_selectors(newest: KubeScheduler) -> None:
    """The API server puts them there; the plug-in InterPodAffinity does not know them."""
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "a"}}, "matchLabelKeys": ["version"]}
    apart: dict[str, Any] = {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    }
    pods = [pod(f"p{n}", labels={"app": "a", "version": version}, **apart) for n, version in enumerate("112")]
    answer = newest.ask({"nodes": [node("n1")], "placements": on("n1", *pods)})
    assert refused(answer) == [("default/p1", "InterPodAffinity")]


def test_scores_are_the_plug_ins(scheduler: KubeScheduler) -> None:
    preferred = [
        {"weight": 100, "preference": {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}}
    ]
    wanting = pod("p", affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}})
    answer = scheduler.ask({"nodes": [node("n1"), node("n2", "b")], "placements": on("n1", wanting)})
    points = answer["scores"]["default/p"]
    assert points["n2"]["NodeAffinity"] > points["n1"]["NodeAffinity"] == 0
    assert points["n2"]["total"] > points["n1"]["total"]


def test_a_question_that_cannot_be_read_is_answered_by_its_error_and_the_next_as_ever(scheduler: KubeScheduler) -> None:
    with pytest.raises(ValueError, match=r"nodes\[0\]"):
        scheduler.ask({"nodes": [{"kind": "Pod", "apiVersion": "v1", "spec": 5}]})
    assert scheduler.ask({"nodes": [node("n1")], "placements": on("n1", pod("p"))})["refused"] == []
