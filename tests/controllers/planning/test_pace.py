"""What was planned is what runs, however slow the controllers and the scheduler are."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cagrpc.fleet.model import Phase
from cagrpc.runtime.progress import DEADLINE_SECONDS, LONGEST_FACTOR
from tests.support.cluster import path_of
from tests.support.examples import examples
from tests.support.fleet import group
from tests.support.world import World

QUOTA = 'pods "web" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5'
CONFLICT = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'

GROUPS = [group("small", cpu=4000, price=0.2), group("large", cpu=16000, price=0.7)]
LOAD = {f"web-{number:02}": 1 + number % 4 for number in range(30)}
"""73 pods."""
WORKERS = 5
"""`--concurrent-replicaset-syncs`."""
LONGEST_SECONDS = 4 * 3600.0


class Paced(World):
    """A planner beside a kube-controller-manager and a kube-scheduler that take their time: as many pods a second are
    created, of several workloads at once as its workers do, and as many are tried by the scheduler."""

    def __init__(self, pods_a_second: float = 5.0, tries_a_second: float = 1000.0) -> None:
        super().__init__(*GROUPS)
        self.pods_a_second = pods_a_second
        self.cluster.tries_a_second = tries_a_second
        self.running = True
        """Whether there is a kube-controller-manager."""
        self.refused: dict[str, str] = {}
        """By workload, what the API server says to each attempt to create a pod of it."""
        self.stuck: set[str] = set()
        """Workloads that their controller does not come to, and nobody says why."""
        self.seen: set[str] = set()
        """The Nodes that there ever were,"""
        self.used: set[str] = set()
        """and those that a pod was bound to."""
        self._made: Counter[str] = Counter()
        self._queue: deque[str] = deque()
        self._under_way: deque[str] = deque()
        self._due = 0.0
        self._at = self.clock()

    def apply(self, workloads: Mapping[str, int], *, cpu: int = 1000) -> None:
        """Create workloads, of so many pods each."""
        for name, pods in workloads.items():
            self.cluster.workload(name, pods, cpu=cpu, creates=False)
            self._queue.append(name)

    def drop(self, name: str) -> None:
        """Delete a workload; its pods stay."""
        del self.cluster.workloads[name]
        self.api.remove(path_of("/apis/apps/v1/replicasets", name))

    def controller_manager(self, *, running: bool) -> None:
        """Stop it, or begin anew, in another order."""
        self.running = running
        self._under_way.clear()
        self._queue = deque(sorted(self.cluster.workloads))

    def step(self) -> None:
        self._due += (self.clock() - self._at) * self.pods_a_second
        self._at = self.clock()
        while self.running and self._due >= 1.0 and self._attempt():
            self._due -= 1.0
        if not (self._under_way or self._queue):
            self._due = min(self._due, 1.0)
        super().step()
        self.seen |= self.cluster.nodes().keys()
        self.used |= {*map(self.cluster.node_of, self.cluster.pods())}

    def _attempt(self) -> bool:
        """Create one pod, or have it refused. Return whether there was one to create."""
        while self._queue and len(self._under_way) < WORKERS:
            name = self._queue.popleft()
            if name not in self.stuck and self._left(name):
                self._under_way.append(name)
        if not self._under_way:
            return False
        name = self._under_way.popleft()
        why = self.refused.get(name, "")
        failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": why}
        if name in self.cluster.workloads:
            path = path_of("/apis/apps/v1/replicasets", name)
            self.api.change(path, status={"conditions": [failure] if why else []})
        if self._left(name) and not why:
            self.cluster.create(name)
            self._made[name] += 1
            self._under_way.append(name)
        return True

    def _left(self, name: str) -> int:
        found = self.cluster.workloads.get(name)
        return found.replicas - self._made[name] if found is not None else 0

    @property
    def left(self) -> int:
        """How many pods are still to be created."""
        given_up = self.stuck | {name for name, why in self.refused.items() if why}
        return sum(map(self._left, self.cluster.workloads.keys() - given_up))

    def until_all_run(self, step: float = 1.0) -> None:
        """Let time pass until every pod is bound that is to be created."""
        until = self.clock() + LONGEST_SECONDS
        while self.left or self.cluster.pending():
            assert self.clock() < until, (
                f"{self.left} pods are still to be created, {self.cluster.pending()} to be bound"
            )
            self.step()
            self.clock.advance(step)
        self.step()

    @property
    def rounds(self) -> int:
        return len(self.page("/plans"))

    @property
    def unused(self) -> int:
        """How many Nodes came for nobody."""
        return len(self.seen - self.used)

    @property
    def cost(self) -> float:
        """What the nodes cost that are targeted now, in USD per hour."""
        return sum(each.price_usd_per_hour * self.targets().get(each.id, 0) for each in GROUPS)


Make = Callable[..., Paced]


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as worlds:
        yield lambda *paces: worlds.enter_context(Paced(*paces))


@cache
def planned_cost() -> float:
    """Return what they cost where all are there at once."""
    with Paced(1000.0) as world:
        world.apply(LOAD)
        world.until_all_run()
        return world.cost


def as_planned(world: Paced) -> bool:
    return (world.rounds, world.unused, round(world.cost - planned_cost(), 6)) == (1, 0, 0.0)


PACES = [(pods, tries) for pods in (1000.0, 100.0, 20.0, 5.0, 1.0, 0.1) for tries in (1000.0, 1.0, 0.1)]
EACH_DAY = {(20.0, 1000.0), (5.0, 1.0), (1000.0, 0.1), (0.1, 1000.0)}
"""Both quick, both slow, and one waiting for the other."""


@pytest.mark.parametrize(
    ("pods_a_second", "tries_a_second"),
    [pytest.param(*each, marks=[pytest.mark.long("another pace")] * (each not in EACH_DAY)) for each in PACES],
)
def test_one_round_at_any_pace(make: Make, pods_a_second: float, tries_a_second: float) -> None:
    world = make(pods_a_second, tries_a_second)
    world.apply(LOAD)
    world.until_all_run(step=max(1.0, min(5.0, 0.5 / min(pods_a_second, tries_a_second))))
    assert as_planned(world)


def test_what_the_api_server_refuses_is_given_up_at_once(make: Make) -> None:
    world = make()
    world.apply({"web": 4, "refused": 16})
    world.running = False
    world.run(5.0)
    assert world.targets() == {"small": 1, "large": 1}
    world.refused["refused"] = QUOTA
    world.running = True
    world.until_all_run()
    world.run(1.0)
    assert world.targets() == {"small": 1}


@pytest.mark.parametrize("pods_a_second", [20.0, 0.2])
def test_nodes_for_one_that_nobody_comes_to_go_and_take_nobody_elses_place(make: Make, pods_a_second: float) -> None:
    world = make(pods_a_second)
    world.stuck.add("stuck")
    world.apply({"stuck": 16, **LOAD})
    world.until_all_run(step=2.5)
    assert world.rounds == 1
    world.run((LONGEST_FACTOR + 1) * DEADLINE_SECONDS, 5.0)
    assert world.rounds == 1
    assert all(each.phase is Phase.DONE for each in world.increments())
    assert not world.cluster.held()


def test_controllers_that_pause_for_less_than_the_deadline_break_nothing(make: Make) -> None:
    world = make()
    world.apply(LOAD)
    while world.left:
        world.run(3.0)
        world.controller_manager(running=False)
        world.run(0.9 * DEADLINE_SECONDS)
        world.controller_manager(running=True)
    world.until_all_run()
    assert as_planned(world)


def test_after_a_longer_pause_what_was_given_up_is_planned_once_more_together(make: Make) -> None:
    world = make()
    world.apply(LOAD)
    world.run(5.0)
    world.running = False
    world.run(5 * DEADLINE_SECONDS, 5.0)
    assert not world.view.state().expected
    world.running = True
    world.until_all_run()
    assert world.rounds == 2


class AnySurroundings(RuleBasedStateMachine):
    """Whatever controllers and scheduler do, in the end all pods run that came, and no node is held or for nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Paced()
        self.names = 0

    @rule(pods=st.integers(1, 12), cpu=st.sampled_from([500, 1000, 3000]))
    def scale_up(self, pods: int, cpu: int) -> None:
        self.names += 1
        self.world.apply({f"w-{self.names}": pods}, cpu=cpu)

    @rule(pods_a_second=st.sampled_from([0.02, 0.5, 5.0, 100.0]), tries_a_second=st.sampled_from([0.2, 2.0, 1000.0]))
    def change_pace(self, pods_a_second: float, tries_a_second: float) -> None:
        self.world.pods_a_second, self.world.cluster.tries_a_second = pods_a_second, tries_a_second

    @rule(running=st.booleans())
    def controller_manager(self, *, running: bool) -> None:
        self.world.controller_manager(running=running)

    @precondition(lambda self: self.world.cluster.workloads)
    @rule(data=st.data(), message=st.sampled_from([QUOTA, CONFLICT, ""]))
    def refuse(self, data: st.DataObject, message: str) -> None:
        self.world.refused[self._any(data)] = message

    @precondition(lambda self: self.world.cluster.workloads)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.world.drop(self._any(data))

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(seconds=st.sampled_from([1.0, 30.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.world.run(seconds, 2.0)

    def _any(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.world.cluster.workloads)))

    def teardown(self) -> None:
        self.change_pace(5.0, 1000.0)
        self.controller_manager(running=True)
        self.world.until_all_run()
        self.world.run((LONGEST_FACTOR + 1) * DEADLINE_SECONDS, 10.0)
        assert not self.world.cluster.pending()
        assert not self.world.cluster.held()
        assert not self.world.increments(*(each for each in Phase if each.in_flight))
        self.world.close()


TestAnySurroundings = AnySurroundings.TestCase
TestAnySurroundings.settings = examples(10, steps=8)
