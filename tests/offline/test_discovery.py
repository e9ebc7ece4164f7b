"""What is found in a cluster, by get and list requests alone, and what is said of what cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cagrpc.backends.karpenter.pools import NODE_POOLS
from cagrpc.controllers.autoscaler import GroupSize
from cagrpc.errors import Unavailable
from cagrpc.offline.discovery import findings, read_flags
from cagrpc.offline.first_configuration import AutoscalerWorkload, ClusterFindings, first_configuration
from tests.support.api_server import NODES, ApiServer, Fault, Refusal

DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS = (
    f"/apis/apps/v1/{each}" for each in ("deployments", "statefulsets", "daemonsets")
)
PODS, GROUPS = "/api/v1/pods", "/apis"
CONFIG_MAPS = "/api/v1/namespaces/autoscaling/configmaps"
KINDS = (DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS, PODS, NODES, NODE_POOLS, GROUPS, CONFIG_MAPS)
STATUS = """\
nodeGroups:
- name: eks-spot-a
  health: {cloudProviderTarget: 3, minSize: 0, maxSize: 10}
  scaleUp: {status: NoActivity}
"""


def container(*args: str, image: str = "registry.k8s.io/autoscaling/cluster-autoscaler:v1.34.0", **more: Any) -> Any:
    return {"image": image, "args": list(args), **more}


def workload(api: ApiServer, kind: str, name: str, *containers: Any) -> None:
    metadata = {"namespace": "autoscaling", "name": name}
    api.put(f"{kind}/{name}", {"metadata": metadata, "spec": {"template": {"spec": {"containers": list(containers)}}}})


def pod(api: ApiServer, name: str, phase: str = "Running", owner: str = "ReplicaSet", **spec: Any) -> None:
    metadata = {
        "namespace": "team",
        "name": name,
        "labels": {"kueue.x-k8s.io/pod-group-name": "train"},
        "ownerReferences": [{"kind": owner}] if owner else [],
    }
    api.put(f"{PODS}/{name}", {"metadata": metadata, "spec": spec, "status": {"phase": phase}})


def node(api: ApiServer, name: str, **labels: str) -> None:
    api.put(f"{NODES}/{name}", {"metadata": {"name": name, "labels": labels}})


def look(api: ApiServer) -> ClusterFindings:
    found = findings(api.client(), Path("kubeconfig"), "it")
    assert all(each.startswith("GET ") for each in api.requests)
    return found


def test_all_of_a_cluster_with_an_autoscaler_of_its_own() -> None:
    api = ApiServer(*KINDS)
    flags = ("--cloud-provider=aws", "--namespace=autoscaling", "--v=4", "--nodes=1:10:spot")
    workload(api, DEPLOYMENTS, "cluster-autoscaler", container(image="sidecar:1"), container(*flags))
    workload(api, DEPLOYMENTS, "cluster-proportional-autoscaler", container(image="cluster-proportional-autoscaler:1"))
    api.put(f"{CONFIG_MAPS}/cluster-autoscaler-status", {"data": {"status": STATUS}})
    api.put(f"{CONFIG_MAPS}/cluster-autoscaler-priority-expander", {"data": {"priorities": "5: ["}})
    for number, phase in enumerate(("Running", "Pending", "Succeeded", "Failed")):
        pod(api, f"pod-{number}", phase, schedulerName="volcano")
    pod(api, "plain")
    eks = "eks.amazonaws.com/capacityType"
    node(api, "known", **{"node.kubernetes.io/instance-type": "m5.large", eks: "ON_DEMAND"})
    node(api, "spot", **{"node.kubernetes.io/instance-type": "m5.large", eks: "SPOT"})
    node(api, "bare")
    api.put("/apis/kueue.x-k8s.io", {"preferredVersion": {"version": "v1beta1"}})
    found = look(api)
    own = {"cloud-provider": "aws", "namespace": "autoscaling"}
    assert found.autoscalers == (AutoscalerWorkload("Deployment autoscaling/cluster-autoscaler", "1.34.0", own),)
    assert found.objects.sizes == {"eks-spot-a": GroupSize(3, 10)}
    assert found.objects.priorities is None
    assert found.kubeconfig.is_absolute()
    assert found.pods is not None
    assert found.pods.schedulers == {"volcano": 2, "default-scheduler": 1}
    assert found.pods.gang_labels == {"kueue.x-k8s.io/pod-group-name": 3}
    assert found.nodes is not None
    assert (found.nodes.count, found.nodes.clouds) == (3, {"EKS": 2})
    assert found.nodes.capacity_types == {"on-demand": 1, "spot": 1}
    assert found.nodes.spot_labels == {(eks, "SPOT"): 1}
    assert (found.nodes.priced, found.nodes.unpriced) == ({"m5.large": 1}, {"m5.large spot": 1})
    assert found.api_groups == {"kueue.x-k8s.io"}
    assert found.node_pools is None
    (priorities,) = [each for each in found.unread if "priority-expander" in each]
    assert "has no priorities that can be read" in priorities


@pytest.mark.parametrize(
    ("kind", "name"),
    [(STATEFUL_SETS, "StatefulSet"), (DAEMON_SETS, "DaemonSet")],
)
def test_workloads_of_other_kinds(kind: str, name: str) -> None:
    api = ApiServer(*KINDS)
    workload(
        api, kind, "ca", container(image="mirror.example/ours:5", command=["/bin/sh", "-c", "exec /cluster-autoscaler"])
    )
    (found,) = look(api).autoscalers
    assert (found.name, found.version) == (f"{name} autoscaling/ca", "")  # of an image of somebody's own


@pytest.mark.parametrize(("owner", "count"), [("", 1), ("Node", 1), ("ReplicaSet", 0)])
def test_a_pod_counts_where_no_workload_has_it(owner: str, count: int) -> None:
    api = ApiServer(*KINDS)
    pod(api, "ca", owner=owner, containers=[container("--cloud-provider=externalgrpc")])
    assert [each.name for each in look(api).autoscalers] == ["Pod team/ca"] * count


def test_of_several_the_one_with_a_provider_of_its_own_is_served() -> None:
    api = ApiServer(*KINDS)
    workload(api, DEPLOYMENTS, "ours", container("--cloud-provider=externalgrpc"))
    workload(api, DEPLOYMENTS, "theirs", container("--cloud-provider=gce", "--status-config-map-name=mine"))
    found = look(api)
    assert [each.has_own_provider for each in found.autoscalers] == [False, True]
    assert found.objects.status_name == "mine"
    text = first_configuration(found)
    assert "# Deployment autoscaling/theirs: --cloud-provider=gce\n" in text
    assert "--cloud-provider=externalgrpc; another one\n" in text


def test_flags_in_every_form() -> None:
    words = ["./cluster-autoscaler", "--cloud-provider", "aws", "-expander=random", "--namespace=$(NAMESPACE)"]
    words += ["--balance-similar-node-groups", "--scan-interval=10s", "--v", "4"]
    assert read_flags(words) == {
        "cloud-provider": "aws",
        "expander": "random",
        "balance-similar-node-groups": "true",
        "scan-interval": "10s",
    }


def test_what_may_not_be_read_is_said() -> None:
    api = ApiServer(*KINDS)

    def refuse(request: str) -> None:
        if request != "GET /version":
            raise Refusal(403, "not yours")

    api.before = refuse
    found = look(api)
    assert (found.nodes, found.pods, found.node_pools, found.autoscalers) == (None, None, None, ())
    for plural in ("deployments", "pods", "nodes", "nodepools", "configmaps"):
        assert any("could not be read" in each or "NodePools" in each for each in found.unread if plural in each), (
            plural
        )
    assert "# - pods could not be read: " in first_configuration(found)


def test_objects_that_are_no_objects_stop_nothing() -> None:
    api = ApiServer(*KINDS)
    odd: list[Any] = [{"spec": 5}, {"spec": {"containers": "x", "template": {"spec": {"containers": [5]}}}}]
    for kind in (DEPLOYMENTS, PODS, NODES, NODE_POOLS):
        for number, body in enumerate(odd):
            api.put(f"{kind}/odd-{number}", body)
    api.put(f"{PODS}/odd", {"spec": {"containers": [{"image": 5, "args": "x", "command": [5]}], "schedulerName": 5}})
    found = look(api)
    assert found.autoscalers == ()
    assert found.pods is not None
    assert found.pods.count == 3
    assert "provider: {enabled: false}" in first_configuration(found)


def test_where_nothing_answers_it_is_an_error() -> None:
    api = ApiServer(*KINDS)
    api.fault = lambda _: Fault.CUT
    with pytest.raises(Unavailable, match="cannot be reached"):
        findings(api.client(), Path("kubeconfig"), "")
