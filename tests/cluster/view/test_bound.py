"""Who is bound to which node, and why it may not be moved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.movability import SAFE_TO_EVICT, Kept, MovingRules
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.state import NodeCondition, PodsOnNode
from cagrpc.cluster.view.bound import POD_DISRUPTION_BUDGETS
from cagrpc.cluster.view.model import NODES
from solver.model import RunningPods
from tests.support.controllers.cluster_objects import NOW, Fed, apart, node, pod
from tests.support.examples import examples


def _fed(*nodes: str) -> Fed:
    fed = Fed(moving=MovingRules())
    fed.nodes(*map(node, nodes or ("n1",)))
    return fed


def _bound(fed: Fed) -> dict[str, PodsOnNode]:
    return dict(fed.model.state(with_bound=True).bound)


def _kept(fed: Fed, name: str = "n1") -> dict[str, str]:
    return {each.ref.name: each.kept for each in _bound(fed)[name].reschedulable}


def _budget(name: str, allowed: int, **labels: str) -> kubernetes_pb2.PodDisruptionBudget:
    found = kubernetes_pb2.PodDisruptionBudget()
    found.metadata.name, found.metadata.namespace = name, "default"
    found.spec.selector.matchLabels.update(labels)
    found.status.disruptionsAllowed = allowed
    return found


def test_pods_are_listed_by_node_oldest_first_with_all_that_planning_needs() -> None:
    fed = _fed("n1", "n2", "empty")
    gang = {DEFAULT_GANG_LABEL: "g"}
    fed.put(
        pod("young", node="n1", owner="ReplicaSet", created=200),
        pod("old", node="n1", owner="ReplicaSet", created=100, priority=7, labels=gang),
        pod("other", node="n2", owner="StatefulSet", owner_name="db"),
        pod("lost", node="n3", owner="ReplicaSet"),
        pod("waits", owner="ReplicaSet"),
        pod("done", node="n1", owner="ReplicaSet", phase="Succeeded"),
        pod("failed", node="n1", owner="ReplicaSet", phase="Failed"),
    )
    found = _bound(fed)
    assert set(found) == {"n1", "n2", "empty"}
    assert found["empty"] == PodsOnNode()
    old, young = found["n1"].reschedulable
    assert (old.ref.name, old.ref.uid, old.priority, old.gang) == (
        "old",
        "uid-old",
        7,
        "podgroup.scheduling.x-k8s.io default/g",
    )
    assert (young.ref.name, young.ref.workload, young.gang) == ("young", "ReplicaSet/default/owner", None)
    (other,) = found["n2"].reschedulable
    assert (other.ref.namespace, other.ref.workload) == ("default", "StatefulSet/default/db")
    assert dict(other.spec.requests) == {"cpu": 1000}


def test_what_goes_with_the_node_is_only_seen_by_constraints() -> None:
    fed = _fed()
    mirror = {"kubernetes.io/config.mirror": "x"}
    fed.put(
        pod("daemon", node="n1", owner="DaemonSet", labels={"app": "log"}, annotations={SAFE_TO_EVICT: "false"}),
        pod("mirror", node="n1", annotations=mirror),
        pod("apart", owner="ReplicaSet", **apart("log")),
    )
    found = _bound(fed)["n1"]
    assert not found.reschedulable
    assert {dict(each.spec.labels).get("app"): each.count for each in found.others} == {"log": 1, None: 1}


def test_a_pod_that_is_being_deleted_is_named_until_its_time_is_over() -> None:
    fed = _fed()
    ending = pod("p", node="n1", owner="ReplicaSet", created=int(NOW) + 20, deleting=True)
    fed.put(ending, pod("stuck", node="n1", owner="ReplicaSet", created=int(NOW) - 62, deleting=True))
    found = _bound(fed)["n1"]
    assert (found.reschedulable, found.ending) == ((), "default/p")
    assert sum(each.count for each in found.others) == 2
    another = pod("a", node="n1", owner="ReplicaSet", created=int(NOW) + 20, deleting=True)
    fed.put(another)
    assert _bound(fed)["n1"].ending == "default/a", "the first by name, whichever came first"
    fed.drop(another)
    fed.drop(ending)
    assert not _bound(fed)["n1"].ending


def test_a_pod_that_the_scheduler_has_nominated_is_coming() -> None:
    fed = _fed()
    fed.put(pod("p", nominated="n1", owner="ReplicaSet"))
    found = _bound(fed)["n1"]
    assert (found.coming, found.reschedulable) == ("default/p", ())


def test_budgets_count_for_the_pods_that_they_select() -> None:
    fed = _fed()
    fed.put(
        pod("web", node="n1", owner="ReplicaSet", labels={"app": "web"}),
        pod("db", node="n1", owner="ReplicaSet", labels={"app": "db"}),
    )
    fed.put(_budget("b", 0, app="web"), path=POD_DISRUPTION_BUDGETS)
    why = "default/web is kept by PodDisruptionBudget default/b, which allows no disruption now"
    assert _kept(fed) == {"db": "", "web": why}
    fed.put(_budget("b", 1, app="web"), path=POD_DISRUPTION_BUDGETS)
    assert _kept(fed) == {"db": "", "web": ""}
    fed.put(_budget("c", 1, app="web"), path=POD_DISRUPTION_BUDGETS)
    assert _kept(fed)["web"].startswith("default/web is covered by PodDisruptionBudgets default/b and default/c")
    fed.drop(_budget("c", 1), path=POD_DISRUPTION_BUDGETS)
    assert _kept(fed) == {"db": "", "web": ""}


def test_an_annotation_that_comes_later_counts() -> None:
    fed = _fed()
    fed.put(pod("p", node="n1", owner="ReplicaSet"))
    assert _kept(fed) == {"p": ""}
    fed.put(pod("p", node="n1", owner="ReplicaSet", annotations={SAFE_TO_EVICT: "false"}))
    assert _kept(fed)["p"]
    fed.put(pod("p", node="n1", owner="ReplicaSet"))
    assert _kept(fed) == {"p": ""}


def test_consumers_of_requests_unreadable_pods_and_those_of_other_schedulers_are_not_moved() -> None:
    fed = _fed()
    consumes = {CONSUME_KEYS[0]: "r", CLASS_KEYS[0]: "c"}
    fed.put(
        pod("consumer", node="n1", owner="ReplicaSet", annotations=consumes),
        pod("half", node="n1", owner="ReplicaSet", annotations={CONSUME_KEYS[0]: "r"}),
        pod("unread", "many", node="n1", owner="ReplicaSet"),
        pod("foreign", node="n1", owner="ReplicaSet", schedulerName="slurm"),
    )
    assert _kept(fed) == {
        "consumer": "default/consumer consumes ProvisioningRequest default/r",
        "half": "",
        "unread": "default/unread has fields that cannot be read",
        "foreign": "default/foreign is scheduled by slurm",
    }
    assert {each.kept_by for each in _bound(fed)["n1"].reschedulable} == {Kept.WITHOUT_SUCCESSOR, Kept.NOTHING}


def test_nothing_is_remembered_where_nothing_is_moved() -> None:
    fed = Fed()
    fed.nodes(node("n1"))
    fed.put(pod("p", node="n1", owner="ReplicaSet"))
    assert not fed.state().bound
    assert all(each.bound is None for each in fed.model._pods._pods.values())
    moving = _fed()
    moving.put(pod("p", node="n1", owner="ReplicaSet"))
    assert not moving.state().bound, "and nothing is laid out unless it is asked for"


def test_nodes_tell_their_age_their_conditions_and_whether_they_may_be_disrupted() -> None:
    fed = Fed()
    there = node("n1", ready=False)
    there.metadata.creationTimestamp.seconds = 42
    there.metadata.annotations["karpenter.sh/do-not-disrupt"] = "true"
    there.status.conditions[0].lastTransitionTime.seconds = 50
    there.status.conditions.add(type="DiskPressure", status="False")
    fed.nodes(there, node("n2"))
    one, two = fed.state().nodes
    assert (one.created_at_seconds, one.do_not_disrupt) == (42, True)
    assert one.conditions == (NodeCondition("Ready", "False", 50), NodeCondition("DiskPressure", "False"))
    assert (two.created_at_seconds, two.do_not_disrupt) == (0, False)
    there.metadata.annotations["cagrpc.io/token"] = "t"
    fed.nodes(there)
    assert not fed.state().nodes[0].do_not_disrupt, "Karpenter's copy of what our NodeClaim tells it"
    before = fed.model._nodes.use("n1").seen
    there.status.conditions[0].lastHeartbeatTime.seconds = 60
    fed.nodes(there)
    assert fed.model._nodes.use("n1").seen is before, "a heartbeat is no news"


_NAMES = st.sampled_from("abcdef")
pods = st.builds(
    pod,
    _NAMES,
    node=st.sampled_from(("", "n1", "n2")),
    phase=st.sampled_from(("", "", "", "Succeeded", "Failed")),
    labels=st.sampled_from(({}, {"app": "web"}, {DEFAULT_GANG_LABEL: "g"})),
    owner=st.sampled_from(("ReplicaSet", "DaemonSet", "Job", "")),
    deleting=st.booleans(),
    nominated=st.sampled_from(("", "", "n1")),
)
_CHANGES = st.one_of(
    st.tuples(st.just("/api/v1/pods"), st.booleans(), pods),
    st.tuples(st.just(NODES), st.booleans(), st.builds(node, st.sampled_from(("n1", "n2")))),
)


@examples(200)
@given(st.lists(_CHANGES, max_size=25))
def test_however_a_cluster_came_to_be_every_movable_pod_is_listed_once(steps: list[Any]) -> None:
    fed = Fed(moving=MovingRules())
    for path, put, obj in steps:
        (fed.put if put else fed.drop)(obj, path=path)
    state = fed.model.state(with_bound=True)
    assert set(state.bound) == {each.node.name for each in state.nodes}
    for each in state.nodes:
        here = state.bound[each.node.name]
        counted: dict[Any, int] = {}
        for found in here.reschedulable:
            counted[found.spec] = counted.get(found.spec, 0) + 1
        assert counted == {of.spec: of.count for of in each.movable}
    uids = [each.ref.uid for here in state.bound.values() for each in here.reschedulable]
    assert len(uids) == len(set(uids))


def test_what_others_are_has_their_number() -> None:
    fed = _fed()
    fed.put(*(pod(f"d{number}", node="n1", owner="DaemonSet") for number in range(3)))
    (others,) = _bound(fed)["n1"].others
    assert isinstance(others, RunningPods)
    assert others.count == 3


@pytest.mark.parametrize(("cutoff", "expendable"), [(-10, ["a"]), (-11, []), (5, ["a", "b"])])
def test_which_pods_are_expendable_is_configured(cutoff: int, expendable: list[str]) -> None:
    """What waits is not planned, and what runs needs no other place."""
    fed = Fed(expendable_below=cutoff)
    fed.nodes(node("n1"))
    for on in ("", "n1"):
        fed.put(
            pod(f"a{on}", node=on, labels={"is": "a"}, priority=-11),
            pod(f"b{on}", node=on, labels={"is": "b"}, priority=-10),
        )
    state = fed.model.state()
    named = {f"uid-{each}" for each in ("a", "b")}
    assert {ref.uid for each in state.waiting for ref in each.pods} == named - {f"uid-{each}" for each in expendable}
    (shown,) = state.nodes
    assert sum(each.count for each in shown.movable) == 2
    assert sum(each.count for each in shown.expendable) == len(expendable)
