"""Where gangs that ask for one topology domain could run: a domain is a number of nodes of each group, with their
resources in one sum."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

from solver.model import (
    HOSTNAME,
    NODES,
    PODS,
    Labels,
    Node,
    NodeGroup,
    Plan,
    PodSpec,
    PreferredDomain,
    Problem,
    Resources,
    Taint,
)
from solver.model.allocation import allocate
from solver.model.capacity import new_node, remaining
from solver.model.devices import Devices
from solver.model.domains import DomainTerm, name_of, one_domain_terms
from solver.model.eligibility import node_label_keys, read_node_names, selects, why_not_eligible
from solver.model.quantities import pluralize
from solver.reduction.reduced import price_micros
from solver.reduction.terms import RunningPodIndex, Sort, Term
from solver.reduction.work import turns_of

_MOST_PAIRS = 40_000
"""Of pod sets and kinds of nodes: for those of gangs beyond it no domains are chosen. Namespaces have equal shares."""
_TERMS_AT_ONCE = 8
"""Of a gang's part, in the time of a pod set."""
_MOST_PER_NODE = 256
_MOST_TOLD = 3
"""Domains in a reason."""
_PLENTY = 2**50
"""Of a resource: enough for everybody, and few enough to be added up."""

Site = tuple[str | None, ...]
"""The value of each topology key that gangs ask for."""
Domains = tuple[tuple[str, str], ...]
"""Topology keys, each with a value."""


@dataclass(frozen=True, slots=True)
class GangPart:
    """Pod sets of a gang that are tied to the same domains."""

    gang: str
    terms: tuple[DomainTerm, ...]
    pod_sets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GangSupply:
    """Equal nodes: `most` new ones of a group, or as many that stand."""

    site: Site
    free: Resources
    devices: tuple[Devices, ...]
    most: int
    takes: frozenset[int]
    """The pod sets that may run there, apart from its size."""
    group: int | None
    """The index of its node group."""
    unknown: frozenset[str] = frozenset()
    """Topology keys of which nobody knows the domains that they will be in."""
    names: tuple[str, ...] = ()
    """Of nodes that stand."""


class GangDomains:
    """The smaller problem."""

    def __init__(
        self,
        problem: Problem,
        terms: Mapping[DomainTerm, Sequence[int]],
        wishes: Mapping[PreferredDomain, Sequence[int]],
    ) -> None:
        """`terms` are the problem's `gang_terms`, `wishes` its `wished_domains`."""
        self.problem, self.terms, self.wishes = problem, terms, wishes
        asked = {key for key, _ in terms} | {wish.term.topology_key for wish in wishes}
        labels = [*(group.labels for group in problem.node_groups), *(node.labels for node in problem.nodes)]
        known = set[str]().union(*labels)
        self.keys = tuple(sorted(asked & known))
        """Those over which there are domains."""
        self._position = {key: position for position, key in enumerate(self.keys)}
        by_unit: defaultdict[tuple[str, tuple[DomainTerm, ...]], list[int]] = defaultdict(list)
        for number in sorted({number for numbers in self.terms.values() for number in numbers}):
            pods = problem.pod_sets[number]
            by_unit[pods.gang or "", one_domain_terms(pods.spec)].append(number)
        tied = {number for numbers in by_unit.values() for number in numbers}
        wishing = {number for numbers in wishes.values() for number in numbers} - tied
        self.asking = tuple(dict.fromkeys(problem.pod_sets[number].spec for number in sorted({*tied, *wishing})))
        units = [GangPart(gang, terms, tuple(numbers)) for (gang, terms), numbers in by_unit.items()]
        self.pod_sets = self._within_share(units, wishing)
        """Those for which domains are chosen."""
        self.wishing = tuple(sorted(wishing & self.pod_sets))
        """Pod sets that ask for nothing more than a wish."""
        units = [each for each in units if self.pod_sets.issuperset(each.pod_sets)]
        self._per_node: dict[tuple[int, int], int] = {}
        self._sites: dict[int, Mapping[Domains, Sequence[int]]] = {}
        self.units = self._in_order(units)
        """The most important gangs first, of equal ones the largest."""

    def _in_order(self, units: Sequence[GangPart]) -> Sequence[GangPart]:
        sets, largest = self.problem.pod_sets, Counter[str]()
        for supply in self.supplies:
            largest |= Counter(supply.free)
        sizes: dict[GangPart, float] = {}
        of_gang, priority = defaultdict[str, float](float), dict[str, int]()
        for unit in units:
            mine = [sets[number] for number in unit.pod_sets]
            sizes[unit] = sum(
                pods.count * max((amount / max(1, largest[name]) for name, amount in pods.spec.requests), default=0.0)
                for pods in mine
            )
            of_gang[unit.gang] += sizes[unit]
            priority[unit.gang] = max(priority.get(unit.gang, mine[0].priority), *(each.priority for each in mine))
        return sorted(units, key=lambda each: (-priority[each.gang], -of_gang[each.gang], each.gang, -sizes[each]))

    def _within_share(self, units: Sequence[GangPart], wishing: AbstractSet[int]) -> frozenset[int]:
        """Return the pod sets that are compared with all kinds of nodes, gangs whole, the largest of a namespace first.
        Nobody's gangs take the place of all others."""
        sets = self.problem.pod_sets
        parts: defaultdict[object, list[int]] = defaultdict(list)
        weights = Counter[object]()
        for unit in units:
            parts[unit.gang] += unit.pod_sets
            weights[unit.gang] += len(unit.pod_sets) + len(unit.terms) // _TERMS_AT_ONCE
        for number in sorted(wishing):
            part: object = number if sets[number].gang is None else sets[number].gang
            parts[part].append(number)
            weights[part] += 1
        largest = sorted(parts, key=lambda of: -sum(sets[number].count for number in parts[of]))
        turns = turns_of(sets[parts[of][0]].spec.namespace for of in largest)
        places = len(self.problem.node_groups) + len(self._standing)
        left, found = _MOST_PAIRS // max(1, places), set[int]()
        for _, of in sorted(zip(turns, largest, strict=True), key=lambda each: each[0]):
            left -= weights[of]
            if left < 0:
                break
            found.update(parts[of])
        return frozenset(found)

    @cached_property
    def _standing(self) -> Sequence[tuple[Node, Sequence[str]]]:
        """Nodes that stand, the first of those that are alike to all gangs, and the names of all of these."""
        labels = sorted(node_label_keys(self.asking))
        by_name = read_node_names(self.asking)
        alike: dict[object, tuple[Node, list[str]]] = {}
        for node in self.problem.nodes:
            if self._counts(self._site(node.labels)):
                seen = self._site(node.labels), tuple(map(node.labels.get, labels)), node.name if by_name else ""
                key = *seen, node.taints, tuple(sorted(self._free(node).items())), node.devices
                alike.setdefault(key, (node, []))[1].append(node.name)
        return tuple(alike.values())

    def _free(self, node: Node) -> Resources:
        """Return what gangs ask for of what is free."""
        return {name: amount for name, amount in node.free.items() if amount and (name == PODS or name in self._asked)}

    @cached_property
    def _asked(self) -> AbstractSet[str]:
        return frozenset(self._resources)

    @cached_property
    def begun_before(self) -> Mapping[str, frozenset[str]]:
        """The domains of each key that have a node, if it has any."""
        return {key: frozenset(n.labels[key] for n in self.problem.nodes if key in n.labels) for key in self.keys}

    @cached_property
    def running(self) -> Mapping[DomainTerm, frozenset[str]]:
        """The domains where pods run already that a term counts: its pods go there. Those of wishes are among them."""
        nodes = self.problem.nodes
        index = RunningPodIndex([each.running for each in nodes])
        wished = ((wish.term.topology_key, wish.term.selector) for wish in self.wishes)
        return {
            (key, selector): frozenset(
                nodes[place].labels[key]
                for place in index.counted(Term(Sort.AFFINITY, key, selector))
                if key in nodes[place].labels
            )
            for key, selector in (*self.terms, *wished)
        }

    @cached_property
    def supplies(self) -> Sequence[GangSupply]:
        """Where the gangs' pods could run."""
        problem = self.problem
        sets = sorted(self.pod_sets)
        specs = [problem.pod_sets[number].spec for number in sets]
        labels = sorted(node_label_keys(specs))
        by_name = read_node_names(specs)
        known: dict[object, frozenset[int]] = {}

        def takes(of: Labels, taints: tuple[Taint, ...], name: str) -> frozenset[int]:
            seen = tuple(map(of.get, labels)), taints, name if by_name else ""
            if seen not in known:
                fine = (why_not_eligible(spec, of, taints, name) is None for spec in specs)
                known[seen] = frozenset(number for number, ok in zip(sets, fine, strict=True) if ok)
            return known[seen]

        found: list[GangSupply] = []
        for index, group in enumerate(problem.node_groups if sets else ()):
            site = self._site(group.labels)
            most = group.max_size - group.target_size
            if most > 0 and self._counts(site):
                node = new_node(group, problem.daemon_sets)
                who = takes(group.labels, group.taints, "")
                if who:
                    found.append(GangSupply(site, node.free, node.devices, most, who, index, _unknown(group)))
        alike: dict[object, tuple[GangSupply, list[str]]] = {}
        for node, names in self._standing if sets else ():
            who = takes(node.labels, node.taints, node.name)
            if who:
                site, free = self._site(node.labels), self._free(node)
                key = site, tuple(sorted(free.items())), node.devices, who
                one = GangSupply(site, free, node.devices, 1, who, None)
                alike.setdefault(key, (one, []))[1].extend(names)
        return [*found, *(replace(one, most=len(names), names=tuple(names)) for one, names in alike.values())]

    def _site(self, labels: Mapping[str, str]) -> Site:
        return tuple(map(labels.get, self.keys))

    def _counts(self, site: Site) -> bool:
        """Return whether nodes there matter: pods that only wish for a domain may go to one in none."""
        return bool(self.wishes) or any(value is not None for value in site)

    def value(self, site: Site, key: str) -> str | None:
        """Return the domain of a site; None where it is in none."""
        position = self._position.get(key)
        return None if position is None else site[position]

    def values_of(self, unit: GangPart, site: Site) -> Domains | None:
        """Return the domains of the unit's keys that a site is in; None where it is in none, or not in that of pods
        that run already."""
        found: dict[str, str] = {}
        for term in unit.terms:
            value = self.value(site, term[0])
            if value is None or (self.running[term] and value not in self.running[term]):
                return None
            found[term[0]] = value
        return tuple(sorted(found.items()))

    def most_per_node(self, pod_set: int, supply: int) -> int:
        """Return how many pods of the set a node of the supply takes at most; 0 where they may not run there."""
        key, of = (pod_set, supply), self.supplies[supply]
        if pod_set not in of.takes:
            return 0
        if key not in self._per_node:
            self._per_node[key] = _pods_per_node(self.problem.pod_sets[pod_set].spec, of)
        return self._per_node[key]

    def sites(self, number: int, *, any_of_alike: bool = False) -> Mapping[Domains, Sequence[int]]:
        """Return the domains that a unit may get, each with its supplies. Of domains that are alike the first units
        choose among the first ones, which loses nothing where no unit is forbidden any."""
        if number in self._sites and not any_of_alike:
            return self._sites[number]
        numbers = {} if any_of_alike else self.alike
        found: defaultdict[Domains, list[int]] = defaultdict(list)
        for index, supply in enumerate(self.supplies):
            values = self.values_of(self.units[number], supply.site)
            if values is not None and all(numbers.get(value, (0, 0))[1] <= number for _, value in values):
                found[values].append(index)
        if not any_of_alike:
            self._sites[number] = found
        return found

    @cached_property
    def alike(self) -> Mapping[str, tuple[int, int]]:
        """Return which domains no plan can tell apart, as far as there are any: without nodes, with equal groups and
        equal limits of their own. Each has the number of its kind and its number among these, from 0."""
        if len(self.keys) != 1 or self.wishes:
            return {}
        (key,) = self.keys
        groups, limits = self.problem.node_groups, self.problem.limits
        domain = {group.id: group.labels.get(key) for group in groups}
        shared = [
            each.node_groups is None or len({domain.get(name) for name in each.node_groups}) > 1 for each in limits
        ]
        classes: defaultdict[object, list[str]] = defaultdict(list)
        for (_, value), mine in self._of_domain.items():
            if value in self.begun_before[key] or any(each.group is None for each in mine):
                continue
            seen = []
            for supply in mine:
                assert supply.group is not None
                group = groups[supply.group]
                bounded = tuple(
                    limit.name if over_others else (tuple(limit.maxima.items()), tuple(limit.used.items()))
                    for limit, over_others in zip(limits, shared, strict=True)
                    if limit.node_groups is None or group.id in limit.node_groups
                )
                price = group.weight, price_micros(group), sorted(group.counted_capacity.items())
                size = sorted(supply.free.items()), supply.devices, supply.most, group.spares
                seen.append((*price, *size, sorted(supply.takes), bounded))
            classes[repr(sorted(seen, key=repr))].append(value)
        return {
            value: (kind, number) for kind, values in enumerate(classes.values()) for number, value in enumerate(values)
        }

    def room(self, key: str, value: str) -> Mapping[str, int]:
        """Return what a domain has in all of the resources that gangs ask for: what its nodes have, and no more than
        the largest of as many as limits allow."""
        new: set[str] = set()
        total, standing, largest = Counter[str](), Counter[str](), Counter[str]()
        for supply in self._of_domain[key, value]:
            free = {name: amount * supply.most for name, amount in supply.free.items()}
            total.update(free)
            if supply.group is None:
                standing.update(free)
            else:
                new.add(self.problem.node_groups[supply.group].id)
                largest |= Counter(supply.free)
        most = min(
            (
                remaining(limit)[NODES]
                for limit in self.problem.limits
                if NODES in limit.maxima and (limit.node_groups is None or new <= limit.node_groups)
            ),
            default=_PLENTY,
        )
        return {name: min(total[name], standing[name] + most * largest[name], _PLENTY) for name in self._resources}

    @cached_property
    def _of_domain(self) -> Mapping[tuple[str, str], Sequence[GangSupply]]:
        found: defaultdict[tuple[str, str], list[GangSupply]] = defaultdict(list)
        for each in self.supplies:
            for key, value in zip(self.keys, each.site, strict=True):
                if value is not None:
                    found[key, value].append(each)
        return found

    @cached_property
    def _resources(self) -> Sequence[str]:
        return sorted({name for spec in self.asking for name, _ in spec.requests})

    @cached_property
    def asked(self) -> Sequence[Mapping[str, int]]:
        """Return what all pods of each unit ask for."""
        totals = [Counter[str]() for _ in self.units]
        for total, unit in zip(totals, self.units, strict=True):
            for number in unit.pod_sets:
                pods = self.problem.pod_sets[number]
                total.update({name: amount * pods.count for name, amount in pods.spec.requests})
        return totals

    def lacking(self, unit: GangPart) -> str:
        """Return for how many of the unit's pods the domains with the most room for them have none, even if they are
        alone; empty where one has room for all."""
        sets = self.problem.pod_sets
        fits: defaultdict[Domains, Counter[int]] = defaultdict(Counter)
        for index, supply in enumerate(self.supplies):
            values = self.values_of(unit, supply.site)
            for number in supply.takes.intersection(unit.pod_sets) if values is not None else ():
                fits[values or ()][number] += self.most_per_node(number, index) * supply.most
        whole = sum(sets[number].count for number in unit.pod_sets)
        lacks = {
            " and ".join(f"{key} {name_of(value)}" for key, value in values): whole
            - sum(min(sets[number].count, fit) for number, fit in of_sets.items())
            for values, of_sets in fits.items()
        }
        first = sorted(lacks.items(), key=lambda each: (each[1], each[0]))[:_MOST_TOLD]
        if not first or first[0][1] <= 0:
            return ""
        (name, lack), *others = first
        more = "".join(f", {name} for {lack}" for name, lack in others)
        return f"no domain has room for all of its {pluralize(whole, 'pod')}: {name} lacks room for {lack}{more}"

    def spread(self, plan: Plan, *, after_cost: bool) -> int | None:
        """Return in how many domains beyond the first a plan has pods that wish for few; None where none do."""
        wishes = [wish for wish in self.wishes if wish.after_cost is after_cost]
        groups = {group.id: group for group in self.problem.node_groups}
        nodes = {node.name: node.labels for node in self.problem.nodes}
        wishing = {each.index: each.spec.preferred_domains for each in plan.pod_classes}
        at: defaultdict[PreferredDomain, set[str | None]] = defaultdict(set)
        unknown = Counter[PreferredDomain]()
        for standing in plan.existing:
            for wish in _wished(wishing, standing.pods):
                at[wish].add(nodes[standing.node].get(wish.term.topology_key))
        for new in plan.nodes:
            group = groups[new.node_group]
            for wish in _wished(wishing, new.pods):
                if wish.term.topology_key in _unknown(group):
                    unknown[wish] += new.count
                else:
                    at[wish].add(group.labels.get(wish.term.topology_key))
        found = 0
        for wish in wishes:
            there = self.running[wish.term.topology_key, wish.term.selector]
            found += max(0, len(at[wish] - there) + unknown[wish] - (not there))
        return found if wishes else None

    def begun(self, plan: Plan) -> int:
        """Return how many domains without a node before a plan puts pods into that ask for one."""
        groups = {group.id: group.labels for group in self.problem.node_groups}
        asking: dict[int, frozenset[str]] = {
            each.index: frozenset(key for key, _ in one_domain_terms(each.spec))
            for each in plan.pod_classes
            if each.gang is not None and each.spec.pod_affinity
        }
        found = {
            (key, groups[nodes.node_group][key])
            for nodes in plan.nodes
            for index, pods in nodes.pods.items()
            for key in asking.get(index, ())
            if pods and key in groups[nodes.node_group]
        }
        return sum(value not in self.begun_before.get(key, ()) for key, value in found)


def _wished(wishing: Mapping[int, Sequence[PreferredDomain]], pods: Mapping[int, int]) -> set[PreferredDomain]:
    """Return what the pods of a node wish for, by class index."""
    return {wish for index, count in pods.items() if count for wish in wishing[index]}


def _unknown(group: NodeGroup) -> frozenset[str]:
    """Return the topology keys of which its nodes come in domains that have no name."""
    return frozenset(group.new_domains.keys if group.new_domains is not None else ())


def _pods_per_node(spec: PodSpec, supply: GangSupply) -> int:
    """Return how many such pods a node takes at most."""
    if spec.host_ports or any(
        term.topology_key == HOSTNAME and selects(term.selector, spec.namespace, dict(spec.labels))
        for term in spec.pod_anti_affinity
    ):
        most = 1
    else:
        most = _MOST_PER_NODE
    most = min(most, *(supply.free.get(name, 0) // amount for name, amount in (*spec.requests, (PODS, 1)) if amount))
    devices, pods = supply.devices, 0
    while spec.claims and pods < most:
        taken = allocate(devices, spec.claims)
        if taken is None:
            return pods
        devices, pods = taken.left(devices), pods + 1
    return most
