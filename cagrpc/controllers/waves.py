"""When the nodes of ready increments are let go: those of one plan together, and wave after wave, since a plan is made
true by the scheduler only as it was rehearsed (`solver.realise`). Pure but for what it remembers; `startup` acts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cagrpc.fleet.model import FleetSnapshot, HeldNode, IncrementStatus, Phase

TOGETHER_SECONDS = 60.0
"""How long the first increments of a plan wait for its others: one slow group must not keep all pods waiting."""
SETTLED_SECONDS = 3.0
"""A wave has had its effect once no pod of the plan was bound for so long, and none was turned away for another reason
than before: nodes of a wave change the reason of all that they do not help, so that it is seen how the scheduler comes
from pod to pod, a hundred in a second on a small machine. It tries pods again at once while it has nothing better to do
(SchedulerPopFromBackoffQ)."""
LONGEST_WAVE_SECONDS = 120.0
"""A wave after which pods come and go all the time ends all the same."""

_ON_ITS_WAY = (Phase.PLANNED, Phase.CREATING)


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


class Waves:
    """For one thread. `clock` counts seconds; `news_of` says of a pod's key how often it has changed, None where it
    does not wait any more."""

    def __init__(self, clock: Callable[[], float], news_of: Callable[[str], int | None]) -> None:
        self._clock = clock
        self._news_of = news_of
        self._courses: dict[str, _Course] = {}

    def due(self, snapshot: FleetSnapshot, held: AbstractSet[str]) -> Mapping[str, Sequence[HeldNode]]:
        """Increment that is ready -> those of its nodes that may be let go now, or are already. `held` are the
        instances whose Nodes are not let go yet."""
        plans: defaultdict[str, list[IncrementStatus]] = defaultdict(list)
        for status in snapshot.increments:
            # Those that are done count for who waits: the scheduler may still be at their pods.
            if status.phase in (*_ON_ITS_WAY, Phase.DONE) or (status.phase is Phase.READY and status.held):
                # Requests do not wait for one another: there are no pods yet to be put in order.
                plan = "" if status.increment.requests else status.increment.plan
                plans[plan or status.id].append(status)
        ready = {
            plan: [status for status in statuses if status.phase is Phase.READY] for plan, statuses in plans.items()
        }
        self._courses = {plan: course for plan, course in self._courses.items() if ready.get(plan)}
        found = {}
        for plan, statuses in ready.items():
            wave = self._wave(plan, plans[plan], statuses, held) if statuses else None
            if wave is not None:
                found.update({each.id: [node for node in each.held if node.wave <= wave] for each in statuses})
        return found

    def _wave(
        self, plan: str, all_of_it: Sequence[IncrementStatus], ready: Sequence[IncrementStatus], held: AbstractSet[str]
    ) -> int | None:
        """Up to which wave of the plan nodes may be let go."""
        now = self._clock()
        course = self._courses.setdefault(plan, _Course(ready_at=now))
        others_come = any(status.phase in _ON_ITS_WAY for status in all_of_it)
        if course.wave is None and others_come and now - course.ready_at < TOGETHER_SECONDS:
            return None
        of_pods = map(self._news_of, {pod for status in all_of_it for pod in status.increment.pods})
        of_waiting = [news for news in of_pods if news is not None]
        waiting, news = len(of_waiting), (len(of_waiting), sum(of_waiting))
        if news != course.news:
            course.news, course.changed_at = news, now
        left = [node.wave for status in ready for node in status.held if node.instance_id in held]
        if course.wave is None:
            return _begun(course, min(left, default=0), now)
        later = [wave for wave in left if wave > course.wave]
        settled = len(later) == len(left) and now - course.changed_at >= SETTLED_SECONDS
        # A node that cannot be let go does not hold all after it.
        over = settled or now - course.since >= LONGEST_WAVE_SECONDS
        if later and (over or not waiting):
            # With nobody left to wait for there is nothing to put in order.
            return _begun(course, min(later) if waiting else max(later), now)
        return course.wave


def _begun(course: _Course, wave: int, now: float) -> int:
    course.wave, course.since, course.changed_at = wave, now, now
    return wave
