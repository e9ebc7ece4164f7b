"""A first choice of topology domains, gang by gang, which is improved by taking a few gangs out and putting them back
in another order: what CP-SAT's model (`domain_choice`) starts from, and the answer where there is no time for more. It
keeps whatever that model keeps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from random import Random

from solver.model import PODS, PodSpec
from solver.model.budget import RunningBudget
from solver.model.capacity import remaining, taken_of_limits
from solver.model.domains import DomainTerm
from solver.planning.domain_supply import Domains, GangDomains, GangPart, GangSupply
from solver.reduction.reduced import price_micros

_MOST_TRIED = 24
"""Domains that one part of a gang is tried in: of those that have a node, and of those that have none."""
_MOST_MOVED = 6
"""Gangs that are taken out at once."""
_MOST_ROUNDS = 2000
_SECONDS_PER_ROUND = 2e-3
"""What a round is charged under a deterministic budget."""


@dataclass(slots=True, eq=False)
class PackedNode:
    """A node with pods, by the number of their pod set."""

    free: dict[str, int]
    pods: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class _Filled:
    """A supply, and its nodes that have pods."""

    supply: GangSupply
    price_micros: int
    weight: int
    counted: Sequence[tuple[int, str, int]]
    """(limit, resource, what one node counts) of the limits on it."""
    nodes: list[PackedNode] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Put:
    """Pods of a set that were put to nodes of a supply."""

    supply: int
    pod_set: int
    pods: int
    on: Sequence[tuple[PackedNode, int]]
    new_nodes: int
    """How many of the nodes had no pods."""


@dataclass(frozen=True, slots=True)
class _Gang:
    """What a gang has been given."""

    domains: Mapping[int, Domains]
    """By the number of its part."""
    puts: Sequence[_Put]


class FirstDomains:
    """Gangs with domains and room in them."""

    def __init__(self, of: GangDomains) -> None:
        self._of = of
        self._limits = [dict(remaining(limit)) for limit in of.problem.limits]
        self._filled = [self._empty(supply) for supply in of.supplies]
        self._weights = sorted({each.weight for each in self._filled})
        self._costs: Counter[int] = Counter()
        """By weight."""
        self._pods: Counter[int] = Counter()
        """By priority: those that have a domain."""
        sets = of.problem.pod_sets
        self._requests = {number: _requests(sets[number].spec) for number in of.pod_sets}
        """By pod set."""
        self._priorities = sorted({sets[number].priority for number in of.pod_sets}, reverse=True)
        self._users = Counter((key, value) for key, values in of.begun_before.items() for value in values)
        """By domain: nodes that stand there count one, and each part of a gang."""
        self._gangs = [list(units) for _, units in groupby(enumerate(of.units), key=lambda each: each[1].gang)]
        self._served: dict[int, _Gang] = {}
        """By the number of the gang."""
        self._serve(range(len(self._gangs)))

    @property
    def at(self) -> Mapping[int, Domains]:
        """Return the domains of the parts of gangs that have any."""
        return {number: values for gang in self._served.values() for number, values in gang.domains.items()}

    @property
    def placed(self) -> Mapping[tuple[int, int], int]:
        """Return how many pods there are of each supply and pod set."""
        found: Counter[tuple[int, int]] = Counter()
        for gang in self._served.values():
            for put in gang.puts:
                found[put.supply, put.pod_set] += put.pods
        return found

    @property
    def opened(self) -> Sequence[int]:
        """Return how many nodes are opened of each supply."""
        return [len(each.nodes) for each in self._filled]

    @property
    def nodes(self) -> Sequence[tuple[GangSupply, Sequence[PackedNode]]]:
        """Return the nodes of each supply that have pods."""
        return [(each.supply, each.nodes) for each in self._filled if each.nodes]

    def improve(self, budget: RunningBudget) -> None:
        """Serve more gangs, or the same ones at less cost or in fewer domains, until the budget is used."""
        chance = Random(1)  # noqa: S311 - the same every time
        of_domain: defaultdict[Domains, set[int]] = defaultdict(set)
        for number, gang in self._served.items():
            for values in gang.domains.values():
                of_domain[values].add(number)
        for _ in range(_MOST_ROUNDS if len(self._served) > 1 else 0):
            if budget.left_seconds() <= 0:
                break
            budget.charge(_SECONDS_PER_ROUND)
            served, moved = list(self._served), set[int]()
            for _ in range(2):
                first = chance.choice(served)
                beside = sorted(of_domain[chance.choice(list(self._served[first].domains.values()))])
                moved |= {first, *chance.sample(beside, min(len(beside), chance.randint(0, _MOST_MOVED // 2)))}
            self._again(sorted(moved), chance, of_domain)

    def _again(self, moved: Sequence[int], chance: Random, of_domain: defaultdict[Domains, set[int]]) -> None:
        """Take gangs out and put them back in another order, and whoever had no domain; undo that where it is worse."""
        before, value = {number: self._served[number] for number in moved}, self.value
        for number in moved:
            self._take_out(number)
        waiting = [number for number in range(len(self._gangs)) if number not in self._served and number not in before]
        order = [*moved]
        chance.shuffle(order)
        self._serve([*order, *waiting[:_MOST_MOVED]])
        if self.value > value:
            for number in (*moved, *waiting[:_MOST_MOVED]):
                self._take_out(number)
            for number, gang in before.items():
                self._put_in(number, gang)
            return
        for number, gang in before.items():
            for values in gang.domains.values():
                of_domain[values].discard(number)
        for number in (*moved, *waiting[:_MOST_MOVED]):
            for values in self._served[number].domains.values() if number in self._served else ():
                of_domain[values].add(number)

    @property
    def value(self) -> tuple[Sequence[int], Sequence[int], int]:
        """Return what is to be small, as in the model's stages: pods without a domain, cost, domains that are begun."""
        begun = sum(1 for users in self._users.values() if users)
        return [-self._pods[each] for each in self._priorities], [self._costs[each] for each in self._weights], begun

    def _empty(self, supply: GangSupply) -> _Filled:
        if supply.group is None:
            return _Filled(supply, 0, 0, ())
        group = self._of.problem.node_groups[supply.group]
        counted = taken_of_limits(group, self._of.problem.limits)
        return _Filled(supply, price_micros(group), group.weight, counted)

    def _serve(self, gangs: Sequence[int]) -> None:
        """Give the parts of each gang that has none their domains, or none of them any."""
        for number in gangs:
            if number not in self._served:
                found = self._best_of_gang(self._gangs[number])
                if found is not None:
                    self._put_in(number, found)

    def _best_of_gang(self, units: Sequence[tuple[int, GangPart]]) -> _Gang | None:
        """Return what each part costs least with, after those before it; nothing is changed."""
        domains: dict[int, Domains] = {}
        puts: list[_Put] = []
        tied: dict[DomainTerm, str] = {}
        for number, unit in units:
            best = self._best(unit, self._of.sites(number), tied)
            if best is None:
                break
            domains[number], mine = best
            for put in mine:
                self._put(put)
            puts += mine
            tied.update((term, dict(domains[number])[term[0]]) for term in unit.terms)
        self._undo(puts)
        return _Gang(domains, puts) if len(domains) == len(units) else None

    def _best(
        self, unit: GangPart, sites: Mapping[Domains, Sequence[int]], tied: Mapping[DomainTerm, str]
    ) -> tuple[Domains, Sequence[_Put]] | None:
        """Return the domains where the unit costs the least, of equal ones those that begin the fewest."""
        held = {term[0]: tied[term] for term in unit.terms if term in tied}
        may = [values for values in sites if all(dict(values).get(key) == value for key, value in held.items())]
        new = {values: sum(not self._users[each] for each in values) for values in may}
        found: tuple[tuple[object, ...], Domains, Sequence[_Put]] | None = None
        begun = (values for values in may if not new[values])
        others = {self._kind(values): values for values in reversed(may) if new[values]}
        for values in (*islice(begun, _MOST_TRIED), *islice(reversed(others.values()), _MOST_TRIED)):
            puts = self._tried(unit, sites[values])
            if puts is None:
                continue
            cost = *self._cost(puts), new[values]
            if found is None or cost < found[0]:
                found = cost, values, puts
        return None if found is None else found[1:]

    def _kind(self, values: Domains) -> object:
        """Return what tells domains apart that have no node."""
        return tuple(self._of.alike.get(value, (value, 0))[0] for _, value in values)

    def _cost(self, puts: Sequence[_Put]) -> tuple[int, ...]:
        """Return what they cost, the lowest weight first."""
        costs: Counter[int] = Counter()
        for put in puts:
            filled = self._filled[put.supply]
            costs[filled.weight] += put.new_nodes * filled.price_micros
        return tuple(costs[weight] for weight in self._weights)

    def _tried(self, unit: GangPart, supplies: Sequence[int]) -> Sequence[_Put] | None:
        """Return where all pods of the unit are put in a domain: on the cheapest nodes, or, if the domain has too few
        of them, on those that hold most. None if they do not fit."""
        if any(
            self._room_for(pod_set, supplies) < self._of.problem.pod_sets[pod_set].count for pod_set in unit.pod_sets
        ):
            return None  # were it empty, and for those of one spec: most are told so, and sooner
        found = self._filled_with(unit, supplies, self._price)
        return found or (self._filled_with(unit, supplies, self._nodes) if len(supplies) > 1 else None)

    def _room_for(self, pod_set: int, supplies: Sequence[int]) -> int:
        of = self._of
        return sum(of.most_per_node(pod_set, index) * of.supplies[index].most for index in supplies)

    def _price(self, put: _Put) -> float:
        return self._filled[put.supply].price_micros * put.new_nodes / put.pods

    def _nodes(self, put: _Put) -> float:
        return 1.0 / self._of.most_per_node(put.pod_set, put.supply)

    def _filled_with(
        self, unit: GangPart, supplies: Sequence[int], cost: Callable[[_Put], float]
    ) -> Sequence[_Put] | None:
        """Return where all pods of the unit are put, each where that costs least, in a domain that is left as it was.
        None if they do not fit."""
        puts: list[_Put] = []
        left = 0
        for pod_set in unit.pod_sets:
            left = self._of.problem.pod_sets[pod_set].count
            offers = [put for index in supplies if (put := self._offer(index, pod_set, left))]
            for offer in sorted(offers, key=lambda put: (cost(put), -put.pods)):
                # The ones before it have taken pods, and nodes that limits allow.
                put = self._offer(offer.supply, pod_set, left) if left else None
                if put is not None:
                    self._put(put)
                    puts.append(put)
                    left -= put.pods
            if left:
                break
        self._undo(puts)
        return None if left else puts

    def _offer(self, index: int, pod_set: int, pods: int) -> _Put | None:
        """Return how many of the pods a supply has room for, on nodes that have pods first; None where it has none."""
        filled, each = self._filled[index], self._of.most_per_node(pod_set, index)
        if not each:
            return None
        requests = self._requests[pod_set]
        left, on = pods, []
        for node in filled.nodes:
            room = min(left, each - node.pods[pod_set])
            for name, amount in requests:
                if node.free[name] < amount * room:
                    room = node.free[name] // amount
                    if room <= 0:
                        break
            if room > 0:
                on.append((node, room))
                left -= room
                if not left:
                    break
        allowed = min((self._limits[n][name] // amount for n, name, amount in filled.counted), default=left)
        new = min(-(-left // each), allowed, filled.supply.most - len(filled.nodes))
        for _ in range(new):
            on.append((PackedNode(dict(filled.supply.free)), min(left, each)))
            left -= on[-1][1]
        return _Put(index, pod_set, pods - left, on, max(0, new)) if on else None

    def _put(self, put: _Put) -> None:
        filled, requests = self._filled[put.supply], self._requests[put.pod_set]
        for node, pods in put.on:
            if not any(node.pods.values()):
                filled.nodes.append(node)
                self._resize(filled, 1)
            node.pods[put.pod_set] += pods
            for name, amount in requests:
                node.free[name] -= amount * pods

    def _remove(self, put: _Put) -> None:
        filled, requests = self._filled[put.supply], self._requests[put.pod_set]
        for node, pods in put.on:
            node.pods[put.pod_set] -= pods
            for name, amount in requests:
                node.free[name] += amount * pods
            if not any(node.pods.values()):
                filled.nodes.remove(node)
                self._resize(filled, -1)

    def _undo(self, puts: Sequence[_Put]) -> None:
        for put in reversed(puts):
            self._remove(put)

    def _resize(self, filled: _Filled, more: int) -> None:
        for number, name, amount in filled.counted:
            self._limits[number][name] -= amount * more
        self._costs[filled.weight] += filled.price_micros * more

    def _put_in(self, number: int, gang: _Gang) -> None:
        self._served[number] = gang
        self._count(gang, 1)

    def _take_out(self, number: int) -> None:
        gang = self._served.pop(number, None)
        if gang is not None:
            self._count(gang, -1)

    def _count(self, gang: _Gang, sign: int) -> None:
        sets = self._of.problem.pod_sets
        for put in gang.puts:
            if sign > 0:
                self._put(put)
            else:
                self._remove(put)
            self._pods[sets[put.pod_set].priority] += sign * put.pods
        for values in gang.domains.values():
            for each in values:
                self._users[each] += sign


def _requests(spec: PodSpec) -> Sequence[tuple[str, int]]:
    """Return what a pod takes of its node."""
    return [each for each in (*spec.requests, (PODS, 1)) if each[1]]
