"""When to plan: pods come in bursts, and a round over all of a burst is worth more than one over each of its pods.
Pure; what is planned is `problem`'s, who asks is `loop`.

A round is due when there is news and nothing more has come for the idle time, or the window since the first news is
over. News is a new pod, a workload that wants more pods than it did (when these come, they are none), or a change in
the world that may change the outcome: an increment failed, a size changed, a shortage is over, placeholders of the
slack have lost their room. A namespace in which there is no end of news (workloads that grow and shrink, pods that are
created and deleted all the time) keeps others waiting for a few idle times only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from cagrpc.cluster.state import Arrivals
from cagrpc.controllers.settings import PlannerSettings

RETRY_SECONDS = 60.0
"""Pods that wait although there is no news are looked at again after so long: what a round cannot know of (a node that
went, a scheduler that saw it otherwise) is found by the next one."""


WAIT_FOR_OTHERS = 3
"""So many idle times after its first news a namespace that has no more waits for that of others no longer."""

WORLD = ""
"""Where there is news of the world, beside the namespaces."""


@dataclass(frozen=True, slots=True)
class News:
    """Since the last round; in seconds of the clock that `Arrivals` has."""

    since: float
    """When the first came,"""
    at: float
    """and the latest."""


@dataclass(frozen=True, slots=True)
class BatchingState:
    """What the last round knew, and what came since. Times are seconds of the clock that `Arrivals` has."""

    planned_at: float | None = None
    seen_until: float | None = None
    """When the newest pod came that the last round knew of."""
    world: Hashable = None
    """All else that the last round depended on."""
    news: Mapping[str, News] = field(default_factory=dict)
    """By namespace, and that of the world."""


@dataclass(frozen=True, slots=True)
class RoundDue:
    due: bool
    why: str
    """For people: why now, or what is waited for."""


def notice(memory: BatchingState, arrivals: Arrivals, world: Hashable, now: float) -> BatchingState:
    """The memory with what is new."""
    first = arrivals.first_seen_at_seconds if memory.seen_until is None else now
    for namespace, at in arrivals.news_at_seconds.items():
        if memory.seen_until is None or at > memory.seen_until:
            memory = with_news(memory, now if first is None else first, at, namespace)
    if world != memory.world:
        memory = replace(with_news(memory, now, now), world=world)
    if not arrivals.any:
        memory = replace(memory, news={})  # news to nobody: who comes next is news by itself
    return memory


def with_news(memory: BatchingState, since: float, at: float, where: str = WORLD) -> BatchingState:
    before = memory.news.get(where)
    now = News(since, at) if before is None else News(before.since, max(before.at, at))
    return memory if now == before else replace(memory, news={**memory.news, where: now})


def planned(arrivals: Arrivals, world: Hashable, now: float) -> BatchingState:
    """The memory of a round that starts now, with what was read *before* it looked at the cluster."""
    return BatchingState(planned_at=now, seen_until=arrivals.last_seen_at_seconds, world=world)


def round_due(memory: BatchingState, arrivals: Arrivals, now: float, settings: PlannerSettings) -> RoundDue:
    """Whether a round is due."""
    if not arrivals.any:
        return RoundDue(due=False, why="no pod waits")
    if not memory.news:
        late = memory.planned_at is None or now - memory.planned_at >= RETRY_SECONDS
        return RoundDue(late, "pods still wait" if late else "nothing has changed since the last round")
    idle, news = settings.idle_seconds, memory.news
    if now - min(each.since for each in news.values()) >= settings.window_seconds:
        return RoundDue(due=True, why=f"the window of {settings.window_seconds:g} s is over")
    quiet = [where for where, each in news.items() if now - each.at >= idle]
    if len(quiet) == len(news):
        return RoundDue(due=True, why=f"no new pods for {idle:g} s")
    if any(where != WORLD and now - news[where].since >= WAIT_FOR_OTHERS * idle for where in quiet):
        return RoundDue(
            due=True,
            why=f"new pods keep arriving in other namespaces, and some have waited for {WAIT_FOR_OTHERS * idle:g} s",
        )
    return RoundDue(due=False, why=f"pods or changes came in the last {idle:g} s")
