"""300 random pods with volumes beside the real scheduler and the real volume controllers: they run where they
were planned, within the limits of drivers, and none that cannot run is called served."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.support.controlplane.api import ApiRefusal
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.processes import meanwhile, wait_for
from tests.support.storage import LOCAL, ZONE, claim, storage_class, volume

DRIVER = "disks.example.com"
ATTACH = f"attachable-volumes-csi-{DRIVER}"
LIMIT = 5
PRICES = {"a": 0.2, "b": 0.3, "c": 0.25}
VOLUMES, CLASSES, CSI_NODES = (
    "/api/v1/persistentvolumes",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/csinodes",
)
GANG = 4
MOST_LOST = 15
"""Pods whose places others have taken while nodes were released, a twentieth of all: they run elsewhere, in reach of
their volumes. 0 to 5 on a quiet machine, 8 seen on a busy one."""
RANDOM = pytest.mark.long("the same with another seed, and without dedicated nodes")
MOST_EMPTY = 5
"""Nodes that stay without a pod of theirs for that."""


class _Pods:
    """What a test asks for: pods with their claims and volumes, and which of them can never run."""

    def __init__(self, live: Live, seed: int) -> None:
        self.live, self.random = live, random.Random(seed)
        self.zone_of: dict[str, str] = {}
        """Of pods whose volume has one."""
        self.never: dict[str, str] = {}
        """Pods that cannot run, and a part of the reason."""
        self.created = 0

    def bound(self, name: str, **more: Any) -> None:
        """A pod of a claim that is bound, in some zone."""
        zone = self.zone_of[name] = self.random.choice("abc")
        found = volume(f"pv-{name}", zone, driver=DRIVER, class_name="zonal")
        found["spec"]["claimRef"] = {"namespace": self.live.cluster.namespace, "name": name}
        self._create(VOLUMES, found)
        self._claim(claim(name, f"pv-{name}", "zonal", bound=False))
        self.pod(name, name, **more)

    def unbound(self, name: str, class_name: str = "zonal", **more: Any) -> None:
        """A pod of a claim that is bound where it goes."""
        self._claim(claim(name, class_name=class_name))
        self.pod(name, name, **more)

    def volumes(self, number: int, zone: str) -> None:
        """Volumes that claims may take."""
        for each in range(number):
            self._create(VOLUMES, volume(f"free-{zone}-{each}", zone, driver=DRIVER, class_name="zonal"))

    def pod(self, name: str, *claims: str, **more: Any) -> None:
        used = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
        cpu = self.random.choice(["200m", "500m", "900m"])
        self.live.cluster.create_pod(name, {"cpu": cpu, "memory": "100Mi"}, volumes=used, **more)
        self.created += 1

    def gang(self, name: str) -> None:
        labels = {"scheduling.x-k8s.io/pod-group": name}
        member = {"labels": labels, "annotations": {"cagrpc.io/gang-min-count": str(GANG)}}
        for number in range(GANG):
            make = self.random.choice([self.bound, self.unbound, self.pod])
            make(f"{name}-{number}", metadata=member)

    def _claim(self, body: dict[str, Any]) -> None:
        body["metadata"] = {"name": body["metadata"]["name"]}
        del body["status"]
        self.live.cluster.admin.create(self.live.cluster.path("persistentvolumeclaims"), body)

    def _create(self, path: str, body: dict[str, Any]) -> None:
        body.pop("status", None)
        self.live.cluster.admin.create(path, body)


@contextmanager
def drivers_on_nodes(live: Live, nominated: dict[str, str]) -> Iterator[None]:
    """Each node that joins gets a driver with a limit, as its DaemonSet would register it; `nominated` learns where
    pods are planned."""

    def register() -> None:
        for node in live.nodes():
            name = node["metadata"]["name"]
            driver = {"name": DRIVER, "nodeID": name, "allocatable": {"count": LIMIT}, "topologyKeys": [ZONE]}
            with suppress(ApiRefusal):
                live.cluster.admin.create(CSI_NODES, {"metadata": {"name": name}, "spec": {"drivers": [driver]}})
        for pod in live.cluster.pods():
            if pod["status"].get("nominatedNodeName") and not pod["spec"].get("nodeName"):
                nominated[pod["metadata"]["name"]] = pod["status"]["nominatedNodeName"]

    with meanwhile(register, 0.2):
        yield


def create(asked: _Pods) -> None:
    """300 pods: gangs, pods with bound claims, with claims that are bound where they go, and without; and ten that
    cannot run."""
    asked.volumes(60, "a")
    asked.volumes(30, "b")
    for number in range(12):
        asked.gang(f"gang-{number:02}")
    waiting = 0
    while asked.created < 290:
        name = f"single-{asked.created:03}"
        match asked.random.randrange(3):
            case 0:
                asked.bound(name)
            case 1 if waiting < 35:
                waiting += 1
                asked.unbound(name)
            case _:
                asked.pod(name)
    for number in range(4):
        asked.unbound(f"never-{number}", "at-once")
        asked.never[f"never-{number}"] = "binds at once (Immediate)"
    for number in range(4, 8):
        asked.pod(f"never-{number}", "nobody-made-it")
        asked.never[f"never-{number}"] = 'persistentvolumeclaim "nobody-made-it" not found'
    for number in range(2):
        asked.unbound(f"never-{8 + number}", "unknown")
        asked.never[f"never-{8 + number}"] = 'storageclass "unknown" is not found'
    assert asked.created == 300


@pytest.fixture
def cleaned(live: Live) -> Iterator[Live]:
    """The cluster, and nothing of its storage left for others."""
    yield live
    live.close()
    for path in (live.cluster.path("pods"), live.cluster.path("persistentvolumeclaims")):
        live.cluster.admin.delete(path, gracePeriodSeconds=0)
    for path in (VOLUMES, CLASSES, CSI_NODES):
        live.cluster.admin.delete(path)
    wait_for(lambda: not live.cluster.admin.any(VOLUMES), "the volumes are gone")


@pytest.mark.parametrize(
    ("seed", "dedicated", "most_lost"),
    [
        pytest.param(1, False, MOST_LOST, marks=RANDOM),
        pytest.param(2, False, MOST_LOST, marks=RANDOM),
        (3, True, 0),
    ],
)
def test_pods_run_where_their_volumes_are(cleaned: Live, seed: int, dedicated: bool, most_lost: int) -> None:
    live = cleaned
    for each in (storage_class("zonal", LOCAL), storage_class("at-once", LOCAL, waits=False)):
        live.cluster.admin.create(CLASSES, each)
    asked = _Pods(live, seed)
    create(asked)
    groups = [
        group(f"pool-{zone}", "4", "16Gi", price, labels={ZONE: zone}, zone=zone) for zone, price in PRICES.items()
    ]
    for each in groups:
        each["allocatable"][ATTACH] = LIMIT
    live.configure([{"name": "all", "node_groups": groups}], planner={"dedicated_nodes": dedicated})
    nominated: dict[str, str] = {}
    with drivers_on_nodes(live, nominated):
        live.start()
        live.wait_for_running(asked.created - len(asked.never), seconds=240)
        live.wait_until_settled()
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"][ZONE] for node in live.nodes()}
    pods = {pod["metadata"]["name"]: pod for pod in live.cluster.pods()}
    placed = {name: pod["spec"]["nodeName"] for name, pod in pods.items() if pod["spec"].get("nodeName")}
    assert pods.keys() - placed.keys() == asked.never.keys()
    assert {name: nodes[placed[name]] for name in asked.zone_of} == asked.zone_of
    moved = {name for name in nominated if placed[name] != nominated[name]}
    assert len(moved) <= most_lost
    with_volumes = {
        name for name, pod in pods.items() if any("persistentVolumeClaim" in each for each in pod["spec"]["volumes"])
    }
    used = Counter(placed[name] for name in with_volumes & placed.keys())
    assert max(used.values()) <= LIMIT
    assert live.ordered() == len(nodes)
    assert len(nodes.keys() - set(placed.values())) <= (0 if dedicated else MOST_EMPTY)
    told = {each["example"].rpartition("/")[2]: each["reasons"] for each in live.serving.get("/plans")[-1]["unplaced"]}
    waiting = told.keys() - placed.keys()  # the claims of others were bound after the last round
    for name in waiting:
        assert asked.never[name] in " ".join(told[name])
    assert waiting
