"""ProvisioningRequests decided: whole or not at all, in their order, over any number of node groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cagrpc.api.core.nodes import ZONE
from cagrpc.cluster.markers import booking_label
from cagrpc.cluster.shortages import Shortage
from cagrpc.controllers.provisioning.decision.planning import MOST_AT_ONCE, Scenario, check, decide
from solver import Limit, Node, PodSpec
from tests.support.controllers.provisioning_decisions import BUDGET, judge, opened, request
from tests.support.solver.device_examples import GPUS as DEVICES
from tests.support.solver.device_examples import claim
from tests.support.solver.problems import GPU, TAINT, TOLERATION, group, node, spec

GPUS = group("gpu-b", cpu=8000, price=3.0, extra={GPU: 1}, max_size=9, taints=(TAINT,))
CPUS = group("cpu-a", cpu=4000, price=0.2, max_size=20)
WORKER = spec(cpu=4000, gpu=1, tolerations=(TOLERATION,))
HEAD = spec(cpu=2000)
SHORT = Shortage("p4d/b/spot", 1, 700.0, 1000.5, "no capacity")
NO_MORE = Limit("gpus", {GPU: 9}, {GPU: 5})


def test_a_gang_of_gpu_workers_and_cpu_heads_is_one_part_over_two_groups() -> None:
    gang = request("a1", (WORKER, 8), (HEAD, 2))
    scenario = Scenario(groups=(GPUS, CPUS))
    decided = decide([gang], scenario, BUDGET)
    judge([gang], scenario, decided)
    (part,) = decided.parts
    assert part.deltas == {"cpu-a": 1, "gpu-b": 8}
    assert part.cost_usd_per_hour == pytest.approx(24.2)
    assert part.gap == 0.0


def test_requests_that_share_no_node_are_parts_of_their_own() -> None:
    requests = [
        request("a1", (WORKER, 2)),
        request("a2", (WORKER, 3)),
        request("a3", (HEAD, 1)),
        request("a4", (HEAD, 1)),
    ]
    scenario = Scenario(groups=(GPUS, CPUS))
    decided = decide(requests, scenario, BUDGET)
    judge(requests, scenario, decided)
    assert sorted(part.uids for part in decided.parts) == [("a1",), ("a2",), ("a3", "a4")]


def test_what_stands_is_used_first_and_a_request_that_needs_nothing_else_has_no_part() -> None:
    requests = [request("a1", (HEAD, 2)), request("a2", (HEAD, 3))]
    scenario = Scenario((node("n1", 4000), node("n2", 4000)), (CPUS,))
    decided = decide(requests, scenario, BUDGET)
    judge(requests, scenario, decided)
    assert opened(decided.parts) == {"cpu-a": 1}
    assert [part.uids for part in decided.parts] == [("a2",)]
    assert decided.served == {"a1", "a2"}


def test_the_higher_priority_is_served_then_the_older() -> None:
    scenario = Scenario(groups=(replace(CPUS, max_size=1),))
    low, old, young = (
        request("a1", (HEAD, 2)),
        request("a2", (HEAD, 2), priority=5),
        request("a3", (HEAD, 2), priority=5),
    )
    decided = decide([young, low, old], scenario, BUDGET)
    judge([young, low, old], scenario, decided)
    assert decided.served == {"a2"}
    assert decided.left.keys() == {"a1", "a3"}
    assert not decided.overtaken  # nobody was served who came after them


def test_a_request_that_does_not_fit_does_not_keep_others_from_being_served() -> None:
    big = request("a1", (WORKER, 8), (HEAD, 5))
    small = [request(f"b{number}", (HEAD, 1)) for number in range(2, 8)]
    scenario = Scenario(groups=(replace(GPUS, target_size=2), CPUS))
    decided = decide([big, *small], scenario, BUDGET)
    judge([big, *small], scenario, decided)
    assert decided.served == {each.uid for each in small}
    assert decided.overtaken == {"a1"}
    assert decided.left["a1"] == (
        "12 of 13 pods fit now (7 of 8 of ns/a1-0): node group gpu-b is at its maximum size 9;"
        " not enough cpu free on existing nodes (3 nodes or node groups). What would serve all of them:"
        " raise maxSize of gpu-b from 9 to 10"
    )


def test_an_infeasible_request_is_reported_at_once() -> None:
    large, many, costly = (
        request("a1", (spec(cpu=9000), 1)),
        request("a2", (WORKER, 10)),
        request("a3", (HEAD, 20)),
    )
    limit = Limit("cpus", {"nodes": 8}, {"nodes": 8}, frozenset({"cpu-a"}))
    scenario = Scenario(groups=(replace(GPUS, target_size=9), replace(CPUS, target_size=8)), limits=(limit,))
    decided = decide([large, many, costly], scenario, BUDGET)
    judge([large, many, costly], scenario, decided)
    assert decided.infeasible.keys() == {"a1", "a2", "a3"}
    assert "needs 9 cpu, the largest eligible node has" in decided.infeasible["a1"]
    assert decided.infeasible["a2"].startswith("9 of 10 pods fit with all node groups empty and no limit used")
    assert "raise maxSize of gpu-b from 9 to 10" in decided.infeasible["a2"]
    assert "raise the nodes of limit cpus from 8 to 10" in decided.infeasible["a3"]


def test_many_nodes_are_one_part_whole_or_not_at_all() -> None:
    small = group("small", cpu=2000, price=0.1)
    decided = decide([request("a1", (HEAD, 12_000))], Scenario(groups=(small,)), BUDGET)
    (part,) = decided.parts
    assert part.deltas == {"small": 12_000}


def test_more_nodes_than_an_increment_may_have_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("reasons", "selection"):
        monkeypatch.setattr(f"cagrpc.controllers.provisioning.decision.{module}.LARGEST_INCREMENT", 10_000)
    small = group("small", cpu=2000, price=0.1, max_size=20_000)
    large = group("large", cpu=8000, price=1.0, max_size=20_000)
    many = request("a1", (HEAD, 12_000))
    decided = decide([many], Scenario(groups=(small,)), BUDGET)
    assert "takes 12000 new nodes that must come together" in decided.left["a1"]
    scenario = Scenario(groups=(small, large))
    decided = decide([many], scenario, BUDGET)
    judge([many], scenario, decided)
    assert opened(decided.parts).total() <= 10_000


def test_groups_that_are_short_are_left_out_for_now_but_not_for_ever() -> None:
    gang = request("a1", (WORKER, 2))
    scenario = Scenario(groups=(GPUS, CPUS), short={"gpu-b": SHORT})
    decided = decide([gang], scenario, BUDGET)
    judge([gang], scenario, decided)
    assert decided.left == {
        "a1": "left out after a shortage: p4d/b/spot until 1970-01-01T00:16:41Z (no capacity); with it the whole"
        " request would fit"
    }, "the shortage is the first reason, and no request is lowered to no GPU"
    assert decided.until == {"a1": 1000.5}


def test_what_a_shortage_does_not_decide_is_told_with_both() -> None:
    gang = request("a1", (WORKER, 9))
    scenario = Scenario(groups=(replace(GPUS, max_size=1), CPUS), short={"gpu-b": SHORT})
    others = replace(GPUS, id="gpu-c", max_size=8)
    decided = decide([gang], replace(scenario, groups=(*scenario.groups, others), limits=(NO_MORE,)), BUDGET)
    assert not decided.until, "it was tried, and would be left with the offering, too"
    (text,) = decided.left.values()
    assert text.startswith(
        "left out after a shortage: p4d/b/spot until 1970-01-01T00:16:41Z (no capacity); even with it "
    )
    assert "limit gpus allows 9" in text
    assert "raise the nvidia.com/gpu of limit gpus from 9 to 14" in text


def test_a_shortage_of_what_a_request_cannot_use_is_not_its_reason() -> None:
    heads = request("a1", (HEAD, 40))
    scenario = Scenario(
        groups=(GPUS, CPUS), limits=(Limit("small", {"nodes": 30}, {"nodes": 25}),), short={"gpu-b": SHORT}
    )
    decided = decide([heads], scenario, BUDGET)
    assert not decided.until
    assert "shortage" not in decided.left["a1"]


def test_a_request_before_which_another_is_served_waits_for_the_shortage_too() -> None:
    gang, heads = request("a1", (WORKER, 2)), request("a2", (HEAD, 1))
    scenario = Scenario(groups=(GPUS, CPUS), short={"gpu-b": SHORT})
    decided = decide([gang, heads], scenario, BUDGET)
    judge([gang, heads], scenario, decided)
    assert decided.served == {"a2"}
    assert decided.until.keys() == {"a1"}


def test_an_invalid_request_blocks_no_other() -> None:
    wrong = request("a1", (PodSpec((("cpu", -1),)), 1))
    decided = decide([wrong, request("a2", (HEAD, 1))], Scenario(groups=(CPUS,)), BUDGET)
    assert decided.served == {"a2"}
    assert decided.infeasible.keys() == {"a1"}
    assert "requests cpu: -1 is not between" in decided.infeasible["a1"]


def test_no_more_requests_are_considered_at_once_than_allowed() -> None:
    requests = [request(f"a{number:03}", (HEAD, 1)) for number in range(MOST_AT_ONCE + 10)]
    scenario = Scenario(groups=(replace(CPUS, max_size=100),))
    decided = decide(list(reversed(requests)), scenario, BUDGET)
    judge(requests, scenario, decided)
    assert decided.served == {each.uid for each in requests[:MOST_AT_ONCE]}


def test_what_is_left_of_a_node_with_anothers_label_may_be_used() -> None:
    labelled = node("n1", 4000, labels={booking_label("other"): "true"})
    decided = decide([request("a1", (HEAD, 2))], Scenario((labelled,), (CPUS,)), BUDGET)
    assert decided.on_nodes == {"a1": ("n1",)}


# Order


def test_a_big_one_is_served_in_the_end_against_an_endless_stream_of_small_ones() -> None:
    """Six nodes, of which small ones have one each for three rounds; the big one needs them all."""
    big = request("a1", (HEAD, 12))
    running = {f"s{number}": -1 - number // 2 for number in range(6)}
    overtaken, served_at = 0, None
    for now in range(60):
        running = {uid: since for uid, since in running.items() if now - since < 4}
        small = [request(f"b{100 + 2 * now + number}", (HEAD, 2)) for number in range(2)]
        scenario = Scenario(
            tuple(Node(uid, {"cpu": 0, "pods": 0}) for uid in running),
            (replace(CPUS, max_size=6, target_size=len(running)),),
            returning={uid: {"cpu": 4000, "pods": 110} for uid in running},
        )
        decided = decide([replace(big, overtaken=overtaken), *small], scenario, BUDGET, advised=False)
        if big.uid in decided.served:
            served_at = now
            break
        overtaken += big.uid in decided.overtaken
        running |= dict.fromkeys(decided.served, now)
    assert overtaken == 10
    assert served_at is not None
    assert served_at < 10 + 2 * 4


def test_nodes_on_their_way_for_small_ones_come_back_to_a_big_one_too() -> None:
    big, small = request("a1", (HEAD, 8), overtaken=10), request("b2", (HEAD, 1))
    limit = Limit("nodes", {"nodes": 4}, {"nodes": 3})
    scenario = Scenario((), (replace(CPUS, max_size=4, target_size=3),), (limit,), returning={}, coming={"cpu-a": 3})
    assert decide([big, small], scenario, BUDGET).served == set()
    assert decide([big, small], replace(scenario, coming={"cpu-a": 2}), BUDGET).served == {"b2"}


def test_small_ones_wait_for_no_big_one_that_can_never_be() -> None:
    big = request("a1", (HEAD, 100), overtaken=50)
    small = request("b2", (HEAD, 1))
    occupied = Scenario((node("n1", 0), node("n2", 0)), (replace(CPUS, max_size=4, target_size=2),), returning={})
    held_up = request("a1", (HEAD, 8), overtaken=50)  # it would need nodes that nobody is going to give back
    for candidate in (big, held_up):
        decided = decide([candidate, small], occupied, BUDGET)
        assert decided.served == {"b2"}
        assert not decided.overtaken


def test_a_reservation_for_a_overtaken_request_is_reported_to_those_that_wait_and_blocks_no_others() -> None:
    big = request("a1", (HEAD, 8), overtaken=10)
    small, elsewhere = request("b2", (HEAD, 1)), request("b3", (WORKER, 1))
    urgent = request("c4", (HEAD, 2), priority=1)
    scenario = Scenario(
        (node("n1", 0),), (replace(CPUS, max_size=4, target_size=1), GPUS), returning={"n1": {"cpu": 4000}}
    )
    decided = decide([big, small, elsewhere, urgent], scenario, BUDGET)
    judge([big, small, elsewhere, urgent], scenario, decided)
    assert decided.served == {"b3", "c4"}
    assert decided.left["b2"] == "what it needs is reserved for ns/a1, which younger requests have bypassed 10 times"


def test_it_is_kept_for_one_request_of_a_namespace_at_a_time_and_not_where_that_took_too_long() -> None:
    big = request("a1", (HEAD, 8), overtaken=10)
    next_big, small = request("a2", (HEAD, 8), overtaken=10), request("b3", (HEAD, 1))
    returning = {"n1": {"cpu": 4000}, "n2": {"cpu": 4000}}
    scenario = Scenario(
        (node("n1", 0), node("n2", 0)), (replace(CPUS, max_size=4, target_size=2),), returning=returning
    )
    decided = decide([big, next_big, small], scenario, BUDGET)
    assert decided.kept_for == ("ns/a1",)
    decided = decide([replace(big, may_keep=False), small], scenario, BUDGET)
    assert not decided.kept_for
    assert decided.served == {"b3"}
    elsewhere = replace(next_big, key="other/a2")
    assert decide([big, elsewhere, small], scenario, BUDGET).kept_for == ("ns/a1", "other/a2")


def test_at_one_priority_turns_come_before_age() -> None:
    older, younger = request("a1", (HEAD, 2), turn=1), request("b2", (HEAD, 2))
    scenario = Scenario((), (replace(CPUS, max_size=1),))
    assert decide([older, younger], scenario, BUDGET).served == {"b2"}
    assert decide([replace(older, priority=1), younger], scenario, BUDGET).served == {"a1"}


# Checks


def test_a_check_reports_what_is_short_and_where() -> None:
    nodes = tuple(node(f"n{number}", 11_000, labels={ZONE: "b" if number < 4 else "a"}) for number in range(6))
    in_b = spec(cpu=3500, node_selector={ZONE: "b"})
    checked = check(request("a1", (in_b, 16)), Scenario(nodes, (CPUS,)), BUDGET)
    assert not checked.fits
    assert checked.message == "12 of 16 fit: cpu short by 14 in zone b"
    checked = check(request("a1", (in_b, 12)), Scenario(nodes, (CPUS,)), BUDGET)
    assert checked.fits
    assert checked.message == "12 of 12 fit"
    assert checked.nodes == ("n0", "n1", "n2", "n3")


def test_a_check_names_no_resource_of_a_node_without_the_devices() -> None:
    """More cpu there would serve nobody."""
    claims = spec(cpu=1000, claims=claim())
    bare, full = node("bare", 100), node("full", 100, devices=DEVICES)
    assert check(request("a1", (claims, 1)), Scenario((bare,)), BUDGET).message == (
        "0 of 1 fit: no devices for its resource claims (node bare)"
    )
    assert check(request("a1", (claims, 1)), Scenario((bare, full)), BUDGET).message == "0 of 1 fit: cpu short by 1"


def test_a_check_reports_other_reasons_too() -> None:
    scenario = Scenario((node("n1", 4000, taints=(TAINT,)),))
    assert check(request("a1", (HEAD, 1)), scenario, BUDGET).message == (
        "0 of 1 fit: taint dedicated=gpu:NoSchedule not tolerated (node n1)"
    )
    assert check(request("a1", (HEAD, 1)), Scenario(), BUDGET).message == (
        "0 of 1 fit: there is no node group to open, and no node"
    )
    both = check(request("a1", (spec(cpu=3000, memory_gib=40), 3)), Scenario((node("n1", 9000),)), BUDGET)
    assert both.message == "1 of 3 fit: memory short by 80Gi"
    assert check(request("a1", (PodSpec((("cpu", -1),)), 1)), scenario, BUDGET).message.startswith("pod set ns/a1-0:")
