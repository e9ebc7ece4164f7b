"""A part of the hunt: as many clusters as a minute has, and the tools that it hunts with."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.hunt import Hunt
from bench.hunted.cases import Case, planned, question
from bench.hunted.clusters import PROFILES, cluster
from bench.hunted.shrinking import shrunk
from tests.oracle import KubeScheduler

CLUSTERS = 160
KNOWN: Mapping[str, tuple[int, str]] = {}
"""Of the clusters that are drawn here, how many at most are known to be planned wrongly, by kind, and why."""


def _case(*pods: dict[str, Any], **parts: Any) -> dict[str, Any]:
    group = {
        "id": "g", "allocatable": {"cpu": "4", "memory": "8Gi", "pods": 10}, "price_usd_per_hour": 1.0, "zone": "za",
        "max_size": 2,
    }  # fmt: skip
    lists: dict[str, Any] = {"namespaces": [], "nodes": [], "bound": [], "daemonsets": [], "objects": []}
    return {**lists, "pending": list(pods), "provisioners": [{"name": "p", "node_groups": [group]}], **parts}


def _pod(name: str, cpu: str = "3", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": containers, **spec}}


def test_plans_of_random_clusters_are_as_the_scheduler_has_them_but_for_what_is_known(
    oracle: Path, tmp_path: Path
) -> None:
    with KubeScheduler(oracle) as scheduler:
        hunt = Hunt(scheduler, tmp_path)
        for number in range(CLUSTERS):
            profile = list(PROFILES)[number % len(PROFILES)]
            seed = 1 + number // len(PROFILES)
            hunt.look(f"{profile}-{seed}", cluster(profile, seed))
    unknown = {kind: count for kind, count in hunt.faults.items() if count > KNOWN.get(kind, (0, ""))[0]}
    assert not unknown, "\n".join(f"{kind}: {said}" for (kind, _), said in hunt.first.items() if kind in unknown)


def test_every_profile_draws_inputs_of_a_plan_and_the_same_ones_each_time(tmp_path: Path) -> None:
    for profile in PROFILES:
        case = cluster(profile, 3)
        assert case == cluster(profile, 3)
        assert planned(case, tmp_path).plan.pod_classes or not planned(case, tmp_path).read


def test_a_plan_becomes_a_question_with_the_nodes_that_it_opens_and_those_that_it_may_still_open(
    tmp_path: Path,
) -> None:
    case = _case(_pod("a"), _pod("b", "9"))
    asked = question(case, planned(case, tmp_path), nominated=True)
    assert [each["metadata"]["name"] for each in asked["nodes"]] == ["new-g-0"]
    assert [(each["pod"]["metadata"]["name"], each["node"], each["nominated"]) for each in asked["placements"]] == [
        ("a", "new-g-0", True)
    ]
    assert [each["metadata"]["name"] for each in asked["unplaced"]] == ["b"]
    assert [each["metadata"]["name"] for each in asked["empty"]] == ["empty-g"]


@pytest.mark.parametrize(("limits", "may"), [({}, False), ({"cpu": "8"}, False), ({"cpu": "12"}, True)])
def test_one_more_node_is_asked_about_only_within_maximum_and_limits(
    tmp_path: Path, limits: dict[str, str], *, may: bool
) -> None:
    case = _case(_pod("a"), _pod("b"))
    (provisioner,) = case["provisioners"]
    provisioner["limits"] = limits
    if may:
        provisioner["node_groups"][0]["max_size"] = 3
    asked = question(case, planned(case, tmp_path), nominated=False)
    assert (len(asked["nodes"]), len(asked["empty"])) == (2, int(may))


def test_a_case_shrinks_to_what_shows_the_same() -> None:
    case = _case(_pod("a"), _pod("b", nodeSelector={"x": "y"}, priority=3), _pod("c"), bound=[_pod("d")])
    before = copy.deepcopy(case)

    def still(smaller: Case) -> bool:
        return any(each["spec"].get("nodeSelector") == {"x": "y"} for each in smaller["pending"])

    small = shrunk(case, still)
    assert case == before
    assert small["bound"] == []
    (pod,) = small["pending"]
    assert pod["spec"]["nodeSelector"] == {"x": "y"}
    assert "priority" not in pod["spec"]


def test_what_is_wrong_is_counted_by_kind_and_written_as_a_case(tmp_path: Path, oracle: Path) -> None:
    """The planner is right here; so the scheduler is told of another node than the one that is planned with."""
    selector: dict[str, Any] = {"nodeSelector": {"disk": "ssd"}}
    node = {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"}}}

    class Liar(KubeScheduler):
        def ask(self, question: Any) -> dict[str, Any]:
            return super().ask(
                {
                    **question,
                    "nodes": [node | {"metadata": {"name": each["metadata"]["name"]}} for each in question["nodes"]],
                }
            )

    case = _case(_pod("a", **selector), _pod("b", "1"))
    case["provisioners"][0]["node_groups"][0]["labels"] = {"disk": "ssd"}
    with Liar(oracle) as scheduler:
        hunt = Hunt(scheduler, tmp_path, tmp_path / "into")
        assert [each.kind for each in hunt.look("case", case)] == ["refused by NodeAffinity"]
    assert hunt.faults == {"refused by NodeAffinity": 1}
    assert "| refused by NodeAffinity | 1 | 1000.0 | node 1 |" in hunt.table()
    small = json.loads((tmp_path / "into" / "case-refused-by-NodeAffinity.json").read_text())
    assert [each["metadata"]["name"] for each in small["pending"]] == ["a"]
