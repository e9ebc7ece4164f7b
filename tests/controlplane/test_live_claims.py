"""Pods with resource claims beside the real scheduler's allocator and the controller that makes claims of templates:
every pod that is planned runs where it was planned, and who cannot run is not called served."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from cagrpc.api.core.nodes import START_UP_TAINT
from tests.support.controlplane.cluster import NODES
from tests.support.controlplane.consolidating import ON
from tests.support.controlplane.dra_driver import dra_driver
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.nominations import nominations
from tests.support.controlplane.rotting import DELETION_COST, scale
from tests.support.devices import DRIVER, claim_spec, device_class

API = "apis/resource.k8s.io/v1"
SMALL, LARGE, PLAIN = (
    group("small", "32", "128Gi", 1.0),
    group("large", "64", "256Gi", 2.4),
    group("plain", "16", "64Gi", 0.4),
)
DEVICES = {"small": ("a100", "40Gi", 4), "large": ("h100", "80Gi", 8)}
"""By pool: model, memory and number; two on each PCIe root."""


def devices_of(node: Any) -> list[dict[str, Any]]:
    pool = node["metadata"]["labels"].get("pool", "")
    if pool not in DEVICES:
        return []
    model, memory, count = DEVICES[pool]
    return [
        {
            "name": f"gpu-{n}",
            "attributes": {
                "model": {"string": model},
                "root": {"int": n // 2},
                "uuid": {"string": f"{node['metadata']['name']}-{n}"},
            },
            "capacity": {"memory": {"value": memory}},
        }
        for n in range(count)
    ]


def configured() -> list[dict[str, Any]]:
    """The section `devices`: a new node's, root by root."""
    return [
        {
            "driver": DRIVER,
            "count": 2,
            "node_groups": [pool],
            "attributes": {"model": model, "root": root},
            "capacity": {"memory": memory},
        }
        for pool, (model, memory, count) in DEVICES.items()
        for root in range(count // 2)
    ]


def _selects(expression: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}}]


LARGE_MEMORY = _selects(f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("40Gi"))')
TEMPLATES: dict[str, Any] = {
    "one": claim_spec(1),
    "two": claim_spec(2),
    "four": claim_spec(4),
    "h100": claim_spec(2, selectors=_selects(f'device.attributes["{DRIVER}"].model == "h100"')),
    "memory": claim_spec(1, selectors=LARGE_MEMORY),
    "all": claim_spec(1, allocationMode="All"),
    "either": {
        "devices": {
            "requests": [
                {
                    "name": "gpu",
                    "firstAvailable": [
                        {"name": "new", "deviceClassName": "gpu", "count": 1, "selectors": LARGE_MEMORY},
                        {"name": "old", "deviceClassName": "gpu", "count": 2},
                    ],
                }
            ]
        }
    },
    "near": {
        "devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 2}}],
            "constraints": [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/root"}],
        }
    },
}
NOWHERE = {"too many": claim_spec(9), "unknown class": claim_spec(1, deviceClassName="none")}
"""Templates that no node serves."""
MANY = "many random pods; 24 of them, and pods of each kind, run each day"


def start(live: Live, devices: list[dict[str, Any]] | None = None, **planner: Any) -> None:
    behaviour = {"*": {"boot": "1s"}}
    groups = [{"name": "all", "node_groups": [SMALL, LARGE, PLAIN]}]
    live.configure(groups, behaviour, planner=planner, devices=configured() if devices is None else devices)
    live.start()


def create_templates(live: Live) -> None:
    for name, spec in {**TEMPLATES, **NOWHERE}.items():
        body = {"metadata": {"name": name.replace(" ", "-")}, "spec": {"spec": spec}}
        live.cluster.admin.create(live.cluster.path("resourceclaimtemplates", api=API), body)


def create(live: Live, name: str, template: str, cpu: str = "1", gang: str = "", size: int = 0) -> None:
    metadata: dict[str, Any] = {}
    if gang:
        labels = {"scheduling.x-k8s.io/pod-group": gang}
        metadata = {"labels": labels, "annotations": {"cagrpc.io/gang-min-count": str(size)}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": template.replace(" ", "-")}] if template else []
    live.cluster.create_pod(name, {"cpu": cpu}, resourceClaims=claims, metadata=metadata)


def assert_where_planned(live: Live, nominated: dict[str, str]) -> None:
    places = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in live.cluster.pods()}
    elsewhere = {name: (node, places[name]) for name, node in nominated.items() if places[name] != node}
    assert not elsewhere, (elsewhere, live.what_it_says())
    assert live.ordered() == len(live.nodes()), live.what_it_says()


def assert_devices_are_had_once(live: Live) -> None:
    """The allocator's own word, of all claims."""
    claims = live.cluster.admin.items(live.cluster.path("resourceclaims", api=API))
    results = (each for claim in claims for each in claim["status"]["allocation"]["devices"]["results"])
    had = Counter((each["pool"], each["device"]) for each in results)
    assert had
    assert max(had.values()) == 1


def random_pods(live: Live, seed: int, count: int) -> int:
    """Create pods and gangs with claims of every kind; return how many."""
    chance = random.Random(seed)
    made = 0
    while made < count:
        template = chance.choice(["", *TEMPLATES])
        if chance.random() < 0.2:
            size = min(chance.choice((2, 3, 5)), count - made)
            for member in range(size):
                create(live, f"g{made}-{member}", template, gang=f"gang-{made}", size=size)
            made += size
        else:
            create(live, f"p{made}", template, cpu=chance.choice(("500m", "1", "3")))
            made += 1
    return made


def test_random_pods_with_claims_run_where_they_were_planned(live: Live) -> None:
    with dra_driver(live.cluster.plane, devices_of, [device_class()]), nominations(live.cluster) as nominated:
        create_templates(live)
        pods = random_pods(live, 1, 24)
        start(live, dedicated_nodes=True)
        live.wait_for_running(pods, seconds=300)
        live.wait_until_settled()
        assert nominated
        assert_where_planned(live, nominated)
        assert_devices_are_had_once(live)


@pytest.mark.long(MANY)
@pytest.mark.parametrize("seed", [2, 3])
def test_many_random_pods_with_claims_run_where_they_were_planned(live: Live, seed: int) -> None:
    """With nodes that are dedicated to their pods: none takes the devices of others."""
    with dra_driver(live.cluster.plane, devices_of, [device_class()]), nominations(live.cluster) as nominated:
        create_templates(live)
        pods = random_pods(live, seed, 300)
        start(live, dedicated_nodes=True)
        live.wait_for_running(pods, seconds=300)
        live.wait_until_settled()
        assert_where_planned(live, nominated)
        assert_devices_are_had_once(live)
        first = live.serving.get("/plans")[0]
        assert (first["pods"], first["unplaced"], first["nodes"]) == (pods, [], live.ordered())
        placement = live.serving.get("/status")["placement"]
        assert (placement["lost"], placement["handed_over"]) == (0, 0)


@pytest.mark.long(MANY)
@pytest.mark.parametrize("seed", [2, 3])
def test_many_random_pods_with_claims_run(live: Live, seed: int) -> None:
    """The scheduler reserves no devices for nominated pods: some are taken by others meanwhile, and their pods are
    planned again."""
    with dra_driver(live.cluster.plane, devices_of, [device_class()]):
        create_templates(live)
        pods = random_pods(live, seed, 300)
        start(live)
        live.wait_for_running(pods, seconds=300)
        live.wait_until_settled()
        assert_devices_are_had_once(live)
        first = live.serving.get("/plans")[0]
        assert (first["pods"], first["unplaced"]) == (pods, [])
        assert live.ordered() <= 1.3 * first["nodes"]


def test_pods_that_trickle_in_run_though_the_server_is_killed_while_they_are_let_in(live: Live) -> None:
    with dra_driver(live.cluster.plane, devices_of, [device_class()]):
        create_templates(live)
        start(live, dedicated_nodes=True)
        pods = random_pods(live, 4, 40)
        live.wait_for(lambda: any(_tolerates_a_node(pod) for pod in live.cluster.pods()), "pods are let in")
        live.kill()
        for number in range(20):
            create(live, f"late-{number}", "four" if number % 2 else "")
        live.start()
        live.wait_for_running(pods + 20, seconds=300)
        live.wait_until_settled()
        assert not live.held()
        assert live.ordered() == len(live.nodes())
        assert_devices_are_had_once(live)


def _tolerates_a_node(pod: Any) -> bool:
    return any(each.get("key") == START_UP_TAINT for each in pod["spec"].get("tolerations", ()))


def test_who_cannot_run_is_not_called_served(live: Live) -> None:
    with dra_driver(live.cluster.plane, devices_of, [device_class()]):
        create_templates(live)
        start(live)
        create(live, "fits", "two")
        for name in NOWHERE:
            create(live, name.replace(" ", "-"), name)
        live.wait_for_running(1)
        live.wait_until_settled()
        latest = live.serving.get("/plans")[-1]
        reasons = str(latest)
        assert "DeviceClass none is not found" in reasons, reasons
        live.cluster.admin.ensure("/apis/resource.k8s.io/v1/deviceclasses", device_class("none"))
        live.wait_for_running(2)
        live.wait_until_settled()
        assert live.running() == 2


def test_devices_are_learned_of_a_group_whose_nodes_have_been_seen(live: Live) -> None:
    """Nothing is configured: a pod with a claim waits, until a node that somebody else has needed shows its devices."""
    with dra_driver(live.cluster.plane, devices_of, [device_class()]):
        create_templates(live)
        start(live, devices=[])
        create(live, "waits", "four")
        live.cluster.create_pod("opens", {"cpu": "1"}, nodeSelector={"pool": "small"})
        live.wait_for_running(2)  # four devices of that node are free
        create(live, "next", "four")
        live.wait_for_running(3)
        live.wait_until_settled()
        assert live.pools() == {"small": 2}


def test_pods_that_share_a_claim_run_on_one_node(live: Live) -> None:
    with dra_driver(live.cluster.plane, devices_of, [device_class()]):
        create_templates(live)
        claims = live.cluster.path("resourceclaims", api=API)
        live.cluster.admin.create(claims, {"metadata": {"name": "shared"}, "spec": claim_spec(4)})
        shared = [{"name": "gpu", "resourceClaimName": "shared"}]
        for number in range(3):
            live.cluster.create_pod(f"s{number}", {"cpu": "8"}, resourceClaims=shared)
        for number in range(2):
            create(live, f"p{number}", "four", cpu="20")
        start(live)
        live.wait_for_running(5)
        live.wait_until_settled()
        places = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in live.cluster.pods()}
        assert len({places[f"s{number}"] for number in range(3)}) == 1
        assert_devices_are_had_once(live)


def test_pods_with_claims_are_moved_to_free_devices_and_to_new_nodes(live: Live) -> None:
    """Consolidation, and then a node that its cloud takes: each successor gets a claim of its own."""
    provisioners, of_small = [{"name": "all", "node_groups": [SMALL]}], configured()[:2]
    with dra_driver(live.cluster.plane, devices_of, [device_class()]):
        live.configure(provisioners, {"*": {"boot": "1s"}}, devices=of_small)
        live.start()
        create_templates(live)
        claims = [{"name": "gpu", "resourceClaimTemplateName": "two"}]
        live.cluster.create_deployment("train", 4, {"cpu": "1"}, resourceClaims=claims)
        live.wait_for_running(4)
        live.wait_until_settled()
        assert live.pools() == {"small": 2}
        for name in {pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in live.cluster.pods()}.values():
            cheapest = {"metadata": {"annotations": {DELETION_COST: "-1"}}}
            live.cluster.admin.merge(live.cluster.path("pods", name), cheapest)
        scale(live.cluster, "train", 2)
        live.wait_for(lambda: len(live.cluster.pods()) == 2, "two are gone")
        assert len({pod["spec"]["nodeName"] for pod in live.cluster.pods()}) == 2
        live.kill()
        live.configure(provisioners, devices=of_small, consolidation={**ON, "budgets": [{"nodes": "100%"}]})
        live.start()
        live.wait_for(lambda: len(live.nodes()) == 1, "one node has devices for both")
        live.wait_for_running(2)
        assert_devices_are_had_once(live)
        (node,) = (each["metadata"]["name"] for each in live.nodes())
        taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
        live.cluster.admin.merge(f"{NODES}/{node}", {"spec": {"taints": [taint]}})
        live.wait_for(lambda: node not in {each["metadata"]["name"] for each in live.nodes()}, "another node is there")
        live.wait_for_running(2)
        assert live.pools() == {"small": 1}
        assert_devices_are_had_once(live)
