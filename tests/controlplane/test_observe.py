"""`cagrpc observe` of a real cluster, by somebody who may only list and watch it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.episodes.log import read
from cagrpc.controllers.episodes.model import Better, Ended, Episode
from cagrpc.fleet.prices import NodePrices
from cagrpc.offline.inputs import Inputs
from cagrpc.offline.observing import observe
from cagrpc.report.standing import groups_that_stand
from solver.model import NodeGroup
from tests.support.controlplane.accounts import RBAC, create_account, remove_bindings
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import apply
from tests.support.controlplane.processes import wait_for

READ = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"]}
BIG, SMALL = {"cpu": "8", "memory": "16Gi"}, {"cpu": "2", "memory": "4Gi"}


@pytest.fixture
def kubeconfig(cluster: Cluster) -> Iterator[Path]:
    """Of an account that may list and watch, and nothing else."""
    name = f"{cluster.namespace}-watches"
    role: Any = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [READ]}
    apply(cluster.admin, role)
    create_account(cluster, "watches", name)
    yield cluster.plane.kubeconfig_of_service_account(cluster.namespace, "watches")
    remove_bindings(cluster)
    cluster.admin.delete(f"/apis/{RBAC}/v1/clusterroles/{name}")


def test_what_came_stands_beside_what_would_have_been_planned(
    cluster: Cluster, kubeconfig: Path, tmp_path: Path
) -> None:
    for name, capacity in (("big", BIG), ("small", SMALL)):
        cluster.create_node(f"{name}-0", capacity, labels={"agentpool": name})
    waiting: list[int] = []

    def that_stand(state: ClusterState, prices: NodePrices) -> tuple[tuple[NodeGroup, ...], frozenset[str]]:
        waiting.append(state.waiting_pods)
        return groups_that_stand(state, prices)

    found: list[Episode] = []
    ended = threading.Event()

    def tell(episode: Episode) -> None:
        found.append(episode)
        ended.set()

    asked = (Inputs(kubeconfig=kubeconfig), tmp_path / "episodes.json", that_stand, tell, ended)
    thread = threading.Thread(target=observe, args=asked, daemon=True)
    thread.start()
    try:
        cluster.create_deployment("fills", 5, {"cpu": "1900m"})
        wait_for(lambda: all(pod["spec"].get("nodeName") for pod in cluster.pods()), "what stands is full")
        cluster.create_deployment("waits", 4, {"cpu": "1900m"})
        wait_for(lambda: waiting.count(4) >= 4, "the pods are seen to wait")
        for number in range(1, 5):
            cluster.create_node(f"small-{number}", SMALL, labels={"agentpool": "small"})
        wait_for(ended.is_set, "the episode ends")
    finally:
        ended.set()
        thread.join()
    (episode,) = found
    assert (episode.ended, episode.pods, episode.came.node_count) == (Ended.SERVED, 4, 4)
    assert episode.planned is not None
    assert (episode.planned.unserved, episode.better) == (0, Better.EQUAL), "the price rule prices both alike"
    assert {each.node_group for each in episode.came.nodes} == {"small/node/on-demand"}
    assert any(each.startswith("prices of ") for each in episode.unknown)
    (kept,) = read((tmp_path / "episodes.json").read_text())
    recorded = kept.recorded()
    assert recorded is not None
    assert [each.name for each in recorded.cluster.nodes] == ["big-0", "small-0"]
