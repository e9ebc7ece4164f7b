"""Pods and templates are read with the labels of Namespaces and with RuntimeClasses, and again when these change."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view.context import NAMESPACES, RUNTIME_CLASSES
from solver import solve
from solver.model import HOSTNAME, Budget, NodeGroup, PodSelector, PodSpec, Problem
from tests.cluster.view.test_expected import replica_set, template
from tests.support.controllers.cluster_objects import DAEMON_SETS, REPLICA_SETS, Fed, node, pod, remembered

TEAM: dict[str, Any] = {"matchLabels": {"team": "ml"}}
KATA: dict[str, Any] = {
    "metadata": {"name": "kata"},
    "overhead": {"podFixed": {"cpu": "250m"}},
    "scheduling": {"nodeSelector": {"runtime": "kata"}},
}


@pytest.fixture
def fed() -> Fed:
    return Fed(expects=True)


def namespace(name: str, **labels: str) -> kubernetes_pb2.Namespace:
    return kubernetes_pb2.Namespace(metadata={"name": name, "labels": labels})


def apart(name: str, kind: str = "podAntiAffinity", **more: Any) -> kubernetes_pb2.Pod:
    """A pod that keeps away from (or near to) pods of the team's namespaces."""
    term = {"topologyKey": HOSTNAME, "labelSelector": {}, "namespaceSelector": TEAM}
    return pod(name, affinity={kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}, **more)


def of(fed: Fed, name: str) -> PodSpec:
    return next(each.pod_set.spec for each in fed.state().waiting if each.pod_set.name == f"default/{name}")


def away_from(fed: Fed) -> tuple[str, ...] | None:
    return of(fed, "a").pod_anti_affinity[0].selector.namespaces


def test_a_namespace_selector_is_answered_by_the_labels_of_namespaces_as_they_change(fed: Fed) -> None:
    fed.put(apart("a"))
    assert away_from(fed) is None, "nothing is known: it keeps away from all"
    fed.relist([namespace("default"), namespace("train", team="ml"), namespace("web", team="web")], NAMESPACES)
    assert away_from(fed) == ("train",)
    fed.put(namespace("web", team="ml"), path=NAMESPACES)
    assert away_from(fed) == ("train", "web")
    fed.drop(namespace("train", team="ml"), path=NAMESPACES)
    assert away_from(fed) == ("web",)
    fed.drop(apart("a"))
    assert not any(remembered(fed.model._references))


def test_affinity_takes_only_namespaces_that_match_for_sure(fed: Fed) -> None:
    fed.put(apart("a", "podAffinity"))
    assert of(fed, "a").pod_affinity[0].selector.namespaces == ()
    fed.relist([namespace("train", team="ml")], NAMESPACES)
    assert of(fed, "a").pod_affinity[0].selector.namespaces == ("train",)


def test_a_pod_is_planned_beside_a_neighbour_only_where_the_namespace_allows_it(fed: Fed) -> None:
    """The bad neighbour: on the only node a pod of another team, until its namespace becomes the team's."""
    fed.nodes(node("n1", cpu="8"))
    fed.put(pod("other", node="n1", namespace="web"), apart("a"))
    fed.relist([namespace("default"), namespace("web", team="web")], NAMESPACES)

    def unplaced() -> int:
        state = fed.state()
        problem = Problem(tuple(each.pod_set for each in state.waiting), nodes=tuple(each.node for each in state.nodes))
        return len(solve(problem, Budget(deterministic_seconds=0.1)).unplaced)

    assert unplaced() == 0
    fed.put(namespace("web", team="ml"), path=NAMESPACES)
    assert unplaced() == 1


def test_labels_that_change_are_news_and_a_heartbeat_is_none(fed: Fed) -> None:
    fed.relist([namespace("default"), namespace("web")], NAMESPACES)
    fed.put(apart("a"))
    fed.time = 50.0
    fed.put(namespace("web"), path=NAMESPACES)
    assert fed.model.arrivals().last_seen_at_seconds == 0.0
    fed.put(namespace("web", team="ml"), path=NAMESPACES)
    assert fed.model.arrivals().last_seen_at_seconds == 50.0


def test_templates_are_read_again_as_well(fed: Fed) -> None:
    term = {"topologyKey": HOSTNAME, "labelSelector": {}, "namespaceSelector": TEAM}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    found = replica_set(1, of=template(affinity=affinity))
    fed.put(found, path=REPLICA_SETS)
    fed.relist([namespace("default"), namespace("train", team="ml")], NAMESPACES)
    assert of(fed, "web-1-00000").pod_anti_affinity[0].selector.namespaces == ("train",)
    fed.drop(found, path=REPLICA_SETS)
    assert not fed.state().waiting
    assert not any(remembered(fed.model._references))


def test_pods_to_come_have_what_their_runtime_class_adds_and_none_come_without_it(fed: Fed) -> None:
    fed.put(replica_set(2, of=template(runtimeClassName="kata")), path=REPLICA_SETS)
    assert not fed.state().waiting, "admission refuses pods of a class that is not there"
    fed.put(KATA, path=RUNTIME_CLASSES)
    (waiting,) = fed.state().waiting
    assert (waiting.pod_set.count, waiting.pod_set.spec.requests) == (2, (("cpu", 1250),))
    assert waiting.pod_set.spec.node_selector == (("runtime", "kata"),)
    fed.put({**KATA, "overhead": {"podFixed": {"cpu": "1"}}}, path=RUNTIME_CLASSES)
    assert [each.pod_set.spec.requests for each in fed.state().waiting] == [(("cpu", 2000),)]
    fed.drop(KATA, path=RUNTIME_CLASSES)
    assert not fed.state().waiting


def test_what_a_selector_without_conditions_selects_is_the_same_with_a_runtime_class(fed: Fed) -> None:
    term = {"topologyKey": HOSTNAME, "labelSelector": {}, "namespaceSelector": {}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    fed.put(KATA, path=RUNTIME_CLASSES)
    fed.put(replica_set(1, of=template(affinity=affinity, runtimeClassName="kata")), path=REPLICA_SETS)
    assert of(fed, "web-1-00000").pod_anti_affinity[0].selector == PodSelector((), None), "all pods, wherever they are"


def test_pods_that_are_there_stay_as_admission_left_them(fed: Fed) -> None:
    fed.put(KATA, path=RUNTIME_CLASSES)
    fed.put(pod("a", runtimeClassName="kata"), pod("b"))
    assert [each.pod_set.spec.requests for each in fed.state().waiting] == [(("cpu", 1000),)]


def test_daemon_sets_leave_less_room_on_new_nodes_by_their_overhead(fed: Fed) -> None:
    found = kubernetes_pb2.PodTemplateSpec()
    found.MergeFromString(template(runtimeClassName="kata"))
    daemons = kubernetes_pb2.DaemonSet(metadata={"namespace": "default", "name": "d"}, spec={"template": found})
    fed.put(daemons, path=DAEMON_SETS)
    assert fed.state().daemon_sets[0].requests == (("cpu", 1000),)
    fed.put(KATA, path=RUNTIME_CLASSES)
    (daemon,) = fed.state().daemon_sets
    assert (daemon.requests, daemon.node_selector) == ((("cpu", 1250),), (("runtime", "kata"),))
    group = NodeGroup("g", {"cpu": 2000, "pods": 10}, 1.0, labels={"runtime": "kata"})
    fed.put(pod("a", cpu="800m"))
    pods = tuple(each.pod_set for each in fed.state().waiting)
    budget = Budget(deterministic_seconds=0.1)
    assert solve(Problem(pods, (group,)), budget).increments
    assert solve(Problem(pods, (group,), daemon_sets=(daemon,)), budget).unplaced
