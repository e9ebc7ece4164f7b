"""When to plan: pods arrive in bursts, and one round over a whole burst is worth more than one for each of its pods.
Pure; what is planned is `problem`'s, who plans is `controller`.

A round is due when there is news and no more has arrived for the idle time, or when the window since the first news is
over. News is a new pod, a workload that wants more pods than before (their creation is none), or a change of other
inputs that may change the outcome: an increment failed, a size changed, a shortage is over, placeholders of the slack
have lost their room. A namespace with continuous news (workloads that grow and shrink, pods that are created and
deleted all the time) delays others for a few idle times only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from cagrpc.cluster.state import Arrivals
from cagrpc.controllers.settings import PlannerSettings

RETRY_SECONDS = 60.0
"""How long after the last round pending pods are planned again without news: for what a round cannot know of, such as a
node that was removed or a scheduler that decided otherwise."""

WAIT_FOR_OTHERS = 3
"""After how many idle times since its first news a quiet namespace no longer waits for that of others."""

INPUTS = ""
"""The key of news about other inputs, beside the namespaces."""


@dataclass(frozen=True, slots=True)
class News:
    """What is new since the last round, in seconds of the clock of `Arrivals`."""

    since: float
    """When the first arrived."""
    at: float
    """When the latest arrived."""


@dataclass(frozen=True, slots=True)
class BatchingState:
    """What the last round knew, and what arrived since. Times are seconds of the clock of `Arrivals`."""

    planned_at: float | None = None
    seen_until: float | None = None
    """When the newest pod arrived that the last round knew of."""
    inputs: Hashable = None
    """Everything else that the last round depended on."""
    news: Mapping[str, News] = field(default_factory=dict)
    """By namespace, and under `INPUTS`."""


@dataclass(frozen=True, slots=True)
class RoundDue:
    """Whether a round is due."""

    due: bool
    why: str
    """Why now, or what it waits for, for `/status`."""


def notice(state: BatchingState, arrivals: Arrivals, inputs: Hashable, now: float) -> BatchingState:
    """Return the state with what is new in arrivals and inputs."""
    first = arrivals.first_seen_at_seconds if state.seen_until is None else now
    for namespace, at in arrivals.news_at_seconds.items():
        if state.seen_until is None or at > state.seen_until:
            state = with_news(state, now if first is None else first, at, namespace)
    if inputs != state.inputs:
        state = replace(with_news(state, now, now), inputs=inputs)
    if not arrivals.any:
        state = replace(state, news={})  # it concerns no pod, and the next one is news by itself
    return state


def with_news(state: BatchingState, since: float, at: float, where: str = INPUTS) -> BatchingState:
    """Return the state with news of a namespace, or of the inputs, that began at `since` and arrived last at `at`."""
    before = state.news.get(where)
    now = News(since, at) if before is None else News(before.since, max(before.at, at))
    return state if now == before else replace(state, news={**state.news, where: now})


def planned(arrivals: Arrivals, inputs: Hashable, now: float) -> BatchingState:
    """Return the state of a round that starts now; both were read *before* it reads the cluster."""
    return BatchingState(planned_at=now, seen_until=arrivals.last_seen_at_seconds, inputs=inputs)


def round_due(state: BatchingState, arrivals: Arrivals, now: float, settings: PlannerSettings) -> RoundDue:
    """Return whether a round is due, and why."""
    if not arrivals.any:
        return RoundDue(due=False, why="no pod waits")
    if not state.news:
        late = state.planned_at is None or now - state.planned_at >= RETRY_SECONDS
        return RoundDue(late, "pods still wait" if late else "nothing has changed since the last round")
    idle, news = settings.idle_seconds, state.news
    if now - min(each.since for each in news.values()) >= settings.window_seconds:
        return RoundDue(due=True, why=f"the window of {settings.window_seconds:g} s is over")
    quiet = [where for where, each in news.items() if now - each.at >= idle]
    if len(quiet) == len(news):
        return RoundDue(due=True, why=f"no new pods for {idle:g} s")
    if any(where != INPUTS and now - news[where].since >= WAIT_FOR_OTHERS * idle for where in quiet):
        return RoundDue(
            due=True,
            why=f"new pods keep arriving in other namespaces, and some have waited for {WAIT_FOR_OTHERS * idle:g} s",
        )
    return RoundDue(due=False, why=f"pods or changes came in the last {idle:g} s")
