"""1,000 pods of a production GPU cluster, as Deployments, over 12 node groups whose GPUs are tainted as clouds do: one
planning round, and every pod runs, at the planned cost where cagrpc binds and near it where the scheduler does."""

from __future__ import annotations

import csv
import json

import pytest

from cagrpc.controllers.settings import Realise, Scoring
from tests.cli.conftest import RECORDINGS
from tests.controlplane.cluster import Cluster
from tests.controlplane.live import GPU, Live

PODS = 1_000
GROUPS = RECORDINGS / "openb.groups.json"
TAINT = {"key": GPU, "effect": "NoSchedule"}
NEAR = 1.15


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
    with (RECORDINGS.parent / "openb-1000.csv").open() as table:
        for row in csv.DictReader(table):
            requests = {"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi"}
            gpus = {GPU: row["num_gpu"]} if row["num_gpu"] != "0" else {}
            tolerations = [{**TAINT, "operator": "Exists"}] if gpus else []
            cluster.create_deployment(row["name"], int(row["count"]), {**requests, **gpus}, tolerations=tolerations)
            made += int(row["count"])
    assert made == PODS


@pytest.mark.parametrize("scoring", Scoring)
@pytest.mark.parametrize("realise", Realise)
def test_one_round_serves_them_all(live: Live, realise: Realise, scoring: Scoring) -> None:
    live.configure(
        provisioners(),
        planner={"realise": realise.value, "scoring": scoring.value, "idle_seconds": 3, "budget_seconds": 15},
    )
    with live.cluster.plane.scheduler(scoring):
        live.start()
        create_deployments(live.cluster)
        live.wait_for_running(PODS, seconds=600)
        (planned,) = live.rounds()
        assert planned["pods"] == PODS
        live.wait_until_settled()
        live.assert_nothing_wasted(nodes=planned["nodes"])
    cost = sum(prices()[each] * count for i in live.increments() for each, count in i["deltas"].items())
    print(f"{realise}, {scoring}: {planned}")
    assert cost == pytest.approx(planned["realised_cost_per_hour"])
    if realise is Realise.BIND:
        assert cost == pytest.approx(planned["planned_cost_per_hour"])
    assert cost <= NEAR * planned["planned_cost_per_hour"]
