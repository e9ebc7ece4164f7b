"""Requests of pods that are resized in place, and of pods as a whole, as the kube-scheduler counts them on nodes."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.core.pods import PodDecoder, UnreadablePod, pod_spec
from cagrpc.api.core.resources import effective_requests
from cagrpc.api.encoding.messages import known_to_message
from cagrpc.api.gen import kubernetes_pb2
from solver.model import MEMORY

_MIB = 2**20


def _container(name: str, cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}


def _set_to(name: str, actuated: str, allocated: str) -> dict[str, Any]:
    return {"name": name, "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": actuated}}}


def _pending(reason: str) -> list[dict[str, Any]]:
    return [{"type": "PodScheduled", "status": "True"},
            {"type": "PodResizePending", "status": "True", "reason": reason, "message": "m"}]  # fmt: skip


_SIDECAR = _container("s", "1", restartPolicy="Always")
_ONE = {"containers": [_container("a", "1")]}
_TWO = {"containers": [_container("a", "2")]}
_WHOLE = {"containers": [_container("a", "1")], "resources": {"requests": {"cpu": "2"}}}

RESIZES = [
    pytest.param(_TWO, {"containerStatuses": [_set_to("a", "2", "2")]}, 2000, id="nothing is resized"),
    pytest.param(_TWO, {"containerStatuses": [_set_to("a", "1", "1")]}, 2000, id="larger, not yet allocated"),
    pytest.param(_TWO, {"containerStatuses": [_set_to("a", "1", "1")], "conditions": _pending("Deferred")}, 2000,
                 id="larger, when its node has room"),
    pytest.param(_TWO, {"containerStatuses": [_set_to("a", "1", "1")], "conditions": _pending("Infeasible")}, 1000,
                 id="larger than its node can ever give"),
    pytest.param(_ONE, {"containerStatuses": [_set_to("a", "3", "2")]}, 3000, id="smaller, not yet set"),
    pytest.param(_ONE, {"containerStatuses": [_set_to("a", "1", "2")]}, 2000, id="smaller, set and still allocated"),
    pytest.param(_ONE, {"containerStatuses": [{"name": "a", "allocatedResources": {"cpu": "4"}}]}, 1000,
                 id="a kubelet that says nothing of what is set"),
    pytest.param(_ONE, {"containerStatuses": [_set_to("other", "9", "9")]}, 1000, id="of a container that is gone"),
    pytest.param({"containers": [_container("a", "1")], "initContainers": [_SIDECAR]},
                 {"initContainerStatuses": [_set_to("s", "4", "4")]}, 5000, id="a sidecar"),
    pytest.param({"containers": [_container("a", "1")], "initContainers": [_container("i", "2")]},
                 {"initContainerStatuses": [_set_to("i", "4", "4")]}, 2000, id="an init container is never resized"),
    pytest.param(_WHOLE, {"resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "3"}}, 3000,
                 id="the pod as a whole"),
    pytest.param(_WHOLE, {"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"},
                          "conditions": _pending("Infeasible")}, 1000, id="the pod as a whole, in vain"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "status", "cpu"), RESIZES)
def test_a_resize_in_place_counts_as_upstream(spec: dict[str, Any], status: dict[str, Any], cpu: int) -> None:
    problems: list[str] = []
    assert dict(pod_spec(spec, "spec", problems, status=status).requests) == {"cpu": cpu}
    assert not problems


@pytest.mark.parametrize(("spec", "status", "cpu"), RESIZES)
def test_so_it_does_in_bytes(spec: dict[str, Any], status: dict[str, Any], cpu: int) -> None:
    decoder = PodDecoder()
    before = decoder.decode(known_to_message(kubernetes_pb2.Pod, {"spec": spec}).SerializeToString())
    resized = known_to_message(kubernetes_pb2.Pod, {"spec": spec, "status": status}).SerializeToString()
    assert dict(decoder.decode(resized).spec.requests) == {"cpu": cpu}
    assert decoder.decode(resized).spec is decoder.decode(resized).spec
    again = decoder.decode(known_to_message(kubernetes_pb2.Pod, {"spec": spec}).SerializeToString())
    assert again.spec is before.spec, "the status of one is not another's"


def test_pods_whose_status_agrees_are_one_spec() -> None:
    decoder = PodDecoder()
    agreed = {"containerStatuses": [_set_to("a", "1", "1")]}
    pods: list[dict[str, Any]] = [
        {"spec": _ONE},
        {"spec": _ONE, "status": agreed},
        {"spec": _ONE, "status": {"phase": "Running"}},
    ]
    found = [decoder.decode(known_to_message(kubernetes_pb2.Pod, pod).SerializeToString()).spec for pod in pods]
    assert all(spec is found[0] for spec in found)


def test_a_status_that_is_no_quantity_is_named() -> None:
    pod = known_to_message(
        kubernetes_pb2.Pod, {"spec": _ONE, "status": {"containerStatuses": [_set_to("a", "much", "1")]}}
    )
    with pytest.raises(UnreadablePod, match=r'status\.containerStatuses\[0\]\.resources\.requests\.cpu: "much"'):
        PodDecoder().decode(pod.SerializeToString())


@pytest.mark.parametrize(
    ("container", "whole", "requests"),
    [
        pytest.param({}, {"requests": {"cpu": "1", "nvidia.com/gpu": "1", "ephemeral-storage": "1Mi"}}, {"cpu": 1000},
                     id="only cpu, memory and huge pages are the pod's as a whole"),
        pytest.param({"requests": {"memory": "1Mi"}}, {"limits": {"memory": "5Mi"}}, {MEMORY: _MIB},
                     id="a limit is no request where containers request"),
        pytest.param({"limits": {"hugepages-2Mi": "4Mi"}}, {"limits": {"hugepages-2Mi": "8Mi"}},
                     {"hugepages-2Mi": 8 * _MIB}, id="but huge pages are not overcommitted"),
        pytest.param({"limits": {"hugepages-2Mi": "4Mi"}}, {}, {"hugepages-2Mi": 4 * _MIB}, id="huge pages alone"),
    ],
)  # fmt: skip
def test_pod_level_resources(container: dict[str, Any], whole: dict[str, Any], requests: dict[str, int]) -> None:
    problems: list[str] = []
    spec = {"containers": [{"name": "a", "resources": container}], "resources": whole}
    assert dict(pod_spec(spec, "spec", problems).requests) == requests
    assert not problems


def test_names_that_are_no_text_fail_nothing() -> None:
    problems: list[str] = []
    pod_spec(
        {"containers": [{"name": ["x"]}, {"name": {}}]}, "spec", problems, status={"containerStatuses": [{"name": []}]}
    )
    assert not problems


def test_a_request_beyond_its_limit_is_refused_as_by_the_api_server() -> None:
    over = {"requests": {"cpu": "2", "memory": "1Gi", "x.io/y": "1"}, "limits": {"cpu": "500m", "memory": "1024Mi"}}
    problems: list[str] = []
    spec = {
        "containers": [{"name": "c", "resources": over}],
        "resources": {"requests": {"cpu": 3}, "limits": {"cpu": 2}},
    }
    effective_requests(spec, "spec", problems)
    assert problems == [
        "spec.containers[0].resources.requests.cpu: 2 is more than the limit of 500m",
        "spec.resources.requests.cpu: 3 is more than the limit of 2",
    ]
