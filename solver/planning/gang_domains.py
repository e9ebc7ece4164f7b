"""Gangs that ask for one topology domain: which one each gets, decided for all of them at once before any pod has a
place.

The search places pods, and learns late that a gang's pods have to be together. So domains are chosen by a smaller
problem, in which a domain is a number of nodes of each group with their resources in one sum: it serves the gangs of
the highest priority, then costs the least, then begins the fewest domains that are empty, so that large gangs find
whole ones later. Its answer is planned like any other problem, of pods that may run in these domains only, and the
better plan is taken. What the smaller problem proves of the domains that are begun holds for all plans, as it forbids
nothing that a plan may do.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from ortools.sat.python import cp_model

from solver.model import (
    HOSTNAME,
    NODES,
    PODS,
    Labels,
    Node,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    Plan,
    PodSet,
    PodSpec,
    PreferredDomain,
    Problem,
    Requirement,
    Resources,
    Taint,
    Unplaced,
)
from solver.model.allocation import allocate
from solver.model.budget import RunningBudget
from solver.model.capacity import new_node, remaining
from solver.model.devices import Devices
from solver.model.domains import (
    MOST_NEW_DOMAINS,
    DomainTerm,
    folded,
    gang_terms,
    name_of,
    one_domain_terms,
    wished_domains,
    with_new_domains,
)
from solver.model.eligibility import node_label_keys, read_node_names, selects, why_not_eligible
from solver.model.errors import UncheckedPlanError
from solver.model.objective import Goal, ObjectiveStage, StageValue
from solver.model.quantities import pluralize
from solver.planning.progress import SILENT, SearchProgress
from solver.planning.spares import with_spares
from solver.planning.write_plan import as_asked, certified
from solver.reduction.objective import breaks_ties
from solver.reduction.reduced import price_micros
from solver.reduction.terms import RunningPodIndex, Sort, Term
from solver.reduction.work import replaced, turns_of
from solver.relaxation.cp_sat import FEASIBLE, Model, new_solver, solve_within
from solver.verify.check import faults_of

_APART_SHARE, _CHOOSE_SHARE, _AGAIN_SHARE, _PLAN_SHARE, _SEARCH_SHARE, _BOUND_SHARE = 0.1, 0.4, 0.1, 0.1, 0.3, 0.05
"""Of the time: for a plan of gangs that need not be together; for choosing domains, the first time and again; for each
plan with them; for the problem as it is; and for a bound of the domains that are begun."""
_STAGE_SHARE = 0.8
"""Of what is left of the time for choosing, for one stage before the last."""
_MOST_CHOICES = 3
"""Plans with chosen domains: what the smaller problem took to fit and a plan does not is forbidden in the next."""
_MOST_PAIRS = 20_000
"""Of pod sets and kinds of nodes: for those of gangs beyond it no domains are chosen. Namespaces have equal shares."""
_TERMS_AT_ONCE = 8
"""Of a gang's part, in the time of a pod set."""
_MOST_PER_NODE = 256
_MOST_TOLD = 3
"""Domains in a reason."""
_TOLERANCE = 1e-9
_PLENTY = 2**50
"""Of a resource: enough for everybody, and few enough to be added up."""

Site = tuple[str | None, ...]
"""The value of each topology key that gangs ask for."""
Domains = tuple[tuple[str, str], ...]
"""Topology keys, each with a value."""


@dataclass(frozen=True, slots=True)
class _GangPart:
    """Pod sets of a gang that are tied to the same domains."""

    gang: str
    terms: tuple[DomainTerm, ...]
    pod_sets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Supply:
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
        units = [_GangPart(gang, terms, tuple(numbers)) for (gang, terms), numbers in by_unit.items()]
        self.pod_sets = self._within_share(units, wishing)
        """Those for which domains are chosen."""
        self.wishing = tuple(sorted(wishing & self.pod_sets))
        """Pod sets that ask for nothing more than a wish."""
        units = [each for each in units if self.pod_sets.issuperset(each.pod_sets)]
        self.units = sorted(units, key=lambda each: -sum(problem.pod_sets[number].count for number in each.pod_sets))

    def _within_share(self, units: Sequence[_GangPart], wishing: AbstractSet[int]) -> frozenset[int]:
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
    def _standing(self) -> Sequence[tuple[Node, int]]:
        """Nodes that stand, the first of those that are alike to all gangs, and how many these are."""
        labels = sorted(node_label_keys(self.asking))
        by_name = read_node_names(self.asking)
        alike: dict[object, tuple[Node, int]] = {}
        for node in self.problem.nodes:
            if self._counts(self._site(node.labels)):
                seen = self._site(node.labels), tuple(map(node.labels.get, labels)), node.name if by_name else ""
                key = *seen, node.taints, tuple(sorted(self._free(node).items())), node.devices
                one, count = alike.get(key, (node, 0))
                alike[key] = one, count + 1
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
    def supplies(self) -> Sequence[_Supply]:
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

        found: list[_Supply] = []
        for index, group in enumerate(problem.node_groups if sets else ()):
            site = self._site(group.labels)
            most = group.max_size - group.target_size
            if most > 0 and self._counts(site):
                node = new_node(group, problem.daemon_sets)
                who = takes(group.labels, group.taints, "")
                if who:
                    found.append(_Supply(site, node.free, node.devices, most, who, index, _unknown(group)))
        alike: dict[object, tuple[_Supply, int]] = {}
        for node, nodes in self._standing if sets else ():
            who = takes(node.labels, node.taints, node.name)
            if who:
                site, free = self._site(node.labels), self._free(node)
                key = site, tuple(sorted(free.items())), node.devices, who
                one, count = alike.get(key, (_Supply(site, free, node.devices, 1, who, None), 0))
                alike[key] = one, count + nodes
        return [*found, *(replace(one, most=count) for one, count in alike.values())]

    def _site(self, labels: Mapping[str, str]) -> Site:
        return tuple(map(labels.get, self.keys))

    def _counts(self, site: Site) -> bool:
        """Return whether nodes there matter: pods that only wish for a domain may go to one in none."""
        return bool(self.wishes) or any(value is not None for value in site)

    def value(self, site: Site, key: str) -> str | None:
        """Return the domain of a site; None where it is in none."""
        position = self._position.get(key)
        return None if position is None else site[position]

    def values_of(self, unit: _GangPart, site: Site) -> Domains | None:
        """Return the domains of the unit's keys that a site is in; None where it is in none, or not in that of pods
        that run already."""
        found: dict[str, str] = {}
        for term in unit.terms:
            value = self.value(site, term[0])
            if value is None or (self.running[term] and value not in self.running[term]):
                return None
            found[term[0]] = value
        return tuple(sorted(found.items()))

    @cached_property
    def alike(self) -> Mapping[str, int]:
        """Return of domains that no plan can tell apart their numbers, from 0, as far as there are any: without nodes,
        with equal groups and equal limits of their own."""
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
        return {value: number for values in classes.values() for number, value in enumerate(values)}

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
    def _of_domain(self) -> Mapping[tuple[str, str], Sequence[_Supply]]:
        found: defaultdict[tuple[str, str], list[_Supply]] = defaultdict(list)
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

    def lacking(self, unit: _GangPart) -> str:
        """Return for how many of the unit's pods the domains with the most room for them have none, even if they are
        alone; empty where one has room for all."""
        sets = self.problem.pod_sets
        fits: defaultdict[Domains, Counter[int]] = defaultdict(Counter)
        for supply in self.supplies:
            values = self.values_of(unit, supply.site)
            for number in supply.takes.intersection(unit.pod_sets) if values is not None else ():
                fits[values or ()][number] += _per_node(sets[number].spec, supply) * supply.most
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


@dataclass(frozen=True, slots=True)
class _ChosenDomains:
    """What the smaller problem comes to."""

    units: Mapping[int, Domains]
    """The domains of those that are served."""
    split: Mapping[int, Mapping[Site, int]]
    """Of pod sets that only wish for a domain: how many pods are at which site."""
    opened: Mapping[int, int]
    """Of node groups that have spares: how many nodes are opened."""

    def __bool__(self) -> bool:
        return bool(self.units or self.split)


class _Model:
    """What CP-SAT is asked."""

    def __init__(self, of: GangDomains, forbidden: frozenset[tuple[int, Domains]] = frozenset()) -> None:
        """Of domains that are alike the first units choose among the first ones, as long as none is forbidden."""
        self.of = of
        numbers = {} if forbidden else of.alike
        self.model = Model()
        problem, model = of.problem, self.model
        wishing = (problem.pod_sets[number].gang for number in of.wishing)
        names = dict.fromkeys((*(unit.gang for unit in of.units), *(gang for gang in wishing if gang is not None)))
        self.gangs = {gang: model.new_bool_var("") for gang in names}
        self.at: dict[int, dict[Domains, cp_model.IntVar]] = {}
        self.opened = [model.new_int_var(0, supply.most, "") for supply in of.supplies]
        placed: defaultdict[int, dict[int, cp_model.IntVar]] = defaultdict(dict)
        self.placed = placed
        """By supply and pod set."""
        for number, unit in enumerate(of.units):
            sites: defaultdict[Domains, list[int]] = defaultdict(list)
            for index, supply in enumerate(of.supplies):
                values = of.values_of(unit, supply.site)
                if values is None or (number, values) in forbidden:
                    continue
                if all(numbers.get(value, 0) <= number for _, value in values):
                    sites[values].append(index)
            chosen = self.at[number] = {values: model.new_bool_var("") for values in sites}
            model.add(sum(chosen.values()) == self.gangs[unit.gang])
            for values, supplies in sites.items():
                for pod_set in unit.pod_sets:
                    count = problem.pod_sets[pod_set].count
                    here: list[cp_model.IntVar] = []
                    for index in supplies:
                        here += self._place(pod_set, index)
                    model.add(sum(here) == count * chosen[values])
        self.served = dict(self._serve())
        self._same_domain()
        wishes = {wish: of.pod_sets.intersection(numbers) for wish, numbers in of.wishes.items()}
        self.spread = {wish: self._spread(wish, sorted(numbers)) for wish, numbers in wishes.items() if numbers}
        self._fill(placed)
        self._limit()
        self._begin()

    def _place(self, pod_set: int, index: int) -> Iterator[cp_model.IntVar]:
        """Yield how many pods of the set are on nodes of this supply, where any can be."""
        supply, pods = self.of.supplies[index], self.of.problem.pod_sets[pod_set]
        each = _per_node(pods.spec, supply) if pod_set in supply.takes else 0
        if each:
            var = self.placed[index][pod_set] = self.model.new_int_var(0, min(pods.count, each * supply.most), "")
            self.model.add(var <= each * self.opened[index])
            yield var

    def _serve(self) -> Iterator[tuple[int, cp_model.LinearExprT]]:
        """Yield how many pods are served of each set that only wishes for a domain."""
        for number in self.of.wishing:
            pods = self.of.problem.pod_sets[number]
            keys = {wish.term.topology_key for wish in pods.spec.preferred_domains}
            known = (index for index, each in enumerate(self.of.supplies) if keys.isdisjoint(each.unknown))
            here = [var for index in known for var in self._place(number, index)]
            if pods.gang is None:
                self.model.add(sum(here) <= pods.count)
                yield number, sum(here)
            else:
                self.model.add(sum(here) == pods.count * self.gangs[pods.gang])
                yield number, pods.count * self.gangs[pods.gang]

    def _spread(self, wish: PreferredDomain, pod_sets: Sequence[int]) -> cp_model.LinearExprT:
        """Return in how many domains beyond the first the pods are."""
        of, key = self.of, wish.term.topology_key
        there = of.running[key, wish.term.selector]
        by_value: defaultdict[str | None, list[cp_model.IntVar]] = defaultdict(list)
        for index, of_sets in self.placed.items():
            value = of.value(of.supplies[index].site, key)
            by_value[value] += [of_sets[number] for number in pod_sets if number in of_sets]
        used = []
        for value, mine in by_value.items():
            if value not in there and mine:
                used.append(self.model.new_bool_var(""))
                for var in mine:
                    self.model.add(var == 0).only_enforce_if(~used[-1])
        if there or not used:
            return sum(used)
        first = self.model.new_bool_var("")
        self.model.add(first <= sum(used))
        return sum(used) - first

    def split(self, value: Callable[[cp_model.IntVar], int]) -> Mapping[int, Mapping[Site, int]]:
        """Return how many pods are at which site, of each set that only wishes for a domain."""
        found: defaultdict[int, Counter[Site]] = defaultdict(Counter)
        for index, of_sets in self.placed.items():
            for number in self.of.wishing:
                if number in of_sets and value(of_sets[number]):
                    found[number][self.of.supplies[index].site] += value(of_sets[number])
        return found

    def _same_domain(self) -> None:
        """Tie the units of a gang that share a term to one of its domains (a block, of which each has its rack)."""
        of = self.of
        tied: defaultdict[DomainTerm, list[int]] = defaultdict(list)
        for number, unit in enumerate(of.units):
            for term in unit.terms:
                tied[term].append(number)
        for term, mine in tied.items():
            if len(mine) < 2:
                continue
            by_value: defaultdict[str, list[cp_model.IntVar]] = defaultdict(list)
            for number in mine:
                for values, chosen in self.at[number].items():
                    by_value[dict(values)[term[0]]].append(chosen)
            here = {value: self.model.new_bool_var("") for value in by_value}
            self.model.add_at_most_one(here.values())
            for value, chosen_here in by_value.items():
                for chosen in chosen_here:
                    self.model.add(chosen <= here[value])

    def _fill(self, placed: Mapping[int, Mapping[int, cp_model.IntVar]]) -> None:
        """Keep what nodes have, resource by resource, and of pods that ask for the same their number on a node."""
        sets = self.of.problem.pod_sets
        for index, of_sets in placed.items():
            supply, nodes = self.of.supplies[index], self.opened[index]
            alike: defaultdict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
            sums: defaultdict[str, list[tuple[int, cp_model.IntVar]]] = defaultdict(list)
            for number, var in of_sets.items():
                spec = sets[number].spec
                alike[spec.requests].append(number)
                for name, amount in (*spec.requests, (PODS, 1)):
                    sums[name].append((amount, var))
            for numbers in alike.values():
                if len(numbers) > 1:
                    each = max(_per_node(sets[number].spec, supply) for number in numbers)
                    self.model.add(sum(of_sets[number] for number in numbers) <= each * nodes)
            for name, parts in sums.items():
                if len(parts) > 1:
                    unit = math.gcd(supply.free.get(name, 0), *(amount for amount, _ in parts)) or 1
                    total = sum((amount // unit) * var for amount, var in parts)
                    self.model.add(total <= (supply.free.get(name, 0) // unit) * nodes)

    def _limit(self) -> None:
        """Keep the limits."""
        problem = self.of.problem
        for limit in problem.limits:
            left = remaining(limit)
            parts: defaultdict[str, list[tuple[int, cp_model.IntVar]]] = defaultdict(list)
            for supply, nodes in zip(self.of.supplies, self.opened, strict=True):
                if supply.group is not None:
                    counted = limit.counted(problem.node_groups[supply.group])
                    for name in left.keys() & counted.keys():
                        parts[name].append((counted[name], nodes))
            for name, mine in parts.items():
                unit = math.gcd(*(amount for amount, _ in mine)) or 1
                self.model.add(sum((amount // unit) * nodes for amount, nodes in mine) <= left[name] // unit)

    def _begin(self) -> None:
        """Know which domains are begun, and keep what each has in all, which follows from the rest and is seen sooner
        so."""
        chosen: defaultdict[tuple[str, str], list[tuple[int, cp_model.IntVar]]] = defaultdict(list)
        for number, of_unit in self.at.items():
            for values, var in of_unit.items():
                for each in values:
                    chosen[each].append((number, var))
        self.begun = []
        for (key, value), mine in chosen.items():
            here: cp_model.IntVar | int = 1
            if value not in self.of.begun_before[key]:
                here = self.model.new_bool_var("")
                self.begun.append(here)
                for _, var in mine:
                    self.model.add(var <= here)
            for name, most in self.of.room(key, value).items():
                asked = [(self.of.asked[number].get(name, 0), var) for number, var in mine]
                unit = math.gcd(most, *(amount for amount, _ in asked)) or 1
                if any(amount for amount, _ in asked):
                    self.model.add(sum(amount // unit * var for amount, var in asked) <= most // unit * here)

    def _spares(self) -> Iterator[cp_model.LinearExprT]:
        """Yield how many spares find no room, of each group of which nodes are opened."""
        for supply, nodes in zip(self.of.supplies, self.opened, strict=True):
            spares = 0 if supply.group is None else self.of.problem.node_groups[supply.group].spares
            if spares:
                used, lacking = self.model.new_bool_var(""), self.model.new_int_var(0, spares, "")
                self.model.add(nodes <= supply.most * used)
                self.model.add(nodes + spares * used <= supply.most + lacking)
                yield lacking

    def pods(self, priority: int) -> cp_model.LinearExprT:
        """Return how many pods of a priority are served."""
        sets = self.of.problem.pod_sets
        parts: list[cp_model.LinearExprT] = [
            sum(sets[number].count for number in unit.pod_sets if sets[number].priority == priority)
            * self.gangs[unit.gang]
            for unit in self.of.units
        ]
        parts += [pods for number, pods in self.served.items() if sets[number].priority == priority]
        return sum(parts)

    def cost(self, weight: int) -> cp_model.LinearExprT:
        """Return the cost of new nodes of a weight, in millionths of $/h."""
        groups = self.of.problem.node_groups
        return sum(
            price_micros(groups[supply.group]) * nodes
            for supply, nodes in zip(self.of.supplies, self.opened, strict=True)
            if supply.group is not None and groups[supply.group].weight == weight
        )

    def stages(self) -> Iterator[cp_model.LinearExprT]:
        """Yield what is to be small, the most important first."""
        sets, groups = self.of.problem.pod_sets, self.of.problem.node_groups
        for priority in sorted({sets[number].priority for number in self.of.pod_sets}, reverse=True):
            yield -1 * self.pods(priority)
        wishes = self.spread
        if any(not wish.after_cost for wish in wishes):
            yield sum(spread for wish, spread in self.spread.items() if not wish.after_cost)
        lacking = list(self._spares())
        if lacking:
            yield sum(lacking)
        for weight in sorted({groups[supply.group].weight for supply in self.of.supplies if supply.group is not None}):
            yield self.cost(weight)
        if any(wish.after_cost for wish in wishes):
            yield sum(spread for wish, spread in self.spread.items() if wish.after_cost)
        yield sum(self.begun)

    def choose(self, budget: RunningBudget) -> _ChosenDomains:
        """Return the best choice that is found; empty where there is none."""
        stages = list(self.stages())
        found = _ChosenDomains({}, {}, {})
        solver = new_solver()
        for number, stage in enumerate(stages):
            self.model.minimize(stage)
            left = budget.left_seconds() * (_STAGE_SHARE if number + 1 < len(stages) else 1)
            if solve_within(self.model, solver, budget, left) not in FEASIBLE:
                return found
            found = _ChosenDomains(
                {
                    number: values
                    for number, chosen in self.at.items()
                    for values, var in chosen.items()
                    if solver.value(var)
                },
                self.split(lambda var: round(solver.value(var))),
                {
                    supply.group: solver.value(nodes)
                    for supply, nodes in zip(self.of.supplies, self.opened, strict=True)
                    if supply.group is not None and self.of.problem.node_groups[supply.group].spares
                },
            )
            self.model.add(stage <= round(solver.objective_value))
            self.model.clear_hints()  # type: ignore[no-untyped-call]
            for var in (*self.gangs.values(), *self.opened, *(v for of in self.at.values() for v in of.values())):
                self.model.add_hint(var, solver.value(var))
        return found

    def least(self, goal: Goal, budget: RunningBudget, seconds: float) -> int:
        """Return what DOMAINS or SPREAD comes to at least where every pod is served."""
        for served in self.gangs.values():
            self.model.add(served == 1)
        for number, pods in self.served.items():
            self.model.add(pods == self.of.problem.pod_sets[number].count)
        spread = sum(each for wish, each in self.spread.items() if not wish.after_cost)
        self.model.minimize(sum(self.begun) if goal is Goal.DOMAINS else spread)
        solver = new_solver()
        status = solve_within(self.model, solver, budget, seconds)
        return max(0, math.ceil(solver.best_objective_bound - 1e-6)) if status in FEASIBLE else 0


def _wished(wishing: Mapping[int, Sequence[PreferredDomain]], pods: Mapping[int, int]) -> set[PreferredDomain]:
    """Return what the pods of a node wish for, by class index."""
    return {wish for index, count in pods.items() if count for wish in wishing[index]}


def _unknown(group: NodeGroup) -> frozenset[str]:
    """Return the topology keys of which its nodes come in domains that have no name."""
    return frozenset(group.new_domains.keys if group.new_domains is not None else ())


def _per_node(spec: PodSpec, supply: _Supply) -> int:
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


def _pinned(of: GangDomains, choice: _ChosenDomains) -> tuple[Problem, dict[PodSpec, PodSpec]]:
    """Return the problem of pods that may run in the domains that are chosen for them only, and ask for no company; and
    the specs that are asked for, by those that are planned instead."""
    before = {_apart(spec): spec for spec in of.asking}
    unit_of = {pod_set: number for number in choice.units for pod_set in of.units[number].pod_sets}
    found: list[PodSet] = []
    for number, pods in enumerate(of.problem.pod_sets):
        pinned: list[tuple[tuple[Requirement, ...], int]] = []
        if number in unit_of:
            here = tuple(Requirement(key, Operator.IN, (value,)) for key, value in choice.units[unit_of[number]])
            pinned.append((here, pods.count))
        for site, count in choice.split.get(number, {}).items():
            here = tuple(
                Requirement(key, Operator.DOES_NOT_EXIST) if value is None else Requirement(key, Operator.IN, (value,))
                for key, value in zip(of.keys, site, strict=True)
            )
            pinned.append((here, count))
        parts = [([there], count) for there, count in pinned]
        left = pods.count - sum(count for _, count in pinned)
        if pinned and left:  # in no further domain, where they could take the room of others
            parts.append(([there for there, _ in pinned], left))
        for sites, count in parts:
            found.append(replace(pods, spec=_only_in(pods.spec, sites), count=count))
            before[found[-1].spec] = pods.spec
        if not pinned:
            found.append(replace(pods, spec=_apart(pods.spec)) if number in of.pod_sets else pods)
    groups = (
        replace(group, max_size=_most_beside_spares(group, choice.opened.get(number, 0)))
        for number, group in enumerate(of.problem.node_groups)
    )
    return replace(of.problem, pod_sets=tuple(found), node_groups=tuple(groups)), before


def _most_beside_spares(group: NodeGroup, opened: int) -> int:
    """Return how many nodes the group may have for pods where so many are opened for gangs."""
    return max(group.target_size + opened, group.max_size - group.spares) if opened else group.max_size


def _only_in(spec: PodSpec, there: Sequence[tuple[Requirement, ...]]) -> PodSpec:
    return replace(_apart(spec), node_terms=(*spec.node_terms, tuple(map(NodeSelectorTerm, there))))


Search = Callable[[Problem, RunningBudget, SearchProgress], Plan]


def in_gang_domains(problem: Problem, budget: RunningBudget, search: Search, progress: SearchProgress) -> Plan:
    """Return the best plan of a problem with gangs that ask for one domain each, with the domains that it begins as a
    stage of its objective. `search` plans a problem as it is.

    What a plan costs at least is proven for gangs that need not be together, which is planned first. Where no choice of
    domains serves as many, the problem itself is searched, too."""
    terms, wishes = gang_terms(problem), wished_domains(problem)
    keys = {key for key, _ in terms} | {wish.term.topology_key for wish in wishes}
    whole = with_new_domains(problem, keys, MOST_NEW_DOMAINS if wishes else len(terms))
    of = GangDomains(whole, terms, wishes)  # which has the same pods
    apart = search(replaced(problem, {each: _apart(each) for each in of.asking}), _part(budget, _APART_SHARE), SILENT)
    proven = [apart]
    best = _best_choice(of, proven, budget, search)
    if best is None or _serves_less(best):
        wished = {each: replace(each, preferred_domains=()) for each in of.asking if each.preferred_domains}
        found = search(replaced(whole, wished), _rest(budget), progress)
        found = as_asked(whole, found, {planned: spec for spec, planned in wished.items()}) if wished else found
        proven.append(found)
        best = _better(of, best, found, proven) or _with_stage(of, found, proven)
    if of.pod_sets and not best.unplaced and budget.affords(1, _BOUND_SHARE):
        bounding = _part(budget, _BOUND_SHARE)
        goals = [Goal.DOMAINS] * bool(terms) + [Goal.SPREAD] * bool(of.spread(best, after_cost=False))
        seconds = bounding.total_seconds / max(1, len(goals))
        least = {goal: _Model(of).least(goal, bounding, seconds) for goal in goals}
        best = _with_stage(of, best, proven, least)
    return folded(problem, with_spares(whole, _with_lacks(of, best)))


def _with_lacks(of: GangDomains, plan: Plan) -> Plan:
    """Return the plan with what domains lack among the reasons of gangs that are left out."""
    told: dict[tuple[str, PodSpec], str] = {}
    left = {plan.pod_classes[each.pod_class].gang for each in plan.unplaced}
    for unit in of.units:
        why = of.lacking(unit) if unit.gang in left else ""
        told.update(((unit.gang, of.problem.pod_sets[number].spec), why) for number in unit.pod_sets if why)
    if not told:
        return plan

    def of_class(each: Unplaced) -> Unplaced:
        mine = plan.pod_classes[each.pod_class]
        why = told.get((mine.gang or "", mine.spec))
        return replace(each, reasons=(*each.reasons, why)) if why else each

    return replace(plan, unplaced=tuple(map(of_class, plan.unplaced)))


def _part(budget: RunningBudget, share: float) -> RunningBudget:
    return RunningBudget(budget.next_plan(share))


def _rest(budget: RunningBudget) -> RunningBudget:
    """Return what is left for the search, less what bounding the domains may take."""
    left = budget.left_seconds() / budget.total_seconds if budget.total_seconds else 0.0
    return _part(budget, _SEARCH_SHARE if budget.deterministic else max(0.0, left - _BOUND_SHARE))


def _best_choice(of: GangDomains, proven: Sequence[Plan], budget: RunningBudget, search: Search) -> Plan | None:
    """Return the best plan with chosen domains; None where there is none."""
    best: Plan | None = None
    if not of.pod_sets:
        return None
    forbidden: frozenset[tuple[int, Domains]] = frozenset()
    for number in range(_MOST_CHOICES):
        share = _AGAIN_SHARE if number else _CHOOSE_SHARE
        if not budget.affords(1, _PLAN_SHARE + share):
            break
        choice = _Model(of, forbidden).choose(_part(budget, share))
        if not choice:
            break
        pinned, before = _pinned(of, choice)
        found = search(pinned, _part(budget, _PLAN_SHARE), SILENT)
        other = as_asked(of.problem, found, before)
        best = _better(of, best, other, proven)
        left = {other.pod_classes[each.pod_class].gang for each in other.unplaced}
        failed = {(n, values) for n, values in choice.units.items() if of.units[n].gang in left}
        if not failed or (best is not None and not _is_open(best)):
            break
        forbidden |= failed
    return best


def _serves_less(plan: Plan) -> bool:
    """Return whether a plan that serves more is not ruled out."""
    served = (Goal.UNSERVED, Goal.WAITING, Goal.PLACEHOLDERS)
    return any(each.value > each.lower_bound for each in plan.objective if each.stage.goal in served)


def _is_open(plan: Plan) -> bool:
    """Return whether a better plan is not ruled out."""
    return any(each.value > each.lower_bound for each in plan.objective if not breaks_ties(each.stage))


def _apart(spec: PodSpec) -> PodSpec:
    """Return the spec of pods that need not be together."""
    left = tuple(
        term
        for term in spec.pod_affinity
        if term.topology_key == HOSTNAME or not selects(term.selector, spec.namespace, dict(spec.labels))
    )
    return replace(spec, pod_affinity=left, preferred_domains=())


def _better(of: GangDomains, best: Plan | None, other: Plan, proven: Sequence[Plan]) -> Plan | None:
    """Return the better plan; `other` only where the checker passes it."""
    other = _with_stage(of, other, proven)
    try:
        if any(faults_of(of.problem, other)):
            return best
    except UncheckedPlanError:  # whose pods are left out is decided for the plan that is taken
        return best
    return other if best is None or other.vector < best.vector else best


def _with_stage(
    of: GangDomains, plan: Plan, proven: Sequence[Plan], least: Mapping[Goal, int] = MappingProxyType({})
) -> Plan:
    """Return the plan with the stages of domains, of which `least` says what is proven, and with what other plans
    prove: that holds for every plan that is no worse than they are in the stages before."""
    bounds: defaultdict[ObjectiveStage, float] = defaultdict(float)
    values = {each.stage: each.value for each in plan.objective}
    for other in proven:
        for each in other.objective:
            bounds[each.stage] = max(bounds[each.stage], each.lower_bound)
            if values.get(each.stage, math.inf) > each.value + _TOLERANCE:
                break
    ours = {Goal.SPREAD: of.spread(plan, after_cost=False), Goal.SPREAD_AFTER_COST: of.spread(plan, after_cost=True)}
    ours[Goal.DOMAINS] = of.begun(plan) if of.terms else None
    found = [
        StageValue(ObjectiveStage(goal), value, min(value, least.get(goal, 0)))
        for goal, value in ours.items()
        if value is not None
    ]
    found += [
        replace(each, lower_bound=min(each.value, bounds[each.stage]))
        for each in plan.objective
        if each.stage.goal not in ours
    ]
    goals = list(Goal)
    objective = sorted(found, key=lambda each: _place(goals, each.stage))  # which keeps the order within a goal
    return certified(plan, objective)


def _place(goals: Sequence[Goal], stage: ObjectiveStage) -> int:
    """Return where a stage is in the objective: those of pods come together, priority by priority."""
    return 0 if stage.goal in (Goal.UNSERVED, Goal.WAITING) else goals.index(stage.goal)
