"""Two servers of one cluster, with the journal in it: one writer, and one that stands by until the first has gone. How
soon it does is tested with an injected clock (tests/kube/test_lease.py)."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import yaml

from tests.cli.conftest import Serving, configuration, serve
from tests.controlplane.cluster import Cluster
from tests.controlplane.deployed import clear_journal, install_crds
from tests.controlplane.live import SIMULATED, group
from tests.controlplane.processes import wait_for

PODS = 4
NAMESPACE = "cagrpc"


def ready(server: Serving) -> str:
    """Empty where it is, else why it is not."""
    try:
        with urllib.request.urlopen(f"http://{server.endpoints['http']}/readyz", timeout=5):
            return ""
    except urllib.error.HTTPError as error:
        return error.read().decode()


@pytest.fixture
def pair(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[Serving, Serving]]:
    """The writer, and the standby; both see one simulated cloud."""
    install_crds(cluster.admin)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.admin.ensure("/api/v1/namespaces", namespace)
    file = configuration(
        tmp_path / "cagrpc.yaml",
        [{"name": "all", "node_groups": [group("only", "4", "8Gi", 0.2)]}],
        {"only": {"boot_seconds": 4}},
        drive="plan",
        kubernetes={"kubeconfig": str(cluster.plane.kubeconfig()), "namespace": NAMESPACE},
        planner={"idle_seconds": 1, "window_seconds": 10},
    )
    written = yaml.safe_load(file.read_text())
    written["backend"]["file"] = "cloud.sqlite"
    file.write_text(yaml.safe_dump(written))
    first = serve(tmp_path / "first", "--config", file)
    wait_for(lambda: not ready(first), "the first one leads")
    second = serve(tmp_path / "second", "--config", file)
    yield first, second
    for server in (first, second):
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    clear_journal(cluster.admin)


def running(cluster: Cluster) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in cluster.pods())


def test_a_standby_takes_over_and_finishes_what_was_in_flight(cluster: Cluster, pair: tuple[Serving, Serving]) -> None:
    first, second = pair
    wait_for(lambda: "held by" in ready(second), "the second one stands by")
    with second.provider() as provider, pytest.raises(grpc.RpcError) as refused:
        provider.node_groups()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "held by" in str(refused.value.details())
    cluster.create_deployment("web", PODS, {"cpu": "1500m", "memory": "1Gi"})
    wait_for(lambda: "creating" in [each["phase"] for each in first.get("/increments")], "an increment is in flight")
    first.process.kill()
    first.process.wait()
    wait_for(lambda: not ready(second), "the second one leads")
    wait_for(lambda: running(cluster) == PODS, "all pods run")
    wait_for(lambda: [each["phase"] for each in second.get("/increments")] == ["done"], "one increment was enough")
    assert len(cluster.admin.items("/api/v1/nodes", labelSelector=f"{SIMULATED}=true")) == PODS // 2
    (told,) = cluster.admin.items("/apis/cagrpc.io/v1alpha1/increments")
    assert told["spec"]["summary"] == "only+2"


def test_one_that_stops_hands_over_at_once(pair: tuple[Serving, Serving]) -> None:
    first, second = pair
    wait_for(lambda: "held by" in ready(second), "the second one stands by")
    assert first.stop() == 0, first.log()
    wait_for(lambda: not ready(second), "the second one leads")
