"""Random small clusters that stand, for consolidation."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

from solver import (
    HOSTNAME,
    ConsolidationProblem,
    DisruptionReason,
    HostPort,
    Limit,
    Node,
    NodeGroup,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    Requirement,
    Resources,
    RunningPods,
    StandingNode,
    TopologySpread,
)


@dataclass(frozen=True)
class Draw:
    """What random clusters have."""

    nodes: int = 6
    rules: bool = False
    """Constraints between pods, host ports and selectors."""
    obstacles: bool = True
    """Nodes that are kept, must go or are nobody's, gangs, limits, sizes and a least saving."""
    weights: tuple[int, ...] = (0, 0, 10, 50)
    kept: float = 0.0
    """The share of nodes that are kept; with obstacles there are others."""


def random_cluster(seed: int, draw: Draw) -> ConsolidationProblem:
    """Return a cluster with a few pods on each node."""
    rng = random.Random(seed)
    groups = [_group(rng, f"g{number}", draw) for number in range(rng.randint(1, 4))]
    specs = [_spec(rng, draw) for _ in range(rng.randint(1, 5))]
    standing = [
        _standing(rng, f"n{number}", rng.choice(groups), specs, draw) for number in range(rng.randint(1, draw.nodes))
    ]
    sizes = Counter(each.node_group for each in standing)
    limits: tuple[Limit, ...] = ()
    if draw.obstacles and rng.random() < 0.3:
        fleet = sizes.total() - sizes[""]
        limits = (Limit("all", {"nodes": fleet + rng.randint(0, 2)}, {"nodes": fleet}),)
    return ConsolidationProblem(
        tuple(standing),
        tuple(replace(group, target_size=sizes[group.id]) for group in groups),
        limits,
        least_saving_usd_per_hour_per_pod=rng.choice([0, 0, 0.01]) if draw.obstacles else 0.0,
    )


def standing_node(name: str, group: NodeGroup, pods: tuple[PodSet, ...] = ()) -> StandingNode:
    """Return a node of the group with these pods on it."""
    free = _less(group.allocatable, pods)
    running = tuple(RunningPods(each.spec, each.count) for each in pods)
    return StandingNode(Node(name, free, group.labels, group.taints, running), group.id, pods)


def _less(allocatable: Resources, pods: tuple[PodSet, ...]) -> dict[str, int]:
    free = dict(allocatable)
    for each in pods:
        for name, amount in (*each.spec.requests, ("pods", 1)):
            free[name] = free.get(name, 0) - amount * each.count
    return free


def _group(rng: random.Random, name: str, draw: Draw) -> NodeGroup:
    cpu = rng.randint(1, 8)
    return NodeGroup(
        name,
        {"cpu": cpu * 1000, "memory": rng.randint(1, 10), "pods": rng.randint(2, 8)},
        cpu * rng.randint(5, 15) / 64,
        labels={"zone": rng.choice("ab")},
        weight=rng.choice(draw.weights),
        max_size=rng.choice([10**6, 10**6, 3]) if draw.obstacles else 10**6,
        min_size=rng.choice([0, 0, 0, 1]) if draw.obstacles else 0,
    )


def _spec(rng: random.Random, draw: Draw) -> PodSpec:
    requests = {"cpu": rng.randint(1, 6) * 500}
    if rng.random() < 0.7:
        requests["memory"] = rng.randint(1, 4)
    spec = PodSpec(tuple(sorted(requests.items())), namespace="x", labels=(("app", rng.choice("ab")),))
    if not draw.rules:
        return spec
    selector = PodSelector((Requirement("app", Operator.IN, (rng.choice("ab"),)),), ("x",))
    rules = (
        replace(spec, pod_anti_affinity=(PodAffinityTerm(HOSTNAME, selector),)),
        replace(spec, topology_spread=(TopologySpread("zone", rng.randint(1, 2), selector),)),
        replace(spec, host_ports=(HostPort(80),)),
        replace(spec, pod_affinity=(PodAffinityTerm("zone", selector),)),
        replace(spec, node_selector=(("zone", "a"),)),
    )
    return rng.choice((spec, spec, *rules))


def _standing(rng: random.Random, name: str, group: NodeGroup, specs: list[PodSpec], draw: Draw) -> StandingNode:
    free, pods = dict(group.allocatable), []
    for _ in range(rng.randint(0, 4)):
        spec = rng.choice(specs)
        if free["pods"] and all(free.get(each, 0) >= amount for each, amount in spec.requests):
            free = _less(free, (PodSet("", spec, 1),))
            gang = rng.choice([None, None, None, None, "red"]) if draw.obstacles else None
            pods.append(PodSet(f"x/{spec.labels[0][1]}", spec, 1, gang=gang))
    found = standing_node(name, group, tuple(pods))
    if not draw.obstacles:
        return replace(found, kept="so") if rng.random() < draw.kept else found
    match rng.randint(0, 15):
        case 0:
            return replace(found, node_group="")
        case 1 | 2:
            return replace(found, kept="its PodDisruptionBudget allows none")
        case 3:
            return replace(found, takes_pods=False)
        case 4:
            return replace(found, takes_pods=False, must_go=DisruptionReason.INTERRUPTED)
    return found
