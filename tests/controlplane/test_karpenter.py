"""Karpenter's core, as it behaves towards NodeClaims without a NodePool: what the backend stands on."""

from __future__ import annotations

from typing import Any

from tests.support.controlplane.karpenter import CLAIMS, NODE_CLASS, Karpenter, offering
from tests.support.controlplane.processes import wait_for

TYPE = "c-2x-amd64-linux"


def create(karpenter: Karpenter, name: str, zone: str = "test-zone-a") -> None:
    values = {
        "node.kubernetes.io/instance-type": TYPE,
        "topology.kubernetes.io/zone": zone,
        "karpenter.sh/capacity-type": "on-demand",
    }
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in values.items()]
    body: dict[str, Any] = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": "ours"}},
        "spec": {"nodeClassRef": NODE_CLASS, "requirements": requirements, "expireAfter": "Never"},
    }
    karpenter.cluster.admin.create(CLAIMS, body)


def test_the_cloud_has_what_a_test_says(karpenter: Karpenter) -> None:
    karpenter.stock({offering(TYPE): 1})
    for name in ("first", "second"):
        create(karpenter, name)
        wait_for(lambda name=name: any(each["claim"] == name for each in karpenter.launches()), "it is asked for")  # type: ignore[misc]
    wait_for(lambda: [each["metadata"]["name"] for each in karpenter.claims()] == ["first"], "the second is gone")
    wait_for(lambda: len(karpenter.nodes()) == 1, "the first has its Node")
    assert [bool(each["error"]) for each in karpenter.launches()] == [False, True]
