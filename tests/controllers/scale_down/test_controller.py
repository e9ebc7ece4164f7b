"""The scale-down controller annotates nodes: only differences, only annotations of its own, and against a server that
refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cagrpc.cluster.markers import SCALE_DOWN_DISABLED
from cagrpc.cluster.markers import SCALE_DOWN_DISABLED_BY_US as OURS
from cagrpc.cluster.node_info import RequestOwner, Reservation
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.scale_down.choice import (
    BOOKED,
    CONSOLIDATED,
    IN_FLIGHT,
    IN_USE,
    Bookings,
    Rules,
    booked_for,
    no_room,
)
from cagrpc.controllers.scale_down.controller import REVIEW_SECONDS, WRITING_SECONDS, ScaleDownController
from cagrpc.errors import Conflict, NotFound, Unavailable
from cagrpc.fleet.model import FleetSnapshot, PodKey
from cagrpc.kube.client.client import PatchKind
from solver.model import PodAffinityTerm, PodSelector
from tests.support.clocks import any_clock
from tests.support.controllers.scale_down import QUICK, Play, Played, spec, tier

HIGH, LOW = tier("high", 100), tier("low", 10)
BIG = tier("big", 100, cpu=8000)


@dataclass
class _NodesApi:
    """Nodes as the API server keeps them, by name: annotations and a version. `conflicts` writes are refused."""

    annotations: dict[str, dict[str, str]] = field(default_factory=dict)
    version: int = 1
    conflicts: int = 0
    broken: bool = False
    patched: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """That each request takes."""
    now: float = 0.0

    def get(self, path: str) -> dict[str, Any]:
        if self.broken:
            raise Unavailable("out of reach")
        self.now += self.seconds
        name = path.removeprefix("/api/v1/nodes/")
        if name not in self.annotations:
            raise NotFound(name)
        return {"metadata": {"name": name, "resourceVersion": str(self.version), "annotations": self.annotations[name]}}

    def patch(self, path: str, body: Any, kind: PatchKind) -> dict[str, Any]:
        assert kind is PatchKind.MERGE
        metadata: Mapping[str, Any] = body["metadata"]
        if self.conflicts or metadata["resourceVersion"] != str(self.version):
            self.conflicts -= 1
            self.version += 1
            raise Conflict("changed")
        self.version += 1
        name = path.removeprefix("/api/v1/nodes/")
        self.patched.append(name)
        merged: dict[str, str | None] = {**self.annotations[name], **metadata["annotations"]}
        self.annotations[name] = {key: value for key, value in merged.items() if value is not None}
        return {}


@dataclass
class _ScaleDownHarness:
    play: Play
    api: _NodesApi = field(default_factory=_NodesApi)
    in_flight_asked: AbstractSet[PodKey] = frozenset()
    states: int = 0
    """How often it was asked for the state."""
    bookings: Bookings = field(default_factory=Bookings)
    look_seconds: float = 0.0
    """That each look of the controller at its clock takes."""

    def __post_init__(self) -> None:
        self.api.annotations.update({each.name: {} for each in self.play.nodes})

    @property
    def snapshot(self) -> FleetSnapshot:
        return self.play.fleet()

    def state(self, *, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        """As the API server has it now."""
        self.in_flight_asked = without
        self.states += 1
        for each in self.play.nodes:
            kept = self.api.annotations.get(each.name, {})
            each.disabled, each.by_us = kept.get(SCALE_DOWN_DISABLED, ""), OURS in kept
        return self.play.cluster()

    def _look(self) -> float:
        self.api.now += self.look_seconds
        return self.api.now

    def controller(self, writes: int = 100, *, consolidates: bool = False, rules: Rules = QUICK) -> ScaleDownController:
        return ScaleDownController(
            self,
            self,
            self.api,
            clock=any_clock(self._look),
            rules=rules,
            most_writes=writes,
            reservations=lambda state: self.bookings.reservations if state.nodes else {},
            booked=lambda: self.bookings.nodes,
            consolidates=consolidates,
        )


def _harness() -> _ScaleDownHarness:
    one = Counter({spec(1000): 1})
    return _ScaleDownHarness(Play([Played("h", HIGH, Counter(one)), Played("l", LOW, Counter(one))], (HIGH, LOW, BIG)))


def test_what_must_stay_is_marked_once_and_cleared_when_it_may_go() -> None:
    harness = _harness()
    controller = harness.controller()
    assert controller.summary() == {}
    controller.review()
    assert controller.summary() == {"may go": 1, no_room(100): 1}
    assert harness.api.annotations == {"h": {SCALE_DOWN_DISABLED: "true", OURS: no_room(100)}, "l": {}}
    controller.review()
    assert harness.api.patched == ["h"]
    harness.play.nodes.append(Played("h2", BIG, Counter({spec(1000): 5})))
    harness.api.annotations["h2"] = {"other": "kept"}
    controller.review()
    assert harness.api.annotations["h"] == {}
    assert harness.api.annotations["h2"] == {"other": "kept", SCALE_DOWN_DISABLED: "true", OURS: IN_USE}


def test_a_node_that_is_booked_is_marked_and_cleared_with_its_booking() -> None:
    harness = _harness()
    controller = harness.controller()
    controller.review()
    assert harness.api.annotations["l"] == {}
    kept = {
        "l": (Reservation(RequestOwner("u"), spec(1000), 2),),
        "h": (Reservation(RequestOwner("u"), spec(1000), 3),),
    }
    harness.bookings = Bookings(kept, {"l": "ml/train"})
    controller.review()
    assert harness.api.annotations["l"] == {
        SCALE_DOWN_DISABLED: "true",
        OURS: "booked for ProvisioningRequest ml/train",
    }
    assert controller.summary() == {"may go": 0, BOOKED: 1, no_room(100): 1}  # by reason, however many requests
    harness.bookings = Bookings(kept, {"l": "ml/other"})
    controller.review()
    assert harness.api.annotations["l"][OURS] == booked_for("ml/other")
    harness.bookings = Bookings({"h": kept["h"]})
    controller.review()
    assert harness.api.annotations["l"] == {SCALE_DOWN_DISABLED: "true", OURS: no_room(10)}  # the room on h is kept
    harness.bookings = Bookings()
    controller.review()
    assert harness.api.annotations["l"] == {}


def test_a_changed_reason_is_reported_and_after_a_restart_nothing_is_written_anew() -> None:
    harness = _harness()
    controller = harness.controller()
    controller.review()
    harness.play.named("h").pods = Counter({spec(1000): 3})
    controller.review()
    assert harness.api.annotations["h"][OURS] == IN_USE
    written = len(harness.api.patched)
    harness.play.named("h").pods = Counter({spec(1000): 1})
    harness.controller().review()
    assert len(harness.api.patched) == written


@pytest.mark.parametrize("value", ["true", "false"])
def test_what_somebody_else_said_is_never_touched(value: str) -> None:
    harness = _harness()
    harness.api.annotations["h"] = {SCALE_DOWN_DISABLED: value}
    harness.controller().review()
    assert harness.api.annotations["h"] == {SCALE_DOWN_DISABLED: value}
    # Also where the view is behind: it says nothing yet of what was written just now.
    behind = _harness()
    controller = behind.controller()
    old = behind.state()
    behind.api.annotations["h"] = {SCALE_DOWN_DISABLED: value}
    behind.state = lambda *, without=frozenset(): old  # type: ignore[method-assign]
    controller.review()
    assert behind.api.annotations["h"] == {SCALE_DOWN_DISABLED: value}


def test_a_conflict_is_tried_again_and_a_node_that_is_gone_is_no_trouble() -> None:
    harness = _harness()
    harness.api.conflicts = 2
    harness.controller().review()
    assert OURS in harness.api.annotations["h"]
    harness = _harness()
    harness.api.conflicts = 3
    controller = harness.controller()
    controller.review()
    assert OURS not in harness.api.annotations["h"]
    controller.review()
    assert OURS in harness.api.annotations["h"]
    harness = _harness()
    del harness.api.annotations["h"]
    harness.controller().review()
    assert not harness.api.patched


def test_an_unreachable_server_is_reported_and_what_was_left_is_done_later() -> None:
    harness = _harness()
    harness.api.broken = True
    controller = harness.controller()
    with pytest.raises(Unavailable):
        controller.review()
    harness.api.broken = False
    controller.review()
    assert OURS in harness.api.annotations["h"]


def test_a_step_writes_only_so_much_and_what_is_urgent_first() -> None:
    busy = [Played(f"busy{i}", HIGH, Counter({spec(1000): 3})) for i in range(3)]
    idle = [Played("idle", HIGH, Counter({spec(1500): 1}))]
    harness = _ScaleDownHarness(Play([*busy, *idle], (HIGH, LOW)))
    controller = harness.controller(writes=2)
    controller.review()
    assert harness.api.patched == ["idle", "busy0"]
    controller.review()
    assert harness.api.patched == ["idle", "busy0", "busy1", "busy2"]


def test_writing_takes_no_step_for_long_and_is_gone_on_with_in_the_next_ones() -> None:
    in_use = Counter({spec(1000): 6})
    harness = _ScaleDownHarness(Play([Played(f"n{each}", BIG, Counter(in_use)) for each in range(5)], (BIG,)))
    harness.api.seconds = WRITING_SECONDS / 2
    controller = harness.controller()
    for written in (2, 4, 5, 5):
        controller.step()
        assert len(harness.api.patched) == written
    assert {each[OURS] for each in harness.api.annotations.values()} == {IN_USE}


def test_a_node_that_is_booked_before_its_turn_to_be_cleared_stays_marked() -> None:
    harness = _harness()
    harness.api.annotations["l"] = {SCALE_DOWN_DISABLED: "true", OURS: IN_USE}
    harness.api.seconds = WRITING_SECONDS
    controller = harness.controller()
    controller.step()
    assert harness.api.patched == ["h"]  # what CA might remove comes first
    harness.bookings = Bookings({}, {"l": "ml/train"})
    controller.step()
    controller.step()
    assert harness.api.annotations["l"] == {SCALE_DOWN_DISABLED: "true", OURS: booked_for("ml/train")}


def test_between_steps_only_nodes_that_were_booked_since_are_marked() -> None:
    harness = _harness()
    controller = harness.controller()
    controller.step()
    assert harness.api.annotations["l"] == {}
    harness.bookings = Bookings({}, {"l": "ml/train", "not-of-the-fleet": "ml/train"})
    controller.step()
    controller.step()
    assert harness.api.annotations["l"] == {SCALE_DOWN_DISABLED: "true", OURS: booked_for("ml/train")}
    assert harness.api.patched.count("l") == 1


def test_where_cagrpc_consolidates_the_autoscaler_takes_no_node_whatever_was_decided_before() -> None:
    harness = _harness()
    harness.controller().review()
    harness.controller(consolidates=True).step()
    assert harness.api.annotations == {name: {SCALE_DOWN_DISABLED: "true", OURS: CONSOLIDATED} for name in ("h", "l")}
    patched = len(harness.api.patched)
    again = harness.controller(consolidates=True)  # after a restart
    again.step()
    assert len(harness.api.patched) == patched
    assert again.summary() == {"may go": 0, CONSOLIDATED: 2}
    back = harness.controller()
    back.review()
    assert harness.api.annotations["l"] == {}
    assert back.summary() == {"may go": 1, no_room(100): 1}


def test_where_cagrpc_consolidates_somebody_elses_annotation_is_left_alone() -> None:
    harness = _harness()
    harness.api.annotations["l"] = {SCALE_DOWN_DISABLED: "false"}
    harness.controller(consolidates=True).review()
    assert harness.api.annotations["l"] == {SCALE_DOWN_DISABLED: "false"}
    assert harness.api.annotations["h"][OURS] == CONSOLIDATED


def _with_several_steps(nodes: int) -> tuple[_ScaleDownHarness, ScaleDownController]:
    """Of a review that evaluates but a few of these nodes in one step, each with a pod that finds no other place."""
    apart = PodAffinityTerm("kubernetes.io/hostname", PodSelector())
    pods = Counter({spec(1000, pod_anti_affinity=(apart,)): 1})
    played = [Played(f"n{each}", HIGH, Counter(pods)) for each in range(nodes)]
    harness = _ScaleDownHarness(Play([*played, Played("used", HIGH, Counter({spec(1000): 3}))], (HIGH, LOW)))
    harness.look_seconds = 0.01
    return harness, harness.controller(rules=replace(QUICK, step_seconds=0.05))


def test_a_review_takes_several_steps_where_there_is_much_to_evaluate() -> None:
    harness, controller = _with_several_steps(20)
    steps = 0
    while not controller.summary():
        assert not harness.api.patched, "nothing is written before all is decided"
        controller.step()
        steps += 1
    assert 3 < steps < 20
    controller.step()
    assert controller.summary() == {"may go": 0, no_room(100): 20, IN_USE: 1}
    assert {each[OURS] for each in harness.api.annotations.values()} == {no_room(100), IN_USE}


def test_between_the_steps_of_a_review_no_time_passes_for_it() -> None:
    harness, _ = _with_several_steps(8)
    controller = harness.controller(rules=replace(QUICK, step_seconds=0.05, evaluation_seconds=1.0))
    while not controller.summary():
        controller.step()
        harness.api.now += 1.0
    assert controller.summary() == {"may go": 0, no_room(100): 8, IN_USE: 1}


def test_nodes_that_an_increment_counts_on_and_booked_ones_do_not_wait_for_the_end_of_a_review() -> None:
    harness, controller = _with_several_steps(20)
    harness.play.nodes.append(Played("new", HIGH, held=True))
    harness.api.annotations["new"] = {}
    controller.step()
    assert not controller.summary()
    assert harness.api.patched == ["new"]
    harness.bookings = Bookings({}, {"n7": "ml/train"})
    controller.step()
    assert not controller.summary()
    assert harness.api.patched == ["new", "n7"]
    assert harness.api.annotations["n7"][OURS] == booked_for("ml/train")
    while not controller.summary():
        controller.step()
    controller.step()
    assert harness.api.patched.count("new") == 1
    assert harness.api.annotations["new"][OURS] == IN_FLIGHT


def test_the_view_is_asked_again_only_once_a_review_is_due() -> None:
    harness = _harness()
    controller = harness.controller()
    controller.step()
    harness.play.named("h").pods = Counter({spec(1000): 3})
    harness.api.now += REVIEW_SECONDS - 1
    controller.step()
    assert harness.api.annotations["h"][OURS] == no_room(100)
    harness.api.now += 1
    controller.step()
    assert harness.api.annotations["h"][OURS] == IN_USE


def test_a_server_that_fails_while_writing_does_not_begin_the_review_anew() -> None:
    harness = _harness()
    controller = harness.controller()
    harness.api.broken = True
    with pytest.raises(Unavailable):
        controller.step()
    harness.api.broken = False
    asked = harness.states
    controller.step()
    assert harness.states == asked
    harness.api.now += REVIEW_SECONDS
    controller.step()
    assert OURS in harness.api.annotations["h"]
