"""Pods that consume ProvisioningRequests, in the view: no demand, and counted once each for what they are; and what
pods see that requests ask for, and that are not there yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.api.provisioning.objects import TemplatePod
from cagrpc.cluster.state import Consumer, ConsumerStage, PodRef
from solver.model import PODS, HostPort, Operator, PodAffinityTerm, PodSelector, PodSpec, Requirement
from tests.support.controllers.cluster_objects import Fed, apart, node, pod

_BOTH = {CONSUME_KEYS[0]: "train", CLASS_KEYS[0]: "atomic-scale-up.kubernetes.io"}
HOST = "kubernetes.io/hostname"
_GATES = [kubernetes_pb2.PodSchedulingGate(name="g")]


def _stages(fed: Fed) -> dict[str, ConsumerStage]:
    return {each.pod.name: each.stage for each in fed.state().consumers}


def test_consumers_are_no_demand_and_are_told_oldest_first() -> None:
    fed = Fed()
    fed.put(pod("b", created=200, annotations=_BOTH), pod("a", created=300, annotations=_BOTH), pod("ordinary"))
    state = fed.state()
    assert fed.waiting() == {"default/ordinary": 1}
    assert fed.model.arrivals().waiting == 1
    assert fed.model.gang("provisioningrequest.autoscaling.x-k8s.io default/train") is None
    assert [each.pod.name for each in state.consumers] == ["b", "a"]
    assert state.consumers[0] == Consumer(
        PodRef("uid-b", "default", "b", 200),
        "train",
        "atomic-scale-up.kubernetes.io",
        PodSpec(requests=(("cpu", 1000),)),
        ConsumerStage.PENDING,
    )
    assert state.consumers_missing_annotation == ()


@pytest.mark.parametrize("class_prefix", [0, 1])
@pytest.mark.parametrize("name_prefix", [0, 1])
def test_either_prefix_does_for_either_annotation(name_prefix: int, class_prefix: int) -> None:
    fed = Fed()
    fed.put(pod(annotations={CONSUME_KEYS[name_prefix]: "train", CLASS_KEYS[class_prefix]: "c"}))
    assert [(each.request, each.class_name) for each in fed.state().consumers] == [("train", "c")]


def test_a_consumer_from_coming_to_its_end() -> None:
    fed = Fed()
    fed.nodes(node())
    fed.put(pod(annotations=_BOTH, schedulingGates=_GATES))
    assert _stages(fed) == {"p": ConsumerStage.PENDING}
    fed.put(pod(annotations=_BOTH, nominated="n1"))  # the room that it is to have is its request's
    assert _stages(fed) == {"p": ConsumerStage.PENDING}
    assert fed.free() == {"cpu": 8000, PODS: 110}
    fed.put(pod(annotations=_BOTH, node="n1"))
    (bound,) = fed.state().consumers
    assert (bound.stage, bound.node) == (ConsumerStage.BOUND, "n1")
    assert fed.free() == {"cpu": 7000, PODS: 109}
    fed.put(pod(annotations=_BOTH, node="n1", deleting=True))
    assert _stages(fed) == {"p": ConsumerStage.BOUND}
    fed.put(pod(annotations=_BOTH, node="n1", phase="Succeeded"))
    (done,) = fed.state().consumers
    assert (done.stage, done.node) == (ConsumerStage.SUCCEEDED, "")
    assert fed.free() == {"cpu": 8000, PODS: 110}
    fed.drop(pod(annotations=_BOTH))
    assert fed.state().consumers == ()


@pytest.mark.parametrize(
    "nobody",
    [
        pod(annotations=_BOTH, phase="Failed"),
        pod(annotations=_BOTH, phase="Failed", node="n1"),
        pod(annotations=_BOTH, deleting=True),
    ],
)
def test_who_never_gets_there_consumes_nothing(nobody: kubernetes_pb2.Pod) -> None:
    fed = Fed()
    fed.put(pod(annotations=_BOTH))
    fed.put(nobody)
    assert fed.state().consumers == ()


def test_one_annotation_alone_is_an_ordinary_pod_and_told() -> None:
    fed = Fed()
    fed.put(
        pod("no-class", created=1, annotations={CONSUME_KEYS[1]: "train"}),
        pod("no-request", created=2, annotations={CLASS_KEYS[0]: "c", CONSUME_KEYS[0]: ""}),
        pod("done", annotations={CLASS_KEYS[0]: "c"}, phase="Succeeded"),
    )
    assert fed.waiting() == {"default/no-class": 2}
    first, second = fed.state().consumers_missing_annotation
    assert first[0].name == "no-class"
    assert "the ProvisioningRequest train to consume, and the annotation autoscaling.x-k8s.io/prov" in first[1]
    assert second[0].name == "no-request"
    assert "the provisioning class c, and the annotation autoscaling.x-k8s.io/consume-prov" in second[1]
    assert fed.state().consumers == ()
    fed.put(pod("no-class", annotations=_BOTH))
    assert [ref.name for ref, _ in fed.state().consumers_missing_annotation] == ["no-request"]
    assert fed.waiting() == {"default/no-request": 1}


def test_a_consumer_that_cannot_be_read_is_one_all_the_same() -> None:
    fed = Fed()
    broken = pod("broken", "much", annotations=_BOTH)
    fed.put(broken)
    assert [each.request for each in fed.state().consumers] == ["train"]
    assert "default/broken" in fed.state().warnings[0]


def test_nothing_is_remembered_of_those_that_are_gone() -> None:
    fed = Fed()
    half = pod("half", annotations={CONSUME_KEYS[0]: "train"})
    there = [pod("p", annotations=_BOTH), pod("q", annotations=_BOTH, phase="Succeeded"), half]
    fed.put(*there)
    assert len(fed.state().consumers) == 2
    fed.relist([])
    assert not any(fed.leftovers())


def templates(*specs: PodSpec) -> frozenset[TemplatePod]:
    return frozenset(
        TemplatePod(each.namespace, each.labels, replace(each, namespace="", labels=()), name=f"t{number}")
        for number, each in enumerate(specs)
    )


def _running(fed: Fed, *expected: PodSpec) -> dict[PodSpec, int]:
    fed.model.expect(lambda: templates(*expected))
    (shown,) = fed.state().nodes
    return {each.spec: each.count for each in shown.node.running}


def test_nodes_show_what_pods_see_that_are_not_there_yet() -> None:
    fed = Fed()
    fed.nodes(node())
    running = [pod(f"r{index}", node="n1", labels={"app": "web", "tier": "x"}) for index in range(2)]
    fed.put(*running)
    assert _running(fed) == {}
    term = PodAffinityTerm(HOST, _named("web"))
    away = PodSpec(namespace="default", labels=(("app", "train"),), pod_anti_affinity=(term,))
    seen = PodSpec(namespace="default", labels=(("app", "web"),))
    assert _running(fed, away) == {seen: 2}
    assert _running(fed) == {}
    fed.put(pod("waits", labels={"app": "train"}))
    # The pod that waits is told from others by what looks at it, also if that is not there yet.
    other = PodSpec(namespace="default", pod_anti_affinity=(replace(term, selector=_named("train")),))
    fed.model.expect(lambda: templates(other))
    (waiting,) = fed.state().waiting
    assert waiting.pod_set.spec.labels == (("app", "train"),)
    fed.drop(*running)
    assert _running(fed, away) == {}


def test_nodes_show_who_keeps_pods_away_that_are_not_there_yet() -> None:
    fed = Fed()
    fed.nodes(node())
    fed.put(pod("alone", node="n1", **apart("train")))
    assert _running(fed, PodSpec(namespace="default", labels=(("app", "web"),))) == {}
    (shown,) = _running(fed, PodSpec(namespace="default", labels=(("app", "train"),)))
    assert [each.selector for each in shown.pod_anti_affinity] == [_named("train")]


def test_nodes_show_the_ports_that_pods_want_that_are_not_there_yet() -> None:
    fed = Fed()
    fed.nodes(node())
    taking = pod("takes", node="n1")
    taking.spec.containers[0].ports.add(hostPort=80, protocol="TCP")
    fed.put(taking)
    assert _running(fed) == {}
    assert _running(fed, PodSpec(host_ports=(HostPort(81, "TCP"),))) == {}
    (shown,) = _running(fed, PodSpec(host_ports=(HostPort(80, "TCP"),)))
    assert [each.port for each in shown.host_ports] == [80]


def _named(app: str) -> PodSelector:
    return PodSelector((Requirement("app", Operator.IN, (app,)),), ("default",))
