"""However a cluster came to be as it is, the view is the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.consumption import CLASS_KEYS, CONSUME_KEYS
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, MIN_COUNT
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view.model import NODES
from tests.support.controllers.cluster_objects import (
    REPLICA_SETS,
    Fed,
    apart,
    comparable,
    node,
    pod,
    spread,
    spread_over_all_but,
)
from tests.support.examples import examples

_PODS = "abcde"
_NODES = ("n1", "n2")
_HALF = {CONSUME_KEYS[0]: "train"}
_CONSUMES = {**_HALF, CLASS_KEYS[0]: "c"}
_ANNOTATIONS: tuple[dict[str, str], ...] = ({}, {MIN_COUNT: "1"}, {MIN_COUNT: "3"}, _HALF, _CONSUMES)
_HOST_PORT = kubernetes_pb2.Container(ports=[kubernetes_pb2.ContainerPort(hostPort=80, containerPort=80)])
_SPECS: tuple[dict[str, Any], ...] = (
    {},
    spread("web"),
    apart("db"),
    apart("web"),
    spread_over_all_but("db"),
    {"containers": [_HOST_PORT]},
)


@st.composite
def pods(draw: st.DrawFn) -> kubernetes_pb2.Pod:
    name = draw(st.sampled_from(_PODS))
    labels = {"app": draw(st.sampled_from(("web", "db"))), "pod": name}
    if draw(st.booleans()):
        labels[DEFAULT_GANG_LABEL] = "g"
    spec: dict[str, Any] = draw(st.sampled_from(_SPECS))
    if draw(st.integers(0, 4)) == 0:
        spec = {**spec, "schedulingGates": [kubernetes_pb2.PodSchedulingGate(name="g")]}
    return pod(
        name,
        draw(st.sampled_from(("1", "2", "", "many"))),
        node=draw(st.sampled_from(("", "", *_NODES))),
        phase=draw(st.sampled_from(("", "", "", "Succeeded", "Failed"))),
        labels=labels,
        annotations=draw(st.sampled_from(_ANNOTATIONS)),
        created=draw(st.integers(1, 3)),
        priority=draw(st.sampled_from((0, 5, -20))),
        owner=draw(st.sampled_from(("ReplicaSet", "DaemonSet"))),
        owner_name=draw(st.sampled_from(("owner", "owner", "of others"))),
        deleting=draw(st.integers(0, 5)) == 0,
        nominated=draw(st.sampled_from(("", *_NODES))),
        **spec,
    )


nodes = st.builds(
    node,
    st.sampled_from(_NODES),
    st.sampled_from(("4", "8")),
    ready=st.booleans(),
)
replica_sets = st.builds(
    lambda name, wanted, there: kubernetes_pb2.ReplicaSet(
        metadata={"name": name, "namespace": "default"},
        spec={"replicas": wanted, "template": kubernetes_pb2.PodTemplateSpec().SerializeToString()},
        status={"replicas": there},
    ),
    st.sampled_from(("owner", "x")),
    st.integers(0, 3),
    st.integers(0, 3),
)
_OBJECTS = {"/api/v1/pods": pods(), NODES: nodes, REPLICA_SETS: replica_sets}
changes = st.sampled_from(sorted(_OBJECTS)).flatmap(
    lambda path: st.tuples(st.just(path), st.sampled_from(("put", "put", "put", "drop")), _OBJECTS[path])
)


@examples(200)
@given(st.lists(changes, max_size=25), st.lists(pods(), max_size=3), st.booleans())
def test_any_way_to_the_same_objects_gives_the_same_state(
    steps: list[Any], relisted: list[kubernetes_pb2.Pod], look_between: bool
) -> None:
    fed = Fed(expects=True)
    there: dict[str, dict[str, Any]] = {path: {} for path in _OBJECTS}
    for path, change, obj in steps:
        if change == "put":
            there[path][obj.metadata.name] = obj
            fed.put(obj, path=path)
        else:
            there[path].pop(obj.metadata.name, None)
            fed.drop(obj, path=path)
        if look_between:
            fed.state()
    assert _seen(fed) == _seen(_anew(there))
    there["/api/v1/pods"] = {each.metadata.name: each for each in relisted}
    fed.relist(relisted)
    assert _seen(fed) == _seen(_anew(there))
    for path in _OBJECTS:
        fed.relist([], path=path)
    assert _seen(fed) == _seen(Fed(expects=True))
    assert not any(fed.leftovers())


def _anew(there: dict[str, dict[str, Any]]) -> Fed:
    fed = Fed(expects=True)
    for path, objects in there.items():
        fed.put(*objects.values(), path=path)
    return fed


def _seen(fed: Fed) -> Any:
    arrivals = fed.model.arrivals()
    return comparable(fed.state()), arrivals.waiting, arrivals.expected


def test_what_is_free_is_what_the_pods_leave() -> None:
    """Against a plain sum."""
    fed = Fed()
    fed.nodes(node("n1", "64"), node("n2", "64"))
    on = [pod(f"p{i}", str(1 + i % 3), node=_NODES[i % 2], labels={"i": str(i % 5)}) for i in range(30)]
    fed.put(*on)
    fed.drop(*on[::4])
    fed.put(*on[::8])
    left = [each for i, each in enumerate(on) if i % 4 or i % 8 == 0]
    for name in _NODES:
        here = [each for each in left if each.spec.nodeName == name]
        used = sum(int(each.spec.containers[0].resources.requests["cpu"].string) for each in here)
        assert fed.free(name) == {"cpu": 64_000 - 1000 * used, "pods": 110 - len(here)}
