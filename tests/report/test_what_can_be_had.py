"""What the report leads with: what can be had, what is in the way of more, and what to know before it is believed; and
that its numbers are those of `cagrpc plan`, of consolidation and of episodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cagrpc.controllers.episodes.ledger import ClosedEpisode
from cagrpc.controllers.episodes.model import Ended, Episode, Outcome, RecordedState, Wave
from cagrpc.controllers.episodes.planning import finished
from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from cagrpc.offline.inputs import Inputs, read_problem
from cagrpc.report.as_json import as_json
from cagrpc.report.make import make_report
from cagrpc.report.model import ArchitectureChange, Cause, Contribution, Report
from cagrpc.report.page import as_html
from cagrpc.report.sentences import headline, summary, warnings_of
from solver import Budget, Problem, solve
from solver.model import NODES
from solver.model.money import hourly, monthly
from tests.report.clusters import Document, half_empty, node, pod, written
from tests.report.questions import asked

BUDGET = Budget(60, deterministic_seconds=0.3)
XLARGE, LARGE = 0.2016, 1.0584


def report_of(path: Path, items: list[Document], **more: tuple[Path, ...] | Path) -> Report:
    return make_report(Inputs((written(path / "cluster.json", items),), **more), BUDGET)  # type: ignore[arg-type]


def pools_in(path: Path, *types: str, labels: Document | None = None, name: str = "general") -> tuple[Path, ...]:
    of_types = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(types)}
    found = path / "pools.json"
    found.write_text(json.dumps([{"name": name, "requirements": [of_types], "labels": labels or {}}]))
    return (found,)


def step(report: Report, cause: Cause) -> Contribution:
    return next(each for each in report.steps if each.cause is cause)


def test_the_saving_of_the_steps_comes_first_then_the_proven_least_and_only_then_what_stays_out_of_reach(
    tmp_path: Path,
) -> None:
    report = report_of(tmp_path, half_empty())
    found = report.consolidation
    assert found is not None
    assert headline(report).startswith(f"{monthly(found.saving_usd_per_hour)} can be saved in ")
    page = as_html(report)
    order = [
        f"<h1>{headline(report)}</h1>",
        summary(report),
        hourly(found.least_usd_per_hour),
        'id="steps"',
        'id="anew"',
    ]
    places = [page.index(each) for each in order]
    assert places == sorted(places)
    assert summary(report).index(hourly(found.saving_usd_per_hour)) < summary(report).index("It is proven")


def test_nothing_is_said_of_causes_that_are_not_there(tmp_path: Path) -> None:
    page = as_html(report_of(tmp_path, half_empty()))
    assert Cause.EMPTY.value in page
    for cause in (Cause.VOLUMES, Cause.WEIGHTS, Cause.LIMITS, Cause.SELECTORS):
        assert cause.value not in page
    assert "GPU" not in page
    assert "Warning" not in page


def test_a_pod_that_nothing_new_would_let_in_hides_no_room_of_others(tmp_path: Path) -> None:
    """Its node has lost the label that it selects, which new nodes have."""
    legacy = pod("legacy-0", "n1", app="legacy", nodeSelector={"disk": "ssd"})
    pools = pools_in(tmp_path, "m7i.xlarge", labels={"disk": "ssd"})
    report = report_of(tmp_path, [*half_empty(), legacy], provisioners=pools)
    stranded = step(report, Cause.STRANDED)
    # of five small nodes and a large one stay that one and three, as three pods keep apart
    assert stranded.usd_per_hour == pytest.approx(XLARGE + LARGE)
    assert stranded.left_out is not None
    assert (stranded.left_out.pods, stranded.left_out.nodes) == (1, 1)
    (warning,) = warnings_of(report)
    assert warning.startswith('in the part "stranded room", 1 node stays as it is, as 1 pod there has no place')
    assert "such as shop/legacy: " in warning
    assert "1 node stays as it is" in as_html(report)
    assert as_json(report)["steps"][1]["left_out"]["pods"] == 1


def test_gpus_and_their_use_are_told(tmp_path: Path) -> None:
    nodes = [node("a"), node("b")]
    for each in nodes:
        each["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    training = pod("training", "a")
    training["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "3"
    report = report_of(tmp_path, [*nodes, training])
    assert report.before is not None
    assert (report.before.gpus_requested, report.before.gpus) == (3, 8)
    assert (report.after.gpus_requested, report.after.gpus) == (3, 4)
    assert "3 of 8" in as_html(report)


def test_pods_that_would_change_their_architecture_unasked_are_counted(tmp_path: Path) -> None:
    pods = [pod("web", "a"), pod("api", "a", app="api", nodeSelector={"kubernetes.io/os": "linux"})]
    asks = [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": asks}]}}
    pods.append(pod("both", "a", app="both", affinity={"nodeAffinity": required}))
    report = report_of(tmp_path, [node("a"), *pods], provisioners=pools_in(tmp_path, "m7g.xlarge"))
    assert report.architectures == (ArchitectureChange("arm64", 2),)
    assert report.consolidation is not None
    assert report.consolidation.architectures == (ArchitectureChange("arm64", 2),)
    (warning,) = warnings_of(report)
    assert warning.startswith("in the steps, 2 pods that run on another architecture now would run on arm64")
    same = report_of(tmp_path, [node("a"), *pods], provisioners=pools_in(tmp_path, "m7i.xlarge"))
    assert same.architectures == ()


def quota(most: int, key: str) -> Document:
    limits = {
        "selector": {"matchLabels": {key: "general"}},
        "limits": {"resources": {"nodes": str(most)}},
    }
    metadata = {"name": "few"}
    return {"apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityQuota", "metadata": metadata, "spec": limits}


def waiting(name: str) -> Document:
    found = pod(name, "", cpu="3")
    del found["spec"]["nodeName"]
    return {**found, "status": {"phase": "Pending"}}


def test_plan_report_and_episode_say_the_same_of_the_same_pods_under_a_quota(tmp_path: Path) -> None:
    cluster = written(tmp_path / "cluster.json", [*(waiting(f"web-{number}") for number in range(5)), quota(3, "tier")])
    inputs = Inputs((cluster,), pools_in(tmp_path, "m7i.xlarge", labels={"tier": "general"}))
    problem = read_problem(inputs).problem
    plan = solve(problem, BUDGET)
    report = make_report(inputs, BUDGET)
    state = RecordedState(
        Problem((), problem.node_groups, problem.nodes, problem.limits, problem.daemon_sets),
        (Wave(0.0, problem.pod_sets, 0.0),),
    )
    came = Outcome((), 5, None)
    episode = finished(ClosedEpisode(Episode("e", 0.0, 1.0, Ended.SERVED, 5, 1, came), state, frozenset()), BUDGET)
    assert episode is not None
    assert episode.planned is not None
    assert plan.certificate.cost_usd_per_hour == pytest.approx(3 * XLARGE)
    assert report.planned.usd_per_hour == pytest.approx(plan.certificate.cost_usd_per_hour)
    assert episode.planned.usd_per_hour == pytest.approx(plan.certificate.cost_usd_per_hour)
    assert report.planned.unplaced == episode.planned.unserved == 2


def test_a_quota_bounds_what_is_packed_anew_and_the_steps(tmp_path: Path) -> None:
    nodes = [node("a"), node("b"), node("theirs", pool="theirs")]
    items = [
        *nodes,
        *(pod(f"web-{each['metadata']['name']}", each["metadata"]["name"]) for each in nodes),
        quota(3, NODEPOOL_LABEL),
    ]
    (limit,) = asked(tmp_path, items).problem.limits
    assert (limit.name, limit.maxima[NODES], limit.used[NODES]) == ("CapacityQuota/few", 3, 2)
    report = report_of(tmp_path, items)
    assert step(report, Cause.LIMITS).applies
    assert report.consolidation is not None
    assert report.consolidation.cost_after_usd_per_hour == pytest.approx(XLARGE)
