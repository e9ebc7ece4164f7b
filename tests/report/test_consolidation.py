"""Consolidation in the report: the numbers are the solver's, in the page as in JSON, and names can be replaced."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.movability import StaysBecause
from cagrpc.offline.inputs import Inputs
from cagrpc.report.anonymise import anonymised
from cagrpc.report.as_json import as_json
from cagrpc.report.consolidation import MovingQuestion, values
from cagrpc.report.make import make_report
from cagrpc.report.model import Consolidation, Report
from cagrpc.report.page import as_html
from cagrpc.report.sentences import step_sentence, way
from solver import Budget, Problem, solve
from solver.consolidation.model import ConsolidationPlan, ConsolidationStep, DisruptionReason
from solver.model.money import hourly
from tests.report.clusters import Document, apart, budget, daemons, half_empty, node, pod, written
from tests.report.questions import asked, read
from tests.support.examples import examples

EXACT = Budget(60, deterministic_seconds=2.0)
XLARGE, LARGE = 0.2016, 1.0584


def report_of(path: Path, items: list[Document], **more: tuple[Path, ...] | Path) -> Report:
    return make_report(Inputs((written(path / "cluster.json", items),), **more), EXACT)  # type: ignore[arg-type]


def consolidation(path: Path, items: list[Document]) -> Consolidation:
    found = report_of(path, items).consolidation
    assert found is not None
    return found


def planned(question: MovingQuestion) -> ConsolidationPlan:
    """Two steps by hand: the empty node goes, then two nodes for a new one."""
    by_name = {each.node.name: each for each in question.problem.nodes}
    groups = {each.id: each for each in question.problem.node_groups}
    new = groups[by_name["n1"].node_group]
    moving = [by_name["n1"], by_name["n5"]]
    second = solve(Problem(tuple(pods for each in moving for pods in each.pods), (new,)), EXACT)
    steps = (
        ConsolidationStep(DisruptionReason.EMPTY, ("n0",), solve(Problem(()), EXACT), XLARGE),
        ConsolidationStep(DisruptionReason.UNDERUTILIZED, ("n1", "n5"), second, XLARGE),
    )
    return ConsolidationPlan(steps, 6 * XLARGE + LARGE, 4 * XLARGE + LARGE, 0.5, 0.4)


def test_values_are_the_plans(tmp_path: Path) -> None:
    question, of = asked(tmp_path, half_empty()), read(tmp_path, half_empty())
    found = values(question, planned(question), of.nodes)
    assert (found.nodes_before, found.nodes_after, found.pods_moved) == (7, 5, 2)
    empty, second = found.steps
    assert (empty.pods_moved, empty.saving_usd_per_hour_per_pod) == (0, None)
    assert [str(each) for each in second.nodes] == ["n1", "n5"]
    assert sorted(each.nodes for each in second.deltas) == [-2, 1]
    assert second.saving_usd_per_hour_per_pod == pytest.approx(XLARGE / 2)
    assert second.left_usd_per_hour == pytest.approx(found.cost_after_usd_per_hour)
    group = second.deltas[0].group
    assert step_sentence(second) == (
        f"Underutilized: +1 {group}, then -2 {group}; 2 pods moved; saves $0.20/h, $0.10/h for each pod."
    )
    assert step_sentence(empty) == f"Empty: -1 {empty.deltas[0].group}; no pod moved; saves $0.20/h."


def test_a_step_to_a_better_weight_may_cost_more(tmp_path: Path) -> None:
    question = asked(tmp_path, half_empty())
    plan = planned(question)
    dearer = replace(plan.steps[1], reason=DisruptionReason.BETTER_WEIGHT, saving_usd_per_hour=-0.1)
    (step,) = values(question, replace(plan, steps=(dearer,)), ()).steps
    assert step_sentence(step).endswith("2 pods moved; costs $0.10/h.")


def test_nodes_that_their_cloud_takes_are_replaced_first(tmp_path: Path) -> None:
    spot = node("spot", taints=[{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}])
    nodes = [spot, node("full")]
    pods = [pod("web", "spot", cpu="2"), pod("api", "full", cpu="3")]
    found = consolidation(tmp_path, [*nodes, *pods, *daemons(nodes)])
    (step,) = found.steps
    assert step.reason is DisruptionReason.INTERRUPTED
    assert [str(each) for each in step.nodes] == ["spot"]
    assert step.pods_moved == 1
    assert found.nodes_after == 2
    assert step_sentence(step).startswith("Interrupted: +1 ")


def cluster_of_reasons() -> list[Document]:
    """Three small nodes with a pod of one core each, one of which a budget keeps, and one that is nearly full."""
    nodes = [node(name) for name in ("free-1", "free-2", "kept", "busy")]
    pods = [pod(f"pod-{name}", name, app=name) for name in ("free-1", "free-2", "kept")]
    pods += [pod("large", "busy", "3500m", app="busy")]
    pods += [pod("single", "busy", "100m", app="busy", annotations={"karpenter.sh/do-not-disrupt": "true"})]
    return [*nodes, *pods, *daemons(nodes), budget("keep-one", "kept", 0)]


def test_the_best_steps_are_found_and_the_rest_is_explained(tmp_path: Path) -> None:
    found = consolidation(tmp_path, cluster_of_reasons())
    assert found.cost_before_usd_per_hour == pytest.approx(4 * XLARGE)
    # both free pods find room on the node that stays
    assert found.cost_after_usd_per_hour == pytest.approx(2 * XLARGE)
    assert found.least_usd_per_hour == pytest.approx(2 * XLARGE)
    assert (found.nodes_before, found.nodes_after, found.pods_moved) == (4, 2, 2)
    assert {str(each) for step in found.steps for each in step.nodes} == {"free-1", "free-2"}
    assert {step.reason for step in found.steps} == {DisruptionReason.UNDERUTILIZED}
    kept, busy = found.stays
    assert (kept.because, kept.nodes, kept.nodes_for_this_alone, kept.pods) == (StaysBecause.BUDGET, 1, 1, 1)
    assert busy.because is StaysBecause.DO_NOT_DISRUPT
    assert kept.unused_usd_per_hour == pytest.approx(XLARGE * (1 - 1100 / 3920))
    (example,) = kept.examples
    assert [str(each) for each in (example.namespace, example.name, example.node, *example.budgets)] == [
        "shop", "pod-kept", "kept", "keep-one",
    ]  # fmt: skip


def test_a_nearly_empty_cluster_comes_to_the_proven_least(tmp_path: Path) -> None:
    found = consolidation(tmp_path, half_empty())
    assert found.cost_before_usd_per_hour == pytest.approx(6 * XLARGE + LARGE)
    # three pods keep apart from each other
    assert found.cost_after_usd_per_hour == pytest.approx(3 * XLARGE)
    assert found.least_if_all_moved_usd_per_hour <= found.least_usd_per_hour <= found.cost_after_usd_per_hour + 1e-9
    assert not found.stays


def test_the_page_has_the_numbers_of_the_json(tmp_path: Path) -> None:
    report = report_of(tmp_path, cluster_of_reasons())
    found = report.consolidation
    assert found is not None
    told = as_json(report)["consolidation"]
    assert told["summary"] == way(found)
    assert told["cost_after_usd_per_hour"] == found.cost_after_usd_per_hour
    assert told["pods_moved"] == sum(each["pods_moved"] for each in told["steps"]) == found.pods_moved
    assert [each["sentence"] for each in told["steps"]] == [step_sentence(each) for each in found.steps]
    assert [each["because"] for each in told["stays"]] == [each.because.value for each in found.stays]
    section = as_html(report).split("<h1>")[1].split('id="anew"')[0]
    for amount in (
        found.cost_before_usd_per_hour,
        found.cost_after_usd_per_hour,
        found.least_usd_per_hour,
        found.least_if_all_moved_usd_per_hour,
        *(each.saving_usd_per_hour for each in found.steps),
        *(each.unused_usd_per_hour for each in found.stays),
    ):
        assert hourly(amount) in section
    for text in (*(each["because"] for each in told["stays"]), "shop/pod-kept on kept (keep-one)", "2 pods moved"):
        assert text in section


def test_names_of_steps_and_examples_are_replaced(tmp_path: Path) -> None:
    report = anonymised(report_of(tmp_path, cluster_of_reasons()))
    shown = as_html(report) + json.dumps(as_json(report))
    names = ("free-1", "free-2", "busy", "pod-kept", "single", "keep-one", "shop")
    assert [each for each in names if each in shown] == []
    assert "budget-1" in shown
    assert report.consolidation is not None
    assert report.consolidation.steps
    assert report.consolidation.stays


def test_what_ran_where_has_to_be_known(tmp_path: Path) -> None:
    report = make_report(Inputs(recording="three-deployments"), EXACT)
    assert report.consolidation is None
    page = as_html(report)
    assert 'id="steps"' not in page
    assert "Which pods are on which nodes is not known" in page
    assert as_json(report)["consolidation"] is None


def test_nodes_whose_pods_are_not_known_are_not_called_empty(tmp_path: Path) -> None:
    table = tmp_path / "pods.csv"
    table.write_text("name,cpu_milli,memory_mib,num_gpu,count\nweb,1000,1024,0,3\n")
    cluster = written(tmp_path / "cluster.json", [node("a"), node("b")])
    assert make_report(Inputs((cluster, table)), EXACT).consolidation is None


def test_pods_go_back_to_a_better_weight(tmp_path: Path) -> None:
    pools = tmp_path / "pools.yaml"
    pools.write_text("\n---\n".join(json.dumps(each) for each in (_pool("better", 50, LARGE_TYPE), _pool("other", 10))))
    items = [node("a", zone="zone-a", pool="other"), pod("web", "a")]
    found = report_of(tmp_path, items, provisioners=(pools,)).consolidation
    assert found is not None
    (step,) = found.steps
    assert step.reason is DisruptionReason.BETTER_WEIGHT
    assert step.saving_usd_per_hour == pytest.approx(XLARGE - LARGE)
    assert "1 step costs $0.86/h more, moves 1 pod and leaves 1 node at $1.06/h" in way(found)


LARGE_TYPE = "r7i.4xlarge"


def _pool(name: str, weight: int, kind: str = "m7i.xlarge") -> Document:
    of_type = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [kind]}
    return {"name": name, "weight": weight, "requirements": [of_type]}


@st.composite
def clusters(draw: st.DrawFn) -> list[Document]:
    nodes = [
        node(f"n{index}", draw(st.sampled_from(["m7i.xlarge", "m7i.4xlarge"])))
        for index in range(draw(st.integers(1, 6)))
    ]
    pods = []
    for index in range(draw(st.integers(1, 9))):
        on = draw(st.integers(0, len(nodes) - 1))
        more: Document = draw(st.sampled_from([{}, {}, {"affinity": apart("web")}, {"owner": "Job"}]))
        pods.append(pod(f"p{index}", f"n{on}", draw(st.sampled_from(["500m", "1"])), **more))
    return [*nodes, *pods, budget("some", "web", draw(st.sampled_from([0, 1, 1])))]


@examples(30)
@given(items=clusters())
def test_costs_fit_together(items: list[Document], tmp_path_factory: pytest.TempPathFactory) -> None:
    report = report_of(tmp_path_factory.mktemp("clusters"), items)
    found = report.consolidation
    assert found is not None
    tiny = 1e-6
    assert found.cost_before_usd_per_hour == pytest.approx(report.present_usd_per_hour)
    assert found.least_if_all_moved_usd_per_hour <= found.least_usd_per_hour + tiny
    assert found.least_usd_per_hour <= found.cost_after_usd_per_hour + tiny
    assert found.cost_after_usd_per_hour <= found.cost_before_usd_per_hour + tiny
    saved = sum(each.saving_usd_per_hour for each in found.steps)
    assert found.cost_before_usd_per_hour - saved == pytest.approx(found.cost_after_usd_per_hour)
    gone = [str(name) for step in found.steps for name in step.nodes]
    assert len(gone) == len(set(gone))
    assert not {str(pod.node) for each in found.stays for pod in each.examples} & set(gone)
