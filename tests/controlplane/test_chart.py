"""deploy/chart in a real API server: every object is taken; a release is installed, upgraded and uninstalled by Helm,
with two servers that run exactly what its pods say, with exactly its rights."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.cluster import NODES, Cluster
from tests.support.controlplane.deployed import CRDS, apply, documents, remove_crds
from tests.support.controlplane.helm import CHART, VALUES, Helm, Values
from tests.support.controlplane.live import SIMULATED, group
from tests.support.controlplane.pods import PodProcess, Pods
from tests.support.controlplane.processes import wait_for
from tests.support.serving import cagrpc

DEFINITIONS = ("crds.yaml", "provisioning-crds.yaml", "slack-crds.yaml", "buffer-crds.yaml")
OTHERS = ("cert-manager.io/v1", "monitoring.coreos.com/v1")
"""APIs of other projects, which are not served here."""
ALL = {
    "readers": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"}],
    "clusterAutoscaler": {"enabled": True},
    "crds": {"provisioningRequests": True, "capacityBuffers": True},
    "certManager": {"enabled": True},
    "monitoring": {each: {"enabled": True} for each in ("serviceMonitor", "rules", "dashboard")},
    "config": {"planner": {"dedicated_nodes": True}, "kueue": {"enabled": True}, "slack": {}},
}
OURS = ("increments", "fleetrecords", "provisioningclasses", "slacks")
GATHER = {"idle": "2s", "window": "1m"}
INCREMENTS = "/apis/cagrpc.io/v1alpha1/increments"


class Release:
    """The release `cagrpc` in a namespace of its own, and machines for its pods."""

    def __init__(self, helm: Helm, cluster: Cluster, directory: Path) -> None:
        self.helm = helm
        self.cluster = cluster
        self.admin = cluster.admin
        self.namespace = f"{cluster.namespace}-system"
        self._directory = directory
        restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
        body = {"metadata": {"name": self.namespace, "labels": restricted}}
        self.admin.create("/api/v1/namespaces", body)
        self.pods = Pods(cluster, self.namespace, directory / "pods")
        (directory / "pods").mkdir()
        self.notes = ""

    def path(self, resource: str, api: str = "api/v1") -> str:
        return f"/{api}/namespaces/{self.namespace}/{resource}"

    def ask(self, command: str, *flags: object, values: Values | None = None) -> str:
        """Run a command of Helm on the release."""
        access = ("--namespace", self.namespace, "--kubeconfig", self.cluster.plane.kubeconfig())
        chart = (CHART,) if command in ("install", "upgrade") else ()
        return self.helm.run(command, "cagrpc", *chart, *access, *flags, values=values)

    def machines(self, *names: str) -> None:
        """With room for two servers, and for nothing else."""
        for name in names:
            capacity = {"cpu": "2", "memory": "4Gi"}
            self.cluster.create_node(name, capacity, labels={"kubernetes.io/os": "linux"})

    def certificates(self) -> None:
        """As the notes of the release say."""
        made = self._directory / "certs"
        done = cagrpc("certs", "--dir", made, "--host", f"cagrpc.{self.namespace}.svc")
        assert done.returncode == 0, done.stderr
        files = {"tls.crt": "server.crt", "tls.key": "server.key", "ca.crt": "ca.crt"}
        data = {key: base64.b64encode((made / name).read_bytes()).decode() for key, name in files.items()}
        self.admin.create(self.path("secrets"), {"metadata": {"name": "cagrpc-tls"}, "data": data})

    def disk(self) -> None:
        """For the claim of the simulated cloud: nobody provisions any here."""
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": self.namespace, "name": "cagrpc-cloud"},
        }
        self.admin.create("/api/v1/persistentvolumes", {"metadata": {"name": self.namespace}, "spec": spec})

    def read(self, one: PodProcess, page: str, account: str = "") -> tuple[int, str]:
        """Over TLS, as whoever has the name of the Service."""
        context = ssl.create_default_context(cafile=self._directory / "certs" / "ca.crt")
        context.check_hostname = False  # it is reached by an address that is not in the certificate
        headers = {}
        if account:
            headers["Authorization"] = f"Bearer {self.cluster.plane.token_of(self.namespace, account)}"
        request = urllib.request.Request(one.url(page), headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def objects(self) -> set[tuple[str, str, str]]:
        """Return kind, namespace and name of all that a release may have made or its servers written: whatever is in
        its namespace, and whatever has its label or the name elsewhere. Events say what was, and pass."""
        found = set()
        for api in _apis(self.admin):
            for kind in self.admin.get(api)["resources"]:
                if "list" not in kind["verbs"] or "/" in kind["name"] or kind["kind"] == "Event":
                    continue
                for each in self.admin.items(f"{api}/{kind['name']}"):
                    name, namespace = each["metadata"]["name"], each["metadata"].get("namespace", "")
                    labelled = each["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == "cagrpc"
                    if namespace == self.namespace or "cagrpc" in name or labelled:
                        found.add((kind["kind"], namespace, name))
        return found

    def close(self) -> None:
        self.pods.close()
        self.admin.delete(f"/api/v1/namespaces/{self.namespace}")
        self.admin.delete(self.path("pods"), gracePeriodSeconds=0)
        self.admin.delete(f"/api/v1/persistentvolumes/{self.namespace}")


def _apis(admin: Api) -> Iterator[str]:
    yield "/api/v1"
    for each in admin.get("/apis")["groups"]:
        yield f"/apis/{each['preferredVersion']['groupVersion']}"


@pytest.fixture
def release(helm: Helm, cluster: Cluster, tmp_path: Path) -> Iterator[Release]:
    for each in DEFINITIONS:  # other tests apply them without Helm, which then takes them for somebody else's
        remove_crds(cluster.admin, each)
    release = Release(helm, cluster, tmp_path)
    yield release
    try:
        release.helm.ask(
            "uninstall", "cagrpc", "--namespace", release.namespace, "--kubeconfig", cluster.plane.kubeconfig()
        )
    finally:
        release.close()
        for each in DEFINITIONS:
            remove_crds(cluster.admin, each)


COMBINATIONS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((), {}),
    *(((path.stem,), {}) for path in sorted(VALUES.glob("*.yaml")) if path.stem != "plain"),
    (("simulated",), ALL),
    (("karpenter",), ALL),
    (("cluster-api",), ALL),
    ((), {"config": {"http": {"insecure": True}}, "policies": {"enabled": False}}),
    (("karpenter",), {"tls": {"clientCaSecretName": "clients"}, "nodeSelector": {"pool": "system"}}),
    (
        ("ec2",),
        {
            "networkPolicy": {"egressTo": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "readers": []},
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": [{"name": "registry"}],
            "podLabels": {"team": "platform"},
            "podAnnotations": {"karpenter.sh/do-not-disrupt": "true"},
        },
    ),
]


@pytest.mark.parametrize(("files", "values"), COMBINATIONS, ids=lambda each: "-".join(each) if each else "own")
def test_the_api_server_takes_every_object(helm: Helm, cluster: Cluster, files: tuple[str, ...], values: Any) -> None:
    found = helm.template(values, *files, namespace=cluster.namespace)
    restricted = {"pod-security.kubernetes.io/warn": "restricted"}
    cluster.admin.merge(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": restricted}})
    for document in found:
        if document["apiVersion"] in OTHERS:
            continue
        apply(cluster.admin, document, dryRun="All")
        if document["kind"] == "Deployment" and document["metadata"]["name"] != "load":
            path = cluster.path("deployments", api="apis/apps/v1")
            answer = cluster.admin.answer("POST", path, document, query={"dryRun": "All"})
            assert answer.headers.get("Warning") is None  # of Pod Security


def test_a_release_is_installed_upgraded_and_uninstalled(release: Release) -> None:
    cluster, admin, pods = release.cluster, release.admin, release.pods
    release.machines("machine")
    release.disk()
    release.certificates()
    for name in ("reader", "stranger"):
        admin.create(release.path("serviceaccounts"), {"metadata": {"name": name}})
    before = release.objects()
    small, large = (group(name, cpu, "8Gi", price) for name, cpu, price in (("small", "2", 0.1), ("large", "8", 0.4)))
    config = {
        "drive": "plan",
        "kubernetes": {"simulated_nodes": True},
        "planner": {**GATHER, "dedicated_nodes": True},
        "slack": {},
        "kueue": {"enabled": True},
        "backend": {"simulated": {"*": {"boot": "0.5s", "delete": "0.1s"}}},
        "provisioners": [{"name": "all", "weight": 1, "node_groups": [small]}],
    }
    reader = {"kind": "ServiceAccount", "name": "reader", "namespace": release.namespace}
    values: dict[str, Any] = {"config": config, "readers": [reader], "crds": {"provisioningRequests": True}}

    told = release.ask("install", values=values)
    assert f"namespace {release.namespace}: 2 servers" in told
    assert "kubectl label namespace" not in told  # it is labelled
    first = pods.wait_for_a_leader(2)

    # Two servers, one leads: it plans, and what it has ordered is bound.
    cluster.create_deployment("web", 3, {"cpu": "900m"})
    _wait_until_bound(release, 3)
    assert {each["status"]["phase"] for each in _finished(release)} == {"done"}
    assert release.read(first, "/status", "reader")[0] == 200
    assert json.loads(release.read(first, "/status", "reader")[1])["ready"]
    assert release.read(first, "/status")[0] == 401
    assert release.read(first, "/status", "stranger")[0] == 403

    # The leader is killed: the other one leads, and the kubelet starts it again as a standby.
    first.process.stop(kill=True)
    second = pods.wait_for_a_leader(2, but=first.name)

    # The machine of the leader is to be drained: the other one leads, though it is on the same machine here.
    admin.merge(f"{NODES}/machine", {"spec": {"unschedulable": True}})
    third = pods.wait_for_a_leader(2, but=second.name)
    assert "the node machine was cordoned: a standby takes over" in pods.logs()
    admin.merge(f"{NODES}/machine", {"spec": {"unschedulable": False}})

    # Other values: both end, and begin again with what these say.
    config["provisioners"] = [{"name": "all", "weight": 1, "node_groups": [small, large]}]
    release.ask("upgrade", values=values)
    pods.wait_until_gone(second.name, third.name)
    pods.wait_for_a_leader(2)
    cluster.create_deployment("wide", 1, {"cpu": "5"})
    _wait_until_bound(release, 4)
    assert "large+1" in {each["spec"]["summary"] for each in _finished(release)}

    log = pods.logs()
    for problem in ("the right to", "forbidden", "Forbidden", "Traceback"):
        assert problem not in log, [line for line in log.splitlines() if problem in line]

    # Nothing of the release stays but what it says.
    told = release.helm.run(
        "uninstall", "cagrpc", "--namespace", release.namespace, "--kubeconfig", cluster.plane.kubeconfig()
    )
    assert "kept due to the resource policy" in told
    pods.wait_until_gone()
    kept = {
        *(("CustomResourceDefinition", "", f"{each}.cagrpc.io") for each in OURS),
        ("CustomResourceDefinition", "", "provisioningrequests.autoscaling.x-k8s.io"),
        ("Slack", release.namespace, "cagrpc"),
        ("PersistentVolumeClaim", release.namespace, "cagrpc-cloud"),
        ("Lease", release.namespace, "cagrpc"),
        ("APIService", "", "v1alpha1.cagrpc.io"),  # the API server's own, of the definitions
    }

    def left() -> set[tuple[str, str, str]]:
        return {each for each in release.objects() - before if each[0] not in ("Increment", "FleetRecord")}

    with suppress(AssertionError):
        wait_for(lambda: left() <= kept, "the rest is gone", seconds=30)
    assert left() == kept
    assert len(admin.items(INCREMENTS)) == len(_finished(release)) >= 2

    # And it is there again for the next one, which takes up what stands.
    release.ask("install", values=values)
    pods.wait_for_a_leader(2)
    nodes = admin.items(NODES, labelSelector=f"{SIMULATED}=true")
    cluster.create_deployment("narrow", 1, {"cpu": "500m"})
    _wait_until_bound(release, 5)
    assert len(admin.items(NODES, labelSelector=f"{SIMULATED}=true")) == len(nodes)


def _finished(release: Release) -> list[Any]:
    return [each for each in release.admin.items(INCREMENTS) if each["status"]["phase"] in ("done", "rolled-back")]


def _wait_until_bound(release: Release, count: int) -> None:
    def bound() -> bool:
        release.pods.look()
        return len([each for each in release.cluster.pods() if each["spec"].get("nodeName")]) == count

    def settled() -> bool:
        release.pods.look()
        return len(_finished(release)) == len(release.admin.items(INCREMENTS))

    try:
        wait_for(bound, f"{count} pods are bound")
        wait_for(settled, "every increment is finished")
    except AssertionError as error:
        error.add_note(release.pods.logs()[-6000:])
        raise


def test_the_servers_of_a_cloud_are_on_two_machines_and_the_leader_is_not_evicted(release: Release) -> None:
    """By the real scheduler and the real disruption controller."""
    admin = release.admin
    release.machines("one", "two")
    release.ask("install", "--values", VALUES / "karpenter.yaml")
    pods = release.path("pods")

    def placed() -> dict[str, str]:
        return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in admin.items(pods)}

    wait_for(lambda: sorted(placed().values()) == ["one", "two"], "each has a machine of its own")
    leader, standby = placed()
    for name, ready in ((leader, "True"), (standby, "False")):
        conditions = [{"type": each, "status": ready} for each in ("Ready", "ContainersReady")]
        admin.merge(f"{pods}/{name}/status", {"status": {"phase": "Running", "conditions": conditions}})
    budget = release.path("poddisruptionbudgets/cagrpc", "apis/policy/v1")
    wait_for(lambda: admin.get(budget)["status"].get("currentHealthy") == 1, "the leader is seen")

    def evict(name: str) -> None:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        admin.create(f"{pods}/{name}/eviction", eviction)

    with pytest.raises(ApiRefusal, match="disruption budget"):
        evict(leader)
    evict(standby)


def test_a_namespace_without_the_label_is_told(release: Release) -> None:
    admin = release.admin
    labels = {"pod-security.kubernetes.io/enforce": None}
    admin.merge(f"/api/v1/namespaces/{release.namespace}", {"metadata": {"labels": labels}})
    told = release.ask("install", "--dry-run=server")
    assert f"kubectl label namespace {release.namespace} pod-security.kubernetes.io/enforce=restricted" in told
    assert not [each for each in admin.items(CRDS) if each["metadata"]["name"].endswith(".cagrpc.io")]


def test_what_kubectl_applied_before_is_taken_over(release: Release) -> None:
    """From plain manifests to a release."""
    admin = release.admin
    for document in documents("crds.yaml"):
        apply(admin, document)
    refused = release.helm.ask(
        "install",
        "cagrpc",
        CHART,
        "--namespace",
        release.namespace,
        "--kubeconfig",
        release.cluster.plane.kubeconfig(),
    )
    assert "cannot be imported into the current release" in refused.stderr
    release.ask("install", "--take-ownership", "--force-conflicts")
    (found,) = [each for each in admin.items(CRDS) if each["metadata"]["name"] == "increments.cagrpc.io"]
    assert found["metadata"]["annotations"]["meta.helm.sh/release-name"] == "cagrpc"
