"""What is left out of planning, and for how long."""

from __future__ import annotations

import pytest

from cagrpc.cluster.shortages import Shortages, offering
from cagrpc.fleet.model import FleetSnapshot, GroupState, IncrementSpec, IncrementStatus, Phase
from tests.support.fleet import FakeClock, group

BASE = 100.0
GROUPS = {
    "a": group("a", instance_type="m", zone="z1", capacity_type="spot"),
    "b": group("b", instance_type="m", zone="z1", capacity_type="spot"),
    "c": group("c", instance_type="m", zone="z2", capacity_type="spot"),
    "d": group("d", instance_type="m"),
}


class Learner:
    def __init__(self) -> None:
        self.clock = FakeClock(0.0)
        self.shortages = Shortages(BASE, self.clock)
        self.told: list[IncrementStatus] = []

    def tell(self, phase: Phase, *groups: str, created: float, finished: float | None = None, short: str = "") -> None:
        status = IncrementStatus(
            id=f"i{len(self.told)}",
            increment=IncrementSpec(dict.fromkeys(groups, 1)),
            phase=phase,
            message="no capacity",
            created_at_seconds=created,
            finished_at_seconds=finished,
            short_groups=tuple(short),
        )
        self.told.append(status)
        self.learn()

    def learn(self) -> None:
        states = {name: GroupState(each, 0) for name, each in GROUPS.items()}
        self.shortages.learn(FleetSnapshot(1, states, (), {}, increments=tuple(self.told)))

    def left_out(self) -> dict[str, float]:
        return {each.offering: each.until_seconds for each in self.shortages.active()}


@pytest.fixture
def learner() -> Learner:
    return Learner()


def test_an_offering_is_a_type_in_a_zone_at_a_capacity_type() -> None:
    assert offering(GROUPS["a"]) == offering(GROUPS["b"]) == "m/z1/spot"
    assert offering(GROUPS["c"]) != offering(GROUPS["a"])
    assert offering(GROUPS["d"]) == "node group d"


def test_only_what_was_short_is_left_out(learner: Learner) -> None:
    learner.tell(Phase.ROLLING_BACK, "a", "c", "d", created=0.0, short="cd")
    assert learner.left_out() == {"m/z2/spot": BASE, "node group d": BASE}


def test_a_failed_increment_counts_once_on_its_way_and_at_its_end(learner: Learner) -> None:
    learner.tell(Phase.ROLLING_BACK, "a", created=0.0, short="a")
    learner.clock.advance(10)
    learner.told[0] = IncrementStatus(
        "i0", learner.told[0].increment, Phase.ROLLED_BACK, finished_at_seconds=10.0, short_groups=("a",)
    )
    learner.learn()
    assert learner.left_out() == {"m/z1/spot": BASE}


def test_increments_asked_for_together_fail_once(learner: Learner) -> None:
    learner.clock.advance(5)
    learner.tell(Phase.ROLLING_BACK, "a", created=1.0, short="a")
    learner.tell(Phase.ROLLING_BACK, "b", created=1.0, short="b")
    assert learner.left_out() == {"m/z1/spot": 5 + BASE}


def test_each_failure_in_a_row_doubles_the_time_up_to_six_times(learner: Learner) -> None:
    lengths = []
    for _ in range(5):
        created = learner.clock()
        learner.clock.advance(1)
        learner.tell(Phase.ROLLED_BACK, "a", created=created, finished=learner.clock(), short="a")
        lengths.append((learner.left_out()["m/z1/spot"] - learner.clock()) / BASE)
        learner.clock.advance(lengths[-1] * BASE)
        assert not learner.left_out()
    assert lengths == [1, 2, 4, 6, 6]


def test_what_came_since_the_failure_forgets_it(learner: Learner) -> None:
    learner.clock.advance(1)
    learner.tell(Phase.ROLLED_BACK, "a", created=0.0, finished=1.0, short="a")
    learner.tell(Phase.READY, "b", created=0.5)
    assert learner.left_out()  # asked for before the failure
    learner.tell(Phase.READY, "b", created=2.0)
    assert not learner.left_out()
    learner.clock.advance(1000)
    learner.tell(Phase.ROLLED_BACK, "a", created=1000.0, finished=1001.0, short="a")
    assert learner.left_out() == {"m/z1/spot": 1001 + BASE}


def test_a_shortage_long_ago_is_forgotten(learner: Learner) -> None:
    learner.tell(Phase.ROLLED_BACK, "a", created=0.0, finished=0.0, short="a")
    learner.clock.advance(BASE + 6 * BASE)
    learner.tell(Phase.ROLLED_BACK, "a", created=699.0, finished=700.0, short="a")
    assert learner.left_out() == {"m/z1/spot": 800.0}


def test_a_restart_learns_the_same_from_finished_increments(learner: Learner) -> None:
    for number in range(3):
        learner.clock.now = 150.0 * number + 1
        learner.tell(Phase.ROLLED_BACK, "a", created=150.0 * number, finished=learner.clock(), short="a")
    learner.clock.advance(5)
    restarted = Learner()
    restarted.clock, restarted.told = learner.clock, learner.told
    restarted.shortages = Shortages(BASE, learner.clock)
    restarted.learn()
    assert restarted.left_out() == learner.left_out() == {"m/z1/spot": 301 + 4 * BASE}


def test_what_failed_for_another_reason_is_not_left_out(learner: Learner) -> None:
    learner.tell(Phase.ROLLED_BACK, "a", created=0.0, finished=0.0, short="")
    assert not learner.left_out()
