"""How nodes are annotated: differences only, a part at a time, never over others, and against a server that refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from cagrpc.controllers.settings import ConsolidationMode, ConsolidationSettings
from tests.controllers.scale_down.standing import (
    BOOKED,
    CONSOLIDATED,
    ENOUGH,
    IN_FLIGHT,
    IN_USE,
    MAY_GO,
    NOT_YET,
    REVIEW_SECONDS,
    TIERS,
    Standing,
    apart,
    no_room,
    tier,
)
from tests.support.api_server import Refusal

Stand = Callable[..., Standing]
WRITING_SECONDS = 0.5
BIG, SMALL = tier("big", 100, cpu=8000), tier("small", 100, cpu=2000)
HIGH, _, LOW = TIERS
STAYS = {"high": no_room(100), "low": MAY_GO}
TRAIN = f"{BOOKED} ns/train"
MOST_WRITES = 200


@pytest.fixture
def two(standing: Stand) -> Standing:
    """Two nodes, of which the lower may go."""
    world = standing(HIGH, LOW, BIG)
    world.stand({"high": [1000], "low": [1000]})
    return world


def test_what_must_stay_is_marked_once_and_cleared_when_it_may_go(two: Standing) -> None:
    assert two.summary == {}
    assert two.review() == STAYS
    assert two.summary == {"may go": 1, no_room(100): 1}
    two.review()
    assert two.written() == ["high"]
    two.stand({"big": [1000] * 5})
    two.change("big", metadata={"annotations": {"other": "kept"}})
    assert two.review() == {"high": MAY_GO, "low": MAY_GO, "big": IN_USE}
    assert two.cluster.nodes()[two.names["big"]]["metadata"]["annotations"]["other"] == "kept"


def test_a_changed_reason_is_written_and_after_a_restart_nothing_anew(two: Standing) -> None:
    two.review()
    more = two.bind("high", 1000, 1000)
    assert two.review()["high"] == IN_USE
    two.cluster.delete(*more)
    two.restart()
    assert two.review() == {"high": IN_USE, "low": MAY_GO}
    assert two.written() == ["high", "high"]


def test_it_is_reviewed_when_that_is_due(two: Standing) -> None:
    two.review()
    two.bind("high", 1000, 1000)
    two.clock.advance(REVIEW_SECONDS - 1)
    assert two.go_on()["high"] == no_room(100)
    two.clock.advance(1)
    assert two.go_on()["high"] == IN_USE


def test_a_booked_node_is_marked_and_cleared_with_its_booking(two: Standing) -> None:
    two.review()
    two.cluster.node("stranger", BIG)
    two.names["stranger"] = "stranger"
    two.book("low", 2)
    two.book("stranger", 2, "elsewhere")
    two.bind("stranger", 6000)
    assert two.go_on() == {**STAYS, "low": TRAIN, "stranger": MAY_GO}, "before the next review"
    assert two.review() == {**STAYS, "low": TRAIN, "stranger": MAY_GO}
    assert two.written() == ["high", "low"]
    assert two.summary == {"may go": 0, BOOKED: 1, no_room(100): 1}, "by kind, however many requests"
    two.delete("train")
    two.book("low", 1, "other")
    assert two.review()["low"] == f"{BOOKED} ns/other"
    two.delete("other")
    two.run(3.0)
    assert two.review()["low"] == MAY_GO


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not seen yet"])
@pytest.mark.parametrize("value", ["true", "false"])
@pytest.mark.parametrize("consolidates", [False, True])
def test_what_somebody_else_said_is_never_touched(two: Standing, value: str, seen: bool, consolidates: bool) -> None:
    if consolidates:
        consolidate(two)
    two.step()
    if not seen:
        two.late.add("nodes")
    two.annotate("high", theirs=value)
    assert two.review() == {"high": f"theirs: {value}", "low": CONSOLIDATED if consolidates else MAY_GO}


def consolidate(world: Standing, *, on: bool = True) -> None:
    chosen = ConsolidationSettings(ConsolidationMode.ON) if on else None
    world.settings = replace(world.settings, consolidation=chosen)
    world.idle.add("consolidation")
    world.restart()


def test_where_cagrpc_consolidates_the_autoscaler_takes_no_node(two: Standing) -> None:
    two.review()
    consolidate(two)
    assert two.review() == dict.fromkeys(("high", "low"), CONSOLIDATED), "whatever was decided before"
    assert two.summary == {"may go": 0, CONSOLIDATED: 2}
    written = two.written()
    consolidate(two)
    two.review()
    assert two.written() == written, "a restart writes nothing anew"
    consolidate(two, on=False)
    two.review()
    assert two.review()["low"] == MAY_GO
    assert two.summary == {"may go": 1, no_room(100): 1}


# ---- a server that refuses


@pytest.mark.parametrize("changes", [2, 3])
def test_a_node_that_changes_meanwhile_is_tried_again(two: Standing, changes: int) -> None:
    left = count(-changes)
    two.during("PATCH", lambda: two.annotate("high", other="at it") if next(left) < 0 else None)
    assert two.review() == (STAYS if changes < 3 else {**STAYS, "high": MAY_GO})
    assert two.review() == STAYS


def test_a_node_that_is_gone_is_no_trouble(two: Standing) -> None:
    two.during("GET", lambda: two.api.objects.pop(f"/api/v1/nodes/{two.names['high']}"))
    two.review()
    assert not two.written()
    two.during("GET", lambda: None)
    assert two.review() == STAYS, "it has registered again"


def test_an_unreachable_server_does_not_begin_the_review_anew(two: Standing) -> None:
    two.stand({"big": [5000]})
    more = two.bind("high", 1000, 1000)
    two.during("GET", refuse)
    assert set(two.review().values()) == {MAY_GO}
    two.during("GET", lambda: None)
    two.cluster.delete(*more)
    two.clock.advance(REVIEW_SECONDS / 2)
    assert two.go_on() == {"high": IN_USE, "low": MAY_GO, "big": MAY_GO}, "the rest of what was decided"
    assert two.review() == {"high": MAY_GO, "low": MAY_GO, "big": IN_USE}


def refuse() -> None:
    raise Refusal(503, "out of reach")


# ---- much to write, and much to evaluate


def test_a_step_writes_only_so_much_and_what_is_urgent_first(standing: Stand) -> None:
    world = standing(HIGH, LOW)
    world.stand({**{f"high {each:03}": [3000] for each in range(MOST_WRITES + 3)}, "high idle": [1500]})
    world.review()
    assert len(world.written()) == MOST_WRITES
    assert world.written()[0] == "high idle"
    assert set(world.review().values()) == {IN_USE, no_room(100)}


def test_writing_takes_no_step_for_long_and_goes_on_in_the_next_ones(standing: Stand) -> None:
    world = standing(BIG)
    world.stand({f"big {each}": [6000] for each in range(5)})
    world.during("GET", lambda: world.clock.advance(WRITING_SECONDS / 2))
    world.clock.advance(REVIEW_SECONDS)
    for written in (2, 4, 5, 5):
        world.go_on()
        assert len(world.written()) == written
    assert set(world.decided().values()) == {IN_USE}


def test_a_node_that_is_booked_before_its_turn_to_be_cleared_stays_marked(two: Standing) -> None:
    two.mark("low", IN_USE)
    two.during("GET", lambda: two.clock.advance(WRITING_SECONDS))
    assert two.review() == {"high": no_room(100), "low": IN_USE}, "what the autoscaler might remove comes first"
    two.book("low", 1)
    assert two.go_on()["low"] == TRAIN
    assert two.go_on()["low"] == TRAIN


def only_scale_down(world: Standing, look_seconds: float) -> None:
    """Nobody else takes steps, and each look at the clock takes so long."""
    world.idle |= {each.name for each in world.controllers}
    world.clock.look_seconds = look_seconds


def alone(standing: Stand, nodes: int) -> Standing:
    """Nodes with a pod each that finds no other place."""
    world = standing(HIGH, LOW)
    world.stand({f"high {each:02}": [apart(1000)] for each in range(nodes)} | {"high used": [apart(1000), 2000]})
    return world


def test_a_review_takes_several_steps_where_there_is_much_to_evaluate(standing: Stand) -> None:
    world, steps = alone(standing, 20), 0
    only_scale_down(world, 0.01)
    while not world.summary:
        assert not world.written(), "nothing is written before all is decided"
        world.go_on()
        steps += 1
        assert steps < 20
    assert steps > 3
    decided = world.go_on()
    assert world.summary == {"may go": 0, no_room(100): 20, IN_USE: 1}
    assert set(decided.values()) == {no_room(100), IN_USE}


def test_between_the_steps_of_a_review_no_time_passes_for_it(standing: Stand) -> None:
    world, steps = alone(standing, 20), 0
    only_scale_down(world, 0.01)
    while not world.summary:
        world.go_on()
        world.clock.advance(1.0)
        steps += 1
    assert steps > 1
    assert world.summary == {"may go": 0, no_room(100): 20, IN_USE: 1}


def test_nodes_that_an_increment_counts_on_and_booked_ones_do_not_wait_for_its_end(standing: Stand) -> None:
    world = alone(standing, 20)
    world.order("high new", released=False)
    world.clock.look_seconds = 0.01
    world.go_on()
    assert world.written() == ["high new"]
    world.clock.look_seconds = 0.0
    world.book("high 07", 1)
    world.clock.look_seconds = 0.01
    assert world.go_on()["high 07"] == TRAIN
    assert not world.summary
    assert world.written() == ["high new", "high 07"]
    while not world.summary:
        world.go_on()
    assert world.go_on()["high new"] == IN_FLIGHT
    assert world.written().count("high new") == 1


def test_a_round_has_an_end_and_the_next_goes_on(standing: Stand) -> None:
    """Those of the lower tier have no room, and are looked at first."""
    world = standing(LOW, SMALL)
    bound = replace(apart(100), node_selector=(("tier", "low"),))
    world.stand({f"low {each:02}": [bound] for each in range(60)} | {"small 1": [500], "small 2": [500]})
    for each in world.names:
        world.mark(each, IN_USE)
    world.review()
    assert world.summary == {"may go": 0, no_room(10): 50, NOT_YET: 12}
    world.review()
    assert world.summary == {"may go": 1, no_room(10): 60, no_room(100): 1}
    assert world.review()["small 1"] == MAY_GO


def test_only_so_many_nodes_with_pods_go_at_a_time(standing: Stand) -> None:
    world = standing(LOW)
    world.stand({f"low {each:02}": [100] for each in range(40)} | {"low 40": []})
    assert world.review()["low 40"] == MAY_GO
    assert world.summary == {"may go": 31, ENOUGH: 10}


@pytest.mark.parametrize("said", [True, False], ids=["those that may go already", "others"])
def test_time_ends_a_round_too_but_takes_nothing_back_that_was_said(standing: Stand, said: bool) -> None:
    world = standing(LOW)
    world.stand({f"low {each}": [1000] for each in range(4)})
    if said:
        world.review()
        assert len(world.may_go()) == 3
    else:
        for each in world.names:
            world.mark(each, IN_USE)
    before = world.may_go()
    only_scale_down(world, 0.3)
    world.clock.advance(REVIEW_SECONDS)
    for _ in range(20):
        world.go_on()
    assert world.summary[NOT_YET] > 0
    assert len(world.may_go()) == (3 if said else 2)
    assert set(before) <= set(world.may_go())
