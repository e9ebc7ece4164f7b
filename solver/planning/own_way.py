"""The scheduler's own way with a plan: which planned pods may be left without a node.

The kube-scheduler tries a pod on the node that it is nominated to, and where that does not let it in yet, on all
others. A nomination keeps room there from pods of the same or a lower priority, and counts as a pod for who comes to
that node: so of pods that a spread counts only as many are nominated to a node as may come in any order, and the others
go where they are let in. Who comes when is nobody's to say. With one spread each end is as good as any other. With
several, or where pods of a higher priority are not nominated, some orders end where a planned pod has no node.

A plan is played in some orders, each pod on its own node if that lets it in, and else on any that does. In half of them
DaemonSets' pods of new nodes come first: affinity that selects one can then begin no domain of its own. What is looked
at are the filters between pods, NodeAffinity, TaintToleration, NodePorts and NodeResourcesFit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from solver.model import (
    HOSTNAME,
    MayGetStuck,
    Node,
    NodeGroup,
    Plan,
    PodAffinityTerm,
    PodClass,
    PodSelector,
    PodSpec,
    Problem,
    Status,
    TopologySpread,
)
from solver.model.capacity import new_node, unshared
from solver.model.eligibility import selects, why_not_eligible
from solver.reduction.reduced import Bools
from solver.reduction.selecting import PodsByLabel, numbers_of
from solver.verify.claims import required_affinity
from solver.verify.filters import clash, fault
from solver.verify.order import hard_keys, includes
from solver.verify.places import CheckedPlaces

_MOST_NODES, _MOST_PODS = 300, 2_000
"""Above it a plan is not played."""
_MOST_STEPS, _MOST_ORDERS = 10_000, 100
"""Of which one compares a pod with one constraint on a node, and in how many orders a plan is played: what takes more
is played in fewer, or not at all."""
_AT_ONCE = 32
"""Domains of a spread, or nodes that are compared with one in preparation, in the time of a step."""
_MOST_LEFT_OUT = 10
"""Pods of a class that are left out and come in between."""

Domain = int | str


def keys_of_one_domain(nodes: Iterable[Mapping[str, str]]) -> frozenset[str]:
    """Return the topology keys of which all nodes that have them have the same value, from the labels of all nodes."""
    values: dict[str, str] = {}
    several = {HOSTNAME}
    for labels in nodes:
        for key, value in labels.items():
            if values.setdefault(key, value) != value:
                several.add(key)
    return frozenset(values.keys() - several)


def nominated_together(
    pods: Sequence[tuple[PodSpec, int]], of_one_domain: AbstractSet[str] = frozenset()
) -> list[bool]:
    """Return, per pod of one node (its spec and priority), whether it is nominated there beside the others. The
    scheduler counts pods that are nominated to the node it looks at, of the same or a higher priority, as if they were
    there, and those nominated elsewhere as if they were not (RunFilterPluginsWithNominatedPods): of pods that a
    required spread counts, more than its maxSkew would keep each other out for as long as they are nominated. The
    others wait for their turn, which comes as pods are bound. Pods that a spread of their own counts come before all
    others, which they might not be let in beside. A spread over one of the keys `of_one_domain` keeps nobody out:
    what it counts raises its least count too."""
    numbers: dict[tuple[TopologySpread, str], int] = {}
    own = [
        [
            numbers.setdefault((each, spec.namespace), len(numbers))
            for each in spec.topology_spread
            if each.is_required and not (each.topology_key in of_one_domain and each.min_domains <= 1)
        ]
        for spec, _ in pods
    ]
    if not numbers:
        return [True] * len(pods)
    counting = _counting(pods, list(numbers))
    most = np.array([spread.max_skew for spread, _ in numbers])
    counts, kept = np.zeros(len(numbers), dtype=np.int64), np.zeros(len(numbers), dtype=bool)
    """By spread: how many pods it counts, and whether one of this priority has it: those of higher ones do not see
    these pods."""
    found, level = [False] * len(pods), None
    for index in sorted(range(len(pods)), key=lambda each: (-pods[each][1], not counting[each, own[each]].any())):
        if pods[index][1] != level:
            kept, level = np.zeros(len(numbers), dtype=bool), pods[index][1]
        mine = kept.copy()
        mine[own[index]] = True
        after = counts + counting[index]
        if (after <= most)[mine].all():
            counts, kept, found[index] = after, mine, True
    return found


def _counting(pods: Sequence[tuple[PodSpec, int]], spreads: Sequence[tuple[TopologySpread, str]]) -> Bools:
    """Return pods x spreads: whether a spread of pods of that namespace counts the pod where it is nominated."""
    selecting = PodsByLabel((number, spec) for number, (spec, _) in enumerate(pods))
    found = np.zeros((len(pods), len(spreads)), dtype=bool)
    for number, (spread, namespace) in enumerate(spreads):
        if spread.selector.match_expressions is None and spread.selector.namespaces is not None:
            continue  # a missing selector counts nobody, an empty one nominated pods alone
        selector = PodSelector(spread.selector.match_expressions or (), (namespace,))
        found[numbers_of(selecting.mask(selector)), number] = True
    return found


def as_scheduled(problem: Problem, plan: Plan) -> Plan:
    """Return the plan with the pods that may get stuck, if there are any."""
    risks = left_without_node(problem, plan)
    return with_risks(plan, risks) if risks else plan


def with_risks(plan: Plan, left: Mapping[int, int]) -> Plan:
    """Return the plan with the pods that may get stuck, by class. It is not called optimal then: it serves fewer, or
    costs more once these are planned again."""
    risks = (MayGetStuck(index, count, _why(plan.pod_classes[index].spec)) for index, count in sorted(left.items()))
    certificate = replace(plan.certificate, status=Status.FEASIBLE)
    return replace(plan, may_get_stuck=tuple(risks), certificate=certificate)


def _why(spec: PodSpec) -> str:
    keys = sorted(hard_keys(spec))
    if not keys and spec.pod_affinity:
        affinity = " and ".join(dict.fromkeys(f"pod affinity over {term.topology_key}" for term in spec.pod_affinity))
        return f"the pods that its {affinity} needs may come to other nodes first"
    constraints = [f"spread over {key}" for key in keys]
    constraints += dict.fromkeys(f"pod anti-affinity over {term.topology_key}" for term in spec.pod_anti_affinity)
    if not constraints:
        return "pods that wait for their turn, or are left out, may be bound first and keep it from its node"
    return f"its {' and '.join(constraints)} may keep it from every node if the scheduler binds others first"


def left_without_node(problem: Problem, plan: Plan, *, nominated: bool = True, times: int = 1) -> Mapping[int, int]:
    """Return by class how many planned pods have no node in the worst of the orders that were played; nothing where
    each has one in all of them, or where that is not looked at. Without `nominated` no pod is nominated to its node.
    So many `times` as many orders are played as else."""
    if not is_played(problem, plan) or (nominated and not _orders_differ(problem, plan)):
        return {}
    play = _OwnWay(problem, plan, nominated=nominated, most_steps=times * _MOST_STEPS)
    worst: Counter[int] = Counter()
    for number in range(times * _MOST_ORDERS):
        found = play.run(number)
        if play.is_out_of_steps:
            break
        worst = max(worst, found, key=lambda each: each.total())
    return worst


def is_played(problem: Problem, plan: Plan) -> bool:
    """Return whether the plan is small enough to be played in some orders."""
    nodes = len(problem.nodes) + sum(each.count for each in plan.nodes)
    if nodes > _MOST_NODES or sum(each.count for each in plan.pod_classes) > _MOST_PODS:
        return False
    return _preparing(problem, plan, nodes) <= _MOST_STEPS


def _preparing(problem: Problem, plan: Plan, nodes: int) -> int:
    """Return how many steps it takes to compare the specs with nodes and with each other's constraints."""
    specs = dict.fromkeys(each.spec for each in plan.pod_classes)
    running = dict.fromkeys(each.spec for node in problem.nodes for each in node.running)
    spreads = sum(len(spec.topology_spread) for spec in specs)
    terms = spreads + sum(len(spec.pod_affinity) for spec in specs)
    terms += 2 * sum(len(spec.pod_anti_affinity) for spec in {**specs, **running})
    return spreads * (1 + nodes // _AT_ONCE) + (len(specs) + len(running)) * terms // _AT_ONCE


def _orders_differ(problem: Problem, plan: Plan) -> bool:
    """Return whether it matters who comes first. Of a pod with several spreads, or with one where there are pods unlike
    it, it does: the spread may keep it from the node it is nominated to until others are bound, and it may then be
    bound elsewhere. So it does of terms between pods, where some come that the plan has no node for: those that are
    left out, and DaemonSets' pods of new nodes, which a spread may count, too."""
    classes = {each.index: each for each in plan.pod_classes}
    placed = [*(each.pods for each in plan.nodes), *(each.pods for each in plan.existing)]
    mine = [classes[index].spec for index in sorted({index for pods in placed for index in pods})]
    if any(len(hard_keys(spec)) > (len(mine) == 1) for spec in mine):
        return True
    left = [of.spec for of, _ in _left_out(plan)]
    with_daemons = problem.daemon_sets if plan.nodes else ()
    if any(_is_counted(each, spec) for spec in mine for each in with_daemons):
        return True
    return any(
        (spec.pod_affinity and (left or with_daemons)) or (spec.pod_anti_affinity and left) for spec in (*mine, *left)
    )


def _is_counted(daemon: PodSpec, spec: PodSpec) -> bool:
    """Return whether a spread of the spec's counts the pod of a DaemonSet."""
    required = (each for each in spec.topology_spread if each.is_required)
    return any(selects(each.selector, daemon.namespace, dict(daemon.labels)) for each in required)


def _left_out(plan: Plan) -> Iterator[tuple[PodClass, int]]:
    """Yield the classes of pods that are left out and that the scheduler tries all the same, with how many there
    are."""
    classes = {each.index: each for each in plan.pod_classes}
    for each in plan.unplaced:
        of = classes[each.pod_class]
        if of.gang is None and not of.placeholder and not of.spec.unschedulable:
            yield of, each.count


@dataclass(frozen=True, slots=True)
class _PlayedPod:
    """A pod that waits. `host` is the number of the node that it is planned on, None where it is left out."""

    of: PodClass
    host: int | None = None
    nominated: bool = False


def _on_one_node(
    classes: Mapping[int, PodClass], pods: Mapping[int, int], host: int, of_one_domain: AbstractSet[str]
) -> Iterator[_PlayedPod]:
    mine = [classes[index] for index, count in sorted(pods.items()) for _ in range(count)]
    together = nominated_together([(each.spec, each.priority) for each in mine], of_one_domain)
    for of, nominated in zip(mine, together, strict=True):
        yield _PlayedPod(of, host, nominated)


@dataclass(slots=True)
class _PlayedNode:
    """A node that stands, or a new one."""

    number: int
    where: Node | NodeGroup
    name: str
    free: Mapping[str, int]
    """Without pods of the plan."""

    def domain(self, key: str) -> Domain | None:
        return self.number if key == HOSTNAME else self.where.labels.get(key)


@dataclass(slots=True)
class _DomainCounts:
    """How many pods that a selector counts, or that carry a term of anti-affinity, are in each domain of a key."""

    key: str
    selector: PodSelector | None = None
    carriers: tuple[int, ...] = ()
    """The numbers of the specs that carry the term, where it counts these."""
    inside: frozenset[int] | None = None
    """Of a spread: the nodes on which pods are counted at all."""
    of: dict[Domain, int] = field(default_factory=dict)

    def at(self, host: _PlayedNode) -> int:
        """Return how many are in the node's domain."""
        domain = host.domain(self.key)
        return 0 if domain is None else self.of.get(domain, 0)

    def add(self, host: _PlayedNode, pods: int) -> None:
        domain = host.domain(self.key)
        if domain is not None and (self.inside is None or host.number in self.inside):
            self.of[domain] = self.of.get(domain, 0) + pods


@dataclass(slots=True)
class _PodFilters:
    """What the filters between pods look at for the pods of one spec."""

    spreads: list[tuple[TopologySpread, _DomainCounts, bool]]
    """With whether each counts the pod itself."""
    affinity: list[tuple[list[_DomainCounts], bool]]
    """Terms that are taken together, and whether they count the pod itself."""
    apart: list[_DomainCounts]
    """Of anti-affinity: pods that its terms select, and pods whose terms select it."""


@dataclass(slots=True, eq=False)
class _PlayedSpec:
    """What is looked up for pods of one spec. It stands for the spec, which takes long to compare."""

    number: int
    spec: PodSpec
    filters: _PodFilters = field(default_factory=lambda: _PodFilters([], [], []))
    """Of pods that wait."""
    adding: list[_DomainCounts] = field(default_factory=list)
    """What counts the pods."""
    steps: int = 0
    """That it takes to ask whether a node lets one in."""
    may: dict[int, bool] = field(default_factory=dict)
    """By the number of a node: whether its labels, taints and name let them in."""


class _OwnWay:
    def __init__(self, problem: Problem, plan: Plan, *, nominated: bool, most_steps: int) -> None:
        self.steps, self._most_steps = 0, most_steps
        self._classes = {each.index: each for each in plan.pod_classes}
        self._hosts: list[_PlayedNode] = []
        self._pods: list[_PlayedPod] = []
        with_daemons = self._hold(problem, plan)
        if not nominated:
            self._pods = [replace(each, nominated=False) for each in self._pods]
        for of, count in _left_out(plan):
            self._pods += [_PlayedPod(of) for _ in range(min(count, _MOST_LEFT_OUT))]
        waiting = dict.fromkeys(self._classes[index].spec for index in {each.of.index for each in self._pods})
        running = [(host, each) for host in self._hosts if isinstance(host.where, Node) for each in host.where.running]
        others = (*(each.spec for _, each in running), *(daemon for _, daemon in with_daemons))
        played = {spec: _PlayedSpec(number, spec) for number, spec in enumerate(dict.fromkeys((*waiting, *others)))}
        self._specs = [*played.values()]
        self._of_class = {index: played[each.spec] for index, each in self._classes.items() if each.spec in played}
        self._selecting = PodsByLabel((each.number, each.spec) for each in self._specs)
        self._tallies: list[_DomainCounts] = []
        for spec in waiting:
            played[spec].filters = self._filters_of(played[spec])
        self._apart()
        self._note_adding()
        self._daemons = [(host, played[daemon]) for host, daemon in with_daemons if played[daemon].adding]
        """DaemonSets' pods of new nodes, of which `free` has the room taken."""
        self._begin_counts()
        for host, each in running:
            for tally in played[each.spec].adding:
                if not (each.ending and tally.inside is not None):
                    tally.add(host, each.count)
        self._at_first = [dict(each.of) for each in self._tallies]
        for spec in waiting:
            played[spec].steps = self._steps_of(played[spec].filters)

    def _note_adding(self) -> None:
        """Note what counts pods of each spec."""
        for tally in self._tallies:
            for number in self._counted(tally):
                self._specs[number].adding.append(tally)

    def _begin_counts(self) -> None:
        """Have spreads know their domains, with nobody in them."""
        for tally in self._tallies:
            if tally.inside is not None:
                domains = (each.domain(tally.key) for each in self._hosts if each.number in tally.inside)
                tally.of = dict.fromkeys([each for each in domains if each is not None], 0)

    @property
    def is_out_of_steps(self) -> bool:
        return self.steps > self._most_steps

    def _counted(self, tally: _DomainCounts) -> Sequence[int]:
        """Return the numbers of the specs whose pods it counts."""
        return tally.carriers if tally.selector is None else numbers_of(self._selecting.mask(tally.selector))

    def _counts(self, selector: PodSelector, of: _PlayedSpec) -> bool:
        return of.number in self._selecting.selected(selector)

    def _hold(self, problem: Problem, plan: Plan) -> Sequence[tuple[_PlayedNode, PodSpec]]:
        """Note all nodes, with the pods that are planned on each; return DaemonSets' pods of new ones."""
        with_daemons: list[tuple[_PlayedNode, PodSpec]] = []
        places = CheckedPlaces(problem, plan)
        groups = {each.id: each for each in problem.node_groups}
        bare = dict[str, Mapping[str, int]]()
        onto = {each.node: each.pods for each in plan.existing}
        found: list[tuple[NodeGroup | Node, Mapping[str, int], Mapping[int, int]]] = []
        for place in places.all:
            if isinstance(place.where, NodeGroup):
                name = place.where.id
                if name not in bare:
                    bare[name] = new_node(groups[name], problem.daemon_sets).free
                found += [(place.where, bare[name], place.pods)] * place.count
        found += [(node, node.free, onto.get(node.name, {})) for node in problem.nodes]
        alone = keys_of_one_domain(where.labels for where, _, _ in found)
        for number, (where, free, pods) in enumerate(found):
            self._hosts.append(_PlayedNode(number, where, where.name if isinstance(where, Node) else "", free))
            daemons = problem.daemon_sets if isinstance(where, NodeGroup) else ()
            mine = (each for each in daemons if why_not_eligible(each, where.labels, where.taints) is None)
            with_daemons += [(self._hosts[-1], daemon) for daemon in mine]
            here = _on_one_node(self._classes, pods, number, alone)
            self._pods += [each for each in here if not each.of.placeholder]
        return with_daemons

    def _filters_of(self, of: _PlayedSpec) -> _PodFilters:
        spec, spreads = of.spec, []
        keys = hard_keys(spec)
        for spread in (each for each in spec.topology_spread if each.is_required):
            selector = PodSelector(spread.selector.match_expressions, (spec.namespace,))
            inside = frozenset(
                host.number for host in self._hosts if includes(spread, spec, keys, host.where, host.name)
            )
            tally = self._tally(spread.topology_key, selector, inside)
            spreads.append((spread, tally, self._counts(selector, of)))
        together = defaultdict[object, list[PodAffinityTerm]](list)
        for term in required_affinity(spec):
            together[(term.topology_key, term.selector) if term.alone else None].append(term)
        affinity = [
            (
                [self._tally(each.topology_key, each.selector) for each in mine],
                all(self._counts(each.selector, of) for each in mine),
            )
            for mine in together.values()
        ]
        return _PodFilters(spreads, affinity, [])

    @staticmethod
    def _steps_of(filters: _PodFilters) -> int:
        spreads = sum(1 + len(tally.of) // _AT_ONCE for _, tally, _ in filters.spreads)
        return 1 + spreads + sum(len(terms) for terms, _ in filters.affinity) + len(filters.apart)

    def _tally(self, key: str, selector: PodSelector, inside: frozenset[int] | None = None) -> _DomainCounts:
        self._tallies.append(_DomainCounts(key, selector, inside=inside))
        return self._tallies[-1]

    def _apart(self) -> None:
        """Note what anti-affinity looks at, that of pods too which run or come with nodes."""
        carriers: dict[PodAffinityTerm, list[int]] = {}
        for each in self._specs:
            for term in each.spec.pod_anti_affinity:
                carriers.setdefault(term, []).append(each.number)
        for term, numbers in carriers.items():
            selected = self._tally(term.topology_key, term.selector)
            carrying = _DomainCounts(term.topology_key, carriers=tuple(numbers))
            self._tallies.append(carrying)
            for number in numbers:
                self._specs[number].filters.apart.append(selected)
            for number in numbers_of(self._selecting.mask(term.of_running().selector)):
                self._specs[number].filters.apart.append(carrying)

    def run(self, number: int) -> Counter[int]:
        """Return by class the planned pods that have no node in the end, in the order of this number: none where others
        have one in their place, that are left out."""
        random = Random(number)  # noqa: S311 - any orders will do, the same each time
        for tally, counts_at_first in zip(self._tallies, self._at_first, strict=True):
            tally.of = dict(counts_at_first)
        self._free = [dict(host.free) for host in self._hosts]
        self._there: list[list[PodSpec]] = [[] for _ in self._hosts]
        for host, daemon in self._daemons if number % 2 else ():
            self._count(host, daemon, 1)
        self.steps += len(self._daemons) // _AT_ONCE
        waiting = list(self._pods)
        random.shuffle(waiting)
        waiting.sort(key=lambda each: -each.of.priority)
        self._nominated: list[list[_PlayedPod]] = [[] for _ in self._hosts]
        for pod in waiting:
            if pod.nominated and pod.host is not None:
                self._nominated[pod.host].append(pod)
        more = True
        while more and waiting and not self.is_out_of_steps:
            left = [pod for pod in waiting if not self._binds(pod, random)]
            more, waiting = len(left) < len(waiting), left
        stuck = Counter(pod.of.index for pod in waiting if pod.host is not None)
        instead = sum(pod.host is None for pod in self._pods) - sum(pod.host is None for pod in waiting)
        return stuck if stuck.total() > instead else Counter()

    def _binds(self, pod: _PlayedPod, random: Random) -> bool:
        if self.is_out_of_steps:
            return False
        own = pod.host if pod.nominated else None
        if own is not None and self._takes(self._hosts[own], pod):
            return self._bind(self._hosts[own], pod)
        found = [host for host in self._hosts if host.number != own and self._takes(host, pod)]
        return self._bind(random.choice(found), pod) if found else False

    def _bind(self, host: _PlayedNode, pod: _PlayedPod) -> bool:
        if pod.nominated and pod.host is not None:
            self._nominated[pod.host].remove(pod)
        of = self._of_class[pod.of.index]
        self.steps += len(of.adding) // _AT_ONCE
        self._put(host, of, 1)
        self._there[host.number].append(of.spec)
        return True

    # Volumes that pods share take room once for all of a node: the room that they take is not looked at.

    def _put(self, host: _PlayedNode, of: _PlayedSpec, pods: int) -> None:
        free = self._free[host.number]
        for name, amount in unshared(of.spec):
            free[name] = free.get(name, 0) - amount * pods
        self._count(host, of, pods)

    @staticmethod
    def _count(host: _PlayedNode, of: _PlayedSpec, pods: int) -> None:
        for tally in of.adding:
            tally.add(host, pods)

    def _takes(self, host: _PlayedNode, pod: _PlayedPod) -> bool:
        """Return whether the node takes the pod beside those that are nominated to it, and without these."""
        of = self._of_class[pod.of.index]
        self.steps += of.steps
        if host.number not in of.may:
            of.may[host.number] = fault(of.spec, host.where.labels, host.where.taints, host.name) is None
        if not of.may[host.number] or not self._lets_in(host, of, ()):
            return False
        others = [
            self._of_class[each.of.index]
            for each in self._nominated[host.number]
            if each is not pod and each.of.priority >= pod.of.priority
        ]
        if not others:
            return True
        self.steps += of.steps + 2 * sum(len(other.adding) for other in others)
        if self.is_out_of_steps:
            return False  # and nothing is said of this order
        looks = self._looks_between(of)
        for other in others:
            self._put(host, other, 1)
        found = self._lets_in(host, of, others, between=looks)
        for other in others:
            self._put(host, other, -1)
        return found

    @staticmethod
    def _looks_between(of: _PlayedSpec) -> bool:
        """Return whether InterPodAffinity looks at nominated pods. Its PreFilter returns Skip for a pod without terms
        that no term of a bound pod selects, and terms of nominated pods are then not added either."""
        own = of.spec.pod_affinity or of.spec.pod_anti_affinity
        return bool(own) or any(count for each in of.filters.apart for count in each.of.values())

    def _lets_in(
        self, host: _PlayedNode, of: _PlayedSpec, beside: Sequence[_PlayedSpec], *, between: bool = True
    ) -> bool:
        free = self._free[host.number]
        if any(free.get(name, 0) < amount for name, amount in unshared(of.spec)):
            return False
        filters = of.filters
        return (
            all(_within(host, *each) for each in filters.spreads)
            and all(_near(host, *each) for each in filters.affinity)
            and not (between and any(each.at(host) for each in filters.apart))
            and not self._clash(host, of.spec, beside)
        )

    def _clash(self, host: _PlayedNode, spec: PodSpec, beside: Sequence[_PlayedSpec]) -> bool:
        if not spec.host_ports:
            return False
        running = host.where.running if isinstance(host.where, Node) else ()
        others = (*self._there[host.number], *(each.spec for each in beside), *(each.spec for each in running))
        return any(clash(mine, its) for other in others for its in other.host_ports for mine in spec.host_ports)


def _within(host: _PlayedNode, spread: TopologySpread, tally: _DomainCounts, own: bool) -> bool:
    if host.domain(spread.topology_key) is None:
        return False
    level = min(tally.of.values(), default=0) if len(tally.of) >= spread.min_domains else 0
    return tally.at(host) + own - level <= spread.max_skew


def _near(host: _PlayedNode, terms: Sequence[_DomainCounts], own: bool) -> bool:
    if any(host.domain(each.key) is None for each in terms):
        return False
    return all(each.at(host) for each in terms) or (own and not any(any(each.of.values()) for each in terms))
