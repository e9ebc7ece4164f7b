"""The slack of the planner (carrier `virtual`, `drive: plan`) in a real cluster: nodes are opened for placeholders,
they give way, come back, and are where they were after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cagrpc.kube.journal.objects import unpack
from tests.support.controlplane.deployed import install_crds, remove_crds
from tests.support.controlplane.live import Live, group

SLACK = {
    "targets": [{"name": "web", "fixed": [{"name": "large", "count": 2, "requests": {"cpu": 3, "memory": "1Gi"}}]}]
}


SHAPE = "web/fixed/large"


@pytest.fixture
def slack(live: Live) -> Iterator[Live]:
    admin = live.cluster.admin
    install_crds(admin, "slack-crds.yaml")
    live.configure(
        [{"name": "all", "node_groups": [group("a", "4", "8Gi", 0.2)]}],
        slack=SLACK,
        namespace=live.cluster.namespace,
    )
    live.start()
    yield live
    live.close()
    remove_crds(admin, "slack-crds.yaml")


def status(live: Live) -> dict[str, Any]:
    path = f"/apis/cagrpc.io/v1alpha1/namespaces/{live.cluster.namespace}/slacks"
    found = live.cluster.admin.items(path)
    return dict(found[0].get("status", {})) if found else {}


def places(live: Live) -> dict[str, int]:
    """Node -> placeholders, as the server has them now."""
    shapes = live.serving.get("/slack").get("shapes", ())
    return {node: count for shape in shapes for node, count in shape["nodes"].items()}


def held(live: Live) -> int:
    return int(status(live).get("held", -1))


def test_a_burst_that_fits_the_slack_starts_at_once_and_the_slack_comes_back(slack: Live) -> None:
    slack.wait_for(lambda: held(slack) == 2, "two placeholders are held")
    slack.wait_until_settled()
    assert slack.pools() == {"a": 2}
    assert status(slack)["carrier"] == "virtual"
    assert status(slack)["costPerHour"] == 0.3  # three quarters of two nodes
    (increment,) = slack.increments()
    assert increment["reason"] == "2 placeholders of the slack"
    before = {node["metadata"]["name"] for node in slack.nodes()}

    for number in range(2):
        slack.cluster.create_pod(f"burst-{number}", {"cpu": "3", "memory": "1Gi"})
    slack.wait_for_running(2)
    assert {pod["spec"]["nodeName"] for pod in slack.cluster.pods()} == before
    slack.wait_for(lambda: len(places(slack).keys() - before) == 2, "the slack is held elsewhere")
    slack.wait_until_settled()
    assert slack.pools() == {"a": 4}
    assert len(slack.increments()) == 2  # one increment restores it

    placed = places(slack)
    slack.wait_for(lambda: unpack(status(slack)["placements"]) == {SHAPE: placed}, "it is written down")
    slack.kill()
    slack.start()
    slack.wait_for(lambda: places(slack), "the slack is looked at again")
    assert places(slack) == placed
    assert slack.pools() == {"a": 4}


def test_r3_nodes_that_hold_slack_are_not_left_to_scale_down(slack: Live) -> None:
    slack.wait_for(lambda: held(slack) == 2, "two placeholders are held")
    slack.wait_until_settled()

    def disabled() -> list[str]:
        annotations = [node["metadata"].get("annotations", {}) for node in slack.nodes()]
        return [each.get("cagrpc.io/scale-down-disabled", "") for each in annotations]

    slack.wait_for(lambda: all("the slack on it" in each for each in disabled()), "both nodes are kept")
