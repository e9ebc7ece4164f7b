"""Pods with claims on devices: two nodes of 8 cores stand, with a pod of 3 cores on each. What is planned for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cagrpc.controllers.settings import ConsolidationMode
from tests.controllers.consolidation.scene import SPOT, Scene
from tests.support.cluster import NAMESPACE, path_of
from tests.support.devices import CLAIMS, CLASSES, SLICES, TEMPLATES, claim, claim_template, device_class, gpus
from tests.support.fleet import group

WEB: dict[str, Any] = {"owner": f"ReplicaSet/{NAMESPACE}/web", "cpu": 3000}


class _Scene(Scene):
    def __init__(self) -> None:
        super().__init__(group("old", cpu=8000, price=0.8), mode=ConsolidationMode.DRY_RUN)
        self.first, self.second = self.stand("old", 2)

    def devices(self, first: int, second: int, **of_class: Any) -> None:
        """Let there be so many devices on each node."""
        self.api.put(f"{CLASSES}/gpu", device_class(**of_class))
        self.api.put(path_of(TEMPLATES, "t"), claim_template(namespace=NAMESPACE))
        for name, count in ((self.first, first), (self.second, second)):
            self.api.put(f"{SLICES}/{name}-gpus", gpus(count, on=name))

    def pod(self, node: str) -> None:
        """Create a pod with a claim that was made for it of the template, and is allocated."""
        (uid,) = self.cluster.add(node=node, **WEB)
        path = self.cluster.paths[uid]
        name = path.rpartition("/")[2]
        self.claim(uid, resourceClaimTemplateName="t")
        self.api.change(path, status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]})
        owner = {"kind": "Pod", "name": name, "uid": uid, "controller": True, "apiVersion": "v1"}
        made = claim(f"{name}-gpu", "gpu-0", on=node, namespace=NAMESPACE, ownerReferences=[owner])
        self.api.put(path_of(CLAIMS, f"{name}-gpu"), made)

    def claim(self, uid: str, **of: str) -> None:
        self.api.change(self.cluster.paths[uid], spec={"resourceClaims": [{"name": "gpu", **of}]})

    def planned(self, *, interrupted: bool = False) -> list[Any]:
        """Return the nodes that go, how many pods move, and the new nodes, of each step."""
        if interrupted:
            self.change_node(self.first, spec=SPOT)
        self.begin()
        self.run(60, 20)
        return [(each["nodes"], each["pods_moved"], each["new_nodes"]) for each in self.plan["steps"]]


@pytest.fixture
def scene() -> Iterator[_Scene]:
    with _Scene() as made:
        yield made


def test_a_pod_whose_claims_are_made_of_templates_moves_to_free_devices(scene: _Scene) -> None:
    scene.devices(1, 2)
    for node in (scene.first, scene.second):
        scene.pod(node)
    assert scene.planned() == [([scene.first], 1, {})], "the first node has no device to spare"


def test_where_no_device_is_free_its_node_is_replaced_only_if_it_has_to_go(scene: _Scene) -> None:
    scene.devices(1, 1)
    for node in (scene.first, scene.second):
        scene.pod(node)
    assert scene.planned() == []
    assert scene.planned(interrupted=True) == [([scene.first], 1, {"old": 1})]


def test_a_claim_by_name_keeps_its_pod_also_where_its_node_has_to_go(scene: _Scene) -> None:
    scene.devices(4, 4)
    scene.api.put(path_of(CLAIMS, "shared"), claim("shared", "gpu-0", on=scene.first, namespace=NAMESPACE))
    (uid,) = scene.cluster.add(node=scene.first, **WEB)
    scene.claim(uid, resourceClaimName="shared")
    scene.cluster.add(node=scene.second, **WEB)
    assert scene.planned() == [([scene.second], 1, {})]
    why = "ns/pod-1 has a volume, or a claim on devices by name, that is tied to its node"
    assert scene.stays() == {scene.first: why}
    assert scene.planned(interrupted=True) == [([scene.first], 0, {})]


def test_without_the_template_there_would_be_no_other_claim(scene: _Scene) -> None:
    scene.devices(4, 4)
    scene.pod(scene.first)
    scene.cluster.add(node=scene.second, **WEB)
    assert len(scene.planned()) == 1
    assert not scene.stays()
    scene.api.remove(path_of(TEMPLATES, "t"))
    scene.planned()
    why = "ns/pod-1 could not be scheduled again: ResourceClaimTemplate ns/t is not found"
    assert scene.stays() == {scene.first: why}
    assert scene.planned(interrupted=True) == [([scene.first], 0, {})]


def test_an_extended_resource_that_a_class_backs_moves_to_devices_too(scene: _Scene) -> None:
    scene.devices(1, 2, extendedResourceName="example.com/gpu")
    for node in (scene.first, scene.second):
        scene.pod(node)
        (uid,) = (each for each, pod in scene.cluster.pods().items() if pod.node == node)
        resources = {"requests": {"cpu": "3", "example.com/gpu": "1"}}
        scene.api.change(
            scene.cluster.paths[uid], spec={"resourceClaims": None, "containers": [{"resources": resources}]}
        )
    assert scene.planned() == [([scene.first], 1, {})]
    scene.api.put(f"{CLASSES}/gpu", device_class())
    assert scene.planned() == [], "nothing offers the resource any more"
