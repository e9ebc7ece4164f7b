"""A better tier that has room again gets its pods back: when its limit is raised, and when a shortage is over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.controlplane.consolidating import ON
from tests.support.controlplane.live import Live, group

PODS = 12
PER_NODE = 2
MANY = 100
OTHER = {"name": "other", "weight": 1, "node_groups": [group("other", "4", "8Gi", 0.2)]}


def preferred(max_size: int = MANY) -> dict[str, Any]:
    """It costs more."""
    return {"name": "preferred", "weight": 10, "node_groups": [group("preferred", "4", "8Gi", 0.25, max_size=max_size)]}


def begin(live: Live, better: Mapping[str, Any], behaviours: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Two pods a node."""
    configure(live, better, behaviours)
    live.start()
    live.cluster.create_deployment("web", PODS, {"cpu": "1500m", "memory": "1Gi"})
    live.wait_for_running(PODS)
    live.wait_until_settled()


def configure(live: Live, better: Mapping[str, Any], behaviours: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    live.configure([dict(better), OTHER], behaviours, consolidation={**ON, "budgets": [{"nodes": "100%"}]})


def wait_until_they_are_back(live: Live) -> None:
    live.wait_for(lambda: live.pools() == {"preferred": PODS // PER_NODE}, "all nodes are of the better tier", 300)
    live.wait_for_running(PODS)


def test_a_limit_is_raised(live: Live) -> None:
    begin(live, preferred(max_size=2))
    assert live.pools() == {"preferred": 2, "other": 4}, live.what_it_says()
    live.kill()
    configure(live, preferred())
    live.start()
    wait_until_they_are_back(live)


def test_a_shortage_is_over(live: Live) -> None:
    begin(live, preferred(), {"preferred": {"stock": 0}})
    assert live.pools() == {"other": 6}, live.what_it_says()
    live.behave({"preferred": None})  # as all others
    wait_until_they_are_back(live)
