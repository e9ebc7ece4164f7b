"""What the view makes of single objects, and of their changes."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, MIN_COUNT, GangCount
from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.api.encoding.messages import known_to_message
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.markers import SCALE_DOWN_DISABLED, SCALE_DOWN_DISABLED_BY_US
from cagrpc.cluster.state import PodRef
from cagrpc.cluster.view.model import NODES
from solver.model import PODS, PodSpec, RunningPods, Taint, TaintEffect
from tests.support.controllers.cluster_objects import (
    DAEMON_SETS,
    POD_GROUPS,
    PRIORITIES,
    Fed,
    apart,
    comparable,
    node,
    pod,
    spread,
)


def test_pods_that_planning_cannot_tell_apart_wait_together_oldest_first() -> None:
    fed = Fed()
    fed.put(
        pod("b", created=200, labels={"pod-template-hash": "2"}),
        pod("a", created=300, labels={"pod-template-hash": "1"}),
        pod("c", created=100, labels={"pod-template-hash": "1"}),
        pod("big", "2", created=50),
    )
    big, small = fed.state().waiting
    assert (big.pod_set.name, big.pod_set.count, big.pod_set.waiting_seconds) == ("default/big", 1, 9950)
    assert [ref.name for ref in small.pods] == ["c", "b", "a"]
    assert small.pod_set.spec == PodSpec(requests=(("cpu", 1000),))
    assert small.pods[0] == PodRef("uid-c", "default", "c", 100)


@pytest.mark.parametrize(
    "of_no_concern",
    [
        pod(deleting=True),
        pod(phase="Succeeded"),
        pod(phase="Failed"),
        pod(schedulerName="another"),
        pod(priority=-11),
        pod(schedulingGates=[kubernetes_pb2.PodSchedulingGate(name="g")]),
        pod(owner="DaemonSet"),
        pod(node="n1"),
    ],
)
def test_only_pods_wait_that_a_new_node_could_serve(of_no_concern: kubernetes_pb2.Pod) -> None:
    fed = Fed()
    fed.put(pod())
    assert fed.waiting() == {"default/p": 1}
    fed.put(of_no_concern)
    assert fed.waiting() == {}
    assert fed.model.pod_of("uid-p") is None
    assert fed.model.arrivals().waiting == 0


def test_ordinary_priorities_and_names_of_our_scheduler_wait() -> None:
    fed = Fed()
    fed.put(pod("a", priority=-10), pod("b", schedulerName="default-scheduler"), pod("c", owner="ReplicaSet"))
    assert fed.model.arrivals().waiting == 3


def test_a_pod_that_is_bound_takes_from_its_node_until_it_is_finished() -> None:
    fed = Fed()
    fed.put(pod())
    fed.nodes(node())
    assert fed.free() == {"cpu": 8000, PODS: 110}
    fed.put(pod(node="n1"))
    assert fed.free() == {"cpu": 7000, PODS: 109}
    assert fed.waiting() == {}
    fed.put(pod(cpu="3", node="n1"))  # resized in place
    assert fed.free() == {"cpu": 5000, PODS: 109}
    fed.put(pod(cpu="3", node="n1", deleting=True))
    assert fed.free() == {"cpu": 5000, PODS: 109}
    fed.put(pod(cpu="3", node="n1", phase="Succeeded"))
    assert fed.free() == {"cpu": 8000, PODS: 110}
    fed.put(pod(node="n1"))
    fed.drop(pod(node="n1"))
    assert fed.free() == {"cpu": 8000, PODS: 110}


def test_pods_may_be_known_before_their_node_and_after_it() -> None:
    fed = Fed()
    fed.put(pod(node="n1"))
    assert fed.state().nodes == ()
    fed.nodes(node())
    assert fed.free() == {"cpu": 7000, PODS: 109}
    fed.drop(node(), path=NODES)
    assert fed.state().nodes == ()
    fed.nodes(node(cpu="4"))
    assert fed.free() == {"cpu": 3000, PODS: 109}
    fed.drop(node(), path=NODES)
    fed.drop(pod(node="n1"))
    fed.nodes(node())
    assert fed.free() == {"cpu": 8000, PODS: 110}


def test_a_pod_for_which_others_are_preempted_takes_from_the_node_that_it_is_to_get() -> None:
    fed = Fed()
    fed.put(pod("a"), pod("b", "3", nominated="n1"))
    assert fed.waiting() == {"default/a": 1, "default/b": 1}  # there is no such node
    fed.nodes(node("n1"))
    assert (fed.waiting(), fed.free()["cpu"], fed.free()["pods"]) == ({"default/a": 1}, 5000, 109)
    assert (fed.model.arrivals().waiting, fed.model.pod_of("uid-b")) == (1, None)
    fed.put(pod("b", "3"))  # the scheduler has changed its mind
    assert (fed.waiting(), fed.free()["cpu"]) == ({"default/a": 1, "default/b": 1}, 8000)
    fed.put(pod("b", "3", nominated="n1"))
    fed.drop(node("n1"), path=NODES)
    assert fed.waiting() == {"default/a": 1, "default/b": 1}
    fed.nodes(node("n1"), node("n2"))
    fed.put(pod("b", "3", node="n2", nominated="n1"))
    assert (fed.waiting(), fed.free("n1")["cpu"], fed.free("n2")["cpu"]) == ({"default/a": 1}, 8000, 5000)


def test_a_nominated_pod_counts_for_its_gang() -> None:
    fed = Fed()
    fed.nodes(node("n1"))
    fed.put(_pod_group(2), path=POD_GROUPS)
    fed.put(_of_gang("a", 1, nominated="n1"), _of_gang("b", 2))
    assert _gangs(fed) == [(GANG, ["b"])]


def meant_for(name: str, cpu: str = "1", **more: Any) -> kubernetes_pb2.Pod:
    """A DaemonSet's pod, or one that says so."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    uid = f"{cpu} {more}"
    return pod(f"d-{name}", cpu, uid=uid + name, owner="DaemonSet", affinity={"nodeAffinity": required}, **more)


@pytest.mark.parametrize(
    "never_bound",
    [{"cpu": "999999999"}, {"schedulingGates": [{"name": "example.com/gate"}]}, {"nodeSelector": {"of": "others"}}],
    ids=str,
)
def test_a_daemons_pod_that_is_never_bound_takes_nothing(never_bound: dict[str, Any]) -> None:
    """However large it says that it is: a node that it does not fit is no fuller for it."""
    fed = Fed()
    fed.nodes(node())
    fed.put(pod("runs", "2", node="n1"), meant_for("n1", **never_bound), meant_for("n1", "3"))
    assert fed.free() == {"cpu": 3000, PODS: 108}
    fed.put(meant_for("n1", "4"))
    assert fed.free() == {"cpu": 3000, PODS: 108}
    fed.drop(meant_for("n1", "3"))
    assert fed.free() == {"cpu": 2000, PODS: 108}


def test_a_daemons_pod_takes_from_the_node_that_it_is_meant_for() -> None:
    fed = Fed()
    fed.nodes(node(), node("n2"))
    fed.put(meant_for("n1"), meant_for("n2"))
    assert fed.free("n1") == fed.free("n2") == {"cpu": 7000, PODS: 109}
    assert fed.waiting() == {}
    assert all(each.movable == () for each in fed.state().nodes)


def test_nodes_are_told_as_they_are_but_for_our_taint() -> None:
    fed = Fed()
    ours = {"key": START_UP_TAINT, "effect": "NoSchedule", "value": "i"}
    other = {"key": "gpu", "effect": "NoSchedule"}
    held = node("n1", taints=[ours, other])
    held.metadata.annotations[SCALE_DOWN_DISABLED] = "true"
    fed.nodes(held, node("n2", ready=False, unschedulable=True))
    first, second = fed.state().nodes
    assert (first.held, first.ready, first.provider_id, first.scale_down_disabled) == (True, True, "id-n1", "true")
    assert first.node.taints == (Taint("gpu", TaintEffect.NO_SCHEDULE),)
    assert not first.scale_down_disabled_by_us
    assert (second.held, second.ready, second.scale_down_disabled) == (False, False, "")
    assert [taint.key for taint in second.node.taints] == ["node.kubernetes.io/unschedulable"]
    assert fed.model.ready_instances() == {"id-n1"}
    assert fed.model.held_nodes() == {"id-n1": "n1"}
    assert fed.model.node_names() == {"id-n1": "n1", "id-n2": "n2"}
    held.metadata.annotations[SCALE_DOWN_DISABLED_BY_US] = "why"
    held.metadata.deletionTimestamp.seconds = 5
    fed.nodes(held, node("n2"))
    assert fed.state().nodes[0].scale_down_disabled_by_us
    assert fed.model.ready_instances() == {"id-n2"}
    fed.nodes(node("n1"), node("n2", taints=[ours]))
    assert fed.model.held_nodes() == {"id-n2": "n2"}


def test_movable_are_all_pods_but_those_that_belong_to_the_node() -> None:
    fed = Fed()
    fed.nodes(node())
    fed.put(
        pod("a", node="n1"),
        pod("b", node="n1", labels={"x": "y"}),
        pod("c", "2", node="n1"),
        pod("daemon", node="n1", owner="DaemonSet"),
        pod("mirror", node="n1", annotations={"kubernetes.io/config.mirror": "hash"}),
        pod("going", node="n1", deleting=True),
    )
    (shown,) = fed.state().nodes
    assert sorted((each.spec.requests, each.count) for each in shown.movable) == [
        ((("cpu", 1000),), 2),
        ((("cpu", 2000),), 1),
    ]
    assert shown.node.free == {"cpu": 1000, PODS: 104}


def test_labels_are_seen_by_whoever_selects_them_only() -> None:
    fed = Fed()
    fed.nodes(node())
    fed.put(pod("web", node="n1", labels={"app": "web", "hash": "1"}), pod("db", node="n1", labels={"app": "db"}))
    before = fed.state()
    assert before.nodes[0].node.running == ()
    assert [each.count for each in before.nodes[0].movable] == [2]
    waiting = pod("new", labels={"app": "web"}, **spread("web"))
    fed.put(waiting)
    state = fed.state()
    web = RunningPods(PodSpec(namespace="default", labels=(("app", "web"),)))
    assert web in state.nodes[0].node.running
    assert state.waiting[0].pod_set.spec.labels == (("app", "web"),)
    assert sorted(dict(each.spec.labels).get("app", "") for each in state.nodes[0].movable) == ["", "web"]
    fed.drop(waiting)
    assert comparable(fed.state()) == comparable(before)


def test_movable_pods_show_what_any_pod_can_see() -> None:
    fed = Fed()
    fed.nodes(node(), node("n2"))
    fed.put(pod("web", node="n1", labels={"app": "web"}))
    assert [each.spec.labels for each in fed.state().nodes[0].movable] == [()]
    fed.put(pod("beside", node="n2", **spread("web")))
    shown = fed.state().nodes[0]
    assert [each.spec.labels for each in shown.movable] == [(("app", "web"),)]
    assert shown.node.running == ()


def test_running_pods_that_keep_others_away_are_seen_by_these() -> None:
    fed = Fed()
    fed.nodes(node(), node("n2"))
    fed.put(pod("alone", node="n1", **apart("web")), pod("other", labels={"app": "other"}))
    assert [each.node.running for each in fed.state().nodes] == [(), ()]
    fed.put(pod("web", labels={"app": "web"}))
    state = fed.state()
    (seen,) = state.nodes[0].node.running
    assert seen.spec.pod_anti_affinity
    assert state.nodes[1].node.running == ()
    assert {each.pod_set.name: dict(each.pod_set.spec.labels) for each in state.waiting} == {
        "default/other": {},
        "default/web": {"app": "web"},
    }


def test_ports_that_are_asked_for_are_seen_where_they_are_taken() -> None:
    fed = Fed()
    fed.nodes(node())
    taken = pod("taken", node="n1")
    taken.spec.containers[0].ports.add(hostPort=80)
    taken.spec.containers[0].ports.add(hostPort=81)
    fed.put(taken)
    assert fed.state().nodes[0].node.running == ()
    asking = pod("asking")
    asking.spec.containers[0].ports.add(hostPort=80)
    fed.put(asking)
    (seen,) = fed.state().nodes[0].node.running
    assert [port.port for port in seen.spec.host_ports] == [80]


def test_pods_in_flight_are_left_out_and_still_arrived() -> None:
    fed = Fed()
    fed.put(pod("a"), pod("b"))
    assert fed.waiting("uid-a") == {"default/b": 1}
    assert fed.waiting("uid-a", "uid-b") == {}
    assert fed.model.arrivals().waiting == 2
    assert fed.model.pod_of("uid-a") == PodRef("uid-a", "default", "a", 100)


OURS = {"manager": "cagrpc-placement", "fieldsV1": {"Raw": b'{"f:status":{"f:nominatedNodeName":{}}}'}}
OTHERS = {"manager": "kube-scheduler", "fieldsV1": {"Raw": b'{"f:status":{"f:nominatedNodeName":{}}}'}}


def nominated(name: str, node: str, *managers: Any, **more: Any) -> kubernetes_pb2.Pod:
    made = pod(name, **more)
    made.status.nominatedNodeName = node
    for each in managers:
        made.metadata.managed_fields.append(
            known_to_message(kubernetes_pb2.ManagedFieldsEntry, each).SerializeToString()
        )
    return made


def test_a_nomination_of_our_own_is_told_from_the_schedulers_by_its_field_manager() -> None:
    fed = Fed()
    fed.nodes(node())
    fed.put(nominated("ours", "n1", OURS), nominated("the-schedulers", "n1", OTHERS), pod("nobodys"))
    assert fed.waiting() == {"default/nobodys": 2}  # who is preempted for has room already
    assert {uid: each.nominated_node for uid, each in fed.model.nominated_by_us().items()} == {"uid-ours": "n1"}
    found = fed.model.pending(["uid-ours", "uid-the-schedulers", "uid-nobodys", "uid-gone"])
    assert {uid: (each.nominated_node, each.nominated_by_us) for uid, each in found.items()} == {
        "uid-ours": ("n1", True),
        "uid-the-schedulers": ("n1", False),
        "uid-nobodys": ("", False),
    }
    fed.put(nominated("ours", "", OTHERS))
    assert fed.model.nominated_by_us() == {}
    fed.put(pod("ours", node="n1"))
    assert fed.model.pending(["uid-ours"]) == {}
    assert fed.model.nodes_of(["uid-ours", "uid-nobodys"]) == {"uid-ours": "n1"}


def test_each_change_of_a_pending_pod_is_told() -> None:
    fed = Fed()
    told: list[tuple[str, tuple[str, int] | None]] = []
    bound: list[tuple[str, float]] = []
    fed.model.subscribe(
        lambda uid, each: told.append((uid, (each.nominated_node, each.seen) if each else None)),
        lambda uid, seconds: bound.append((uid, seconds)),
    )
    fed.time = 5.0
    fed.put(pod("a"))
    fed.time = 7.0
    fed.put(nominated("a", "n1", OURS))
    fed.time = 9.5
    fed.put(pod("a", node="n1"))
    fed.drop(pod("a", node="n1"))
    assert told == [("uid-a", ("", 1)), ("uid-a", ("n1", 2)), ("uid-a", None)]
    assert bound == [("uid-a", 4.5)]
    fed.put(pod("b"))
    fed.drop(pod("b"))  # it is gone, and was never bound
    fed.put(pod("c", node="n1"))  # nobody has seen it wait
    assert bound == [("uid-a", 4.5)]


def test_when_the_scheduler_has_tried_a_pod_is_seen_by_what_others_have_changed() -> None:
    fed = Fed()

    def tried_at() -> float:
        return fed.model.pending(["uid-a"])["uid-a"].tried_at_seconds

    fed.put(pod("a"))
    fed.time = 3.0
    fed.put(nominated("a", "n1", OURS))
    assert tried_at() == 0.0
    fed.time = 5.0
    fed.put(pod("a"))  # it was tried, and its nomination cleared
    assert tried_at() == 5.0


def test_arrivals_know_the_first_and_the_last() -> None:
    fed = Fed()
    assert fed.model.arrivals().first_seen_at_seconds is None
    for second, name in enumerate("abc"):
        fed.time = float(second)
        fed.put(pod(name))
    fed.time = 9.0
    fed.put(pod("a", labels={"new": "label"}))  # seen before
    arrivals = fed.model.arrivals()
    assert (arrivals.waiting, arrivals.first_seen_at_seconds, arrivals.last_seen_at_seconds) == (3, 0.0, 2.0)
    fed.put(pod("a", node="n1"))
    fed.drop(pod("c"))
    arrivals = fed.model.arrivals()
    assert (arrivals.waiting, arrivals.first_seen_at_seconds, arrivals.last_seen_at_seconds) == (1, 1.0, 2.0)


def test_priorities_come_from_the_pod_or_else_from_its_class() -> None:
    fed = Fed()
    fed.put(pod("a", priority=7, priorityClassName="high"), pod("b", priorityClassName="high"), pod("c"))
    assert {each.pod_set.name: each.pod_set.priority for each in fed.state().waiting} == {
        "default/a": 7,
        "default/b": 0,
    }
    fed.put(kubernetes_pb2.PriorityClass(metadata={"name": "high"}, value=1000), path=PRIORITIES)
    assert {each.pod_set.name: each.pod_set.priority for each in fed.state().waiting} == {
        "default/a": 7,
        "default/b": 1000,
        "default/c": 0,
    }


def test_daemon_sets_are_told_by_name() -> None:
    fed = Fed()
    for name, cpu in (("b", "2"), ("a", "1")):
        template = {"spec": {"containers": [{"resources": {"requests": {"cpu": {"string": cpu}}}}]}}
        fed.put(kubernetes_pb2.DaemonSet(metadata={"name": name}, spec={"template": template}), path=DAEMON_SETS)
    assert [each.requests for each in fed.state().daemon_sets] == [(("cpu", 1000),), (("cpu", 2000),)]
    assert all(each.tolerations for each in fed.state().daemon_sets)


def _of_gang(name: str, created: int = 100, **more: Any) -> kubernetes_pb2.Pod:
    return pod(name, labels={DEFAULT_GANG_LABEL: "g"}, created=created, **more)


def _pod_group(min_member: int) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": "g"}, "spec": {"minMember": min_member}}


GANG = "podgroup.scheduling.x-k8s.io default/g"


def _gangs(fed: Fed) -> list[tuple[str | None, list[str]]]:
    return [(each.pod_set.gang, [ref.name for ref in each.pods]) for each in fed.state().waiting]


def _incomplete(fed: Fed) -> list[tuple[str, int, int, list[str]]]:
    found = fed.state().incomplete_gangs
    return [(each.name, each.there, each.needed, [ref.name for ref in each.pods]) for each in found]


def test_a_gang_is_planned_once_its_minimum_is_there_and_the_rest_of_it_is_ordinary() -> None:
    fed = Fed()
    fed.put(_pod_group(3), path=POD_GROUPS)
    fed.put(_of_gang("a", 1), _of_gang("b", 2, cpu="2"))
    assert fed.state().waiting == ()
    assert _incomplete(fed) == [(GANG, 2, 3, ["a", "b"])]
    fed.put(_of_gang("c", 3), _of_gang("d", 4))
    assert _gangs(fed) == [(GANG, ["a", "c"]), (GANG, ["b"]), (None, ["d"])]
    assert fed.state().incomplete_gangs == ()
    fed.put(_of_gang("a", 1, node="n1"))
    assert _gangs(fed) == [(GANG, ["b"]), (GANG, ["c"]), (None, ["d"])]
    fed.put(_of_gang("b", 2, cpu="2", node="n1"), _of_gang("c", 3, phase="Succeeded"))
    assert _gangs(fed) == [(None, ["d"])]


def test_members_in_flight_count_for_their_gang() -> None:
    fed = Fed()
    fed.put(_pod_group(2), path=POD_GROUPS)
    fed.put(_of_gang("a", 1), _of_gang("b", 2))
    assert fed.state("uid-a").incomplete_gangs == ()
    assert fed.waiting("uid-a") == {"default/b": 1}


def test_without_a_minimum_a_gang_waits_for_its_gated_pods() -> None:
    fed = Fed()
    gates = [kubernetes_pb2.PodSchedulingGate(name="g")]
    fed.put(_of_gang("a"), _of_gang("b", schedulingGates=gates))
    assert _incomplete(fed) == [(GANG, 1, 2, ["a"])]
    fed.put(_of_gang("b"))
    assert _gangs(fed) == [(GANG, ["a", "b"])]
    fed.put(_of_gang("b", schedulingGates=gates, annotations={MIN_COUNT: "1"}))
    assert _gangs(fed) == [(GANG, ["a"])]


def test_a_pod_group_that_goes_leaves_what_annotations_say() -> None:
    fed = Fed()
    fed.put(_pod_group(9), path=POD_GROUPS)
    fed.put(_of_gang("a", annotations={MIN_COUNT: "1"}), _of_gang("b"))
    assert _incomplete(fed) == [(GANG, 2, 9, ["a", "b"])]
    fed.drop(_pod_group(9), path=POD_GROUPS)
    assert _gangs(fed) == [(GANG, ["a"]), (None, ["b"])]


def test_pods_that_cannot_be_read_are_told_of_and_take_nothing() -> None:
    fed = Fed()
    fed.nodes(node())
    fed.put(pod("a", "many"), pod("b", "many", node="n1"))
    state = fed.state()
    assert state.waiting == ()
    assert [
        warning.startswith(f"pod default/{name}: spec.containers[0]")
        for warning, name in zip(state.warnings, "ab", strict=True)
    ] == [True, True]
    assert state.nodes[0].node.free == {"cpu": 8000, PODS: 109}
    fed.put(pod("a"))
    fed.drop(pod("b", "many", node="n1"))
    assert fed.state().warnings == ()
    fed.put(*(pod(f"p{i}", "many") for i in range(25)))
    assert fed.state().warnings[-1] == "and 5 more such pods"


def test_a_state_is_made_anew_only_where_something_changed() -> None:
    fed = Fed()
    fed.nodes(node(), node("n2"))
    fed.put(pod("a", node="n1"), pod("b"))
    before = fed.state()
    fed.put(pod("a", node="n1"), pod("b"))  # nothing new
    fed.nodes(node())
    again = fed.state()
    assert again.nodes[0] is before.nodes[0]
    fed.put(pod("c", node="n2"))
    after = fed.state()
    assert after.nodes[0] is before.nodes[0]
    assert after.nodes[1] is not before.nodes[1]


def test_a_gang_in_numbers() -> None:
    fed = Fed()
    assert fed.model.gang(GANG) is None
    gates = [kubernetes_pb2.PodSchedulingGate(name="g")]
    fed.put(_of_gang("a", annotations={MIN_COUNT: "2"}), _of_gang("b", cpu="2"), _of_gang("c", schedulingGates=gates))
    assert fed.model.gang(GANG) == GangCount(pending=2, held_back=1, min_count=2)
    fed.put(_pod_group(3), path=POD_GROUPS)
    fed.put(_of_gang("a", node="n1"), _of_gang("d", phase="Succeeded"))
    assert fed.model.gang(GANG) == GangCount(pending=1, bound=2, held_back=1, min_count=3)
