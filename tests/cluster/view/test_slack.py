"""What the resource slack reads of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.slack import EXCLUDE, MIRROR, PLACEHOLDER, PRIORITY, PRIORITY_CLASS, SHAPE
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.state import SlackSeen
from cagrpc.cluster.view import shares
from cagrpc.cluster.view.model import DEPLOYMENTS
from cagrpc.cluster.view.model import PODS as PODS_PATH
from solver.model import Operator, PodSelector, Requirement
from tests.support.controllers.cluster_objects import JOBS, REPLICA_SETS, STATEFUL_SETS, Fed, apart, node, pod
from tests.support.examples import examples

NOBODY = Exclusion()


def template(cpu: str = "2", labels: Mapping[str, str] | None = None, **spec: Any) -> bytes:
    found = kubernetes_pb2.PodTemplateSpec(spec=kubernetes_pb2.PodSpec(**spec))
    found.metadata.labels.update(labels or {"app": "web"})
    found.spec.containers.add().resources.requests["cpu"].string = cpu
    return found.SerializeToString()


def metadata(name: str, annotations: Mapping[str, str], owner: str = "", *, deleting: bool = False) -> Any:
    found = kubernetes_pb2.ObjectMeta(name=name, namespace="default", annotations=annotations)
    if owner:
        kind, _, owner_name = owner.partition("/")
        found.ownerReferences.add(kind=kind, name=owner_name, controller=True)
    if deleting:
        found.deletionTimestamp.seconds = 1
    return found


def deployment(
    name: str = "web", annotations: Mapping[str, str] | None = None, **more: Any
) -> kubernetes_pb2.Deployment:
    deleting = more.pop("deleting", False)
    return kubernetes_pb2.Deployment(
        metadata=metadata(name, annotations or {}, deleting=deleting), spec={"template": template(**more)}
    )


def replica_set(name: str, annotations: Mapping[str, str], owner: str = "") -> kubernetes_pb2.ReplicaSet:
    return kubernetes_pb2.ReplicaSet(metadata=metadata(name, annotations, owner), spec={"template": template()})


def stateful_set(name: str, annotations: Mapping[str, str]) -> kubernetes_pb2.StatefulSet:
    return kubernetes_pb2.StatefulSet(metadata=metadata(name, annotations), spec={"template": template()})


def job(name: str, annotations: Mapping[str, str], *conditions: str) -> kubernetes_pb2.Job:
    found = kubernetes_pb2.Job(metadata=metadata(name, annotations), spec={"template": template()})
    for each in conditions:
        found.status.conditions.add(type=each, status="True")
    return found


def mirrors(fed: Fed) -> dict[str, int]:
    return {each.name: each.count for each in fed.state().slack.mirrors}


def counts(fed: Fed) -> dict[tuple[int, str, bool], int]:
    """cpu, namespace, excluded -> pods"""
    seen = fed.state().slack.pods
    return {(dict(each.spec.requests).get("cpu", 0), each.namespace, each.excluded): each.count for each in seen}


def test_without_slack_nothing_is_learnt() -> None:
    fed = Fed()
    fed.put(pod(annotations={MIRROR: ""}))
    assert fed.state().slack == SlackSeen()
    assert DEPLOYMENTS not in {each.resource.path for each in fed.model.followed}


def test_pods_that_wait_or_run_are_counted_by_size_and_namespace() -> None:
    fed = Fed(NOBODY)
    fed.put(pod("a"), pod("b", node="n1"), pod("c", namespace="shop"), pod("d", "2"))
    fed.put(pod("daemon", node="n1", owner="DaemonSet"), pod("going", node="n1", deleting=True))
    fed.put(pod("done", node="n1", phase="Succeeded"), pod("cheap", priority=-20))
    fed.put(pod("gated", schedulingGates=[kubernetes_pb2.PodSchedulingGate(name="g")]))
    assert counts(fed) == {(1000, "default", False): 2, (1000, "shop", False): 1, (2000, "default", False): 1}
    fed.drop(pod("a"), pod("c", namespace="shop"))
    assert counts(fed) == {(1000, "default", False): 1, (2000, "default", False): 1}


@pytest.mark.parametrize(
    ("value", "count"), [("", 1), ("true", 1), ("3", 3), ("0", 0), ("false", 0), ("-1", 0), ("many", 0), ("1001", 0)]
)
def test_s7_a_marked_deployment_is_mirrored(value: str, count: int) -> None:
    fed = Fed(NOBODY)
    fed.put(deployment(annotations={MIRROR: value}), path=DEPLOYMENTS)
    assert mirrors(fed) == ({"deployment/default/web": count} if count else {})
    warned = value in ("-1", "many", "1001")
    assert fed.state().slack.warnings == (
        (f'deployment/default/web: annotation {MIRROR}: found "{value}", expected a whole number up to 1000',)
        if warned
        else ()
    )


def test_s7_every_kind_is_mirrored() -> None:
    fed = Fed(NOBODY)
    fed.put(deployment("a", {MIRROR: ""}), path=DEPLOYMENTS)
    fed.put(replica_set("b", {MIRROR: "2"}), path=REPLICA_SETS)
    fed.put(stateful_set("c", {MIRROR: "3"}), path=STATEFUL_SETS)
    fed.put(job("d", {MIRROR: "4"}), path=JOBS)
    fed.put(pod("e", annotations={MIRROR: "5"}))
    assert mirrors(fed) == {
        "deployment/default/a": 1,
        "replicaset/default/b": 2,
        "statefulset/default/c": 3,
        "job/default/d": 4,
        "pod/default/e": 5,
    }
    specs = {each.name: dict(each.spec.requests) for each in fed.state().slack.mirrors}
    assert specs["job/default/d"] == {"cpu": 2000}
    assert specs["pod/default/e"] == {"cpu": 1000}


def test_mirrors_beyond_the_share_of_their_namespace_are_left_out_and_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = Fed(NOBODY)
    fed.put(deployment("a", {MIRROR: ""}, **apart("a")), path=DEPLOYMENTS)
    (of_a,) = fed.state().slack.mirrors
    monkeypatch.setattr(shares, "MOST_WEIGHT", 2 * sum(map(shares.weight, shares.constraints_of(of_a.spec))))
    for name in "bc":
        fed.put(deployment(name, {MIRROR: ""}, **apart(name)), path=DEPLOYMENTS)
    assert mirrors(fed) == {"deployment/default/a": 1, "deployment/default/b": 1}
    assert fed.state().slack.warnings == (f"deployment/default/c: is not mirrored: {shares.BEYOND}",)
    fed.drop(deployment("a", {MIRROR: ""}, **apart("a")), path=DEPLOYMENTS)
    assert mirrors(fed) == {"deployment/default/b": 1, "deployment/default/c": 1}
    assert fed.state().slack.warnings == ()


def test_what_goes_or_is_done_is_mirrored_no_more() -> None:
    fed = Fed(NOBODY)
    fed.put(deployment("a", {MIRROR: ""}, deleting=True), path=DEPLOYMENTS)
    fed.put(job("d", {MIRROR: "4"}, "Complete"), path=JOBS)
    fed.put(pod("e", annotations={MIRROR: ""}, phase="Succeeded"), pod("f", annotations={MIRROR: ""}, deleting=True))
    fed.put(pod("g", annotations={MIRROR: ""}, owner="DaemonSet"))
    assert mirrors(fed) == {}


def test_a_deployments_replica_sets_and_pods_are_not_counted_again() -> None:
    """The Deployment controller copies annotations to ReplicaSets."""
    fed = Fed(NOBODY)
    fed.put(deployment(annotations={MIRROR: "2"}), path=DEPLOYMENTS)
    for name in ("web-1", "web-2"):
        fed.put(replica_set(name, {MIRROR: "2"}, "Deployment/web"), path=REPLICA_SETS)
        fed.put(pod(f"{name}-x", annotations={MIRROR: ""}, owner="ReplicaSet", owner_name=name))
    assert mirrors(fed) == {"deployment/default/web": 2}


def test_marked_pods_of_one_workload_are_one_mirror() -> None:
    fed = Fed(NOBODY)
    for name in ("web-1", "web-2"):
        fed.put(replica_set(name, {}, "Deployment/web"), path=REPLICA_SETS)
        fed.put(*(pod(f"{name}-{n}", annotations={MIRROR: ""}, owner="ReplicaSet", owner_name=name) for n in range(3)))
    fed.put(pod("alone", annotations={MIRROR: ""}))
    assert mirrors(fed) == {"deployment/default/web": 1, "pod/default/alone": 1}
    fed.drop(replica_set("web-1", {}, "Deployment/web"), path=REPLICA_SETS)  # its pods are still there
    assert mirrors(fed) == {"deployment/default/web": 1, "pod/default/alone": 1, "replicaset/default/web-1": 1}


def test_r8_nodes_show_what_mirrors_look_at() -> None:
    fed = Fed(NOBODY)
    fed.nodes(node())
    fed.put(pod("db-0", node="n1", labels={"app": "db"}), pod("other", node="n1", labels={"app": "other"}))
    fed.put(deployment("db", {MIRROR: ""}, labels={"app": "db"}, **apart("db")), path=DEPLOYMENTS)
    (mirror,) = fed.state().slack.mirrors
    assert mirror.spec.labels == (("app", "db"),)
    (term,) = mirror.spec.pod_anti_affinity
    assert term.topology_key == "kubernetes.io/hostname"
    (shown,) = fed.state().nodes
    assert [each.spec.labels for each in shown.node.running] == [(("app", "db"),)]
    fed.drop(deployment("db"), path=DEPLOYMENTS)
    (shown,) = fed.state().nodes
    assert shown.node.running == ()


def test_a_template_that_cannot_be_read_is_told() -> None:
    fed = Fed(NOBODY)
    fed.put(deployment("bad", {MIRROR: ""}, cpu="many"), path=DEPLOYMENTS)
    (warning,) = fed.state().slack.warnings
    assert warning.startswith(
        "deployment/default/bad: its pods cannot be mirrored: pod default/bad: spec.containers[0]"
    )
    assert mirrors(fed) == {}


def test_r6_who_is_excluded() -> None:
    selector = PodSelector((Requirement("app", Operator.IN, ("db",)),))
    fed = Fed(Exclusion(frozenset({"databases"}), selector))
    fed.put(pod("a", "1"), pod("b", "2", annotations={EXCLUDE: "true"}), pod("c", "3", labels={"app": "db"}))
    fed.put(pod("d", "4", namespace="databases"), pod("e", "5", owner="StatefulSet", owner_name="pg"))
    fed.put(pod("f", "6", owner="ReplicaSet", owner_name="cache-1"), pod("g", "7", annotations={EXCLUDE: "no"}))
    fed.put(replica_set("cache-1", {}, "Deployment/cache"), path=REPLICA_SETS)
    assert {key[0] for key in counts(fed) if key[2]} == {2000, 3000, 4000}
    fed.put(stateful_set("pg", {EXCLUDE: "true"}), path=STATEFUL_SETS)
    fed.put(deployment("cache", {EXCLUDE: "true"}), path=DEPLOYMENTS)
    assert {key[0] for key in counts(fed) if key[2]} == {2000, 3000, 4000, 5000, 6000}
    fed.put(stateful_set("pg", {}), path=STATEFUL_SETS)
    assert {key[0] for key in counts(fed) if key[2]} == {2000, 3000, 4000, 6000}


def test_pause_pods_give_way() -> None:
    """They are no demand, and no room is taken by them; where they are is known."""
    fed = Fed(NOBODY)
    fed.nodes(node("n1", "8"), node("n2", "8"))
    marks = pause()
    fed.put(*(pod(f"pause-{n}", "2", node="n1", **marks) for n in range(3)), pod("pause-3", "2", node="n2", **marks))
    fed.put(pod("waits", "2", **marks), pod("goes", "2", node="n2", deleting=True, **marks))
    fed.put(pod("done", "2", node="n2", phase="Failed", **marks))
    state = fed.state()
    assert fed.model.pause_pods() == {"web/share": {"n1": 3, "n2": 1}}
    assert state.waiting == ()
    assert fed.model.arrivals().waiting == 0
    assert state.slack.pods == ()
    assert {each.node.name: each.node.free["cpu"] for each in state.nodes} == {"n1": 8000, "n2": 8000}
    assert [each.movable for each in state.nodes] == [(), ()]
    fed.relist([pod("pause-0", "2", node="n2", **marks)])
    assert fed.model.pause_pods() == {"web/share": {"n2": 1}}


def pause(**other: Any) -> dict[str, Any]:
    """What makes a pod a pause pod."""
    marks: dict[str, Any] = {"labels": {PLACEHOLDER: "true"}, "annotations": {SHAPE: "web/share"}}
    ours = {
        **marks,
        "namespace": "cagrpc",
        "owner": "ReplicaSet",
        "priorityClassName": PRIORITY_CLASS,
        "priority": PRIORITY,
    }
    return {**ours, **other}


@pytest.mark.parametrize(
    "other",
    [{"namespace": "shop"}, {"owner": "StatefulSet"}, {"owner": ""}, {"priority": 0}, {"priorityClassName": ""}],
    ids=str,
)
def test_nobody_elses_pod_is_a_pause_pod(other: dict[str, Any]) -> None:
    """Whoever may create a pod may label it; it takes room and waits like any other."""
    fed = Fed(NOBODY)
    fed.nodes(node("n1", "8"))
    fed.put(pod("runs", "2", node="n1", **pause(**other)), pod("waits", "3", **pause(**other)))
    state = fed.state()
    assert fed.model.pause_pods() == {}
    assert fed.free()["cpu"] == 6000
    assert [each.pod_set.count for each in state.waiting] == [1]


def test_a_pod_that_says_it_is_the_autoscalers_fake_counts() -> None:
    """Those are in what the autoscaler offers, never in a cluster."""
    fed = Fed(NOBODY)
    fed.nodes(node("n1", "8"))
    fake = {"podType": "capacityBufferFakePod"}
    fed.put(pod("runs", "2", node="n1", annotations=fake), pod("waits", "3", annotations=fake))
    assert fed.free()["cpu"] == 6000
    assert [each.pod_set.count for each in fed.state().waiting] == [1]


OWNERS = ("", "ReplicaSet/x-1", "ReplicaSet/x-2", "StatefulSet/s")
marks = st.sampled_from(({}, {MIRROR: "2"}, {EXCLUDE: "true"}, {MIRROR: "", EXCLUDE: "true"}, {MIRROR: "?"}))


@st.composite
def pods(draw: st.DrawFn) -> kubernetes_pb2.Pod:
    owner = draw(st.sampled_from(OWNERS))
    paused = draw(st.integers(0, 5)) == 0
    annotations = draw(marks)
    pause_priority: dict[str, Any] = {"priorityClassName": PRIORITY_CLASS, "priority": PRIORITY}
    return pod(
        draw(st.sampled_from("abcd")),
        draw(st.sampled_from(("1", "2", "many"))),
        node=draw(st.sampled_from(("", "n1"))),
        phase=draw(st.sampled_from(("", "", "Succeeded"))),
        labels={"app": draw(st.sampled_from(("web", "db"))), **({PLACEHOLDER: "true"} if paused else {})},
        annotations={**annotations, **({SHAPE: "t/share"} if paused else {})},
        namespace=draw(st.sampled_from(("default", "shop", "cagrpc"))),
        **(pause_priority if paused else {}),
        owner=owner.partition("/")[0],
        owner_name=owner.partition("/")[2] or "owner",
        **draw(st.sampled_from(({}, apart("web")))),
    )


OBJECTS: dict[str, st.SearchStrategy[Any]] = {
    PODS_PATH: pods(),
    DEPLOYMENTS: st.builds(deployment, st.just("x"), marks),
    REPLICA_SETS: st.builds(replica_set, st.sampled_from(("x-1", "x-2")), marks, st.sampled_from(("", "Deployment/x"))),
    STATEFUL_SETS: st.builds(stateful_set, st.just("s"), marks),
}
changes = st.sampled_from(sorted(OBJECTS)).flatmap(
    lambda path: st.tuples(st.just(path), st.sampled_from(("put", "put", "drop")), OBJECTS[path])
)
EXCLUSION = Exclusion(frozenset({"shop"}), PodSelector((Requirement("app", Operator.IN, ("db",)),)))


@examples(200)
@given(st.lists(changes, max_size=25), st.booleans())
def test_any_way_to_the_same_objects_shows_the_same_slack(steps: list[Any], look_between: bool) -> None:
    fed, there = Fed(EXCLUSION), {path: dict[str, Any]() for path in OBJECTS}
    for path, change, obj in steps:
        key = obj.metadata.uid or obj.metadata.name
        if change == "put":
            there[path][key] = obj
            fed.put(obj, path=path)
        else:
            there[path].pop(key, None)
            fed.drop(obj, path=path)
        if look_between:
            fed.state()
    anew = Fed(EXCLUSION)
    for path, objects in there.items():
        anew.put(*objects.values(), path=path)
    assert comparable(fed.state().slack) == comparable(anew.state().slack)
    assert fed.model.pause_pods() == anew.model.pause_pods()
    for path in OBJECTS:
        fed.relist([], path=path)
    assert fed.state().slack == SlackSeen()


def comparable(seen: SlackSeen) -> Any:
    return {(each.spec, each.namespace, each.excluded): each.count for each in seen.pods}, seen.mirrors
