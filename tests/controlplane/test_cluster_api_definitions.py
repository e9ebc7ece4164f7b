"""What the Cluster API backend creates, against the definitions of Cluster API as they are: nothing is refused, and no
field is unknown. Without its core, which has one version only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cagrpc.backends.cluster_api.backend import open_backend
from cagrpc.backends.cluster_api.plugin import ClusterApiSettings, MachineSource, Reference
from cagrpc.backends.plugin import BackendContext
from cagrpc.fleet.backend import Order, OrderedInstance
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import epoch
from solver.model import Taint, TaintEffect
from tests.support.controlplane import cluster_api, machine_provider
from tests.support.controlplane.api import Api
from tests.support.controlplane.cluster import Cluster
from tests.support.fleet import group

pytestmark = pytest.mark.usefixtures("cluster_api_program")  # whose Go module has them
KUBEADM = "bootstrap.cluster.x-k8s.io"
GROUP = group("a", taints=(Taint("gpu", TaintEffect.NO_SCHEDULE, "yes"), Taint("slow", TaintEffect.NO_EXECUTE)))
KUBEADM_TEMPLATE: dict[str, Any] = {
    "template": {"spec": {"joinConfiguration": {"nodeRegistration": {"name": "{{ ds.meta_data.hostname }}"}}}}
}


@pytest.fixture(params=["v1beta2", "v1beta1"])
def served(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, str]]:
    """The version, and a cluster that serves it alone."""
    names = ("clusters", "machines", "machinedeployments", "machinepools")
    core = [each for each in cluster_api.definitions() if each["spec"]["names"]["plural"] in names]
    core = [each for each in core if each["spec"]["group"] == cluster_api.CORE]
    found = [*core, *cluster_api.kubeadm_definitions()]
    found = [cluster_api.only_version(each, request.param) for each in found]
    found += cluster_api.provider_definitions()
    cluster_api.install(cluster.admin, found)
    yield cluster, request.param
    cluster_api.remove(cluster.admin, found)


def test_every_field_is_known(served: tuple[Cluster, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, version = served
    strict = StrictApi(cluster, version)
    strict.create("clusters", "Cluster", "c", {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 6443}})
    cluster.admin.create(
        cluster.path("testmachinetemplates", api=machine_provider.PROVIDER_API),
        {
            "apiVersion": f"{machine_provider.PROVIDER_GROUP}/v1",
            "kind": "TestMachineTemplate",
            "metadata": {"name": "t"},
            "spec": {"template": {"spec": {"pool": "a"}}},
        },
    )
    strict.create("kubeadmconfigtemplates", "KubeadmConfigTemplate", "t", KUBEADM_TEMPLATE, KUBEADM)
    source = MachineSource(
        infrastructure_template=Reference(machine_provider.PROVIDER_GROUP, "TestMachineTemplate", "t"),
        bootstrap_template=Reference(KUBEADM, "KubeadmConfigTemplate", "t"),
        version="v1.36.1",
        failure_domain="rack-1",
        machine_taints=True,
        node_drain_timeout_seconds=60,
    )
    kubeconfig = cluster.plane.kubeconfig()
    settings = ClusterApiSettings("c", cluster.namespace, {"a": source}, kubeconfig=kubeconfig)
    opened = open_backend(settings, BackendContext(tmp_path, epoch))
    sent: list[tuple[str, Mapping[str, Any]]] = []
    create = Client.create

    def recorded(client: Client, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        sent.append((path, body))
        return create(client, path, body)

    monkeypatch.setattr(Client, "create", recorded)
    try:
        opened.backend.order(Order("i", (OrderedInstance("i-a-1", GROUP, 0),), frozenset({"i-a-1"})))
        (machine,) = strict.items("machines")
        (config,) = strict.items("kubeadmconfigs", KUBEADM)
        assert len(sent) == 3
        for path, body in sent:
            strict.try_again(path, body)
        assert [each["propagation"] for each in machine["spec"]["taints"]] == ["OnInitialization", "Always", "Always"]
        assert len(config["spec"]["joinConfiguration"]["nodeRegistration"]["taints"]) == 3
        assert [each.token for each in opened.backend.list_instances().instances] == ["i-a-1"]
        opened.backend.delete(opened.backend.list_instances().instances)
        assert not strict.items("machines") + strict.items("kubeadmconfigs", KUBEADM)
    finally:
        opened.close()


class StrictApi:
    """Creates objects of one version, and takes no unknown field."""

    def __init__(self, cluster: Cluster, version: str) -> None:
        self._cluster = cluster
        self._admin: Api = cluster.admin
        self._version = version

    def path(self, plural: str, of: str = cluster_api.CORE) -> str:
        return self._cluster.path(plural, api=f"apis/{of}/{self._version}")

    def items(self, plural: str, of: str = cluster_api.CORE) -> list[Any]:
        return self._admin.items(self.path(plural, of))

    def create(self, plural: str, kind: str, name: str, spec: Any, of: str = cluster_api.CORE) -> None:
        document = {"apiVersion": f"{of}/{self._version}", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self._admin.ask("POST", self.path(plural, of), document, query={"fieldValidation": "Strict"})

    def try_again(self, path: str, body: Mapping[str, Any]) -> None:
        """Create the same under another name, on trial."""
        document = {**body, "metadata": {**body["metadata"], "name": "again"}}
        self._admin.ask("POST", path, document, query={"fieldValidation": "Strict", "dryRun": "All"})
