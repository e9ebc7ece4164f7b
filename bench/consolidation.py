"""Large clusters whose pods have gone, consolidated: `python -m bench.consolidation [--seconds S] [case …]`.

Deployments of random sizes are planned onto nodes, as well as `solve` does it, or put onto nodes of random groups by
first fit; then pods go at random. Printed are the seconds of one plan (of the wall, and of CPU), its steps, and what
share of the saving that is proven possible it reaches. Every plan is checked by replaying it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.measure import timed
from solver import (
    Budget,
    ConsolidationProblem,
    Limit,
    Node,
    NodeGroup,
    PodSelector,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    RunningPods,
    StandingNode,
    Taint,
    Toleration,
    TopologySpread,
    consolidate,
    solve,
)
from solver.model import PODS, Operator, TaintEffect
from solver.planning.warm_up import warm_up
from tests.support.solver.consolidation_check import check_consolidation

GIB = 2**30
ZONE = "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"
_FAMILIES = (("c", 2, 0.0425), ("m", 4, 0.048), ("r", 8, 0.063))
"""Name, GiB for each core, $/h for each core."""
_CORES = (8, 16, 32)
_OPEN = 12
"""Nodes of random groups that are filled at a time."""


@dataclass(frozen=True)
class Case:
    """A cluster from which pods have gone."""

    pods: int
    """That are left."""
    seed: int
    left: float = 0.5
    """The share of pods that are left."""
    planned: bool = True
    """Whether the nodes were planned, else filled one after the other, whatever their shape."""
    whole: bool = False
    """Whether deployments are gone as a whole, else each pod by itself."""
    spread: float = 0.0
    """The share of deployments that spread over zones."""
    better: tuple[tuple[int, int], ...] = ()
    """Weights above the nodes' own, that were short when these were made: each has room now for so many per cent of the
    CPU that pods ask for."""
    gib_per_core: tuple[float, ...] = (1, 2, 4, 4, 8)
    gpus: float = 0.0
    """The share of deployments with a GPU for each pod; nodes with GPUs are tainted."""
    many_groups: bool = False
    """Whether there are some 200 node groups, of all sizes and at all prices; else 27."""
    kept: float = 0.0
    """The share of nodes that have to stay."""

    def problem(self) -> ConsolidationProblem:
        rng = random.Random(self.seed)
        specs = list(self._deployments(rng))
        groups = _groups(self.gpus > 0, rng if self.many_groups else None)
        made = (_planned if self.planned else _filled)(specs, groups, rng)
        lefts = [float(rng.random() < self.left) if self.whole else self.left for _ in specs]
        standing = [_standing(f"node-{n:05}", *each, specs, rng, lefts) for n, each in enumerate(made)]
        standing = [replace(each, kept="so" if self.kept and rng.random() < self.kept else "") for each in standing]
        sizes = Counter(each.node_group for each in standing)
        groups = tuple(replace(group, target_size=sizes[group.id]) for group in groups)
        asked = sum(dict(each.spec.requests)["cpu"] * each.count for node in standing for each in node.pods)
        every, limits = list(groups), []
        for weight, share in self.better:
            more = [replace(g, id=f"{weight}-{g.id}", weight=weight, target_size=0) for g in groups]
            limits.append(Limit(f"weight {weight}", {"cpu": asked * share // 100}, {}, frozenset(g.id for g in more)))
            every.extend(more)
        return ConsolidationProblem(tuple(standing), tuple(every), tuple(limits))

    def _deployments(self, rng: random.Random) -> Iterator[tuple[PodSpec, int]]:
        total = round(self.pods / self.left)
        number = 0
        while total:
            count = min(total, max(1, round(rng.paretovariate(0.9) * 8)), 2000)
            cpu = rng.choice((100, 200, 250, 500, 500, 1000, 1000, 2000))
            memory = int(cpu / 1000 * rng.choice(self.gib_per_core) * GIB)
            name = f"app-{number}"
            rules: tuple[TopologySpread, ...] = ()
            if rng.random() < self.spread:
                selector = PodSelector((Requirement("app", Operator.IN, (name,)),), ("default",))
                rules = (TopologySpread(ZONE, max(1, count // 2), selector),)
            requests = [("cpu", cpu), ("memory", memory)]
            if self.gpus and rng.random() < self.gpus:
                requests = [("cpu", cpu * 4), ("memory", memory * 4), (GPU, 1)]
            yield (
                PodSpec(
                    tuple(requests),
                    namespace="default",
                    labels=(("app", name),),
                    tolerations=(Toleration(GPU, "Exists"),) if len(requests) > 2 else (),
                    topology_spread=rules,
                ),
                count,
            )
            total, number = total - count, number + 1


Held = tuple[NodeGroup, Counter[int]]
"""A node's group, and its pods by deployment."""


def _groups(gpus: bool, drawn: random.Random | None) -> tuple[NodeGroup, ...]:
    shapes = [
        (f"{family}{cores}", cores, ratio, cores * price, 0) for cores in _CORES for family, ratio, price in _FAMILIES
    ]
    if drawn is not None:
        shapes = [
            (f"{family}{generation}-{cores}", cores, ratio, cores * price * drawn.uniform(0.9, 1.1), 0)
            for cores in (4, 8, 12, 16, 24, 32, 48, 64)
            for family, ratio, price in _FAMILIES
            for generation in (5, 6, 7)
        ]
    if gpus:
        shapes += [(f"g{count}", count * 8, 4, count * (8 * 0.048 + 0.6), count) for count in (1, 2, 4, 8)]
    return tuple(
        NodeGroup(
            f"{name}-{zone}",
            {
                "cpu": cores * 1000 - 500,
                "memory": int(cores * ratio * GIB * 0.95) - 2 * GIB,
                PODS: 110,
                **({GPU: count} if count else {}),
            },
            round(price, 6),
            labels={ZONE: zone},
            taints=(Taint(GPU, TaintEffect.NO_SCHEDULE),) if count else (),
        )
        for zone in "abc"
        for name, cores, ratio, price, count in shapes
    )


def _planned(specs: Sequence[tuple[PodSpec, int]], groups: Sequence[NodeGroup], rng: random.Random) -> Iterator[Held]:
    """Yield the nodes of a plan for all pods at once, of the largest groups, each in any zone."""
    sets = tuple(PodSet(f"{n}", replace(spec, topology_spread=()), count) for n, (spec, count) in enumerate(specs))
    one_zone = tuple(g for g in groups if g.id.endswith("-a") and (GPU in g.allocatable or f"{_CORES[-1]}-" in g.id))
    plan = solve(Problem(sets, one_zone), Budget(deterministic_seconds=0.5))
    zones = {group.id: group for group in groups}
    numbers = [int(each.example) for each in plan.pod_classes]
    for batch in plan.nodes:
        for _ in range(batch.count):
            group = zones[f"{batch.node_group[:-1]}{rng.choice('abc')}"]
            yield group, Counter({numbers[i]: count for i, count in batch.pods.items()})


def _filled(specs: Sequence[tuple[PodSpec, int]], groups: Sequence[NodeGroup], rng: random.Random) -> Iterator[Held]:
    """Yield nodes of random groups, filled by the first pods that fit."""
    queue = [number for number, (_, count) in enumerate(specs) for _ in range(count)]
    rng.shuffle(queue)
    needs = [{**dict(spec.requests), PODS: 1} for spec, _ in specs]
    opened: list[tuple[dict[str, int], Held]] = []
    for number in queue:
        need = needs[number]
        gpu = GPU in need
        place = next((p for p in opened if (GPU in p[0]) == gpu and all(p[0][n] >= a for n, a in need.items())), None)
        if place is None:
            fitting = [g for g in groups if (GPU in g.allocatable) == gpu and _holds(g, need)]
            group = rng.choice(fitting)
            place = (dict(group.allocatable), (group, Counter()))
            opened.append(place)
            if len(opened) > _OPEN:
                yield opened.pop(0)[1]
        for name, amount in need.items():
            place[0][name] -= amount
        place[1][1][number] += 1
    yield from (held for _, held in opened)


def _holds(group: NodeGroup, need: Mapping[str, int]) -> bool:
    return all(group.allocatable[name] >= amount for name, amount in need.items())


def _standing(
    name: str,
    group: NodeGroup,
    held: Counter[int],
    specs: Sequence[tuple[PodSpec, int]],
    rng: random.Random,
    left: Sequence[float],
) -> StandingNode:
    pods = Counter(number for number in held.elements() if rng.random() < left[number])
    free = dict(group.allocatable)
    for number, count in pods.items():
        for resource, amount in (*specs[number][0].requests, (PODS, 1)):
            free[resource] -= amount * count
    running = tuple(RunningPods(specs[number][0], count) for number, count in pods.items())
    sets = tuple(PodSet(f"default/app-{number}", specs[number][0], count) for number, count in pods.items())
    return StandingNode(Node(name, free, group.labels, group.taints, running), group.id, sets)


CASES: dict[str, Case] = {
    "half-gone": Case(100_000, 1),
    "spread": Case(100_000, 2, spread=0.05),
    "tiers": Case(100_000, 3, better=((50, 50),)),
    "wrong-shapes": Case(50_000, 4, planned=False),
    "nearly-full": Case(100_000, 5, left=0.95),
    "small": Case(2000, 6),
    "deployments-gone": Case(100_000, 7, whole=True),
    "half-spread": Case(100_000, 8, spread=0.5),
    "three-tiers": Case(60_000, 9, left=0.7, better=((50, 40), (100, 20))),
    "little-memory": Case(100_000, 10, left=0.8, gib_per_core=(0.5, 1, 1, 1, 2, 16)),
    "gpus": Case(50_000, 11, left=0.7, planned=False, gpus=0.1),
    "200-groups": Case(60_000, 12, left=0.8, planned=False, many_groups=True),
    "kept": Case(100_000, 13, kept=0.1),
    "full-mixed": Case(60_000, 14, left=0.98, planned=False, many_groups=True, gpus=0.05, spread=0.2, kept=0.05),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all of them where none is named")
    parser.add_argument("--seconds", type=float, default=10.0, help="the budget of a plan")
    parser.add_argument("--unchecked", action="store_true", help="do not replay the plan")
    options = parser.parse_args()
    warm_up()
    for name in options.cases or CASES:
        problem = CASES[name].problem()
        budget = Budget(options.seconds, workers=2)
        plan, wall, cpu = timed(lambda problem=problem, budget=budget: consolidate(problem, budget))  # type: ignore[misc]
        pods = sum(each.count for standing in problem.nodes for each in standing.pods)
        opened = sum(each.delta for step in plan.steps for each in step.plan.increments)
        proven = plan.proven_saving_usd_per_hour
        share = plan.saving_usd_per_hour / proven if proven else 1.0
        print(f"{name}: {len(problem.nodes)} nodes, {pods} pods, {wall:.1f} s ({cpu:.1f} s of CPU)")
        print(
            f"  {len(plan.steps)} steps {dict(Counter(str(step.reason) for step in plan.steps))}:"
            f" {sum(len(step.nodes) for step in plan.steps)} nodes go, {opened} come,"
            f" {sum(step.pods_moved for step in plan.steps)} pods move"
        )
        print(
            f"  ${plan.cost_before_usd_per_hour:.2f}/h -> ${plan.cost_after_usd_per_hour:.2f}/h, at least"
            f" ${plan.least_usd_per_hour:.2f}/h: ${plan.saving_usd_per_hour:.2f}/h, {share:.1%} of what is"
            " proven possible"
        )
        for tier in plan.tiers if len(plan.tiers) > 1 else ():
            print(
                f"  weight {tier.weight}: ${tier.cost_usd_per_hour:.2f}/h,"
                f" at least ${tier.lower_bound_usd_per_hour:.2f}/h"
            )
        if not options.unchecked:
            began = time.perf_counter()
            check_consolidation(problem, plan)
            print(f"  replayed and checked in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
