"""1,000 pods of a production GPU cluster, as Deployments, over 12 node groups whose GPUs are tainted as clouds do: one
planning round, and every pod runs, with either profile of the scheduler. On dedicated nodes they cost what was planned,
to the cent; with nominations alone a pod that lost its place may take a node more."""

from __future__ import annotations

import csv
import json

import pytest

from solver.planning.warm_up import warm_up
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.live import GPU, Live
from tests.support.controlplane.plane import Scoring
from tests.support.recordings import recorded

PODS = 1_000
MOST_LOST = 5
"""Pods whose places others have taken while nodes were released."""
OTHER_PAIR = pytest.mark.long("the same pods: of four pairs of a profile and dedicated nodes two are enough each day")
GROUPS = recorded("openb.groups.json")
TAINT = {"key": GPU, "effect": "NoSchedule"}


def prices() -> dict[str, float]:
    return {name: each["price"] for name, each in json.loads(GROUPS.read_text())["groups"].items()}


def provisioners() -> list[dict[str, object]]:
    groups = json.loads(GROUPS.read_text())["groups"]
    with_gpus = [name for name, each in groups.items() if each["gpu"]]
    assert len(groups) == 12
    assert len(with_gpus) == 7
    return [
        {"name": "cpu", "node_groups": [{"file": str(GROUPS), "ids": [n for n in groups if n not in with_gpus]}]},
        {"name": "gpu", "taints": [TAINT], "node_groups": [{"file": str(GROUPS), "ids": with_gpus}]},
    ]


def create_deployments(cluster: Cluster) -> None:
    made = 0
    with (GROUPS.parents[1] / "openb-1000.csv").open() as table:
        for row in csv.DictReader(table):
            requests = {"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi"}
            gpus = {GPU: row["num_gpu"]} if row["num_gpu"] != "0" else {}
            tolerations = [{**TAINT, "operator": "Exists"}] if gpus else []
            cluster.create_deployment(row["name"], int(row["count"]), {**requests, **gpus}, tolerations=tolerations)
            made += int(row["count"])
    assert made == PODS


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """So that after a change of the planner's source its compiling takes nothing of the round's time."""
    warm_up()


@pytest.mark.parametrize(
    ("scoring", "dedicated"),
    [
        (Scoring.LEAST_ALLOCATED, False),
        (Scoring.MOST_ALLOCATED, True),
        pytest.param(Scoring.LEAST_ALLOCATED, True, marks=OTHER_PAIR),
        pytest.param(Scoring.MOST_ALLOCATED, False, marks=OTHER_PAIR),
    ],
)
def test_one_round_serves_them_all_at_the_planned_cost(live: Live, scoring: Scoring, dedicated: bool) -> None:
    live.configure(provisioners(), planner={"idle": "3s", "budget": "15s", "dedicated_nodes": dedicated})
    with live.cluster.plane.scheduler(scoring):
        live.start()
        create_deployments(live.cluster)
        live.wait_for_running(PODS, seconds=600)
        live.wait_until_settled()
    planned, *more = live.rounds()
    assert planned["pods"] == PODS
    assert live.ordered() == len(live.nodes())
    cost = sum(prices()[each] * count for each, count in live.types().items())
    if more and not dedicated:  # the scheduler was in between
        lost = live.serving.get("/status")["placement"]["lost"]
        assert 0 < lost <= MOST_LOST
        assert len(live.nodes()) <= planned["nodes"] + lost
        # 0.65 % on a quiet machine, up to 2 % on one that builds something beside; dedicated nodes leave nothing to it
        assert cost <= 1.02 * planned["planned_cost_per_hour"]
    else:
        assert not more, live.what_it_says()
        assert cost == pytest.approx(planned["planned_cost_per_hour"])
