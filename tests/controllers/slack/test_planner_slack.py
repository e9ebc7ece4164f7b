"""The slack of the planner: nodes are opened for placeholders, real pods come first, and nothing is opened twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.node_info import RequestOwner, Reservation
from cagrpc.cluster.state import Mirror
from cagrpc.controllers.slack.model import SlackSettings, SlackState, TargetSettings, Window
from cagrpc.errors import Unavailable
from cagrpc.fleet.model import Phase
from cagrpc.runtime.schedules import Schedule, parse_cron
from solver.model import HOSTNAME, Limit, Operator, PodAffinityTerm, PodSelector, PodSpec, Requirement
from solver.slack.model import Base, Copies, Placement, Version
from tests.support.controllers.planner import PlannerHarness
from tests.support.fleet import group

COMING = 60.0
"""Nodes are there after so long, and all is settled."""


def fixed(count: int, cpu: int = 1000, **more: Any) -> SlackSettings:
    return SlackSettings(targets=(TargetSettings("t", fixed=(Copies("x", PodSpec((("cpu", cpu),)), count),), **more),))


@contextmanager
def harness(slack: SlackSettings, **more: Any) -> Iterator[PlannerHarness]:
    found = PlannerHarness(more.pop("groups", [group("a", cpu=4000)]), slack=slack, **more)
    try:
        yield found
    finally:
        found.close()


def held(of: PlannerHarness) -> int:
    assert of.slack is not None
    return sum(sum(there.values()) for there in of.slack.state.placement.values())


def places(of: PlannerHarness) -> dict[str, int]:
    assert of.slack is not None
    return {node: count for there in of.slack.state.placement.values() for node, count in there.items()}


def left(of: PlannerHarness) -> int:
    assert of.slack is not None
    return sum(of.slack.state.left_over.values())


def test_nodes_are_opened_for_placeholders_once() -> None:
    with harness(fixed(6)) as here:
        here.run(COMING)
        assert here.targets() == {"a": 2}
        (status,) = here.increments()
        assert status.increment.reason == "6 placeholders of the slack"
        assert (held(here), left(here)) == (6, 0)
        here.run(300)
        assert len(here.increments()) == 1
        assert len(here.loop.plans()) == 1


def test_a_burst_that_fits_starts_at_once_and_the_slack_is_restored_by_one_increment() -> None:
    with harness(fixed(4)) as here:
        here.run(COMING)
        assert here.targets() == {"a": 1}
        here.add(3)
        here.run(2)
        assert not here.pending()  # before any new node is there
        assert (held(here), left(here)) == (1, 3)
        assert here.slack is not None
        assert here.slack.state.pushed_out == {"t/fixed/x": 3}
        here.run(COMING)
        assert here.targets() == {"a": 2}
        assert (held(here), left(here), len(here.increments())) == (4, 0, 2)
        assert here.slack.state.pushed_out == {}


def test_without_slack_the_same_burst_waits_for_a_node() -> None:
    with harness(SlackSettings()) as here:
        here.run(COMING)
        here.add(3)
        here.run(2)
        assert len(here.pending()) == 3
        here.run(COMING)
        assert not here.pending()


def test_pods_and_placeholders_are_planned_together() -> None:
    """One large node is cheaper than two small ones; one after the other they would have got these."""
    groups = [group("small", cpu=4000, price=0.2), group("large", cpu=8000, price=0.3)]
    with harness(fixed(4), groups=groups) as here:
        here.add(4)
        here.run(COMING)
        assert here.targets() == {"large": 1}
        (status,) = here.increments()
        assert status.increment.reason == "4 pods, ns/pod-1 among them; 4 placeholders of the slack"
        (record,) = here.loop.plans()
        assert (record.pods, record.placeholders, record.unplaced_placeholders) == (4, 4, ())


def test_real_pods_come_first_and_placeholders_without_room_are_reported_apart() -> None:
    with harness(fixed(4), limits=[Limit("nodes", {"nodes": 1})]) as here:
        here.add(3)
        here.run(COMING)
        assert not here.pending()
        assert here.targets() == {"a": 1}
        assert (held(here), left(here)) == (1, 3)
        record = here.loop.plans()[-1]
        (reported,) = record.unplaced_placeholders
        assert (reported.example, reported.count, record.unplaced) == ("t/fixed/x", 3, ())
        assert not [note for note in here.notes if note.warning]
        assert here.slack is not None
        assert here.slack.state.pushed_out == {}  # they never had room
        rounds = len(here.loop.plans())
        here.run(120)
        assert len(here.loop.plans()) <= rounds + 3  # tried again now and then


def test_while_nodes_come_nothing_more_is_opened() -> None:
    with harness(fixed(4)) as here:
        here.backend.set_behaviour("*", Behaviour(boot_seconds=200.0))
        here.run(150)
        assert left(here) == 4
        assert here.targets() == {"a": 1}
        here.add(2)  # they take the room of the node that comes, and another one comes for the placeholders
        here.run(20)
        assert here.targets() == {"a": 2}
        here.run(400)
        assert not here.pending()
        assert (held(here), left(here), here.targets()) == (4, 0, {"a": 2})


def test_a_shortage_is_waited_out() -> None:
    with harness(fixed(2)) as here:
        here.backend.set_behaviour("*", Behaviour(stock=0))
        here.run(30)
        assert here.targets() == {}
        here.backend.set_behaviour("*", Behaviour(boot_seconds=5.0))
        here.run(600)
        assert (held(here), here.targets()) == (2, {"a": 1})


def test_r1_2_after_a_restart_placeholders_are_where_they_were() -> None:
    with harness(fixed(6)) as here:
        here.run(COMING)
        here.add(3)
        here.run(COMING)
        before = places(here)
        here.restart()
        assert places(here) == {}
        here.step()
        assert places(here) == before
        here.run(120)
        assert (places(here), len(here.increments(Phase.DONE))) == (before, 2)


def test_what_cannot_be_written_is_a_step_that_failed() -> None:
    with harness(fixed(2)) as here:
        here.run(COMING)
        assert here.slack is not None
        assert here.slack.step()
        here.slack._book = _Refusing()
        assert not here.slack.step()
        assert here.slack.step()  # it waits a while before it is tried again


class _Refusing:
    def placements(self) -> Placement:
        return {}

    def write(self, state: SlackState) -> None:
        raise Unavailable("the cluster is away")


def test_placeholders_that_are_held_stay_when_others_need_a_node() -> None:
    with harness(fixed(4, cpu=2000)) as here:
        here.run(COMING)
        before = places(here)
        assert sorted(before.values()) == [2, 2]
        assert here.slack_settings is not None
        here.slack_settings = fixed(5, cpu=2000)
        here.restart()
        here.run(COMING)
        assert here.targets() == {"a": 3}
        after = places(here)
        assert {name: after[name] for name in before} == before


def test_they_move_rather_than_have_a_node_opened() -> None:
    """Two of 2 cpu are scattered over nodes with pods of 1 cpu each; one of 3 cpu is wanted beside them."""
    with harness(fixed(2, cpu=2000)) as here:
        here.add(1)
        here.run(COMING)
        assert here.targets() == {"a": 2}
        assert sorted(places(here).values()) == [1, 1]
        both = (Copies("y", PodSpec((("cpu", 3000),)), 1), Copies("x", PodSpec((("cpu", 2000),)), 2))
        here.slack_settings = SlackSettings(targets=(TargetSettings("t", fixed=both),))
        here.restart()
        here.run(COMING)
        assert here.targets() == {"a": 2}
        assert (held(here), left(here)) == (3, 0)


def test_a_rate_follows_what_pods_request() -> None:
    target = TargetSettings("t", 0.5, version=Version.EVEN, base=Base.REQUESTED, granularity=4)
    with harness(SlackSettings(targets=(target,))) as here:
        here.run(30)
        assert here.targets() == {}
        here.add(4)
        here.run(COMING)
        assert (held(here), here.targets()) == (2, {"a": 2})  # half of 4 cpu, in quarters of a node
        for uid in list(here.cluster.pods)[:2]:
            del here.cluster.pods[uid]
        here.run(5)
        assert held(here) == 1


def test_a_window_holds_more_while_it_is_open() -> None:
    with harness(fixed(1)) as here:
        opens = int(here.clock() % 3600 // 60) + 2
        window = Window(
            Schedule(parse_cron(f"{opens % 60} * * * *"), ZoneInfo("UTC"), 120.0),
            fixed=(Copies("x", PodSpec((("cpu", 1000),)), 6),),
        )
        here.slack_settings = fixed(1, windows=(window,))
        here.restart()
        here.run(COMING)
        assert (held(here), here.targets()) == (1, {"a": 1})
        here.run(120)
        assert (held(here), here.targets()) == (6, {"a": 2})
        here.run(120)
        assert held(here) == 1


def test_r8_mirrors_that_keep_apart_have_nodes_of_their_own() -> None:
    term = PodAffinityTerm(HOSTNAME, PodSelector((Requirement("app", Operator.IN, ("db",)),)))
    spec = PodSpec((("cpu", 500),), labels=(("app", "db"),), pod_anti_affinity=(term,))
    with harness(SlackSettings()) as here:
        here.cluster.mirrors = (Mirror("deployment/x/db", "x", spec, 3),)
        here.run(COMING)
        assert here.targets() == {"a": 3}
        assert sorted(places(here).values()) == [1, 1, 1]


def test_r9_mirrors_select_their_nodes() -> None:
    groups = [group("a", cpu=4000), replace(group("b", cpu=4000, price=9.0), labels={"disk": "ssd"})]
    with harness(SlackSettings(), groups=groups) as here:
        spec = PodSpec((("cpu", 500),), node_selector=(("disk", "ssd"),))
        here.cluster.mirrors = (Mirror("deployment/x/y", "x", spec, 1),)
        here.run(COMING)
        assert here.targets() == {"b": 1}


def test_room_reserved_for_requests_holds_no_slack() -> None:
    with harness(fixed(4)) as here:
        here.run(COMING)
        (name,) = places(here)
        here.reserved = {name: (Reservation(RequestOwner("u"), PodSpec((("cpu", 3000),))),)}
        here.run(COMING)
        assert places(here)[name] == 1
        assert (held(here), here.targets()) == (4, {"a": 2})


def test_what_it_costs_is_the_share_of_the_nodes() -> None:
    with harness(fixed(2)) as here:
        here.run(COMING)
        assert here.slack is not None
        price = group("a", cpu=4000).price_usd_per_hour
        assert here.slack.state.cost_usd_per_hour == {"t": pytest.approx(price / 2)}


def test_a_namespace_that_mirrors_more_than_it_may_opens_no_more_nodes_and_is_reported() -> None:
    with harness(SlackSettings(mirrors_per_namespace=4)) as here:
        spec = PodSpec((("cpu", 1000),))
        here.cluster.mirrors = (
            Mirror("deployment/greedy/a", "greedy", spec, 1000),
            Mirror("deployment/greedy/b", "greedy", spec, 1000),
            Mirror("deployment/modest/a", "modest", spec, 4),
        )
        here.run(COMING)
        assert here.targets() == {"a": 2}
        assert held(here) == 8
        assert here.slack is not None
        (warning,) = here.slack.status()["slack"]["warnings"]
        assert warning.startswith("namespace greedy: capacity is reserved for 4 of the 2000 more pods")
        here.cluster.mirrors = here.cluster.mirrors[1:]
        here.run(5)
        assert "4 of the 1000 more pods" in here.slack.status()["slack"]["warnings"][0]
