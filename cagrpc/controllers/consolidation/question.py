"""From the cluster and the fleet to the question of consolidation: which nodes stand with which pods, what may be
moved, and what room others hold; or why nothing may be begun. What is made of the plan is the queue's.

Some nodes must go whatever that costs: those that their cloud takes soon, and those that have gone bad, as Karpenter
repairs nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cagrpc.api.core.movability import Kept
from cagrpc.api.core.nodes import UNSCHEDULABLE
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.cluster.fleet_capacity import deleting_instances
from cagrpc.cluster.node_info import ClusterCapacity, merged
from cagrpc.cluster.shortages import offering
from cagrpc.cluster.state import ClusterNode, ClusterState, NodeCondition, PodsOnNode, ReschedulablePod
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.consolidation.holds import Hold, Holds, in_words, increments_in_flight, needs, notes
from cagrpc.controllers.events import EventRecorder
from cagrpc.controllers.provisioning.model import namespace_of
from cagrpc.controllers.scale_down.choice import AT_MINIMUM, IN_FLIGHT, TO_BE_DELETED, booked_for
from cagrpc.controllers.scale_down.constraints import is_constrained_by_others
from cagrpc.controllers.settings import ConsolidationPolicy, ConsolidationSettings, RepairRule, share
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import DisruptedNode, FleetSnapshot
from cagrpc.runtime.clock import EpochClock, epoch
from solver.consolidation.model import ConsolidationProblem, DisruptionReason, StandingNode
from solver.model import Node, NodeGroup, PodSet, PodSpec, RunningPods
from solver.model.eligibility import without_preferences
from solver.model.plan import ClassKey

MOST_UNHEALTHY_PERCENT = 20
"""Of the nodes of a provisioner: where more are bad it is hardly the nodes."""


@dataclass(frozen=True, slots=True)
class ForcefulDisruption:
    """A node that must go."""

    reason: DisruptionReason
    """INTERRUPTED or UNHEALTHY."""
    why: str
    """For people: the taint, or the condition."""


@dataclass(frozen=True, slots=True)
class ForcefulDisruptions:
    """Nodes of the fleet that must go, by name."""

    nodes: Mapping[str, ForcefulDisruption] = field(default_factory=dict)
    spared: Mapping[str, str] = field(default_factory=dict)
    """Nodes that have gone bad and stay, since so many of their provisioner's are bad that it is hardly the nodes: by
    name, why, for people."""


def must_go(
    nodes: Iterable[ClusterNode], snapshot: FleetSnapshot, settings: ConsolidationSettings, now_seconds: float
) -> ForcefulDisruptions:
    """Return which nodes of the fleet must go, of those that nobody removes already; conditions last since their last
    transition. `now_seconds` is since the epoch."""
    ours = list(_ours(nodes, snapshot))
    registered, bad = Counter(provisioner for _, provisioner in ours), Counter[str]()
    found: dict[str, ForcefulDisruption] = {}
    for each, provisioner in ours:
        bad[provisioner] += any(_holds(rule, said) for rule in settings.repair for said in each.conditions)
        interrupted = _why_interrupted(each, settings)
        unhealthy = _why_unhealthy(each, settings.repair, now_seconds)
        if interrupted:
            why = f"the cloud is taking it back: {interrupted}"
            found[each.node.name] = ForcefulDisruption(DisruptionReason.INTERRUPTED, why)
        elif unhealthy:
            found[each.node.name] = ForcefulDisruption(DisruptionReason.UNHEALTHY, unhealthy)
    spared = {
        name: (
            f"{found[name].why}; but {bad[provisioner]} of the {registered[provisioner]} nodes of provisioner"
            f" {provisioner} are bad, more than {MOST_UNHEALTHY_PERCENT} %"
        )
        for name, provisioner in ((each.node.name, provisioner) for each, provisioner in ours)
        if bad[provisioner] > share(MOST_UNHEALTHY_PERCENT, registered[provisioner])
        and name in found
        and found[name].reason is DisruptionReason.UNHEALTHY
    }
    return ForcefulDisruptions({name: each for name, each in found.items() if name not in spared}, spared)


def _ours(nodes: Iterable[ClusterNode], snapshot: FleetSnapshot) -> Iterator[tuple[ClusterNode, str]]:
    """Yield the nodes of the fleet that are not on their way out, with their provisioners."""
    going = deleting_instances(snapshot)
    for each in nodes:
        group = snapshot.groups.get(snapshot.group_of_instance.get(each.provider_id, ""))
        if group is not None and each.provider_id not in going:
            yield each, group.group.provisioner


def _holds(rule: RepairRule, condition: NodeCondition) -> bool:
    return (condition.type, condition.status) == (rule.condition, rule.status)


def _why_interrupted(node: ClusterNode, settings: ConsolidationSettings) -> str:
    """Return which taint or condition says that it is taken soon; empty where none does."""
    taints = (f"taint {each.key}" for each in node.node.taints if each.key in settings.interruption_taints)
    conditions = (
        f"condition {each.type}"
        for each in node.conditions
        if each.type in settings.interruption_conditions and each.status == "True"
    )
    return next(taints, "") or next(conditions, "")


def _why_unhealthy(node: ClusterNode, rules: Iterable[RepairRule], now_seconds: float) -> str:
    """Return which condition has lasted longer than its rule tolerates; empty where none has. One that does not say
    since when has lasted since the Node is there."""
    for rule in rules:
        for each in node.conditions:
            since = each.since_seconds or node.created_at_seconds
            if _holds(rule, each) and since and now_seconds >= since + rule.toleration_seconds:
                return f"it is unhealthy: condition {each.type} is {each.status} since {timestamp(since)}"
    return ""


NOT_OURS = "it is not a node of the fleet"
NOT_SERVED = "its node group is no longer configured"
NOT_READY = "it is not Ready"
BEING_REMOVED = "it is being removed"
SCALE_DOWN_DISABLED_BY_OTHERS = (
    "it has the annotation cluster-autoscaler.kubernetes.io/scale-down-disabled, which cagrpc did not set"
)
DO_NOT_DISRUPT_NODE = "it has the annotation karpenter.sh/do-not-disrupt"
PLANNED_FOR = "pods that wait are planned for it"
DISRUPTED_BY_KARPENTER = "karpenter.sh/disrupted"
"""Karpenter's taint on a node that it drains itself."""


@dataclass(frozen=True, slots=True)
class ConsolidationQuestion:
    """A problem, and the pods that it is about: each reschedulable pod of the snapshot's cluster once, but for those of
    nodes that must go which nobody makes again, or which could not run elsewhere. For these no room is planned, and
    they are not evicted."""

    snapshot: Snapshot
    problem: ConsolidationProblem
    pods: Mapping[str, Mapping[ClassKey, tuple[ReschedulablePod, ...]]] = field(default_factory=dict)
    """By node, the pods of its `StandingNode.pods` by class, oldest first. Placeholders have none. Of a node that must
    go there are some that their owners keep there (`Kept.BY_OWNER`): they are not evicted, and room is planned for
    those that come in their stead once the node is gone."""
    nodes: Mapping[str, DisruptedNode] = field(default_factory=dict)
    """The nodes of the fleet, by name."""
    held: str = ""
    """Why only nodes that must go may be taken away now; empty where all may."""


def question(
    snapshot: Snapshot,
    settings: ConsolidationSettings,
    now_seconds: float,
    *,
    going: ForcefulDisruptions | None = None,
    held: str = "",
) -> ConsolidationQuestion:
    """Return what to plan. The snapshot's cluster is with all that is bound; `now_seconds` is since the epoch; `going`
    are the nodes that must go, where they are known already."""
    found = must_go(snapshot.cluster.nodes, snapshot.fleet, settings, now_seconds) if going is None else going
    return _Making(snapshot, settings, now_seconds, found, held).made()


class _Making:
    def __init__(
        self,
        snapshot: Snapshot,
        settings: ConsolidationSettings,
        now_seconds: float,
        going: ForcefulDisruptions,
        held: str,
    ) -> None:
        self._taken, self._settings, self._now_seconds = snapshot, settings, now_seconds
        self._state, self._snapshot = snapshot.cluster, snapshot.fleet
        self._going, self._held = going, held
        self._deleting = deleting_instances(snapshot.fleet)
        self._orphans = {each.id for each in snapshot.fleet.orphans}
        self._specs = _RequiredSpecs()
        self._planned = snapshot.desired.reservations(self._state, {each.node.name for each in self._state.nodes})
        reserved = merged(merged(snapshot.reservations, snapshot.placeholders), self._planned)
        self._capacity = ClusterCapacity(_with_running(snapshot, self._specs), reserved)
        self._pods: dict[str, Mapping[ClassKey, tuple[ReschedulablePod, ...]]] = {}
        self._nodes: dict[str, DisruptedNode] = {}

    def made(self) -> ConsolidationQuestion:
        nodes = tuple(self._standing(each) for each in self._state.nodes)
        problem = ConsolidationProblem(
            nodes,
            tuple(self._groups()),
            limits=self._snapshot.limits,
            daemon_sets=self._state.daemon_sets,
            least_saving_usd_per_hour_per_pod=self._settings.least_saving_usd_per_hour_per_pod,
            most_nodes_per_step=self._settings.most_nodes_per_step,
        )
        return ConsolidationQuestion(self._taken, problem, self._pods, self._nodes, self._held)

    def _groups(self) -> Iterator[NodeGroup]:
        for each in self._taken.groups:
            known = self._snapshot.groups[each.id].group
            closed = offering(known) in self._taken.short
            yield replace(each, min_size=known.min_size, max_size=each.target_size if closed else each.max_size)

    def _standing(self, node: ClusterNode) -> StandingNode:
        name, group = node.node.name, self._group(node)
        here = self._state.bound.get(name, PodsOnNode())
        going = self._going.nodes.get(name) if group is not None else None
        kept = self._why_fixed(node, group) or ("" if going else self._why_kept(node, group, here))
        reason = None if kept or going is None else going.reason
        pods = here.reschedulable if reason is None else _replaced(here.reschedulable)
        if group is not None:
            self._nodes[name] = DisruptedNode(name, node.provider_id, group.id)
        classes = self._pods[name] = _by_class(pods, self._specs)
        return StandingNode(
            node=self._capacity[name].node(),
            node_group="" if group is None else group.id,
            pods=(*_pod_sets(classes), *self._placeholders(name)),
            kept=kept,
            takes_pods=reason is None and _takes_pods(node) and node.provider_id not in self._deleting,
            must_go=reason,
            spare=name in self._taken.spares,
        )

    def _group(self, node: ClusterNode) -> NodeGroup | None:
        """Return the group that counts the node; none for one that is being deleted, which no target counts."""
        found = self._snapshot.groups.get(self._snapshot.group_of_instance.get(node.provider_id, ""))
        return None if found is None or node.provider_id in self._deleting else found.group

    def _placeholders(self, name: str) -> Iterator[PodSet]:
        for number, each in enumerate(self._taken.placeholders.get(name, ())):
            yield PodSet(f"placeholders {number} of {name}", self._specs.of(each.spec), each.count, placeholder=True)

    def _why_fixed(self, node: ClusterNode, group: NodeGroup | None) -> str:
        """Return why a node stays even where it would have to go."""
        if node.provider_id in self._deleting or any(each.key == TO_BE_DELETED for each in node.node.taints):
            return BEING_REMOVED
        if group is None:
            return NOT_SERVED if node.provider_id in self._orphans else NOT_OURS
        if node.held or node.provider_id in self._snapshot.held_instances:
            return IN_FLIGHT
        if any(each.key == DISRUPTED_BY_KARPENTER for each in node.node.taints):
            return f"{BEING_REMOVED}: it has the taint {DISRUPTED_BY_KARPENTER}"
        return ""

    def _why_kept(self, node: ClusterNode, group: NodeGroup | None, here: PodsOnNode) -> str:
        """Return why a node stays that need not go; what holds longest comes first."""
        name = node.node.name
        if name in self._going.spared:
            return self._going.spared[name]
        if node.scale_down_disabled == "true" and not node.scale_down_disabled_by_us:
            return SCALE_DOWN_DISABLED_BY_OTHERS
        if node.do_not_disrupt:
            return DO_NOT_DISRUPT_NODE
        if not node.ready:
            return NOT_READY
        if name in self._taken.requests.nodes:
            return booked_for(self._taken.requests.nodes[name])
        return self._why_kept_by_pods(name, here) or self._why_kept_by_group(node, group, here)

    def _why_kept_by_pods(self, name: str, here: PodsOnNode) -> str:
        kept = next((each.kept for each in here.reschedulable if each.kept), "")
        if kept:
            return kept
        if here.ending:
            return f"{here.ending} is still being deleted"
        if here.coming:
            return f"the scheduler has nominated {here.coming} to it"
        return PLANNED_FOR if name in self._planned else ""

    def _why_kept_by_group(self, node: ClusterNode, group: NodeGroup | None, here: PodsOnNode) -> str:
        """Return what keeps it of its provisioner, its age, or its group."""
        if group is None:
            return NOT_OURS
        settings, now = self._settings, self._now_seconds
        old_at = node.created_at_seconds + settings.minimum_node_age_seconds
        if node.created_at_seconds and now < old_at:
            return f"it is younger than the minimum age, until {timestamp(old_at)}"
        said = settings.disruption_of(group.provisioner)
        if said.consolidate_after_seconds is None:
            return f"provisioner {group.provisioner} is never consolidated: consolidateAfter is Never"
        if said.consolidation_policy is ConsolidationPolicy.WHEN_EMPTY and here.reschedulable:
            return f"provisioner {group.provisioner} is consolidated only where nodes are empty (WhenEmpty)"
        newest = max((each.ref.created_at_seconds for each in here.reschedulable), default=0)
        after = max(newest, node.created_at_seconds) + said.consolidate_after_seconds
        if said.consolidate_after_seconds and now < after:
            return f"its last pod came less than consolidateAfter ago, until {timestamp(after)}"
        state = self._snapshot.groups[group.id]
        return AT_MINIMUM if state.target_size <= group.min_size else ""


def _replaced(pods: Iterable[ReschedulablePod]) -> Iterator[ReschedulablePod]:
    """Yield the pods of a node that must go for which room is planned."""
    return (each for each in pods if each.kept_by is not Kept.WITHOUT_SUCCESSOR)


def is_being_removed(node: ClusterNode) -> bool:
    """Return whether CA or Karpenter takes it away."""
    return any(each.key in (TO_BE_DELETED, DISRUPTED_BY_KARPENTER) for each in node.node.taints)


def _takes_pods(node: ClusterNode) -> bool:
    """Return whether the scheduler binds pods there, and nobody takes it away."""
    cordoned = any(each.key == UNSCHEDULABLE.key for each in node.node.taints)
    return node.ready and not (node.held or cordoned or is_being_removed(node))


class _RequiredSpecs:
    """Specs without preferences, which never prevent a move. Equal pods share one spec, and hashing one costs more than
    all the rest: they are known by identity, while the state is there."""

    def __init__(self) -> None:
        self._known: dict[int, PodSpec] = {}
        self._own: dict[PodSpec, PodSpec] = {}

    def of(self, spec: PodSpec) -> PodSpec:
        """Return one object for equal ones."""
        found = self._known.get(id(spec))
        if found is None:
            bare = without_preferences(spec)
            found = self._known[id(spec)] = self._own.setdefault(bare, bare)
        return found

    def __iter__(self) -> Iterator[PodSpec]:
        return iter(self._own)


def _with_running(snapshot: Snapshot, specs: _RequiredSpecs) -> Iterator[Node]:
    """Yield the nodes with the pods that those that move see by the constraints of either; with none where no
    constraint sees any."""
    state = snapshot.cluster
    for here in state.bound.values():
        for pod in here.reschedulable:
            specs.of(pod.spec)
    for kept in snapshot.placeholders.values():
        for each in kept:
            specs.of(each.spec)
    others = {id(each.spec): each.spec for here in state.bound.values() for each in here.others}
    seen = any(each.host_ports or is_constrained_by_others(each) for each in specs)
    seen = seen or any(each.pod_anti_affinity for each in others.values())
    for node in state.nodes:
        here = state.bound.get(node.node.name, PodsOnNode())
        yield replace(node.node, running=_running(here, specs) if seen else ())


def _running(here: PodsOnNode, specs: _RequiredSpecs) -> tuple[RunningPods, ...]:
    counts: dict[int, tuple[PodSpec, int]] = {}
    for spec, count in (
        *((pod.spec, 1) for pod in here.reschedulable),
        *((each.spec, each.count) for each in here.others),
    ):
        bare = specs.of(spec)
        counts[id(bare)] = bare, counts.get(id(bare), (bare, 0))[1] + count
    return tuple(RunningPods(spec, count) for spec, count in counts.values())


def _by_class(
    pods: Iterable[ReschedulablePod], specs: _RequiredSpecs
) -> Mapping[ClassKey, tuple[ReschedulablePod, ...]]:
    found: dict[tuple[int, int, str | None], tuple[ClassKey, list[ReschedulablePod]]] = {}
    for each in pods:
        spec = specs.of(each.spec)
        alike = id(spec), each.priority, each.gang
        if alike not in found:
            found[alike] = (spec, each.priority, each.gang, False), []
        found[alike][1].append(each)
    return {key: tuple(alike) for key, alike in found.values()}


def _pod_sets(classes: Mapping[ClassKey, tuple[ReschedulablePod, ...]]) -> Iterator[PodSet]:
    for (spec, priority, gang, _), pods in classes.items():
        first = pods[0].ref
        yield PodSet(f"{first.namespace}/{first.name}", spec, len(pods), priority=priority, gang=gang)


def _leaving(state: ClusterState, snapshot: FleetSnapshot) -> Iterator[str]:
    """Yield that nodes are taken away by others while pods still run there, which will need room."""
    going = deleting_instances(snapshot)
    for each in state.nodes:
        if (is_being_removed(each) or each.provider_id in going) and each.movable:
            yield f"node {each.node.name} is being removed and still has pods"


class Observer:
    """Reads fleet and cluster, and makes the question of them; or says why nothing may be begun. For one thread."""

    def __init__(
        self,
        cluster: ClusterView,
        fleet: Fleet,
        settings: ConsolidationSettings,
        assumed: AssumeCache,
        events: EventRecorder,
        now: EpochClock = epoch,
    ) -> None:
        """`now` is the fleet's clock."""
        self._cluster, self._fleet, self._settings = cluster, fleet, settings
        self._assumed, self._events, self._now = assumed, events, now
        self._holds = Holds()
        self.holding: tuple[Hold, ...] = ()

    def __call__(self) -> ConsolidationQuestion | str:
        """Return what is asked now, or why nothing may be begun. Raises Unavailable while the cluster is not known."""
        snapshot, now = self._fleet.snapshot, self._now()
        self.holding = ()
        state = self._cluster.state()
        why = self._why_nothing(state, snapshot) or self._why_nothing_cheaper(state, snapshot, now)
        if why and not must_go(state.nodes, snapshot, self._settings, now).nodes:
            return why
        state = self._cluster.state(with_bound=True)
        going = must_go(state.nodes, snapshot, self._settings, now)
        nothing, held = self._why_nothing(state, snapshot), self._why_nothing_cheaper(state, snapshot, now)
        if nothing or (held and not going.nodes):
            return nothing or held
        return question(self._assumed.snapshot(snapshot, state), self._settings, now, going=going, held=held)

    def _why_nothing(self, state: ClusterState, snapshot: FleetSnapshot) -> str:
        """Return why nothing at all may be begun."""
        problem = self._cluster.problem or self._fleet.problem
        if problem is None and self._assumed.requests.unknown:
            problem = "ProvisioningRequests are not known yet"
        return "; ".join((*((f"the cluster is not known: {problem}",) if problem else ()), *_leaving(state, snapshot)))

    def _why_nothing_cheaper(self, state: ClusterState, snapshot: FleetSnapshot, now: float) -> str:
        """Return why only nodes that must go may be taken away."""
        requests = self._assumed.requests
        coming = increments_in_flight(state, snapshot, {each.uid: namespace_of(each.key) for each in requests.bookings})
        needing = needs(state, snapshot, requests.waiting, self._assumed.left_out, coming)
        self.holding = self._holds.holding(needing, now)
        for note in notes(self.holding, now):
            self._events.event(note)
        return "; ".join(in_words(self.holding))
