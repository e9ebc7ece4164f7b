"""Simulated instances as Nodes of a real cluster: the real scheduler, controllers and API server take them for such."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.backends.simulated.backend import ID_PREFIX, SimulatedBackend
from cagrpc.backends.simulated.behaviour import EVERYWHERE, Behaviour
from cagrpc.backends.simulated.nodes.controller import NodeController
from cagrpc.cluster.shortages import Shortages
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.fleet import FleetController
from cagrpc.controllers.placement.controller import PlacementController
from cagrpc.controllers.placement.release import ReleaseController
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, Phase, Placement
from cagrpc.runtime.clock import epoch, monotonic
from cagrpc.runtime.controller import Controller
from cagrpc.runtime.heartbeat import Heartbeat
from cagrpc.runtime.runner import Runner
from solver.model import NodeGroup
from tests.support.controlplane.cluster import LEASES_OF_NODES, NODES, Cluster
from tests.support.controlplane.processes import wait_for

_ALLOCATABLE = {"cpu": 2000, "memory": 4 * 2**30, "pods": 110}
_SMALL = NodeGroup("small", _ALLOCATABLE, 0.1, max_size=100, instance_type="small", zone="a")
_EVERY_SECONDS = 0.1
_GRACE = ("--node-monitor-grace-period=10s", "--node-monitor-period=1s")


class PlayedNodes:
    """A fleet of simulated instances in a cluster, with all that makes them Nodes; pods are placed and nodes released
    from `let_go` on."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.client = cluster.plane.client()
        self.view = ClusterView(self.client)
        self.backend = SimulatedBackend(directory / "simulated.sqlite")
        self.backend.set_behaviours({EVERYWHERE: Behaviour(boot_seconds=0.2, delete_seconds=0.2)})
        self.fleet = Fleet(
            FleetSettings([_SMALL]), self.backend, SqliteJournal(directory / "journal.sqlite"), nodes=self.view
        )
        self.runners: list[Runner] = []
        self.lives: list[NodeController] = []
        self.run(self.view, FleetController(self.fleet, Heartbeat("fleet")))
        self.live()

    def run(self, *controllers: Controller) -> None:
        for each in controllers:
            if each.every_seconds is not None:
                each.every_seconds = _EVERY_SECONDS
        self.runners.append(Runner())
        self.runners[-1].add(*controllers)
        self.runners[-1].start()

    def live(self, lease_seconds: float = 40.0) -> None:
        """In place of the one before, which ends as in a crash."""
        for life in self.lives:
            life.stop()
        life = NodeController(self.client, self.backend, lambda: self.fleet.snapshot, lease_seconds=lease_seconds)
        self.lives.append(life)
        self.run(life)

    def let_go(self) -> None:
        assumed = AssumeCache(self.view, Shortages(300.0, epoch), monotonic)
        placement = PlacementController(self.client, self.fleet, self.view, assumed)
        release = ReleaseController(self.client, self.fleet, self.view, placement, assumed, PlannerSettings())
        self.run(placement, release)

    def stop(self) -> None:
        for runner in self.runners:
            runner.stop(0.0)
        for runner in self.runners:
            runner.stop(10.0)
        self.fleet.close()
        self.backend.close()
        self.client.close()

    def order(self, count: int, *planned: tuple[str, ...]) -> str:
        """An increment of so many nodes, for pods of these UIDs."""
        placements = tuple(Placement(_SMALL.id, pods) for pods in planned)
        pods = frozenset(uid for uids in planned for uid in uids)
        return self.fleet.apply(IncrementSpec({_SMALL.id: count}, pods=pods, placements=placements)).id

    def names(self) -> list[str]:
        return [i.id.removeprefix(ID_PREFIX) for i in self.fleet.snapshot.groups[_SMALL.id].instances]

    def delete(self, name: str) -> None:
        self.fleet.delete_instances(_SMALL.id, [ID_PREFIX + name])

    def ready(self) -> list[str]:
        """Names of nodes that are Ready and carry no taint but ours."""
        return sorted(
            node["metadata"]["name"]
            for node in self.cluster.nodes()
            if condition(node, "Ready") == "True" and {*taints(node)} <= {START_UP_TAINT}
        )

    def leases(self) -> dict[str, str]:
        """When each Node's was renewed."""
        leases = self.cluster.admin.items(LEASES_OF_NODES)
        return {lease["metadata"]["name"]: lease["spec"]["renewTime"] for lease in leases}

    def wait_for_nodes(self, count: int) -> list[str]:
        wait_for(lambda: len(self.ready()) == count == len(self.cluster.nodes()), f"{count} nodes are ready")
        return self.ready()

    def running(self) -> dict[str, str]:
        """Nodes of pods that run."""
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in self.cluster.pods()
            if pod["status"]["phase"] == "Running" and condition(pod, "Ready") == "True"
        }


def condition(document: Mapping[str, Any], kind: str) -> str | None:
    return next((c["status"] for c in document["status"].get("conditions", ()) if c["type"] == kind), None)


def taints(node: Mapping[str, Any]) -> list[str]:
    return [taint["key"] for taint in node["spec"].get("taints", ())]


@pytest.fixture
def live(cluster: Cluster, tmp_path: Path) -> Iterator[PlayedNodes]:
    live = PlayedNodes(cluster, tmp_path)
    yield live
    live.stop()


def test_nodes_come_and_the_scheduler_uses_them_only_once_they_are_let_go(cluster: Cluster, live: PlayedNodes) -> None:
    cluster.create_pod("waiting", {"cpu": "1"})
    increment = live.order(1)
    (name,) = live.wait_for_nodes(1)
    wait_for(lambda: live.fleet.increment(increment).phase is Phase.READY, "the increment is ready")

    def refused() -> bool:
        (pod,) = cluster.pods()
        told = [c.get("message", "") for c in pod["status"].get("conditions", ()) if c["type"] == "PodScheduled"]
        return any("1 node(s) had untolerated taint" in message for message in told)

    wait_for(refused, "the scheduler finds nothing but the held node")
    live.let_go()
    wait_for(lambda: live.running() == {"waiting": name}, "the pod runs")
    wait_for(lambda: live.fleet.increment(increment).phase is Phase.DONE, "the increment is done")
    assert taints(cluster.nodes()[0]) == []


def test_pods_go_where_they_were_planned_against_the_schedulers_taste(cluster: Cluster, live: PlayedNodes) -> None:
    pods = [cluster.create_pod(f"pod-{number}", {"cpu": "500m"})["metadata"]["uid"] for number in range(3)]
    wait_for(lambda: live.view.arrivals().waiting == 3, "the view knows the pods")
    live.order(3, tuple(pods))
    live.let_go()
    wait_for(lambda: len(live.running()) == 3, "the pods run")
    assert len(live.wait_for_nodes(3)) == 3
    assert len(set(live.running().values())) == 1


def test_with_an_instance_its_node_goes_and_its_pods_come_again_elsewhere(cluster: Cluster, live: PlayedNodes) -> None:
    live.let_go()
    live.order(2)
    live.wait_for_nodes(2)
    cluster.create_deployment("web", 2, {"cpu": "1500m"})
    wait_for(lambda: len(set(live.running().values())) == 2, "a pod runs on each node")
    before = live.running()
    lost = next(iter(before.values()))
    live.order(1)
    live.delete(lost)
    stayed = {name for name, node in before.items() if node != lost}

    def elsewhere() -> bool:
        running = live.running()
        return len(running) == 2 and lost not in running.values() and stayed < set(running)

    wait_for(elsewhere, "both run, the lost one elsewhere")
    wait_for(lambda: lost not in {node["metadata"]["name"] for node in cluster.nodes()}, "the node is gone")
    wait_for(lambda: sorted(live.leases()) == live.ready(), "nodes have Leases, and only those")


def test_deleted_pods_go_also_those_that_jobs_hold(cluster: Cluster, live: PlayedNodes) -> None:
    live.let_go()
    live.order(1)
    live.wait_for_nodes(1)
    work = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.com/none"}]}
    job = {"metadata": {"name": "job"}, "spec": {"parallelism": 2, "completions": 2, "template": {"spec": work}}}
    jobs = cluster.path("jobs", api="apis/batch/v1")
    cluster.admin.create(jobs, job)
    cluster.create_pod("plain", {"cpu": "100m"})
    wait_for(lambda: len(live.running()) == 3, "all run")
    cluster.admin.delete(cluster.path("pods", "plain"))
    cluster.admin.delete(f"{jobs}/job", propagationPolicy="Background")
    wait_for(lambda: not cluster.pods(), "all are gone")


def test_nodes_stay_ready_as_long_as_somebody_lives_for_them(cluster: Cluster, live: PlayedNodes) -> None:
    with cluster.plane.controller_manager(*_GRACE):
        live.live(lease_seconds=5)
        live.let_go()
        live.order(2)
        names = live.wait_for_nodes(2)
        renewals: set[tuple[str, str]] = set()

        def renewed() -> bool:
            assert live.ready() == names
            renewals.update(live.leases().items())
            return min(Counter(name for name, _ in renewals).values(), default=0) >= 7

        wait_for(renewed, "each Lease is renewed six times, for longer than the grace")
        for life in live.lives:
            life.stop()
        wait_for(lambda: not live.ready(), "the nodes are given up")
        live.live(lease_seconds=5)
        assert live.wait_for_nodes(2) == names


def test_a_restart_of_the_api_server_changes_nothing(cluster: Cluster, live: PlayedNodes) -> None:
    live.let_go()
    live.order(2)
    live.wait_for_nodes(2)
    cluster.plane.stop_apiserver()
    live.order(2)
    live.delete(live.names()[0])
    cluster.plane.start_apiserver()
    cluster.create_deployment("web", 3, {"cpu": "1500m"})
    wait_for(lambda: len(set(live.running().values())) == 3, "a pod runs on each node")
    assert live.wait_for_nodes(3) == sorted(live.names())
    assert set(taints(cluster.admin.get(f"{NODES}/{live.names()[0]}"))) == set()
