"""Decides requests: builds the scenario, lets `decisions` choose who gets what, labels existing nodes, and orders new
ones from the fleet. The decisions are returned; `controller` writes them."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cagrpc.cluster.node_info import ClusterCapacity
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.assume_cache.bookings import Booking, book
from cagrpc.controllers.planning.increments import format_deltas
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.decisions import Decisions, RequestPart, check, decide
from cagrpc.controllers.provisioning.fairness import Turns
from cagrpc.controllers.provisioning.labels import BookingLabels, by_node, to_be_labelled
from cagrpc.controllers.provisioning.model import Candidate, ProvisioningRequest, namespace_of
from cagrpc.controllers.provisioning.observation import RequestsObservation
from cagrpc.controllers.provisioning.progress import Decision, Granted, ManagedRequest, Pods, Refused
from cagrpc.controllers.provisioning.scenario import Scenario
from cagrpc.errors import CagrpcError, unexpected
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementSpec, Origin
from cagrpc.runtime import tracing
from solver.model import Budget
from solver.model.budget import RunningBudget
from solver.model.errors import NotCompiledError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deciding:
    """Decides requests. For the one thread that holds the planning lock."""

    fleet: Fleet
    labels: BookingLabels
    budget: Budget
    turns: Turns
    still_there: Callable[[str], bool]
    """Returns whether a request still exists, just before something is ordered for it."""
    stopping: Callable[[], bool]

    def atomic(
        self,
        candidates: Sequence[ManagedRequest],
        scenario: Scenario,
        observed: RequestsObservation,
        *,
        share: float = 1.0,
    ) -> dict[str, Decision]:
        """Decide atomic requests: each is served whole or not at all, in this order at one priority. Nodes with their
        labels from a failed attempt that are not used now lose them. Requests for which an increment was ordered are
        not among the decisions: the fleet's snapshot has it. `share` of the budget is used. Raises
        Unavailable where the API server or the journal is out of reach; what was ordered until then stays ordered."""
        plan = secrets.token_hex(4)
        with tracing.about(tracing.plan(plan)):
            by_uid = {each.request.uid: each for each in candidates}
            asked = [
                replace(
                    _candidate(each, observed.state),
                    turn=turn,
                    may_keep=self.turns.may_keep(each.request.namespace),
                    early=_is_early(each.request, observed.at_seconds),
                )
                for turn, each in enumerate(candidates)
            ]
            with tracing.span("solving"):
                decided = self._decide(asked, to_be_labelled(scenario), share)
            self.turns.kept(map(namespace_of, decided.kept_for))
            found: dict[str, Decision] = dict(decided.refused)
            served = {uid for uid in decided.served if not self.stopping() and self.still_there(uid)}
            used = {uid: decided.on_nodes.get(uid, ()) for uid in served}
            self.labels.drop(
                by_node({uid: {*observed.booked.get(uid, ())}.difference(names) for uid, names in used.items()})
            )
            failed = self.labels.put(by_node(used))
            for uid, names in used.items():
                not_labelled = [name for name in names if name in failed]
                if not_labelled:
                    served.remove(uid)
                    why = failed[not_labelled[0]]
                    if why:  # empty where the node is gone
                        found[uid] = Refused(f"node {not_labelled[0]} cannot be labelled for it: {why}")
            ordered = {uid for part in decided.parts for uid in part.uids}
            found.update((uid, Granted(nodes=frozenset(decided.on_nodes.get(uid, ())))) for uid in served - ordered)
            requests = {uid: by_uid[uid].request for uid in served}
            with tracing.span("committing"):
                refused = self._order([part for part in decided.parts if served.issuperset(part.uids)], requests, plan)
            self.turns.served(of.namespace for uid, of in requests.items() if uid not in refused)
            return {**found, **refused}

    def _decide(self, candidates: Sequence[Candidate], scenario: Scenario, share: float) -> Decisions:
        """Decide all together, or, where that fails, one by one up to the first that can be decided: a request that
        breaks planning delays no other."""
        broken: dict[str, Refused] = {}
        alone = [[each] for each in candidates] if len(candidates) > 1 else []
        for asked in (candidates, *alone):
            try:
                found = decide(asked, scenario, self.budget.part(share), self.fleet.widen)
            except NotCompiledError:  # all wait
                raise
            except Exception as error:
                if len(asked) > 1:
                    log.warning(
                        "requests are decided one by one, since deciding them together failed: %s", unexpected(error)
                    )
                    continue
                log.exception("request %s cannot be decided", asked[0].key, extra={"request": asked[0].key})
                broken[asked[0].uid] = Refused(f"it cannot be decided: {unexpected(error)}")
            else:
                return replace(found, refused={**found.refused, **broken})
        return Decisions(refused=broken)

    def _order(
        self, parts: Sequence[RequestPart], requests: Mapping[str, ProvisioningRequest], plan: str
    ) -> dict[str, Decision]:
        """Order the parts. Return the requests that the fleet refuses; `requests` are by UID."""
        asked = [_increment(part, plan, [requests[uid] for uid in part.uids]) for part in parts]
        refused: dict[str, Decision] = {}
        for part, answer in zip(parts, self.fleet.apply_all(asked) if asked else (), strict=True):
            if isinstance(answer, CagrpcError):  # sizes or limits that others have used meanwhile
                log.warning("the fleet refused %s: %s", format_deltas(part.deltas), answer)
                refused.update((uid, Refused(str(answer))) for uid in part.uids)
        return refused

    def checks(
        self, candidates: Sequence[ManagedRequest], scenario: Scenario, state: ClusterState
    ) -> dict[str, Decision]:
        """Decide check-capacity requests one after the other, as many as there is time for: the next one does not get
        what one has booked, but may get what one has only checked."""
        found: dict[str, Decision] = {}
        budget = RunningBudget(self.budget)
        capacity = ClusterCapacity(scenario.nodes)
        standing = {each.node.name: each for each in state.nodes if each.node.name in capacity}
        for each in candidates:
            if found and budget.exhausted:
                break
            scenario = replace(scenario, nodes=capacity.nodes)
            try:
                checked = check(_candidate(each, state), scenario, self.budget)
            except NotCompiledError:  # all wait
                raise
            except Exception as error:
                log.exception("request %s cannot be checked", each.request.key, extra={"request": each.request.key})
                found[each.request.uid] = Refused(
                    f"it cannot be checked: {unexpected(error)}", reason=conditions.NOT_CHECKED
                )
                continue
            found[each.request.uid] = checked
            if isinstance(checked, Granted) and each.service.books:
                self.turns.served([each.request.namespace])
                used = replace(
                    state,
                    nodes=tuple(
                        replace(standing[name], node=capacity[name].node())
                        for name in checked.nodes
                        if name in standing
                    ),
                )
                capacity.assume(book([booking_of(each)], used).reservations)
        return found


def _increment(part: RequestPart, plan: str, requests: Sequence[ProvisioningRequest]) -> IncrementSpec:
    """Return what to order for a part; `requests` are those that it is for."""
    keys = [each.key for each in requests]
    return IncrementSpec(
        deltas=part.deltas,
        origin=Origin.CAGRPC,
        requests=frozenset(part.uids),
        reason=f"ProvisioningRequest {', '.join(keys[:5])}{' and others' if len(keys) > 5 else ''}",
        plan=plan,
        placements=part.placements,
        cost_usd_per_hour=part.cost_usd_per_hour,
        gap=part.gap,
        waiting_since_seconds=min((each.created_at_seconds for each in requests), default=None),
    )


def _is_early(request: ProvisioningRequest, now: float) -> bool:
    """Return whether its next attempt is due only later, and its status has why it failed."""
    return now < conditions.retry_at(request) and not conditions.waits_for_a_shortage(request)


def _candidate(each: ManagedRequest, state: ClusterState) -> Candidate:
    """Return the request as a candidate; with the reason, where its pods need devices that planning gives to nobody."""
    found = each.candidate
    sets = (replace(pods, spec=state.devices.left_out(pods.spec)) for pods in found.pod_sets)
    return replace(found, pod_sets=tuple(sets))


def booking_of(each: ManagedRequest) -> Booking:
    """Return a booking for all its pods, wherever there is room."""
    assert isinstance(each.pods, Pods)
    return Booking(each.request.uid, each.request.key, tuple(pods for pods in each.pods.sets if pods[1]), anywhere=True)
