"""deploy/ as it is: a real API server and kube-scheduler take it, and cagrpc can do all of its work with those rights
and nothing beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import urllib3

from cagrpc.api.provisioning.objects import Condition, request_path, status_patch
from cagrpc.config.load import load_settings
from cagrpc.controllers.assume_cache.slack import SlackState
from cagrpc.controllers.provisioning.model import ConditionType
from cagrpc.controllers.provisioning.store import RequestStore
from cagrpc.controllers.settings import JournalKind
from cagrpc.controllers.slack.carriers import Buffers, PausePods, Place, replica_set_body
from cagrpc.controllers.slack.record import SlackObject
from cagrpc.errors import Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.kube.journal.journal import ClusterJournal
from cagrpc.kube.lease import LeaderElection
from solver.model import PodSpec
from solver.slack.model import Role, SlackDemand, SlackShape
from tests.kube.journal.test_journal import BEFORE, CHANGES, told
from tests.support.controlplane import slack
from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import (
    apply,
    clear_journal,
    documents,
    install_crds,
    remove,
    remove_crds,
)
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.plane import User
from tests.support.controlplane.processes import wait_for

OPTIONAL = (
    "rbac-karpenter.yaml",
    "rbac-cluster-api.yaml",
    "rbac-simulated-nodes.yaml",
    "rbac-kueue.yaml",
    "rbac-dedicated-nodes.yaml",
    "rbac-consolidation.yaml",
    "rbac-expander.yaml",
    "slack.yaml",
)
FENCES = ("policies.yaml", "flow-schemas.yaml", "network-policy.yaml")
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PODS = "/api/v1/namespaces/cagrpc/pods"


@pytest.fixture
def deployed(cluster: Cluster) -> Iterator[Cluster]:
    """The definitions and the rights that every installation has."""
    install_crds(cluster.admin)
    for document in documents("rbac.yaml"):
        apply(cluster.admin, document)
    yield cluster
    clear_journal(cluster.admin)
    # Its pod waits for a node, and other tests' planners would serve it.
    remove(cluster.admin, "rbac.yaml", *OPTIONAL, *FENCES, "cagrpc.yaml")


@pytest.fixture
def client(deployed: Cluster) -> Iterator[Client]:
    """Of the ServiceAccount that the Deployment runs as."""
    client = Client.connect(deployed.plane.kubeconfig_of_service_account("cagrpc", "cagrpc"))
    yield client
    client.close()


def test_the_api_server_takes_every_object(deployed: Cluster) -> None:
    for name in (*OPTIONAL, *FENCES, "cagrpc.yaml"):
        for document in documents(name):
            apply(deployed.admin, document)


def test_all_pods_are_restricted_ones(deployed: Cluster) -> None:
    """By the strictest of the Pod Security Standards, to which the API server holds the namespace."""
    accounts = "/api/v1/namespaces/cagrpc/serviceaccounts"  # a controller makes it, soon after the namespace
    wait_for(
        lambda: bool(deployed.admin.items(accounts, fieldSelector="metadata.name=default")),
        "the namespace has its service account",
    )
    unsafe = {"containers": [{"name": "main", "image": "example.com/none"}]}
    with pytest.raises(ApiRefusal, match="violates PodSecurity"):
        _dry_run(deployed.admin, unsafe)
    templates = [
        each["spec"]["template"]
        for each in (*documents("cagrpc.yaml"), *documents("ca.yaml"))
        if "template" in each.get("spec", {})
    ]
    assert len(templates) == 2
    apply(deployed.admin, next(each for each in documents("slack.yaml") if each["kind"] == "PriorityClass"))
    for document in documents("ca.yaml"):
        if document["kind"] == "ServiceAccount":
            apply(deployed.admin, document)
    place = Place("cagrpc", "example.com/pause", {})
    shape = SlackShape("t/fixed/a", Role.FIXED, PodSpec((("cpu", 100),)), 1, "as the test says")
    templates.append(replica_set_body(shape, place)["spec"]["template"])
    for template in templates:
        answer = _dry_run(deployed.admin, template["spec"])
        assert answer.headers.get("Warning") is None
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]  # of this they say nothing


def _dry_run(admin: Api, spec: Any) -> urllib3.BaseHTTPResponse:
    pod = {"metadata": {"name": "as-deployed", "namespace": "cagrpc"}, "spec": spec}
    return admin.answer("POST", PODS, pod, query={"dryRun": "All"})


def test_its_requests_do_not_queue_with_everybodys(deployed: Cluster) -> None:
    for document in documents("flow-schemas.yaml"):
        apply(deployed.admin, document)
    flow = "/apis/flowcontrol.apiserver.k8s.io/v1"
    leases = "/apis/coordination.k8s.io/v1/namespaces/cagrpc/leases"
    ours = deployed.plane.api_of_service_account("cagrpc", "cagrpc")
    others = deployed.plane.api_of_service_account(deployed.namespace, "default")

    def level(api: Api, method: str, path: str, body: Any = None) -> tuple[str, str]:
        headers: Mapping[str, str]
        try:
            headers = api.answer(method, path, body).headers
        except ApiRefusal as refused:
            headers = refused.headers
        found = []
        for kind, header in (("flowschemas", "FlowSchema"), ("prioritylevelconfigurations", "PriorityLevel")):
            uid = headers[f"X-Kubernetes-PF-{header}-UID"]
            found.append(
                next(
                    e["metadata"]["name"] for e in deployed.admin.items(f"{flow}/{kind}") if e["metadata"]["uid"] == uid
                )
            )
        return found[0], found[1]

    lease = {"metadata": {"name": "cagrpc"}, "spec": {"holderIdentity": "a"}}
    nodes_lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a"
    try:
        wait_for(lambda: level(ours, "GET", "/api/v1/pods")[0] == "cagrpc", "the API server knows of it")
        election = ("cagrpc-leader-election", "leader-election")
        assert level(ours, "POST", leases, lease) == election
        assert level(ours, "GET", f"{leases}/cagrpc") == election
        for method, path in (("GET", "/api/v1/nodes"), ("GET", nodes_lease), ("GET", "/version")):
            assert level(ours, method, path) == ("cagrpc", "workload-high")
        for path in ("/api/v1/nodes", f"{leases}/cagrpc"):
            assert level(others, "GET", path) == ("service-accounts", "workload-low")
    finally:
        ours.close()
        others.close()
        deployed.admin.delete(f"{leases}/cagrpc")


def test_the_configuration_is_one(tmp_path: Path) -> None:
    (written,) = [found for found in documents("cagrpc.yaml") if found["kind"] == "ConfigMap"]
    path = tmp_path / "cagrpc.yaml"
    path.write_text(written["data"]["cagrpc.yaml"])
    settings = load_settings(path)
    assert settings.cluster is not None
    assert (settings.cluster.journal, settings.cluster.namespace) == (JournalKind.CLUSTER, "cagrpc")


def _may(client: Client, verb: str, resource: str, *, api_group: str = "", namespace: str = "", name: str = "") -> bool:
    what, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb,
        "resource": what,
        "subresource": subresource,
        "group": api_group,
        "namespace": namespace,
        "name": name,
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(client.create(path, {**review, "spec": {"resourceAttributes": attributes}})["status"]["allowed"])


def test_it_may_do_nothing_else(client: Client) -> None:
    leases = {"api_group": "coordination.k8s.io"}
    assert _may(client, "update", "leases", namespace="cagrpc", name="cagrpc", **leases)
    assert not _may(client, "update", "leases", namespace="cagrpc", name="another", **leases)
    assert not _may(client, "update", "leases", namespace="kube-system", name="cagrpc", **leases)
    assert not _may(client, "patch", "leases", namespace="kube-node-lease", **leases)
    for resource in ("pods/binding", "nodes", "pods"):
        assert not _may(client, "create", resource, namespace="default")
        assert not _may(client, "delete", resource, namespace="default")
    assert _may(client, "patch", "pods/status", namespace="default")
    for resource in ("nodes/status", "pods"):
        assert not _may(client, "patch", resource, namespace="default")
    assert not _may(client, "get", "pods", namespace="default")
    assert not _may(client, "get", "secrets", namespace="cagrpc")
    assert _may(client, "delete", "fleetrecords", api_group="cagrpc.io")  # parts of large increments
    assert not _may(client, "deletecollection", "fleetrecords", api_group="cagrpc.io")
    requests = {"api_group": "autoscaling.x-k8s.io", "namespace": "default"}
    assert _may(client, "patch", "provisioningrequests/status", **requests)
    assert _may(client, "delete", "provisioningrequests", **requests)
    for verb in ("create", "update", "patch"):
        assert not _may(client, verb, "provisioningrequests", **requests)
        assert not _may(client, verb, "provisioningclasses", api_group="cagrpc.io")
        assert not _may(client, verb, "podtemplates", namespace="default")


def test_what_only_simulated_nodes_need_is_no_standard_right(deployed: Cluster, client: Client) -> None:
    rights = [
        (verb, resource, api_group, document["metadata"].get("namespace", ""))
        for document in documents("rbac-simulated-nodes.yaml")
        if document["kind"] in ("ClusterRole", "Role")
        for rule in document["rules"]
        for api_group in rule.get("apiGroups", ())  # who may change the simulated cloud are others
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]
    assert len(rights) == 8

    def given() -> set[tuple[str, str]]:
        return {(v, r) for v, r, group, where in rights if _may(client, v, r, api_group=group, namespace=where)}

    assert given() == {("patch", "pods/status")}  # nominations need it too
    for verb in ("create", "update", "patch", "delete", "deletecollection"):
        assert not _may(client, verb, "nodes/status")
        assert not _may(client, verb, "pods", namespace="default")
        assert _may(client, verb, "nodes") is (verb == "patch")
        assert _may(client, verb, "pods/status", namespace="default") is (verb == "patch")
    for document in documents("rbac-simulated-nodes.yaml"):
        apply(deployed.admin, document)
    wait_for(lambda: len(given()) == len({(v, r) for v, r, *_ in rights}), "all are given")


def test_the_journal_and_the_lease_need_no_more(client: Client) -> None:
    election = LeaderElection(client, "cagrpc", identity="one")
    assert election.step()
    assert election.step()
    journal = ClusterJournal(client, "one", check=election.check)
    journal.commit(BEFORE)
    journal.commit(CHANGES)
    journal.probe()
    again = ClusterJournal(client, "two", check=election.check)
    assert set(again.read().increments) == {"old", "new"}
    assert told(again.read()) == told(again.read())
    election.release()
    assert LeaderElection(client, "cagrpc", identity="two").step()


def test_provisioning_requests_need_no_more(deployed: Cluster, client: Client) -> None:
    install_crds(deployed.admin, "provisioning-crds.yaml")
    store = RequestStore(client)
    try:
        body = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest", "metadata": {"name": "train"}}
        spec = {"provisioningClassName": "c", "podSets": [{"podTemplateRef": {"name": "worker"}, "count": 1}]}
        requests = deployed.path("provisioningrequests", api="apis/autoscaling.x-k8s.io/v1")
        deployed.admin.create(requests, {**body, "spec": spec})
        store.start()
        wait_for(lambda: store.synced and len(store.requests()) == 1, "the request is known")
        (found,) = store.requests()
        status = request_path(found.namespace, found.name, "status")
        decided = Condition(ConditionType.PROVISIONED, status=True, reason="Test", message="", since_seconds=0.0)
        client.patch(status, status_patch((decided,), {"nodes": "1"}, resource_version=found.resource_version))
        wait_for(lambda: store.requests()[0].details == {"nodes": "1"}, "its status is written")
        client.delete(request_path(found.namespace, found.name), uid=found.uid)
        wait_for(lambda: not store.requests(), "it is gone")
        assert store.problem is None
    finally:
        store.stop()
        remove_crds(deployed.admin, "provisioning-crds.yaml")


def test_the_slack_needs_no_more(deployed: Cluster, client: Client) -> None:
    slack.install(deployed.admin)
    for document in documents("slack.yaml"):
        apply(deployed.admin, document)
    try:
        book = SlackObject(client, "cagrpc")
        carriers = [
            Buffers(client, lambda: Place("cagrpc", "example.com/pause", book.owner())),
            PausePods(client, lambda: Place("cagrpc", "example.com/pause", book.owner()), dict),
        ]
        for count in (2, 3, 3):  # made, another number, the same: written down
            shape = SlackShape("t/fixed/a", Role.FIXED, PodSpec((("cpu", count * 100),)), count, "as the test says")
            state = SlackState(1.0, wanted=(SlackDemand((shape,)),))
            for carrier in carriers:
                wait_for(lambda c=carrier, s=state: c.carry(s), "all is carried")  # type: ignore[misc]
            book.write(state)
        seen = slack.SeenSlack(deployed.admin, "cagrpc")
        assert (seen.counts(), len(seen.replica_sets())) == ({"t/fixed/a": 3}, 1)
        for carrier in carriers:
            carrier.withdraw()
        assert seen.buffers() + seen.templates() + seen.replica_sets() == []
    finally:
        slack.remove(deployed.admin)


def test_a_right_that_is_missing_is_named(deployed: Cluster) -> None:
    nobody = deployed.plane.client(User.NOBODY)
    with pytest.raises(
        Unavailable, match=r"the right to get fleetrecords\.cagrpc\.io is missing; the roles in deploy/"
    ):
        ClusterJournal(nobody, "nobody").read()
    nobody.close()


def _without_nominations(admin: Api) -> None:
    """As for those who did not give the right."""
    for name in ("rbac.yaml", "rbac-simulated-nodes.yaml"):
        role = next(each for each in documents(name) if each["kind"] == "ClusterRole")
        left = [{**each, "resources": [r for r in each["resources"] if r != "pods/status"]} for each in role["rules"]]
        rules = [each for each in left if each["resources"]]
        admin.merge(f"{RBAC}/clusterroles/{role['metadata']['name']}", {"rules": rules})


@pytest.mark.parametrize("nominates", [True, False])
def test_a_server_with_these_rights_gets_pods_bound(deployed: Cluster, tmp_path: Path, *, nominates: bool) -> None:
    for name in (*OPTIONAL, *FENCES):
        for document in documents(name):
            apply(deployed.admin, document)
    if not nominates:
        _without_nominations(deployed.admin)
    live = Live(deployed, tmp_path)
    live.configure(
        [{"name": "all", "weight": 1, "node_groups": [group("small", "2", "4Gi", 0.1)]}],
        {"*": {"boot": "0.2s", "delete": "0.2s"}},
        kubeconfig=str(deployed.plane.kubeconfig_of_service_account("cagrpc", "cagrpc")),
        journal="cluster",
    )
    try:
        live.start()
        deployed.create_deployment("web", 3, {"cpu": "900m"})
        deployed.create_deployment("huge", 1, {"cpu": "900"})  # nobody can have it: an Event says so
        live.wait_for(lambda: len(bound(deployed)) == 3, "three pods are bound")
        live.wait_until_settled()
        events = deployed.path("events", api="apis/events.k8s.io/v1")
        live.wait_for(
            lambda: any(e.get("reportingController", "").startswith("cagrpc") for e in deployed.admin.items(events)),
            "an Event tells why",
        )
        found = deployed.admin.items("/apis/cagrpc.io/v1alpha1/increments")
        assert {item["status"]["phase"] for item in found} == {"done"}
        told = live.serving.get("/status")["placement"].get("problem", "")
        assert ("the right to patch pods/status is missing" in told) is not nominates
        if nominates:
            live.wait_for_running(3)
            assert "the right to" not in live.serving.log()
    finally:
        live.close()


def bound(cluster: Cluster) -> list[str]:
    return [pod["spec"]["nodeName"] for pod in cluster.pods() if pod["spec"].get("nodeName")]
