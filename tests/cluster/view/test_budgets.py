"""Nodes that PodDisruptionBudgets keep from being drained, as the cluster-autoscaler decides it."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view.bound import POD_DISRUPTION_BUDGETS, DisruptionBudgets, disruption_budget
from cagrpc.cluster.view.classes import ClassKey, EquivalenceClass, Shape
from cagrpc.errors import InvalidInput
from solver.model import PodSpec
from tests.support.controllers.cluster_objects import Fed, node, pod
from tests.support.messages import filled

WEB: dict[str, Any] = {"matchLabels": {"app": "web"}}


def _budget(name: str, selector: dict[str, Any] | None, allowed: int, namespace: str = "ns") -> Any:
    spec = {} if selector is None else {"selector": selector}
    document = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
        "status": {"disruptionsAllowed": allowed},
    }
    return disruption_budget(filled(kubernetes_pb2.PodDisruptionBudget(), document).SerializeToString())


def _pods(namespace: str = "ns", **labels: str) -> EquivalenceClass:
    return EquivalenceClass(
        ClassKey(Shape(PodSpec()), namespace, tuple(sorted(labels.items())), 0, "", admitted=True, gang=None)
    )


def _why(of: EquivalenceClass, *budgets: Any, count: int = 1) -> str:
    table = DisruptionBudgets()
    for each in budgets:
        table.put(each)
    return table.undrainable([("n", {of: count})]).get("n", "")


NONE = "PodDisruptionBudget ns/a allows no disruption now"


@pytest.mark.parametrize(
    ("budgets", "why"),
    [
        pytest.param([], "", id="none"),
        pytest.param([_budget("a", WEB, 0)], NONE, id="no disruption is allowed"),
        pytest.param([_budget("a", WEB, 1)], "", id="one of the two pods there at a time"),
        pytest.param([_budget("a", {"matchLabels": {"app": "db"}}, 0)], "", id="other labels"),
        pytest.param([_budget("a", WEB, 0, "other")], "", id="another namespace"),
        pytest.param([_budget("a", {}, 0)], NONE, id="an empty selector has all pods of the namespace"),
        pytest.param([_budget("a", None, 0)], "", id="no selector has none"),
        pytest.param([_budget("a", WEB, 5), _budget("b", {}, 5)],
                     "PodDisruptionBudgets ns/a and ns/b cover the same pod, so it cannot be evicted",
                     id="two budgets"),
    ],
)  # fmt: skip
def test_which_budget_keeps_a_node(budgets: list[Any], why: str) -> None:
    assert _why(_pods(app="web"), *budgets, count=2) == why


def test_a_node_is_drained_again_once_its_budget_allows_it_selects_others_or_is_gone() -> None:
    table, nodes = DisruptionBudgets(), [("n", {_pods(app="web"): 1}), ("empty", {})]
    for named, kept in (
        (_budget("a", WEB, 0), ["n"]),
        (_budget("a", WEB, 1), []),
        (_budget("a", {"matchLabels": {"app": "db"}}, 0), []),
        (_budget("a", WEB, 0), ["n"]),
    ):
        table.put(named)
        assert list(table.undrainable(nodes)) == kept
        assert list(table.undrainable(nodes)) == kept, "what is remembered of classes"
    table.drop("ns/a")
    table.drop("ns/a")
    assert not table.undrainable(nodes)
    assert not table.keys()


def test_only_the_nodes_that_are_asked_about_are_looked_at() -> None:
    fed = Fed()
    fed.nodes(node("n1"), node("n2"))
    fed.put(pod("a", node="n1"), pod("b", node="n2"), pod("c", node="not-there"))
    budget = {"metadata": {"name": "all", "namespace": "default"}, "spec": {"selector": {}}}
    fed.put(filled(kubernetes_pb2.PodDisruptionBudget(), budget), path=POD_DISRUPTION_BUDGETS)
    why = "PodDisruptionBudget default/all allows no disruption now"
    assert fed.model.undrainable(["n2", "not-there", "unknown"]) == {"n2": why}
    assert fed.model.undrainable([]) == {}


def test_an_invalid_budget_is_named() -> None:
    selector = {"matchExpressions": [{"key": "app", "operator": "Near"}]}
    with pytest.raises(InvalidInput, match=r"DisruptionBudget ns/a: spec\.selector\.matchExpressions\[0\]\.operator"):
        _budget("a", selector, 0)
