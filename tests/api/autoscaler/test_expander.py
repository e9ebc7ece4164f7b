"""BestOptions requests: both wire generations, and what happens when there is no time or a pod is strange."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.autoscaler import expander
from cagrpc.api.core.pods import NOWHERE
from cagrpc.api.encoding.messages import has_more_fields
from cagrpc.api.gen import expander_pb2 as pb
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import InvalidInput


def _pod(name: str, cpu: str = "1") -> bytes:
    pod = kubernetes_pb2.Pod()
    pod.metadata.name, pod.metadata.namespace, pod.metadata.uid = name, "ns", f"uid-{name}"
    pod.spec.containers.add().resources.requests["cpu"].string = cpu
    return pod.SerializeToString()


def _in_time() -> bool:
    return False


@pytest.mark.parametrize("field", ["pod", "podBytes"])
def test_options_of_both_generations_are_read_alike(field: str) -> None:
    options = [
        pb.Option(nodeGroupId="a", nodeCount=2),
        pb.Option(nodeGroupId="b", nodeCount=1),
    ]
    getattr(options[0], field).extend([_pod("1"), _pod("2")])
    getattr(options[1], field).append(_pod("2"))
    request = expander.decode(pb.BestOptionsRequest(options=options).SerializeToString(), _in_time)
    first, second = request.options
    assert (first.node_group, first.node_count) == ("a", 2)
    assert [pod.name for pod in first.pods] == ["ns/1", "ns/2"]
    assert second.pods[0] is first.pods[1]
    assert not request.out_of_time
    assert not request.unreadable


def test_without_time_pods_are_known_but_not_read() -> None:
    option = pb.Option(nodeGroupId="a", nodeCount=2, podBytes=[_pod(str(i)) for i in range(300)])
    looks = iter([False] * 128 + [True])
    data = pb.BestOptionsRequest(options=[option, option]).SerializeToString()
    request = expander.decode(data, lambda: next(looks))
    assert request.out_of_time == "no time to decode more than 128 pods"
    for each in request.options:
        assert [pod.key for pod in each.pods] == [f"uid-{i}" for i in range(300)]
        assert [pod.spec is NOWHERE for pod in each.pods] == [False] * 128 + [True] * 172


@pytest.mark.parametrize(
    ("strange", "key", "why"),
    [
        pytest.param(
            _pod("2", cpu="several"),
            "uid-2",
            'pod ns/2: spec.containers[0].resources.requests.cpu: "several" is not a quantity',
            id="an invalid pod",
        ),
        pytest.param(
            _pod("2")[:-1], "malformed/", "bytes are not a cagrpc.kubernetes.Pod message", id="a truncated pod"
        ),
    ],
)
def test_a_pod_that_cannot_be_read_leaves_the_others(strange: bytes, key: str, why: str) -> None:
    options = [pb.Option(nodeGroupId=group, nodeCount=2, podBytes=[_pod("1"), strange, _pod("3")]) for group in "ab"]
    request = expander.decode(pb.BestOptionsRequest(options=options).SerializeToString(), _in_time)
    assert request.options[0].pods == request.options[1].pods
    first, second, third = request.options[0].pods
    assert (first.key, third.key) == ("uid-1", "uid-3")
    assert second.key.startswith(key)
    assert (first.spec, second.spec, third.spec) == (first.spec, NOWHERE, first.spec)
    assert request.unreadable.startswith("1 pod with errors of decoding")
    assert why in request.unreadable
    assert not request.out_of_time


@given(st.text(max_size=30), st.integers(1, 10**6), st.text(max_size=50))
def test_an_answer_is_one_option_with_its_id(group: str, count: int, reason: str) -> None:
    answered = expander.answer([expander.Option(group, count)], reason)
    (option,) = pb.BestOptionsResponse.FromString(answered).options
    assert (option.nodeGroupId, option.nodeCount, option.debug) == (group, count, reason)


def test_a_veto_is_an_empty_answer() -> None:
    assert not pb.BestOptionsResponse.FromString(expander.VETO).options


@given(st.binary(max_size=300))
def test_random_bytes_are_a_request_or_invalid_input(data: bytes) -> None:
    try:
        assert isinstance(expander.decode(data, _in_time), expander.Request)
    except InvalidInput as error:
        assert "message" in str(error)  # noqa: PT017


def _asking(*pods: int) -> bytes:
    """Of as many options, each of as many pods."""
    return pb.BestOptionsRequest(options=[pb.Option(podBytes=[b""] * count) for count in pods]).SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x0a\x00" * 500_000, id="options"),
        pytest.param(_asking(500_000), id="pods of one option"),
        pytest.param(_asking(*[1000] * 500), id="pods of many options"),
        pytest.param(b"\x7a\x00" * 500_000, id="unknown fields"),
        pytest.param(b"\x78\x01" * 500_000, id="unknown numbers"),
    ],
)
def test_a_request_of_too_many_fields_is_refused_before_it_is_parsed(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed, 128 MiB of empty options would take 5 GB, and seconds in which no other thread runs."""
    monkeypatch.setattr(expander, "parse", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(InvalidInput, match="more than 400000 pods and other fields"):
        expander.decode(data, _in_time)


def test_a_request_of_many_fields_is_read() -> None:
    assert len(expander.decode(_asking(300_000), _in_time).options[0].pods) == 300_000


@given(
    st.binary(max_size=200)
    | st.builds(pb.Option, nodeGroupId=st.text(), podBytes=st.lists(st.binary())).map(
        lambda option: pb.BestOptionsRequest(options=[option] * 3).SerializeToString()
    )
)
def test_counting_fields_ends_for_any_bytes_and_counts_what_there_is(data: bytes) -> None:
    fields = [most for most in range(len(data) + 2) if has_more_fields(data, most)]
    assert fields == list(range(len(fields)))
    try:
        message = pb.BestOptionsRequest.FromString(data)
    except DecodeError:
        return
    assert len(fields) >= sum(1 + len(option.podBytes) + len(option.pod) for option in message.options)


def test_too_many_different_pods_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expander, "_MOST_PODS", 3)
    few = pb.Option(nodeGroupId="a", nodeCount=1, podBytes=[_pod("1"), _pod("2"), _pod("3")] * 5)
    assert (
        len(expander.decode(pb.BestOptionsRequest(options=[few]).SerializeToString(), _in_time).options[0].pods) == 15
    )
    few.podBytes.append(_pod("4"))
    with pytest.raises(InvalidInput, match="more than 3 different pods"):
        expander.decode(pb.BestOptionsRequest(options=[few]).SerializeToString(), _in_time)


def test_a_pod_larger_than_any_is_not_read_and_costs_the_others_nothing() -> None:
    large = kubernetes_pb2.Pod.FromString(_pod("large"))
    large.metadata.annotations["x"] = "x" * (2 * 1024 * 1024)
    option = pb.Option(nodeGroupId="a", nodeCount=1, podBytes=[large.SerializeToString(), _pod("1")])
    request = expander.decode(pb.BestOptionsRequest(options=[option]).SerializeToString(), _in_time)
    first, second = request.options[0].pods
    assert (first.key.startswith("malformed/"), first.spec, second.key) == (True, NOWHERE, "uid-1")
    assert "1 pod with errors of decoding" in request.unreadable


def test_of_a_pod_with_claims_only_the_autoscaler_knows_where_it_fits() -> None:
    claims = kubernetes_pb2.Pod.FromString(_pod("claims"))
    claims.spec.resourceClaims.add(name="gpu", resourceClaimTemplateName="t")
    option = pb.Option(nodeGroupId="a", nodeCount=1, podBytes=[claims.SerializeToString(), _pod("1")])
    request = expander.decode(pb.BestOptionsRequest(options=[option]).SerializeToString(), _in_time)
    first, second = request.options[0].pods
    assert (first.key, first.spec.affinity, second.spec.affinity) == ("uid-claims", (), None)
    assert first.spec.requests == second.spec.requests
    assert request.unreadable == ("1 pod with resource claims, for which CA's own fit check is used: pod ns/claims")
