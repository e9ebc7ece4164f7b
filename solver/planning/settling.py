"""What remains to be settled of a plan, pod by pod, by the checker's own judgement.

The search keeps rules over domains that say which ends are valid. Where several constraints meet, none of the orders in
which the scheduler may place pods might reach such an end: pods that never get their turn leave the plan. And where the
rules are stricter than the scheduler, or time was up, pods may be left out though it would take them: these are tried
again, on nodes that stand, on those that are planned, and on one more of a group, without their preferences, until
nothing fits. Gangs are served whole or not at all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from solver.model import (
    HOSTNAME,
    Node,
    NodeGroup,
    PlacedOnNode,
    Plan,
    PlannedNodes,
    PodAffinityTerm,
    PodClass,
    PodSet,
    PodSpec,
    Problem,
    Relaxed,
    Resources,
    SharedVolume,
    Unplaced,
)
from solver.model.allocation import allocate
from solver.model.capacity import new_node, remaining, room_of, taken, taken_of_limits, unshared
from solver.model.eligibility import required_terms, selects, why_not_eligible
from solver.model.errors import UncheckedPlanError
from solver.model.objective import Goal, ObjectiveStage, StageValue
from solver.model.plan import ClassKey, class_key
from solver.planning.device_room import DeviceRoom
from solver.planning.reasons import BESIDE_OTHERS
from solver.planning.write_plan import certified, increments
from solver.reduction.objective import dollars
from solver.reduction.reduced import obliged
from solver.reduction.selecting import PodsByLabel
from solver.reduction.terms import avoids_any, preferences, soft_taints, terms_of
from solver.reduction.work import turns_of
from solver.verify.devices import CheckedClaims
from solver.verify.nodes import faults_on_nodes
from solver.verify.order import Stuck, stuck
from solver.verify.places import CheckedPlaces
from solver.verify.terms import faults_in_the_end

_MOST_CHECKS, _MOST_CHECKED, _PER_CLASS = 300, 40_000, 4
"""Plans that are checked for pods that were left out, and what all of them come to: places, constraints, and the
classes that each constraint counts; so much for each class."""
_MOST_LOOKS, _AT_ONCE = 40_000, 16
"""Places that are looked at for pods that were left out, before any plan is checked, and how many conditions or classes
take as long as one."""
_MOST_GROUPS = 20
"""Node groups of which one more node is tried for a class."""
_MOST_LOOKED_FOR_DEVICES, _STEPS_FOR_DEVICES = 20, 200
"""How often it is asked whether devices could be given to all pods of a node, and in how many steps."""
_MOST_WAYS_TRIED = 5_000
"""Ways of giving pods their devices that are looked at for pods that were left out."""
_MOST_CLASSES = 20
"""Classes with preferences up to which each keeps its own where it can, once others give up theirs for a pod."""


def settled(problem: Problem, plan: Plan) -> Plan:
    """Return a plan in which every pod gets its turn, and no pod is left out that was found to have a place."""
    draft = _ChangedPlan(problem, plan)
    dropped = draft.drop_stuck()
    added = False
    if plan.unplaced or dropped:
        completion = _Completion(draft)
        if dropped:
            completion.settle_wishes()
        added = completion.run()
    draft.note_daemons()
    return draft.plan(dropped) if dropped or added or draft.unsure else plan


def with_places(problem: Problem, plan: Plan, nodes: Sequence[PlannedNodes], existing: Sequence[PlacedOnNode]) -> Plan:
    """Return the plan with other places for its pods, and what these come to."""
    placed: Counter[int] = Counter()
    for each in nodes:
        placed.update({index: pods * each.count for index, pods in each.pods.items()})
    for standing in existing:
        placed.update(standing.pods)
    left = ((each.index, each.count - placed[each.index]) for each in plan.pod_classes)
    unplaced = tuple(Unplaced(index, count, ()) for index, count in left if count)
    moved = replace(plan, nodes=tuple(nodes), existing=tuple(existing), unplaced=unplaced)
    return _ChangedPlan(problem, moved).plan({})


@dataclass(slots=True)
class _FilledNodes:
    """Equal nodes of a group, or a node that stands, with the pods of each by class."""

    where: str
    stands: bool
    count: int
    pods: dict[int, int]


@dataclass
class _ChangedPlan:
    """A plan that is changed."""

    problem: Problem
    before: Plan
    places: list[_FilledNodes] = field(init=False)
    left: Counter[int] = field(init=False)
    relaxed: Counter[tuple[int, tuple[str, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        plan = self.before
        self._begin(plan)
        self.left = Counter()
        for unplaced in plan.unplaced:
            self.left[unplaced.pod_class] += unplaced.count
        self.relaxed = Counter()
        for each in plan.relaxed:
            self.relaxed[each.pod_class, each.preferences] += each.count
        self.kept_out: dict[int, set[int]] = {}
        """Classes that are left out so that others find their places, and these."""
        self.left_by_devices: set[int] = set()
        """Classes that are left out as others may be given the devices that they need, or may not."""
        self.let_in_by_daemons: set[int] = set()
        """Classes that are left out and that the scheduler may take beside a DaemonSet's pod of a new node."""
        self.not_tried: set[int] = set()
        """Classes with spreads that are left out, and not tried on all that the plan has: a spread counts domains that
        no node is in, and the scheduler does not."""
        self.groups = {group.id: group for group in self.problem.node_groups}
        self.nodes = {node.name: node for node in self.problem.nodes}
        self._new: dict[str, Resources] = {}

    def free_of_new(self, group: NodeGroup) -> Resources:
        """Return what a new node has beside its DaemonSets' pods."""
        if group.id not in self._new:
            self._new[group.id] = new_node(group, self.problem.daemon_sets).free
        return self._new[group.id]

    @property
    def unsure(self) -> set[int]:
        """Classes that were left out and that the scheduler may take all the same."""
        return self.kept_out.keys() | self.left_by_devices | self.let_in_by_daemons | self.not_tried

    # What stands in the plan

    def written(self) -> Plan:
        """Return the plan with these places, for the checker's view of places alone."""
        totals: Counter[tuple[str, tuple[tuple[int, int], ...]]] = Counter()
        for each in self.places:
            if not each.stands:
                totals[each.where, tuple(sorted(each.pods.items()))] += each.count
        nodes = (PlannedNodes(group, count, dict(pods)) for (group, pods), count in sorted(totals.items()))
        found = (PlacedOnNode(each.where, dict(sorted(each.pods.items()))) for each in self.places if each.stands)
        standing = tuple(sorted((each for each in found if each.pods), key=lambda each: each.node))
        return self.with_relaxed(replace(self.before, nodes=tuple(nodes), existing=standing))

    def with_relaxed(self, plan: Plan) -> Plan:
        """Return the plan with the preferences that are given up now."""
        found = sorted((+self.relaxed).items())
        return replace(plan, relaxed=tuple(Relaxed(index, count, names) for (index, names), count in found))

    def deltas(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for each in self.places:
            if not each.stands:
                found[each.where] += each.count
        return found

    def growing(self) -> Callable[[NodeGroup], bool]:
        """Return whether a group can have one more node beside those that the plan has now."""
        deltas, left = self.deltas(), [dict(remaining(limit)) for limit in self.problem.limits]
        for group_id, nodes in deltas.items():
            for number, resource, amount in self._counted[group_id]:
                left[number][resource] -= amount * nodes

        def grows(group: NodeGroup) -> bool:
            counted = self._counted[group.id]
            beyond = any(left[number][resource] < amount for number, resource, amount in counted)
            return group.target_size + deltas[group.id] < group.max_size and not beyond

        return grows

    @cached_property
    def _counted(self) -> Mapping[str, Sequence[tuple[int, str, int]]]:
        """Return what a node of each group takes of limits, as `taken_of_limits` has it."""
        return {group.id: taken_of_limits(group, self.problem.limits) for group in self.problem.node_groups}

    def drop_stuck(self) -> Counter[int]:
        """Take out pods that no order gets to their places, or less important ones that are in their way, with their
        gangs; return how many of each class."""
        dropped: Counter[int] = Counter()
        while True:
            plan = self.written()
            found = self._stuck(plan)
            if not found:
                return dropped
            kept = Counter(self.left)
            self._begin(plan)
            taken = Counter({index: self._take_out_all(index) for index in self._less_important(found)})
            taken += self._take_out_gangs(taken)
            if not taken or self._stuck(self.written()):
                self.left = kept
                self._begin(plan)
                taken = self._take_out_stuck(plan, found)
                taken += self._take_out_gangs(taken)
            dropped += taken
            self._close_empty()

    def _stuck(self, plan: Plan) -> Stuck:
        priorities = [each.priority for each in self.before.pod_classes]
        return stuck(self.problem, CheckedPlaces(self.problem, plan), priorities)

    def _begin(self, plan: Plan) -> None:
        """Have the places of a plan."""
        self.places = [_FilledNodes(each.node_group, False, each.count, dict(each.pods)) for each in plan.nodes]
        self.places += [_FilledNodes(each.node, True, 1, dict(each.pods)) for each in plan.existing]

    def _less_important(self, found: Stuck) -> list[int]:
        """Return classes that the constraints of the most important stuck one count, and that are less important."""
        classes = self.before.pod_classes
        first = min((classes[index] for index, _ in found), key=_importance)
        spec = first.spec
        counting = [each.selector for each in spec.pod_affinity]
        spreads = (each for each in spec.topology_spread if each.is_required)
        counting += [replace(each.selector, namespaces=(spec.namespace,)) for each in spreads]
        placed = {index for each in self.places for index in each.pods}
        return [
            index
            for index in sorted(placed)
            if _importance(classes[index]) > _importance(first)
            and any(selects(each, classes[index].spec.namespace, dict(classes[index].spec.labels)) for each in counting)
        ]

    def _take_out_stuck(self, plan: Plan, found: Stuck) -> Counter[int]:
        taken: Counter[int] = Counter()
        names = {each.node for each in plan.existing}
        batches = self.places[: len(plan.nodes)]
        by_node = {each.where: each for each in self.places[len(plan.nodes) :]}
        standing = [node.name for node in self.problem.nodes if node.running or node.name in names]
        for (index, at), pods in found.items():
            place = batches[at] if at < len(batches) else by_node[standing[at - len(batches)]]
            taken[index] += self._take_out(place, index, pods)
        return taken

    def _take_out_gangs(self, taken: Mapping[int, int]) -> Counter[int]:
        """Take out what is left of the gangs of those that were taken out."""
        classes = self.before.pod_classes
        gangs = {classes[index].gang for index in taken} - {None}
        return Counter({each.index: self._take_out_all(each.index) for each in classes if each.gang in gangs})

    def note_daemons(self) -> None:
        """Note whom DaemonSets' pods of new nodes might let in, on which plans do not rely."""
        daemons = self.problem.daemon_sets
        for each in self.before.pod_classes if daemons else ():
            if self.left[each.index] and not each.spec.unschedulable:
                mine = [term for term in each.spec.pod_affinity if not term.alone]
                helping = (
                    daemon
                    for daemon in daemons
                    if all(selects(term.selector, daemon.namespace, dict(daemon.labels)) for term in mine)
                )
                if mine and any(self._shares_domain(each.spec, daemon, mine) for daemon in helping):
                    self.let_in_by_daemons.add(each.index)

    def _shares_domain(self, spec: PodSpec, daemon: PodSpec, terms: Sequence[PodAffinityTerm]) -> bool:
        """Return whether a new node with the daemon could be in the domains of one that may take the pod."""
        keys = sorted({term.topology_key for term in terms})
        grow = [each for each in self.problem.node_groups if room_of(each, self.problem.limits)[0] > 0]

        def domains(of: PodSpec, groups: Sequence[NodeGroup]) -> set[tuple[str | None, ...]]:
            return {
                tuple(each.id if key == HOSTNAME else each.labels.get(key) for key in keys)
                for each in groups
                if why_not_eligible(of, each.labels, each.taints) is None
            }

        roomy = [each for each in grow if self._has_room(each, spec)]
        return any(None not in domain for domain in domains(spec, roomy) & domains(daemon, grow))

    def _has_room(self, group: NodeGroup, spec: PodSpec) -> bool:
        free = self.free_of_new(group)
        return all(free.get(resource, 0) >= amount for resource, amount in unshared(spec))

    def _take_out(self, place: _FilledNodes, index: int, pods: int) -> int:
        """Take so many pods of a class from equal nodes; return how many were there."""
        each = place.pods.get(index, 0)
        pods = min(pods, each * place.count)
        whole, rest = divmod(pods, each) if each else (0, 0)
        for nodes, less in ((whole, each), (1, rest)):
            if nodes and less:
                if nodes == place.count:
                    target = place
                else:
                    place.count -= nodes
                    target = _FilledNodes(place.where, place.stands, nodes, dict(place.pods))
                    self.places.append(target)
                target.pods[index] -= less
                if not target.pods[index]:
                    del target.pods[index]
        self.left[index] += pods
        return pods

    def _take_out_all(self, index: int) -> int:
        found = sum(each.pods.pop(index, 0) * each.count for each in self.places)
        self.left[index] += found
        return found

    def _close_empty(self) -> None:
        """Close nodes that are empty now, but those that a group's minimum needs."""
        deltas = self.deltas()
        for each in self.places:
            if not each.stands and not each.pods:
                spare = min(each.count, deltas[each.where] - obliged(self.groups[each.where]))
                if spare > 0:
                    each.count -= spare
                    deltas[each.where] -= spare
        self.places = [each for each in self.places if each.count and (each.pods or not each.stands)]
        placed: Counter[int] = Counter()
        for each in self.places:
            placed.update({index: pods * each.count for index, pods in each.pods.items()})
        # Who has gone is not known by the preferences that it gave up: those stay who gave up most.
        for key in sorted(self.relaxed, key=lambda each: (-len(each[1]), each)):
            self.relaxed[key] = min(self.relaxed[key], placed[key[0]])
            placed[key[0]] -= self.relaxed[key]

    # The result

    def plan(self, dropped: Mapping[int, int]) -> Plan:
        """Return the plan, with what is proven of it."""
        written = self.written()
        opened = increments(written.nodes)
        plan = replace(written, increments=opened, unplaced=tuple(self._unplaced(dropped)))
        served_less = any(dropped.values())
        objective = tuple(self._objective(plan, served_less=served_less))
        return certified(plan, objective)

    def _unplaced(self, dropped: Mapping[int, int]) -> Iterator[Unplaced]:
        for index, count in sorted((+self.left).items()):
            others = [self.before.pod_classes[each] for each in sorted(self.kept_out.get(index, ()))]
            reasons = tuple(_why_kept_out(each) for each in others)
            if index in self.left_by_devices:
                reasons = (BESIDE_OTHERS, *reasons)
            if index in self.let_in_by_daemons:
                reasons = (_BESIDE_DAEMONS, *reasons)
            if dropped.get(index):
                reasons = (_why_stuck(self.before.pod_classes[index].spec), *reasons)
            yield Unplaced(index, count, reasons)

    def _objective(self, plan: Plan, *, served_less: bool) -> Iterator[StageValue]:
        values = {each.stage: each for each in plan.objective}
        wishes = ObjectiveStage(Goal.PREFERENCES)
        if wishes not in values and plan.relaxed:
            goals = list(Goal)
            order = [*values, wishes]
            order.sort(key=lambda each: goals.index(each.goal) if each.goal not in _OF_CLAIMS else -1)
            values = {stage: values.get(stage, StageValue(stage, 0, 0)) for stage in order}
        kept_out: Counter[int] = Counter()
        """By priority."""
        for each in (self.before.pod_classes[index] for index in self.unsure):
            kept_out[each.priority] += 0 if each.placeholder else self.left[each.index]
        for stage, before in values.items():
            value = self._value(stage, plan)
            bound = min(value, before.lower_bound)
            if stage.goal in _OF_CLAIMS and stage.goal is not Goal.WAITING:
                # The scheduler may take them all the same, if it comes to them last.
                bound = max(0, bound - kept_out[stage.key])
            elif served_less and stage.goal is not Goal.PLACEHOLDERS:
                bound = 0
            yield StageValue(stage, value, bound)

    def _value(self, stage: ObjectiveStage, plan: Plan) -> float:
        deltas = {each.node_group: each.delta for each in plan.increments}
        match stage.goal:
            case Goal.UNSERVED:
                return sum(self.left[each.index] for each in self._real[stage.key])
            case Goal.WAITING:
                return sum(self._waited(each) for each in self._real[stage.key])
            case Goal.PLACEHOLDERS:
                return sum(self.left[each.index] for each in self.before.pod_classes if each.placeholder)
            case Goal.PREFERENCES:
                return sum(each.count * len(each.preferences) for each in plan.relaxed)
            case Goal.COST:
                tier = [self.groups[name] for name in deltas if self.groups[name].weight == stage.key]
                return dollars(group.price_usd_per_hour * deltas[group.id] for group in tier)
        previous = self.problem.previous if stage.goal is Goal.CHANGE else None  # else the number of nodes
        before = {} if previous is None else {each.node_group: each.delta for each in previous.increments}
        return sum(abs(deltas.get(name, 0) - before.get(name, 0)) for name in self.groups)

    def _waited(self, of: PodClass) -> int:
        """Return how long the youngest pods of a class have waited, as many as are left out, in seconds."""
        left, total = self.left[of.index], 0
        sets = self._sets[class_key(of)] if left else ()
        for pods in sorted(sets, key=lambda each: each.waiting_seconds):
            taken = min(left, pods.count)
            total, left = total + taken * pods.waiting_seconds, left - taken
        return total

    @cached_property
    def _real(self) -> Mapping[int, Sequence[PodClass]]:
        """Return the classes of each priority, but for placeholders."""
        found: defaultdict[int, list[PodClass]] = defaultdict(list)
        for each in self.before.pod_classes:
            if not each.placeholder:
                found[each.priority].append(each)
        return found

    @cached_property
    def _sets(self) -> Mapping[ClassKey, Sequence[PodSet]]:
        """Return the pod sets of each class."""
        found: defaultdict[ClassKey, list[PodSet]] = defaultdict(list)
        for pods in self.problem.pod_sets:
            found[class_key(pods)].append(pods)
        return found


def _importance(of: PodClass) -> tuple[bool, int]:
    """Return a key: the most important pods come first."""
    return of.placeholder, -of.priority


_OF_CLAIMS = (Goal.UNSERVED, Goal.WAITING)


def _why_stuck(spec: PodSpec) -> str:
    return f"no place was found for it that keeps its {_of_order(spec)}"


_BESIDE_DAEMONS = "its pod affinity counts a DaemonSet's pod, and no plan relies on those of new nodes before they run"


def _why_kept_out(other: PodClass) -> str:
    return f"any place found for it would break the {_of_order(other.spec)} of {other.example}"


def _of_order(spec: PodSpec) -> str:
    """Return the constraints of a pod that depend on which others are there, for people."""
    hard = [each.topology_key for each in spec.topology_spread if each.is_required]
    asked = [f"spread over {key}" for key in dict.fromkeys(hard)]
    asked += [f"pod affinity over {key}" for key in dict.fromkeys(term.topology_key for term in spec.pod_affinity)]
    return " and ".join(asked)


def _looked_at(classes: Sequence[PodClass]) -> int:
    """Return what a check looks at: the classes, and their constraints, each with the classes that it counts."""
    selecting = PodsByLabel((each.index, each.spec) for each in classes)
    found = _PER_CLASS * len(classes)
    for spec in (each.spec for each in classes):
        wished = [each.term for each in preferences(spec, soft_taints=False)]
        terms = [*terms_of(spec), *(term for term in wished if term is not None)]
        found += sum(1 + selecting.mask(term.selector).bit_count() for term in terms)
        found += len(spec.preferred_nodes) + len(spec.tolerations) + len(spec.host_ports)
    return found


def _conditions(spec: PodSpec) -> int:
    """Return how much a node is compared with."""
    terms = (len(term.match_expressions) + len(term.match_fields) for term in required_terms(spec))
    return sum(terms) + len(spec.tolerations) + len(spec.node_selector)


class _Completion:
    """Tries pods that were left out on what the plan has."""

    def __init__(self, draft: _ChangedPlan) -> None:
        self._draft = draft
        self._problem = draft.problem
        self._checks = self._looks = 0
        self._looked_for_devices = 0
        self._device_room = DeviceRoom([each.spec for each in self._classes])
        self._looked_at = _looked_at(self._classes)
        of_groups = (taint for group in self._problem.node_groups for taint in soft_taints(group.taints))
        of_nodes = (taint for node in self._problem.nodes for taint in soft_taints(node.taints))
        self._soft = {*of_groups, *of_nodes}
        self._wishes = [self._wished(each.spec) for each in self._classes]
        """Names of preferences, by class."""

    def run(self) -> bool:
        """Return whether a pod was found a place."""
        draft, found = self._draft, False
        left = [each for each in draft.before.pod_classes if draft.left[each.index]]
        tried = {each.unit for each in left if self._is_tried(each)}
        classes = [each for each in left if each.unit in tried]
        # Real pods first, the most important ones before all others, and namespaces in turns: nobody's pods use up what
        # is tried for all.
        turns = turns_of(each.spec.namespace for each in classes)
        order = {each.index: turn for each, turn in zip(classes, turns, strict=True)}
        classes.sort(key=lambda each: (*_importance(each), order[each.index], each.index))
        units: dict[object, list[PodClass]] = {}
        for each in classes:
            units.setdefault(each.unit, []).append(each)
        more = bool(units)
        while more:  # who finds a place may be what another one has waited for
            placed = [self._place_unit(each) for each in units.values()]
            more = any(placed)
            found |= more
        if not self._affords():
            draft.not_tried.update(each.index for each in classes if each.spec.topology_spread)
        return found

    def settle_wishes(self) -> None:
        """Let those give up preferences that cannot keep them without pods that were taken out."""
        plan = self._draft.written()
        places = CheckedPlaces(self._problem, plan)
        if not self._passes(plan, places):
            self._passes_against_wishes(plan, places)

    def _is_tried(self, of: PodClass) -> bool:
        spec = of.spec
        if spec.unschedulable:
            return False
        unproven = self._draft.before.certificate.unserved_unproven
        return bool(unproven or spec.claims) or self._depends_on_others

    @cached_property
    def _depends_on_others(self) -> bool:
        """Whether it matters to a pod which others are there."""
        return any(each.spec.topology_spread or each.spec.pod_affinity for each in self._classes)

    def _place_unit(self, members: Sequence[PodClass]) -> bool:
        """Place pods of a class, or all of a gang; return whether there was a place."""
        if not self._affords():
            return False
        draft, whole = self._draft, members[0].gang is not None
        before = draft.places, Counter(draft.left), Counter(draft.relaxed)
        placed = more = self._place_each(members)
        while whole and more:  # each turn opens one more node of a group
            more = self._place_each(members)
        if whole and any(each.gang == members[0].gang and draft.left[each.index] for each in self._classes):
            draft.places, draft.left, draft.relaxed = before
            return False
        return placed

    def _place_each(self, members: Sequence[PodClass]) -> bool:
        placed = [self._place(each) for each in members if self._draft.left[each.index]]
        return any(placed)

    @property
    def _classes(self) -> Sequence[PodClass]:
        return self._draft.before.pod_classes

    def _place(self, of: PodClass) -> bool:
        draft = self._draft
        before = draft.left[of.index]
        # Others give their wishes up rather than that a pod is left out.
        for against_wishes in (False, True) if any(self._wishes) else (False,):
            if not self._affords():
                break
            known, more = [*draft.places, *self._bare_nodes()], [*self._more_nodes(of.spec)]
            places = [(each, False) for each in known] + [(each, True) for each in more]
            looks = (len(places) + len(draft.groups)) * (1 + _conditions(of.spec) // _AT_ONCE)
            self._looks += looks + len(self._classes) // _AT_ONCE
            opened = False
            for place, is_new in places:
                if not draft.left[of.index] or not self._affords():
                    break
                if is_new and opened and not draft.growing()(draft.groups[place.where]):
                    continue  # the one before has what limits allowed
                opened |= self._try(of, place, against_wishes=against_wishes) and is_new
        return draft.left[of.index] < before

    def _affords(self) -> bool:
        most = min(_MOST_CHECKS, _MOST_CHECKED // (1 + len(self._draft.places) + self._looked_at))
        return self._checks < max(most, 2) and self._looks < _MOST_LOOKS

    def _bare_nodes(self) -> Iterator[_FilledNodes]:
        used = {each.where for each in self._draft.places if each.stands}
        yield from (_FilledNodes(node.name, True, 1, {}) for node in self._problem.nodes if node.name not in used)

    def _more_nodes(self, spec: PodSpec) -> Iterator[_FilledNodes]:
        """Yield one more node of each group that may have one, the preferred and cheapest first."""
        grows = self._draft.growing()
        groups = (
            each for each in self._groups if grows(each) and why_not_eligible(spec, each.labels, each.taints) is None
        )
        yield from (_FilledNodes(group.id, False, 1, {}) for group in islice(groups, _MOST_GROUPS))

    @cached_property
    def _groups(self) -> Sequence[NodeGroup]:
        """Return the node groups, the preferred and cheapest first."""
        groups = self._problem.node_groups
        return sorted(groups, key=lambda each: (-each.weight, each.price_usd_per_hour, each.id))

    def _try(self, of: PodClass, place: _FilledNodes, *, against_wishes: bool) -> bool:
        """Place as many pods of the class as are taken there; return whether any is."""
        pods = self._room(of, place)
        while pods and self._affords():
            if self._takes(of, place, pods, against_wishes=against_wishes):
                return True
            pods //= 2
        return False

    def _room(self, of: PodClass, place: _FilledNodes) -> int:
        """Return how many pods of the class that are left out one of the nodes has room for, as far as labels,
        resources, and numbers of devices say."""
        draft, where = self._draft, self._where(place)
        free = where.free if isinstance(where, Node) else draft.free_of_new(where)
        if any(free.get(name, 0) < amount for name, amount in unshared(of.spec)):
            return 0  # most are told so, and sooner
        most = self._device_room.more(where.devices, of.index, place.pods, draft.left[of.index])
        name = where.name if isinstance(where, Node) else ""
        if not most or why_not_eligible(of.spec, where.labels, where.taints, name) is not None:
            return 0
        there = where.volumes if isinstance(where, Node) else frozenset[SharedVolume]()
        beside = [(self._classes[index].spec, pods) for index, pods in place.pods.items()]
        left = Counter(dict(free))
        left.subtract(taken(beside, there))
        there = there.union(*(spec.shared_volumes for spec, _ in beside))
        first = Counter(resource for resource, _ in frozenset(of.spec.shared_volumes) - there)
        if any(left[resource] < amount for resource, amount in first.items()):
            return 0
        left.subtract(first)
        return max(0, min(most, *(left[resource] // amount for resource, amount in unshared(of.spec) if amount)))

    def _where(self, place: _FilledNodes) -> Node | NodeGroup:
        return self._draft.nodes[place.where] if place.stands else self._draft.groups[place.where]

    def _takes(self, of: PodClass, place: _FilledNodes, pods: int, *, against_wishes: bool) -> bool:
        """Place so many pods on one of the nodes, if the checker lets that pass."""
        draft = self._draft
        before, relaxed = list(draft.places), Counter(draft.relaxed)
        rest = [replace(place, count=place.count - 1)] if place.count > 1 else []
        there = {**place.pods, of.index: place.pods.get(of.index, 0) + pods}
        filled = _FilledNodes(place.where, place.stands, 1, there)
        draft.places = [each for each in draft.places if each is not place] + [*rest, filled]
        names = self._wishes[of.index]
        if names:
            draft.relaxed[of.index, names] += pods
        plan = draft.written()
        places = CheckedPlaces(self._problem, plan)
        passes = self._passes_against_wishes if against_wishes else self._passes
        fits = self._fits(places)
        if not (fits and passes(plan, places) and self._gets_its_turn(of, places)):
            draft.places, draft.relaxed = before, relaxed
            known = of.index in draft.left_by_devices
            if not (fits or known) and pods == 1 and of.spec.claims and self._may_find_devices(filled):
                draft.left_by_devices.add(of.index)
            return False
        draft.left[of.index] -= pods
        return True

    @cached_property
    def _claims(self) -> CheckedClaims:
        """What is known of claims on the nodes of the plan."""
        found = CheckedClaims([each.spec for each in self._classes])
        if any(each.spec.claims for each in self._classes):
            with suppress(UncheckedPlanError):
                next(faults_on_nodes(self._problem, CheckedPlaces(self._problem, self._draft.written()), found), None)
            found.look_at_most(_MOST_WAYS_TRIED)
        return found

    def _fits(self, places: CheckedPlaces) -> bool:
        self._checks += 1
        try:
            return next(faults_on_nodes(self._problem, places, self._claims), None) is None
        except UncheckedPlanError:
            return False

    def _may_find_devices(self, filled: _FilledNodes) -> bool:
        """Return whether the claims of all pods of a node can be met at once, by whatever devices."""
        if self._looked_for_devices >= _MOST_LOOKED_FOR_DEVICES:
            return True
        self._looked_for_devices += 1
        pods = ((self._classes[index].spec.claims, count) for index, count in sorted(filled.pods.items()))
        return (
            allocate(
                self._where(filled).devices,
                [claim for claims, count in pods for claim in claims * count],
                _STEPS_FOR_DEVICES,
            )
            is not None
        )

    def _gets_its_turn(self, of: PodClass, places: CheckedPlaces) -> bool:
        """Return whether some order gets all pods there. If none does, note whom the pod, if it came last, would be let
        in beside, and who would not be let in beside it."""
        self._checks += 1
        priorities = [each.priority for each in self._classes]
        if not stuck(self._problem, places, priorities):
            return True
        self._checks += 1
        priorities[of.index] = min(priorities) - 1
        found = {index for index, _ in stuck(self._problem, places, priorities, all_count=True)}
        if found and of.index not in found:
            self._draft.kept_out.setdefault(of.index, set()).update(found)
        return False

    def _wished(self, spec: PodSpec) -> tuple[str, ...]:
        return tuple(each.name for each in preferences(spec, soft_taints=avoids_any(spec, self._soft)))

    def _passes(self, plan: Plan, places: CheckedPlaces) -> bool:
        self._checks += 1
        return next(faults_in_the_end(self._problem, plan, places), None) is None

    def _passes_against_wishes(self, plan: Plan, places: CheckedPlaces) -> bool:
        """Return whether it passes once others give up their preferences, and let those do so that have to."""
        draft = self._draft
        kept = Counter(draft.relaxed)
        wishes = {index: names for index in sorted(places.placed) if (names := self._wishes[index])}
        draft.relaxed = Counter({(index, names): places.placed[index] for index, names in wishes.items()})
        if not self._passes(draft.with_relaxed(plan), places):
            return False
        for index in wishes if len(wishes) < _MOST_CLASSES else ():
            all_given_up = draft.relaxed
            mine = {key: count for key, count in kept.items() if key[0] == index}
            draft.relaxed = Counter({key: n for key, n in all_given_up.items() if key[0] != index} | mine)
            if not self._passes(draft.with_relaxed(plan), places):
                draft.relaxed = all_given_up
        return True
