"""Mixes of pods, node groups and nodes, made so that each part of the search has something to do in one of them.
Small enough that an ablation (`bench.ablation`) plans them again and again. Pure: the same name gives the same problem
on every machine."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import starmap

from bench.workloads import (
    GPU,
    MIB,
    UNBOUNDED,
    ZONE,
    ZONES,
    catalogue_groups,
    in_zones,
    one_percent_changed,
    pod_sets,
    standing_nodes,
)
from solver import (
    Budget,
    DeviceAlternative,
    DeviceClaim,
    DeviceRequest,
    Devices,
    Limit,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    TopologySpread,
    solve,
)
from solver.model import HOSTNAME, PreferredNodes

_DEVICE_CLASS = "gpu.example.com"


@dataclass(frozen=True)
class Mix:
    """What a mix is made of. Shares are of the pod sets, which are drawn with the mix's own seed."""

    pods: int
    classes: int
    groups: int
    nodes: int = 0
    """That stand already, partly full."""
    gangs: float = 0.0
    placeholders: float = 0.0
    """Slack."""
    zone_spread: float = 0.0
    host_spread: float = 0.0
    apart: float = 0.0
    """Never two of a set on one node."""
    together: float = 0.0
    """All pods of a set in one zone."""
    beside: float = 0.0
    """Each pod beside one of the first set, on its node."""
    prefer: float = 0.0
    """A zone that pods would rather be in."""
    claims: float = 0.0
    """Of the sets with GPUs, those that claim them as devices."""
    gpus: float = 0.0
    """Sets with GPUs, beside the tenth that has them in any case."""
    priorities: int = 1
    weights: int = 1
    limit: float | None = None
    """CPU that may be opened, of what all pods request."""
    most: int = UNBOUNDED
    """Nodes of a group."""
    warm: bool = False
    """Planned on from the plan of a moment before."""


MIXES = {
    "claims": Mix(300, 30, 400, gpus=0.4, claims=0.8),
    "everything": Mix(400, 40, 60, 20, 0.2, 0.1, 0.2, 0.2, 0.1, 0.1, 0.0, 0.2, 0.5, 0.1, 3, 2, 0.8),
    "few-classes": Mix(400, 5, 20),
    "few-nodes": Mix(500, 30, 30, nodes=30),
    "gangs-under-limit": Mix(600, 40, 60, gangs=0.6, priorities=2, limit=0.7),
    "gpus": Mix(500, 50, 400, gpus=0.5),
    "hosts": Mix(400, 25, 40, host_spread=0.5, apart=0.2),
    "limit": Mix(800, 40, 60, priorities=3, limit=0.6),
    "many-alike": Mix(20_000, 25, 150),
    "many-classes": Mix(900, 90, 100),
    "many-nodes": Mix(900, 30, 40, nodes=220),
    "one-pod-a-class": Mix(120, 120, 120),
    "one-zone": Mix(300, 20, 40, together=0.6, apart=0.2),
    "slack": Mix(500, 40, 40, nodes=40, placeholders=0.4),
    "small": Mix(40, 12, 8),
    "small-groups": Mix(600, 30, 40, most=6),
    "tiny": Mix(9, 4, 6),
    "warm": Mix(2000, 60, 150, warm=True),
    "weights": Mix(600, 40, 60, weights=3),
    "zones": Mix(400, 20, 40, zone_spread=0.7, prefer=0.2),
    "company": Mix(400, 12, 30, beside=0.4),
}


def mixed(name: str) -> Problem:
    """Return the problem of a mix."""
    mix, rng = MIXES[name], random.Random(name)
    sets = [_decorated(mix, rng, each) for each in pod_sets(mix.classes, mix.pods, list(MIXES).index(name))]
    groups = _groups(mix, rng)
    nodes = standing_nodes(mix.nodes, [each.spec for each in sets if not each.spec.claims], 7)
    if mix.zone_spread or mix.together or mix.prefer:
        zonal = in_zones(Problem((), groups))
        groups = zonal.node_groups
        nodes = tuple(replace(each, labels={ZONE: ZONES[i % 3]}) for i, each in enumerate(nodes))
    asked = sum(each.count * dict(each.spec.requests).get("cpu", 0) for each in sets)
    limits = () if mix.limit is None else (Limit("cluster", {"cpu": int(mix.limit * asked)}),)
    problem = Problem(tuple(sets), groups, nodes, limits)
    if not mix.warm:
        return problem
    before = solve(problem, Budget(deterministic_seconds=1.0))
    return replace(one_percent_changed(problem), previous=before)


def _groups(mix: Mix, rng: random.Random) -> tuple[NodeGroup, ...]:
    """Return groups of the catalogue: always some that have GPUs, and one that holds whatever has none."""
    every = catalogue_groups()
    with_gpus = [group for group in every if group.allocatable.get(GPU)]
    others = [group for group in every if not group.allocatable.get(GPU)]
    largest = [max(others, key=lambda group: min(group.allocatable["cpu"], group.allocatable["memory"] // (4 * MIB)))]
    chosen = [*largest, *rng.sample(others, min(len(others), mix.groups * 3 // 4))]
    chosen += rng.sample(with_gpus, min(len(with_gpus), 2 + mix.groups // 4))

    def made(number: int, group: NodeGroup) -> NodeGroup:
        gpus = group.allocatable.get(GPU, 0)
        devices = (Devices(gpus, frozenset({_DEVICE_CLASS})),) if gpus and mix.claims else ()
        return replace(group, max_size=mix.most, weight=10 * (number % mix.weights), devices=devices)

    unique = {group.id: group for group in chosen}
    return tuple(starmap(made, enumerate(unique.values())))


def _decorated(mix: Mix, rng: random.Random, pods: PodSet) -> PodSet:
    requests, drawn = dict(pods.spec.requests), rng.random()
    if rng.random() < mix.gpus:
        requests[GPU] = rng.choice((1, 1, 2, 4))
    labelled = PodSpec((), namespace="default", labels=(("app", pods.name),))
    alike = PodSelector((Requirement("app", Operator.IN, (pods.name,)),), ("default",))
    edges = [mix.zone_spread, mix.host_spread, mix.apart, mix.together, mix.beside]
    which = next((i for i in range(len(edges)) if drawn < sum(edges[: i + 1])), None)
    count = pods.count
    match which:
        case 0 | 1:
            spread = TopologySpread((ZONE, HOSTNAME)[which], 1 + rng.randrange(3), alike)
            labelled = replace(labelled, topology_spread=(spread,))
        case 2:
            labelled = replace(labelled, pod_anti_affinity=(PodAffinityTerm(HOSTNAME, alike),))
            count = min(count, 12)
        case 3:
            labelled = replace(labelled, pod_affinity=(PodAffinityTerm(ZONE, alike),))
        case 4 if pods.name != "set-0000":
            first = PodSelector((Requirement("app", Operator.IN, ("set-0000",)),), ("default",))
            labelled = replace(labelled, pod_affinity=(PodAffinityTerm(HOSTNAME, first),))
    if rng.random() < mix.prefer:
        term = NodeSelectorTerm((Requirement(ZONE, Operator.IN, (rng.choice(ZONES),)),))
        labelled = replace(labelled, preferred_nodes=(PreferredNodes(50, term),))
    if requests.get(GPU) and rng.random() < mix.claims:
        gpus = requests.pop(GPU)
        claim = DeviceClaim((DeviceRequest("gpus", (DeviceAlternative(_DEVICE_CLASS, gpus),)),))
        labelled = replace(labelled, claims=(claim,))
    placeholder = rng.random() < mix.placeholders
    gang = f"gang-{rng.randrange(8)}" if rng.random() < mix.gangs and not placeholder else None
    return replace(
        pods,
        spec=replace(labelled, requests=tuple(sorted(requests.items()))),
        count=count,
        priority=1000 * rng.randrange(mix.priorities),
        waiting_seconds=rng.choice((0, 60, 3600)) if mix.limit is not None else 0,
        gang=gang,
        placeholder=placeholder,
    )
