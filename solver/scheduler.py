"""The default kube-scheduler in simulation, over a problem's values: which of the pending pods land on which nodes, one
after the other. It plans nothing and judges nothing: `realise` makes plans true with it.

What is simulated and what is not is in docs/realisation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from solver.model import PODS, NodeGroup, PodClass, PodSet, PodSpec, Problem
from solver.reduce import Bools, Ints
from solver.scheduler_kernel import put_bound, put_running, schedule
from solver.scheduler_tables import Tables, zone_of

_APART = 2**40
"""Attempts between waves: more than there can be, so that a wave comes when nothing is left to do."""


class Scoring(StrEnum):
    """The kube-scheduler's scoringStrategy of NodeResourcesFit."""

    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"


@dataclass(frozen=True, slots=True)
class Profile:
    """How the cluster's scheduler is set up; the default is Kubernetes' own."""

    scoring: Scoring = Scoring.LEAST_ALLOCATED
    percentage_of_nodes_to_score: int = 0
    """0 for the scheduler's own choice, by the number of nodes."""
    default_spread: bool = True
    """Whether pods of one class are spread by the scheduler's default constraints, as those of a Deployment or of a
    Service are. Pods of Jobs and bare pods are not."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is left to chance, by a seed: the order of nodes, of pods that came at the same time, and of ties."""

    seed: int = 0
    jitter_seconds: int = 0
    """By how much pods may have come earlier or later than they say: ages are whole seconds, and of the oldest pod."""
    in_blocks: bool = False
    """Whether pods of one class come one after the other, as those of one Deployment do, rather than all mixed."""
    attempts_a_node: int = 0
    """So many pods are tried from one new node of a wave to the next, as they are let go one after the other; 0 where
    all come before. About 1 was seen."""
    turned: bool = False
    """Whether the queue begins anywhere, and goes on from its end at its head: pods that were tried in vain while there
    was no node are in the order of their last try."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it."""

    queue: Ints
    """The class of each pod, in the order in which they were tried first."""
    placed: Ints
    """The node of each of these pods, -1 for those that stay pending. Nodes are numbered: those that stand in the
    problem's order, then the new ones as they were given."""
    classes: int
    bound: Ints
    """Rows (class, node, pods) of those bound before."""

    @property
    def landed(self) -> Ints:
        """Per class, bound ones among them."""
        total = np.bincount(self.queue[self.placed >= 0], minlength=self.classes).astype(np.int64)
        np.add.at(total, self.bound[:, 0], self.bound[:, 2])
        return total

    def rows(self) -> Ints:
        """Rows (class, node, pods) of all that are on nodes, bound ones among them."""
        found = [
            (who, node, count) for node, pods in sorted(self.pods().items()) for who, count in sorted(pods.items())
        ]
        return np.array(found, dtype=np.int64).reshape(len(found), 3)

    def pods(self) -> dict[int, dict[int, int]]:
        """Node -> class -> pods, of nodes that hold any."""
        found: dict[int, dict[int, int]] = {}
        for pod_class, node in zip(self.queue.tolist(), self.placed.tolist(), strict=True):
            if node >= 0:
                here = found.setdefault(node, {})
                here[pod_class] = here.get(pod_class, 0) + 1
        for pod_class, node, pods in self.bound.tolist():
            here = found.setdefault(node, {})
            here[pod_class] = here.get(pod_class, 0) + pods
        return found


class Scheduler:
    """One problem's scheduler, for any number of simulations."""

    def __init__(self, problem: Problem, pod_classes: Sequence[PodClass], profile: Profile) -> None:
        """`pod_classes` as the problem's plans have them."""
        self._problem, self._profile = problem, profile
        self._classes = len(pod_classes)
        self._tables = Tables(problem, [cls.spec for cls in pod_classes], default_spread=profile.default_spread)
        self._standing = np.arange(len(problem.node_groups), len(self._tables.places), dtype=np.int64)
        self._zones = _numbered([zone_of(place) for place in self._tables.places])
        number = {(c.spec, c.priority, c.gang, c.placeholder): c.index for c in pod_classes}
        sets = [pods for pods in problem.pod_sets if pods.count]
        of_class = [number[pods.spec, pods.priority, pods.gang, pods.placeholder] for pods in sets]
        counts = [pods.count for pods in sets]
        self._pods = np.repeat(np.array(of_class, dtype=np.int64), counts)
        # Placeholders are no pods: they come last, whatever they are told to weigh.
        self._rank = np.repeat(np.array([0 if p.placeholder else -p.priority for p in sets], dtype=np.int64), counts)
        self._last = np.repeat(np.array([p.placeholder for p in sets], dtype=bool), counts)
        self._age = np.repeat(np.array([p.waiting_seconds for p in sets], dtype=np.int64), counts)

    def run(self, new: Ints, waves: Ints, bound: Ints, scenario: Scenario) -> Outcome:
        """All pending pods of the problem over the nodes that stand and `new` ones (indices of node groups).

        `waves` per new node: those of each come once nothing more lands on those before, nor on those that stand.
        `bound`: rows (class, node, pods) that are on their nodes before; so many fewer of the class are in the
        queue."""
        tables, profile = self._tables, self._profile
        random = np.random.default_rng(scenario.seed)
        places = np.concatenate([self._standing, new])
        queue = self._queue(scenario, bound, random)
        order = self._order(places, random)
        nodes, terms = tables.nodes(places), tables.terms(places)
        counts = np.zeros(int(terms[2].sum()), dtype=np.int64)
        put_running(tables.running(places), terms, counts)
        put_bound(bound, nodes, tables.classes, terms, counts)
        arrives = np.zeros(len(places), dtype=np.int64)
        arrives[len(self._standing) :] = (waves + 1) * _APART
        groups = random.permutation(len(self._problem.node_groups))
        mixed = np.lexsort((random.permutation(len(new)), groups[new]))  # those of a group after one another
        arrives[len(self._standing) + mixed] += _nth_of_its_kind(waves[mixed]) * scenario.attempts_a_node
        placed = schedule(
            queue, order, arrives, scenario.seed, profile.scoring is Scoring.MOST_ALLOCATED,
            profile.percentage_of_nodes_to_score, nodes, tables.classes, terms, counts, np.zeros_like(counts),
            tables.asked, tables.waits,
        )  # fmt: skip
        return Outcome(queue, placed, self._classes, bound)

    @cached_property
    def holds(self) -> Bools:
        """Node groups x classes: whether one pod fits an empty new node, alone."""
        tables = self._tables
        groups = np.arange(len(self._problem.node_groups), dtype=np.int64)
        looks, free, *_ = tables.nodes(groups)
        requests, fits = tables.classes[0], tables.classes[3]
        room = np.ones((len(groups), self._classes), dtype=bool)
        for column in range(free.shape[1]):
            room &= (requests[:, column] <= free[:, column, None]) | (requests[:, column] == 0)
        return room & fits.T[looks]

    def _queue(self, scenario: Scenario, bound: Ints, random: np.random.Generator) -> Ints:
        """Priority, then time in queue, then chance; those that are bound are left out, the oldest first."""
        chance = random.permutation(len(self._pods))
        if scenario.in_blocks:
            chance = random.permutation(self._classes)[self._pods]
        age = -self._age + random.integers(0, scenario.jitter_seconds, len(self._age), endpoint=True)
        turn = np.empty_like(age)
        turn[np.lexsort((chance, age))] = np.arange(len(age))
        if scenario.turned and len(age):
            turn = (turn + random.integers(len(age))) % len(age)
        queue = self._pods[np.lexsort((turn, self._rank, self._last))]
        taken = np.zeros(self._classes, dtype=np.int64)
        np.add.at(taken, bound[:, 0], bound[:, 2])
        return queue[_nth_of_its_kind(queue) >= taken[queue]] if taken.any() else queue

    def _order(self, places: Ints, random: np.random.Generator) -> Ints:
        """The scheduler's list of nodes: one of each zone in turn, in the order in which they have come."""
        order = random.permutation(len(places))
        zones = self._zones[places[order]]
        return order[np.lexsort((zones, _nth_of_its_kind(zones)))]


def warm_up() -> None:
    """Compile (or load what an earlier process compiled), so that the first realisation does not wait for it."""
    group = NodeGroup("group", {PODS: 1}, 0.0)
    pods = PodSet("pod", PodSpec(), 1)
    scheduler = Scheduler(Problem((pods,), (group,)), [PodClass(0, pods.spec, 1, pods.name)], Profile())
    none = np.zeros(0, dtype=np.int64)
    scheduler.run(none, none, none.reshape(0, 3), Scenario())


def _nth_of_its_kind(kinds: Ints) -> Ints:
    """How many equal ones are before each."""
    order = np.argsort(kinds, kind="stable")
    sorted_kinds = kinds[order]
    first = np.searchsorted(sorted_kinds, sorted_kinds)
    nth = np.empty(len(kinds), dtype=np.int64)
    nth[order] = np.arange(len(kinds)) - first
    return nth


def _numbered(names: Sequence[str | None]) -> Ints:
    known: dict[str | None, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)
