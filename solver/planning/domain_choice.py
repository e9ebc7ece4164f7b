"""Which domain each gang gets: CP-SAT's model of the smaller problem (`domain_supply`)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from solver.model import PODS, PreferredDomain
from solver.model.budget import RunningBudget
from solver.model.capacity import remaining
from solver.model.domains import DomainTerm
from solver.model.objective import Goal
from solver.planning.domain_supply import Domains, GangDomains, Site
from solver.planning.first_domains import FirstDomains
from solver.reduction.reduced import price_micros
from solver.relaxation.cp_sat import FEASIBLE, Model, new_solver, solve_within

_MOST_MODELLED = 20_000
"""Of pod sets and kinds of nodes: beyond it CP-SAT would have no answer in time."""
_STAGE_SHARE = 0.8
"""Of what is left of the time for choosing, for one stage before the last."""


@dataclass(frozen=True, slots=True)
class ChosenDomains:
    """What the smaller problem comes to."""

    units: Mapping[int, Domains]
    """The domains of those that are served."""
    split: Mapping[int, Mapping[Site, int]]
    """Of pod sets that only wish for a domain: how many pods are at which site."""
    opened: Mapping[int, int]
    """Of node groups that have spares: how many nodes are opened."""

    def __bool__(self) -> bool:
        return bool(self.units or self.split)


def can_be_modelled(of: GangDomains) -> bool:
    """Return whether the model is small enough."""
    return len(of.pod_sets) * len(of.supplies) <= _MOST_MODELLED


def of_first(of: GangDomains, first: FirstDomains) -> ChosenDomains:
    """Return the first choice as one."""
    return ChosenDomains(first.at, {}, _beside_spares(of, first.opened))


def _beside_spares(of: GangDomains, opened: Sequence[int]) -> Mapping[int, int]:
    """Return how many nodes are opened of each node group that has spares."""
    return {
        supply.group: nodes
        for supply, nodes in zip(of.supplies, opened, strict=True)
        if supply.group is not None and of.problem.node_groups[supply.group].spares
    }


class DomainModel:
    """What CP-SAT is asked."""

    def __init__(self, of: GangDomains, forbidden: frozenset[tuple[int, Domains]] = frozenset()) -> None:
        """No unit gets domains that it is forbidden: those of the number of the unit."""
        self.of = of
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
            sites = {
                values: supplies
                for values, supplies in of.sites(number, any_of_alike=bool(forbidden)).items()
                if (number, values) not in forbidden
            }
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
        each = self.of.most_per_node(pod_set, index)
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
                    each = max(self.of.most_per_node(number, index) for number in numbers)
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

    def choose(self, budget: RunningBudget, first: FirstDomains | None = None) -> ChosenDomains:
        """Return the best choice that is found, no worse than the first one; empty where there is none."""
        stages = list(self.stages())  # first, since they have variables of their own
        best = None if first is None else self._solved_as(first, budget)
        for number, stage in enumerate(stages):
            self.model.minimize(stage)
            solver = new_solver()
            left = budget.left_seconds() * (_STAGE_SHARE if number + 1 < len(stages) else 1)
            solved = left > 0 and solve_within(self.model, solver, budget, left) in FEASIBLE
            if solved and (best is None or solver.value(stage) < best.value(stage)):
                best = solver
                self._hint(solver)
            if best is None:
                break
            self.model.add(stage <= best.value(stage))
        if best is None:
            return ChosenDomains({}, {}, {}) if first is None else of_first(self.of, first)
        return self._chosen(best)

    def _chosen(self, solver: cp_model.CpSolver) -> ChosenDomains:
        at = {
            number: values for number, chosen in self.at.items() for values, var in chosen.items() if solver.value(var)
        }
        opened = [solver.value(nodes) for nodes in self.opened]
        split = self.split(lambda var: round(solver.value(var)))
        return ChosenDomains(at, split, _beside_spares(self.of, opened))

    def _solved_as(self, first: FirstDomains, budget: RunningBudget) -> cp_model.CpSolver | None:
        """Return the solver with the first choice as its answer, which is the hint from then on; None where the model
        has something against it."""
        model, at, placed = self.model, first.at, first.placed
        served = {self.of.units[number].gang for number in at}
        for gang, var in self.gangs.items():
            model.add_hint(var, gang in served)
        for number, chosen in self.at.items():
            for values, var in chosen.items():
                model.add_hint(var, at.get(number) == values)
        for nodes, opened in zip(self.opened, first.opened, strict=True):
            model.add_hint(nodes, opened)
        for index, of_sets in self.placed.items():
            for pod_set, var in of_sets.items():
                model.add_hint(var, placed.get((index, pod_set), 0))
        solver = new_solver()
        solver.parameters.fix_variables_to_their_hinted_value = True
        if solve_within(model, solver, budget, budget.left_seconds()) not in FEASIBLE:
            return None
        self._hint(solver)
        return solver

    def _hint(self, solver: cp_model.CpSolver) -> None:
        """Start the next stage from a solution of the model."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for index, value in enumerate(solver.response_proto.solution):
            self.model.add_hint(self.model.get_int_var_from_proto_index(index), value)

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
