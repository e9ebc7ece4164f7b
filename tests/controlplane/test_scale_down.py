"""Scale-down's annotations on a real API server, with real Deployments and the real scheduler: three tiers, from which
somebody plays the autoscaler and takes what may go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cagrpc.cluster.markers import SCALE_DOWN_DISABLED
from cagrpc.cluster.markers import SCALE_DOWN_DISABLED_BY_US as OURS
from cagrpc.cluster.shortages import Shortages
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.scale_down.choice import Rules
from cagrpc.controllers.scale_down.controller import ScaleDownController
from cagrpc.fleet.model import FleetSnapshot, GroupState, Instance, InstanceState
from cagrpc.kube.client.client import Client, PatchKind
from cagrpc.runtime.clock import epoch
from solver.model import NodeGroup
from tests.controllers.scale_down.standing import IN_USE, no_room
from tests.support.clocks import any_clock
from tests.support.controlplane.cluster import NODES, Cluster
from tests.support.controlplane.processes import wait_for

_WEIGHTS = {"high": 100, "middle": 50, "low": 10}
_PODS = 5
_SIZE = {"cpu": "4", "memory": "16Gi"}
_NO_TIME = any_clock(lambda: 0.0)
"""However slow the machine and the API server: one step evaluates all nodes, and writes what it has found."""


@dataclass
class _Fleet:
    """One group a tier; what is named after it is of it."""

    cluster: Cluster

    @property
    def snapshot(self) -> FleetSnapshot:
        names = [node["metadata"]["name"] for node in self.cluster.nodes()]
        resources = {"cpu": 4000, "memory": 16 * 2**30, "pods": 110}
        groups, of_instance = {}, {}
        for group_id, weight in _WEIGHTS.items():
            ids = [f"test://{name}" for name in names if name.startswith(group_id)]
            of_instance.update(dict.fromkeys(ids, group_id))
            listed = tuple(Instance(each, group_id, InstanceState.RUNNING) for each in ids)
            groups[group_id] = GroupState(NodeGroup(group_id, resources, 1.0, weight=weight), len(ids), listed)
        return FleetSnapshot(1, groups, (), of_instance)


@pytest.fixture
def view(client: Client) -> Iterator[ClusterView]:
    view = ClusterView(client)
    view.start()
    wait_for(lambda: view.problem is None, "the view knows the cluster")
    yield view
    view.stop()


def _node(cluster: Cluster, name: str) -> None:
    cluster.create_node(name, _SIZE)
    cluster.admin.merge(f"{NODES}/{name}", {"spec": {"providerID": f"test://{name}"}})


def _places(cluster: Cluster) -> list[str | None]:
    return [pod["spec"].get("nodeName") for pod in cluster.pods()]


def _marks(cluster: Cluster) -> dict[str, str]:
    """The reasons by node; with ours there is always the autoscaler's."""
    found = {}
    for node in cluster.nodes():
        annotations = node["metadata"].get("annotations", {})
        if OURS in annotations:
            assert annotations[SCALE_DOWN_DISABLED] == "true"
            found[node["metadata"]["name"]] = annotations[OURS]
    return found


def _seen(cluster: Cluster, view: ClusterView) -> None:
    """The view has caught up: it knows all nodes, where pods are, and what is annotated."""
    pods = len(cluster.pods())
    marks = set(_marks(cluster))

    def caught_up() -> bool:
        nodes = view.state().nodes
        on_nodes = sum(each.count for node in nodes for each in node.movable)
        return (len(nodes), on_nodes) == (len(cluster.nodes()), pods) and marks == {
            node.node.name for node in nodes if node.scale_down_disabled_by_us
        }

    wait_for(caught_up, "the view has caught up")


def _take(cluster: Cluster, name: str) -> None:
    """As the autoscaler does it: cordoned, its pods evicted, and gone once they are on other nodes."""
    cluster.admin.merge(f"{NODES}/{name}", {"spec": {"unschedulable": True}})

    def all_elsewhere() -> bool:
        for pod in cluster.pods():  # also one that the scheduler has bound there before it saw the cordon
            if pod["spec"].get("nodeName") == name:
                cluster.admin.delete(cluster.path("pods", pod["metadata"]["name"]), gracePeriodSeconds=0)
        return len(places := _places(cluster)) == _PODS and not {None, name} & set(places)

    wait_for(all_elsewhere, f"all pods of {name} are on other nodes")
    cluster.admin.delete(f"{NODES}/{name}")


def _controller(cluster: Cluster, view: ClusterView, nodes: Any) -> ScaleDownController:
    fleet: Any = _Fleet(cluster)
    assumed = AssumeCache(view, Shortages(300.0, epoch), _NO_TIME)
    return ScaleDownController(view, fleet, nodes, assumed, Rules(), _NO_TIME)


def test_tiers_go_from_below_and_every_pod_finds_a_place(cluster: Cluster, view: ClusterView, client: Client) -> None:
    ours = ["low-0", "middle-0", "high-0", "high-1"]
    for name in (*ours, "low-1"):
        _node(cluster, name)
    theirs = {SCALE_DOWN_DISABLED: "false"}
    cluster.admin.merge(f"{NODES}/low-1", {"metadata": {"annotations": theirs}})
    cluster.create_deployment("web", _PODS, {"cpu": "1"})
    wait_for(lambda: len(set(_places(cluster)) - {None}) == 5, "the scheduler has put one on each node")
    controller = _controller(cluster, view, client)
    taken: list[str] = []
    for _ in range(20):
        _seen(cluster, view)
        controller.review()
        marks = _marks(cluster)
        places = _places(cluster)
        low = [name for name in ours if name not in (*taken, *marks) and places.count(name) < 2]
        if not low:
            break
        taken.append(low[0])
        _take(cluster, low[0])
    assert taken[0] == "low-0"
    assert len(taken) >= 2
    assert set(marks) == set(ours) - set(taken)
    assert set(marks.values()) <= {IN_USE, no_room(100), no_room(50)}
    kept = cluster.admin.get(f"{NODES}/low-1")["metadata"]["annotations"]
    assert kept[SCALE_DOWN_DISABLED] == "false"
    assert OURS not in kept


def test_a_write_that_another_one_overtakes_is_done_again(cluster: Cluster, view: ClusterView, client: Client) -> None:
    _node(cluster, "high-0")
    cluster.create_pod("alone", {"cpu": "1"})
    wait_for(lambda: _places(cluster) == ["high-0"], "the pod is bound")
    _seen(cluster, view)
    meddling = _Meddling(cluster, client)
    _controller(cluster, view, meddling).review()
    assert _marks(cluster) == {"high-0": no_room(100)}
    assert meddling.reads == 2
    assert cluster.admin.get(f"{NODES}/high-0")["metadata"]["labels"]["meddled"] == "1"


@dataclass
class _Meddling:
    """A client after whose first read somebody changes the node."""

    cluster: Cluster
    client: Client
    reads: int = 0

    def get(self, path: str) -> dict[str, Any]:
        found = self.client.get(path)
        self.reads += 1
        if self.reads == 1:
            self.cluster.admin.merge(path, {"metadata": {"labels": {"meddled": "1"}}})
        return found

    def patch(self, path: str, body: Any, kind: PatchKind = PatchKind.MERGE) -> dict[str, Any]:
        return self.client.patch(path, body, kind)
