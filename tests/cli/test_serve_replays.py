"""All recorded conversations against `cagrpc serve`, each with its own node groups: weights come from the
configuration, what went wrong in the recording from the simulation's behaviour.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.recordings import recorded
from tests.support.serving import Serving, configuration, recorded_groups

Started = Callable[..., Serving]

THREE = {"m7i.large": 100, "m7i.4xlarge": 50, "m7g.xlarge": 10}
CPU = ("m7i.xlarge", "m7i.4xlarge", "c7i.8xlarge", "r7i.4xlarge", "m7i.16xlarge")
GPU = ("g4dn.xlarge", "g4dn.12xlarge", "g5.2xlarge", "g5.12xlarge", "g6.8xlarge", "g6.48xlarge", "p4d.24xlarge")


@dataclass(frozen=True)
class ReplayCase:
    recording: str
    weights: Mapping[str, int]
    choices: list[str]
    """Ours, in order."""
    behaviours: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_by_recording: Mapping[str, int] = field(default_factory=dict)


CASES = {
    # Its autoscaler was stopped after scaling down 21 of 24 nodes; the replay deletes the rest.
    "weights rule": ReplayCase(
        "three-deployments",
        THREE,
        ["m7i.large", "m7i.4xlarge", "m7i.4xlarge"],
        left_by_recording={"m7g.xlarge": 3},
    ),
    "weights reversed, choices reversed": ReplayCase(
        "three-deployments",
        {group: 110 - weight for group, weight in THREE.items()},
        ["m7g.xlarge", "m7g.xlarge", "m7g.xlarge"],
        left_by_recording={"m7g.xlarge": 3},
    ),
    "an increment that comes half is taken back whole": ReplayCase(
        "rollback-and-startup-taint",
        {"m6i.large": 100, "m5.large": 10},
        ["m6i.large", "m6i.large", "m6i.large", "m6i.large", "m5.large"],
        behaviours={"m6i.large": {"late_shortage": 2}},
        left_by_recording={"m5.large": 6},
    ),
}


WEIGHTS: Mapping[str, pytest.MarkDecorator] = {
    "weights rule": pytest.mark.long(
        "replayed by `serve` in test_serve.py, and in services/grpc/test_conversations.py"
    ),
    "weights reversed, choices reversed": pytest.mark.long("the same recording with the weights reversed"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=WEIGHTS.get(name, ())) for name, case in CASES.items()]
)
def test_replay(tmp_path: Path, started: Started, case: ReplayCase) -> None:
    groups = recorded_groups(case.recording, case.weights)
    server = started("--config", configuration(tmp_path / "cagrpc.yaml", groups, case.behaviours))
    done = server.replay(recorded(f"{case.recording}.jsonl.gz"), "--output", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["disagreements"]) == (0, [])
    assert [event["choice"] for event in report["events"] if event["kind"] == "decision"] == case.choices
    assert report["left_by_recording"] == case.left_by_recording
    assert report["instances_left"] == {}
    with server.provider() as provider:
        for group in case.weights:
            assert (provider.target(group), provider.instances(group)) == (0, {})
    assert {decision["ranked_by"] for decision in server.get("/decisions")} == {"objective"}


def test_stock_out_takes_the_second_and_leaves_nothing_of_the_first(tmp_path: Path, started: Started) -> None:
    groups = recorded_groups("stockout", {"m7i.large": 100, "m6i.large": 50, "m5.large": 10})
    behaviours = {"m7i.large": {"stock": 0}, "m6i.large": {"failure_probability": 1}}
    server = started("--config", configuration(tmp_path / "cagrpc.yaml", groups, behaviours))
    done = server.replay(recorded("stockout.jsonl.gz"), "--output", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["disagreements"]) == (0, [])
    decisions = [event["choice"] for event in report["events"] if event["kind"] == "decision"]
    assert decisions == ["m7i.large", "m6i.large", "m5.large"]
    outcomes = {(e["node_group"], e["code"]): e["outcome"] for e in report["events"] if e["kind"] == "increase"}
    assert set(outcomes) == {("m7i.large", "RESOURCE_EXHAUSTED"), ("m6i.large", "OK"), ("m5.large", "OK")}
    assert outcomes["m6i.large", "OK"] == "4 failed (stockout)"
    assert outcomes["m5.large", "OK"] == "4 running"
    assert report["left_by_recording"] == {"m5.large": 4}
    phases = {tuple(each["deltas"]): each["phase"] for each in server.get("/increments")}
    assert phases["m6i.large",] == "rolled-back"
    assert phases["m5.large",] == "done"


def test_1165_pods_over_11_groups(tmp_path: Path, started: Started) -> None:
    """How well it ranks in the time there is depends on the machine; that it answers in time, with the highest tier,
    does not."""
    groups = recorded_groups("openb", {**dict.fromkeys(CPU, 50), **dict.fromkeys(GPU, 100)})
    server = started("--config", configuration(tmp_path / "cagrpc.yaml", groups))
    done = server.replay(recorded("openb-1165-pods-best-options.jsonl.gz"), "--output", "json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["disagreements"]) == (0, [])
    for decision in report["events"]:
        assert decision["choice"] in GPU
        assert decision["milliseconds"] < 3000
