"""Which pods of a chosen option go to which of its nodes."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.core.pods import Pod
from cagrpc.api.gen import externalgrpc_pb2
from cagrpc.cluster.state import ClusterState
from cagrpc.services.grpc.option_nodes import placements
from solver.model import CPU, Budget, HostPort, PodSpec
from tests.services.grpc.test_surroundings import View
from tests.support.fleet import FleetHarness, group
from tests.support.grpc_servers import House, asking, chosen, option, pod

_BUDGET = Budget(deterministic_seconds=0.2)
_GROUP = group("a", cpu=4000)


def _pods(count: int, cpu: int = 1000, **of_spec: Any) -> list[Pod]:
    """The last of them is the oldest."""
    spec = PodSpec(((CPU, cpu),), **of_spec)
    names = [(f"{cpu}-{number}", 100 - number) for number in range(count)]
    return [Pod(name, f"ns/{name}", spec, created_at_seconds=at) for name, at in names]


def test_each_pod_goes_to_one_node_as_far_as_there_is_room() -> None:
    pods = [*_pods(3, 3000), *_pods(6, 500)]
    found = placements(pods, _GROUP, 3, (), _BUDGET)
    requests = {each.key: each.spec.requests[0][1] for each in pods}
    assert sorted(str(key) for each in found for key in each.pods) == sorted(requests)
    assert [sum(requests[str(key)] for key in each.pods) for each in found] == [4000] * 3
    assert {each.node_group for each in found} == {"a"}


def test_the_oldest_have_the_room_that_there_is() -> None:
    (found,) = placements(_pods(6), _GROUP, 1, (), _BUDGET)
    assert set(found.pods) == {f"1000-{number}" for number in range(2, 6)}


def test_daemon_sets_and_constraints_count() -> None:
    daemon = PodSpec(((CPU, 2000),))
    assert sum(len(each.pods) for each in placements(_pods(6), _GROUP, 2, (daemon,), _BUDGET)) == 4
    ports = _pods(3, host_ports=(HostPort(80),))
    assert [len(each.pods) for each in placements(ports, _GROUP, 2, (), _BUDGET)] == [1, 1]


def test_nodes_that_no_pod_needs_have_no_entry() -> None:
    assert len(placements(_pods(2), _GROUP, 5, (), _BUDGET)) <= 2


@pytest.mark.parametrize("there", [True, False])
def test_the_increase_that_follows_a_choice_says_which_node_each_pod_is_for(there: bool) -> None:
    """With a cluster: without one no pod can be nominated."""
    pods = [pod(str(number), cpu="1500m") for number in range(4)]
    view = View(ClusterState((), (), ())) if there else None
    with House(FleetHarness([group("a", cpu=4000)]), cluster=view) as house:
        assert chosen(house.advice.ok("BestOptions", asking(option("a", 2, pods)))) == "a"
        house.ca.ok("NodeGroupIncreaseSize", externalgrpc_pb2.NodeGroupIncreaseSizeRequest(id="a", delta=2))
        (status,) = house.fleet.snapshot.increments
        assert status.increment.pods == {f"uid-{number}" for number in range(4)}
        assert [len(each.pods) for each in status.increment.placements] == ([2, 2] if there else [])
