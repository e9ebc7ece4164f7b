"""deploy/policies.yaml in a real API server: what the server writes passes, and nothing else does, with all rights that
deploy/ has to give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.api.core.slack import PLACEHOLDER
from cagrpc.backends.simulated.backend import ID_PREFIX
from cagrpc.backends.simulated.nodes.nodes import NOT_READY_TAINT, SIMULATED, ready_again, registration
from cagrpc.backends.simulated.nodes.pods import BoundPod, Containers, Stage, running, stopped
from cagrpc.cluster.markers import BOOKED, SCALE_DOWN_DISABLED, SCALE_DOWN_DISABLED_BY_US, booking_label
from cagrpc.controllers.admission_checks.model import OWNED
from cagrpc.kube.client.client import Client
from cagrpc.kube.nodes import lift, set_value, taint_keys
from solver.model import NodeGroup
from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.cluster import NODES, Cluster, pod_spec
from tests.support.controlplane.deployed import apply, documents, install_crds, remove, remove_crds
from tests.support.controlplane.processes import wait_for

FILES = (
    "rbac.yaml",
    "rbac-simulated-nodes.yaml",
    "rbac-dedicated-nodes.yaml",
    "rbac-consolidation.yaml",
    "rbac-kueue.yaml",
    "policies.yaml",
)
REAL, MADE_UP = "real", "made-up"
OTHER_TAINT = {"key": "example.com/theirs", "effect": "NoSchedule"}
OUR_TAINT = {"key": START_UP_TAINT, "effect": "NoSchedule"}
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
FORBIDDEN: tuple[tuple[Mapping[str, Any], str], ...] = (
    ({"metadata": {"labels": {"team": "ours"}}}, "not team"),
    ({"metadata": {"labels": {"team": None}}}, "not team"),
    ({"metadata": {"labels": {SIMULATED: "true"}}}, f"not {SIMULATED}"),
    ({"metadata": {"annotations": {"team": "ours"}}}, "not team"),
    ({"metadata": {"annotations": {"team": None}}}, "not team"),
    ({"metadata": {"finalizers": ["example.com/ours"]}}, "metadata.finalizers"),
    ({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "b"}]}}, "ownerR"),
    ({"spec": {"unschedulable": True}}, "spec.unschedulable"),
    ({"spec": {"providerID": ID_PREFIX + REAL}}, "spec.providerID"),
    ({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}}, "spec.podCIDR"),
    ({"spec": {"taints": [OUR_TAINT]}}, OTHER_TAINT["key"]),
    ({"spec": {"taints": None}}, OTHER_TAINT["key"]),
    ({"spec": {"taints": [OTHER_TAINT, OUR_TAINT, {"key": "a", "effect": "NoExecute"}]}}, "not change a"),
    ({"spec": {"taints": [{**OTHER_TAINT, "effect": "NoExecute"}, OUR_TAINT]}}, OTHER_TAINT["key"]),
    ({"spec": {"taints": [OTHER_TAINT, {**OUR_TAINT, "effect": "NoExecute"}]}}, START_UP_TAINT),
)
"""Patches of somebody's node, and what the refusal names."""
NEW_NODE = registration(
    NodeGroup("small", {"cpu": 2000, "memory": 4 * 2**30, "pods": 110}, 0.1), MADE_UP, ID_PREFIX + MADE_UP, 0.0
)


@pytest.fixture
def fenced(cluster: Cluster) -> Iterator[Cluster]:
    """With the rights, the policies in force, and a node that is somebody's."""
    for name in FILES:
        for document in documents(name):
            apply(cluster.admin, document)
    cluster.create_node(REAL, {"cpu": "4", "memory": "8Gi"}, labels={"team": "theirs"})
    body = {"metadata": {"annotations": {"team": "theirs"}}, "spec": {"taints": [OTHER_TAINT, OUR_TAINT]}}
    cluster.admin.merge(f"{NODES}/{REAL}", body)
    yield cluster
    remove(cluster.admin, *FILES)


@pytest.fixture
def ours(fenced: Cluster) -> Iterator[Api]:
    """The hand of the ServiceAccount."""
    api = fenced.plane.api_of_service_account("cagrpc", "cagrpc")
    create_simulated(fenced.admin)
    fenced.create_pod("probe", {"cpu": "1"})
    probes: tuple[tuple[str, str, Any], ...] = (
        ("PATCH", f"{NODES}/{REAL}", {"metadata": {"labels": {"team": "ours"}}}),
        ("DELETE", f"{NODES}/{REAL}", None),
        ("DELETE", fenced.path("pods", "probe"), None),
    )

    def in_force() -> bool:  # the API server takes a moment to know of a policy
        dry = {"dryRun": "All"}
        return all(refusal(api.answer, method, path, body, kind=MERGE, query=dry) for method, path, body in probes)

    wait_for(in_force, "the policies are in force")
    yield api
    api.close()


def create_simulated(api: Api) -> None:
    api.create(NODES, NEW_NODE)


def patched(api: Api, path: str, body: Any, kind: str = MERGE, *, dry: bool = False) -> None:
    api.answer("PATCH", path, body, kind=kind, query={"dryRun": "All"} if dry else None)


def refusal(request: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """What a policy says; empty where the request was done."""
    try:
        request(*arguments, **options)
    except ApiRefusal as refused:
        if refused.status != 422 or "ValidatingAdmissionPolicy" not in str(refused):
            raise
        return str(refused)
    return ""


def test_what_the_server_writes_on_nodes_passes(fenced: Cluster, ours: Api) -> None:
    client = Client.connect(fenced.plane.kubeconfig_of_service_account("cagrpc", "cagrpc"))
    label = booking_label("3f1c")
    try:
        assert lift(client, REAL, START_UP_TAINT, {label: BOOKED})
        fenced.admin.merge(f"{NODES}/{REAL}", {"spec": {"taints": [OTHER_TAINT, OUR_TAINT]}})
        assert set_value(client, REAL, START_UP_TAINT, REAL, index=1)
        assert set_value(client, REAL, START_UP_TAINT, "another")
        assert lift(client, REAL, START_UP_TAINT, index=1)
    finally:
        client.close()
    both = {SCALE_DOWN_DISABLED: "true", SCALE_DOWN_DISABLED_BY_US: "as the test says"}
    patched(ours, f"{NODES}/{REAL}", {"metadata": {"annotations": both}})
    (found,) = [each for each in fenced.nodes() if each["metadata"]["name"] == REAL]
    assert found["spec"]["taints"] == [OTHER_TAINT]
    assert found["metadata"]["labels"] == {"kubernetes.io/hostname": REAL, "team": "theirs", label: BOOKED}
    assert found["metadata"]["annotations"] == {"team": "theirs", **both}
    patched(ours, f"{NODES}/{REAL}", {"metadata": {"annotations": dict.fromkeys(both), "labels": {label: None}}})


def test_nothing_else_of_a_node_can_be_changed(ours: Api) -> None:
    for body, named in FORBIDDEN:
        assert named in refusal(patched, ours, f"{NODES}/{REAL}", body), body


def test_an_annotation_that_somebody_else_set_stays(fenced: Cluster, ours: Api) -> None:
    fenced.admin.merge(f"{NODES}/{REAL}", {"metadata": {"annotations": {SCALE_DOWN_DISABLED: "true"}}})
    for key, value in ((SCALE_DOWN_DISABLED, None), (SCALE_DOWN_DISABLED, "false"), (SCALE_DOWN_DISABLED_BY_US, "a")):
        body = {"metadata": {"annotations": {key: value}}}
        assert "somebody else" in refusal(patched, ours, f"{NODES}/{REAL}", body)


def test_only_cordons_of_its_own_are_set_and_lifted(fenced: Cluster, ours: Api) -> None:
    node, mark = f"{NODES}/{REAL}", "cagrpc.io/disruption"
    cordoned = {"metadata": {"annotations": {mark: "one"}}, "spec": {"unschedulable": True}}
    lifted = {"metadata": {"annotations": {mark: None}}, "spec": {"unschedulable": None}}
    assert not refusal(patched, ours, node, cordoned)
    assert not refusal(patched, ours, node, lifted)
    patched(fenced.admin, node, {"spec": {"unschedulable": True}})
    assert "spec.unschedulable" in refusal(patched, ours, node, {"spec": {"unschedulable": None}})
    patched(fenced.admin, node, {"spec": {"unschedulable": None}})
    patched(ours, node, cordoned)
    remove(fenced.admin, "rbac-consolidation.yaml")  # it is not on any more: what it began is undone
    patched(ours, node, lifted)
    wait_for(lambda: bool(refusal(patched, ours, node, cordoned, dry=True)), "the right is gone")


def test_only_simulated_nodes_are_made_up_and_played(fenced: Cluster, ours: Api) -> None:
    another = {**NEW_NODE, "metadata": {**NEW_NODE["metadata"], "name": "another"}}  # with the providerID of the first
    for refused in (
        refusal(ours.create, NODES, {"metadata": {"name": "another"}}),
        refusal(ours.create, NODES, another),
        refusal(ours.delete, f"{NODES}/{REAL}"),
        refusal(patched, ours, f"{NODES}/{REAL}/status", ready_again(0.0), STRATEGIC),
    ):
        assert "simulated Nodes only" in refused
    assert not refusal(patched, ours, f"{NODES}/{MADE_UP}/status", ready_again(0.0), STRATEGIC)
    assert not refusal(patched, ours, f"{NODES}/{MADE_UP}", {"spec": {"unschedulable": True}})
    not_ready = ready_again(0.0)
    not_ready["status"]["conditions"][0]["status"] = "False"
    patched(fenced.admin, f"{NODES}/{MADE_UP}/status", not_ready, STRATEGIC)
    wait_for(lambda: NOT_READY_TAINT in taint_keys(fenced.admin.get(f"{NODES}/{MADE_UP}")), "it is tainted")
    client = Client.connect(fenced.plane.kubeconfig_of_service_account("cagrpc", "cagrpc"))
    try:
        assert lift(client, MADE_UP, NOT_READY_TAINT)
    finally:
        client.close()
    late = {"metadata": {"labels": {"example.com/late": "yes"}}}
    assert not refusal(patched, ours, f"{NODES}/{MADE_UP}", late), "labels that come late"
    for value in ("no", None):
        other = {"metadata": {"labels": {"example.com/late": value}}}
        assert "not example.com/late" in refusal(patched, ours, f"{NODES}/{MADE_UP}", other)
    assert not refusal(ours.delete, f"{NODES}/{MADE_UP}")
    assert not refusal(create_simulated, ours)


def nominate(pods: Api, path: str, node: str) -> None:
    patched(pods, path, [{"op": "add", "path": "/status/nominatedNodeName", "value": node}], JSON_PATCH)


@pytest.mark.parametrize("simulates", [True, False])
def test_of_pods_only_nominations_are_written(fenced: Cluster, ours: Api, *, simulates: bool) -> None:
    """And, with the rights to simulated nodes, what kubelets tell of bound ones."""
    fenced.create_pod("waits", {"cpu": "1"}, nodeSelector={"nobody": "has"})
    fenced.create_pod("bound", {"cpu": "1"}, nodeName=MADE_UP)
    waits, bound = (fenced.path("pods", f"{name}/status") for name in ("waits", "bound"))
    if not simulates:
        remove(fenced.admin, "rbac-simulated-nodes.yaml")
        told = {"status": {"reason": "a"}}
        wait_for(lambda: bool(refusal(patched, ours, bound, told, dry=True)), "the right is gone")
    assert not refusal(nominate, ours, waits, REAL)
    assert not refusal(patched, ours, waits, [{"op": "remove", "path": "/status/nominatedNodeName"}], JSON_PATCH)
    statuses: dict[str, Any] = {"phase": "Running", "conditions": [], "podIP": "10.0.0.1", "reason": "ours"}
    for field, value in statuses.items():
        assert f"not status.{field}" in refusal(patched, ours, waits, {"status": {field: value}})
    metadata: dict[str, Any] = {"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["example.com/ours"]}
    for field, value in metadata.items():
        for path in (waits, bound):
            assert f"metadata.{field}" in refusal(patched, ours, path, {"metadata": {field: value}})
    found = fenced.admin.get(fenced.path("pods", "bound"))
    uid, version = found["metadata"]["uid"], int(found["metadata"]["resourceVersion"])
    started = Containers(("main",))
    pod = BoundPod(uid, fenced.namespace, "bound", MADE_UP, Stage.WAITING, version, containers=started)
    for kubelet_told in (running(pod, 0.0), stopped(pod)):
        assert bool(refusal(patched, ours, bound, kubelet_told, STRATEGIC)) is not simulates


def test_pods_are_only_let_onto_new_nodes(fenced: Cluster, ours: Api) -> None:
    fenced.create_pod("waits", {"cpu": "1"}, nodeSelector={"nobody": "has"})
    fenced.create_pod("bound", {"cpu": "1"}, nodeName=MADE_UP)
    waits, bound = (fenced.path("pods", name) for name in ("waits", "bound"))
    ours_alone = {"key": START_UP_TAINT, "operator": "Equal", "value": REAL, "effect": "NoSchedule"}

    def tolerating(path: str, **other: Any) -> str:
        add = {"op": "add", "path": "/spec/tolerations/-", "value": {**ours_alone, **other}}
        return refusal(patched, ours, path, [add], JSON_PATCH, dry=True)

    assert not tolerating(waits)
    wrong: tuple[dict[str, Any], ...] = (
        {"key": "nvidia.com/gpu"},
        {"operator": "Exists", "value": ""},
        {"value": ""},
        {"effect": "NoExecute"},
        {"effect": ""},
    )
    for other in wrong:
        assert "only let pods" in tolerating(waits, **other), other
    assert "only let pods" in tolerating(bound)
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]
    for path in (waits, bound):
        assert "spec.containers" in refusal(patched, ours, path, image, JSON_PATCH)
        assert "metadata.labels" in refusal(patched, ours, path, {"metadata": {"labels": {"a": "b"}}})


def test_only_bound_pods_are_deleted(fenced: Cluster, ours: Api) -> None:
    fenced.create_pod("waits", {"cpu": "1"}, nodeSelector={"nobody": "has"})
    fenced.create_pod("bound", {"cpu": "1"}, nodeName=MADE_UP)
    assert "bound pods only" in refusal(ours.delete, fenced.path("pods", "waits"), gracePeriodSeconds=0)
    assert not refusal(ours.delete, fenced.path("pods", "bound"), gracePeriodSeconds=0)


def test_of_requests_only_its_own_and_decided_ones_are_deleted(fenced: Cluster, ours: Api) -> None:
    install_crds(fenced.admin, "provisioning-crds.yaml")
    owned = {"labels": {OWNED: "true"}}
    kind = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}
    spec = {"provisioningClassName": "c", "podSets": [{"podTemplateRef": {"name": "worker"}, "count": 1}]}
    requests = fenced.path("provisioningrequests", api="apis/autoscaling.x-k8s.io/v1")
    templates, pod = fenced.path("podtemplates"), {"template": {"spec": pod_spec({"cpu": "1"})}}
    try:
        for path, body in ((requests, {**kind, "spec": spec}), (templates, pod)):
            fenced.admin.create(path, {**body, "metadata": {"name": "theirs"}})
            assert "only" in refusal(ours.create, path, {**body, "metadata": {"name": "made-up"}})
            assert "only" in refusal(ours.delete, f"{path}/theirs")
            assert not refusal(ours.create, path, {**body, "metadata": {"name": "ours", **owned}})
            assert not refusal(ours.delete, f"{path}/ours")
        of_slack = {"name": "of-slack", "labels": {PLACEHOLDER: "true"}}
        assert "only" in refusal(ours.create, templates, {**pod, "metadata": of_slack})
        own = "/api/v1/namespaces/cagrpc/podtemplates"
        assert not refusal(ours.create, own, {**pod, "metadata": of_slack})
        assert not refusal(ours.delete, f"{own}/of-slack")
        for condition, may_go in (("Accepted", False), ("Failed", True)):
            told = {"type": condition, "status": "True", "reason": "Test", "message": ""}
            status = {"status": {"conditions": [{**told, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}
            fenced.admin.merge(f"{requests}/theirs/status", status)
            assert bool(refusal(ours.delete, f"{requests}/theirs")) is not may_go
    finally:
        remove_crds(fenced.admin, "provisioning-crds.yaml")


def test_others_are_not_held_to_it(fenced: Cluster, ours: Api) -> None:
    patched(fenced.admin, f"{NODES}/{REAL}", {"metadata": {"labels": {"team": "b"}}, "spec": {"unschedulable": True}})
