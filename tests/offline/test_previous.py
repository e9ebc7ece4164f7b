"""`cagrpc plan --previous`, and preferences that were given up in what it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cagrpc.cli.main import main
from cagrpc.controllers.planning.records import PlanRecord
from cagrpc.errors import InvalidConfiguration
from cagrpc.offline import plan_report, plan_words
from cagrpc.offline.planning import Planned, plan
from cagrpc.offline.previous import read_previous
from cagrpc.tables import console
from solver import Budget, NodeGroup, PodSet, PodSpec, Problem, solve
from solver.model import (
    MayGetStuck,
    Node,
    NodeGroupIncrease,
    PlacedOnNode,
    Plan,
    PlannedNodes,
    PodClass,
    Relaxed,
    Unplaced,
)
from solver.model.plan import TellProgress

SMALL = PodSet("default/small", PodSpec((("cpu", 500),)), 3, priority=7)
GPU = PodSet("default/gpu", PodSpec((("cpu", 1000), ("nvidia.com/gpu", 1))), 2)
GROUP = NodeGroup("g", {"cpu": 2000, "pods": 10}, 1.0)


@pytest.fixture
def planned() -> Planned:
    problem = Problem((SMALL, GPU), (GROUP,))
    budget = Budget(deterministic_seconds=1)
    return Planned(solve(problem, budget), problem, budget, {GROUP.id: GROUP})


@pytest.fixture
def saved(tmp_path: Path, planned: Planned) -> Path:
    return _written(tmp_path, plan_report.as_json(planned))


def _written(folder: Path, document: Any) -> Path:
    path = folder / "previous.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_plan_is_read_back_as_it_was(saved: Path, planned: Planned) -> None:
    found = read_previous(saved, (SMALL, GPU))
    given = planned.plan
    assert found.pod_classes == given.pod_classes
    assert found.increments == given.increments
    assert found.nodes == given.nodes
    assert found.existing == given.existing
    assert found.unplaced == tuple(replace(each, reasons=()) for each in given.unplaced)


def test_classes_are_recognised_by_example_and_requests_or_by_requests_alone(tmp_path: Path) -> None:
    requests = {"cpu": "500m"}
    labelled = PodSet("default/web", PodSpec((("cpu", 500),), node_selector=(("a", "b"),)), 1)
    document = {
        "pod_classes": [
            {"id": 4, "count": 3, "requests": requests, "example": "default/small"},
            {"id": 5, "count": 1, "requests": requests, "example": "default/gone"},
            {"id": 6, "count": 1, "requests": {"cpu": "9"}, "example": "default/small"},
        ]
    }
    path = _written(tmp_path, document)
    first, second, third = read_previous(path, (SMALL, GPU)).pod_classes
    assert first == PodClass(4, SMALL.spec, 3, "default/small", priority=7)
    assert second == PodClass(5, SMALL.spec, 1, "default/gone", priority=7)
    assert third == PodClass(6, PodSpec((("cpu", 9000),)), 1, "default/small")
    first, second, third = read_previous(path, (SMALL, labelled)).pod_classes
    assert (first.spec, second.spec) == (SMALL.spec, PodSpec((("cpu", 500),)))


def test_what_a_plan_lacks_is_empty(tmp_path: Path) -> None:
    found = read_previous(_written(tmp_path, {"increments": [{"node_group": "g", "delta": 2}]}), ())
    assert found.increments == (NodeGroupIncrease("g", 2),)
    assert (found.pod_classes, found.nodes, found.existing, found.unplaced) == ((), (), (), ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("[" * 100_000, "is not JSON: "),
        ("[]", "is not a plan; expected what `cagrpc plan --output json` prints"),
        ('{"status": "optimal"}', "is not a plan"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, text: str, problem: str) -> None:
    path = _written(tmp_path, text)
    with pytest.raises(InvalidConfiguration) as raised:
        read_previous(path, ())
    (found,) = raised.value.problems
    assert found.startswith(f"{path}: {problem}")


def test_every_fault_of_a_plan_at_once(tmp_path: Path) -> None:
    document = {
        "pod_classes": [{"id": 0, "count": -1, "requests": {"cpu": "lots"}}],
        "increments": [{"delta": "two"}],
        "nodes": [{"node_group": "g", "count": 1, "pods": {"7": 1, "x": 1, "9" * 5000: 1}}],
        "existing": [{"node": "n", "pods": {"0": True}}],
        "unplaced": [{"class": 3, "count": 1}],
    }
    path = _written(tmp_path, document)
    with pytest.raises(InvalidConfiguration) as raised:
        read_previous(path, ())
    starts = [
        'pod_classes[0].requests.cpu: "lots" is not',
        "pod_classes[0].example: expected a name, found null",
        "pod_classes[0].count: -1 is not a whole number from 0",
        "increments[0].node_group: expected a name",
        'increments[0].delta: "two" is not a whole number',
        "nodes[0].pods: there is no class 7 in pod_classes",
        'nodes[0].pods: there is no class "x" in pod_classes',
        'nodes[0].pods: there is no class "9',
        "existing[0].pods.0: true is not a whole number",
        "unplaced[0].class: there is no class 3",
    ]
    found = [problem.removeprefix(f"{path}: ") for problem in raised.value.problems]
    assert len(found) == len(starts)
    for start, problem in zip(starts, found, strict=True):
        assert problem.startswith(start)


PROVISIONERS = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: first}
spec:
  template:
    spec:
      requirements:
      - {key: node.kubernetes.io/instance-type, operator: In, values: [m7i.large]}
"""


def _flags(folder: Path) -> list[str]:
    (folder / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,count\nweb,900,1024,0,5\n")
    (folder / "provisioners.yaml").write_text(PROVISIONERS)
    return ["--pods", str(folder / "pods.csv"), "--provisioners", str(folder / "provisioners.yaml")]


def test_the_previous_plan_reaches_the_planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = _flags(tmp_path)
    assert main(["plan", *flags, "--output", "json"]) == 0
    before = capsys.readouterr().out
    path = _written(tmp_path, before)
    seen: list[Plan | None] = []

    def recorded(problem: Problem, budget: Budget, progress: TellProgress | None) -> Plan:
        seen.append(problem.previous)
        return solve(problem, budget, progress)

    monkeypatch.setattr("cagrpc.offline.planning.solve", recorded)
    assert main(["plan", *flags, "--previous", str(path), "--output", "json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["increments"] == json.loads(before)["increments"]
    (previous,) = seen
    assert previous is not None
    assert [(each.example, each.count) for each in previous.pod_classes] == [("default/web", 5)]


def test_a_bad_previous_plan_is_told_with_the_other_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*_flags(tmp_path), "--previous", str(tmp_path / "none.json"), "--budget", "soon"]
    assert main(["plan", *flags]) == 2
    told = capsys.readouterr().err
    assert "none.json: cannot be read: No such file" in told
    assert '--budget: found "soon"' in told


def test_pods_that_may_get_stuck_are_shown(planned: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    assert "may_get_stuck" not in plan_report.as_json(planned)
    index = next(each.index for each in planned.plan.pod_classes if each.example == SMALL.name)
    risk = MayGetStuck(index, 2, "others may come first")
    risky = replace(planned, plan=replace(planned.plan, may_get_stuck=(risk,)))
    found = [{"class": index, "count": 2, "reason": "others may come first"}]
    assert plan_report.as_json(risky)["may_get_stuck"] == found
    plan_words.print_plan(risky, console())
    out = capsys.readouterr().out
    assert "Pods that may get stuck without a node" in out
    (row,) = (line for line in out.splitlines() if "others may come first" in line)
    assert "2 pods like default/small" in row
    (warning,) = PlanRecord("p", 0.0, "pods").of(risky.plan).warnings
    assert warning == "2 pods like default/small may get stuck without a node: others may come first"


def test_pods_that_may_get_stuck_unless_they_are_nominated_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A large pod has the only node with room for it, where the scheduler may put a small one."""
    nodes = tuple(Node(name, {"cpu": cpu, "pods": 10}) for name, cpu in (("large", 2000), ("small", 1000)))
    wanted = [PodSet(f"default/{cpu}m", PodSpec((("cpu", cpu),)), 1) for cpu in (2000, 1000)]
    planned = plan(Problem(tuple(wanted), (), nodes), Budget(deterministic_seconds=1.0))
    assert not planned.plan.may_get_stuck
    large = next(each.index for each in planned.plan.pod_classes if each.example == "default/2000m")
    assert plan_report.as_json(planned)["may_get_stuck_unless_nominated"] == [{"class": large, "count": 1}]
    plan_words.print_plan(planned, console())
    out = " ".join(capsys.readouterr().out.split())
    assert "warning: 1 pod (default/2000m) may get stuck without a node where nothing nominates pods" in out
    roomy = replace(planned.problem, nodes=(replace(nodes[0], free={"cpu": 3000, "pods": 10}), nodes[1]))
    assert "may_get_stuck_unless_nominated" not in plan_report.as_json(plan(roomy, planned.budget))


def test_preferences_that_were_given_up_are_shown(planned: Planned, capsys: pytest.CaptureFixture[str]) -> None:
    assert "relaxed" not in plan_report.as_json(planned)
    index = next(each.index for each in planned.plan.pod_classes if each.example == SMALL.name)
    relaxed = replace(planned, plan=replace(planned.plan, relaxed=(Relaxed(index, 2, ("zone a", "a spread")),)))
    assert plan_report.as_json(relaxed)["relaxed"] == [
        {"class": index, "count": 2, "preferences": ["zone a", "a spread"]}
    ]
    plan_words.print_plan(relaxed, console())
    out = capsys.readouterr().out
    assert "Pods with a place against their preferences" in out
    (row,) = (line for line in out.splitlines() if "zone a" in line)
    assert "default/small" in row
    because = replace(relaxed.plan.relaxed[0], reason="it is too much")
    relaxed = replace(relaxed, plan=replace(relaxed.plan, relaxed=(because,)))
    assert plan_report.as_json(relaxed)["relaxed"][0]["reason"] == "it is too much"
    plan_words.print_plan(relaxed, console())
    assert "because it is too much" in capsys.readouterr().out
    assert "cpu 500m" in row
    assert "a spread" in out


def test_what_stands_already_is_read_back_too(tmp_path: Path) -> None:
    document = {
        "pod_classes": [{"id": 0, "count": 9, "requests": {"cpu": "500m"}, "example": "default/small"}],
        "nodes": [{"node_group": "g", "count": 2, "pods": {"0": 3}}],
        "existing": [{"node": "n", "pods": {"0": 2}}],
        "unplaced": [{"class": 0, "count": 1, "reasons": ["no room"]}],
    }
    found = read_previous(_written(tmp_path, document), (SMALL,))
    assert found.nodes == (PlannedNodes("g", 2, {0: 3}),)
    assert found.existing == (PlacedOnNode("n", {0: 2}),)
    assert found.unplaced == (Unplaced(0, 1, ()),)
