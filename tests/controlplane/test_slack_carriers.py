"""The carriers `buffer` and `pods` on a real API server, with the real scheduler and controllers; CA is played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cagrpc.api import capacity_buffers
from cagrpc.api.core.slack import PRIORITY_CLASS
from cagrpc.controllers.assume_cache.slack import SlackState
from cagrpc.controllers.slack.carriers import (
    CHOOSE_SECONDS,
    LOOK_SECONDS,
    STRATEGY,
    Buffers,
    PausePods,
    Place,
    Switching,
)
from cagrpc.controllers.slack.model import Carrier
from cagrpc.errors import Unavailable
from cagrpc.kube.client.client import Client
from solver.model import HOSTNAME, Operator, PodAffinityTerm, PodSelector, PodSpec, Requirement
from solver.slack.model import Role, SlackDemand, SlackShape
from tests.support.clocks import any_clock
from tests.support.controlplane import slack
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import remove_crds
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.processes import wait_for
from tests.support.controlplane.slack import SeenSlack

SMALL = {"cpu": "4", "memory": "16Gi"}
WEB = (Requirement("app", Operator.IN, ("web",)),)


def shape(name: str, cpu: int, number: int, **spec: Any) -> SlackShape:
    return SlackShape(f"t/fixed/{name}", Role.FIXED, PodSpec((("cpu", cpu),), **spec), number, "as the test says")


def state(*shapes: SlackShape) -> SlackState:
    return SlackState(1.0, wanted=(SlackDemand(shapes),))


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane) -> Iterator[None]:
    slack.install(control_plane.admin)
    control_plane.restart_controller_manager()
    yield
    slack.remove(control_plane.admin)


@dataclass
class CarriersHarness:
    cluster: Cluster
    client: Client
    place: Place
    seen: SeenSlack
    now: float = 0.0
    """Of the carriers' timer."""
    buffer: Buffers = field(init=False)
    pods: PausePods = field(init=False)

    def __post_init__(self) -> None:
        self.buffer = Buffers(self.client, lambda: self.place, timer=any_clock(lambda: self.now))
        self.pods = PausePods(self.client, lambda: self.place, dict, timer=any_clock(lambda: self.now))

    def carry(self, carrier: Buffers | PausePods | Switching, *shapes: SlackShape) -> None:
        """Until all of it is carried."""
        self.wait_for(lambda: carrier.carry(state(*shapes)), "all is carried")

    def wait_for_pause_pods(self, bound: int, waiting: int = 0) -> None:
        def so() -> bool:
            found = self.seen.pause_pods()
            there = sum("nodeName" in pod["spec"] for pod in found)
            return (there, len(found) - there) == (bound, waiting)

        self.wait_for(so, f"{bound} pause pods are bound, {waiting} wait")

    def _end_pods(self) -> bool:
        for pod in self.cluster.pods():
            if "deletionTimestamp" in pod["metadata"]:
                self.cluster.admin.delete(self.cluster.path("pods", pod["metadata"]["name"]), gracePeriodSeconds=0)
        return True

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Pods that are told to go are gone, as with a kubelet."""
        try:
            wait_for(lambda: self._end_pods() and condition(), what, seconds=90)
        except AssertionError as error:
            told = (
                (pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"]) for pod in self.cluster.pods()
            )
            error.add_note("\n".join(map(str, told)))
            raise


@pytest.fixture
def world(installed: None, cluster: Cluster) -> Iterator[CarriersHarness]:
    owner = cluster.admin.create(cluster.path("configmaps"), {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    client = cluster.plane.client()
    yield CarriersHarness(
        cluster,
        client,
        Place(cluster.namespace, "example.com/pause", reference),
        SeenSlack(cluster.admin, cluster.namespace),
    )
    client.close()


# ---- buffer


def test_a_buffer_says_what_ca_goes_by(world: CarriersHarness) -> None:
    world.carry(world.buffer, shape("web", 500, 3, node_selector=(("pool", "a"),)), shape("batch", 1000, 1))
    assert world.seen.counts() == {"t/fixed/web": 3, "t/fixed/batch": 1}
    _, spec = world.seen.injected()["t/fixed/web"]
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "500m"}
    assert (spec["nodeSelector"], spec["priority"]) == ({"pool": "a"}, -10)
    for each in world.seen.buffers():
        assert each["spec"]["provisioningStrategy"] == STRATEGY, "CA's own controller leaves it alone"
        assert each["metadata"]["ownerReferences"] == [world.place.owner]


def test_what_ca_writes_stays_and_is_no_news(world: CarriersHarness) -> None:
    wanted = shape("web", 500, 3)
    world.carry(world.buffer, wanted)
    (buffer,) = world.seen.buffers()
    path = capacity_buffers.path(world.cluster.namespace, buffer["metadata"]["name"])
    theirs = {
        "type": "Provisioning",
        "status": "True",
        "reason": "FakePodsInjected",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    buffer["status"]["conditions"].append(theirs)
    injecting = world.cluster.admin.ask("PUT", f"{path}/status", buffer)
    world.now += LOOK_SECONDS
    world.carry(world.buffer, wanted)
    assert world.cluster.admin.get(path) == injecting
    world.carry(world.buffer, replace(wanted, count=5))
    now = world.cluster.admin.get(path)["status"]
    assert (now["replicas"], theirs in now["conditions"], len(now["conditions"])) == (5, True, 2)


def test_another_size_takes_the_place_of_the_one_before(world: CarriersHarness) -> None:
    world.carry(world.buffer, shape("web", 500, 3))
    (before,) = world.seen.buffers()
    world.carry(world.buffer, shape("web", 750, 2))
    (after,), (template,) = world.seen.buffers(), world.seen.templates()
    assert before["metadata"]["uid"] == after["metadata"]["uid"]
    assert before["status"]["podTemplateRef"] != after["status"]["podTemplateRef"]
    assert template["metadata"]["name"] == after["status"]["podTemplateRef"]["name"]
    assert world.seen.counts() == {"t/fixed/web": 2}


def test_what_others_change_or_delete_is_put_right(world: CarriersHarness) -> None:
    wanted = (shape("web", 500, 3), shape("batch", 1000, 1))
    world.carry(world.buffer, *wanted)
    web, batch = sorted(world.seen.buffers(), key=lambda each: -each["status"]["replicas"])
    path = capacity_buffers.path(world.cluster.namespace, web["metadata"]["name"])
    world.cluster.admin.merge(f"{path}/status", {"status": {"replicas": 0}})
    world.cluster.admin.delete(capacity_buffers.path(world.cluster.namespace, batch["metadata"]["name"]))
    world.cluster.admin.delete(world.cluster.path("podtemplates", web["status"]["podTemplateRef"]["name"]))
    world.now += LOOK_SECONDS
    world.carry(world.buffer, *wanted)
    assert world.seen.counts() == {"t/fixed/web": 3, "t/fixed/batch": 1}


def test_without_capacity_buffers_it_says_what_to_do(world: CarriersHarness) -> None:
    remove_crds(world.cluster.admin, slack.BUFFER_CRDS)
    try:
        with pytest.raises(Unavailable, match=r"deploy/buffer-crds\.yaml"):
            world.buffer.carry(state(shape("web", 500, 3)))
        world.buffer.withdraw()  # there is nothing of it
    finally:
        slack.install(world.cluster.admin)


# ---- pods


def test_pause_pods_give_way_at_once_and_come_back(world: CarriersHarness) -> None:
    world.cluster.create_node(f"n1-{world.cluster.namespace}", SMALL)
    world.carry(world.pods, shape("web", 1000, 3))
    world.wait_for_pause_pods(bound=3)
    assert {pod["spec"]["priority"] for pod in world.seen.pause_pods()} == {-10}
    world.cluster.create_deployment("burst", 3, {"cpu": "1"})  # one has room beside them, two take theirs
    world.wait_for(
        lambda: len(found := world.seen.real_pods()) == 3 and all("nodeName" in pod["spec"] for pod in found),
        "the burst is bound",
    )
    world.wait_for_pause_pods(bound=1, waiting=2)
    world.cluster.create_node("n2", SMALL)
    world.wait_for_pause_pods(bound=3)


def test_pause_pods_of_another_size_are_never_beside_those_before(world: CarriersHarness) -> None:
    world.cluster.create_node(f"n1-{world.cluster.namespace}", SMALL)
    world.carry(world.pods, shape("web", 1000, 4))
    world.wait_for_pause_pods(bound=4)
    world.carry(world.pods, shape("web", 2000, 2))
    (found,) = world.seen.replica_sets()
    assert found["spec"]["replicas"] == 2
    world.wait_for_pause_pods(bound=2)


def test_numbers_change_in_place(world: CarriersHarness) -> None:
    world.cluster.create_node(f"n1-{world.cluster.namespace}", SMALL)
    world.carry(world.pods, shape("web", 1000, 2))
    world.wait_for_pause_pods(bound=2)
    before = {pod["metadata"]["uid"] for pod in world.seen.pause_pods()}
    world.carry(world.pods, shape("web", 1000, 4))
    world.wait_for_pause_pods(bound=4)
    assert before < {pod["metadata"]["uid"] for pod in world.seen.pause_pods()}


def test_placeholders_with_anti_affinity_are_apart(world: CarriersHarness) -> None:
    """[R8], and [R9] beside it: pools and hosts."""
    for name, pool in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        world.cluster.create_node(name, SMALL, labels={"pool": pool})
    apart = PodAffinityTerm(HOSTNAME, PodSelector(WEB, ("shop",)))
    mirror = shape(
        "web",
        500,
        3,
        namespace="shop",
        labels=(("app", "web"),),
        node_selector=(("pool", "a"),),
        pod_anti_affinity=(apart,),
    )
    world.carry(world.pods, mirror)
    world.wait_for_pause_pods(bound=2, waiting=1)
    assert world.seen.pause_nodes() == {"a1": 1, "a2": 1}


def test_without_its_priority_it_says_what_to_do(world: CarriersHarness) -> None:
    world.cluster.admin.delete(f"{slack.PRIORITY_CLASSES}/{PRIORITY_CLASS}")
    try:
        with pytest.raises(Unavailable, match=r"no PriorityClass cagrpc-slack.*deploy/slack\.yaml"):
            world.pods.carry(state(shape("web", 500, 3)))
    finally:
        slack.install(world.cluster.admin)
    assert not world.seen.replica_sets()


# ---- both


def test_s4_all_of_it_belongs_to_one_object(world: CarriersHarness) -> None:
    world.carry(world.buffer, shape("web", 500, 3))
    world.carry(world.pods, shape("web", 500, 3))
    world.cluster.admin.delete(world.cluster.path("configmaps", "owner"))
    kinds: tuple[Callable[[], list[Any]], ...] = (
        world.seen.buffers,
        world.seen.templates,
        world.seen.replica_sets,
        world.seen.pause_pods,
    )
    world.wait_for(lambda: not any(there() for there in kinds), "all of it goes with its owner")


def test_changing_carrier_loses_no_slack(world: CarriersHarness) -> None:
    world.cluster.create_node(f"n1-{world.cluster.namespace}", SMALL)
    chosen = [Carrier.BUFFER]
    switching = Switching(
        {Carrier.BUFFER: world.buffer, Carrier.PODS: world.pods}, lambda: chosen[0], timer=any_clock(lambda: world.now)
    )
    wanted = (shape("web", 500, 3), shape("batch", 1000, 1))
    for carrier in (Carrier.BUFFER, Carrier.PODS, Carrier.BUFFER):
        chosen[0] = carrier
        world.now += CHOOSE_SECONDS
        world.carry(switching, *wanted)
        if carrier is Carrier.PODS:
            world.wait_for_pause_pods(bound=4)
            assert world.seen.buffers() + world.seen.templates() == []
        else:
            assert world.seen.counts() == {"t/fixed/web": 3, "t/fixed/batch": 1}
            assert not world.seen.replica_sets()
            world.wait_for(lambda: not world.seen.pause_pods(), "no pause pod is left")
