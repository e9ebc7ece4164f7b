"""What was planned is what runs, however slow the controllers and the scheduler are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cagrpc.fleet.model import Phase
from cagrpc.runtime.progress import DEADLINE_SECONDS, LONGEST_FACTOR
from tests.support.controllers.paced import PacedHarness, Workload
from tests.support.examples import examples
from tests.support.fleet import group

QUOTA = 'pods "web" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5'
CONFLICT = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'

GROUPS = [group("small", cpu=4000, price=0.2), group("large", cpu=16000, price=0.7)]
LOAD = {f"web-{number:02}": 1 + number % 4 for number in range(30)}
"""73 pods."""


Make = Callable[..., PacedHarness]


@pytest.fixture
def make() -> Iterator[Make]:
    harnesses: list[PacedHarness] = []

    def made(pods_a_second: float = 5.0, tries_a_second: float = 1000.0) -> PacedHarness:
        harnesses.append(PacedHarness(GROUPS, pods_a_second=pods_a_second, tries_a_second=tries_a_second))
        return harnesses[-1]

    yield made
    for harness in harnesses:
        harness.close()


@pytest.fixture(scope="module")
def planned_cost() -> Iterator[float]:
    """What they cost where all are there at once."""
    harness = PacedHarness(GROUPS, pods_a_second=1000.0)
    harness.apply(LOAD)
    harness.until_all_run()
    yield harness.cost()
    harness.close()


@pytest.mark.parametrize("tries_a_second", [1000.0, 1.0, 0.1])
@pytest.mark.parametrize("pods_a_second", [1000.0, 100.0, 20.0, 5.0, 1.0, 0.1])
def test_one_round_at_any_pace(make: Make, planned_cost: float, pods_a_second: float, tries_a_second: float) -> None:
    harness = make(pods_a_second, tries_a_second)
    harness.apply(LOAD)
    harness.until_all_run(step=max(1.0, min(5.0, 0.5 / min(pods_a_second, tries_a_second))))
    assert (len(harness.loop.plans()), harness.unused()) == (1, 0)
    assert harness.cost() == pytest.approx(planned_cost)


def test_what_the_api_server_refuses_is_given_up_at_once(make: Make) -> None:
    harness = make()
    harness.apply({"web": 4})
    harness.apply({"refused": 16})
    harness.controllers.running = False
    harness.run(5.0)
    assert harness.targets() == {"small": 1, "large": 1}
    harness.controllers.workloads["refused"].refused = QUOTA
    harness.controllers.running = True
    harness.until_all_run()
    harness.run(1.0)
    assert harness.targets() == {"small": 1}


@pytest.mark.parametrize("pods_a_second", [20.0, 0.2])
def test_nodes_for_one_that_nobody_comes_to_go_and_take_nobody_elses_place(make: Make, pods_a_second: float) -> None:
    harness = make(pods_a_second)
    harness.apply({"stuck": 16})
    harness.controllers.workloads["stuck"].stuck = True
    harness.apply(LOAD)
    harness.until_all_run()
    assert len(harness.loop.plans()) == 1
    harness.run((LONGEST_FACTOR + 1) * DEADLINE_SECONDS)
    assert len(harness.loop.plans()) == 1
    assert all(each.phase is Phase.DONE for each in harness.increments())
    assert not harness.cluster.held_nodes()


def test_controllers_that_pause_for_less_than_the_deadline_break_nothing(make: Make, planned_cost: float) -> None:
    harness = make()
    harness.apply(LOAD)
    while harness._left():
        harness.run(3.0)
        harness.controllers.running = False
        harness.run(0.9 * DEADLINE_SECONDS)
        harness.controllers.running = True
        harness.controllers.restart()
    harness.until_all_run()
    assert (len(harness.loop.plans()), harness.unused()) == (1, 0)
    assert harness.cost() == pytest.approx(planned_cost)


def test_after_a_longer_pause_what_was_given_up_is_planned_once_more_together(make: Make) -> None:
    harness = make()
    harness.apply(LOAD)
    harness.run(5.0)
    harness.controllers.running = False
    harness.run(5 * DEADLINE_SECONDS)
    assert not harness.cluster.expected()
    harness.controllers.running = True
    harness.until_all_run()
    assert len(harness.loop.plans()) == 2


class AnySurroundings(RuleBasedStateMachine):
    """Whatever controllers and scheduler do, in the end all pods run that came, and no node is held or for nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = PacedHarness(GROUPS, pods_a_second=5.0)
        self.names = 0

    @rule(pods=st.integers(1, 12), cpu=st.sampled_from([500, 1000, 3000]))
    def scale_up(self, pods: int, cpu: int) -> None:
        self.names += 1
        self.harness.apply({f"w-{self.names}": pods}, cpu=cpu)

    @rule(pods_a_second=st.sampled_from([0.02, 0.5, 5.0, 100.0]), tries_a_second=st.sampled_from([0.2, 2.0, 1000.0]))
    def change_pace(self, pods_a_second: float, tries_a_second: float) -> None:
        self.harness.controllers.pods_a_second = pods_a_second
        self.harness.paced.tries_a_second = tries_a_second

    @rule(running=st.booleans())
    def controller_manager(self, *, running: bool) -> None:
        self.harness.controllers.running = running
        self.harness.controllers.restart()

    @precondition(lambda self: self.harness.controllers.workloads)
    @rule(data=st.data(), message=st.sampled_from([QUOTA, CONFLICT, ""]))
    def refuse(self, data: st.DataObject, message: str) -> None:
        self._any(data).refused = message

    @precondition(lambda self: self.harness.controllers.workloads)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.harness.controllers.drop(self._any(data).name)

    @rule()
    def restart(self) -> None:
        self.harness.restart()

    @rule(seconds=st.sampled_from([1.0, 30.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.harness.run(seconds, 2.0)

    def _any(self, data: st.DataObject) -> Workload:
        names = sorted(self.harness.controllers.workloads)
        return self.harness.controllers.workloads[data.draw(st.sampled_from(names))]

    def teardown(self) -> None:
        self.change_pace(5.0, 1000.0)
        self.controller_manager(running=True)
        self.harness.until_all_run()
        self.harness.run((LONGEST_FACTOR + 1) * DEADLINE_SECONDS, 10.0)
        assert not self.harness.pending()
        assert not self.harness.cluster.held_nodes()
        assert not self.harness.increments(*(each for each in Phase if each.in_flight))
        self.harness.close()


TestAnySurroundings = AnySurroundings.TestCase
TestAnySurroundings.settings = examples(10, steps=8)
