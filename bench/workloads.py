"""The pods and nodes that the benchmark's cases are made of: real pods, synthetic ones, the embedded catalogue, and the
problem of CA's own benchmark. Pure: the same arguments give the same values.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from cagrpc.fleet.catalogue import embedded_catalogue
from solver import (
    Node,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    PodSelector,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
    TopologySpread,
)
from solver.model import PODS, PreferredNodes

MIB = 2**20
GPU = "nvidia.com/gpu"
UNBOUNDED = 10**6
"""Nodes that a group may have where the number is not to matter."""
_CLASSES = Path(__file__).parent / "data" / "openb-classes.csv"


@cache
def catalogue_groups(most: int | None = None) -> tuple[NodeGroup, ...]:
    """The amd64 types of the embedded catalogue, unbounded; the first `most` of them."""
    groups = [
        NodeGroup(o.instance_type.name, o.instance_type.allocatable, o.price_usd_per_hour, max_size=UNBOUNDED)
        for o in embedded_catalogue().offerings
        if o.instance_type.arch == "amd64"
    ]
    return tuple(groups[:most])


def openb(column: str = "all", groups: tuple[NodeGroup, ...] | None = None) -> Problem:
    """The real pods that `column` of the committed table counts, over the amd64 half of the catalogue or `groups`."""
    with _CLASSES.open() as file:
        rows = [row for row in csv.DictReader(file) if int(row[column])]
    sets = tuple(PodSet(row["name"], _spec_of(row), int(row[column])) for row in rows)
    return Problem(sets, catalogue_groups() if groups is None else groups)


def with_tainted_gpus(problem: Problem) -> Problem:
    """The same with groups of GPU nodes tainted, and pods that ask for GPUs tolerating it."""
    taint = Taint(GPU, TaintEffect.NO_SCHEDULE, "present")
    toleration = Toleration(GPU, "Exists")
    sets = [
        replace(pods, spec=replace(pods.spec, tolerations=(toleration,))) if GPU in dict(pods.spec.requests) else pods
        for pods in problem.pod_sets
    ]
    groups = [replace(g, taints=(taint,)) if g.allocatable.get(GPU) else g for g in problem.node_groups]
    return replace(problem, pod_sets=tuple(sets), node_groups=tuple(groups))


def pod_list(path: Path) -> Problem:
    """A list of pods, a row each with the columns cpu_milli, memory_mib, num_gpu, over the catalogue's amd64 half."""
    with path.open() as file:
        counts = Counter(_spec_of(row) for row in csv.DictReader(file))
    sets = tuple(PodSet(f"{path.stem}-{i:04}", spec, count) for i, (spec, count) in enumerate(counts.items()))
    return Problem(sets, catalogue_groups())


def _spec_of(row: Mapping[str, str]) -> PodSpec:
    return spec({"cpu": int(row["cpu_milli"]), "memory": int(row["memory_mib"]) * MIB, GPU: int(row["num_gpu"])})


def spec(amounts: Mapping[str, int]) -> PodSpec:
    return PodSpec(tuple(sorted((name, amount) for name, amount in amounts.items() if amount)))


def pod_sets(classes: int, pods: int, seed: int) -> tuple[PodSet, ...]:
    """`pods` pods in at most `classes` sets of common shapes: 1 to 8 GiB per core, a tenth with GPUs."""
    rng = random.Random(seed)
    shapes: dict[PodSpec, None] = {}
    while len(shapes) < classes:
        cpu = rng.choice((100, 250, 500, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000)) + 10 * rng.randrange(20)
        memory = cpu * rng.choice((1, 2, 3, 4, 6, 8)) * 1024 // 1000 * MIB
        gpu = rng.choice((1, 1, 2, 4)) if rng.random() < 0.1 else 0
        shapes[spec({"cpu": cpu, "memory": memory, GPU: gpu})] = None
    cuts = sorted(rng.randrange(pods) for _ in range(classes - 1))
    counts = [b - a for a, b in zip([0, *cuts], [*cuts, pods], strict=True)]
    return tuple(PodSet(f"set-{i:04}", shape, n) for i, (shape, n) in enumerate(zip(shapes, counts, strict=True)) if n)


def standing_nodes(number: int, running: Iterable[PodSpec], seed: int) -> tuple[Node, ...]:
    """Nodes of the catalogue's smaller types (up to 64 cores), each filled with pods drawn from `running` until it is
    40 to 95 % full of cpu or memory; so hardly two have the same room."""
    rng = random.Random(seed)
    types = [group for group in catalogue_groups() if group.allocatable["cpu"] < 65_000]
    shapes = [dict(shape.requests) for shape in running]
    nodes = []
    for i in range(number):
        group = rng.choice(types)
        free = dict(group.allocatable)
        least_free = 1 - rng.uniform(0.4, 0.95)
        for _ in range(group.allocatable[PODS]):
            need = rng.choice(shapes)
            if any(free.get(name, 0) < amount for name, amount in need.items()):
                break
            for name, amount in {**need, PODS: 1}.items():
                free[name] -= amount
            if any(free[name] < least_free * group.allocatable[name] for name in ("cpu", "memory")):
                break
        nodes.append(Node(f"node-{i:04}", free))
    return tuple(nodes)


def large_cluster(classes: int = 3000, pods: int = 150_000, nodes: int = 5000) -> Problem:
    sets = pod_sets(classes, pods, 2)
    return Problem(sets, catalogue_groups(), standing_nodes(nodes, [s.spec for s in sets], 2))


def one_percent_changed(problem: Problem, seed: int = 1) -> Problem:
    """The problem a moment later: a two-hundredth of the pods is gone and as many have come, half of them in a tenth
    of the pod sets that were there, half in as many new pod sets of shapes nobody had."""
    rng = random.Random(seed)
    sets = list(problem.pod_sets)
    pods = sum(s.count for s in sets)
    gone = Counter(rng.choices(range(len(sets)), [s.count for s in sets], k=pods // 200))
    more = Counter(rng.choices(rng.sample(range(len(sets)), max(1, len(sets) // 10)), k=pods // 400))
    old = [PodSet(s.name, s.spec, s.count - min(s.count, gone[i]) + more[i]) for i, s in enumerate(sets)]
    fresh = max(1, len(sets) // 100)
    each, rest = divmod(pods // 200 - pods // 400, fresh)
    new = [PodSet(f"new-{i:03}", s.spec, each + (i < rest)) for i, s in enumerate(pod_sets(fresh, 10**6, seed + 100))]
    return Problem(tuple(s for s in [*old, *new] if s.count), problem.node_groups, problem.nodes, problem.limits)


def ca_binpacking() -> tuple[Problem, float]:
    """What CA's BenchmarkBinpackingEstimate packs (cluster-autoscaler/estimator, figures only): 50,000 small and 1,000
    larger pods of one app into one group. CA finds 2,595 nodes, which is the optimum too: the pods fill their cpu."""
    small, large = spec({"cpu": 50, "memory": 100}), spec({"cpu": 95, "memory": 190})
    group = NodeGroup("template", {"cpu": 1000, "memory": 5000 * MIB, PODS: 100}, 1.0, max_size=3000)
    return Problem((PodSet("small", small, 50_000), PodSet("large", large, 1_000)), (group,)), 2595.0


ZONES = ("zone-a", "zone-b", "zone-c")
ZONE = "topology.kubernetes.io/zone"


def in_zones(problem: Problem) -> Problem:
    """The problem with each of its groups in three zones."""
    groups = (
        replace(group, id=f"{group.id}/{zone}", labels={**group.labels, ZONE: zone})
        for group in problem.node_groups
        for zone in ZONES
    )
    return replace(problem, node_groups=tuple(groups))


def spreading(problem: Problem, key: str, max_skew: int, preferred_zone: str = "") -> Problem:
    """The problem with every pod set spread by itself, as Deployments are, and a preference for a zone if one is
    named."""
    term = NodeSelectorTerm((Requirement(ZONE, Operator.IN, (preferred_zone,)),))
    preferred = (PreferredNodes(50, term),) if preferred_zone else ()
    sets = []
    for pods in problem.pod_sets:
        alike = PodSelector((Requirement("app", Operator.IN, (pods.name,)),), ("default",))
        labelled = replace(pods.spec, namespace="default", labels=(("app", pods.name),))
        spread = (TopologySpread(key, max_skew, alike),)
        sets.append(replace(pods, spec=replace(labelled, topology_spread=spread, preferred_nodes=preferred)))
    return replace(problem, pod_sets=tuple(sets))


def beside_nodes(problem: Problem, number: int, seed: int = 5) -> Problem:
    """The problem with nodes of random groups that stand, on each of which some room is left, of each resource a part
    of its own."""
    rng = random.Random(seed)
    groups = [rng.choice(problem.node_groups) for _ in range(number)]
    nodes = (
        Node(f"node-{i:04}", {name: int(all_of * rng.random()) for name, all_of in g.allocatable.items()}, g.labels)
        for i, g in enumerate(groups)
    )
    return replace(problem, nodes=tuple(nodes))
