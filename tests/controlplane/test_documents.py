"""The documents' commands of kubectl, and of cagrpc with a cluster, typed as they stand there, against the
control plane. There are no kubelets: what needs a pod that runs is in the list of `tests/documents/lists.py`."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.documents.lists import WITH_CONTROL_PLANE, not_run, pages, plain
from tests.support.commands import ROOT, PageReader, blocks, play
from tests.support.controlplane import deployed
from tests.support.controlplane.api import Api
from tests.support.controlplane.binaries import required
from tests.support.controlplane.cluster import NODES, Cluster
from tests.support.controlplane.kubectl import Kubectl
from tests.support.controlplane.plugin import LEFT_OUT
from tests.support.controlplane.processes import wait_for

INSTALLED = (
    "cagrpc.yaml",
    "network-policy.yaml",
    "flow-schemas.yaml",
    "policies.yaml",
    "rbac-simulated-nodes.yaml",
    "rbac-karpenter.yaml",
    "rbac.yaml",
)
DEFINITIONS = ("crds.yaml", "slack-crds.yaml", "provisioning-crds.yaml")
PODS = """\
apiVersion: v1
kind: Pod
metadata: {name: it}
spec: {containers: [{name: it, resources: {requests: {cpu: 1}}}]}
"""
NAMESPACE = "/api/v1/namespaces/cagrpc"
LABELS = {
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    "node.kubernetes.io/instance-type": "m5.large",
    "topology.kubernetes.io/zone": "us-east-1a",
}


class Admin(PageReader):
    """A reader who may do everything in the cluster."""

    def __init__(self, directory: Path, cluster: Cluster, kubectl: Kubectl) -> None:
        path = os.pathsep.join([str(kubectl.directory), os.environ["PATH"]])
        os.environ["PATH"], before = path, os.environ["PATH"]
        try:
            super().__init__(directory)
        finally:
            os.environ["PATH"] = before
        self.cluster = cluster
        text = cluster.plane.kubeconfig().read_text()
        self.write(".kube/config", text)
        self.write("pods.yaml", PODS)
        self.write("nodepools.yaml", (ROOT / "cagrpc" / "data" / "provisioners" / "amd64.yaml").read_text())
        self.write("provisioners.yaml", (ROOT / "cagrpc" / "data" / "provisioners" / "amd64.yaml").read_text())

    def play(self, page: str, before: Mapping[str, Callable[[], object]] | None = None) -> None:
        skipped = not_run(page)
        play(self, pages()[page], lambda command: plain(command) in skipped, before)


@pytest.fixture
def admin(cluster: Cluster, kubectl: Kubectl, tmp_path: Path) -> Iterator[Admin]:
    directory = tmp_path / "reader"
    directory.mkdir()
    clear(cluster.admin)
    admin = Admin(directory, cluster, kubectl)
    yield admin
    admin.kill()
    clear(cluster.admin)


def clear(api: Api) -> None:
    """Nothing of deploy/ is left: other tests need that, and so do pages that begin with it."""
    deployed.remove(api, *INSTALLED)
    for name in DEFINITIONS:
        deployed.remove_crds(api, name)
    api.delete(f"{NAMESPACE}/pods", gracePeriodSeconds=0)
    api.delete(NAMESPACE)
    wait_for(
        lambda: "cagrpc" not in {each["metadata"]["name"] for each in api.items("/api/v1/namespaces")}, "it is gone"
    )


@contextmanager
def usual_ports() -> Iterator[None]:
    """One test at a time has the ports that a server has by default."""
    with (Path(tempfile.gettempdir()) / "cagrpc-usual-ports").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def yaml_of(page: str, beginning: str) -> str:
    """Return the YAML of a page that begins so."""
    (found,) = [lines for lines in blocks((ROOT / page).read_text(), "yaml") if lines[0].startswith(beginning)]
    return "\n".join(found) + "\n"


def test_every_page_is_played_here() -> None:
    text = Path(__file__).read_text()
    assert not [page for page in WITH_CONTROL_PLANE if f'"{page}"' not in text]


def test_without_a_cloud(admin: Admin) -> None:
    page = "docs/guides/try-without-a-cloud.md"
    admin.write("try.yaml", yaml_of(page, "drive: plan"))
    pods = "/api/v1/namespaces/default/pods"

    def running(count: int) -> None:
        def all_run() -> bool:
            found = admin.cluster.admin.items(pods, labelSelector="app=web")
            return len(found) == count and all(each["status"].get("phase") == "Running" for each in found)

        wait_for(all_run, f"{count} pods run")

    def stop() -> None:
        running(80)
        admin.stop()

    with usual_ports():
        before: dict[str, Callable[[], object]] = {
            "kubectl get pods -o wide": lambda: running(40),
            "kubectl delete deployment web": stop,
        }
        try:
            admin.play(page, before)
        finally:
            admin.kill()
            admin.cluster.admin.delete("/apis/apps/v1/namespaces/default/deployments/web")
            admin.cluster.admin.delete(pods, gracePeriodSeconds=0)
    assert not admin.cluster.admin.items(NODES)


def test_faults(admin: Admin) -> None:
    with usual_ports():
        admin.run("cagrpc serve")
        admin.play("docs/guides/faults-and-replay.md")
        said = json.loads(admin.run("curl --silent localhost:8088/simulation"))
        admin.stop()
    assert "m5.large" in json.dumps(said)


@pytest.mark.parametrize("page", ["docs/guides/karpenter.md", "docs/guides/provisioning-requests.md"])
def test_what_is_applied(admin: Admin, page: str) -> None:
    admin.play(page)
    assert admin.cluster.admin.items(deployed.CRDS)


def test_a_report(admin: Admin) -> None:
    admin.cluster.create_node("it", {"cpu": "2", "memory": "8Gi"}, labels=LABELS)
    admin.cluster.create_pod("web", {"cpu": "500m", "memory": "1Gi"}, nodeName="it")
    admin.play("docs/guides/report.md")
    assert "m5.large" in (admin.directory / "report.html").read_text()


def test_a_dry_run(admin: Admin) -> None:
    admin.cluster.create_pod("waits", {"cpu": "1", "memory": "1Gi"})
    admin.play("docs/guides/plan.md")


def test_the_plug_in(admin: Admin) -> None:
    admin.cluster.create_node("it", {"cpu": "2", "memory": "8Gi"}, labels=LABELS)
    admin.cluster.create_pod("web", {"cpu": "500m", "memory": "1Gi"}, nodeName="it")
    admin.run("kubectl create namespace cagrpc")
    try:
        admin.play("docs/guides/kubectl.md")
    finally:
        admin.run("kubectl delete --ignore-not-found clusterrolebinding cagrpc-reader")
    assert "m5.large" in (admin.directory / "report.html").read_text()
    # The rights that it names are such.
    admin.write("role.yaml", yaml_of("docs/guides/kubectl.md", "apiVersion: rbac"))
    admin.run("kubectl apply --dry-run=server -f role.yaml")


def test_dumps_are_planned(admin: Admin) -> None:
    admin.cluster.create_node("it", {"cpu": "2", "memory": "8Gi"}, labels=LABELS)
    admin.cluster.create_pod("waits", {"cpu": "3", "memory": "1Gi"})
    claims = "docs/reference/resource-claims.md"
    admin.write("devices.yaml", yaml_of(claims, "devices:"))
    for page in (claims, "docs/reference/volumes.md"):
        admin.play(page)
    assert "waits" in (admin.directory / "dump.yaml").read_text()


def test_annotations_of_scale_down_are_cleared(admin: Admin) -> None:
    if not required() and not shutil.which("jq"):
        pytest.skip(f"{LEFT_OUT}the page types `jq` (on Debian and Ubuntu: apt install jq)")
    ours, other = "cagrpc.io/scale-down-disabled", "cluster-autoscaler.kubernetes.io/scale-down-disabled"
    annotations: dict[str, Any] = {"ours": {ours: "a reason", other: "true"}, "theirs": {other: "true"}}
    for name, mine in annotations.items():
        admin.cluster.create_node(name, {"cpu": "2", "memory": "8Gi"})
        admin.cluster.admin.merge(f"{NODES}/{name}", {"metadata": {"annotations": mine}})
    admin.play("docs/reference/scale-down.md")
    left = {each["metadata"]["name"]: each["metadata"].get("annotations", {}) for each in admin.cluster.nodes()}
    assert ours not in left["ours"]
    assert other not in left["ours"]
    assert other in left["theirs"]
