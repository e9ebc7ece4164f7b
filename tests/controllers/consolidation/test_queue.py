"""A step of consolidation, from the first cordon to the last deletion: what it does, in which order, what changes it
and what undoes it. In `CASES` large nodes stand, and a step begins that takes some away; then something happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.consolidation.queue import MOST_IN_FLIGHT
from cagrpc.controllers.settings import ConsolidationMode, PlannerSettings
from cagrpc.fleet.model import DisruptionPhase, Phase
from cagrpc.runtime.progress import DEADLINE_SECONDS
from solver.model import HOSTNAME, NodeGroup, PodSpec
from tests.controllers.consolidation.scene import DO_NOT_DISRUPT, SPOT, Scene, evictions_are_forbidden
from tests.support.api_server import Refusal
from tests.support.cluster import NAMESPACE, NODES, Workload
from tests.support.fleet import group

DONE, UNDONE, MOVING = DisruptionPhase.DONE, DisruptionPhase.UNDONE, DisruptionPhase.MOVING
BIG, SMALL = group("big", cpu=8000, price=0.8, max_size=9), group("small", cpu=2000, price=0.2, max_size=9)
MIDDLE = group("middle", cpu=5000, price=0.3, max_size=9)


class Stage(Scene):
    """Large nodes, known by letters: those with a capital one say do-not-disrupt."""

    def __init__(
        self, letters: str, *groups: NodeGroup, prompt: bool = False, tells_ages: bool = False, **more: Any
    ) -> None:
        self._seen: set[str] = set()
        self.prompt = prompt
        """Whether the scheduler binds pods before anybody else has seen them, not when they are nominated."""
        super().__init__(*(groups or (BIG, SMALL)), world={"planner": PlannerSettings(idle_seconds=2.0)}, **more)
        self.cluster.tells_ages = tells_ages
        self.letters = dict(zip(letters, self.stand("big", len(letters)), strict=True))
        for letter in filter(str.isupper, letters):
            self.change_node(self.letters[letter], metadata={"annotations": DO_NOT_DISRUPT})

        self.run(more.get("minimum_node_age_seconds", 0.0), 600)

    def begin(self) -> None:
        """Let a step begin, if none has begun."""
        super().begin()
        self.step()

    def _step(self) -> None:
        if not self.prompt:
            waiting = set(self.cluster.pending())
            self.cluster.passed_over, self._seen = waiting - self._seen, waiting
        super()._step()
        if self.prompt:
            self.cluster.schedule()

    def pods(self, name: str, on: str, **more: Any) -> Workload:
        """Make a workload with a pod on the node of each of these letters."""
        return self.cluster.workload(name, len(on), on=[self.letters[each] for each in on], **more)

    def has(self, *letters: str) -> bool:
        """Return whether pods are on all of these nodes."""
        return {self.letters[each] for each in letters} <= self.pods_by_node().keys()

    def new(self) -> list[str]:
        return sorted(self.cluster.nodes().keys() - {*self.letters.values()})

    def target(self) -> str:
        """Return the letter of the node to which the first pod is to go."""
        return next(key for key, name in self.letters.items() if name == self.last().moves[0].target)

    @property
    def evicted(self) -> int:
        """How many pods there were that are no more."""
        return len(self.cluster.paths) - len(self.cluster.pods())

    def moved(self) -> int:
        """Return how many pods this process has evicted."""
        return int(self.metrics()["cagrpc_consolidation_pods_moved_total"][()].value)

    def left(self) -> dict[str, int]:
        """Return how many pods are on each node that stands, by letters, and by numbers for new ones."""
        names = {**self.letters, **{str(number): name for number, name in enumerate(self.new(), 1)}}
        pods, standing = self.pods_by_node(), self.cluster.nodes()
        return {key: pods.get(name, 0) for key, name in names.items() if name in standing}


Happens = Callable[[Stage], object]
Moment = Callable[[Stage], object]


def begun(stage: Stage) -> object:
    return stage.fleet.snapshot.disruptions


def moving(stage: Stage) -> object:
    return stage.last().phase is MOVING


def went(count: int) -> Moment:
    return lambda stage: stage.evicted == count


def half_way(stage: Stage) -> bool:
    return not stage.has("a") and not stage.cluster.pending()


def ordered(stage: Stage) -> object:
    return stage.increments(Phase.CREATING)


def is_there(stage: Stage) -> object:
    return stage.increments(Phase.READY)


def in_flight(count: int) -> Moment:
    return lambda stage: len([each for each in stage.increments() if each.phase.in_flight]) == count


def come(name: str, on: str = "", **more: Any) -> Happens:
    """Pods that are bound to these nodes come; `?` is the one to which the first pod is to go."""
    return lambda stage: stage.pods(name, on.replace("?", stage.target()) if "?" in on else on, **more)


def of_a_job(on: str) -> Happens:
    return lambda stage: stage.cluster.add(owner="Job/ns/job", node=stage.letters[on])


def tied(letter: str) -> Happens:
    """A pod comes that runs on this node or nowhere."""

    def do(stage: Stage) -> None:
        node = stage.letters[letter]
        stage.cluster.workload("tied", 1, on=[node], spec=PodSpec((("cpu", 100),), node_selector=((HOSTNAME, node),)))

    return do


def may_not_go(name: str, on: str) -> Happens:
    """A pod of a workload is not to be disturbed any more."""

    def do(stage: Stage) -> None:
        pods = stage.cluster.pods().items()
        uid = next(key for key, each in pods if each.ref.workload.endswith(name) and each.node == stage.letters[on])
        stage.api.edit(stage.cluster.paths[uid], annotations=DO_NOT_DISRUPT)

    return do


def stays_by_budget(name: str, budget: int = 0) -> Happens:
    """A workload gets a PodDisruptionBudget."""

    def do(stage: Stage) -> None:
        of = stage.cluster.workloads
        of[name] = replace(of[name], budget=budget)
        stage.cluster.controllers()

    return do


def vanishes(letter: str) -> Happens:
    """A node goes; without a letter, a new one."""
    return lambda stage: stage.cluster.vanish(stage.letters[letter] if letter else stage.new()[0])


def is_not_ready(letter: str) -> Happens:
    return lambda stage: stage.cluster.unready.add(stage.letters[letter])


def changes(letter: str, **parts: Any) -> Happens:
    return lambda stage: stage.change_node(stage.letters[letter], **parts)


def grow(name: str, replicas: int, **more: Any) -> Happens:
    return lambda stage: stage.cluster.workload(name, replicas, **more)


def is_stopped(stage: Stage) -> None:
    stage.switch(ConsolidationMode.DRY_RUN)


def is_under_way(stage: Stage) -> None:
    assert stage.ended() is None


def scheduling(is_on: bool) -> Happens:
    return lambda stage: setattr(stage.cluster, "scheduling", is_on)


def released(is_on: bool) -> Happens:
    return lambda stage: (stage.idle.discard if is_on else stage.idle.add)("releasing nodes")


def nothing(_: Stage) -> None:
    pass


def both(*happens: Happens) -> Happens:
    return lambda stage: [each(stage) for each in happens]


@dataclass(frozen=True)
class Case:
    """What stands, what happens, and what becomes of it."""

    letters: str
    web: str
    """The nodes of its pods, of 1000m each."""
    left: Mapping[str, int]
    """The pods on each node that stands in the end, by letters, and by numbers for new ones."""
    happens: Sequence[tuple[Moment, Happens]] = ()
    ends: DisruptionPhase = DONE
    says: str = ""
    evicted: int | None = None
    first: Happens = lambda _: None
    """What there is beside that when the step begins."""
    groups: Sequence[NodeGroup] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


LARGE = both(come("large-a", "a", cpu=5000), come("large-b", "b", cpu=4500))
FULL, TAKEN = come("full", "CCCC"), both(changes("a", spec=SPOT), changes("b", spec=SPOT))
STOPPED = UNDONE, "consolidation is a dry run now"
TWO_STEPS: Mapping[str, Any] = {
    "first": both(come("large", "a", cpu=5000), come("stuck", "b", cpu=5000)),
    "groups": [BIG, MIDDLE],
}
CASES = {
    "empty nodes go at once": Case("abC", "", {"C": 0}, says="2 nodes deleted"),
    "pods move to nodes that stand": Case("aBC", "aa", {"B": 8, "C": 8}, first=come("full", "BBBBBBBCCCCCCC")),
    "a gang moves from nodes that stay as well, to where it was": Case(
        "ab", "bbbb", {"b": 7}, evicted=3, first=come("train", "aba", gang="train"), groups=[BIG]),
    "a pod that comes before the cordon is seen moves with the others": Case(
        "aB", "aa", {"B": 3}, [(begun, come("late", "a"))], evicted=3),
    "a pod that comes while the new node boots moves there": Case("a", "a", {"1": 2}, [(begun, come("late", "a"))]),
    "the node of a pod that comes and finds no room stays": Case(
        "abC", "ab", {"b": 2, "C": 1}, [(begun, come("late", "b", cpu=7000))], evicted=1),
    "a pod that comes before anything moves and may not be moved keeps its node": Case(
        "abC", "ab", {"b": 2, "C": 1}, [(begun, of_a_job("b"))], evicted=1),
    "one that comes while pods move as well": Case("abC", "ab", {"b": 2, "C": 1}, [(moving, of_a_job("b"))], evicted=1),
    "what is left of a step that saves nothing is undone": Case(
        "ab", "", {"a": 1, "b": 2}, [(begun, of_a_job("b"))], UNDONE, "runs until it ends", 0,
        come("large", "ab", cpu=5000), [BIG, group("wide", cpu=10_000, price=0.9)]),
    "a gang of which one pod may not be moved stays whole": Case(
        "aBc", "a", {"a": 2, "B": 0, "c": 2}, [(moving, may_not_go("gang", "c"))], UNDONE, "may not be moved any more",
        0, both(tied("c"), come("gang", "ac", gang="red"))),
    "room that others took before an eviction undoes it": Case(
        "aB", "aa", {"a": 2, "B": 7}, [(begun, come("thief", "BBBBBBB"))], UNDONE, "has no room for it any more", 0),
    "pods whose room others took go to other nodes that stay": Case(
        "aBC", "aa", {"B": 8, "C": 1}, [(begun, come("thief", "???????"))]),
    "room that others took after an eviction is the planner's to find": Case(
        "aB", "aa", {"B": 8, "1": 2},
        [(begun, scheduling(False)), (went(2), come("thief", "BBBBBBBB")), (begun, scheduling(True))]),
    "where successors take room of others these get another target": Case(
        "aBC", "aaaa", {"B": 8, "C": 2}, [(begun, come("thief", "??????"))], evicted=4),
    "a node whose pods have no room any more stays, and the others go": Case(
        "abC", "aa", {"b": 2, "C": 8}, [(begun, come("thief", "CCCCCC"))], evicted=2, first=come("more", "bb")),
    "a target that is not Ready any more undoes it": Case(
        "aB", "aa", {"a": 2, "B": 0}, [(moving, is_not_ready("B"))], UNDONE, "gone or not Ready"),
    "a new node that vanishes undoes it": Case("a", "aa", {"a": 2}, [(moving, vanishes(""))], UNDONE, "gone"),
    "an old node that vanishes is as good as removed": Case("abC", "ab", {"C": 2}, [(begun, vanishes("a"))]),
    "a cordon that somebody lifts undoes it": Case(
        "aB", "aa", {"a": 2, "B": 0}, [(moving, changes("a", spec={"unschedulable": False}))],
        UNDONE, "somebody has uncordoned node big-"),
    "a pod that may not go any more undoes it": Case(
        "aB", "aa", {"a": 2, "B": 0}, [(moving, may_not_go("web", "a"))],
        UNDONE, "may not be moved any more: ns/pod-1 has the annotation karpenter.sh/do-not-disrupt"),
    "a missing right undoes it": Case(
        "aB", "aa", {"a": 2, "B": 0}, [(begun, evictions_are_forbidden)],
        UNDONE, "the right to create pods/eviction is missing", 0),
    "new nodes that do not come leave everything as it was": Case(
        "a", "aa", {"a": 2}, [], UNDONE, "new nodes did not come", 0,
        lambda stage: stage.backend.set_behaviours({"small": Behaviour(stock=0)})),
    "undone before pods move new nodes are withdrawn": Case("a", "aa", {"a": 2}, [(ordered, is_stopped)], *STOPPED, 0),
    "new nodes that are there stay for the minimum age though the step is undone": Case(
        "a", "aaaa", {"a": 4, "1": 0, "2": 0}, [(Stage.new, is_stopped)], *STOPPED, 0,
        more={"minimum_node_age_seconds": 60.0}),
    "undone half-way pods stay where they are, and what is empty goes": Case(
        "ab", "", {"b": 1, "1": 1}, [(begun, stays_by_budget("stuck")), (half_way, is_stopped)], *STOPPED,
        1, **TWO_STEPS),
    "undone half-way young nodes stay until they are older: the next pods may want them": Case(
        "ab", "", {"b": 1, "1": 1, "2": 0}, [(begun, stays_by_budget("stuck")), (half_way, is_stopped)], *STOPPED, 1,
        more={"minimum_node_age_seconds": 3600.0, "tells_ages": True}, **TWO_STEPS),
    "of a node that its cloud takes what may not be evicted is waited for": Case(
        "aB", "aa", {"B": 3}, [(went(2), lambda stage: stage.run(60)), (begun, is_under_way), (begun, vanishes("a"))],
        first=both(come("own", "a", annotations=DO_NOT_DISRUPT), changes("a", spec=SPOT))),
    "of a node that its cloud takes pods go though the room is taken": Case(
        "aB", "aa", {"B": 8, "1": 1, "2": 2}, [(begun, come("late", "a")), (begun, come("thief", "BBBBBBBB"))],
        first=changes("a", spec=SPOT)),
    "others that come while the new node boots get one of their own": Case(
        "a", "aa", {"1": 2, "2": 2}, [(ordered, grow("other", 2))]),
    "others that come when it is there do so, too": Case(
        "a", "aa", {"1": 2, "2": 2},
        [(begun, released(False)), (is_there, grow("other", 2)), (in_flight(2), released(True))]),
}  # fmt: skip


@pytest.fixture
def stages() -> Iterator[Callable[..., Stage]]:
    with ExitStack() as made:
        yield lambda *of, **more: made.enter_context(Stage(*of, **more))


def end(stage: Stage, ends: DisruptionPhase) -> None:
    """Go on until the step ends, and then so that all is done that follows: no cordon is left, no pod waits, no node is
    in flight or held."""
    stage.until(lambda: stage.ended() is not None, 2000.0)
    assert stage.ended() is ends, stage.last()
    stage.idle.add("consolidation")
    stage.run(60, 5)
    assert not stage.ours()
    assert not stage.cluster.pending()
    assert not [each for each in stage.increments() if each.phase.in_flight]
    assert not stage.cluster.held()


@pytest.mark.parametrize("case", CASES)
def test_a_step(stages: Callable[..., Stage], case: str) -> None:
    of = CASES[case]
    stage = stages(of.letters, *of.groups, **of.more)
    if of.web:
        stage.pods("web", of.web)
    of.first(stage)
    stage.begin()
    for moment, do in of.happens:
        stage.until(lambda at=moment: at(stage))  # type: ignore[misc]
        do(stage)
    end(stage, of.ends)
    assert stage.left() == of.left
    assert of.says in stage.last().message
    assert of.evicted is None or stage.evicted == of.evicted


def test_old_nodes_are_cordoned_first_and_pods_go_when_new_ones_are_there(stages: Callable[..., Stage]) -> None:
    stage = stages("a")
    stage.pods("web", "aa")
    stage.begin()
    begun = stage.last()
    assert (begun.reason, begun.pods, begun.saving_usd_per_hour) == ("Underutilized", 2, 0.6)
    (new,) = (each.increment for each in stage.increments() if each.id == begun.increment_id)
    assert (dict(new.deltas), new.cost_usd_per_hour) == ({"small": 1}, 0.2)
    stage.until(stage.ours)
    assert not stage.new()
    stage.until(lambda: moving(stage))
    assert stage.left() == {"a": 2, "1": 0}
    end(stage, DONE)
    assert stage.left() == {"1": 2}
    assert stage.targets() == {"small": 1}
    assert stage.moved() == 2


def test_the_oldest_pods_of_all_nodes_that_go_take_the_first_places(stages: Callable[..., Stage]) -> None:
    stage = stages("abCD", BIG)
    stage.pods("full", "CCCCCDDDDD")
    stage.pods("old", "bb")
    stage.run(10)
    stage.pods("new", "aa")
    stage.begin()
    assert len(stage.last().nodes) == 2
    targets = [each.target for each in sorted(stage.last().moves, key=lambda each: each.uid)]
    assert len({*targets}) == 2
    assert sum(before != after for before, after in pairwise(targets)) == 1


@pytest.mark.parametrize("prompt", [False, True])
def test_the_scheduler_puts_successors_where_they_are_planned_unless_it_is_faster(
    stages: Callable[..., Stage], *, prompt: bool
) -> None:
    """It likes another node better."""
    stage = stages("ABc", prompt=prompt)
    stage.pods("web", "cc")
    stage.begin()
    planned = stage.target()
    (liked,) = {*"AB"} - {planned}
    first = f"{NODES}/{stage.letters[liked]}"
    stage.api.objects = {first: stage.api.objects[first], **stage.api.objects}
    end(stage, DONE)
    assert stage.left()[liked if prompt else planned] == 2


@pytest.mark.parametrize(
    ("first", "then", "evicted", "held"),
    [
        pytest.param(LARGE, nothing, 1, 1, id="the second once the first has its pods"),
        pytest.param(both(LARGE, come("one", "a"), come("full", "CCC")), nothing, 1, 2, id="standing ones first"),
        pytest.param(LARGE, stays_by_budget("large-a"), 1, 0, id="a pod that may not go yet holds up nobody"),
        pytest.param(LARGE, stays_by_budget("large-b"), 1, 1, id="nor does another"),
        pytest.param(both(LARGE, FULL), grow("other", 1, cpu=500), 2, 0, id="one that others need opens at once"),
        pytest.param(come("gang", "ab", cpu=5000, gang="red"), nothing, 2, 0, id="all of a gang together"),
        pytest.param(both(come("two", "aa", cpu=4000), come("large", "b", cpu=4500), FULL, TAKEN), nothing, 2, 0,
                     id="all if they must"),
    ],
)  # fmt: skip
def test_new_nodes_are_opened_one_after_the_other(
    stages: Callable[..., Stage], first: Happens, then: Happens, evicted: int, held: int
) -> None:
    """The scheduler binds nothing: how many pods have gone, and how many new nodes take none yet."""
    stage = stages("abC", BIG, MIDDLE)
    stage.pods("here", "CCCC")
    first(stage)
    stage.begin()
    stage.until(lambda: moving(stage))
    then(stage)
    stage.cluster.scheduling = False
    stage.run(20)
    assert (stage.evicted, len(stage.cluster.held())) == (evicted, held)
    stage.cluster.scheduling = True


def test_new_nodes_take_pods_in_turn_also_after_a_restart(stages: Callable[..., Stage]) -> None:
    """With both open the scheduler, which is fast, would leave no room for the last pod."""
    stage = stages("a", prompt=True)
    for cpu in (1000, 700, 700, 600, 500, 500):
        stage.cluster.workload(f"one-{len(stage.cluster.workloads)}", 1, cpu=cpu, on=[stage.letters["a"]])
    stage.begin()
    stage.until(lambda: stage.evicted == 3 and len(stage.pods_by_node()) == 2)
    assert len(stage.cluster.held()) == 1
    stage.restart()
    end(stage, DONE)
    assert stage.left() == {"1": 3, "2": 3}


@pytest.mark.parametrize("gang", [None, "train"])
def test_only_so_many_pods_are_away_at_a_time_but_for_a_gang(stages: Callable[..., Stage], gang: str | None) -> None:
    stage = stages("aB")
    pods = MOST_IN_FLIGHT + 2
    stage.pods("web", "a" * pods, cpu=500, gang=gang)
    stage.cluster.scheduling = False
    stage.begin()
    stage.run(20)
    assert stage.evicted == (pods if gang else MOST_IN_FLIGHT)
    stage.cluster.scheduling = True
    end(stage, DONE)


def test_pods_that_were_evicted_are_away_also_before_that_is_seen(stages: Callable[..., Stage]) -> None:
    stage = stages("aB")
    stage.pods("web", "a" * (MOST_IN_FLIGHT + 2), cpu=500)
    stage.begin()
    stage.until(lambda: moving(stage))
    stage.late.add("pods")
    stage.run(20)
    assert stage.evicted == MOST_IN_FLIGHT
    stage.late.clear()
    end(stage, DONE)
    assert stage.moved() == MOST_IN_FLIGHT + 2


def test_a_budget_is_heeded_and_waited_for(stages: Callable[..., Stage]) -> None:
    stage, least = stages("aB"), 5
    stage.pods("web", "a" * 5, budget=1)
    stage.begin()
    while stage.ended() is None:
        stage.run(1)
        least = min(least, sum(stage.pods_by_node().values()))
    assert least == 4
    end(stage, DONE)
    assert stage.metrics()["cagrpc_consolidation_evictions_refused_total"][()].value > 0


def test_a_node_goes_only_when_its_pods_have_ended(stages: Callable[..., Stage]) -> None:
    stage = stages("aB")
    stage.cluster.grace_seconds = 60.0
    stage.pods("web", "a")
    stage.begin()
    stage.until(lambda: stage.has("B"))
    stage.run(40)
    assert stage.ended() is None
    end(stage, DONE)


def test_a_workload_that_was_scaled_down_meanwhile_needs_no_successors(stages: Callable[..., Stage]) -> None:
    stage = stages("aB")
    stage.pods("web", "aaa")
    stage.begin()
    stage.until(lambda: moving(stage))
    stage.cluster.workload("web", 1)
    stage.run(DEADLINE_SECONDS - 5)
    assert stage.ended() is None
    end(stage, DONE)
    assert stage.left() == {"B": 1}


def test_a_deadline_that_passes_undoes_it(stages: Callable[..., Stage]) -> None:
    stage = stages("a")
    stage.pods("web", "aa")
    stage.begin()
    stays_by_budget("web")(stage)
    stage.run(880, 5)
    assert stage.ended() is None
    assert "not evicted yet" in stage.shown["waits_for"]
    end(stage, UNDONE)
    assert "no progress for 900 s: pod ns/" in stage.last().message
    assert stage.left() == {"a": 2}


def test_a_step_is_late_only_where_it_gets_no_further(stages: Callable[..., Stage]) -> None:
    stage = stages("aB")
    stage.pods("web", "aaa", budget=1)
    stage.begin()
    for _ in range(3):
        stage.until(stage.cluster.pending)
        stage.cluster.scheduling = False
        stage.run(400, 5)
        stage.cluster.scheduling = True
        stage.until(lambda: not stage.cluster.pending())
    end(stage, DONE)


@pytest.mark.parametrize(("stop", "left"), [(False, {"B": 62}), (True, {"a": 60, "B": 2})])
def test_successors_are_waited_for_while_the_scheduler_binds_those_before_them(
    stages: Callable[..., Stage], *, stop: bool, left: Mapping[str, int]
) -> None:
    """One in 20 s; pods that were evicted may need any node of a step that is undone meanwhile."""
    stage = stages("aB", prompt=True)
    stage.pods("web", "aa", cpu=500, budget=1)
    stage.begin()
    stage.until(lambda: moving(stage))
    stage.cluster.tries_a_second = 1 / 20
    stage.cluster.add(60, cpu=10)
    stage.until(lambda: stage.evicted)
    if stop:
        is_stopped(stage)
    stage.run(1100, 5)
    assert stage.ended() is None, stage.last().message
    stage.cluster.tries_a_second = 100.0
    end(stage, UNDONE if stop else DONE)
    assert stage.left() == left


def test_workloads_of_a_kind_that_nobody_knows_are_waited_for_while_their_controller_creates_pods(
    stages: Callable[..., Stage],
) -> None:
    stage = stages("aB")
    first, *others = (f"CloneSet/{NAMESPACE}/{name}" for name in "xyz")
    for owner in (first, *others):
        stage.cluster.add(owner=owner, node=stage.letters["a"])
    stage.begin()
    stage.until(lambda: stage.evicted == 3)
    for owner in others:
        stage.run(DEADLINE_SECONDS - 10, 5)
        assert stage.ended() is None
        stage.cluster.add(owner=owner)
    stage.run(DEADLINE_SECONDS - 10, 5)
    assert stage.ended() is None
    end(stage, DONE)
    assert stage.left() == {"B": 2}


def test_a_cordon_of_somebody_else_stays(stages: Callable[..., Stage]) -> None:
    stage = stages("aB")
    stage.pods("web", "aa")
    stage.change_node(stage.letters["a"], spec={"unschedulable": True})
    stage.begin()
    stage.until(lambda: moving(stage))
    is_stopped(stage)
    end(stage, UNDONE)
    assert stage.cluster.cordoned() == {stage.letters["a"]}


def test_a_minimum_that_somebody_else_used_up_undoes_it(stages: Callable[..., Stage]) -> None:
    stage = stages("ab", replace(BIG, min_size=1))
    stage.begin()
    stage.until(lambda: moving(stage))
    stage.idle.add("the planner loop")
    (going,) = (each.name for each in stage.last().nodes)
    (other,) = {*stage.letters.values()} - {going}
    stage.fleet.delete_instances("big", [f"simulated://{other}"])
    end(stage, UNDONE)
    assert "fewer than its minimum of 1" in stage.last().message
    assert stage.cluster.nodes().keys() == {going}


def test_while_the_cluster_is_not_known_nothing_happens_and_the_deadline_waits(stages: Callable[..., Stage]) -> None:
    stage = stages("aB")
    stage.pods("web", "aaaa", budget=1)
    stage.begin()
    stage.until(lambda: stage.evicted)
    gone = stage.evicted
    stage.disconnect("the API server is away")
    stage.run(1500, 10)
    assert stage.shown["waits_for"] == "the API server is away"
    assert stage.evicted == gone
    stage.reconnect()
    end(stage, DONE)


@pytest.mark.parametrize("lost", [False, True])
def test_requests_that_fail_or_whose_answers_are_lost_are_repeated(stages: Callable[..., Stage], *, lost: bool) -> None:
    stage, seen = stages("a"), Counter[str]()

    def flaky(request: str) -> None:
        seen[request] += 1
        if seen[request] <= 2 and (request.startswith(f"PATCH {NODES}") or request.endswith("/eviction")):
            raise Refusal(503, "away", lost=lost)

    stage.pods("web", "aa")
    stage.api.before = flaky
    stage.begin()
    end(stage, DONE)
    assert stage.left() == {"1": 2}
    assert stage.evicted == 2


def test_a_successor_of_the_same_name_moves_as_a_pod_of_its_own(stages: Callable[..., Stage]) -> None:
    """A StatefulSet's pod that was deleted by somebody is bound again before its node was cordoned."""
    stage = stages("aB")
    stage.pods("db", "B")
    stage.pods("web", "a")
    stage.begin()
    path = stage.cluster.paths["uid-2"]
    pod = stage.api.remove(path)
    stage.cluster.paths["uid-again"] = path
    stage.api.put(path, {**pod, "metadata": {**pod["metadata"], "uid": "uid-again"}})
    end(stage, DONE)
    assert stage.left() == {"B": 2}
    assert stage.moved() == 1


def test_a_step_that_saves_nothing_in_the_end_counts_as_failed(stages: Callable[..., Stage]) -> None:
    stage = stages("ab", BIG, group("wide", cpu=10_000, price=0.9))
    stage.pods("large", "ab", cpu=5000, budget=1)
    stage.begin()
    stage.until(lambda: stage.evicted)
    of_a_job("a" if stage.has("a") else "b")(stage)
    stage.until(stage.ended)
    stage.run(60, 5)
    assert stage.ended() is DONE
    assert stage.last().saving_usd_per_hour == pytest.approx(-0.1)
    assert stage.shown["waits_for"] == "paused after a step that failed: it saved nothing: nodes had to stay"
