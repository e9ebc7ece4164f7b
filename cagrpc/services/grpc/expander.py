"""CA's Expander service: of the options for a scale-up, the one after which the rest can still be finished best.

Always an answer, and in time: CA gives up after 5 s, and any error makes it choose at random. So the planner runs
beside the call with a budget, and whatever goes wrong in it, the options are ranked by counts instead, and the decision
says so. An empty answer is a veto: nothing scales up in this loop. That is for node groups of our fleet alone: of
all others, which the autoscaler has from a cloud provider of its own (`template_groups`), all are answered where none
is chosen, so that its next expander chooses.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, TypeVar

from cagrpc.api.autoscaler import expander as wire
from cagrpc.api.autoscaler.expander import Option, group
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, is_of_request
from cagrpc.api.core.nodes import as_planned
from cagrpc.api.core.pods import Pod
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.cluster.released_pods import ReleasedPods
from cagrpc.controllers.settings import AnswerRules, ExpanderMode
from cagrpc.errors import InvalidInput, StillStarting, Unavailable
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot, Placement, PodKey
from cagrpc.fleet.prices import NodePlace
from cagrpc.runtime import tracing
from cagrpc.runtime.clock import EpochClock
from cagrpc.services.decisions import LONGEST_KEY, ConsideredOption, Decision, DecisionLog
from cagrpc.services.grpc.asked_groups import AskedGroups
from cagrpc.services.grpc.batching import Batching
from cagrpc.services.grpc.failed_scale_ups import FailedScaleUps, SetBack
from cagrpc.services.grpc.gangs import OfferedGangs, OptionDemand
from cagrpc.services.grpc.option_nodes import placements
from cagrpc.services.grpc.spreading import Spreading
from cagrpc.services.grpc.status import CallContext, Method
from cagrpc.services.grpc.surroundings import NOTHING_AROUND, ClusterSurroundings, ready_since, surroundings
from cagrpc.services.grpc.template_groups import TemplateGroup, TemplateGroups, as_estimated
from solver.model import Budget, Limit, NodeGroup, PodSpec, Problem
from solver.model.capacity import limits_broken
from solver.model.errors import NotCompiledError
from solver.model.money import hourly
from solver.model.plan import ScaleUpCandidate, Score
from solver.model.quantities import pluralize, some_of

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.cluster.state import ClusterState
    from cagrpc.controllers.assume_cache.cache import AssumeCache

log = logging.getLogger(__name__)

SERVICE = "grpcplugin.Expander"

_MOST_NAMES, _LONGEST_NAME = 3, 100

_Result = TypeVar("_Result")
Rank = Callable[[Problem, Sequence[ScaleUpCandidate], Budget], Sequence[Score]]
"""`solver.planning.rank.rank`."""
# Anyone may ask, and 256 decisions are kept: so what is kept of one is bounded, whatever it was about.
_EXAMPLES = 3
_MOST_OPTIONS = 500
_LONGEST_UNKNOWN_ID, _LONGEST_ID = 100, 300
_OF_WHAT_IS_LEFT = 0.8
_OF_TEMPLATES = 0.4
_OF_THE_DEADLINE = 0.6  # CA waits 5 s; the rest is for the way there and back
_LEAST_PLACING_SECONDS, _MOST_PLACING_SECONDS = 0.05, 0.5
_MOST_PLACED = 20_000  # as with `drive: plan`: an increment is one object
_MOST_SHADOWS = 2  # one that is judged, and one that waits
_MOST_SAID = 20
MOST_FOREIGN = 1_000
"""How many node groups of another cloud provider are read of a request. CA itself is tested with about a hundred."""
_NO_FLEET = FleetSnapshot(version=0, groups={}, shown=(), group_of_instance={})
_PLANNER_DRIVES = "drive: plan: the planner loop decides on scale-ups"


@dataclass(frozen=True, slots=True)
class Ranked:
    """How good one option is. `place` 0 is the best of them; `score` is what was compared, one by one, smaller is
    better."""

    place: int
    score: tuple[float, ...]
    reason: str


class OfferedGroups:
    """The node groups of a request's options: of our fleet, or of the autoscaler's own cloud provider, which only the
    templates of the request describe."""

    def __init__(
        self,
        request: wire.Request,
        snapshot: FleetSnapshot,
        templates: TemplateGroups,
        out_of_time: Callable[[], bool] = lambda: False,
        around: ClusterSurroundings = NOTHING_AROUND,
    ) -> None:
        """Once `out_of_time()` is true no further template is read."""
        self.snapshot = snapshot
        self.around = around
        self._sizes = templates.sizes
        self._inferred: dict[str, str] = {}
        of_group = {each.node_group: each for each in request.options}
        names = dict.fromkeys(each.node_group for each in request.options)
        most = dict.fromkeys(names, 0)
        for each in request.options:
            most[each.node_group] = max(most[each.node_group], each.node_count)
        self._of_templates: dict[str, TemplateGroup] = {}
        self.groups: dict[str, NodeGroup] = {}
        """As they are planned, by id."""
        for name in names:
            if name in snapshot.groups:
                self.groups[name] = as_planned(snapshot.groups[name].group)
                continue
            if name not in request.templates:
                found = TemplateGroup(why_not="is not a node group of this fleet, and has no template in the request")
            elif len(self._of_templates) >= MOST_FOREIGN or out_of_time():
                found = TemplateGroup(why_not=f"is not read: there are more than {MOST_FOREIGN} groups, or no time")
            else:
                found = templates.read(name, request.templates[name])
            self._of_templates[name] = found
            if found.group is not None:
                group, self._inferred[name] = as_estimated(found.group, of_group[name], around.daemon_sets)
                self.groups[name] = _with_room(group, most[name])

    def is_foreign(self, name: str) -> bool:
        """Return whether the group is of the autoscaler's own cloud provider."""
        return name in self._of_templates

    def place(self, name: str) -> NodePlace:
        """Return where the nodes of a group are, as far as it is known."""
        found = self.groups.get(name)
        return NodePlace.of_group(found) if found else NodePlace()

    def limits(self, names: Iterable[str]) -> tuple[Limit, ...]:
        """Return the limits of our fleet where one of these groups is of it."""
        return self.snapshot.limits if any(name in self.snapshot.groups for name in names) else ()

    def is_estimated(self, name: str) -> bool:
        """Return whether no price of a group is known."""
        return name in self._of_templates and self._of_templates[name].estimated

    def not_known(self, names: Iterable[str]) -> Iterator[str]:
        """Yield what is not known of these groups and inferred or passed over, for people."""
        foreign = [self._of_templates[each] for each in dict.fromkeys(names) if each in self._of_templates]
        groups = [each.group.id for each in foreign if each.group is not None]
        if unpriced := [each for each in groups if self.is_estimated(each)]:
            yield f"no price is known for {_some(unpriced)}: compared by what their nodes have"
        if inferred := [self._inferred[each] for each in groups if self._inferred[each]]:
            yield "; ".join(inferred[:_MOST_NAMES])
        sizes = [each for each in groups if each not in self._sizes]
        missing = [f"sizes of {_some(sizes)}" if sizes else "", self.around.unknown if groups else ""]
        if said := "; ".join(filter(None, missing)):
            yield f"not known: {said}"

    def why_unknown(self, name: str) -> str:
        """Return why nothing is known of a group; empty where it is known."""
        return "" if name in self.groups else self._of_templates[name].why_not


def _some(names: Sequence[str]) -> str:
    return some_of([each[:_LONGEST_NAME] for each in names], _MOST_NAMES)


def _with_room(group: NodeGroup, node_count: int) -> NodeGroup:
    """Return the group with room for so many nodes: the autoscaler estimates within the room of the group and of those
    that are similar to it, and its status may be some seconds old."""
    return replace(group, max_size=max(group.max_size, group.target_size + max(0, node_count)))


def why_left_out(option: Option, offered: OfferedGroups) -> str:
    """Return why an option must not be chosen, for people; empty where it may. An increase by CA's estimate has to fit:
    CA scales by that, whatever is answered."""
    if unknown := offered.why_unknown(option.node_group):
        return unknown
    if option.node_count < 1:
        return f"asks for {pluralize(option.node_count, 'node')}"
    snapshot = offered.snapshot
    state = snapshot.groups.get(option.node_group)
    if state is None:  # of the autoscaler's own, which offers no group that is full
        return _why_no_demand(option.pods, snapshot)
    wanted = state.target_size + option.node_count
    if wanted > state.group.max_size:
        return f"would have {pluralize(wanted, 'node')}, above the group's maximum of {state.group.max_size}"
    if broken := limits_broken(snapshot.limits, state.group, option.node_count):
        return f"would break limits: {'; '.join(broken)}"
    return _why_no_demand(option.pods, snapshot)


def _why_no_demand(pods: Sequence[Pod], snapshot: FleetSnapshot) -> str:
    # New nodes are not for pods that consume ProvisioningRequests. A CA that knows requests
    # (--enable-provisioning-requests) does not offer those at all. Which schedulers' pods count is CA's choice
    # (--bypassed-scheduler-names).
    others = [pod for pod in pods if not pod.consumer]
    if pods and not others:
        return "all of its pods consume ProvisioningRequests, which have room of their own"
    if others and all(pod.key in snapshot.in_flight_pods for pod in others):
        beside = "" if len(others) == len(pods) else " or consume ProvisioningRequests"
        return f"all of its pods are served by an increment in flight{beside}"
    return ""


def problem(
    options: Sequence[Option],
    demand: Sequence[Pod],
    wanted: Sequence[AbstractSet[str]],
    offered: OfferedGroups,
    now_seconds: float,
) -> tuple[Problem, tuple[Mapping[int, int], ...]]:
    """Return what is to be served and with what, and of each of the `wanted` keys of pods: index of the pod set ->
    count.

    `demand` are the pods that are to be planned; of the node groups only those that are in an option, since CA keeps
    back the ones that it has backed off from, that are unhealthy or full.
    """
    pod_sets, set_of_pod = group(demand, now_seconds)
    counts = tuple(Counter(set_of_pod[key] for key in keys) for keys in wanted)
    names = [name for name in dict.fromkeys(each.node_group for each in options) if name in offered.groups]
    groups = tuple(offered.groups[name] for name in names)
    around = offered.around
    return Problem(pod_sets, groups, around.nodes, offered.limits(names), around.daemon_sets), counts


def by_counts(offers: Sequence[OptionDemand], offered: OfferedGroups) -> tuple[Ranked, ...]:
    """Return the ranking that needs nothing but counts: the highest weight, then the least price for a pod served."""
    found = []
    for offer in offers:
        option, pods = offer.option, len(offer.wanted)
        node_group = offered.groups[option.node_group]
        per_pod = node_group.price_usd_per_hour * option.node_count / max(1, pods)
        reason = f"weight {node_group.weight}: {hourly(per_pod)} for each of {pluralize(pods, 'pod')}"
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

    answers: AnswerRules = field(default_factory=AnswerRules)
    timing: Timing = field(default_factory=Timing)
    planner_drives: bool = False
    """Whether every answer about our fleet is a veto, since the planner decides on scale-ups."""
    serves_requests: bool = False
    """Whether pods that consume ProvisioningRequests have their room from those; else they are a gang, since nobody
    else would see to them."""
    gang_label: str = DEFAULT_GANG_LABEL
    templates: TemplateGroups = field(default_factory=TemplateGroups)
    """What is known of node groups of the autoscaler's own cloud provider."""


class Expander:
    """The service's one method, on bytes. Thread-safe."""

    def __init__(
        self,
        fleet: Fleet | None,
        rank: Rank,
        decisions: DecisionLog,
        settings: ExpanderSettings | None = None,
        assumed: AssumeCache | None = None,
        *,
        clock: EpochClock,
    ) -> None:
        """Without a fleet all node groups are of the autoscaler's own cloud provider. `clock` gives seconds since the
        epoch, as the fleet's does. Of the cluster, where there is one, it asks for gangs, for nodes and DaemonSets, and
        which pods wait to be bound whose increment has just been released."""
        self._fleet = fleet
        self._rank = rank
        self._decisions = decisions
        self._clock = clock
        self._settings = settings or ExpanderSettings()
        self._monotonic = time.monotonic
        self._assumed = assumed
        self._cluster = None if assumed is None else assumed.cluster
        self._released_pods = None if self._cluster is None else ReleasedPods(self._cluster, clock)
        rules = self._settings.answers
        self._batching = None if rules.batch is None else Batching(rules.batch, clock)
        self._spreading = Spreading(rules.shares, clock)
        self.failed = FailedScaleUps(clock)
        """Of node groups of another cloud provider."""
        self.asked = AskedGroups()
        """In shadow: what it was asked about, and what it would have chosen."""
        self._observer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shadow")
        self._shadows = BoundedSemaphore(_MOST_SHADOWS)
        # One planner at a time: two would only halve each other's budget.
        self._planner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rank")

    def methods(self) -> dict[str, Method]:
        """Return the methods by name, for `status.generic_handler(SERVICE, ...)`."""
        return {"BestOptions": self.best_options}

    @property
    def _snapshot(self) -> FleetSnapshot:
        return self._fleet.snapshot if self._fleet is not None else _NO_FLEET

    def close(self) -> None:
        """Take no more work; a ranking under way ends with its budget."""
        self._observer.shutdown(wait=False, cancel_futures=True)
        self._planner.shutdown(wait=False, cancel_futures=True)

    def best_options(self, data: bytes, call: CallContext) -> bytes:
        """Answer a serialised BestOptionsRequest with a serialised BestOptionsResponse. Raises InvalidInput for
        malformed bytes, and nothing else that is not a fault of this program."""
        started, settings = self._monotonic(), self._settings
        if settings.answers.mode is ExpanderMode.SHADOW:
            unchanged = wire.unchanged(data)
            self._in_shadow(data)
            return unchanged
        if settings.planner_drives and not self._is_of_another(data):
            self._decisions.record(Decision(self._clock(), (), "", _PLANNER_DRIVES, "nothing", 0.0), usual=True)
            return wire.VETO
        answer_by = started + settings.timing.answer_seconds
        if call.seconds_left is not None:
            answer_by = min(answer_by, started + call.seconds_left * _OF_THE_DEADLINE)
        return self._decide(data, started, answer_by)

    def _in_shadow(self, data: bytes) -> None:
        """Record what would have been chosen, after the answer. One request may wait; what comes beside it is not
        judged, as the autoscaler asks again in its next loop."""
        if not self._shadows.acquire(blocking=False):
            log.info("a request is not compared: the one before it is still being compared")
            return

        def judge() -> None:
            try:
                started = self._monotonic()
                self._decide(data, started, started + self._settings.timing.answer_seconds)
            except Exception:  # nobody waits for it
                log.exception("a request could not be compared")
            finally:
                self._shadows.release()

        try:
            self._observer.submit(judge)
        except RuntimeError:  # the server is stopping
            self._shadows.release()

    def _decide(self, data: bytes, started: float, answer_by: float) -> bytes:
        settings = self._settings
        decode_by = min(started + settings.timing.decode_seconds, answer_by)
        with tracing.span("decoding"):
            request = wire.decode(
                data, lambda: self._monotonic() > decode_by, settings.gang_label, consuming=settings.serves_requests
            )
        snapshot, gangs, unknown = self._known(request.options)
        around = self._around(request, snapshot, lambda: self._monotonic() > decode_by)
        read_by = decode_by + _OF_TEMPLATES * (answer_by - decode_by)  # whatever time pods took
        offered = OfferedGroups(request, snapshot, settings.templates, lambda: self._monotonic() > read_by, around)
        left_out = [
            why_left_out(offer.option, offered) or offer.why_left_out or self._why_later(request, offer, snapshot)
            for offer in gangs.offers
        ]
        foreign = [each for each in request.options if offered.is_foreign(each.node_group)]
        if foreign:
            self._note_failed(request, foreign, offered)
        postponed = self._postponed(gangs.offers, left_out, offered)
        left_out = [why or postponed.get(at, "") for at, why in enumerate(left_out)]
        open_ = [offer for offer, why in zip(gangs.offers, left_out, strict=True) if not why]
        if waits := self._why_wait(request, open_):
            considered = _considered(gangs.offers, [why or waits for why in left_out], (), offered)
            elapsed = self._monotonic() - started
            self._decisions.record(
                Decision(self._clock(), considered[:_MOST_OPTIONS], "", waits, "nothing", elapsed), of_fleet=not foreign
            )
            return wire.VETO
        with tracing.span("ranking", {"cagrpc.options": len(open_)}):
            ranked_with = replace(
                request, options=tuple(each for at, each in enumerate(request.options) if at not in postponed)
            )
            ranking = self._ranking(ranked_with, open_, gangs, offered, answer_by)
        best = min(range(len(open_)), key=lambda i: ranking.ranked[i].place, default=None)
        best, shared = self._shared_out(best, open_, offered)
        considered = _considered(gangs.offers, left_out, ranking.ranked, offered)
        chosen = None if best is None else open_[best].option
        if chosen is not None and best is not None:
            answered, reason = [chosen], ranking.ranked[best].reason
        else:
            answered, reason = foreign, _veto_reason(considered)
            if self._guards_gangs(request, gangs.offers, foreign, unknown):
                answered = []
            elif foreign:
                reason = f"the choice is the autoscaler's next expander's: {reason}"
        shadow = settings.answers.mode is ExpanderMode.SHADOW
        by_less = f"ranked by counts: {ranking.why}" if ranking.why else ""
        notes = [
            "in shadow: all options were answered" if shadow else "",
            shared,
            unknown,
            by_less,
            *offered.not_known(each.option.node_group for each in open_),
            request.unreadable,
            request.ignored,
        ]
        decision = Decision(
            at_seconds=self._clock(),
            options=considered[:_MOST_OPTIONS],
            chosen=chosen.node_group if chosen else "",
            reason=" ".join([reason, *(f"({note})" for note in notes if note)]),
            ranked_by=ranking.by,
            elapsed_seconds=self._monotonic() - started,
            passed_on=not chosen and bool(answered),
            shadow=shadow,
        )
        if shadow:
            self._note(offered, decision, chosen)
        wanted = frozenset[str]() if best is None else open_[best].wanted
        created = (pod.created_at_seconds for pod in (chosen.pods if chosen else ()) if pod.key in wanted)
        since = min((at for at in created if at > 0), default=None)
        of_fleet = not shadow and (not foreign or (chosen is not None and chosen not in foreign))
        self._decisions.record(
            decision,
            wanted,
            self._placements(chosen, wanted, offered, answer_by) if of_fleet and chosen is not None else (),
            waiting_since_seconds=since,
            of_fleet=of_fleet,
            refused=frozenset(() if answered or self._may_veto(request) else offered.groups),
        )
        if chosen is not None and offered.is_foreign(chosen.node_group):
            self._spreading.chosen(chosen.node_group, chosen.node_count)
            if not shadow:
                place = offered.place(chosen.node_group)
                self.failed.chosen(chosen.node_group, wanted, place, chosen.node_count)
        return wire.answer(answered, reason if chosen else "") if answered else wire.VETO

    def _placements(
        self, chosen: Option, wanted: AbstractSet[str], offered: OfferedGroups, answer_by: float
    ) -> tuple[Placement, ...]:
        """Return which of the pods each node of the chosen option is for, as far as there is time to find out. Only
        with a cluster pods can be nominated."""
        seconds = _OF_WHAT_IS_LEFT * (answer_by - self._monotonic())
        if self._cluster is None or seconds < _LEAST_PLACING_SECONDS or len(wanted) > _MOST_PLACED:
            return ()
        pods = [pod for pod in chosen.pods if pod.key in wanted]
        budget = Budget(seconds=min(seconds, _MOST_PLACING_SECONDS))
        group, daemon_sets = offered.groups[chosen.node_group], offered.around.daemon_sets
        placing = self._planner.submit(placements, pods, group, chosen.node_count, daemon_sets, budget)
        try:
            return self._in_time(placing, answer_by)
        except (NotCompiledError, TimeoutError) as error:
            log.info("the pods of an option are not placed: %s", str(error) or "the planner was out of time")
        except Exception:  # a failed call would make CA choose at random
            log.exception("placing the pods of an option failed; they go where the scheduler puts them")
        return ()

    def _note(self, offered: OfferedGroups, decision: Decision, chosen: Option | None) -> None:
        """Note what was asked, and what would have been chosen."""
        estimated = [name for name in offered.groups if offered.is_estimated(name)]
        self.asked.note(decision.at_seconds, offered.groups, estimated, offered.limits(offered.groups))
        if chosen is not None:
            self.asked.chosen(decision.at_seconds, chosen.node_group, chosen.node_count)

    def _note_failed(self, request: wire.Request, foreign: Sequence[Option], offered: OfferedGroups) -> None:
        """Note which scale-ups a request, the autoscaler's status and the cluster's nodes show to have failed."""
        templates = self._settings.templates
        self.failed.backed_off(templates.sizes, self._places_of_backed_off(request))
        state = cache(self._state)  # which takes its time, and is seldom needed

        def nodes_since(name: str, since_seconds: float) -> int:
            there = state() if name in request.templates else None
            if there is None:
                return 0
            found = templates.read(name, request.templates[name]).group
            others = (each for each in offered.groups.values() if each.id != name)
            return 0 if found is None else ready_since(there, found, others, since_seconds)

        self.failed.offered({pod.key for option in foreign for pod in option.pods}, nodes_since)

    def _state(self) -> ClusterState | None:
        """Return the cluster's state; None where it cannot be read."""
        try:
            return None if self._cluster is None else self._cluster.state()
        except (StillStarting, Unavailable):
            return None
        except Exception:  # a failed call would make CA choose at random
            log.exception("reading the cluster's state failed; which nodes have come is not known")
            return None

    def _places_of_backed_off(self, request: wire.Request) -> Mapping[str, NodePlace]:
        """Return where the groups are that the autoscaler has just backed off from, by their templates."""
        templates, places = self._settings.templates, {}
        for name in self.failed.not_noted(templates.sizes):
            found = templates.read(name, request.templates[name]).group if name in request.templates else None
            if found is not None:
                places[name] = NodePlace.of_group(found)
        return places

    def _may_veto(self, request: wire.Request) -> bool:
        """Return whether the autoscaler takes an empty answer for a veto; up to 1.31 it chooses at random."""
        rules = self._settings.answers
        return rules.mode is not ExpanderMode.SHADOW and (rules.knows_vetoes or request.is_of_1_35)

    def _why_wait(self, request: wire.Request, open_: Sequence[OptionDemand]) -> str:
        if self._batching is None or not open_ or not self._may_veto(request):
            return ""
        # Pods of a ProvisioningRequest are all there, and a veto sets the request back for a minute.
        waiting = [
            pod
            for offer in open_
            for pod in offer.option.pods
            if pod.key in offer.wanted and not (pod.gang is not None and is_of_request(pod.gang.name))
        ]
        return self._batching.why_wait(waiting) if waiting else ""

    def _why_later(self, request: wire.Request, offer: OptionDemand, snapshot: FleetSnapshot) -> str:
        """Return why an option for our fleet comes later: it counts pods that are served already."""
        option = offer.option
        if self._batching is None or not self._may_veto(request) or option.node_group not in snapshot.groups:
            return ""
        served = sum(pod.key in snapshot.in_flight_pods for pod in option.pods)
        return self._batching.why_later(served, (pod for pod in option.pods if pod.key in offer.wanted))

    def _guards_gangs(
        self, request: wire.Request, offers: Sequence[OptionDemand], foreign: Sequence[Option], unknown: str
    ) -> bool:
        """Return whether every option of another cloud provider would serve a part of a gang and nothing else, and that
        is to be vetoed."""
        if not foreign or not self._settings.answers.veto_partial_gangs or not self._may_veto(request):
            return False
        if self._cluster is None or unknown:  # which members run already is not known
            return False
        names = {each.node_group for each in foreign}
        return all(offer.why_left_out for offer in offers if offer.option.node_group in names)

    def _shared_out(
        self, best: int | None, open_: Sequence[OptionDemand], offered: OfferedGroups
    ) -> tuple[int | None, str]:
        """Return the option to take where others are as good, and what to say of it."""
        if best is None or not offered.is_foreign(open_[best].option.node_group):
            return best, ""
        peers = self._spreading.peers(open_[best], open_, offered.groups)
        peers = [each for each in peers if offered.is_foreign(open_[each].option.node_group)]
        if len(peers) < 2:
            return best, ""
        found = self._spreading.least_used(peers, open_, self._settings.templates.sizes)
        shadow = self._settings.answers.mode is ExpanderMode.SHADOW
        return found, f"{'would be ' if shadow else ''}shared out over {len(peers)} node groups that are as good"

    def _postponed(
        self, offers: Sequence[OptionDemand], left_out: Sequence[str], offered: OfferedGroups
    ) -> dict[int, str]:
        """Return why options come after others, by position: the last scale-ups of their groups, or of their kin,
        failed, and each of their pods is served by another option that may be chosen. Kin comes before a group that
        failed itself."""
        set_backs = self.failed.set_backs()
        failed: dict[int, SetBack] = {}
        of_kin: dict[int, SetBack] = {}
        served: set[str] = set()
        for position, (offer, why) in enumerate(zip(offers, left_out, strict=True)):
            name = offer.option.node_group
            found = set_backs.of(name, offered.place(name)) if not why and offered.is_foreign(name) else None
            if found is not None:
                (failed if found.group == name else of_kin)[position] = found
            elif not why:
                served |= offer.wanted
        later = {position: found for position, found in of_kin.items() if offers[position].wanted <= served}
        for position in of_kin:
            served |= offers[position].wanted
        later |= {position: found for position, found in failed.items() if offers[position].wanted <= served}
        return {position: _said(found, offers[position].option.node_group) for position, found in later.items()}

    def _is_of_another(self, data: bytes) -> bool:
        """Return whether a request has options, and none of our node groups."""
        try:
            request = wire.parse_request(data)
        except InvalidInput:
            return False
        ours = self._snapshot.groups
        names = {option.nodeGroupId for option in request.options}
        return bool(names) and not names & ours.keys()

    def _known(self, options: Sequence[wire.Option]) -> tuple[FleetSnapshot, OfferedGangs, str]:
        """Return the fleet's snapshot, with pods that were just released as if they were in flight, and the gangs; and
        what to say where the cluster's part in them is missing."""
        snapshot = self._snapshot
        try:
            if self._released_pods is not None and (released := self._released_pods(snapshot)):
                snapshot = replace(snapshot, in_flight_pods=snapshot.in_flight_pods | released)
            return snapshot, OfferedGangs(options, snapshot.in_flight_pods, self._cluster), ""
        except Exception as error:  # a failed call would make CA choose at random
            log.exception("asking the cluster's view failed; %d options are judged without it", len(options))
            missing = f"judged without the cluster's view, which failed with {type(error).__name__}"
            return snapshot, OfferedGangs(options, snapshot.in_flight_pods), missing

    def _around(
        self, request: wire.Request, snapshot: FleetSnapshot, out_of_time: Callable[[], bool]
    ) -> ClusterSurroundings:
        """Return what the cluster has beside the pods of a request; of those that are served already nothing is free
        for others."""
        if self._assumed is None or self._cluster is None:
            return NOTHING_AROUND
        if out_of_time():
            return ClusterSurroundings(unknown=f"{NOTHING_AROUND.unknown}, for want of time")
        pods = (pod for option in request.options for pod in option.pods)
        offered: dict[PodKey, PodSpec] = {pod.key: pod.spec for pod in pods if pod.key not in snapshot.in_flight_pods}
        try:
            return surroundings(self._assumed.snapshot(snapshot, self._cluster.state()), offered, out_of_time)
        except (StillStarting, Unavailable) as error:
            return ClusterSurroundings(unknown=f"{NOTHING_AROUND.unknown}, as {error}")
        except Exception as error:  # a failed call would make CA choose at random
            log.exception("reading the cluster's state failed; options are ranked without it")
            return ClusterSurroundings(unknown=f"{NOTHING_AROUND.unknown}, which failed with {type(error).__name__}")

    def _ranking(
        self,
        request: wire.Request,
        open_: Sequence[OptionDemand],
        gangs: OfferedGangs,
        offered: OfferedGroups,
        answer_by: float,
    ) -> _Ranking:
        if not open_:
            return _Ranking((), "nothing")
        if request.out_of_time:
            return _Ranking(by_counts(open_, offered), "counts", request.out_of_time)
        try:
            return _Ranking(self._by_objective(request.options, open_, gangs, offered, answer_by), "objective")
        except NotCompiledError as error:
            return _Ranking(by_counts(open_, offered), "counts", str(error))
        except TimeoutError:
            log.warning("ranking %d options took too long; they are ranked by counts", len(open_))
            return _Ranking(by_counts(open_, offered), "counts", "the planner was out of time")
        except Exception as error:  # a failed call would make CA choose at random
            log.exception("ranking %d options failed; they are ranked by counts", len(open_))
            return _Ranking(by_counts(open_, offered), "counts", f"the planner failed with {type(error).__name__}")

    def _in_time(self, running: Future[_Result], answer_by: float) -> _Result:
        """Return what the planner has found. Raises TimeoutError when it is time to answer."""
        try:
            return running.result(timeout=max(0.0, answer_by - self._monotonic()))
        finally:
            running.cancel()  # where it has not begun; one that runs ends with its budget

    def _by_objective(
        self,
        options: Sequence[wire.Option],
        open_: Sequence[OptionDemand],
        gangs: OfferedGangs,
        offered: OfferedGroups,
        answer_by: float,
    ) -> tuple[Ranked, ...]:
        wanted = [offer.wanted for offer in open_]
        to_plan, pod_counts = problem(options, gangs.demand(open_), wanted, offered, self._clock())
        candidates = [
            ScaleUpCandidate(offer.option.node_group, offer.option.node_count, counts)
            for offer, counts in zip(open_, pod_counts, strict=True)
        ]
        left = answer_by - self._monotonic()
        budget = Budget(seconds=max(0.05, min(self._settings.timing.rank_seconds, left * _OF_WHAT_IS_LEFT)))
        scores = self._in_time(self._planner.submit(self._rank, to_plan, candidates, budget), answer_by)
        # Best first; the scores carry the candidates they are of.
        ranks = {id(score.candidate): Ranked(place, score.vector, score.reason) for place, score in enumerate(scores)}
        return tuple(ranks[id(candidate)] for candidate in candidates)


def _said(found: SetBack, name: str) -> str:
    until = timestamp(found.until_seconds)
    times = pluralize(found.failures.times, "time")
    who = "failed" if found.group == name else f"is like {found.group[:_LONGEST_NAME]}, which failed"
    return f"{who} to scale up {times}: {found.failures.why}; others come first until {until}"


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The open options' ranks in their order; `why` they were ranked by less than the objective."""

    ranked: Sequence[Ranked]
    by: str
    why: str = ""


def _considered(
    offers: Sequence[OptionDemand], left_out: Sequence[str], ranked: Sequence[Ranked], offered: OfferedGroups
) -> tuple[ConsideredOption, ...]:
    ranks = iter(ranked)
    found = []
    for offer, why in zip(offers, left_out, strict=True):
        option, rank = offer.option, None if why else next(ranks)
        also = f"; it also {offer.uncounted}" if offer.uncounted else ""
        known = offered.groups.get(option.node_group)
        found.append(
            ConsideredOption(
                node_group=option.node_group[: _LONGEST_ID if known else _LONGEST_UNKNOWN_ID],
                node_count=option.node_count,
                pods=len(option.pods),
                examples=tuple(pod.name[:LONGEST_KEY] for pod in option.pods[:_EXAMPLES]),
                score=rank.score if rank else (),
                cost_usd_per_hour=known.price_usd_per_hour * option.node_count if known else None,
                reason=f"{rank.reason}{also}" if rank else "",
                left_out=why,
            )
        )
    return tuple(found)


def _veto_reason(considered: Sequence[ConsideredOption]) -> str:
    if not considered:
        return "nothing was offered"
    more = f"; and {len(considered) - _MOST_SAID} more" if len(considered) > _MOST_SAID else ""
    said = "; ".join(f"{each.node_group} {each.left_out}" for each in considered[:_MOST_SAID])
    return f"no option may be taken: {said}{more}"
