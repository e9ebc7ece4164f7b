"""Cluster API beside a control plane, which is management and workload cluster in one unless a test has two: its core
as a real process, its definitions from its Go module, and a provider of ours that plays the machines
(`machine_provider`). Its webhooks are not registered: the core serves them, and nobody calls."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from tests.support.controlplane.api import Api
from tests.support.controlplane.binaries import CLUSTER_API, source
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import CRDS, apply, wait_until_served
from tests.support.controlplane.machine_provider import PROVIDER_GROUP, MachineProvider
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.processes import Process, free_port, wait_for

CORE = "cluster.x-k8s.io"
API = f"apis/{CORE}/v1beta2"
CLUSTER = "workload"
_KINDS = ("TestMachine", "TestMachineTemplate", "TestConfig", "TestConfigTemplate", "TestControlPlane")

Document = dict[str, Any]


def definitions() -> list[Document]:
    """Return the definitions of the core's kinds."""
    directory = source(CLUSTER_API, "sigs.k8s.io/cluster-api") / "core" / "config" / "crd" / "bases"
    return [yaml.safe_load(path.read_text()) for path in sorted(directory.glob("*.yaml"))]


def kubeadm_definitions() -> list[Document]:
    """Return the definitions of the kubeadm bootstrap provider's kinds."""
    directory = source(CLUSTER_API, "sigs.k8s.io/cluster-api") / "bootstrap" / "kubeadm" / "config" / "crd" / "bases"
    return [yaml.safe_load(path.read_text()) for path in sorted(directory.glob("*.yaml"))]


def only_version(definition: Document, version: str) -> Document:
    """Return the definition with this version alone, served and stored."""
    (found,) = [each for each in definition["spec"]["versions"] if each["name"] == version]
    spec = {**definition["spec"], "versions": [{**found, "served": True, "storage": True}]}
    return {**definition, "spec": spec}


def provider_definitions() -> list[Document]:
    """Return the definitions of our own provider's kinds, which keep the v1beta2 contract."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    found = []
    for kind in _KINDS:
        plural = f"{kind.lower()}s"
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
            "subresources": {"status": {}},
        }
        found.append(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{plural}.{PROVIDER_GROUP}", "labels": {f"{CORE}/v1beta2": "v1"}},
                "spec": {
                    "group": PROVIDER_GROUP,
                    "scope": "Namespaced",
                    "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                    "versions": [version],
                },
            }
        )
    return found


def install(admin: Api, found: list[Document]) -> None:
    """Served when this returns."""
    for definition in found:
        apply(admin, definition)
    for definition in found:
        wait_until_served(admin, definition)


def remove(admin: Api, found: list[Document]) -> None:
    """Gone when this returns, with all objects, also those whose finalizers a process that has been stopped would have
    removed: otherwise every later test fails that wants these definitions."""
    names = {each["metadata"]["name"] for each in found}
    for definition in found:
        _let_go(admin, definition)
    for name in names:
        admin.delete(f"{CRDS}/{name}")
    wait_for(lambda: not names & {each["metadata"]["name"] for each in admin.items(CRDS)}, "they are gone")


def _let_go(admin: Api, definition: Document) -> None:
    """Remove the finalizers of all objects of a kind."""
    spec = definition["spec"]
    served = next(each["name"] for each in reversed(spec["versions"]) if each.get("served", True))
    path, plural = f"/apis/{spec['group']}/{served}", spec["names"]["plural"]
    for each in admin.items(f"{path}/{plural}"):
        name, namespace = each["metadata"]["name"], each["metadata"].get("namespace")
        if each["metadata"].get("finalizers"):
            place = f"{path}/namespaces/{namespace}/{plural}" if namespace else f"{path}/{plural}"
            admin.merge(f"{place}/{name}", {"metadata": {"finalizers": None}})


class ClusterApiCore:
    """The core's process."""

    def __init__(self, plane: ControlPlane, program: Path) -> None:
        self._plane = plane
        self._program = program
        self._process: Process | None = None

    def start(self, *flags: str) -> None:
        """Healthy when this returns. `flags` are more of them."""
        health, certificates = free_port(), self._plane.directory
        self._process = Process(
            [
                self._program,
                f"--kubeconfig={self._plane.kubeconfig()}",
                f"--health-addr=127.0.0.1:{health}",
                f"--webhook-port={free_port()}",
                f"--webhook-cert-dir={certificates}",
                "--webhook-cert-name=server.crt",
                "--webhook-key-name=server.key",
                "--diagnostics-address=127.0.0.1:0",
                "--insecure-diagnostics=true",
                "--kube-api-qps=1000",
                "--kube-api-burst=2000",
                "--clustercache-client-qps=1000",
                "--clustercache-client-burst=2000",
                *flags,
            ],
            certificates / "cluster-api.log",
        )
        with urllib3.PoolManager(retries=False, timeout=5) as pool:

            def ready() -> bool:
                try:
                    return pool.request("GET", f"http://127.0.0.1:{health}/readyz").status == 200
                except urllib3.exceptions.HTTPError:
                    return False

            wait_for(ready, "Cluster API's core is ready", process=self._process)

    def stop(self, *, kill: bool = False) -> None:
        if self._process is not None:
            self._process.stop(kill=kill)


class WorkloadCluster:
    """A Cluster of Cluster API in the namespace of a test. `cluster` has the pods and Nodes, and unless there is a
    `management` cluster the Machines too."""

    def __init__(self, cluster: Cluster, core: ClusterApiCore, management: Cluster | None = None) -> None:
        self.cluster = cluster
        self.core = core
        self.management = management or cluster
        self.admin = self.management.admin
        self.namespace = self.management.namespace
        self.provider = MachineProvider(self.admin, self.namespace, cluster.admin)
        self._create()

    def path(self, plural: str, name: str = "") -> str:
        """Of the core's kinds."""
        return self.management.path(plural, name, api=API)

    def _create(self) -> None:
        kubeconfig = base64.b64encode(self.cluster.plane.kubeconfig().read_bytes()).decode()
        self.admin.create(
            self.management.path("secrets"),
            {
                "metadata": {"name": f"{CLUSTER}-kubeconfig", "labels": {f"{CORE}/cluster-name": CLUSTER}},
                "type": f"{CORE}/secret",
                "data": {"value": kubeconfig},
            },
        )
        control_plane = self._document("TestControlPlane", CLUSTER, {})
        self.admin.create(self.provider.path("testcontrolplanes"), control_plane)
        status = {"externalManagedControlPlane": True, "initialization": {"controlPlaneInitialized": True}}
        self.admin.merge(self.provider.path("testcontrolplanes", CLUSTER) + "/status", {"status": status})
        reference = {"apiGroup": PROVIDER_GROUP, "kind": "TestControlPlane", "name": CLUSTER}
        endpoint = {"host": "127.0.0.1", "port": int(self.cluster.plane.server.rpartition(":")[2])}
        self.admin.create(
            self.path("clusters"),
            {
                "apiVersion": f"{CORE}/v1beta2",
                "kind": "Cluster",
                "metadata": {"name": CLUSTER},
                "spec": {"controlPlaneRef": reference, "controlPlaneEndpoint": endpoint},
            },
        )

    def template(self, pool: str, resources: Mapping[str, str], **registration: Any) -> None:
        """Create an infrastructure and a bootstrap template of the pool's name. `registration`: `labels` and `taints`
        that its Nodes register with."""
        machine = {"template": {"spec": {"pool": pool, "resources": dict(resources)}}}
        config = {"template": {"spec": registration}}
        self.admin.create(
            self.provider.path("testmachinetemplates"), self._document("TestMachineTemplate", pool, machine)
        )
        self.admin.create(self.provider.path("testconfigtemplates"), self._document("TestConfigTemplate", pool, config))

    def machine_deployment(self, pool: str, annotations: Mapping[str, str] | None = None, **spec: Any) -> None:
        """Create a MachineDeployment without replicas from the templates of this name. `spec` are fields of its
        Machines' spec."""
        labels = {f"{CORE}/cluster-name": CLUSTER, f"{CORE}/deployment-name": pool}
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}  # as by its webhook
        template = {
            "clusterName": CLUSTER,
            "bootstrap": {"configRef": {"apiGroup": PROVIDER_GROUP, "kind": "TestConfigTemplate", "name": pool}},
            "infrastructureRef": {"apiGroup": PROVIDER_GROUP, "kind": "TestMachineTemplate", "name": pool},
            **spec,
        }
        self.admin.create(
            self.path("machinedeployments"),
            {
                "apiVersion": f"{CORE}/v1beta2",
                "kind": "MachineDeployment",
                "metadata": {"name": pool, "annotations": dict(annotations or {}), "labels": labels},
                "spec": {
                    "clusterName": CLUSTER,
                    "replicas": 0,
                    "rollout": {"strategy": strategy},
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": template},
                },
            },
        )

    def machines(self) -> list[Any]:
        return self.admin.items(self.path("machines"))

    def left(self) -> list[str]:
        """Return what there is of Machines, clones and their Nodes, by kind and name."""
        found = [f"Machine {each['metadata']['name']}" for each in self.machines()]
        for plural in ("testmachines", "testconfigs"):
            found += [f"{plural} {each['metadata']['name']}" for each in self.admin.items(self.provider.path(plural))]
        return found + [f"Node {each['metadata']['name']}" for each in self.cluster.nodes()]

    def close(self) -> None:
        """Everything goes, with the core's help. Pods go first: without a kubelet no drain would end."""
        for plural in ("deployments", "replicasets"):
            self.cluster.admin.delete(self.cluster.path(plural, api="apis/apps/v1"))
        self.cluster.admin.delete(self.cluster.path("pods"), gracePeriodSeconds=0)
        for plural in ("machinedeployments", "machinesets", "machines"):
            self.admin.delete(self.path(plural))
        try:
            wait_for(lambda: not self.machines(), "the Machines are gone", seconds=60)
            for plural in ("testmachines", "testconfigs"):
                self.admin.delete(self.provider.path(plural))
                wait_for(lambda plural=plural: not self.admin.any(self.provider.path(plural)), f"{plural} are gone")  # type: ignore[misc]
            self.admin.delete(self.path("clusters"))
            wait_for(lambda: not self.admin.any(self.path("clusters")), "the Cluster is gone")
        finally:
            self.provider.close()

    @staticmethod
    def _document(kind: str, name: str, spec: Document) -> Document:
        return {"apiVersion": f"{PROVIDER_GROUP}/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@contextmanager
def running_core(plane: ControlPlane, program: Path) -> Iterator[ClusterApiCore]:
    """Run the core, with its definitions and our provider's, all in their newest version."""
    found = [only_version(each, each["spec"]["versions"][-1]["name"]) for each in definitions()]
    install(plane.admin, [*found, *provider_definitions()])
    core = ClusterApiCore(plane, program)
    core.start()
    yield core
    core.stop(kill=True)
    remove(plane.admin, [*found, *provider_definitions()])


@pytest.fixture(scope="module")
def cluster_api(control_plane: ControlPlane, cluster_api_program: Path) -> Iterator[ClusterApiCore]:
    """Cluster API's core, for one module."""
    with running_core(control_plane, cluster_api_program) as core:
        yield core


@pytest.fixture
def workload(cluster: Cluster, cluster_api: ClusterApiCore) -> Iterator[WorkloadCluster]:
    """A Cluster of Cluster API, which is the control plane itself."""
    workload = WorkloadCluster(cluster, cluster_api)
    yield workload
    workload.close()
