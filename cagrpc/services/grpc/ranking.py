"""From options to a ranking: which options are open at all, the problem that the planner ranks them by, and the
ranking by counts alone that stands in where the planner cannot answer in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from cagrpc.api.autoscaler.expander import Option
from cagrpc.api.core.nodes import group_labels
from cagrpc.api.core.pod_sets import group
from cagrpc.api.core.pods import Pod
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.services.grpc.gangs import OptionDemand
from solver.model import NodeGroup, Problem
from solver.model.capacity import limits_broken
from solver.model.quantities import pluralize

_MOST_NAMES, _LONGEST_NAME = 3, 100


@dataclass(frozen=True, slots=True)
class Ranked:
    """How good one option is. `place` 0 is the best of them; `score` is what was compared, one by one, smaller is
    better."""

    place: int
    score: tuple[float, ...]
    reason: str


def why_left_out(option: Option, snapshot: FleetSnapshot, schedulers: AbstractSet[str] = DEFAULT_SCHEDULERS) -> str:
    """Why an option must not be chosen, for people; empty where it may. An increase by CA's estimate has to fit: CA
    scales by that, whatever is answered."""
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
    """What is to be served and with what, and of each of the `wanted` keys of pods: index of the pod set -> count.

    `demand` are the pods that are to be planned; of the node groups only those that are in an option, since CA keeps
    back the ones that it has backed off from, that are unhealthy or full.
    """
    pod_sets, set_of_pod = group(demand, now_seconds)
    counts = tuple(Counter(set_of_pod[key] for key in keys) for keys in wanted)
    return Problem(pod_sets, tuple(_groups(options, snapshot).values()), limits=snapshot.limits), counts


def _groups(options: Sequence[Option], snapshot: FleetSnapshot) -> dict[str, NodeGroup]:
    states = {option.node_group: snapshot.groups.get(option.node_group) for option in options}
    return {
        group_id: replace(state.group, target_size=state.target_size, labels=group_labels(state.group))
        for group_id, state in states.items()
        if state
    }


def by_counts(offers: Sequence[OptionDemand], snapshot: FleetSnapshot) -> tuple[Ranked, ...]:
    """The ranking that needs nothing but counts: the highest weight, then the least price for a pod served."""
    found = []
    for offer in offers:
        option, pods = offer.option, len(offer.wanted)
        node_group = snapshot.groups[option.node_group].group
        per_pod = node_group.price_usd_per_hour * option.node_count / max(1, pods)
        reason = f"weight {node_group.weight}: {per_pod:.4g} $/h for each of {pluralize(pods, 'pod')}"
        found.append(((-float(node_group.weight), per_pod), option.node_group, reason))
    places = {index: place for place, index in enumerate(sorted(range(len(found)), key=found.__getitem__))}
    return tuple(Ranked(places[index], score, reason) for index, (score, _, reason) in enumerate(found))
