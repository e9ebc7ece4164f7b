"""A gang over two different node groups, of which the second one runs short: all of it, or nothing and nothing left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.controlplane.live import Live, group

A, B, C = (
    group("a", "4", "8Gi", 0.2),
    group("b", "4", "8Gi", 0.3, labels={"role": "b"}),
    group("c", "4", "8Gi", 0.9, labels={"role": "b"}),
)
SHORTAGES = {
    "known at once": {"stock": 1},
    "found out late": {"late_shortage": 1},
    "machines that fail": {"failure_probability": 1.0},
}
EACH = 3
GANG = {"labels": {"scheduling.x-k8s.io/pod-group": "gang"}, "annotations": {"cagrpc.io/gang-min-count": str(2 * EACH)}}


def create_gang(live: Live) -> None:
    """Half of it can only run on `a`, the other half where the role is b. A node holds one of them."""
    for role, selector in (("a", {"pool": "a"}), ("b", {"role": "b"})):
        for number in range(EACH):
            requests = {"cpu": "3", "memory": "1Gi"}
            live.cluster.create_pod(f"{role}-{number}", requests, nodeSelector=selector, metadata=GANG)


def bound(live: Live) -> dict[str, Any]:
    """Uid -> the node of every pod; a pod's node never changes, so one without a node was never bound."""
    return {pod["metadata"]["uid"]: pod["spec"].get("nodeName") for pod in live.cluster.pods()}


@pytest.mark.parametrize("shortage", SHORTAGES.values(), ids=SHORTAGES)
def test_without_a_way_out_nothing_of_it_is_left(live: Live, shortage: dict[str, Any]) -> None:
    live.configure([{"name": "all", "node_groups": [A, B]}], {"b": {"boot": "1s", **shortage}})
    live.start()
    create_gang(live)
    pods = set(bound(live))
    live.wait_for(lambda: "rolled-back" in live.phases(), "the increment is rolled back")
    failed = next(each for each in live.increments() if each["phase"] == "rolled-back")
    assert failed["deltas"] == {"a": EACH, "b": EACH}
    assert failed["short_groups"] == ["b"]
    live.wait_for(lambda: not live.nodes(), "its nodes are gone")
    assert bound(live) == dict.fromkeys(pods)
    live.behave({"b": None})
    live.wait_for_running(2 * EACH)
    live.wait_until_settled()
    assert live.pools() == {"a": EACH, "b": EACH}
    assert set(bound(live)) == pods


def test_where_another_group_can_serve_it_is_taken(live: Live) -> None:
    live.configure(
        [{"name": "all", "node_groups": [A, B, C]}], {"b": {"late_shortage": 1}}, planner={"shortage": "10m"}
    )
    live.start()
    create_gang(live)
    live.wait_for_running(2 * EACH)
    live.wait_until_settled()
    assert live.pools() == {"a": EACH, "c": EACH}
    assert live.phases() == ["rolled-back", "done"]
    assert [each["short_groups"] for each in live.increments()] == [["b"], []]
    (shortage,) = live.rounds()[-1]["shortages"]
    assert "b" in shortage["offering"]


def test_a_gang_is_planned_when_it_is_complete(live: Live) -> None:
    live.configure([{"name": "all", "node_groups": [A, B]}])
    live.start()
    live.cluster.create_pod("a-0", {"cpu": "3"}, nodeSelector={"pool": "a"}, metadata=GANG)
    live.cluster.create_pod("alone", {"cpu": "3"}, nodeSelector={"pool": "a"})
    live.wait_for_running(1)
    live.wait_until_settled()
    assert live.pools() == {"a": 1}
    live.cluster.admin.delete(live.cluster.path("pods", "a-0"), gracePeriodSeconds=0)
    create_gang(live)
    live.wait_for_running(1 + 2 * EACH)
