"""CA's Expander service: of the options for a scale-up, the one after which the rest can still be finished best.

Always an answer, and in time: CA gives up after 5 s, and any error makes it choose at random. So the planner runs
beside the call with a budget, and whatever goes wrong in it, the options are ranked by counts instead, and the decision
says so. An empty answer is a veto: nothing scales up in this loop.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cagrpc.api.autoscaler import expander as wire
from cagrpc.api.autoscaler.expander import Option, group
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.nodes import as_planned
from cagrpc.api.core.pods import Pod
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.cluster.released_pods import ReleasedPods
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.runtime import tracing
from cagrpc.runtime.clock import EpochClock
from cagrpc.services.decisions import LONGEST_KEY, ConsideredOption, Decision, DecisionLog
from cagrpc.services.grpc.gangs import OfferedGangs, OptionDemand
from cagrpc.services.grpc.status import CallContext, Method
from solver.model import Budget, Problem
from solver.model.capacity import limits_broken
from solver.model.errors import NotCompiledError
from solver.model.plan import ScaleUpCandidate, Score
from solver.model.quantities import pluralize

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.cluster.view.view import ClusterView

log = logging.getLogger(__name__)

SERVICE = "grpcplugin.Expander"

_MOST_NAMES, _LONGEST_NAME = 3, 100

Rank = Callable[[Problem, Sequence[ScaleUpCandidate], Budget], Sequence[Score]]
"""`solver.planning.rank.rank`."""
# Anyone may ask, and 256 decisions are kept: so what is kept of one is bounded, whatever it was about.
_EXAMPLES = 3
_MOST_OPTIONS = 500
_LONGEST_UNKNOWN_ID = 100
_OF_WHAT_IS_LEFT = 0.8
_OF_THE_DEADLINE = 0.6  # CA waits 5 s; the rest is for the way there and back
_PLANNER_DRIVES = "drive: plan: the planner loop decides on scale-ups"


@dataclass(frozen=True, slots=True)
class Ranked:
    """How good one option is. `place` 0 is the best of them; `score` is what was compared, one by one, smaller is
    better."""

    place: int
    score: tuple[float, ...]
    reason: str


def why_left_out(option: Option, snapshot: FleetSnapshot, schedulers: AbstractSet[str] = DEFAULT_SCHEDULERS) -> str:
    """Return why an option must not be chosen, for people; empty where it may. An increase by CA's estimate has to fit:
    CA scales by that, whatever is answered."""
    state = snapshot.groups.get(option.node_group)
    if state is None:
        return "is not a node group of this fleet"
    if option.node_count < 1:
        return f"asks for {pluralize(option.node_count, 'node')}"
    wanted = state.target_size + option.node_count
    if wanted > state.group.max_size:
        return f"would have {pluralize(wanted, 'node')}, above the group's maximum of {state.group.max_size}"
    if broken := limits_broken(snapshot.limits, state.group, option.node_count):
        return f"would break limits: {'; '.join(broken)}"
    return _why_no_demand(option.pods, snapshot, schedulers)


def _why_no_demand(pods: Sequence[Pod], snapshot: FleetSnapshot, schedulers: AbstractSet[str]) -> str:
    ours = [pod for pod in pods if pod.scheduler in schedulers]
    if pods and not ours:
        names = ", ".join(sorted({pod.scheduler[:_LONGEST_NAME] for pod in pods})[:_MOST_NAMES])
        return f"all of its pods are of schedulers that are not planned for ({names}); name them in `schedulers`"
    # New nodes are not for pods that consume ProvisioningRequests. A CA that knows requests
    # (--enable-provisioning-requests) does not offer those at all.
    others = [pod for pod in ours if not pod.consumer]
    if pods and not others:
        return "all of its pods consume ProvisioningRequests, which have room of their own"
    if others and all(pod.key in snapshot.in_flight_pods for pod in others):
        beside = "" if len(others) == len(ours) else " or consume ProvisioningRequests"
        return f"all of its pods are served by an increment in flight{beside}"
    return ""


def problem(
    options: Sequence[Option],
    demand: Sequence[Pod],
    wanted: Sequence[AbstractSet[str]],
    snapshot: FleetSnapshot,
    now_seconds: float,
) -> tuple[Problem, tuple[Mapping[int, int], ...]]:
    """Return what is to be served and with what, and of each of the `wanted` keys of pods: index of the pod set ->
    count.

    `demand` are the pods that are to be planned; of the node groups only those that are in an option, since CA keeps
    back the ones that it has backed off from, that are unhealthy or full.
    """
    pod_sets, set_of_pod = group(demand, now_seconds)
    counts = tuple(Counter(set_of_pod[key] for key in keys) for keys in wanted)
    offered = dict.fromkeys(each.node_group for each in options if each.node_group in snapshot.groups)
    groups = tuple(as_planned(snapshot.groups[name].group) for name in offered)
    return Problem(pod_sets, groups, limits=snapshot.limits), counts


def by_counts(offers: Sequence[OptionDemand], snapshot: FleetSnapshot) -> tuple[Ranked, ...]:
    """Return the ranking that needs nothing but counts: the highest weight, then the least price for a pod served."""
    found = []
    for offer in offers:
        option, pods = offer.option, len(offer.wanted)
        node_group = snapshot.groups[option.node_group].group
        per_pod = node_group.price_usd_per_hour * option.node_count / max(1, pods)
        reason = f"weight {node_group.weight}: {per_pod:.4g} $/h for each of {pluralize(pods, 'pod')}"
        found.append(((-float(node_group.weight), per_pod), option.node_group, reason))
    places = {index: place for place, index in enumerate(sorted(range(len(found)), key=found.__getitem__))}
    return tuple(Ranked(places[index], score, reason) for index, (score, _, reason) in enumerate(found))


@dataclass(frozen=True, slots=True)
class Timing:
    """Time limits of a BestOptions call, in seconds from the receipt of the whole request: receiving tens of megabytes
    takes time of its own, which has to fit into CA's 5 s as well."""

    answer_seconds: float = 2.0
    """When an answer is given, whatever the size of the request."""
    decode_seconds: float = 0.8
    """When decoding specs ends; the options are then ranked by counts."""
    rank_seconds: float = 1.2
    """The budget of the planner, of its own."""


@dataclass(frozen=True, slots=True)
class ExpanderSettings:
    """What the configuration says of answers."""

    timing: Timing = field(default_factory=Timing)
    planner_drives: bool = False
    """Whether every answer is a veto, since the planner decides on scale-ups."""
    serves_requests: bool = False
    """Whether pods that consume ProvisioningRequests have their room from those; else they are a gang, since nobody
    else would see to them."""
    gang_label: str = DEFAULT_GANG_LABEL
    schedulers: AbstractSet[str] = DEFAULT_SCHEDULERS
    """Pods of others do not count."""


class Expander:
    """The service's one method, on bytes. Thread-safe."""

    def __init__(
        self,
        fleet: Fleet,
        rank: Rank,
        decisions: DecisionLog,
        settings: ExpanderSettings | None = None,
        cluster: ClusterView | None = None,
        *,
        clock: EpochClock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives seconds since the epoch, as the fleet's does, `monotonic` seconds that only grow. Of the
        cluster, where there is one, it asks for gangs, and which pods wait to be bound whose increment has just been
        released."""
        self._fleet = fleet
        self._rank = rank
        self._decisions = decisions
        self._clock = clock
        self._settings = settings or ExpanderSettings()
        self._monotonic = monotonic
        self._cluster = cluster
        self._released_pods = None if cluster is None else ReleasedPods(cluster, clock)
        # One planner at a time: two would only halve each other's budget.
        self._planner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rank")

    def methods(self) -> dict[str, Method]:
        """Return the methods by name, for `status.generic_handler(SERVICE, ...)`."""
        return {"BestOptions": self.best_options}

    def close(self) -> None:
        """Take no more work; a ranking under way ends with its budget."""
        self._planner.shutdown(wait=False, cancel_futures=True)

    def best_options(self, data: bytes, call: CallContext) -> bytes:
        """Answer a serialised BestOptionsRequest with a serialised BestOptionsResponse. Raises InvalidInput for
        malformed bytes, and nothing else."""
        started, settings, timing = self._monotonic(), self._settings, self._settings.timing
        if settings.planner_drives:
            self._decisions.record(Decision(self._clock(), (), "", _PLANNER_DRIVES, "nothing", 0.0), usual=True)
            return wire.VETO
        answer_by = started + timing.answer_seconds
        if call.seconds_left is not None:
            answer_by = min(answer_by, started + call.seconds_left * _OF_THE_DEADLINE)
        decode_by = min(started + timing.decode_seconds, answer_by)
        with tracing.span("decoding"):
            request = wire.decode(
                data, lambda: self._monotonic() > decode_by, settings.gang_label, consuming=settings.serves_requests
            )
        snapshot, gangs, unknown = self._known(request.options)
        left_out = [
            why_left_out(offer.option, snapshot, settings.schedulers) or offer.why_left_out for offer in gangs.offers
        ]
        open_ = [offer for offer, why in zip(gangs.offers, left_out, strict=True) if not why]
        with tracing.span("ranking", {"cagrpc.options": len(open_)}):
            ranking = self._ranking(request, open_, gangs, snapshot, answer_by)
        best = min(range(len(open_)), key=lambda i: ranking.ranked[i].place, default=None)
        considered = _considered(gangs.offers, left_out, ranking.ranked, snapshot)
        chosen = None if best is None else open_[best].option
        reason = _veto_reason(considered) if best is None else ranking.ranked[best].reason
        by_less = f"ranked by counts: {ranking.why}" if ranking.why else ""
        notes = [unknown, by_less, request.unreadable, request.ignored]
        decision = Decision(
            at_seconds=self._clock(),
            options=considered[:_MOST_OPTIONS],
            chosen=chosen.node_group if chosen else "",
            reason=" ".join([reason, *(f"({note})" for note in notes if note)]),
            ranked_by=ranking.by,
            elapsed_seconds=self._monotonic() - started,
        )
        wanted = frozenset[str]() if best is None else open_[best].wanted
        created = (pod.created_at_seconds for pod in (chosen.pods if chosen else ()) if pod.key in wanted)
        since = min((at for at in created if at > 0), default=None)
        self._decisions.record(decision, wanted, waiting_since_seconds=since)
        return wire.answer(chosen.node_group, chosen.node_count, reason) if chosen else wire.VETO

    def _known(self, options: Sequence[wire.Option]) -> tuple[FleetSnapshot, OfferedGangs, str]:
        """Return the fleet's snapshot, with pods that were just released as if they were in flight, and the gangs; and
        what to say where the cluster's part in them is missing."""
        snapshot, schedulers = self._fleet.snapshot, self._settings.schedulers
        try:
            if self._released_pods is not None and (released := self._released_pods(snapshot)):
                snapshot = replace(snapshot, in_flight_pods=snapshot.in_flight_pods | released)
            return snapshot, OfferedGangs(options, snapshot.in_flight_pods, self._cluster, schedulers), ""
        except Exception as error:  # a failed call would make CA choose at random
            log.exception("asking the cluster's view failed; %d options are judged without it", len(options))
            missing = f"judged without the cluster's view, which failed with {type(error).__name__}"
            return snapshot, OfferedGangs(options, snapshot.in_flight_pods, schedulers=schedulers), missing

    def _ranking(
        self,
        request: wire.Request,
        open_: Sequence[OptionDemand],
        gangs: OfferedGangs,
        snapshot: FleetSnapshot,
        answer_by: float,
    ) -> _Ranking:
        if not open_:
            return _Ranking((), "nothing")
        if request.out_of_time:
            return _Ranking(by_counts(open_, snapshot), "counts", request.out_of_time)
        try:
            return _Ranking(self._by_objective(request.options, open_, gangs, snapshot, answer_by), "objective")
        except NotCompiledError as error:
            return _Ranking(by_counts(open_, snapshot), "counts", str(error))
        except TimeoutError:
            log.warning("ranking %d options took too long; they are ranked by counts", len(open_))
            return _Ranking(by_counts(open_, snapshot), "counts", "the planner was out of time")
        except Exception as error:  # a failed call would make CA choose at random
            log.exception("ranking %d options failed; they are ranked by counts", len(open_))
            return _Ranking(by_counts(open_, snapshot), "counts", f"the planner failed with {type(error).__name__}")

    def _by_objective(
        self,
        options: Sequence[wire.Option],
        open_: Sequence[OptionDemand],
        gangs: OfferedGangs,
        snapshot: FleetSnapshot,
        answer_by: float,
    ) -> tuple[Ranked, ...]:
        wanted = [offer.wanted for offer in open_]
        to_plan, pod_counts = problem(options, gangs.demand(open_), wanted, snapshot, self._clock())
        candidates = [
            ScaleUpCandidate(offer.option.node_group, offer.option.node_count, counts)
            for offer, counts in zip(open_, pod_counts, strict=True)
        ]
        left = answer_by - self._monotonic()
        budget = Budget(seconds=max(0.05, min(self._settings.timing.rank_seconds, left * _OF_WHAT_IS_LEFT)))
        running: Future[Sequence[Score]] = self._planner.submit(self._rank, to_plan, candidates, budget)
        try:
            scores = running.result(timeout=max(0.0, left))
        finally:
            running.cancel()  # where it has not begun; one that runs ends with its budget
        # Best first; the scores carry the candidates they are of.
        ranks = {id(score.candidate): Ranked(place, score.vector, score.reason) for place, score in enumerate(scores)}
        return tuple(ranks[id(candidate)] for candidate in candidates)


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The open options' ranks in their order; `why` they were ranked by less than the objective."""

    ranked: Sequence[Ranked]
    by: str
    why: str = ""


def _considered(
    offers: Sequence[OptionDemand], left_out: Sequence[str], ranked: Sequence[Ranked], snapshot: FleetSnapshot
) -> tuple[ConsideredOption, ...]:
    ranks = iter(ranked)
    found = []
    for offer, why in zip(offers, left_out, strict=True):
        option, rank = offer.option, None if why else next(ranks)
        also = f"; it also {offer.uncounted}" if offer.uncounted else ""
        state = snapshot.groups.get(option.node_group)
        found.append(
            ConsideredOption(
                node_group=option.node_group if state else option.node_group[:_LONGEST_UNKNOWN_ID],
                node_count=option.node_count,
                pods=len(option.pods),
                examples=tuple(pod.name[:LONGEST_KEY] for pod in option.pods[:_EXAMPLES]),
                score=rank.score if rank else (),
                cost_usd_per_hour=state.group.price_usd_per_hour * option.node_count if state else None,
                reason=f"{rank.reason}{also}" if rank else "",
                left_out=why,
            )
        )
    return tuple(found)


def _veto_reason(considered: Sequence[ConsideredOption]) -> str:
    if not considered:
        return "nothing was offered"
    return "no option may be taken: " + "; ".join(f"{o.node_group} {o.left_out}" for o in considered[:_MOST_OPTIONS])
