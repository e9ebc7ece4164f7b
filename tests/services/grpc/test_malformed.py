"""Whatever bytes arrive at any method: INVALID_ARGUMENT, or a valid answer; the fleet as it was, the server alive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.fleet.model import IncrementSpec
from tests.support.examples import examples
from tests.support.fleet import FleetHarness, group
from tests.support.grpc_servers import METHODS, PATHS, GrpcClient, House, asking, chosen, option, pod
from tests.support.recordings import CONVERSATIONS, conversation

# Everything but the calls that change something when they are understood by chance.
_READING = {*PATHS} - {"NodeGroupIncreaseSize", "NodeGroupDeleteNodes", "NodeGroupDecreaseTargetSize"}
_PROVIDER = sorted(name for name, path in PATHS.items() if "CloudProvider" in path)
_ALLOWED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "OUT_OF_RANGE"}


@pytest.fixture(name="house", scope="module")
def _house() -> Iterator[House]:
    harness = FleetHarness(groups=[group("a")])
    with House(harness) as house:
        house.fleet.apply(IncrementSpec({"a": 1}))
        house.fleet.reconcile()
        harness.backend.boot_all()
        house.fleet.reconcile()
        yield house


def _client(house: House, method: str) -> GrpcClient:
    return house.advice if method == "BestOptions" else house.ca


def _ask(house: House, method: str, data: bytes) -> str:
    before = house.fleet.snapshot
    code, details, response = _client(house, method).raw(method, data)
    assert code in _ALLOWED, (method, code, details)
    if code == "OK":
        METHODS[PATHS[method]].output_type._concrete_class.FromString(response)
    else:
        assert details.startswith(f"{method}: ")
    if code != "OK" or method in _READING:
        assert house.fleet.snapshot is before or house.fleet.snapshot.version == before.version
    return code


@examples(200)
@given(st.sampled_from(sorted(PATHS)), st.binary(max_size=60))
def test_random_bytes(house: House, method: str, data: bytes) -> None:
    _ask(house, method, data)


@pytest.mark.parametrize("method", sorted(PATHS))
def test_bytes_that_are_no_message_are_named(house: House, method: str) -> None:
    assert _ask(house, method, b"\xff\xff\xff") == "INVALID_ARGUMENT"
    _, details, _ = _client(house, method).raw(method, b"\xff\xff\xff")
    assert METHODS[PATHS[method]].input_type.full_name in details


_RECORDED = {
    rpc.method: rpc.request for name in CONVERSATIONS[:3] for rpc in conversation(name) if len(rpc.request) > 1
}


@examples(150)
@given(st.sampled_from(sorted(_RECORDED)), st.integers(0, 10**6))
def test_truncated_recorded_requests(house: House, method: str, cut: int) -> None:
    data = _RECORDED[method]
    _ask(house, method, data[: cut % len(data)])


@examples(100)
@given(st.sampled_from(sorted(_RECORDED)), st.integers(0, 10**6), st.integers(0, 255))
def test_recorded_requests_with_one_byte_wrong(house: House, method: str, place: int, value: int) -> None:
    data = bytearray(_RECORDED[method])
    data[place % len(data)] = value
    _ask(house, method, bytes(data))


def test_a_malformed_pod_inside_of_an_option_does_not_leave_the_choice_to_chance(house: House) -> None:
    pods = [b"\xff", pod("p")]
    assert chosen(house.advice.ok("BestOptions", asking(option("a", 1, pods)))) == "a"
    decision = house.decisions.latest()[-1]
    assert decision.ranked_by == "objective"
    assert "cagrpc.kubernetes.Pod" in decision.reason


def test_an_unknown_method_is_unimplemented(house: House) -> None:
    PATHS["Nonsense"] = PATHS["Refresh"].replace("Refresh", "Nonsense")
    try:
        assert house.ca.raw("Nonsense", b"")[0] == "UNIMPLEMENTED"
    finally:
        del PATHS["Nonsense"]


def test_all_methods_of_the_provider_are_there(house: House) -> None:
    assert len(_PROVIDER) == 15
    assert sorted(house.provider.methods()) == _PROVIDER
