"""Sections of a configuration that are made of MachineDeployments and MachinePools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cagrpc.backends.cluster_api.importing import CAPACITY, MAX_SIZE, PRICE, read
from cagrpc.backends.cluster_api.plugin import ClusterApiSettings, MachineSource, Reference
from cagrpc.backends.plugin import OpenedLater
from cagrpc.cli.main import main
from cagrpc.config.load import parse_settings
from cagrpc.errors import InvalidInput
from solver.model import Taint, TaintEffect
from tests.support.management_cluster import CLUSTER, NAMESPACE, PROVIDER, ManagementCluster, management_cluster
from tests.support.serving import kubeconfig_of

SHAPE = {f"{CAPACITY}cpu": "16", f"{CAPACITY}memory": "128G"}


@pytest.fixture
def api() -> Iterator[ManagementCluster]:
    with management_cluster() as api:
        yield api


def annotate(api: ManagementCluster, name: str, kind: str = "MachineDeployment", **annotations: str) -> None:
    api.edit(api.path(kind, name), annotations=annotations)


def test_the_annotations_of_the_autoscaler_make_a_valid_configuration(api: ManagementCluster) -> None:
    labels = {"node.cluster.x-k8s.io/team": "a", "node-role.kubernetes.io/gpu": "", "not-copied": "x"}
    taint = {"key": "gpu", "value": "no", "effect": "NoSchedule", "propagation": "Always"}
    api.template("gpu")
    api.machine_deployment("gpu", {"labels": labels}, taints=[taint])
    more = {
        f"{CAPACITY}gpu-type": "nvidia.com/gpu",
        f"{CAPACITY}gpu-count": "8",
        f"{CAPACITY}maxPods": "200",
        f"{CAPACITY}labels": "topology.kubernetes.io/zone=rack-1,node.cluster.x-k8s.io/team=b,kubernetes.io/arch=arm64",
        f"{CAPACITY}taints": "gpu=yes:NoSchedule,slow:PreferNoSchedule",
        MAX_SIZE: "12",
        PRICE: "9.5",
    }
    annotate(api, "gpu", **SHAPE, **more)
    found = read(api.client(), "", NAMESPACE)
    assert found.warnings == ()
    text = yaml.safe_dump({**found.sections, "kubernetes": {"kubeconfig": "k"}})
    settings = parse_settings(text, "it", Path("/nowhere"))
    (group,) = settings.groups
    assert group.allocatable == {
        "cpu": 16_000,
        "memory": 128 * 10**9,
        "pods": 200,
        "nvidia.com/gpu": 8,
        "ephemeral-storage": 17 * 2**30,
    }
    assert (group.id, group.zone, group.max_size, group.price_usd_per_hour) == ("gpu", "rack-1", 12, 9.5)
    assert group.labels["kubernetes.io/arch"] == "arm64"
    assert group.labels["node.cluster.x-k8s.io/team"] == "b"
    assert "node-role.kubernetes.io/gpu" in group.labels
    assert "not-copied" not in group.labels
    assert group.taints == (
        Taint("gpu", TaintEffect.NO_SCHEDULE, "yes"),
        Taint("slow", TaintEffect.PREFER_NO_SCHEDULE),
    )
    assert isinstance(settings.backend, OpenedLater)
    backend = settings.backend.settings
    assert isinstance(backend, ClusterApiSettings)
    assert (backend.cluster, backend.namespace) == (CLUSTER, NAMESPACE)
    assert backend.sources == {"gpu": MachineSource(machine_deployment="gpu")}


def test_the_template_tells_its_capacity_where_the_annotations_do_not(api: ManagementCluster) -> None:
    api.template("small")
    api.machine_deployment("small")
    status = {"capacity": {"cpu": "4", "memory": "16Gi"}, "nodeInfo": {"architecture": "arm64"}}
    api.change(api.path("TestMachineTemplate", "small"), status=status)
    annotate(api, "small", **{f"{CAPACITY}cpu": "3"})
    found = read(api.client(), CLUSTER, NAMESPACE)
    (group,) = found.sections["provisioners"][0]["node_groups"]
    assert group["allocatable"] == {"cpu": "3", "memory": "16Gi", "pods": 110}
    assert (group["arch"], group["price_usd_per_hour"]) == ("arm64", 0.154)
    (warning,) = found.warnings
    assert warning == f"machine_deployment small has no annotation {PRICE}: its price is in proportion to its size"


def test_what_has_no_shape_is_left_out_and_named(api: ManagementCluster) -> None:
    for name in ("good", "shapeless", "mistaken"):
        api.template(name)
        api.machine_deployment(name)
    annotate(api, "good", **SHAPE, **{PRICE: "1"})
    annotate(api, "mistaken", **SHAPE, **{f"{CAPACITY}taints": "gpu"})
    found = read(api.client(), CLUSTER, NAMESPACE)
    assert list(found.sections["backend"]["cluster_api"]["node_groups"]) == ["good"]
    mistaken, shapeless = found.warnings[-2:]
    assert mistaken.startswith("machine_deployment mistaken is left out: annotation")
    assert 'found "gpu", expected key=value:effect' in mistaken
    assert shapeless.startswith("machine_deployment shapeless is left out: found no annotation")
    api.remove(api.path("MachineDeployment", "good"))
    with pytest.raises(InvalidInput, match="no node group can be made"):
        read(api.client(), CLUSTER, NAMESPACE)


def test_a_machine_pool_needs_a_template_for_single_machines(api: ManagementCluster) -> None:
    machine = {
        "clusterName": CLUSTER,
        "infrastructureRef": {"apiGroup": PROVIDER, "kind": "TestMachinePool", "name": "pool"},
        "bootstrap": {"dataSecretName": "join"},
    }
    spec = {"clusterName": CLUSTER, "template": {"spec": machine}}
    api.put(api.path("MachinePool", "pool"), {"metadata": {"annotations": {**SHAPE, PRICE: "1"}}, "spec": spec})
    found = read(api.client(), CLUSTER, NAMESPACE)
    (warning,) = found.warnings
    assert "infrastructure_template is a guess" in warning
    settings = parse_settings(yaml.safe_dump({**found.sections, "kubernetes": {"kubeconfig": "k"}}), "it", Path())
    assert isinstance(settings.backend, OpenedLater)
    template = Reference(PROVIDER, "TestMachineTemplate", "pool")
    assert settings.backend.settings.sources["pool"] == MachineSource(
        machine_pool="pool", infrastructure_template=template
    )


def test_one_of_several_clusters_has_to_be_named(api: ManagementCluster) -> None:
    with pytest.raises(InvalidInput, match="found none in namespace"):
        read(api.client(), "", NAMESPACE)
    for name in ("one", "two"):
        api.template(name)
        api.machine_deployment(name)
        api.change(api.path("MachineDeployment", name), spec={"clusterName": f"cluster-{name}"})
    with pytest.raises(InvalidInput, match="those of cluster-one, cluster-two"):
        read(api.client(), "", NAMESPACE)


def test_the_command_prints_it(api: ManagementCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api.template("good")
    api.machine_deployment("good")
    annotate(api, "good", **SHAPE)
    arguments = ["--kubeconfig", str(kubeconfig_of(tmp_path, api.url)), "--namespace", NAMESPACE]
    assert main(["config", "import", "machine-deployments", *arguments]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["provisioners"][0]["node_groups"][0]["id"] == "good"
    assert "in proportion to its size" in printed.err
    assert main(["config", "import", "machine-deployment", *arguments]) == 2
    assert 'did you mean "machine-deployments"?' in capsys.readouterr().err
