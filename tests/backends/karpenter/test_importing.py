"""Sections of a configuration that are made of NodePools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.backends.karpenter.importing import read
from cagrpc.backends.karpenter.plugin import KarpenterSettings
from cagrpc.backends.karpenter.pools import NODE_POOLS
from cagrpc.backends.plugin import OpenedLater
from cagrpc.cli.main import main
from cagrpc.config.load import parse_settings
from cagrpc.errors import InvalidInput
from solver.model import Taint, TaintEffect
from tests.support.api_server import ApiServer, api_server
from tests.support.serving import kubeconfig_of

GPU: dict[str, Any] = {
    "metadata": {"name": "gpu", "annotations": {"karpenter.sh/nodepool-hash": "1"}},
    "spec": {
        "template": {
            "metadata": {"labels": {"team": "ml"}},
            "spec": {
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"},
                "requirements": [
                    {"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["g5"]},
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"], "minValues": 1},
                ],
                "taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}],
                "startupTaints": [{"key": "example.com/agent", "effect": "NoExecute"}],
                "expireAfter": "720h",
                "terminationGracePeriod": "1h30m",
            },
        },
        "weight": 50,
        "limits": {"cpu": "1k", "nvidia.com/gpu": 64},
        "disruption": {
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "consolidateAfter": "1m",
            "budgets": [{"nodes": "0", "schedule": "@daily", "duration": "8h0m0s", "reasons": ["Empty"]}],
        },
    },
    "status": {"nodes": 3},
}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server(NODE_POOLS) as api:
        api.put(f"{NODE_POOLS}/gpu", GPU)
        yield api


def put(api: ApiServer, name: str, **spec: Any) -> None:
    api.put(f"{NODE_POOLS}/{name}", {"metadata": {"name": name}, "spec": {**GPU["spec"], **spec}})


def test_a_server_reads_what_the_cluster_has(api: ApiServer, tmp_path: Path) -> None:
    put(api, "frozen", limits={"cpu": "0", "memory": "1Ti"}, weight=None)
    put(api, "static", replicas=3)
    found = read(api.client(), "", "")
    assert [warning.partition(";")[0].partition(": each")[0] for warning in found.warnings] == [
        'NodePool "frozen": spec.limits.cpu is 0, which freezes it and is not taken, nor is spec.disruption',
        'NodePool "frozen": spec.template.spec.requirements[1].minValues is left out',
        'NodePool "gpu": spec.template.spec.requirements[1].minValues is left out',
        'NodePool "static": is static (spec.replicas: 3) and left out',
    ]
    assert [each.partition(": found")[0] for each in found.preconditions if "gpu" in each] == [
        'NodePool "gpu": spec.limits',
        'NodePool "gpu": spec.disruption.budgets: expected one of nodes "0" at all times, so that it disrupts no node',
        'NodePool "gpu": spec.disruption.consolidateAfter',
    ]
    text = yaml.safe_dump({**found.sections, "kubernetes": {"in_cluster": True}, "consolidation": {}})
    settings = parse_settings(text, "c.yaml", tmp_path)
    by_provisioner = {group.provisioner: group for group in settings.groups}
    assert by_provisioner.keys() == {"gpu", "frozen"}
    gpu = by_provisioner["gpu"]
    assert gpu.weight == 50
    assert gpu.labels["team"] == "ml"
    assert gpu.labels["karpenter.sh/nodepool"] == "gpu"
    assert gpu.taints == (Taint("nvidia.com/gpu", TaintEffect.NO_SCHEDULE, "true"),)
    limits = {limit.name: limit.maxima for limit in settings.limits}
    assert limits["provisioner gpu"] == {"cpu": 1_000_000, "nvidia.com/gpu": 64}
    assert limits["provisioner frozen"] == {"memory": 2**40}
    assert settings.consolidation is not None
    (disruption,) = settings.consolidation.disruption.items()
    assert disruption[0] == "gpu"
    assert disruption[1].consolidate_after_seconds == 60.0
    (budget,) = disruption[1].budgets or ()
    assert (budget.nodes, budget.reasons) == (0, frozenset({"Empty"}))
    assert budget.schedule is not None
    assert budget.duration_seconds == 8 * 3600
    assert isinstance(settings.backend, OpenedLater)
    backend = settings.backend.settings
    assert isinstance(backend, KarpenterSettings)
    parameters = backend.parameters[gpu.id]
    assert parameters.node_class.name == "gpu"
    assert parameters.termination_grace_period_seconds == 5400
    assert parameters.startup_taints == (Taint("example.com/agent", TaintEffect.NO_EXECUTE),)


@pytest.mark.parametrize(
    ("spec", "storage"),
    [
        pytest.param({"blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "100Gi"}}]}, "89Gi",
                     id="one device"),
        pytest.param({"blockDeviceMappings": [{"deviceName": "/dev/xvdz", "rootVolume": True,
                                               "ebs": {"volumeSize": "50Gi"}},
                                              {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "100Gi"}}]}, "44Gi",
                     id="the root volume"),
        pytest.param({"amiSelectorTerms": [{"alias": "bottlerocket@latest"}],
                      "blockDeviceMappings": [{"deviceName": "/dev/xvdb", "ebs": {"volumeSize": "100Gi"}},
                                              {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "4Gi"}}]}, "89Gi",
                     id="bottlerocket has a disk for its pods"),
        pytest.param({"instanceStorePolicy": "RAID0",
                      "blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "9Gi"}}]}, None,
                     id="disks of the instance type"),
        pytest.param({"blockDeviceMappings": [{"ebs": {"volumeSize": "much"}}]}, None, id="no quantity"),
        pytest.param({}, None, id="nothing is said"),
    ],
)  # fmt: skip
def test_the_disk_of_its_node_class_is_ephemeral_storage(spec: dict[str, Any], storage: str | None) -> None:
    version = "/apis/karpenter.k8s.aws/v1"
    with api_server(NODE_POOLS, f"{version}/ec2nodeclasses", "/apis") as api:
        api.put("/apis/karpenter.k8s.aws", {"preferredVersion": {"groupVersion": "karpenter.k8s.aws/v1"}})
        api.put(f"{NODE_POOLS}/gpu", GPU)
        api.put(f"{version}/ec2nodeclasses/gpu", {"metadata": {"name": "gpu"}, "spec": spec})
        (provisioner,) = read(api.client(), "", "").sections["provisioners"]
    assert provisioner.get("allocatable") == (storage and {"ephemeral-storage": storage})


def test_the_command_prints_them(api: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(api, "other")
    kubeconfig = str(kubeconfig_of(tmp_path, api.url))
    assert main(["config", "import", "node-pools", "--kubeconfig", kubeconfig, "--cluster", "gpu"]) == 0
    printed = capsys.readouterr()
    assert [each["name"] for each in yaml.safe_load(printed.out)["provisioners"]] == ["gpu"]
    assert "minValues is left out" in printed.err


def test_without_any_it_says_so(api: ApiServer) -> None:
    with pytest.raises(InvalidInput, match="has no NodePool nobodys to read"):
        read(api.client(), "nobodys", "")
    with pytest.raises(InvalidInput, match="have no namespace"):
        read(api.client(), "", "default")
    with api_server() as without, pytest.raises(InvalidInput, match=r"has no NodePools of karpenter\.sh/v1"):
        read(without.client(), "", "")
