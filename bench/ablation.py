"""What each part of the search is worth: the part taken out, alone, over `bench.planner`'s cases and the mixes of
`bench.mixes`.

    python -m bench.ablation [--part NAME] [--case NAME] [--json FILE] [--against FILE]

Budgets are deterministic, so that plans and bounds depend on nothing but the code, and work is CPU time of this
process. A part is a function or a number of `solver` that is replaced while the bench runs; a case that never comes to
what is replaced is the same without it, and is not planned again. Prints, per part, the worst and the mean loss of cost
and of bound, what more stays unserved, and the time saved. `--against` compares the whole search with an earlier
`--json` instead, which is how a removal is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.cases import CASES
from bench.karpenter_mix import hostname_affinity, karpenter_mix
from bench.mixes import MIXES, mixed
from bench.planted import plant
from bench.workloads import (
    ZONE,
    ZONES,
    beside_nodes,
    catalogue_groups,
    in_zones,
    large_cluster,
    one_percent_changed,
    openb,
    pod_sets,
    spreading,
)
from cagrpc.cli.main import COLLECT_AFTER
from solver import Budget, Plan, Problem, solve
from solver.compiled import HOW
from solver.model import HOSTNAME
from solver.model.objective import Goal
from solver.planning import compiling
from solver.planning.bounds import WithoutRules
from solver.planning.warm_up import warm_up
from solver.reduction.reduced import Floats, Ints

TRACES = ("openb-default", "openb-latency-sensitive", "openb-best-effort")
"""Whose bounds no removal may touch."""
LEAST_LOSS, LEAST_TIME = 0.001, 0.1
"""Of cost or bound, and of the time: what a part is worth somewhere that stays."""


@dataclass(frozen=True)
class AblationCase:
    """A problem, and the deterministic seconds that it is planned in."""

    build: Callable[[], Problem]
    seconds: float = 1.0


def _warm(problem: Problem) -> Problem:
    before = solve(problem, Budget(deterministic_seconds=1.0))
    return replace(one_percent_changed(problem), previous=before)


def _every_seventh() -> Problem:
    return openb("every_7th")


def _planted(dimensions: int) -> Problem:
    return plant(dimensions, 12, 30, 1000, dimensions).problem


ABLATION_CASES: Mapping[str, AblationCase] = {
    **{name: AblationCase(CASES[name].build) for name in TRACES},
    **{name: AblationCase(CASES[name].build) for name in ("openb-1165-pods-12-groups", "32-sets-16384-pods")},
    **{name: AblationCase(CASES[name].build, 0.5) for name in ("one-class-51000-pods", "ca-binpacking-51000-pods")},
    "karpenter-mix-500": AblationCase(lambda: karpenter_mix(500, 100)),
    "karpenter-mix-2000": AblationCase(CASES["karpenter-mix-2000"].build, 2.0),
    "hostname-affinity-200": AblationCase(lambda: hostname_affinity(200, 7, 100, 200)),
    "60-classes-250-nodes": AblationCase(lambda: large_cluster(60, 2000, 250), 0.5),
    "60-classes-warm": AblationCase(lambda: _warm(large_cluster(60, 2000, 250)), 0.5),
    "openb-spread-over-zones": AblationCase(lambda: spreading(in_zones(_every_seventh()), ZONE, 1)),
    "openb-spread-in-preferred-zone": AblationCase(lambda: spreading(in_zones(_every_seventh()), ZONE, 5, ZONES[0])),
    "openb-spread-over-hosts": AblationCase(lambda: spreading(_every_seventh(), HOSTNAME, 2)),
    "openb-beside-300-nodes": AblationCase(lambda: beside_nodes(_every_seventh(), 300)),
    "openb-warm": AblationCase(lambda: _warm(_every_seventh())),
    "classes-0080": AblationCase(lambda: Problem(pod_sets(80, 8000, 4), catalogue_groups(150)), 0.7),
    "pods-1e6": AblationCase(lambda: Problem(pod_sets(40, 10**6, 5), catalogue_groups(200)), 0.7),
    **{f"planted-{dimensions:02}": AblationCase(partial(_planted, dimensions)) for dimensions in (2, 6, 12)},
    **{f"mix-{name}": AblationCase(partial(mixed, name)) for name in MIXES},
}


@dataclass(frozen=True)
class Part:
    """What stands for a part that is taken out: "module:name" -> what is there instead."""

    instead: Mapping[str, Any]
    asked: str = ""
    """The function without which none of it matters, where not what is replaced itself."""
    compiled: bool = False
    """Whether kernels have to be compiled again."""

    @property
    def functions(self) -> Sequence[str]:
        """What a case has to call to be planned otherwise."""
        return [self.asked] if self.asked else list(self.instead)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _without_rules(fluid: Any, budget: Any, fraction: float) -> Any:
    return WithoutRules(fluid.reduced, budget, fraction).bound


def _no_items(_requests: Ints, _free: Ints, _most: Ints) -> Ints:
    return np.zeros(0, np.int64)


def _no_pattern(_requests: Ints, _free: Ints, _values: Floats, _most: Ints, _prices: Floats, _found: Ints) -> float:
    return 0.0


def _least_bucket(_requests: Ints, _profits: Floats, _few: int, _main: int, least: int) -> int:
    return least


def _as_it_is(_requests: Ints, _values: Floats, free: Ints) -> Ints:
    return free.copy()


_SEARCH = "solver.planning.search"
_GENERATION, _KNAPSACK, _MERGED = "solver.columns.generation", "solver.columns.knapsack", "solver.relaxation.merged"
_GENERATE = f"{_SEARCH}:generate"


def _kernel_part(path: str, other: Any, asked: str = _GENERATE) -> Part:
    return Part({path: other}, asked, compiled=True)


PARTS: Mapping[str, Part] = {
    "all patterns": Part({f"{_SEARCH}:enumerate_maximal": _nothing}),
    "closing by columns": Part({f"{_SEARCH}:_Closing.columns": lambda *_: ((), False)}),
    "bound of whole nodes": Part({f"{_SEARCH}:_Closing.with_whole_nodes": lambda *args: args[3]}),
    "CP-SAT over columns": Part({f"{_SEARCH}:_time_for_master": lambda *_: False}),
    "dive": Part({f"{_SEARCH}:dive": _nothing}),
    "columns of the dive": Part({"solver.integral.dive:_ROUNDS": 0}, f"{_SEARCH}:dive"),
    "rounding": Part({f"{_SEARCH}:rounded": _nothing}),
    "rounding by trial": Part({"solver.integral.rounding:_PATIENCE": 1}, f"{_SEARCH}:rounded"),
    "polish": Part({f"{_SEARCH}:pays": lambda *_: False}, f"{_SEARCH}:polished"),
    "second temperature of polish": Part({"solver.integral.annealing:_HOT": (0.01,)}, f"{_SEARCH}:polished"),
    "annealing": Part({f"{_SEARCH}:annealed": _nothing}),
    "columns beside annealing": Part({f"{_SEARCH}:patterns_repeat": lambda *_: False}),
    "rows alike as one": Part({f"{_SEARCH}:first_alike": lambda reduced: np.arange(len(reduced.rows))}),
    "relaxation with rules": Part({f"{_SEARCH}:_MOST_WITH_RULES": -1}, f"{_SEARCH}:_with_choices"),
    "bound with rules": Part({f"{_SEARCH}:with_rules": _without_rules}),
    "bound by columns without rules": Part({"solver.planning.bounds:generate": _nothing}),
    "kinds asked again": Part({"solver.planning.bounds:_AT_ONCE": 0}, "solver.planning.bounds:WithoutRules._proven"),
    "packing in order": Part({f"{_SEARCH}:_in_order": lambda *args: args[3:]}, f"{_SEARCH}:packed_in_order"),
    "packing along the fluid": Part({"solver.integral.packing:Packing.follow": _nothing}),
    "packing as a start": Part({f"{_SEARCH}:can_pack": lambda *_: False}, f"{_SEARCH}:packed"),
    "columns beside many nodes": Part({f"{_SEARCH}:_beside_standing": lambda pool, start, *_: (pool, start)}),
    "a quick search from the plan before": Part({f"{_SEARCH}:_WARM_SHARE": 0.0}, f"{_SEARCH}:known_nodes"),
    "nodes of the plan before": Part({f"{_SEARCH}:known_nodes": lambda *_: {}}),
    "candidates of the plan before": Part({f"{_SEARCH}:known_candidates": lambda *_: ()}),
    "exchanges": Part({f"{_GENERATION}:_Asked._near": lambda *_: 0}),
    "proofs by CP-SAT": Part({"solver.columns.pricing:best_or_none": lambda *_: ([], float("inf"), 0.0)}),
    "stabilised duals": Part({f"{_GENERATION}:_SHARE": 1.0}, _GENERATE),
    "splitting of groups": Part({f"{_MERGED}:_ROUNDS": 1}, f"{_MERGED}:MergedFluid.solve"),
    "whole pods in the fluid": Part({f"{_MERGED}:MergedFluid._whole_pods": _nothing}),
    "guessed bounds": Part({f"{_MERGED}:MergedFluid._guessed": lambda *_: 0.0}),
    "columns for the greedy": Part({"solver.integral.greedy:_State.extend": lambda *_: False}),
    "large items apart": _kernel_part(f"{_KNAPSACK}:_large", _no_items),
    "greedy patterns": _kernel_part(f"{_KNAPSACK}:_by_scarcity", _no_pattern),
    "whole buckets": _kernel_part(f"{_KNAPSACK}:_whole_bucket", _least_bucket),
    "what items can reach": _kernel_part(f"{_KNAPSACK}:_within_reach", _as_it_is),
    "nodes of another family": _kernel_part("solver.integral.annealing_kernel:_OPENS", 1.0, f"{_SEARCH}:annealed"),
}


@dataclass(frozen=True)
class Planned:
    """What a case came to."""

    cost_usd_per_hour: float
    bound_usd_per_hour: float
    before_cost: tuple[float, ...]
    """The stages of the objective before the cost: pods and placeholders unserved, waiting, preferences."""
    before_bounds: tuple[float, ...]
    status: str
    cpu_seconds: float


def _planned_as(problem: Problem, seconds: float) -> Planned:
    gc.collect()
    started = time.process_time()
    plan = solve(problem, Budget(deterministic_seconds=seconds))
    return _what(plan, time.process_time() - started)


def _what(plan: Plan, cpu_seconds: float) -> Planned:
    stages = [each for each in plan.objective if each.stage.goal not in (Goal.COST, Goal.NODES, Goal.CHANGE)]
    return Planned(
        plan.certificate.cost_usd_per_hour,
        plan.certificate.lower_bound_usd_per_hour,
        tuple(each.value for each in stages),
        tuple(each.lower_bound for each in stages),
        str(plan.certificate.status),
        cpu_seconds,
    )


def _place(path: str) -> tuple[Any, str]:
    """Return what has an attribute, and its name."""
    module, _, names = path.partition(":")
    owner: Any = import_module(module)
    *outer, name = names.split(".")
    for each in outer:
        owner = getattr(owner, each)
    return owner, name


def original(path: str) -> Any:
    """Return what is at a path of `Part.instead`."""
    return getattr(*_place(path))


@contextmanager
def _instead(others: Mapping[str, Any]) -> Iterator[None]:
    places = [(*_place(path), other) for path, other in others.items()]
    before = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, other in places:
        setattr(owner, name, other)
    try:
        yield
    finally:
        for (owner, name, _), each in zip(places, before, strict=True):
            setattr(owner, name, each)


def _watched(path: str, called: set[str]) -> Callable[..., Any]:
    watched: Callable[..., Any] = original(path)

    def noted(*args: Any, **kwargs: Any) -> Any:
        called.add(path)
        return watched(*args, **kwargs)

    return noted


def _whole_search(problem: Problem, seconds: float, parts: Mapping[str, Part]) -> tuple[Planned, set[str]]:
    """Plan with everything; return the parts that took part, too."""
    called: set[str] = set()
    paths = {path for part in parts.values() for path in part.functions}
    with _instead({path: _watched(path, called) for path in paths}):
        found = _planned_as(problem, seconds)
    return found, {name for name, part in parts.items() if called & set(part.functions)}


def _loss(whole: float, without: float) -> float:
    return (without - whole) / whole if whole else float(without > whole)


@dataclass(frozen=True)
class Comparison:
    case: str
    cost: float
    """How much dearer, a fraction; infinite where an earlier stage of the objective is worse."""
    bound: float
    """How much lower the bound is, a fraction; infinite where an earlier stage's is."""
    time: float
    """How much less CPU time, a fraction."""


def compared(case: str, whole: Planned, without: Planned) -> Comparison:
    worse, better = without.before_cost > whole.before_cost, without.before_cost < whole.before_cost
    cost = float("inf") if worse else 0.0 if better else _loss(whole.cost_usd_per_hour, without.cost_usd_per_hour)
    lower = any(w < b for b, w in zip(whole.before_bounds, without.before_bounds, strict=True))
    bound = float("inf") if lower else -_loss(whole.bound_usd_per_hour, without.bound_usd_per_hour)
    if worse or better:
        bound = max(bound, 0.0) if lower else 0.0
    return Comparison(case, cost, bound, 1 - without.cpu_seconds / max(whole.cpu_seconds, 1e-3))


_HEAD = (
    f"{'part':<32} {'cases':>5} {'cost worst':>10} {'mean':>8} {'bound worst':>11} {'mean':>8} {'time':>7}  worst in"
)


def line(part: str, found: Sequence[Comparison], whole: Mapping[str, Planned]) -> str:
    """Return a row of the table; times are of all cases together that the part takes part in."""
    if not found:
        return f"{part:<36} {0:>5}"
    cost, bound = max(found, key=lambda each: each.cost), max(found, key=lambda each: each.bound)
    all_of_them = sum(whole[each.case].cpu_seconds for each in found)
    saved = sum(each.time * whole[each.case].cpu_seconds for each in found) / max(all_of_them, 1e-9)
    means = [np.mean([min(getattr(each, what), 1.0) for each in found]) for what in ("cost", "bound")]
    return (
        f"{part:<36} {len(found):>5} {cost.cost:>10.3%} {means[0]:>8.3%} {bound.bound:>11.3%} {means[1]:>8.3%}"
        f" {saved:>7.1%}  {cost.case}, {bound.case}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", metavar="NAME", help=f"one of: {', '.join(PARTS)}")
    parser.add_argument("--case", choices=ABLATION_CASES, action="append", metavar="NAME")
    parser.add_argument("--json", type=Path, help="write what the whole search comes to there")
    parser.add_argument("--against", type=Path, help="compare the whole search with this, and take nothing out")
    arguments = parser.parse_args()
    gc.set_threshold(COLLECT_AFTER)
    warm_up()
    parts = {} if arguments.against else {name: PARTS[name] for name in arguments.part or PARTS}
    problems, whole, taking_part = {}, {}, {}
    before = json.loads(arguments.against.read_text()) if arguments.against else {}
    for name in arguments.case or ABLATION_CASES:
        case = ABLATION_CASES[name]
        problems[name] = case.build()
        whole[name], taking_part[name] = _whole_search(problems[name], case.seconds, parts)
        print(f"{name:<34} {whole[name]}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({name: asdict(each) for name, each in whole.items()}, indent=1) + "\n")
    print(_HEAD, flush=True)
    if before:
        earlier = {name: _read(before[name]) for name in whole if name in before}
        found = [compared(name, each, whole[name]) for name, each in earlier.items()]
        print(line("since then", found, earlier))
        for each in found:
            print(f"  {each}")
    for part, taken_out in parts.items():
        mine = [name for name in problems if part in taking_part[name]]
        found = list(_without(taken_out, mine, problems, whole))
        print(line(part, found, whole), flush=True)


def _read(fields: Mapping[str, Any]) -> Planned:
    found = Planned(**fields)
    return replace(found, before_cost=tuple(found.before_cost), before_bounds=tuple(found.before_bounds))


def _without(
    part: Part, names: Sequence[str], problems: Mapping[str, Problem], whole: Mapping[str, Planned]
) -> Iterator[Comparison]:
    if part.compiled and names:
        HOW.update({other: HOW[original(path)] for path, other in part.instead.items() if callable(other)})
    with _instead(part.instead):
        if part.compiled and names:
            compiling.load(None)
        for name in names:
            without = _planned_as(problems[name], ABLATION_CASES[name].seconds)
            yield compared(name, whole[name], without)
    if part.compiled and names:
        compiling.load(compiling.kept())


if __name__ == "__main__":
    main()
