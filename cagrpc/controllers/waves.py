"""When the nodes of ready increments are let go: those of one plan together, and wave after wave, since a plan is made
true by the scheduler only as it was rehearsed (`solver.realise`). Between waves, and after the last, its reserve is
there for pods that are left over; what is not needed of it is given back. Pure but for what it remembers; `startup`
acts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from cagrpc.fleet.model import FleetSnapshot, HeldNode, IncrementStatus, Phase

TOGETHER_SECONDS = 60.0
"""How long the first increments of a plan wait for its others: one slow group must not keep all pods waiting."""
SETTLED_SECONDS = 3.0
"""A wave has had its effect once no pod of the plan was bound for so long, and none was turned away for another reason
than before: nodes of a wave change the reason of all that they do not help, so that it is seen how the scheduler comes
from pod to pod, a hundred in a second on a small machine. It tries pods again at once while it has nothing better to do
(SchedulerPopFromBackoffQ)."""
TRIES = 4
"""So often at most the reserve is asked after a layer: the scheduler fills its nodes in its own order, too."""
LONGEST_WAVE_SECONDS = 120.0
"""A wave after which pods come and go all the time ends all the same."""

_ON_ITS_WAY = (Phase.PLANNED, Phase.CREATING)

Needed = Callable[[AbstractSet[str], Mapping[str, int], Mapping[str, int]], Mapping[str, int]]
"""Keys of pods that wait, nodes of the plan that are held, nodes of its reserve (both by group) -> those of the reserve
that are needed."""


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done now."""

    let_go: Mapping[str, Sequence[HeldNode]]
    """Increment that is ready -> those of its nodes that may be let go now, or are already."""
    give_back: tuple[str, ...]
    """Increments of a reserve that nobody needs."""


@dataclass(slots=True)
class _Course:
    """How far a plan has come. Times are seconds of the clock."""

    ready_at: float
    """When its first increment was seen ready."""
    wave: int | None = None
    """Up to which nodes are let go; None before the first."""
    since: float = 0.0
    """When that wave began."""
    news: tuple[int, int] = (-1, -1)
    """Pods that waited at the last look, and how often they had changed."""
    changed_at: float = 0.0
    """When that changed last."""
    asked: int = 0
    """How often the reserve was, after this wave."""
    needed: set[str] = field(default_factory=set)
    """Increments of the reserve that are let go."""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan's increments that count for when its nodes are let go."""

    all_of_it: Sequence[IncrementStatus]
    """Those that are done, too: the scheduler may still be at their pods."""

    @property
    def ready(self) -> list[IncrementStatus]:
        return [status for status in self.all_of_it if status.phase is Phase.READY]

    @property
    def reserve(self) -> list[IncrementStatus]:
        return [status for status in self.ready if status.increment.reserve]

    def coming(self, *, reserve: bool) -> bool:
        return any(s.phase in _ON_ITS_WAY and s.increment.reserve is reserve for s in self.all_of_it)


class Waves:
    """For one thread. `clock` counts seconds; `news_of` says of a pod's key how often it has changed, None where it
    does not wait any more."""

    def __init__(
        self, clock: Callable[[], float], news_of: Callable[[str], int | None], needed: Needed = lambda *_: {}
    ) -> None:
        self._clock = clock
        self._news_of = news_of
        self._needed = needed
        self._courses: dict[str, _Course] = {}

    def due(self, snapshot: FleetSnapshot, held: AbstractSet[str]) -> Due:
        """`held` are the instances whose Nodes are not let go yet."""
        found: defaultdict[str, list[IncrementStatus]] = defaultdict(list)
        for status in snapshot.increments:
            if status.phase in (*_ON_ITS_WAY, Phase.DONE) or (status.phase is Phase.READY and status.held):
                # Requests do not wait for one another: there are no pods yet to be put in order.
                name = "" if status.increment.requests else status.increment.plan
                found[name or status.id].append(status)
        plans = {name: _Plan(statuses) for name, statuses in found.items()}
        self._courses = {name: each for name, each in self._courses.items() if name in plans and plans[name].ready}
        let_go: dict[str, Sequence[HeldNode]] = {}
        give_back: list[str] = []
        for name, plan in plans.items():
            if not plan.ready:
                continue
            course = self._courses.setdefault(name, _Course(ready_at=self._clock()))
            wave = self._wave(course, plan, held)
            for status in plan.ready:
                if not status.increment.reserve:
                    if wave is not None:
                        let_go[status.id] = [node for node in status.held if node.wave <= wave]
                elif status.id in course.needed:
                    let_go[status.id] = status.held
                elif course.ended:
                    give_back.append(status.id)
        return Due(let_go, tuple(give_back))

    def _wave(self, course: _Course, plan: _Plan, held: AbstractSet[str]) -> int | None:
        """Up to which wave of the plan nodes may be let go."""
        now = self._clock()
        if course.wave is None and plan.coming(reserve=False) and now - course.ready_at < TOGETHER_SECONDS:
            return None
        news = {
            pod: news
            for pod in {pod for status in plan.all_of_it for pod in status.increment.pods}
            if (news := self._news_of(pod)) is not None
        }
        counted = len(news), sum(news.values())
        if counted != course.news:
            course.news, course.changed_at = counted, now
        left = [
            node
            for status in plan.ready
            for node in status.held
            if node.instance_id in held and not status.increment.reserve
        ]
        if course.wave is None:
            return _begun(course, min((node.wave for node in left), default=0), now)
        later = [node for node in left if node.wave > course.wave]
        lifted = len(later) == len(left) and not any(
            node.instance_id in held for status in plan.reserve if status.id in course.needed for node in status.held
        )
        settled = lifted and now - course.changed_at >= SETTLED_SECONDS
        # A node that cannot be let go does not hold all after it.
        over = settled or now - course.since >= LONGEST_WAVE_SECONDS
        # `solver.realise` leaves a number out where a layer of nodes ends.
        layer_ends = all(node.wave > course.wave + 1 for node in later)
        if layer_ends and over and news and self._is_reserve_used(course, plan, news.keys(), later, now):
            return course.wave
        if later and (over or not news):
            # With nobody left to wait for there is nothing to put in order.
            return _begun(course, min(node.wave for node in later) if news else max(n.wave for n in later), now)
        course.ended = not later and (over or not news)
        return course.wave

    def _is_reserve_used(
        self, course: _Course, plan: _Plan, waiting: AbstractSet[str], later: Sequence[HeldNode], now: float
    ) -> bool:
        """Whether there is something to wait for: the reserve is still coming, or some of it is let go now."""
        if plan.coming(reserve=True) and now - course.ready_at < TOGETHER_SECONDS:
            return True
        unused = [status for status in plan.reserve if status.id not in course.needed]
        if not unused or course.asked >= TRIES:
            return False
        course.asked += 1
        there = Counter(group for status in unused for group in status.increment.deltas)
        more = Counter(self._needed(waiting, Counter(node.node_group for node in later), there))
        chosen = set()
        for status in unused:
            (group,) = status.increment.deltas
            if more[group] > 0:
                more[group] -= 1
                chosen.add(status.id)
        if chosen:
            course.needed |= chosen
            course.since = course.changed_at = now
        return bool(chosen)


def _begun(course: _Course, wave: int, now: float) -> int:
    course.wave, course.since, course.changed_at, course.asked = wave, now, now, 0
    return wave
