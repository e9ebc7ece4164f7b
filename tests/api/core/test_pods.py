"""Pods to what planning reads of them: Kubernetes' resource rules, affinity, tolerations; bytes and JSON alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.autoscaler import expander
from cagrpc.api.autoscaler.expander import group
from cagrpc.api.core.consumption import Consumption
from cagrpc.api.core.gangs import GangMembership
from cagrpc.api.core.pods import Pod, PodDecoder, UnreadablePod, pod_spec, unread
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import InvalidInput
from solver.model import NodeSelectorTerm, Operator, PodSpec, Requirement, Toleration
from solver.model.eligibility import why_not_eligible
from tests.support.examples import examples
from tests.support.recordings import conversation

_MIB = 2**20


def _container(cpu: str = "", memory: str = "", **more: Any) -> dict[str, Any]:
    requests = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value}
    return {"name": "c", "resources": {"requests": requests}, **more}


def _sidecar(cpu: str) -> dict[str, Any]:
    return _container(cpu, restartPolicy="Always")


def _converted(spec: dict[str, Any]) -> PodSpec:
    problems: list[str] = []
    converted = pod_spec(spec, "spec", problems)
    assert not problems
    return converted


@pytest.mark.parametrize(
    ("spec", "requests"),
    [
        pytest.param({"containers": [_container("1", "1Gi"), _container("500m")]}, {"cpu": 1500, "memory": 1024 * _MIB},
                     id="containers add up"),
        pytest.param({"containers": [_container("1")], "initContainers": [_container("3"), _container("2")]},
                     {"cpu": 3000}, id="the largest init container where it is more"),
        pytest.param({"containers": [_container("4")], "initContainers": [_container("3")]}, {"cpu": 4000},
                     id="the containers where they are more"),
        pytest.param({"containers": [_container("1")], "initContainers": [_sidecar("2")]}, {"cpu": 3000},
                     id="a sidecar runs beside the containers"),
        pytest.param({"containers": [_container("1")], "initContainers": [_sidecar("2"), _container("5")]},
                     {"cpu": 7000}, id="an init container runs beside the sidecars before it"),
        pytest.param({"containers": [_container("1")], "initContainers": [_container("5"), _sidecar("2")]},
                     {"cpu": 5000}, id="but not beside those after it"),
        pytest.param({"containers": [_container("1", "1Gi")], "overhead": {"cpu": "250m", "memory": "64Mi"}},
                     {"cpu": 1250, "memory": 1088 * _MIB}, id="overhead is added"),
        pytest.param({"containers": [_container("1", "1Gi")], "resources": {"requests": {"cpu": "3"}}},
                     {"cpu": 3000, "memory": 1024 * _MIB}, id="what the pod as a whole states counts instead"),
        pytest.param({"containers": [_container()], "resources": {"limits": {"cpu": "3"}}, "overhead": {"cpu": "1"}},
                     {"cpu": 4000}, id="a pod-level limit without any request"),
        pytest.param({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": "1"},
                                                                 "requests": {"cpu": "100m"}}}]},
                     {"cpu": 100, "nvidia.com/gpu": 2}, id="a limit without a request is the request"),
        pytest.param({"containers": [_container("0", "0")]}, {}, id="zeros are left out"),
        pytest.param({"containers": [_container("0.1m")]}, {"cpu": 1}, id="fractions are rounded up"),
    ],
)  # fmt: skip
def test_effective_requests(spec: dict[str, Any], requests: dict[str, int]) -> None:
    assert dict(_converted(spec).requests) == requests


def test_required_node_affinity_selector_and_tolerations() -> None:
    spec = {
        "containers": [_container("1")],
        "nodeSelector": {"b": "2", "a": "1"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [{"key": "zone", "operator": "In", "values": ["b", "a"]}],
                            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}],
                        },
                        {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["4"]}]},
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
            }
        },
        "tolerations": [{"operator": "Exists"}, {"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
    }
    assert _converted(spec) == PodSpec(
        requests=(("cpu", 1000),),
        node_selector=(("a", "1"), ("b", "2")),
        affinity=(
            NodeSelectorTerm(
                (Requirement("zone", Operator.IN, ("a", "b")),),
                (Requirement("metadata.name", Operator.NOT_IN, ("n1",)),),
            ),
            NodeSelectorTerm((Requirement("cores", Operator.GT, ("4",)),)),
        ),
        tolerations=(Toleration("", "Exists"), Toleration("gpu", "Equal", "yes", "NoSchedule")),
    )


def test_affinity_without_terms_matches_nothing_and_is_not_the_same_as_none() -> None:
    required: dict[str, Any] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    assert _converted({"affinity": required}).affinity == ()
    assert _converted({}).affinity is None


def test_all_problems_of_a_pod_are_told_at_once_with_their_paths() -> None:
    problems: list[str] = []
    terms = [
        {"matchExpressions": [
            {"operator": "In", "values": ["x"]},
            {"key": "k", "operator": "Near"},
            {"key": "k", "operator": "In"},
            {"key": "k", "operator": "Exists", "values": ["x"]},
            {"key": "k", "operator": "Gt", "values": ["1", "2"]},
            {"key": "k", "operator": "In", "values": [5]},
        ]},
    ]  # fmt: skip
    unparsed = {"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["much"]}]}
    spec: dict[str, Any] = {
        "containers": [_container("much"), "c"],
        "initContainers": {},
        "nodeSelector": {"a": True},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": unparsed}],
            }
        },
        "tolerations": [{"key": "a", "operator": "Le"}],
    }
    pod_spec(spec, "spec", problems)
    at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    starts = [
        'spec.containers[0].resources.requests.cpu: "much" is not a quantity',
        'spec.containers[1]: expected a mapping, found "c"',
        "spec.initContainers: expected a list, found {}",
        "spec.nodeSelector.a: expected text, found true",
        f"{at}.matchExpressions[0].key: missing",
        f'{at}.matchExpressions[1].operator: "Near" is not one of In, NotIn',
        f"{at}.matchExpressions[2].values: In needs at least one value",
        f"{at}.matchExpressions[3].values: Exists takes none, found x",
        f"{at}.matchExpressions[4].values: Gt takes one integer, found 1, 2",
        f"{at}.matchExpressions[5].values: expected a list of texts, found [5]",
        "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference: kube-scheduler",
        'spec.tolerations[0].operator: "Le" is not one of Equal, Exists, Gt, Lt',
    ]
    for start in starts:
        assert any(problem.startswith(start) for problem in problems), (start, problems)


def _message(name: str = "a-1", uid: str = "u1", cpu: str = "1", **annotations: str) -> kubernetes_pb2.Pod:
    pod = kubernetes_pb2.Pod()
    pod.metadata.name, pod.metadata.namespace, pod.metadata.uid = name, "ns", uid
    pod.metadata.annotations.update(annotations)
    pod.spec.containers.add(name="c").resources.requests["cpu"].string = cpu
    return pod


def test_bytes_take_the_same_way_as_json() -> None:
    message = _message()
    message.metadata.creationTimestamp.seconds = 1000
    message.spec.priority = 7
    message.spec.nodeSelector["disk"] = "ssd"
    message.spec.overhead["memory"].string = "1Mi"
    message.spec.tolerations.add(key="gpu", operator="Exists")
    required = message.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
    required.nodeSelectorTerms.add().matchExpressions.add(key="zone", operator="In", values=["a"])
    pod = PodDecoder().decode(message.SerializeToString())
    assert pod == Pod("u1", "ns/a-1", pod.spec, priority=7, created_at_seconds=1000)
    assert pod.spec == PodSpec(
        requests=(("cpu", 1000), ("memory", _MIB)),
        node_selector=(("disk", "ssd"),),
        affinity=(NodeSelectorTerm((Requirement("zone", Operator.IN, ("a",)),)),),
        tolerations=(Toleration("gpu", "Exists"),),
    )


def test_a_placeholder_and_a_gang_are_told_by_their_annotations() -> None:
    decode = PodDecoder().decode
    assert decode(_message(podType="capacityBufferFakePod").SerializeToString()).placeholder
    assert not decode(_message(podType="other").SerializeToString()).placeholder
    paused = _message()
    paused.metadata.labels["slack.cagrpc.io/placeholder"] = "true"
    assert decode(paused.SerializeToString()).placeholder
    decode = PodDecoder(consuming=False).decode
    asked = {"autoscaling.x-k8s.io/consume-provisioning-request": "train"}
    assert decode(_message(**asked).SerializeToString()).gang == GangMembership(
        "provisioningrequest.autoscaling.x-k8s.io ns/train"
    )
    older = {"cluster-autoscaler.kubernetes.io/consume-provisioning-request": "train"}
    assert decode(_message(**older).SerializeToString()).gang == GangMembership(
        "provisioningrequest.autoscaling.x-k8s.io ns/train"
    )
    assert decode(_message().SerializeToString()).gang is None


def test_where_requests_are_served_who_consumes_one_is_of_no_gang() -> None:
    decode = PodDecoder().decode
    half = {"autoscaling.x-k8s.io/consume-provisioning-request": "train"}
    whole = {**half, "cluster-autoscaler.kubernetes.io/provisioning-class-name": "c"}
    volcano = {"scheduling.k8s.io/group-name": "a"}
    consumer = decode(_message(**whole, **volcano).SerializeToString())
    assert (consumer.consumer, consumer.gang, consumer.consumes) == (True, None, Consumption("train", "c"))
    ordinary = decode(_message(**half).SerializeToString())
    assert (ordinary.consumer, ordinary.gang, ordinary.consumes) == (False, None, Consumption("train", ""))
    assert decode(_message(**half, **volcano).SerializeToString()).gang == GangMembership(
        "podgroup.scheduling.volcano.sh ns/a"
    )


def test_a_pod_without_uid_is_known_by_its_name() -> None:
    assert PodDecoder().decode(_message(uid="").SerializeToString()).key == "ns/a-1"


def test_replicas_are_one_spec_whatever_unknown_fields_say() -> None:
    # Field 1 of a volume (its name, often with a random suffix) and field 7 of a container (its environment) are
    # not declared, so they arrive as unknown fields.
    volume = bytes([0x0A, 0x06, 0x0A, 0x04]) + b"vol%d"
    decoder = PodDecoder()
    pods = []
    for index in range(3):
        message = _message(f"a-{index}", f"u{index}")
        spec = message.spec.SerializeToString() + volume % index
        message.ClearField("spec")
        data = message.SerializeToString() + bytes([0x12, len(spec)]) + spec
        pods.append(decoder.decode(data))
    assert len({id(pod.spec) for pod in pods}) == 1
    assert len(decoder._specs) == 1


def test_pods_are_one_spec_wherever_they_run_and_whatever_claims_are_theirs() -> None:
    decoder = PodDecoder()
    specs = [
        kubernetes_pb2.PodSpec(nodeName="n1", priority=1, schedulerName="s"),
        kubernetes_pb2.PodSpec(nodeName="n2", schedulingGates=[kubernetes_pb2.PodSchedulingGate(name="g")]),
        kubernetes_pb2.PodSpec(volumes=[{"volumeSource": {"persistentVolumeClaim": {"claimName": "c-0"}}}]),
    ]
    found = [decoder.decode(kubernetes_pb2.Pod(spec=spec).SerializeToString()).spec for spec in specs]
    assert all(spec is found[0] for spec in found)


def test_a_decoder_forgets_when_it_knows_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.api.core.pods._MOST_SPECS", 3)
    decoder = PodDecoder()
    for cpu in (*range(1, 9), 1):
        container = kubernetes_pb2.Container(name="c")
        container.resources.requests["cpu"].string = str(cpu)
        pod = kubernetes_pb2.Pod(spec=kubernetes_pb2.PodSpec(containers=[container]))
        assert decoder.decode(pod.SerializeToString()).spec.requests == (("cpu", 1000 * cpu),)
        assert len(decoder._specs) <= 3


def test_a_pod_that_cannot_be_meant_is_named() -> None:
    with pytest.raises(UnreadablePod, match=r'pod ns/a-1: spec.containers\[0\].resources.requests.cpu: "x" is not'):
        PodDecoder().decode(_message(cpu="x").SerializeToString())


def test_of_an_unread_pod_is_known_who_it_is_and_that_no_node_serves_it() -> None:
    message = _message(cpu="x", podType="capacityBufferFakePod")
    message.spec.priority = 7
    message.metadata.creationTimestamp.seconds = 1000
    pod = unread(message.SerializeToString())
    assert pod == Pod("u1", "ns/a-1", pod.spec, priority=7, placeholder=True, created_at_seconds=1000)
    assert why_not_eligible(pod.spec, {"any": "label"}, ()) == "required node affinity not met"


def test_bytes_that_are_no_pod_are_known_by_their_digest() -> None:
    assert unread(b"\xff") == unread(b"\xff")
    assert unread(b"\xff").key != unread(b"\xfe").key


@given(st.binary(max_size=200))
def test_random_bytes_are_a_pod_or_an_invalid_input(data: bytes) -> None:
    try:
        assert isinstance(PodDecoder().decode(data), Pod)
    except InvalidInput as error:
        assert "cagrpc.kubernetes.Pod" in str(error) or isinstance(error, UnreadablePod)  # noqa: PT017


@examples(30)
@given(st.integers(0, 10**6))
def test_a_truncated_pod_is_a_pod_or_an_invalid_input(cut: int) -> None:
    message = _message()
    message.spec.tolerations.add(key="gpu", operator="Exists")
    data = message.SerializeToString()
    cut %= len(data)
    try:
        PodDecoder().decode(data[:cut])
    except InvalidInput as error:
        assert str(error)  # noqa: PT017


def test_pods_are_grouped_by_spec_priority_gang_and_kind() -> None:
    small, large = PodSpec((("cpu", 100),)), PodSpec((("cpu", 900),))
    pods = [
        Pod("1", "ns/1", small, created_at_seconds=900),
        Pod("2", "ns/2", large),
        Pod("3", "ns/3", small, created_at_seconds=800),
        Pod("4", "ns/4", small, priority=5),
        Pod("5", "ns/5", small, gang=GangMembership("g")),
        Pod("6", "ns/6", small, placeholder=True),
        Pod("1", "ns/1", small, created_at_seconds=900),  # the same pod, of another option
    ]
    sets, set_of_pod = group(pods, now_seconds=1000)
    assert [(s.name, s.count, s.waiting_seconds) for s in sets] == [
        ("ns/1", 2, 200), ("ns/2", 1, 0), ("ns/4", 1, 0), ("ns/5", 1, 0), ("ns/6", 1, 0),
    ]  # fmt: skip
    assert set_of_pod == {"1": 0, "2": 1, "3": 0, "4": 2, "5": 3, "6": 4}
    assert [(s.priority, s.gang, s.placeholder) for s in sets[2:]] == [
        (5, None, False),
        (0, "g", False),
        (0, None, True),
    ]


@pytest.mark.parametrize(("index", "options", "pods", "classes"), [(0, 11, 562, 35), (1, 9, 593, 32)])
def test_the_big_recorded_request_is_few_classes(index: int, options: int, pods: int, classes: int) -> None:
    data = conversation("openb-1165-pods-best-options")[index].request
    assert len(data) > 2_300_000
    request = expander.decode(data, lambda: False)
    assert not request.out_of_time
    assert not request.unreadable
    assert len(request.options) == options
    sets, set_of_pod = group(pod for option in request.options for pod in option.pods)
    assert (len(set_of_pod), len(sets), sum(s.count for s in sets)) == (pods, classes, pods)


def test_pods_that_the_autoscaler_makes_for_a_request_of_its_own_are_the_gang_that_is_asked_for() -> None:
    message = _message(
        **{
            "autoscaling.x-k8s.io/consume-provisioning-request": "train",
            "autoscaling.x-k8s.io/provisioning-class-name": "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
        }
    )
    message.metadata.uid = f"{message.metadata.namespace}/{message.metadata.name}"
    made = PodDecoder().decode(message.SerializeToString())
    assert (made.consumer, made.gang) == (False, GangMembership("provisioningrequest.autoscaling.x-k8s.io ns/train"))
