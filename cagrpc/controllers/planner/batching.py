"""When to plan: pods come in bursts, and a round over all of a burst is worth more than one over each of its pods.
Pure; what is planned is `problem`'s, who asks is `loop`.

A round is due when there is news and nothing more has come for the idle time, or the window since the first news is
over. News is a new pod, a workload that wants more pods than it did (when these come, they are none), or a change in
the world that may change the outcome: an increment failed, a size changed, a shortage is over, placeholders of the
slack have lost their room.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from cagrpc.controllers.settings import PlannerSettings
from cagrpc.controllers.state import Arrivals

RETRY_SECONDS = 60.0
"""Pods that wait although there is no news are looked at again after so long: what a round cannot know of (a node that
went, a scheduler that saw it otherwise) is found by the next one."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the last round knew, and what came since. Times are seconds of the clock that `Arrivals` has."""

    planned_at: float | None = None
    seen_until: float | None = None
    """When the newest pod came that the last round knew of."""
    world: Hashable = None
    """All else that the last round depended on."""
    news_since: float | None = None
    """When the first news came since the last round; None without news."""
    news_at: float | None = None
    """When the latest came."""


@dataclass(frozen=True, slots=True)
class Verdict:
    due: bool
    why: str
    """For people: why now, or what is waited for."""


def notice(memory: Memory, arrivals: Arrivals, world: Hashable, now: float) -> Memory:
    """The memory with what is new."""
    if arrivals.last_seen_at_seconds is not None and _newer(arrivals.last_seen_at_seconds, memory):
        first = arrivals.first_seen_at_seconds if memory.seen_until is None else now
        memory = _with_news(memory, now if first is None else first, arrivals.last_seen_at_seconds)
    if world != memory.world:
        memory = replace(_with_news(memory, now, now), world=world)
    if not arrivals.any:
        memory = replace(memory, news_since=None, news_at=None)  # news to nobody: who comes next is news by itself
    return memory


def _newer(seen_at: float, memory: Memory) -> bool:
    return memory.seen_until is None or seen_at > memory.seen_until


def _with_news(memory: Memory, since: float, at: float) -> Memory:
    return replace(
        memory,
        news_since=since if memory.news_since is None else memory.news_since,
        news_at=at if memory.news_at is None else max(memory.news_at, at),
    )


def planned(arrivals: Arrivals, world: Hashable, now: float) -> Memory:
    """The memory of a round that starts now, with what was read *before* it looked at the cluster."""
    return Memory(planned_at=now, seen_until=arrivals.last_seen_at_seconds, world=world)


def verdict(memory: Memory, arrivals: Arrivals, now: float, settings: PlannerSettings) -> Verdict:
    """Whether a round is due."""
    if not arrivals.any:
        return Verdict(due=False, why="no pod waits")
    if memory.news_since is None or memory.news_at is None:
        late = memory.planned_at is None or now - memory.planned_at >= RETRY_SECONDS
        return Verdict(late, "pods still wait" if late else "nothing has changed since the last round")
    if now - memory.news_since >= settings.window_seconds:
        return Verdict(due=True, why=f"the window of {settings.window_seconds:g} s is over")
    if now - memory.news_at < settings.idle_seconds:
        return Verdict(due=False, why=f"pods or changes came in the last {settings.idle_seconds:g} s")
    return Verdict(due=True, why=f"no news for {settings.idle_seconds:g} s")
