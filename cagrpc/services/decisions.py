"""The log of the expander's decisions with their reasons: for `/decisions` and `cagrpc explain --last`, as one line
each in the log, and for the increase that follows from a choice. Ranking is the solver's."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from itertools import islice
from threading import Lock
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

from cagrpc.errors import FailedPrecondition
from cagrpc.fleet.model import Placement
from cagrpc.runtime.clock import EpochClock
from cagrpc.runtime.controller import JsonList, JsonPage

log = logging.getLogger("cagrpc.decisions")

KEPT_DECISIONS = 256
KEPT_OPTIONS = 20_000
"""How many options all retained decisions have together; the latest is always retained whole."""
CHOICE_SECONDS = 60.0
"""How long a choice waits for its increase: CA makes that call right after it, a later one has another reason."""
MOST_PODS = 30_000
"""How many pods a choice has: as many as the journal can hold for the largest increment. More are not recorded as
served."""
LONGEST_KEY = 63 + 1 + 253
"""How many characters a pod's key has: a UID, or Kubernetes' own limits for a namespace and a name."""
_SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
"""From a ranking without a search to CA's 5 s; an answer is due after `expander_budget`, 2 s by default."""


@dataclass(frozen=True, slots=True)
class ExpanderChoice:
    """The option chosen last: the pods that its increase is for, and why it was chosen."""

    pods: frozenset[str]
    reason: str
    waiting_since_seconds: float | None = None
    """When the oldest of them was created, since the epoch."""
    placements: tuple[Placement, ...] = ()
    """Which of the pods each node is for; where it is known."""

    def among(self, pods: AbstractSet[str]) -> ExpanderChoice:
        """Return the same for these of the pods alone."""
        there = (replace(each, pods=tuple(pod for pod in each.pods if pod in pods)) for each in self.placements)
        return replace(self, pods=self.pods & pods, placements=tuple(each for each in there if each.pods))


@dataclass(frozen=True, slots=True)
class ConsideredOption:
    """One of CA's options, with its score."""

    node_group: str
    node_count: int
    """CA's estimate; it scales up by this, whatever the answer is."""
    pods: int
    examples: tuple[str, ...] = ()
    """Some of the pods as `namespace/name`."""
    score: tuple[float, ...] = ()
    """Compared lexicographically, smaller is better; empty where the option was left out."""
    cost_usd_per_hour: float | None = None
    """The cost of the option's nodes."""
    reason: str = ""
    """The ranking's explanation."""
    left_out: str = ""
    """Why it could not be chosen; empty where it could be."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One BestOptions call."""

    at_seconds: float
    """The time since the epoch."""
    options: tuple[ConsideredOption, ...]
    """Options in CA's order; the first ones where there are very many."""
    chosen: str
    """Node group id; empty for a veto, and where the choice is passed on."""
    reason: str
    ranked_by: str
    """`objective`, `counts` (the objective took too long, or failed) or `nothing` (none could be chosen)."""
    elapsed_seconds: float
    passed_on: bool = False
    """Whether all options were answered, for the autoscaler's next expander to choose among."""

    shadow: bool = False
    """Whether all options were answered whatever is chosen here."""

    @property
    def outcome(self) -> str:
        """Return what became of it, in one word."""
        if self.shadow:
            return "shadow"
        return "chosen" if self.chosen else "passed_on" if self.passed_on else "veto"

    def as_json(self) -> dict[str, Any]:
        """Return the decision as `/decisions` shows it."""
        return asdict(self)


class DecisionLog:
    """The latest decisions, and the pending choice, which waits for its increase. Thread-safe."""

    def __init__(
        self,
        clock: EpochClock,
        kept: int = KEPT_DECISIONS,
        pending: Callable[[Iterable[str]], Iterable[str]] | None = None,
    ) -> None:
        """`pending` returns which of some pods are pending in the cluster: a caller may name any pods, so a choice
        counts for those only. Without it the caller is trusted."""
        self._clock = clock
        self._counter = Counter(
            "cagrpc_decisions",
            "BestOptions calls by outcome (chosen, passed_on, shadow, veto) and by what they were ranked by.",
            ("outcome", "ranked_by"),
            registry=None,
        )
        self._seconds = Histogram(
            "cagrpc_decision_duration_seconds",
            "How long decisions took from the receipt of the whole request, by what they were ranked by.",
            ("ranked_by",),
            buckets=_SECONDS_BUCKETS,
            registry=None,
        )
        self._pending = pending
        self._kept = kept
        self._ring: deque[Decision] = deque()
        self._options = 0  # of those in the ring
        self._waiting: tuple[str, ExpanderChoice, float] | None = None
        self._refused: tuple[frozenset[str], str, float] = frozenset(), "", 0.0
        """Groups of a veto that the autoscaler may not have understood, and why."""
        self._lock = Lock()

    def record(
        self,
        decision: Decision,
        pods: frozenset[str] = frozenset(),
        placements: tuple[Placement, ...] = (),
        *,
        waiting_since_seconds: float | None = None,
        usual: bool = False,
        of_fleet: bool = True,
        refused: frozenset[str] = frozenset(),
    ) -> None:
        """Retain and log a decision. `pods` are the keys of those that the chosen option serves, the oldest created
        at `waiting_since_seconds`, and `placements` says which of them each node is for. CA executes one option a
        loop, so a new decision replaces a choice that was not taken; one that is not `of_fleet`, but about another
        autoscaler's groups, replaces none. Of the groups that are `refused` no increase may follow: up to 1.31 CA takes
        a veto for all options. A `usual` one, which is the same every time, is logged at debug level."""
        counted = islice((pod for pod in pods if len(pod) <= LONGEST_KEY), MOST_PODS)
        choice = ExpanderChoice(frozenset(counted), decision.reason, waiting_since_seconds, placements)
        with self._lock:
            self._ring.append(decision)
            self._options += len(decision.options)
            while len(self._ring) > self._kept or (self._options > KEPT_OPTIONS and len(self._ring) > 1):
                self._options -= len(self._ring.popleft().options)
            if of_fleet:
                self._waiting = (decision.chosen, choice, self._clock()) if decision.chosen else None
                self._refused = refused, decision.reason, self._clock()
        self._counter.labels(decision.outcome, decision.ranked_by).inc()
        self._seconds.labels(decision.ranked_by).observe(decision.elapsed_seconds)
        level = logging.DEBUG if usual else logging.INFO
        if log.isEnabledFor(level):
            what, fields = decision.chosen or "nothing", {"decision": decision.as_json()}
            log.log(
                level, "%s %s: %s", "would choose" if decision.shadow else "chose", what, decision.reason, extra=fields
            )

    def take_choice(self, node_group: str) -> ExpanderChoice | None:
        """Return the latest choice, once, if it is this node group and still in time; with those of its pods that are
        pending. Raises FailedPrecondition where the group has just been vetoed, by a veto that CA may not have
        understood."""
        with self._lock:
            refused, why, refused_at_seconds = self._refused
            if node_group in refused and self._clock() - refused_at_seconds <= CHOICE_SECONDS:
                raise FailedPrecondition(f"node group {node_group}: the expander has just vetoed it: {why}")
            if self._waiting is None or self._waiting[0] != node_group:
                return None
            _, choice, at_seconds = self._waiting
            self._waiting = None
        if self._clock() - at_seconds > CHOICE_SECONDS:
            return None
        return choice.among(choice.pods if self._pending is None else frozenset(self._pending(choice.pods)))

    def pages(self) -> Mapping[str, JsonPage]:
        return {"/decisions": JsonPage(lambda: JsonList(self.latest(), Decision.as_json))}

    def collectors(self) -> tuple[Collector, ...]:
        """Return how many there were, and how long they took."""
        return self._counter, self._seconds

    def latest(self) -> tuple[Decision, ...]:
        """Return the retained decisions, oldest first."""
        with self._lock:
            return tuple(self._ring)
