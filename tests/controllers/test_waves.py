"""When nodes are let go: a plan's together, wave after wave, and no slow group keeps the others for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from cagrpc.controllers.waves import LONGEST_WAVE_SECONDS, SETTLED_SECONDS, TOGETHER_SECONDS, TRIES, Waves
from cagrpc.fleet.model import FleetSnapshot, HeldNode, Increment, IncrementStatus, Phase, request_key


def increment(key: str, plan: str, phase: Phase, *waves: int) -> IncrementStatus:
    """Of one node in each of the waves, with one pod for each."""
    held = tuple(HeldNode(f"{key}{n}", "g", (f"pod-{key}{n}",), wave) for n, wave in enumerate(waves))
    pods = frozenset(f"pod-{key}{n}" for n in range(len(waves)))
    return IncrementStatus(
        key, Increment({"g": len(waves)}, pods=pods, plan=plan), phase, held=held if phase is Phase.READY else ()
    )


@dataclass
class Stage:
    increments: list[IncrementStatus]
    now: float = 0.0
    waiting: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    news: Counter[str] = field(default_factory=Counter)
    given_back: set[str] = field(default_factory=set)
    asked: list[tuple[set[str], dict[str, int], dict[str, int]]] = field(default_factory=list)
    """What the reserve was asked for,"""
    needed: dict[str, int] = field(default_factory=dict)
    """and what it answers."""

    def __post_init__(self) -> None:
        self.waiting = {pod for status in self.increments for pod in status.increment.pods}
        self.waves = Waves(lambda: self.now, lambda pod: self.news[pod] if pod in self.waiting else None, self.ask)

    def ask(self, waiting: AbstractSet[str], held: Mapping[str, int], reserve: Mapping[str, int]) -> Mapping[str, int]:
        self.asked.append((set(waiting), dict(held), dict(reserve)))
        return self.needed

    def look(self) -> set[str]:
        """Lets go of what is due; every node that is let go by now."""
        snapshot = FleetSnapshot(1, {}, (), {}, tuple(self.increments))
        held = {node.instance_id for status in self.increments for node in status.held} - self.gone
        due = self.waves.due(snapshot, held)
        self.gone |= {node.instance_id for nodes in due.let_go.values() for node in nodes}
        self.given_back.update(due.give_back)
        return self.gone


def test_an_increment_without_a_plan_is_let_go_at_once() -> None:
    assert Stage([increment("a", "", Phase.READY, 0, 0), increment("b", "", Phase.CREATING, 0)]).look() == {"a0", "a1"}


def test_increments_for_requests_do_not_wait_for_others_of_their_plan() -> None:
    ready, coming = (increment(key, "p", phase, 0, 0) for key, phase in (("a", Phase.READY), ("b", Phase.CREATING)))
    asked = [replace(each.increment, pods=frozenset({request_key(each.id)})) for each in (ready, coming)]
    first, second = (replace(each, increment=inc) for each, inc in zip((ready, coming), asked, strict=True))
    assert Stage([first, second]).look() == {"a0", "a1"}
    assert Stage([ready, second]).look() == {"a0", "a1"}
    assert Stage([first, coming]).look() == {"a0", "a1"}
    assert Stage([ready, coming]).look() == set()


def test_a_plans_increments_wait_for_one_another_but_not_for_ever() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0), increment("b", "p", Phase.CREATING, 0)])
    assert stage.look() == set()
    stage.now = TOGETHER_SECONDS - 1
    assert stage.look() == set()
    stage.increments[1] = increment("b", "p", Phase.READY, 0)
    assert stage.look() == {"a0", "b0"}
    late = Stage([increment("a", "p", Phase.READY, 0), increment("b", "p", Phase.CREATING, 0)])
    late.look()
    late.now = TOGETHER_SECONDS
    assert late.look() == {"a0"}


def test_one_that_is_taken_back_is_not_waited_for() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0), increment("b", "p", Phase.ROLLING_BACK, 0)])
    assert stage.look() == {"a0"}


def test_the_next_wave_begins_once_nothing_lands_any_more() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0, 1), increment("b", "p", Phase.READY, 2)])
    assert stage.look() == {"a0"}
    stage.now = SETTLED_SECONDS - 0.1
    stage.waiting.remove("pod-b0")
    assert stage.look() == {"a0"}
    stage.now += SETTLED_SECONDS - 0.1
    assert stage.look() == {"a0"}
    stage.now += 0.2
    assert stage.look() == {"a0", "a1"}
    stage.now += SETTLED_SECONDS
    assert stage.look() == {"a0", "a1", "b0"}


def test_a_wave_lasts_as_long_as_the_scheduler_tries_its_pods() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0, 1, 1)])
    for pod in ("pod-a0", "pod-a1", "pod-a2"):
        assert stage.look() == {"a0"}
        stage.now += SETTLED_SECONDS - 0.1
        stage.news[pod] += 1
    assert stage.look() == {"a0"}
    stage.now += SETTLED_SECONDS
    assert stage.look() == {"a0", "a1", "a2"}


def test_with_no_pod_left_the_rest_is_let_go() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0, 1, 2)])
    assert stage.look() == {"a0"}
    stage.waiting.clear()
    assert stage.look() == {"a0", "a1", "a2"}


def test_a_wave_in_which_pods_come_and_go_ends_too() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0, 1)])
    stage.look()
    while stage.now < LONGEST_WAVE_SECONDS - SETTLED_SECONDS:
        stage.now += SETTLED_SECONDS / 2
        stage.waiting ^= {"pod-a1"}
        assert stage.look() == {"a0"}
    stage.now = LONGEST_WAVE_SECONDS
    stage.waiting.add("pod-a1")
    assert stage.look() == {"a0", "a1"}


def test_a_new_process_goes_on_with_the_lowest_wave_that_is_held() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0, 1, 2)])
    stage.gone = {"a0"}
    assert stage.look() == {"a0", "a1"}


def test_pods_of_increments_that_are_done_keep_the_next_wave_waiting() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0, 0, 0), increment("b", "p", Phase.READY, 1)])
    assert stage.look() == {"a0", "a1", "a2"}
    stage.increments[0] = increment("a", "p", Phase.DONE, 0, 0, 0)
    for number in range(3):
        stage.now += SETTLED_SECONDS - 0.1
        stage.waiting.remove(f"pod-a{number}")
        assert stage.look() == {"a0", "a1", "a2"}
    stage.now += SETTLED_SECONDS
    assert stage.look() == {"a0", "a1", "a2", "b0"}


def test_a_node_that_cannot_be_let_go_does_not_hold_later_waves_for_ever() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0, 0, 1)])
    stage.look()
    while stage.now < LONGEST_WAVE_SECONDS - SETTLED_SECONDS:
        stage.now += SETTLED_SECONDS
        stage.gone.discard("a0")
        assert stage.look() == {"a0", "a1"}
    stage.now = LONGEST_WAVE_SECONDS
    stage.gone.discard("a0")
    assert stage.look() == {"a0", "a1", "a2"}


def in_reserve(key: str, phase: Phase = Phase.READY) -> IncrementStatus:
    status = increment(key, "p", phase, 1)
    return replace(status, increment=replace(status.increment, pods=frozenset(), reserve=True))


def test_a_reserve_that_nobody_needs_is_given_back() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0, 2), in_reserve("r"), in_reserve("s")])
    assert stage.look() == {"a0"}
    stage.waiting = set()
    assert stage.look() == {"a0", "a1"}
    assert stage.given_back == set()
    assert stage.look() == {"a0", "a1"}
    assert stage.given_back == {"r", "s"}
    assert stage.asked == []


def test_pods_that_are_left_over_get_what_they_need_of_the_reserve_before_the_next_wave() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0, 2), in_reserve("r"), in_reserve("s")], needed={"g": 1})
    assert stage.look() == {"a0"}
    stage.look()
    stage.now = SETTLED_SECONDS
    assert stage.look() == {"a0", "r0"}
    assert stage.asked == [({"pod-a0", "pod-a1"}, {"g": 1}, {"g": 2})]
    stage.waiting, stage.needed = {"pod-a1"}, {}
    stage.now += 1
    assert stage.look() == {"a0", "r0"}  # the scheduler is at it
    stage.now += SETTLED_SECONDS
    assert stage.look() == {"a0", "r0", "a1"}
    assert stage.given_back == set()
    stage.waiting = set()
    stage.look()
    assert stage.given_back == {"s"}


def test_a_reserve_that_does_not_help_is_asked_a_few_times_and_given_back() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0), *(in_reserve(f"r{n}") for n in range(9))], needed={"g": 2})
    for _ in range(2 * TRIES + 3):
        stage.look()
        stage.now += SETTLED_SECONDS
    assert len(stage.asked) == TRIES
    assert len(stage.gone) == 1 + 2 * TRIES
    assert len(stage.given_back) == 9 - 2 * TRIES


def test_a_reserve_that_is_still_coming_is_waited_for_while_pods_are_left_over() -> None:
    stage = Stage([increment("a", "p", Phase.READY, 0, 2), in_reserve("r", Phase.CREATING)], needed={"g": 1})
    assert stage.look() == {"a0"}
    stage.look()
    stage.now = 2 * SETTLED_SECONDS
    assert stage.look() == {"a0"}
    stage.increments[1] = in_reserve("r")
    assert stage.look() == {"a0", "r0"}


def test_what_is_left_of_a_plan_after_a_restart_is_its_reserve() -> None:
    done = replace(increment("a", "p", Phase.READY, 0), phase=Phase.DONE, held=())
    stage = Stage([done, in_reserve("r")])
    stage.waiting = set()
    for _ in range(3):
        stage.look()
    assert stage.given_back == {"r"}
