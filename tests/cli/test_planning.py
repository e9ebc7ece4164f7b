"""`cagrpc plan` and `explain`, offline: the JSON is an interface, errors come all at once, tables say the same."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cagrpc.api.core import feature_gates
from cagrpc.cli.main import main
from cagrpc.durations import seconds_of_flag
from cagrpc.errors import InvalidInput
from solver import Budget, Plan, PlanRejectedError, Problem, solve
from tests.support.serving import Serving, beginning, cagrpc, command
from tests.support.waiting import AMPLE_SECONDS

PROVISIONERS = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: first}
spec:
  weight: 100
  limits: {nodes: 2}
  template:
    spec:
      requirements:
      - {key: node.kubernetes.io/instance-type, operator: In, values: [m7i.large]}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: second}
spec:
  weight: 10
  limits: {nodes: 2}
  template:
    spec:
      requirements:
      - {key: node.kubernetes.io/instance-type, operator: In, values: [m7i.xlarge]}
"""
PODS = "name,cpu_milli,memory_mib,num_gpu,count\nweb,900,1024,0,5\nhuge,90000,1024,0,2\n"
NODES = """
apiVersion: v1
kind: Node
metadata: {name: old, labels: {kubernetes.io/hostname: old}}
status:
  allocatable: {cpu: 1, memory: 4Gi, pods: "10"}
"""


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    """Flags of a plan that uses both tiers, an existing node, and leaves something unplaced."""
    for name, text in (("pods.csv", PODS), ("provisioners.yaml", PROVISIONERS), ("nodes.yaml", NODES)):
        (tmp_path / name).write_text(text)
    names = (("--pods", "pods.csv"), ("--provisioners", "provisioners.yaml"), ("--nodes", "nodes.yaml"))
    return [str(word) for flag, name in names for word in (flag, tmp_path / name)]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_json_of_a_plan(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    plan = run_json(capsys, "plan", *inputs)
    assert list(plan) == [
        "status", "cost_per_hour", "lower_bound", "gap", "unserved_unproven", "elapsed_seconds", "price_of_priority",
        "tiers", "increments", "pod_classes", "nodes", "existing", "unplaced",
    ]  # fmt: skip
    assert plan["status"] == "optimal"
    # one pod fits on the node that stands, two on each m7i.large; two of those are not enough for five with the limit
    assert plan["increments"] == [
        {
            "node_group": "first/m7i.large/zone-a/on-demand",
            "provisioner": "first",
            "instance_type": "m7i.large",
            "zone": "zone-a",
            "weight": 100,
            "delta": 2,
        }
    ]
    web, huge = sorted(plan["pod_classes"], key=lambda each: -each["count"])
    assert web == {"id": web["id"], "count": 5, "requests": {"cpu": "900m", "memory": "1Gi"}, "example": web["example"]}
    assert huge["requests"]["cpu"] == "90"
    assert plan["nodes"] == [
        {"node_group": "first/m7i.large/zone-a/on-demand", "count": 2, "pods": {str(web["id"]): 2}}
    ]
    assert plan["existing"] == [{"node": "old", "pods": {str(web["id"]): 1}}]
    (unplaced,) = plan["unplaced"]
    assert (unplaced["class"], unplaced["count"]) == (huge["id"], 2)
    assert unplaced["reasons"]
    assert plan["cost_per_hour"] == pytest.approx(2 * 0.1008)
    assert plan["lower_bound"] == pytest.approx(plan["cost_per_hour"])
    assert plan["gap"] == pytest.approx(0)
    assert {tier["weight"]: tier["cost_per_hour"] for tier in plan["tiers"]} == pytest.approx({100: 0.2016, 10: 0.0})
    assert set(plan["tiers"][0]) == {"weight", "cost_per_hour", "lower_bound"}


def test_the_tables_of_a_plan(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *inputs]) == 0
    out = capsys.readouterr().out
    assert "first/m7i.large/zone-a/on-demand" in out
    assert "5 of 7 pods placed (1 on existing nodes), 2 new nodes" in out
    assert "optimal: new nodes cost $0.20/h; no plan that serves as much costs less" in out
    assert "Pods without a place" in out


def test_a_lower_tier_only_as_far_as_the_higher_cannot_serve(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pods.csv").write_text(PODS.replace("web,900,1024,0,5", "web,900,1024,0,8"))
    plan = run_json(capsys, "plan", *inputs)
    assert {each["instance_type"]: each["delta"] for each in plan["increments"]} == {"m7i.large": 2, "m7i.xlarge": 1}


JOBS = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 15
  template:
    metadata:
      labels: {example.com/gang: train}
      annotations: {cagrpc.io/gang-min-count: "MINIMUM"}
    spec:
      containers: [{name: main, resources: {requests: {cpu: 900m, memory: 1Gi}}}]
"""


@pytest.mark.parametrize(
    ("minimum", "flag", "unplaced"),
    [
        pytest.param(14, [], 2, id="pods of no gang are served one by one"),
        pytest.param(10, ["--gang-label", "example.com/gang"], 2, id="the minimum, and others as room allows"),
        pytest.param(14, ["--gang-label", "example.com/gang"], 14, id="too little room for the minimum"),
        pytest.param(16, ["--gang-label", "example.com/gang"], None, id="an incomplete gang is not planned"),
    ],
)
def test_a_gang_with_a_minimum(
    inputs: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    minimum: int,
    flag: list[str],
    unplaced: int | None,
) -> None:
    """There is room for 13 of 15 pods."""
    (tmp_path / "pods.yaml").write_text(JOBS.replace("MINIMUM", str(minimum)))
    answer = run_json(capsys, "plan", "--pods", str(tmp_path / "pods.yaml"), *inputs[2:], *flag)
    pods = sum(each["count"] for each in answer["pod_classes"])
    assert pods == (0 if unplaced is None else 15)
    assert sum(each["count"] for each in answer["unplaced"]) == (unplaced or 0)


def test_explain_says_where_and_why_not(inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    explained = run_json(capsys, "explain", *inputs)
    web, huge = sorted(explained["classes"], key=lambda each: -each["count"])
    assert web["new_nodes"] == {"first/m7i.large/zone-a/on-demand": 4}
    assert web["existing"] == {"old": 1}
    assert (web["unplaced"], huge["unplaced"]) == (0, 2)
    assert huge["reasons"]
    assert main(["explain", *inputs, "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "4 on new nodes of" in out
    assert "2 nowhere" in out


def test_explain_needs_something_to_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 2
    assert "give --last, or provisioningrequest NAME, or --pods and --provisioners" in capsys.readouterr().err


def test_every_error_of_every_input_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu\na,many,1,0\nb,1,-1,0\n")
    (tmp_path / "provisioners.yaml").write_text(PROVISIONERS.replace("100", "101"))
    files = ("--pods", tmp_path / "pods.csv", "--provisioners", tmp_path / "provisioners.yaml")
    assert main(["plan", *map(str, files), "--nodes", str(tmp_path / "none.yaml"), "--budget", "soon"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    problems = captured.err.splitlines()
    assert all(problem.startswith("cagrpc: ") for problem in problems)
    for place in ("--budget", "pods.csv: line 2", "pods.csv: line 3", "none.yaml", "spec.weight"):
        assert any(place in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("flag", "content"),
    [
        ("--pods", "{"),
        ("--catalogue", "instance_type\n"),
        ("--catalog", "instance_type\n"),
        ("--provisioners", "kind: Pod\n"),
        ("--nodes", "- 1\n"),
    ],
)
def test_a_bad_file_is_named(
    flag: str, content: str, inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").write_text(content)
    assert main(["plan", *inputs, flag, str(tmp_path / "bad")]) == 2
    assert f"{tmp_path}/bad" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("1s", 1), ("1.5s", 1.5), ("2m", 120), ("1h", 3600)])
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of_flag(text, "--budget") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "s", "0s", "-1s", "1 s", "1d", "infs", "1e3s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected a duration above 0 such as 500ms"):
        seconds_of_flag(text, "--budget")


def test_warnings_do_not_reach_the_answer(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n")
    assert main(["plan", *inputs, "--pods", str(tmp_path / "more.yaml"), "--output", "json"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert "warning: " in captured.err
    assert "ConfigMap" in captured.err


@pytest.mark.parametrize(("begun", "spent"), [(0.5, 0.05), (7.0, 0.2)])
def test_all_planning_and_starting_is_within_the_budget(
    inputs: list[str], monkeypatch: pytest.MonkeyPatch, begun: float, spent: float
) -> None:
    """The limits are used up, so what they cost is planned, too."""
    budgets: list[float] = []

    def planned(problem: Problem, budget: Budget, *_: object) -> Plan:
        budgets.append(budget.seconds)
        return solve(problem, budget)

    monkeypatch.setattr("cagrpc.offline.planning.solve", planned)
    monkeypatch.setattr("solver.explanation.choices.solve", planned)
    monkeypatch.setattr("time.process_time", lambda: begun)
    assert main(["plan", *inputs, "--budget", "10s", "--output", "json"]) == 0
    assert len(budgets) == 2
    assert sum(budgets) == pytest.approx(10 * (1 - spent))
    budgets.clear()
    unlimited = PROVISIONERS.replace("limits: {nodes: 2}", "limits: {}")
    Path(inputs[3]).write_text(unlimited)
    assert main(["plan", *inputs, "--budget", "10s", "--output", "json"]) == 0
    assert budgets == [pytest.approx(10 * (1 - spent))]


def test_as_a_process_with_the_whole_catalogue(inputs: list[str]) -> None:
    done = cagrpc("plan", *inputs, "--budget", "5m", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "optimal"


def test_a_reader_who_has_had_enough_is_no_error(inputs: list[str]) -> None:
    with subprocess.Popen(command("plan", *inputs), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(AMPLE_SECONDS) == 0
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    "arguments", [["plan"], ["plan", "--output", "json"], ["explain", "--output", "json"], ["config", "schema"]]
)
def test_a_full_disk_is_told_in_one_line(arguments: list[str], inputs: list[str]) -> None:
    name, *more = arguments
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command(name, *([] if name == "config" else inputs), *more),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "cagrpc: the output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("name", ["plan", "explain"])
def test_a_rejected_plan_is_one_message_that_asks_for_a_report(
    name: str, inputs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reject(*_: object) -> Plan:
        raise PlanRejectedError(["node 1: too much cpu", "limit first: 3 nodes"])

    monkeypatch.setattr("cagrpc.offline.planning.solve", reject)
    assert main([name, *inputs]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    message = captured.err.splitlines()[-1]
    assert message.startswith(
        "cagrpc: the planner produced a plan that its checker rejected: node 1: too much cpu; limit first: 3 nodes; "
    )
    assert "please report it" in message


def test_pods_among_the_nodes_are_not_planned(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pending = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n"
    (tmp_path / "nodes.yaml").write_text(f"{NODES}---\n{pending}")
    assert main(["plan", *inputs, "--output", "json"]) == 0
    captured = capsys.readouterr()
    assert sum(each["count"] for each in json.loads(captured.out)["pod_classes"]) == 7
    assert "in files of --nodes were ignored: 1 Pod" in captured.err
    (tmp_path / "nodes.yaml").write_text(pending)
    assert main(["plan", *inputs]) == 2
    assert "nodes.yaml: has no Node" in capsys.readouterr().err


def test_explain_last_of_a_running_server(demonstration: Serving, tmp_path: Path) -> None:
    done = demonstration.replay(beginning("three-deployments", 150, tmp_path / "one.jsonl.gz"))
    assert done.returncode == 0, done.stdout
    assert "every request was answered as recorded; instances left: none" in done.stdout
    assert "m7i.large: 14 nodes, 40 pods" in done.stdout
    said = cagrpc("explain", "--last", "--http", demonstration.endpoints["http"])
    assert said.returncode == 0
    # dearer than m7i.large for its own pods, but both of one tier, and together with the rest the cheapest
    assert "chosen: m7i.4xlarge" in said.stdout
    assert "m7g.xlarge" in said.stdout
    machine = cagrpc("explain", "--last", "--http", demonstration.endpoints["http"], "--output", "json")
    assert json.loads(machine.stdout) == demonstration.get("/decisions")[-1]


UNREACHABLE: dict[str, tuple[str, int, str]] = {
    "nobody listens": ("127.0.0.1:9", 1, "is `cagrpc serve` running?"),
    "no address": ("nowhere", 2, "expected host:port"),
}


@pytest.mark.parametrize(("address", "code", "message"), UNREACHABLE.values(), ids=UNREACHABLE)
def test_explain_last_without_a_server(
    address: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--last", "--http", address]) == code
    assert message in capsys.readouterr().err


def test_explain_last_before_anything_was_decided(tmp_path: Path, started: Callable[..., Serving]) -> None:
    server = started()
    done = cagrpc("explain", "--last", "--http", server.endpoints["http"])
    assert (done.returncode, done.stdout) == (1, "")
    assert "has decided nothing yet" in done.stderr


@pytest.mark.parametrize("command", ["plan", "explain"])
@pytest.mark.parametrize(("text", "found"), [("", "nothing"), (PROVISIONERS, "2 NodePool"), (NODES, "1 Node")])
def test_files_without_a_pod_are_an_error_that_says_what_they_hold(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, text: str, found: str
) -> None:
    (tmp_path / "no-pods.yaml").write_text(text)
    inputs[1] = str(tmp_path / "no-pods.yaml")
    assert main([command, *inputs]) == 2
    assert f"no-pods.yaml: found {found}; expected Pods, Deployments, Jobs or the like" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "spec", "found"),
    [
        ("Deployment", "replicas: 0, template: {spec: {containers: [{name: c}]}}", "1 Deployment, but no pending pod"),
        ("Pod", "nodeName: n, containers: [{name: c}]", "only Pods that have a node already"),
    ],
)
def test_workloads_without_a_pending_pod_are_one_as_well(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, spec: str, found: str
) -> None:
    version = "v1" if kind == "Pod" else "apps/v1"
    text = f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: x}}, spec: {{{spec}}}}}"
    (tmp_path / "none.yaml").write_text(text)
    inputs[1] = str(tmp_path / "none.yaml")
    assert main(["plan", *inputs]) == 2
    assert f"none.yaml: found {found}" in capsys.readouterr().err


def test_a_stateful_set_that_waits_for_its_pod_to_be_ready_is_one_too(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = "ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: x, uid: u, controller: true}]"
    (tmp_path / "one.yaml").write_text(f"""\
{{apiVersion: v1, kind: Pod, metadata: {{name: x-0, {owner}}}, spec: {{nodeName: n, containers: [{{name: c}}]}}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: x, uid: u}}
spec: {{replicas: 2, template: {{spec: {{containers: [{{name: c}}]}}}}}}
status: {{replicas: 1}}
""")
    inputs[1] = str(tmp_path / "one.yaml")
    assert main(["plan", *inputs]) == 2
    assert "or a StatefulSet that creates one pod at a time and waits until the last one is Ready" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(("count", "them"), [(1, "the pod"), (2, "any of the 2 pods")])
def test_a_plan_that_places_nothing_says_no_bound_of_zero(
    inputs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, them: str
) -> None:
    (tmp_path / "pods.csv").write_text(f"name,cpu_milli,memory_mib,num_gpu,count\nhuge,90000,1024,0,{count}\n")
    assert main(["plan", *inputs]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.endswith(f"infeasible: it is proven that no plan places {them}")
    assert f"Pods without a place {count} pod{'s' * (count > 1)} like default/huge (cpu 90, memory 1Gi): " in out
    assert "$0.00" not in out


@pytest.mark.parametrize(("gates", "left"), [([], 1), (["--feature-gate", "TaintTolerationComparisonOperators"], 0)])
def test_tolerations_compare_where_the_cluster_has_the_feature_gate(
    gates: list[str], left: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: feature_gates.enable(frozenset()))
    taint = {"key": "sla", "value": "950", "effect": "NoSchedule"}
    toleration = {"key": "sla", "operator": "Gt", "value": "900"}
    group = {
        "id": "g", "allocatable": {"cpu": "4", "memory": "8Gi", "pods": 10}, "price_usd_per_hour": 1.0,
        "taints": [taint],
    }  # fmt: skip
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "x"}], "tolerations": [toleration]},
    }  # fmt: skip
    for name, content in (("pods.yaml", pod), ("provisioners.yaml", {"name": "p", "node_groups": [group]})):
        (tmp_path / name).write_text(json.dumps(content))
    files = ["--pods", str(tmp_path / "pods.yaml"), "--provisioners", str(tmp_path / "provisioners.yaml")]
    assert len(run_json(capsys, "plan", *files, *gates)["unplaced"]) == left


def test_a_feature_gate_that_means_nothing_here_is_refused(
    inputs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *inputs, "--feature-gate", "Other"]) == 2
    assert 'found "Other", expected TaintTolerationComparisonOperators' in capsys.readouterr().err
