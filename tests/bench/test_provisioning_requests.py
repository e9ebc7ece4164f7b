"""The benchmark of ProvisioningRequests measures what it says."""

from __future__ import annotations

from bench.provisioning_requests import MOST_PODS, SETS, Row, small_requests, small_sets
from cagrpc.controllers.provisioning.decisions import Decisions, RequestPart
from cagrpc.controllers.provisioning.progress import Refused
from cagrpc.fleet.model import Placement


def test_the_requests_are_the_same_each_time_and_as_large_as_they_are_called() -> None:
    assert small_requests(20) == small_requests(20)
    assert len({each.uid for each in small_requests(20)}) == 20
    assert all(1 <= pods.count <= 8 for each in small_requests(20) for pods in each.pod_sets)
    assert [pods.count for pods in small_sets()] == [MOST_PODS] * SETS
    assert len({pods.spec for pods in small_sets()}) == SETS


def test_a_row_adds_up_batches_and_tells_the_gap_of_one_part_only() -> None:
    part = RequestPart(("a",), {"g": 2}, (Placement("g", requests=("a",)),) * 2, 4.0, 3.0, 0.25)
    row = Row("what", 3, 10)
    row.add(Decisions((part,), served=frozenset({"a"})), 1.5)
    assert (row.served, row.nodes, row.cost_usd_per_hour, row.gap) == (1, 2, 4.0, 0.25)
    row.add(Decisions((part,), served=frozenset({"b"}), refused={"c": Refused("no room")}), 0.5)
    assert row.line() == "| what | 10 | 2.00 | 2 of 3 | 2 | 4 | 8.00 |  | 0.00 | 0.00 |"
    assert row.left == "no room"
