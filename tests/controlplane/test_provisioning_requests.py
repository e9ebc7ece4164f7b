"""The five scenarios of the proposal ("Testing"), by name, against a real API server and scheduler; and what a booking,
a lost node, a deletion and a bad request come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cagrpc.cluster.markers import BOOKING_LABELS, SCALE_DOWN_DISABLED
from tests.support.controlplane.live import GPU, Live, group
from tests.support.controlplane.provisioning import CHECK, CLASSES, PlaneRequests

CPU, BIG = group("cpu", "4", "16Gi", 0.2), group("big", "16", "64Gi", 0.8)
TAINT = {"key": GPU, "effect": "NoSchedule"}
GPUS = group("gpu", "8", "32Gi", 1.5, gpus=1)
TOLERATES: dict[str, Any] = {"tolerations": [{**TAINT, "operator": "Exists"}]}
WORKER, HEAD = {"cpu": "4", "memory": "8Gi", GPU: "1"}, {"cpu": "3", "memory": "4Gi"}
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
DRIVES = pytest.mark.parametrize("drive", ["plan", "assist"])


@pytest.fixture
def requests(live: Live) -> Iterator[PlaneRequests]:
    requests = PlaneRequests(live)
    yield requests
    live.close()
    requests.close()


def started(requests: PlaneRequests, *groups: dict[str, Any], drive: str = "plan", **more: Any) -> None:
    plain = [each for each in groups if GPU not in each["allocatable"]]
    tainted = [each for each in groups if GPU in each["allocatable"]]
    provisioners: list[dict[str, Any]] = [{"name": "plain", "node_groups": plain}] if plain else []
    if tainted:
        provisioners.append({"name": "gpu", "taints": [TAINT], "node_groups": tainted})
    requests.live.configure(provisioners, drive=drive, **more)
    requests.live.start()


@DRIVES
def test_scenario_1_check_capacity_looks_whether_there_is_room(requests: PlaneRequests, drive: str) -> None:
    for number in range(4):  # before the server: it answers from the Nodes that it knows of by then
        requests.cluster.create_node(f"standing-{number}", {"cpu": "4", "memory": "16Gi"})
    started(requests, CPU, drive=drive)
    requests.template("worker", {"cpu": "1", "memory": "1Gi"})
    requests.create("fits", {"worker": 12}, CHECK)
    requests.create("too-many", {"worker": 20}, CHECK)
    found = requests.wait_for("fits", "CapacityAvailable")
    assert requests.conditions("fits")["Provisioned"]["status"] == "True"
    assert "12 of 12" in found["message"]
    short = requests.wait_for("too-many", "CapacityAvailable", "False")
    assert short["message"].startswith("16 of 20 fit: ")
    assert requests.conditions("too-many")["Failed"]["status"] == "True"
    # Nothing is reserved, so another one finds the same room; and nothing is ordered for any of them.
    requests.create("fits-too", {"worker": 12}, CHECK)
    requests.wait_for("fits-too", "CapacityAvailable")
    assert requests.live.ordered() == 0


@pytest.mark.parametrize("drive", ["plan", "assist"])
def test_scenario_2_atomic_scale_up_provisions_all_of_it(requests: PlaneRequests, drive: str) -> None:
    started(requests, CPU, GPUS, drive=drive)
    requests.template("worker", WORKER, **TOLERATES)
    requests.template("head", HEAD)
    requests.create("gang", {"worker": 3, "head": 2})
    requests.wait_for("gang", "Provisioned")
    conditions = requests.conditions("gang")
    assert conditions["Accepted"]["status"] == "True"
    assert conditions["Provisioned"]["reason"] == "CapacityIsProvisioned"
    details = requests.details("gang")
    assert details["nodeGroups"] == "cpu=2,gpu=3"
    assert float(details["costPerHour"]) == pytest.approx(2 * 0.2 + 3 * 1.5)
    assert float(details["lowerBoundPerHour"]) <= float(details["costPerHour"])
    assert requests.live.pools() == {"gpu": 3, "cpu": 2}
    assert not requests.live.held()
    assert len(requests.selected("gang")) == 5
    (increment,) = requests.live.increments()
    assert increment["deltas"] == {"gpu": 3, "cpu": 2}
    # Its pods come, consume it, and nothing more is ordered for them.
    for number in range(3):
        requests.consume("gang", f"worker-{number}", WORKER, **TOLERATES)
    for number in range(2):
        requests.consume("gang", f"head-{number}", HEAD)
    requests.live.wait_for_running(5)
    assert requests.live.ordered() == 5


def test_pods_that_come_before_their_request_is_provisioned_are_no_demand(requests: PlaneRequests) -> None:
    started(requests, CPU)
    requests.template("head", HEAD)
    for number in range(2):
        requests.consume("later", f"head-{number}", HEAD)
    requests.cluster.create_pod("plain", HEAD)
    requests.live.wait_for_running(1)
    assert requests.live.ordered() == 1, "they were there when one that came later was planned"
    requests.create("later", {"head": 2})
    requests.live.wait_for_running(3)
    requests.wait_for("later", "Provisioned")
    assert requests.live.ordered() == 3


NAP: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "no group with a GPU": ({**WORKER, "cpu": "2"}, TOLERATES),
    "no group of that size": ({"cpu": "40", "memory": "100Gi"}, {}),
    "no group of that architecture": (
        {"cpu": "1", "memory": "1Gi"},
        {"nodeSelector": {"kubernetes.io/arch": "arm64"}},
    ),
}


def test_scenario_3_node_auto_provisioning_makes_the_group(requests: PlaneRequests) -> None:
    requests.live.configure(
        [
            {"name": "explicit", "weight": 100, "node_groups": [CPU]},
            {"name": "any"},
            {
                "name": "gpu",
                "taints": [TAINT],
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.xlarge"]}
                ],
            },
        ]
    )
    requests.live.start()
    for number, (asks, spec) in enumerate(NAP.values()):
        requests.template(f"worker-{number}", asks, **spec)
        requests.create(f"new-group-{number}", {f"worker-{number}": 2})
    selected: set[str] = set()
    for number in range(len(NAP)):
        requests.wait_for(f"new-group-{number}", "Provisioned")
        selected.update(requests.selected(f"new-group-{number}"))
    increments = requests.live.increments()
    assert not any("cpu" in each["deltas"] for each in increments)
    assert len(selected) == sum(sum(each["deltas"].values()) for each in increments)


LIMITS: dict[str, tuple[dict[str, Any], str]] = {
    "node group size": ({"node_groups": [{**CPU, "max_size": 2}]}, "cpu"),
    "cpu": ({"node_groups": [CPU], "limits": {"cpu": 8}}, "cpu"),
    "memory": ({"node_groups": [CPU], "limits": {"memory": "40Gi"}}, "memory"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_scenario_4_fails_on_sizes_and_limits(requests: PlaneRequests, limit: str) -> None:
    provisioner, told = LIMITS[limit]
    requests.live.configure([{"name": "limited", **provisioner}])
    requests.live.start()
    requests.template("worker", HEAD)
    requests.create("too-large", {"worker": 3})
    failed = requests.wait_for("too-large", "Failed")
    assert told in failed["message"]
    assert requests.live.ordered() == 0
    # It is in nobody's way.
    requests.create("small", {"worker": 2})
    requests.wait_for("small", "Provisioned")
    assert requests.live.ordered() == 2


def test_scenario_5_many_small_requests(requests: PlaneRequests) -> None:
    started(requests, CPU, BIG)
    requests.template("worker", {"cpu": "1", "memory": "1Gi"})
    for number in range(100):
        requests.create(f"small-{number}", {"worker": 2})
    for number in range(100):
        requests.wait_for(f"small-{number}", "Provisioned", seconds=120)
    cores = {"cpu": 4, "big": 16}
    assert sum(cores[pool] * count for pool, count in requests.live.pools().items()) < 1.3 * 200


def test_scenario_5_one_big_request(requests: PlaneRequests) -> None:
    started(requests, CPU, BIG)
    sets = {}
    for number in range(16):
        requests.template(f"worker-{number}", {"cpu": f"{500 + 50 * number}m", "memory": "1Gi"})
        sets[f"worker-{number}"] = 40
    requests.create("big", sets)
    requests.wait_for("big", "Provisioned", seconds=120)
    (increment,) = requests.live.increments()
    assert sum(increment["deltas"].values()) == len(requests.live.nodes()) == len(requests.selected("big"))


def test_a_gang_that_cannot_be_had_leaves_nothing(requests: PlaneRequests) -> None:
    started(requests, CPU, GPUS, behaviours={"gpu": {"late_shortage": 1, "boot": "1s"}})
    requests.template("worker", WORKER, **TOLERATES)
    requests.template("head", HEAD)
    requests.create("gang", {"worker": 3, "head": 2})
    refused = requests.wait_for("gang", "Provisioned", "False")
    assert "gpu" in refused["message"]
    requests.live.wait_for(lambda: not requests.live.nodes(), "its nodes are gone")
    assert "Failed" not in requests.conditions("gang"), "it is tried again"


def test_a_booking_keeps_its_nodes(requests: PlaneRequests) -> None:
    started(requests, CPU)
    requests.template("head", HEAD)
    requests.create("kept", {"head": 2})
    requests.wait_for("kept", "Provisioned")
    requests.live.wait_for(lambda: all(map(_stays, _nodes(requests))), "its nodes stay")
    requests.create("another", {"head": 1})
    requests.wait_for("another", "Provisioned")
    assert len(requests.live.nodes()) == 3


@pytest.mark.long("a booking that is not consumed expires in tests/controllers/provisioning/test_controller.py, too")
def test_a_booking_is_kept_until_its_time_is_over(requests: PlaneRequests) -> None:
    started(requests, CPU, provisioning={"booking": "20s"})
    requests.template("head", HEAD)
    requests.create("kept", {"head": 2})
    requests.wait_for("kept", "Provisioned")
    requests.create("another", {"head": 1})
    requests.wait_for("another", "Provisioned")
    requests.wait_for("kept", "BookingExpired")
    requests.wait_for("another", "BookingExpired")
    requests.create("late", {"head": 2})
    assert requests.wait_for("late", "Provisioned")["reason"] == "CapacityIsFound"
    assert requests.live.ordered() == 3


def test_a_priority_that_a_template_claims_counts_for_nothing_and_what_is_over_a_namespaces_share_waits(
    requests: PlaneRequests,
) -> None:
    modest = {"metadata": {"name": "modest"}, "value": 100}
    requests.admin.ensure("/apis/scheduling.k8s.io/v1/priorityclasses", modest)
    requests.live.configure(
        [{"name": "plain", "node_groups": [CPU]}], provisioning={"per_namespace": {"requests": 1, "pods": 4}}
    )
    requests.template("claims", HEAD, priority=2_000_000_000)
    requests.template("modest", HEAD, priorityClassName="modest")
    requests.create("claims", {"claims": 2})
    requests.create("first", {"modest": 2})
    requests.create("large", {"modest": 5})
    requests.live.start()
    requests.wait_for("first", "Provisioned")
    waits = requests.wait_for("claims", "Provisioned", "False")
    assert waits["reason"] == "NamespaceShareIsUsed"
    assert "capacity is reserved for 1 request of namespace" in waits["message"]
    assert "it asks for 5 pods" in requests.wait_for("large", "Provisioned", "False")["message"]
    assert requests.live.ordered() == 2
    status = requests.live.serving.get("/status")["provisioning_requests"]
    assert status["over_share"] == {requests.cluster.namespace: 2}
    requests.delete("first")
    requests.wait_for("claims", "Provisioned")
    assert "Failed" not in requests.conditions("large")


@pytest.mark.long("nodes that are lost revoke it in tests/controllers/provisioning/test_controller.py, too")
def test_nodes_that_are_lost_revoke_what_was_provisioned(requests: PlaneRequests) -> None:
    started(requests, CPU)
    requests.template("head", HEAD)
    requests.create("lost", {"head": 2})
    requests.wait_for("lost", "Provisioned")
    node = requests.selected("lost")[0]
    requests.admin.delete(f"/api/v1/nodes/{node}")
    requests.wait_for("lost", "CapacityRevoked")


STAGES: dict[str, dict[str, str]] = {"in flight": {"boot": "30s"}, "provisioned": {}}


@pytest.mark.parametrize("stage", STAGES)
def test_a_request_is_cancelled_by_deleting_it(requests: PlaneRequests, stage: str) -> None:
    started(requests, CPU, behaviours={"cpu": STAGES[stage]})
    requests.template("head", HEAD)
    requests.create("cancelled", {"head": 2})
    requests.wait_for("cancelled", "Accepted" if stage == "in flight" else "Provisioned")
    requests.delete("cancelled")
    if stage == "in flight":
        requests.live.wait_for(lambda: requests.live.phases() == ["rolled-back"], "it is rolled back")
        requests.live.wait_for(lambda: not requests.live.nodes(), "nothing is left")
    else:
        requests.live.wait_for(lambda: not any(map(_booked, _nodes(requests))), "no node is booked")
        requests.create("next", {"head": 2})
        assert requests.wait_for("next", "Provisioned")["reason"] == "CapacityIsFound"


BAD: dict[str, tuple[dict[str, str], str]] = {
    "a parameter that nobody knows": ({"Priority": "high"}, "Priority"),
    "a time that is none": ({"ValidUntilSeconds": "soon"}, "ValidUntilSeconds"),
}


def test_a_bad_request_fails_with_one_clear_message(requests: PlaneRequests) -> None:
    started(requests, CPU)
    requests.template("head", HEAD)
    for number, (parameters, _) in enumerate(BAD.values()):
        requests.create(f"bad-{number}", {"head": 1}, **parameters)
    requests.create("good", {"head": 1})
    for number, (mistake, (_, told)) in enumerate(BAD.items()):
        assert told in requests.wait_for(f"bad-{number}", "Failed")["message"], mistake
    requests.wait_for("good", "Provisioned")


def test_pods_that_cannot_be_are_told(requests: PlaneRequests) -> None:
    """A PodTemplate that is missing is waited for: see tests/controllers/provisioning/test_classes.py."""
    started(requests, CPU)
    requests.template("giant", {"cpu": "400", "memory": "1Gi"})
    requests.template("nowhere", {"cpu": "1"}, nodeSelector={"pool": "none"})
    requests.create("giant", {"giant": 1})
    requests.create("nowhere", {"nowhere": 1})
    assert "cpu" in requests.wait_for("giant", "Failed")["message"]
    assert "pool" in requests.wait_for("nowhere", "Failed")["message"]


def test_other_classes_are_left_alone(requests: PlaneRequests) -> None:
    started(requests, CPU)
    requests.template("head", HEAD)
    upstream = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
    requests.create("theirs", {"head": 1}, upstream)
    requests.create("ours", {"head": 1})
    requests.wait_for("ours", "Provisioned")
    assert "status" not in requests.get("theirs")


def test_upstream_names_where_the_autoscaler_leaves_them_to_us(requests: PlaneRequests) -> None:
    started(requests, CPU, provisioning={"upstream_classes": ["check-capacity", "atomic-scale-up"]})
    requests.template("head", HEAD)
    requests.create("atomic", {"head": 2}, "best-effort-atomic-scale-up.autoscaling.x-k8s.io")
    requests.wait_for("atomic", "Provisioned")
    checked = "check-capacity.autoscaling.x-k8s.io"
    requests.create("check", {"head": 1}, checked, noRetry="true")
    assert requests.wait_for("check", "Failed")["reason"] == "CapacityIsNotFound"  # the room is booked


def test_a_class_of_the_clusters_own(requests: PlaneRequests) -> None:
    started(requests, CPU)
    kind = {"apiVersion": "cagrpc.io/v1alpha1", "kind": "ProvisioningClass"}
    spec = {"behaviour": "atomic-scale-up", "parameters": {"ValidUntilSeconds": "1h"}}
    requests.admin.create(CLASSES, {**kind, "metadata": {"name": "within-seconds"}, "spec": spec})
    requests.template("head", HEAD)
    requests.create("own", {"head": 1}, "within-seconds")
    requests.wait_for("own", "Provisioned")


def _nodes(requests: PlaneRequests) -> list[Any]:
    return requests.live.nodes()


def _booked(node: Any) -> bool:
    return any(key.startswith(BOOKING_LABELS) for key in node["metadata"]["labels"])


def _stays(node: Any) -> bool:
    return SCALE_DOWN_DISABLED in (node["metadata"].get("annotations") or {})
