"""Karpenter's own scheduler, unchanged, and ours over the pods, instance types and prices of Karpenter's own benchmark
(bench/karpenter_mix.py), side by side in one run.

    python -m bench.karpenter_scheduler [--pods N ...] [--seed N ...] [--share 0.09]
    python -m bench.karpenter_scheduler --openb    # the 1,000 pods and 12 node groups of bench.live, all known at once,
                                                   GPU nodes without a taint; with one: --tainted

Karpenter's program runs first; a share of its time is ours (but no less than `--least` seconds), by default so much
that writing the plan and checking it, too, are done in a tenth.
What both plan is given to the independent checker: `broken` is how many constraints a plan breaks. `least` is proven:
no plan costs less; with `--proof SECONDS` by planning for so long. Nodes of Karpenter's
cost what a cloud would take for them: the cheapest offering that the NodeClaim allows. Needs Go; building Karpenter's
module takes minutes the first time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.karpenter_mix import karpenter_mix
from bench.live import Case, groups_of, trace
from bench.measure import WORKERS, get_ready
from bench.table import machine, machine_line
from bench.workloads import with_tainted_gpus
from solver import Budget, Plan, PodSpec, Problem, solve
from solver.model import (
    CPU,
    Certificate,
    NodeGroupIncrease,
    PlannedNodes,
    PodAffinityTerm,
    PodClass,
    PodSelector,
    Status,
    TopologySpread,
    Unplaced,
)
from solver.model.eligibility import tolerates
from solver.verify.nodes import faults_on_nodes
from solver.verify.places import CheckedPlaces
from solver.verify.terms import faults_between_pods
from tests.support.controlplane import binaries
from tests.support.controlplane.plane import Scoring

PODS = (500, 2_000, 5_000, 20_000)


@dataclass(frozen=True)
class Measured:
    """What one of the two made of a problem."""

    nodes: int
    cost_usd_per_hour: float
    seconds: float
    unplaced: int
    broken: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, nargs="+", default=PODS)
    parser.add_argument("--seed", type=int, nargs="+", default=[42])
    parser.add_argument("--share", type=float, default=0.09, help="our budget, of the time that Karpenter takes")
    parser.add_argument("--least", type=float, default=0.2, help="our least budget, in seconds")
    parser.add_argument("--openb", action="store_true", help="the pods and node groups of `bench.live` instead")
    parser.add_argument(
        "--tainted", action="store_true", help="with --openb: GPU nodes have a taint, as in `bench.live`"
    )
    parser.add_argument("--proof", type=float, help="how long the proven least is looked for, in seconds")
    arguments = parser.parse_args()
    print(machine_line(machine()))
    print()
    print(
        "| pods | seed | Karpenter: nodes | $/h | s | broken | ours: nodes | $/h | s | broken | least | cost | time |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    get_ready()
    for pods in (1_000,) if arguments.openb else arguments.pods:
        for seed in (0,) if arguments.openb else arguments.seed:
            problem = openb_1000(tainted=arguments.tainted) if arguments.openb else karpenter_mix(pods, seed=seed)
            theirs = karpenters(problem)
            budget = max(arguments.least, theirs.seconds * arguments.share)
            ours, least = _ours(problem, budget)
            if arguments.proof:
                least = max(least, _ours(problem, arguments.proof)[1])
            print(_line(pods, seed, theirs, ours, least), flush=True)


def openb_1000(*, tainted: bool = False) -> Problem:
    """Return the pods of `bench.live` over its node groups, named as Karpenter's offerings are."""
    case = Case("openb-1000", "at once", "openb", Scoring.LEAST_ALLOCATED, 0.0, 0.0, 10.0)
    groups = tuple(
        replace(each, id=f"{each.id}/zone-a/on-demand", capacity=each.allocatable) for each in groups_of(case.groups)
    )
    problem = Problem(trace(case), groups)
    return with_tainted_gpus(problem) if tainted else problem


def _line(pods: int, seed: int, theirs: Measured, ours: Measured, least: float) -> str:
    def told(each: Measured) -> str:
        left = f" ({each.unplaced} left)" if each.unplaced else ""
        return f"{each.nodes}{left} | {each.cost_usd_per_hour:,.1f} | {each.seconds:.2f} | {each.broken}"

    cost, seconds = ours.cost_usd_per_hour / theirs.cost_usd_per_hour, ours.seconds / theirs.seconds
    return f"| {pods:,} | {seed} | {told(theirs)} | {told(ours)} | {least:,.1f} | {cost:.3f} | {seconds:.3f} |"


def _ours(problem: Problem, budget_seconds: float) -> tuple[Measured, float]:
    began = time.perf_counter()
    plan = solve(problem, Budget(budget_seconds, workers=WORKERS))
    seconds = time.perf_counter() - began
    nodes = sum(each.count for each in plan.nodes)
    left = sum(each.count for each in plan.unplaced)
    cost = plan.certificate.cost_usd_per_hour
    broken = broken_constraints(problem, plan)
    return Measured(nodes, cost, seconds, left, broken), plan.certificate.lower_bound_usd_per_hour


def karpenters(problem: Problem) -> Measured:
    """Return what Karpenter's scheduler makes of a problem whose node groups are named `type/zone/capacity type`.
    Raises `binaries.CannotBuild`, subprocess.CalledProcessError."""
    program = binaries.build(binaries.KARPENTER_SCHEDULER) / "karpenter-scheduler"
    given = {"instanceTypes": _instance_types(problem), "pods": list(_pods(problem))}
    done = subprocess.run([program], input=json.dumps(given), stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    if found["problems"]:
        print(f"Karpenter left pods: {'; '.join(found['problems'])}")
    plan = plan_of(problem, found["nodes"])
    cost = plan.certificate.cost_usd_per_hour
    return Measured(len(plan.nodes), cost, found["seconds"], found["unplaced"], broken_constraints(problem, plan))


def _instance_types(problem: Problem) -> list[dict[str, Any]]:
    offerings: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    sizes: dict[str, dict[str, Any]] = {}
    for group in problem.node_groups:
        name, zone, capacity_type = group.id.split("/")
        offerings[name].append({"zone": zone, "capacityType": capacity_type, "price": group.price_usd_per_hour})
        sizes[name] = {"capacity": _quantities(group.capacity), "allocatable": _quantities(group.allocatable)}
    return [{"name": name, **sizes[name], "offerings": offerings[name]} for name in offerings]


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{amount}m" if name == CPU else str(amount) for name, amount in amounts.items()}


def _pods(problem: Problem) -> Iterable[dict[str, Any]]:
    """Return the pods of all sets, named `SET-NUMBER`."""
    for index, pods in enumerate(problem.pod_sets):
        for number in range(pods.count):
            name = f"{index}-{number}"
            metadata = {"name": name, "namespace": pods.spec.namespace, "uid": name, "labels": dict(pods.spec.labels)}
            yield {"metadata": metadata, "spec": _pod_spec(pods.spec, tainted_types(problem, pods.spec))}


def tainted_types(problem: Problem, spec: PodSpec) -> list[str]:
    """Return the instance types with a taint that pods do not tolerate. All types are of one NodePool, which knows no
    taint of some of them, so pods that do not tolerate it say instead that they cannot be there."""
    refused = (
        g for g in problem.node_groups if not all(any(tolerates(o, t) for o in spec.tolerations) for t in g.taints)
    )
    return sorted({each.id.split("/")[0] for each in refused})


def _pod_spec(spec: PodSpec, refused: Sequence[str]) -> dict[str, Any]:
    affinity: dict[str, Any] = {}
    if refused:
        where = {"key": "node.kubernetes.io/instance-type", "operator": "NotIn", "values": list(refused)}
        required = {"nodeSelectorTerms": [{"matchExpressions": [where]}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    for key, terms in (("podAffinity", spec.pod_affinity), ("podAntiAffinity", spec.pod_anti_affinity)):
        if terms:
            affinity[key] = {"requiredDuringSchedulingIgnoredDuringExecution": [_term(each) for each in terms]}
    container = {"name": "main", "image": "image", "resources": {"requests": _quantities(dict(spec.requests))}}
    spreads = [_spread(each) for each in spec.topology_spread]
    return {"containers": [container], "affinity": affinity, "topologySpreadConstraints": spreads}


def _spread(spread: TopologySpread) -> dict[str, Any]:
    return {
        "maxSkew": spread.max_skew,
        "topologyKey": spread.topology_key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": _selector(spread.selector),
    }


def _term(term: PodAffinityTerm) -> dict[str, Any]:
    return {"topologyKey": term.topology_key, "labelSelector": _selector(term.selector)}


def _selector(selector: PodSelector) -> dict[str, Any]:
    asked = selector.match_expressions or ()
    return {"matchExpressions": [{"key": r.key, "operator": r.operator.value, "values": list(r.values)} for r in asked]}


def plan_of(problem: Problem, nodes: Sequence[dict[str, Any]]) -> Plan:
    """Return these nodes as a plan of ours, with a class for each set of pods."""
    placed: Counter[int] = Counter()
    planned = []
    for node in nodes:
        pods = Counter(int(name.split("-")[0]) for name in node["pods"])
        placed.update(pods)
        offering = node["offering"]
        group = "/".join((node["instanceType"], offering["zone"], offering["capacityType"]))
        planned.append(PlannedNodes(group, 1, pods))
    classes = tuple(PodClass(i, each.spec, each.count, each.name) for i, each in enumerate(problem.pod_sets))
    left = tuple(
        Unplaced(each.index, each.count - placed[each.index], ()) for each in classes if each.count > placed[each.index]
    )
    increments = Counter(each.node_group for each in planned)
    cost = sum(node["offering"]["price"] for node in nodes)
    return Plan(
        classes,
        tuple(NodeGroupIncrease(group, count) for group, count in sorted(increments.items())),
        tuple(planned),
        (),
        left,
        Certificate(Status.FEASIBLE, cost, 0.0, (), 0.0),
        0.0,
    )


def broken_constraints(problem: Problem, plan: Plan) -> int:
    """Return how many constraints of nodes, and between pods, the plan breaks."""
    places = CheckedPlaces(problem, plan)
    return len([*faults_on_nodes(problem, places), *faults_between_pods(problem, plan, places)])


if __name__ == "__main__":
    main()
