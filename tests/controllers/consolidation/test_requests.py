"""Steps of consolidation beside ProvisioningRequests: neither takes the room that is kept for the other, and neither
counts its own twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cagrpc.cluster.node_info import ClusterCapacity, Reservations, merged
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.provisioning.classes import ATOMIC_SCALE_UP, UPSTREAM_CHECK_CAPACITY
from cagrpc.controllers.settings import ClassBehaviour, RequestSettings
from cagrpc.fleet.model import DisruptionPhase
from tests.support.controllers.provisioning import ClusterWithConsumers, LabellingApi, ProvisioningHarness
from tests.support.controllers.walking import WalkApi, WalkCluster, WalkHarness
from tests.support.fleet import group

GROUPS = (group("big", cpu=8000, max_size=9), group("small", cpu=4000, max_size=9))


class SceneCluster(WalkCluster, ClusterWithConsumers):
    """Nodes that can be cordoned, and have booking labels."""


class SceneApi(WalkApi, LabellingApi):
    def __init__(self, cluster: SceneCluster, store: Any) -> None:
        LabellingApi.__init__(self, cluster, store)
        self.fault = lambda _, do: do()


class Scene(WalkHarness, ProvisioningHarness):
    """Both, wired as `cagrpc.server.controllers` does."""

    cluster: SceneCluster

    def _start(self) -> None:
        if not isinstance(self.cluster, SceneCluster):
            self.cluster = SceneCluster(self.clock, self.backend, {each.id: each for each in self.groups})
            self.cluster.labels = lambda name: self.node_labels.get(name, {})
        super()._start()

    def others(self, state: ClusterState) -> Reservations:
        return self.walk.reservations(state)

    def cluster_api(self) -> Any:
        return SceneApi(self.cluster, self.api.store)

    def step(self) -> None:
        super().step()
        self.sync()
        self.provisioning.take()

    def kept_cpu(self) -> dict[str, int]:
        """Return the CPU that both keep, or that waiting pods have, by node; more than there is nowhere."""
        state = self.cluster.state()
        of_walk = self.walk.reservations(state)
        wanted = self.places.wanted(self.fleet.snapshot, self.cluster.nominated_by_us(), state)
        planned = wanted.reservations(state, {each.node.name for each in state.nodes})
        kept = merged(merged(of_walk, planned), self.requests.reservations(state))
        capacity = ClusterCapacity((each.node for each in state.nodes), kept)
        assert all(min(each.free.values()) >= 0 for each in capacity), "some room is reserved twice"
        return {each.name: each.requested["cpu"] for each in capacity if each.owners}


@pytest.fixture
def scene() -> Iterator[Scene]:
    requests = RequestSettings(upstream_classes=frozenset(ClassBehaviour))
    made = Scene(GROUPS, requests=requests)
    made.template("job", cpu=2000)
    yield made
    made.close()


@pytest.mark.parametrize("of", [ATOMIC_SCALE_UP, UPSTREAM_CHECK_CAPACITY])
def test_a_request_that_comes_during_a_step_leaves_its_targets_alone(scene: Scene, of: str) -> None:
    old, (target, other) = scene.stand("big", 1), scene.stand("small", 2)
    web = scene.workload("web", 3, on=old, budget=0)
    scene.run(5)
    scene.begin(old, onto=[target])
    scene.run(5)
    scene.request("r", ("job", 2), of=of)
    scene.run(10)
    assert scene.is_true("r", "Provisioned")
    assert scene.kept_cpu() == {target: 3000, other: 4000}
    web.budget, scene.cluster.scheduling = 3, False
    scene.run(20)
    assert len(scene.pending()) == 3
    assert {each.target for each in scene.last().moves} == {target}
    assert scene.kept_cpu() == {target: 3000, other: 4000}  # of pods that wait, too
    scene.cluster.scheduling = True
    scene.run(30)
    assert scene.ended() is DisruptionPhase.DONE, scene.last().message
    assert scene.pods_by_node() == {target: 3}
    assert scene.kept_cpu() == {other: 4000}


def test_what_is_kept_for_successors_is_no_room_for_a_request(scene: Scene) -> None:
    old, (target,) = scene.stand("big", 1), scene.stand("small", 1)
    web = scene.workload("web", 3, on=old, budget=0)
    scene.run(5)
    scene.begin(old, onto=[target])
    scene.run(5)
    scene.request("r", ("job", 1), of=UPSTREAM_CHECK_CAPACITY)
    scene.run(5)
    assert scene.condition("r", "Provisioned")["status"] == "False"  # type: ignore[index]
    web.budget = 3
    scene.run(60)
    assert scene.ended() is DisruptionPhase.DONE, scene.last().message
    assert scene.pods_by_node() == {target: 3}


def test_nor_are_nodes_that_go(scene: Scene) -> None:
    old, (target,) = scene.stand("big", 1), scene.stand("small", 1)
    scene.workload("web", 1, on=old)
    scene.run(5)
    scene.begin(old, onto=[target])
    scene.request("r", ("job", 3))
    scene.sync()
    scene.provisioning.take()  # before anybody has seen a cordon
    scene.run(90)
    assert scene.ended() is DisruptionPhase.DONE, scene.last().message
    assert scene.is_true("r", "Provisioned")
    assert scene.condition("r", "CapacityRevoked") is None
    assert old[0] not in scene.names()


def test_a_target_that_a_booking_shares_is_full_but_no_more_than_full(scene: Scene) -> None:
    (target,) = scene.stand("small", 1)
    scene.request("r", ("job", 1))
    scene.run(5)
    assert scene.kept_cpu() == {target: 2000}
    old = scene.stand("big", 1)
    web = scene.workload("web", 2, on=old, budget=0)
    scene.begin(old, onto=[target])
    scene.run(5)
    assert scene.kept_cpu() == {target: 4000}
    web.budget = 2
    scene.run(60)
    assert scene.ended() is DisruptionPhase.DONE, scene.last().message
    assert scene.pods_by_node() == {target: 2}
    assert scene.kept_cpu() == {target: 2000}
