"""Karpenter's own benchmark as a problem: the pods, node types and prices of BenchmarkScheduling1 to 20000
(pkg/controllers/provisioning/scheduling/scheduling_benchmark_test.go and pkg/cloudprovider/fake, 1.14; figures only).

A fifth each of the pods: generic; spread over zones; spread over hosts; affinity to their own kind within a zone;
anti-affinity to their own kind on a host. Requests and labels are drawn from the same short lists, and a pod's own
label and the one that its spread constraint counts are drawn apart, as there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from bench.workloads import MIB
from solver.model import (
    HOSTNAME,
    PODS,
    Limit,
    NodeGroup,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    TopologySpread,
)

ZONE = "topology.kubernetes.io/zone"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
_NAMESPACE = "default"
_OFFERINGS = (
    *(("spot", zone) for zone in ("test-zone-1", "test-zone-2")),
    *(("on-demand", zone) for zone in ("test-zone-1", "test-zone-2", "test-zone-3")),
)
_CPU_MILLI = (100, 250, 500, 1000, 1500)
_MEMORY_MIB = (100, 256, 512, 1024, 2048, 4096)
_LABEL_VALUES = "abcdefg"


def karpenter_mix(pods: int, types: int = 400, seed: int = 42) -> Problem:
    """`pods` pods in five equal kinds (the rest generic), over `types` node types in five offerings each."""
    rng = random.Random(seed)
    each = pods // 5
    makers: tuple[Callable[[random.Random], PodSpec], ...] = (_generic, _zone_spread, _host_spread, _together, _apart)
    counts: Counter[PodSpec] = Counter()
    for maker in makers:
        counts.update(maker(rng) for _ in range(each))
    counts.update(_generic(rng) for _ in range(pods - 5 * each))
    sets = tuple(PodSet(f"default/mix-{i:05}", spec, count) for i, (spec, count) in enumerate(counts.items()))
    pool = Limit("nodepool", {"cpu": 10_000_000 * 1000, "memory": 10_000_000 * 1024 * MIB})
    return Problem(sets, _node_groups(types), limits=(pool,))


def hostname_affinity(pods: int, hosts: int, types: int = 400, generic: int = 0, seed: int = 1) -> Problem:
    """`pods` pods that each have to be on one node with all others of their label, of which there are `hosts` values;
    and `generic` others."""
    rng = random.Random(seed)
    counts: Counter[PodSpec] = Counter(_on_one_host(rng, hosts) for _ in range(pods))
    counts.update(_generic(rng) for _ in range(generic))
    sets = tuple(PodSet(f"default/mix-{i:05}", spec, count) for i, (spec, count) in enumerate(counts.items()))
    return Problem(sets, _node_groups(types))


def _node_groups(types: int) -> tuple[NodeGroup, ...]:
    """Type i has i cores, 2 i GiB and room for 10 i pods, less 100m and 10 MiB that the kubelet keeps. All of a type's
    offerings cost the same: 0.1 a core and 0.1 for 10^9 bytes."""
    groups: list[NodeGroup] = []
    for cores in range(1, types + 1):
        memory = 2 * cores * 1024 * MIB
        capacity = {"cpu": 1000 * cores, "memory": memory, PODS: 10 * cores}
        allocatable = {"cpu": 1000 * cores - 100, "memory": memory - 10 * MIB, PODS: 10 * cores}
        groups.extend(
            NodeGroup(
                f"fake-it-{cores - 1}/{zone}/{capacity_type}",
                allocatable,
                0.1 * cores + 0.1 * memory / 1e9,
                labels={ZONE: zone, CAPACITY_TYPE: capacity_type},
                capacity=capacity,
                max_size=10**6,
                zone=zone,
                capacity_type=capacity_type,
            )
            for capacity_type, zone in _OFFERINGS
        )
    return tuple(groups)


def _requests(rng: random.Random) -> tuple[tuple[str, int], ...]:
    return (("cpu", rng.choice(_CPU_MILLI)), ("memory", rng.choice(_MEMORY_MIB) * MIB))


def _label(rng: random.Random, key: str = "my-label") -> tuple[tuple[str, str], ...]:
    return ((key, rng.choice(_LABEL_VALUES)),)


def _selector(labels: tuple[tuple[str, str], ...]) -> PodSelector:
    return PodSelector(tuple(Requirement(key, Operator.IN, (value,)) for key, value in labels), (_NAMESPACE,))


def _generic(rng: random.Random) -> PodSpec:
    return PodSpec(_requests(rng), namespace=_NAMESPACE, labels=_label(rng))


def _spread(rng: random.Random, key: str) -> PodSpec:
    spread = TopologySpread(key, 1, _selector(_label(rng)))
    return PodSpec(_requests(rng), namespace=_NAMESPACE, labels=_label(rng), topology_spread=(spread,))


def _zone_spread(rng: random.Random) -> PodSpec:
    return _spread(rng, ZONE)


def _host_spread(rng: random.Random) -> PodSpec:
    return _spread(rng, HOSTNAME)


def _together(rng: random.Random) -> PodSpec:
    labels = _label(rng, "my-affinity")
    term = PodAffinityTerm(ZONE, _selector(labels))
    return PodSpec(_requests(rng), namespace=_NAMESPACE, labels=labels, pod_affinity=(term,))


def _on_one_host(rng: random.Random, hosts: int) -> PodSpec:
    labels = (("my-affinity", f"{rng.randrange(hosts)}"),)
    term = PodAffinityTerm(HOSTNAME, _selector(labels))
    return PodSpec(_requests(rng), namespace=_NAMESPACE, labels=labels, pod_affinity=(term,))


def _apart(rng: random.Random) -> PodSpec:
    labels = (("app", "nginx"),)
    term = PodAffinityTerm(HOSTNAME, _selector(labels))
    return PodSpec(_requests(rng), namespace=_NAMESPACE, labels=labels, pod_anti_affinity=(term,))
