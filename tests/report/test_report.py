from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.constraints import Surroundings
from cagrpc.api.core.pods import pod_spec
from cagrpc.cli.main import main
from cagrpc.cluster.bound_pods import StandingPod, reduced_spec
from cagrpc.cluster.documents import DocumentReader
from cagrpc.errors import InvalidInput
from cagrpc.offline.inputs import Inputs, read_files, read_problem
from cagrpc.offline.plan_report import as_json as plan_as_json
from cagrpc.offline.planning import Planned
from cagrpc.report.anonymise import anonymised
from cagrpc.report.as_json import as_json
from cagrpc.report.make import make_report
from cagrpc.report.model import Cause, Report
from cagrpc.report.page import as_html, falls
from solver import Budget, Plan, Problem, Status, solve
from tests.report.clusters import Document, apart, budget, daemons, half_empty, node, pod, written
from tests.support.examples import examples

DATA = Path(__file__).parents[1] / "data"
EXACT = Budget(60, deterministic_seconds=2.0)
XLARGE, LARGE = 0.2016, 1.0584


def report_of(path: Path, items: list[Document], **more: tuple[Path, ...] | Path) -> Report:
    return make_report(Inputs((written(path / "cluster.json", items),), **more), EXACT)  # type: ignore[arg-type]


def adds_up(report: Report) -> bool:
    assert report.least_usd_per_hour is not None
    top = report.planned.usd_per_hour if report.present_usd_per_hour is None else report.present_usd_per_hour
    return math.isclose(top - sum(each.usd_per_hour for each in report.steps), report.least_usd_per_hour, abs_tol=1e-9)


def part(report: Report, cause: Cause) -> float:
    return next(each.usd_per_hour for each in report.steps if each.cause is cause)


def test_steps_lead_from_what_stands_to_the_least(tmp_path: Path) -> None:
    report = report_of(tmp_path, half_empty())
    assert report.present_usd_per_hour == pytest.approx(6 * XLARGE + LARGE)
    assert part(report, Cause.EMPTY) == pytest.approx(XLARGE)
    # 7 cores in pods of 1, 3 of them on nodes of their own: three small nodes
    assert report.planned.usd_per_hour == pytest.approx(3 * XLARGE)
    assert part(report, Cause.STRANDED) == pytest.approx(2 * XLARGE + LARGE)
    # and three of 3.82 cores hold 3 pods each; without the rule still three
    assert part(report, Cause.RULES) == pytest.approx(0.0)
    assert report.least_usd_per_hour == pytest.approx(3 * XLARGE)
    assert adds_up(report)


def test_a_rule_between_pods_costs_the_nodes_that_it_takes(tmp_path: Path) -> None:
    nodes = [node(f"n{index}") for index in range(3)]
    pods = [pod(f"p{index}", f"n{index}", affinity=apart("web")) for index in range(3)]
    report = report_of(tmp_path, [*nodes, *pods])
    assert part(report, Cause.RULES) == pytest.approx(2 * XLARGE)
    (change,) = report.changes
    assert change.cause is Cause.RULES
    assert [(str(each), each.pods) for each in change.workloads] == [("shop/web", 3)]
    assert adds_up(report)


def test_pods_that_come_with_nodes_do_not_hold_them(tmp_path: Path) -> None:
    nodes = [node("a"), node("b")]
    mirror = pod("static", "b", owner="Node", annotations={"kubernetes.io/config.mirror": "x"})
    report = report_of(tmp_path, [*nodes, *daemons(nodes), mirror, pod("web", "a")])
    assert report.pods == 1
    assert part(report, Cause.EMPTY) == pytest.approx(XLARGE)


def test_nodes_that_cannot_be_compared_stay_on_both_sides(tmp_path: Path) -> None:
    nodes = [
        node("a"),
        node("odd", "made-here"),
        node("master", labels={"node-role.kubernetes.io/control-plane": ""}),
        node("theirs"),
        node("tied"),
    ]
    tied: Document = {"nodeSelector": {"kubernetes.io/hostname": "tied"}}
    pods = [pod("web", "a"), pod("job", "theirs", schedulerName="other"), pod("disk", "tied", **tied)]
    report = report_of(tmp_path, [*nodes, *pods, pod("odd", "odd")])
    assert {each.reason.value: each.nodes for each in report.kept} == {
        "no price": 1,
        "control plane": 1,
        "pods of another scheduler": 1,
        "pods for which no place was found": 1,
    }
    assert report.present_usd_per_hour == pytest.approx(XLARGE)
    assert [(str(each.instance_type), each.nodes) for each in report.unpriced] == [("made-here", 1)]
    (waiting,) = report.without_place
    assert (str(waiting.pods), waiting.pods.pods, waiting.causes) == ("shop/web", 1, ("node selector",))
    assert str(waiting.reasons[0]).startswith("node selector kubernetes.io/hostname=tied not met (")
    assert waiting.ways
    page, hidden = as_html(report), anonymised(report)
    assert str(waiting.ways[0]) in page
    for shown in (as_html(hidden), json.dumps(as_json(hidden))):
        assert "node selector" in shown
        assert "tied" not in shown


def test_a_table_of_prices_comes_first(tmp_path: Path) -> None:
    table = tmp_path / "prices.csv"
    table.write_text("instance_type,usd_per_hour,zone\nmade-here,2,zone-9\nmade-here,1,\n")
    items = [node("a", "made-here", "zone-9"), node("b", "made-here"), pod("web", "a")]
    report = report_of(tmp_path, items, prices=table)
    assert report.present_usd_per_hour == 3.0
    assert report.planned.usd_per_hour == 1.0
    with pytest.raises(InvalidInput, match="no node has a price: made-here"):
        report_of(tmp_path, items)


def test_weights_and_limits_are_steps(tmp_path: Path) -> None:
    pools = tmp_path / "pools.yaml"
    pools.write_text(
        json.dumps({"name": "dear", "weight": 50, "requirements": [_of("r7i.4xlarge")], "limits": {"nodes": 5}})
        + "\n---\n"
        + json.dumps({"name": "cheap", "weight": 10, "requirements": [_of("m7i.xlarge")], "limits": {"nodes": 0}})
    )
    report = report_of(tmp_path, [node("a"), pod("web", "a")], provisioners=(pools,))
    assert report.planned.usd_per_hour == pytest.approx(LARGE)
    assert part(report, Cause.SHAPES) == pytest.approx(XLARGE - LARGE)
    assert part(report, Cause.WEIGHTS) == pytest.approx(0.0)
    assert part(report, Cause.LIMITS) == pytest.approx(LARGE - XLARGE)
    assert adds_up(report)
    unpriced = replace(report, present_usd_per_hour=None)
    for steps in (report.steps[-1:], ()):
        assert max(each.end for each in falls(replace(unpriced, steps=steps))) == pytest.approx(100)


def _of(instance_type: str) -> Document:
    return {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance_type]}


def openb_groups(tmp_path: Path) -> Path:
    path = tmp_path / "openb.yaml"
    groups = DATA / "recordings" / "openb.groups.json"
    path.write_text(json.dumps({"name": "openb", "node_groups": [{"file": str(groups)}]}))
    return path


def test_the_planners_own_json_confirms_the_openb_cluster(tmp_path: Path) -> None:
    pods, pools = DATA / "openb-1000.csv", openb_groups(tmp_path)
    found = as_json(make_report(Inputs((pods,), (pools,)), EXACT))
    problem = read_problem(Inputs((pods,), (pools,))).problem
    plan = solve(problem, EXACT.part(0.3))
    groups = {group.id: group for group in problem.node_groups}
    theirs = plan_as_json(Planned(plan, problem, EXACT, groups))
    planned = found["planned"]
    assert found["pods"] == 1000
    assert planned["usd_per_hour"] == pytest.approx(theirs["cost_per_hour"])
    assert planned["lower_bound_usd_per_hour"] == pytest.approx(theirs["lower_bound"])
    assert planned["gap"] == pytest.approx(theirs["gap"])
    of_groups = {each["node_group"]: each["delta"] for each in theirs["increments"]}
    assert {each["group"]: each["nodes"] for each in planned["increments"]} == of_groups
    assert planned["usd_per_hour"] == pytest.approx(sum(n * groups[g].price_usd_per_hour for g, n in of_groups.items()))
    assert found["after"]["usd_per_hour"] == pytest.approx(planned["usd_per_hour"])
    assert found["least_usd_per_hour"] <= planned["usd_per_hour"]


def test_what_costs_nothing_because_too_little_time_was_left_is_no_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serves_nothing(problem: Problem, _: Budget) -> Plan:
        plan = solve(replace(problem, node_groups=()), EXACT)
        return replace(plan, certificate=replace(plan.certificate, status=Status.FEASIBLE, unserved_unproven=2))

    monkeypatch.setattr("cagrpc.report.ladder.solve", serves_nothing)
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,count\nweb,500,500,0,2\n")
    report = make_report(Inputs((tmp_path / "pods.csv",), (openb_groups(tmp_path),)), EXACT)
    assert (report.planned.unplaced, report.planned.usd_per_hour) == (2, 0.0)
    assert report.planned.lower_bound_usd_per_hour is report.least_usd_per_hour is None
    assert Cause.UNPROVEN not in [each.cause for each in report.steps]
    assert "<h1>0 of 2 pods could run" in as_html(report)
    assert "<dd>nothing yet" in as_html(report)


def test_a_recording_shows_what_was_ordered(tmp_path: Path) -> None:
    report = make_report(Inputs(recording="three-deployments"), EXACT)
    assert (report.pods, report.nodes, report.before) == (54, 24, None)
    assert report.present_usd_per_hour is not None
    assert report.planned.usd_per_hour < report.present_usd_per_hour
    recorded = str(DATA / "recordings" / "openb-1165-pods-best-options.jsonl.gz")
    openb = make_report(Inputs(recording=recorded, provisioners=(openb_groups(tmp_path),)), EXACT)
    assert openb.pods == 605
    assert openb.present_usd_per_hour is None
    assert adds_up(report)
    assert adds_up(openb)


def test_the_command_writes_a_page_that_needs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, page = written(tmp_path / "cluster.json", half_empty()), tmp_path / "report.html"
    assert main(["report", "--nodes", str(cluster), "--budget", "5m", "--to", str(page)]) == 0
    said = capsys.readouterr().out
    first, second, *_ = said.splitlines()
    assert "/month can be saved in " in first
    assert second.startswith("7 nodes cost $2.27/h ($1,656/month). ")
    assert said.index("The steps:") < said.index(f"{page} has the whole report")
    text = page.read_text()
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert "hunter2" not in text
    assert main(["report", "--nodes", str(cluster), "--budget", "5m", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["pods"] == 7
    assert main(["report"]) == 2
    assert "give one of" in capsys.readouterr().err


def test_large_lists_are_read_object_by_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [*half_empty(), pod("wörter", "n1")]
    path = written(tmp_path / "cluster.json", items)
    whole, pieces = DocumentReader(), DocumentReader()
    read_files([path], [], whole)
    monkeypatch.setattr("cagrpc.api.files.documents._LARGE_BYTES", 0)
    monkeypatch.setattr("cagrpc.api.files.lists._CHUNK_BYTES", 7)
    read_files([path], [], pieces)
    assert pieces.documents == whole.documents
    assert pods_of(pieces) == pods_of(whole)
    assert not pieces.problems
    path.write_text(path.read_text()[:-20])
    read_files([path], [], pieces)
    assert "not a JSON list" in pieces.problems[0]


def test_duplicate_keys_in_large_lists_are_told_with_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reader = tmp_path / "cluster.json", DocumentReader()
    monkeypatch.setattr("cagrpc.api.files.documents._LARGE_BYTES", 0)
    monkeypatch.setattr("cagrpc.api.files.lists._CHUNK_BYTES", 7)
    twice = '{"kind": "Pod", "spec": {"nodeName": "n", "nodeName": "m"}}'
    path.write_text(f'{{"kind": "List", "items": [{{"kind": "Node"}}, {twice}], "kind": "List"}}')
    read_files([path], [], reader)
    assert reader.problems == [
        f'{path}[0].items[1]: spec: duplicate key "nodeName"',
        f'{path}: is not a JSON list of Kubernetes objects: duplicate key "kind"',
    ]


def pods_of(read: DocumentReader) -> list[list[StandingPod]]:
    return [each.pods for each in read.bound.alike]


def test_a_reduced_pod_is_planned_as_the_whole_one() -> None:
    whole = pod("p", "n", affinity=apart("web"), hostNetwork=True, nodeSelector={"a": "b"})["spec"]
    whole["containers"][0]["ports"] = [{"containerPort": 80}]
    whole["initContainers"] = [{"name": "i", "resources": {"requests": {"cpu": "7"}}, "restartPolicy": "Always"}]
    assert pod_spec(reduced_spec(whole), "", [], Surroundings()) == pod_spec(whole, "", [], Surroundings())


_WORDS = st.text(alphabet="qxzjkvw", min_size=8, max_size=12)


@examples(16)
@given(words=st.lists(_WORDS, min_size=13, max_size=13, unique=True))
def test_nothing_of_the_cluster_is_in_an_anonymised_report(
    words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("anonymised")
    first, second, kind, zone, pool, label, value, app, namespace, name, resource, taint, kept_by = words
    more: Document = {"labels": {label: value}, "taints": [{"key": taint, "value": value, "effect": "NoSchedule"}]}
    nodes = [node(first, kind, zone, pool, **more), node(second, "m7i.xlarge", zone, pool)]
    tolerations = [{"key": taint, "operator": "Exists"}]
    tied: Document = {"nodeSelector": {label: value}, "tolerations": tolerations, "namespace": namespace, "app": app}
    pods = [pod(f"{name}-{n}", first, affinity=apart(app), **tied) for n in range(1)]
    pods += [pod(f"{name}-{n}", second, app=app, namespace=namespace, schedulerName=resource) for n in range(2, 3)]
    unplaced = pod(name, "", namespace=namespace, app=app)
    keeps = budget(kept_by, app, 0, namespace)
    table = path / "prices.csv"
    table.write_text(f"instance_type,usd_per_hour\n{kind},1\n")
    report = anonymised(report_of(path, [*nodes, *pods, unplaced, keeps], prices=table))
    shown = as_html(report) + json.dumps(as_json(report))
    assert [word for word in words if word in shown] == []
    assert "type-1" in shown
    assert "budget-1" in shown
    assert adds_up(report)


def _disk(name: str, zone: str) -> list[Document]:
    where = [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": where}]}}
    claim = {"namespace": "shop", "name": name}
    bound = {**claim, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    spec = {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    capacity = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast"}
    return [
        {"kind": "PersistentVolumeClaim", "metadata": bound, "spec": {**spec, "volumeName": name}, "status": _BOUND},
        {
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **capacity,
                "nodeAffinity": affinity,
                "claimRef": claim,
                "csi": {"driver": "d", "volumeHandle": name},
            },
            "status": _BOUND,
        },
    ]


_BOUND = {"phase": "Bound"}


def test_volumes_cost_the_nodes_of_their_zones(tmp_path: Path) -> None:
    zones = ("zone-1", "zone-2")
    fast = {"kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "d", "volumeBindingMode": "Immediate"}
    items = [fast, *(node(zone, zone=zone) for zone in zones)]
    for zone in zones:
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": f"data-{zone}"}}]
        items += [*_disk(f"data-{zone}", zone), pod(f"db-{zone}", zone, app="db", volumes=volumes)]
    report = report_of(tmp_path, items)
    assert report.planned.usd_per_hour == pytest.approx(2 * XLARGE)
    assert part(report, Cause.VOLUMES) == pytest.approx(XLARGE)
    assert not report.kept
    assert adds_up(report)
