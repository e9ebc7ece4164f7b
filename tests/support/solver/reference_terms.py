"""Constraints between pods, and preferences, in the exact reference's terms: slots and variables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from solver import Problem
from solver.model import (
    HOSTNAME,
    Devices,
    HostPort,
    NodeGroup,
    PodAffinityTerm,
    PodSpec,
    PreferredNodes,
    PreferredPods,
    Resources,
    RunningPods,
    SharedVolume,
    Taint,
    TopologySpread,
)
from solver.model.eligibility import matches_term, required_affinity, selects, tolerates, why_not_eligible


@dataclass(frozen=True)
class Slot:
    """A place for one node: an existing one, or one that may be opened."""

    free: Resources
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    group: NodeGroup | None
    name: str = ""
    running: tuple[RunningPods, ...] = ()
    ports: tuple[HostPort, ...] = ()
    devices: tuple[Devices, ...] = ()
    daemons: tuple[PodSpec, ...] = ()
    """The DaemonSets' pods of a node that does not exist yet."""
    volumes: frozenset[SharedVolume] = frozenset()
    """Attached already."""


Preference = PreferredPods | PreferredNodes | TopologySpread | None
"""None: taints with PreferNoSchedule."""
Places = Mapping[tuple[int, int, int], cp_model.IntVar]


def preferences(spec: PodSpec) -> list[Preference]:
    """Return preferences in the order in which they are given up."""
    pods = sorted(spec.preferred_pods, key=lambda each: (each.anti, each.weight))
    nodes = sorted(spec.preferred_nodes, key=lambda each: each.weight)
    return [*pods, *nodes, *(s for s in spec.topology_spread if s.when_unsatisfiable == "ScheduleAnyway"), None]


def keeps_on_node(spec: PodSpec, level: int, slot: Slot) -> bool:
    """Return whether a pod that gave up the first `level` preferences may be there, as far as the node matters."""
    for kept in preferences(spec)[level:]:
        match kept:
            case PreferredNodes(_, term):
                empty = not term.match_expressions and not term.match_fields
                if not empty and not matches_term(term, slot.labels, slot.name):
                    return False
            case None:
                for taint in slot.taints:
                    if taint.effect == "PreferNoSchedule" and not any(tolerates(t, taint) for t in spec.tolerations):
                        return False
    return True


def can_use(spec: PodSpec, slot: Slot) -> bool:
    """Return whether all volumes and allocated claims of the pod can be used there."""
    return not spec.unschedulable and all(
        any(matches_term(term, slot.labels, slot.name) for term in terms) for terms in spec.node_terms
    )


class _Terms:
    def __init__(
        self,
        model: cp_model.CpModel,
        problem: Problem,
        slots: Sequence[Slot],
        place: Places,
        opened: Sequence[cp_model.IntVar],
    ) -> None:
        self.model, self.problem, self.slots, self.place, self.opened = model, problem, slots, place, opened
        self.specs = [pods.spec for pods in problem.pod_sets]
        self.homes: dict[PodAffinityTerm, dict[object, cp_model.IntVar]] = {}
        live = [pods.spec for pods in problem.pod_sets if pods.count]
        self.needs = {
            spec: {
                other
                for term in required_affinity(spec)
                if not _counts(term, spec)
                for other in live
                if _counts(term, other)
            }
            for spec in live
        }

    def domain(self, slot: int, key: str) -> object | None:
        return slot if key == HOSTNAME else self.slots[slot].labels.get(key)

    def running(self, term: PodAffinityTerm) -> dict[object, int]:
        found: dict[object, int] = defaultdict(int)
        for s, slot in enumerate(self.slots):
            for pods in slot.running:
                if _counts(term, pods.spec):
                    found[self.domain(s, term.topology_key)] += pods.count
        return {domain: count for domain, count in found.items() if domain is not None}

    def planned(
        self,
        term: PodAffinityTerm,
        domain: object,
        specs: Sequence[PodSpec] | None = None,
        slots: Collection[int] | None = None,
    ) -> list[cp_model.IntVar]:
        chosen = [_counts(term, spec) and (specs is None or spec in specs) for spec in self.specs]
        return [
            v
            for (p, _, s), v in self.place.items()
            if chosen[p] and (slots is None or s in slots) and self.domain(s, term.topology_key) == domain
        ]

    def carriers(self, p: int, level: int, key: str) -> dict[object | None, list[cp_model.IntVar]]:
        """Per domain: pods of the set that gave up so many preferences."""
        found: dict[object | None, list[cp_model.IntVar]] = defaultdict(list)
        for (q, given_up, s), v in self.place.items():
            if (q, given_up) == (p, level):
                found[self.domain(s, key)].append(v)
        return found

    def if_any(self, pods: Sequence[cp_model.IntVar]) -> cp_model.IntVar:
        """1 where there is any."""
        present = self.model.new_bool_var("")
        for v in pods:
            self.model.add(v == 0).only_enforce_if(~present)
        return present

    def of(self, p: int, level: int) -> None:
        spec = self.specs[p]
        for term in required_affinity(spec):
            self.affinity(p, level, term)
        for term in spec.pod_anti_affinity:
            self.anti_affinity(p, level, term)
        hard = (s for s in spec.topology_spread if s.when_unsatisfiable == "DoNotSchedule")
        for kept in (*hard, *preferences(spec)[level:]):
            match kept:
                case PreferredPods(_, term, anti):
                    (self.anti_affinity if anti else self.affinity)(p, level, term)
                case TopologySpread():
                    self.spread(p, level, kept)

    def anti_affinity(self, p: int, level: int, term: PodAffinityTerm) -> None:
        own = _counts(term, self.specs[p])
        running = self.running(term)
        for domain, mine in self.carriers(p, level, term.topology_key).items():
            if domain is not None:
                counted = sum(self.planned(term, domain)) + running.get(domain, 0)
                self.model.add(counted <= int(own)).only_enforce_if(self.if_any(mine))
        self.apart_from_daemons(p, level, term)

    def apart_from_daemons(self, p: int, level: int, term: PodAffinityTerm) -> None:
        """On new nodes, DaemonSets' pods of any new node of the domain come first."""
        with_one = [s for s, slot in enumerate(self.slots) if any(_counts(term, each) for each in slot.daemons)]
        for (q, given_up, s), v in self.place.items() if with_one else ():
            domain = self.domain(s, term.topology_key)
            if (q, given_up) == (p, level) and self.slots[s].group is not None and domain is not None:
                for other in with_one:
                    if self.domain(other, term.topology_key) == domain:
                        self.model.add(v == 0).only_enforce_if(self.opened[other])

    def guard(self, slot: int, term: PodAffinityTerm) -> None:
        """Anti-affinity of a running pod."""
        domain = self.domain(slot, term.topology_key)
        if domain is not None:
            self.model.add(sum(self.planned(term, domain)) == 0)

    def affinity(self, p: int, level: int, term: PodAffinityTerm) -> None:
        running = self.running(term)
        own = _counts(term, self.specs[p])
        together = required_affinity(self.specs[p])
        keys = {each.topology_key for each in together if not each.alone} if term in together else set()
        keys = keys if keys and not term.alone else {term.topology_key}
        started = any(self.running(replace(term, topology_key=key)) for key in keys)
        helpers = [other for other in self.specs if other in self.needs and self.specs[p] not in self.waits(other)]
        for domain, mine in self.carriers(p, level, term.topology_key).items():
            if domain is None:
                self.model.add(sum(mine) == 0)
            elif own and started:
                self.model.add(sum(mine) == 0) if domain not in running else None
            elif own:
                homes = self.homes.setdefault(term, {})
                if domain not in homes:
                    homes[domain] = self.model.new_bool_var("")
                for v in mine:
                    self.model.add(v == 0).only_enforce_if(~homes[domain])
            elif domain not in running:
                helping = sum(self.planned(term, domain, helpers))
                self.model.add(helping >= 1).only_enforce_if(self.if_any(mine))

    def accompany(self, term: PodAffinityTerm, homes: Mapping[object, cp_model.IntVar]) -> None:
        """Pods that a term counts and does not bind may come first: where any is planned, one is in the domain of those
        that it binds."""
        bound = required_affinity if term.topology_key == HOSTNAME else _affinity
        unbound = [spec for spec in self.specs if term not in bound(spec)]
        domains = {self.domain(slot, term.topology_key) for slot in range(len(self.slots))} - {None}
        by_domain = {each: self.planned(term, each, unbound) for each in domains}
        first = self.if_any([pods for mine in by_domain.values() for pods in mine])
        for domain, home in homes.items():
            self.model.add(sum(by_domain[domain]) >= 1).only_enforce_if(home, first)

    def waits(self, spec: PodSpec) -> set[PodSpec]:
        """Classes that a class has to wait for, over however many others."""
        found: set[PodSpec] = set()
        ahead = [spec]
        while ahead:
            new = self.needs[ahead.pop()] - found
            found |= new
            ahead.extend(new)
        return found

    def spread(self, p: int, level: int, spread: TopologySpread) -> None:
        spec = self.specs[p]
        key, hard = spread.topology_key, spread.when_unsatisfiable == "DoNotSchedule"
        term = PodAffinityTerm(key, replace(spread.selector, namespaces=(spec.namespace,)))
        counted = {s for s, slot in enumerate(self.slots) if _counts_node(spec, spread, slot)}
        running: dict[object, int] = defaultdict(int)
        for s in counted:
            for pods in self.slots[s].running:
                if _counts(term, pods.spec) and not pods.ending:
                    running[self.domain(s, key)] += pods.count
        domains = self.spread_domains(spec, spread, counted)
        emptiest = self.model.new_constant(0)
        if len(domains) >= spread.min_domains and domains:
            least = self.model.new_int_var(0, sum(pods.count for pods in self.problem.pod_sets) + 100, "")
            for value in domains:
                planned = 0 if key == HOSTNAME else sum(self.planned(term, value, slots=counted))
                self.model.add(least <= planned + running.get(value, 0))
            emptiest = least
        # Pods that a required spread only counts may come after all that it binds.
        before = [other for other in self.specs if not hard or _is_bound_alike(other, spec, spread)]
        for domain, mine in self.carriers(p, level, key).items():
            if domain is None:
                self.model.add(sum(mine) == 0)
            else:
                there = sum(self.planned(term, domain, before, counted)) + running.get(domain, 0)
                self.model.add(there - emptiest <= spread.max_skew).only_enforce_if(self.if_any(mine))

    def spread_domains(self, spec: PodSpec, spread: TopologySpread, counted: Collection[int]) -> set[object]:
        """Return the domains that a spread counts; over hostnames none where one more node could be empty."""
        key, hard = spread.topology_key, spread.when_unsatisfiable == "DoNotSchedule"
        growing = [
            s for s in counted if (group := self.slots[s].group) is not None and group.target_size < group.max_size
        ]
        if key == HOSTNAME:
            return set() if growing or not hard else {self.domain(s, key) for s in counted}
        able = [s for s in growing if not hard or any(self._could_be(other, s) for other in self._bound(spec, spread))]
        able += [s for s in counted if self.slots[s].group is None]
        return {self.slots[s].labels[key] for s in able if key in self.slots[s].labels}

    def _bound(self, spec: PodSpec, spread: TopologySpread) -> list[PodSpec]:
        live = [pods.spec for pods in self.problem.pod_sets if pods.count]
        return [other for other in live if _is_bound_alike(other, spec, spread)]

    def _could_be(self, spec: PodSpec, s: int) -> bool:
        slot = self.slots[s]
        fits = all(slot.free.get(name, 0) >= asked for name, asked in (*spec.requests, ("pods", 1)))
        return fits and why_not_eligible(spec, slot.labels, slot.taints, slot.name) is None


def _hard_keys(spec: PodSpec) -> set[str]:
    return {s.topology_key for s in spec.topology_spread if s.when_unsatisfiable == "DoNotSchedule"}


def _counts_node(spec: PodSpec, spread: TopologySpread, slot: Slot) -> bool:
    """Return whether a spread counts what is on such a node."""
    keys = _hard_keys(spec) - {HOSTNAME} if spread.when_unsatisfiable == "DoNotSchedule" else set()
    asked = PodSpec(node_selector=spec.node_selector, affinity=spec.affinity)
    selected = why_not_eligible(asked, slot.labels, (), slot.name) is None
    tolerated = why_not_eligible(PodSpec(tolerations=spec.tolerations), {}, slot.taints) is None
    return (
        keys <= slot.labels.keys()
        and (selected or not spread.honor_node_affinity)
        and (tolerated or not spread.honor_node_taints)
    )


def _is_bound_alike(other: PodSpec, spec: PodSpec, spread: TopologySpread) -> bool:
    """Return whether the other one has this spread too, over the same nodes."""
    return (
        spread in other.topology_spread
        and other.namespace == spec.namespace
        and _hard_keys(other) == _hard_keys(spec)
        and (
            (other.node_selector, other.affinity) == (spec.node_selector, spec.affinity)
            or not spread.honor_node_affinity
        )
        and (other.tolerations == spec.tolerations or not spread.honor_node_taints)
    )


def _affinity(spec: PodSpec) -> set[PodAffinityTerm]:
    """Return a pod's terms of affinity, required and preferred."""
    preferred = {each.term for each in spec.preferred_pods if not each.anti}
    return {*required_affinity(spec), *preferred}


def order_matters(problem: Problem) -> bool:
    """Return whether a required spread or affinity counts pods that it does not bind: these may come before those that
    it binds, or after them."""
    specs = [pods.spec for pods in problem.pod_sets if pods.count]
    spreads = (
        _counts(PodAffinityTerm(each.topology_key, replace(each.selector, namespaces=(spec.namespace,))), other)
        and not _is_bound_alike(other, spec, each)
        for spec in specs
        for each in spec.topology_spread
        if each.when_unsatisfiable == "DoNotSchedule"
        for other in specs
    )
    beside = (
        _counts(term, spec) and _counts(term, other) and term not in required_affinity(other)
        for spec in specs
        for term in required_affinity(spec)
        for other in specs
    )
    return any(spreads) or any(beside)


def _counts(term: PodAffinityTerm, spec: PodSpec) -> bool:
    return selects(term.selector, spec.namespace, dict(spec.labels))


def add_terms(
    model: cp_model.CpModel, problem: Problem, slots: Sequence[Slot], place: Places, opened: Sequence[cp_model.IntVar]
) -> None:
    """Add every constraint between pods."""
    terms = _Terms(model, problem, slots, place, opened)
    for p, level in sorted({(p, level) for p, level, _ in place}):
        terms.of(p, level)
    for term, homes in terms.homes.items():
        model.add(sum(homes.values()) <= 1)
        terms.accompany(term, homes)
    for s, slot in enumerate(slots):
        for pods in slot.running:
            for term in pods.spec.pod_anti_affinity:
                terms.guard(s, term)
