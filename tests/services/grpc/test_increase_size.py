"""IncreaseSize and the other calls that change the fleet: refusals with nothing changed, deadlines, and the decision
that a call takes up."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.errors import DeadlineExpired
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, IncrementStatus, Origin, Phase
from cagrpc.services.decisions import ExpanderChoice
from cagrpc.services.grpc import provider
from cagrpc.services.grpc.provider import Provider
from cagrpc.services.grpc.status import CallContext
from solver.model import Limit
from tests.support.fleet import FleetHarness, group, states, targets
from tests.support.grpc_servers import House, serving
from tests.support.waiting import AMPLE_SECONDS


def _house(harness: FleetHarness | None = None) -> House:
    return House(harness or FleetHarness(groups=[group("a"), group("b", max_size=3)]))


def _increase(group_id: str, delta: int) -> pb.NodeGroupIncreaseSizeRequest:
    return pb.NodeGroupIncreaseSizeRequest(id=group_id, delta=delta)


def test_increase_size_answers_once_journalled_and_asks_the_backend() -> None:
    with _house() as house:
        house.ca.ok("NodeGroupIncreaseSize", _increase("a", 2))
        assert targets(house.fleet.snapshot) == {"a": 2}
        assert states(house.fleet.snapshot, "a") in ([], ["creating", "creating"])
        assert len(house.harness.backend.executed_orders) == 2
        (status,) = house.fleet.snapshot.increments
        assert status.increment.origin is Origin.AUTOSCALER
        assert status.phase is not Phase.DONE


def test_a_shortage_known_at_once_is_resource_exhausted_and_leaves_nothing() -> None:
    with _house() as house:
        house.harness.backend.refused_groups = {"a"}
        assert house.ca.code("NodeGroupIncreaseSize", _increase("a", 2))[0] == "RESOURCE_EXHAUSTED"
        house.fleet.reconcile()
        assert targets(house.fleet.snapshot) == {}
        assert house.ca.ok("NodeGroupNodes", pb.NodeGroupNodesRequest(id="a")).instances == []


@pytest.mark.parametrize(
    ("group_id", "delta", "code"),
    [
        pytest.param("z", 1, "NOT_FOUND", id="an unknown group"),
        pytest.param("a", 0, "INVALID_ARGUMENT", id="by nothing"),
        pytest.param("a", -1, "INVALID_ARGUMENT", id="by less than nothing"),
        pytest.param("b", 4, "OUT_OF_RANGE", id="beyond the group's maximum"),
        pytest.param("a", 2**31 - 1, "OUT_OF_RANGE", id="by the largest number there is"),
        pytest.param("a", 5, "FAILED_PRECONDITION", id="beyond a limit"),
    ],
)
def test_an_increase_that_cannot_be_is_refused_with_nothing_changed(group_id: str, delta: int, code: str) -> None:
    harness = FleetHarness(groups=[group("a"), group("b", max_size=3)], limits=[Limit("cluster", {"nodes": 4})])
    with _house(harness) as house:
        version = house.fleet.snapshot.version
        got, details = house.ca.code("NodeGroupIncreaseSize", _increase(group_id, delta))
        assert got == code
        assert details.startswith("NodeGroupIncreaseSize: ")
        assert group_id in details or "cluster" in details
        assert house.fleet.snapshot.version == version
        assert house.harness.backend.order_calls == []


class _Recording:
    """A fleet that only remembers what `apply` was told."""

    def __init__(self, snapshot: FleetSnapshot) -> None:
        self.snapshot = snapshot
        self.applied: list[tuple[IncrementSpec, float]] = []

    def apply(
        self,
        increment: IncrementSpec,
        *,
        refusal_wait_seconds: float = 0.0,
        answer_within_seconds: float = float("inf"),
    ) -> IncrementStatus:
        self.answer_within_seconds = answer_within_seconds
        self.applied.append((increment, refusal_wait_seconds))
        return IncrementStatus("i", increment, Phase.PLANNED)

    def delete_instances(self, *_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    def decrease_target(self, *_: object) -> None:
        raise RuntimeError("a bug")

    def refresh(self, *, wait_seconds: float | None = None) -> None:
        raise RuntimeError("a bug")


@pytest.fixture(name="recording")
def _recording() -> Any:
    harness = FleetHarness(groups=[group("a")])
    return _Recording(harness.fleet().snapshot)


@pytest.mark.parametrize(
    ("seconds_left", "wait_seconds", "left_for_the_journal"),
    [
        pytest.param(None, 2.0, float("inf"), id="without a deadline the cap"),
        pytest.param(5.0, 2.0, 3.0, id="with CA's usual deadline the cap"),
        pytest.param(1.0, 0.5, 0.5, id="with a short one half of it"),
    ],
)
def test_increase_size_waits_at_most_half_of_the_deadline(
    recording: Any, seconds_left: float | None, wait_seconds: float, left_for_the_journal: float
) -> None:
    method = Provider(recording).methods()["NodeGroupIncreaseSize"]
    method(_increase("a", 1).SerializeToString(), CallContext("NodeGroupIncreaseSize", seconds_left))
    assert [wait for _, wait in recording.applied] == [wait_seconds]
    assert recording.answer_within_seconds == left_for_the_journal


@pytest.mark.parametrize(
    "name", ["NodeGroupIncreaseSize", "NodeGroupDeleteNodes", "NodeGroupDecreaseTargetSize", "Refresh"]
)
def test_a_call_that_has_expired_is_not_started(recording: Any, name: str) -> None:
    with pytest.raises(DeadlineExpired, match="nothing was changed"):
        Provider(recording).methods()[name](b"", CallContext(name, 0.0))
    assert recording.applied == []


def test_a_call_that_expires_while_it_waits_for_a_thread_is_not_started(recording: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(**_: object) -> None:
        entered.set()
        assert leave.wait(AMPLE_SECONDS)

    recording.refresh = slow
    with serving(provider.SERVICE, Provider(recording).methods(), threads=1) as client:
        worker = threading.Thread(target=client.code, args=("Refresh",))
        worker.start()
        assert entered.wait(AMPLE_SECONDS)
        assert client.code("NodeGroupIncreaseSize", _increase("a", 1), timeout=0.2)[0] == "DEADLINE_EXCEEDED"
        leave.set()
        worker.join()
        assert client.code("NodeGroups")[0] == "OK"  # after the one that waited
    assert recording.applied == []


def test_an_increase_remembers_the_pods_of_the_choice_behind_it_once(recording: Any) -> None:
    choices = {"a": ExpanderChoice(frozenset({"uid-1"}), "cheapest")}
    method = Provider(recording, take_choice=lambda g: choices.pop(g, None)).methods()["NodeGroupIncreaseSize"]
    for _ in range(2):
        method(_increase("a", 1).SerializeToString(), CallContext("NodeGroupIncreaseSize"))
    (first, _), (second, _) = recording.applied
    assert (first.pods, first.reason) == (frozenset({"uid-1"}), "cheapest")
    assert second.pods == frozenset()


def test_an_unexpected_failure_is_internal_and_the_server_lives_on(
    recording: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(provider.SERVICE, Provider(recording).methods()) as client:
        code, details = client.code("Refresh")
        assert (code, details) == (
            "INTERNAL", "Refresh: unexpected RuntimeError; the server's log has the traceback",
        )  # fmt: skip
        assert "a bug" in caplog.text
        assert client.code("NodeGroups")[0] == "OK"
