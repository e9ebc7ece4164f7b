"""What the expander decided and why: kept for people (`/decisions`, `cagrpc explain --last`), logged as one line of
JSON each, and held until the increase that follows from it arrives."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from threading import Lock
from typing import Any

from prometheus_client import Counter
from prometheus_client.registry import Collector

from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.controller import JsonList, JsonPage

log = logging.getLogger("cagrpc.decisions")

KEPT_DECISIONS = 256
KEPT_OPTIONS = 20_000
"""Of all decisions that are kept together; the latest is kept with all of its own."""
CHOICE_SECONDS = 60.0
"""CA asks for the increase right after the choice; what comes later has another reason."""
MOST_PODS = 30_000
"""Of a choice: as many as an increment of the largest size can be journalled for. More are not recorded as served."""
LONGEST_KEY = 63 + 1 + 253
"""Of a pod, in characters: a UID, or Kubernetes' own limits for a namespace and a name."""


@dataclass(frozen=True, slots=True)
class ExpanderChoice:
    """The option taken last: the pods that its increase is for, and why it was taken."""

    pods: frozenset[str]
    reason: str


@dataclass(frozen=True, slots=True)
class ConsideredOption:
    """One option of CA's, as it was weighed."""

    node_group: str
    node_count: int
    """CA's estimate; it scales by this, whatever is answered."""
    pods: int
    examples: tuple[str, ...] = ()
    """Some of the pods, `namespace/name`."""
    score: tuple[float, ...] = ()
    """Compared one by one, the first difference decides, smaller is better; empty where the option was left out."""
    cost_usd_per_hour: float | None = None
    """Of the option's nodes."""
    reason: str = ""
    """What the ranking says of it."""
    left_out: str = ""
    """Why it could not be chosen; empty where it could."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One BestOptions call."""

    at_seconds: float
    """Since the epoch."""
    options: tuple[ConsideredOption, ...]
    """In CA's order; of very many, the first."""
    chosen: str
    """Node group id; empty for a veto."""
    reason: str
    ranked_by: str
    """`objective`, `counts` (no time for, or a failure of, the objective) or `nothing` (a veto)."""
    elapsed_seconds: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class DecisionLog:
    """The latest decisions, and the choice that waits for its increase. Thread-safe."""

    def __init__(
        self,
        clock: EpochClock,
        kept: int = KEPT_DECISIONS,
        observe: Callable[[Decision], None] = lambda _: None,
        pending: Callable[[Iterable[str]], Iterable[str]] | None = None,
    ) -> None:
        """`observe` is given every decision. `pending` says which of these
        pods wait in the cluster: anybody may have named any pods, so a choice counts for those only. Without it the
        word of whoever asked is taken."""
        self._clock = clock
        self._observe = observe
        self._counter = Counter(
            "cagrpc_decisions",
            "BestOptions calls by outcome (chosen, veto) and by what they were ranked by.",
            ("outcome", "ranked_by"),
            registry=None,
        )
        self._pending = pending
        self._kept = kept
        self._ring: deque[Decision] = deque()
        self._options = 0  # of those in the ring
        self._waiting: tuple[str, ExpanderChoice, float] | None = None
        self._lock = Lock()

    def record(self, decision: Decision, pods: frozenset[str] = frozenset(), *, usual: bool = False) -> None:
        """Keep and log a decision. `pods` are the keys of those that the chosen option serves. CA executes one option
        a loop, so a new decision replaces a choice that nobody has taken up. A `usual` one, which is the same every
        time, is no news for the log."""
        counted = islice((pod for pod in pods if len(pod) <= LONGEST_KEY), MOST_PODS)
        choice = ExpanderChoice(frozenset(counted), decision.reason)
        with self._lock:
            self._ring.append(decision)
            self._options += len(decision.options)
            while len(self._ring) > self._kept or (self._options > KEPT_OPTIONS and len(self._ring) > 1):
                self._options -= len(self._ring.popleft().options)
            self._waiting = (decision.chosen, choice, self._clock()) if decision.chosen else None
        self._counter.labels("chosen" if decision.chosen else "veto", decision.ranked_by).inc()
        self._observe(decision)
        level = logging.DEBUG if usual else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "%s", json.dumps({"decision": decision.as_json()}, separators=(",", ":")))

    def take_choice(self, node_group: str) -> ExpanderChoice | None:
        """The latest choice, if it was this node group, not taken before and made just now; with those of its pods
        that wait."""
        with self._lock:
            if self._waiting is None or self._waiting[0] != node_group:
                return None
            _, choice, at_seconds = self._waiting
            self._waiting = None
        if self._clock() - at_seconds > CHOICE_SECONDS:
            return None
        return choice if self._pending is None else replace(choice, pods=frozenset(self._pending(choice.pods)))

    def pages(self) -> Mapping[str, JsonPage]:
        """Return `/decisions`."""
        return {"/decisions": JsonPage(lambda: JsonList(self.latest(), Decision.as_json))}

    def collectors(self) -> tuple[Collector, ...]:
        """Return the counter of decisions, for a registry."""
        return (self._counter,)

    def latest(self) -> tuple[Decision, ...]:
        """Oldest first."""
        with self._lock:
            return tuple(self._ring)
