"""Gangs that ask for one topology domain, beside kube-scheduler with its gang scheduling: PodGroups and Kueue's
annotations, a node that must go in the middle of one, and domains that come with their nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cagrpc.kube.nodes import NODES
from tests.support.controlplane.consolidating import ON
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.plane import NEWEST, ControlPlane
from tests.support.controlplane.plugin import running
from tests.support.controlplane.processes import wait_for

POLICIES, BINDINGS = (
    f"/apis/admissionregistration.k8s.io/v1/mutatingadmission{kind}" for kind in ("policies", "policybindings")
)
RACK = "example.com/rack"
KUEUE = {"kueue.x-k8s.io/podset-required-topology": RACK, "kueue.x-k8s.io/workload": "train"}
EACH = 4
KNOWN = {"domains": [{"labels": {RACK: name}, "max_nodes": most} for name, most in (("r1", 1), ("r2", 2), ("r3", 2))]}
NEW = {"new_domains": {"keys": [RACK], "max_nodes": 2}}


@pytest.fixture(
    scope="module", params=["pinned", pytest.param("newest", marks=pytest.mark.long("another control plane"))]
)
def control_plane(
    request: pytest.FixtureRequest, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """The one of all other tests, and one of the newest release."""
    if request.param == "pinned":
        yield control_plane
    else:
        yield from running(NEWEST, tmp_path_factory.mktemp("newest"))


def create_gang(live: Live, asking: str) -> None:
    """Two pods fill a node. As `gated` they wait for Kueue first, of which this plays the part."""
    more: dict[str, Any] = {"metadata": {"annotations": KUEUE}}
    if asking == "PodGroup":
        spec = {
            "schedulingPolicy": {"gang": {"minCount": EACH}},
            "schedulingConstraints": {"topology": [{"key": RACK}]},
        }
        path = live.cluster.path("podgroups", api=f"apis/scheduling.k8s.io/{live.cluster.plane.release.pod_groups}")
        live.cluster.admin.create(path, {"metadata": {"name": "train"}, "spec": spec})
        more = {"schedulingGroup": {"podGroupName": "train"}}
    gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]} if asking == "gated" else {}
    for number in range(EACH):
        live.cluster.create_pod(f"worker-{number}", {"cpu": "2", "memory": "1Gi"}, **more, **gates)
    for number in range(EACH) if gates else ():
        live.cluster.admin.merge(live.cluster.path("pods", f"worker-{number}"), {"spec": {"schedulingGates": None}})


def racks(live: Live) -> set[str]:
    """Return the racks of all pods' nodes."""
    nodes = {each["metadata"]["name"]: each["metadata"]["labels"].get(RACK, "") for each in live.nodes()}
    return {nodes[pod["spec"]["nodeName"]] for pod in live.cluster.pods()}


@pytest.mark.parametrize("asking", ["PodGroup", "Kueue", "gated"])
def test_a_gang_is_bound_in_one_known_rack(live: Live, asking: str) -> None:
    live.configure([{"name": "all", "topology": KNOWN, "node_groups": [group("a", "4", "8Gi", 0.2)]}])
    live.start()
    create_gang(live, asking)
    live.wait_for_running(EACH)
    live.wait_until_settled()
    assert len(racks(live)) == 1
    assert racks(live) < {"r2", "r3"}
    assert live.phases() == ["done"]


def test_each_of_two_gangs_is_bound_in_a_domain_that_came_with_its_nodes(live: Live) -> None:
    live.configure([{"name": "all", "topology": NEW, "node_groups": [group("a", "4", "8Gi", 0.2)]}])
    live.start()
    create_gang(live, "Kueue")
    live.wait_for_running(EACH)
    live.wait_until_settled()
    assert len(racks(live)) == 1
    other = {**KUEUE, "kueue.x-k8s.io/workload": "other"}
    for number in range(EACH):
        live.cluster.create_pod(f"other-{number}", {"cpu": "2", "memory": "1Gi"}, metadata={"annotations": other})
    live.wait_for_running(2 * EACH)
    live.wait_until_settled()
    assert len(racks(live)) == 2
    assert live.phases() == ["done", "done"]


@contextmanager
def scattering(live: Live, pool: str) -> Iterator[None]:
    """Give each Node of a pool a rack of its own, as a cloud does that has no room for all in one."""
    admin, name = live.cluster.admin, f"scattering-{live.cluster.namespace}"
    of_nodes = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["nodes"]}
    labels = f'Object{{metadata: Object.metadata{{labels: {{"{RACK}": object.metadata.name}}}}}}'
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [of_nodes]},
        "matchConditions": [{"name": "pool", "expression": f"object.metadata.labels[?'pool'].orValue('') == '{pool}'"}],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": labels}}],
    }
    probe = {"metadata": {"name": "probe", "labels": {"pool": pool}}}
    try:
        admin.create(POLICIES, {"metadata": {"name": name}, "spec": spec})
        admin.create(BINDINGS, {"metadata": {"name": name}, "spec": {"policyName": name}})
        wait_for(
            lambda: RACK in admin.create(f"{NODES}?dryRun=All", probe)["metadata"]["labels"], "the policy is in force"
        )
        yield
    finally:
        for path in (BINDINGS, POLICIES):
            admin.delete(f"{path}/{name}")


def test_a_gang_whose_nodes_came_scattered_is_rolled_back_and_bound_elsewhere(live: Live) -> None:
    live.configure(
        [
            {"name": "hoped", "weight": 50, "topology": NEW, "node_groups": [group("a", "4", "8Gi", 0.2)]},
            {"name": "known", "weight": 10, "topology": KNOWN, "node_groups": [group("b", "4", "8Gi", 0.5)]},
        ],
        planner={"shortage": "1m"},
    )
    live.start()
    with scattering(live, "a"):
        create_gang(live, "Kueue")
        live.wait_for_running(EACH)
        live.wait_until_settled()
    assert len(racks(live)) == 1
    assert racks(live) < {"r2", "r3"}
    assert sorted(live.phases()) == ["done", "rolled-back"]
    assert live.pools().keys() == {"b"}


def test_a_gang_of_which_a_node_must_go_moves_whole_to_another_rack(live: Live) -> None:
    budgets = {"budgets": [{"nodes": "100%"}]}
    live.configure(
        [{"name": "all", "topology": KNOWN, "node_groups": [group("a", "4", "8Gi", 0.2)]}],
        consolidation={**ON, **budgets},
    )
    live.start()
    live.cluster.create_deployment(
        "train",
        EACH,
        {"cpu": "2", "memory": "1Gi"},
        metadata={"annotations": {"kueue.x-k8s.io/podset-required-topology": RACK}},
    )
    live.wait_for_running(EACH)
    live.wait_until_settled()
    (before,) = racks(live)
    name = live.nodes()[0]["metadata"]["name"]
    taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
    live.cluster.admin.merge(f"{NODES}/{name}", {"spec": {"taints": [taint]}})
    old = {each["metadata"]["name"] for each in live.nodes()}
    live.wait_for(lambda: old.isdisjoint(each["metadata"]["name"] for each in live.nodes()), "all nodes are replaced")
    live.wait_for_running(EACH)
    (after,) = racks(live)
    assert {before, after} == {"r2", "r3"}
    assert live.phases() == ["done", "done"]
