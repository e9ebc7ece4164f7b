"""A problem with fewer rules: the same pods, each time without one more kind of rule. Whatever serves the pods under
more rules does so under fewer, so the least cost only falls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cagrpc.api.core.nodes import ARCH, OS
from solver.model import (
    ATTACHABLE_VOLUMES,
    UNLIMITED_SIZE,
    Limit,
    NodeGroup,
    NodeSelectorTerm,
    Operator,
    PodSpec,
    Problem,
    Requirement,
    Toleration,
)
from solver.model.eligibility import why_not_eligible

_EVERYTHING = (Toleration("", "Exists"),)


def without_weights(problem: Problem) -> Problem:
    """Return the problem with all provisioners of one weight."""
    return replace(problem, node_groups=tuple(replace(each, weight=0) for each in problem.node_groups))


def without_limits(problem: Problem) -> Problem:
    """Return the problem without maximum sizes and limits, but for those of capacity that is paid for in any case, of
    which there is no more."""
    groups = tuple(each if _bounded(each) else replace(each, max_size=UNLIMITED_SIZE) for each in problem.node_groups)
    bounded = frozenset(each.id for each in problem.node_groups if _bounded(each))
    kept = (_limited_to(each, bounded) for each in problem.limits)
    return replace(problem, node_groups=groups, limits=tuple(each for each in kept if each is not None))


def _bounded(group: NodeGroup) -> bool:
    return not group.price_usd_per_hour or group.capacity_type == "reserved"


def _limited_to(limit: Limit, groups: frozenset[str]) -> Limit | None:
    left = groups if limit.node_groups is None else limit.node_groups & groups
    return replace(limit, node_groups=left) if left else None


def without_rules_between_pods(problem: Problem) -> Problem:
    """Return the problem without topology spread and without affinity and anti-affinity between pods, preferred ones
    too. Host ports stay: two pods cannot share one."""
    nodes = tuple(replace(each, running=()) for each in problem.nodes)
    return replace(_with_specs(problem, _without_rules), nodes=nodes)


def _without_rules(spec: PodSpec) -> PodSpec:
    own = tuple(each for each in spec.pod_affinity if each.alone)
    return replace(spec, pod_affinity=own, pod_anti_affinity=(), topology_spread=(), preferred_pods=())


def has_rules(spec: PodSpec) -> bool:
    """Return whether a pod has rules between pods that may cost something."""
    return bool(
        any(not each.alone for each in spec.pod_affinity)
        or spec.pod_anti_affinity
        or spec.preferred_pods
        or spec.topology_spread
    )


def without_volumes(problem: Problem) -> Problem:
    """Return the problem with volumes that can be anywhere, any number on a node."""
    return _with_specs(problem, _without_volumes)


def _without_volumes(spec: PodSpec) -> PodSpec:
    return replace(
        spec,
        node_terms=(),
        pod_affinity=tuple(each for each in spec.pod_affinity if not each.alone),
        requests=tuple(each for each in spec.requests if not each[0].startswith(ATTACHABLE_VOLUMES)),
    )


def has_volumes(spec: PodSpec) -> bool:
    """Return whether volumes or allocated claims bind where a pod may run."""
    return _without_volumes(spec) != spec


def without_selectors(problem: Problem) -> Problem:
    """Return the problem without node selectors, node affinity and taints. A pod keeps to the operating systems and
    architectures of the node groups that it may use: its images may have no others."""
    platforms = {_platform(each) for each in problem.node_groups}

    def changed(spec: PodSpec) -> PodSpec:
        allowed = {
            _platform(each)
            for each in problem.node_groups
            if _platform(each) in platforms and why_not_eligible(spec, each.labels, each.taints) is None
        }
        affinity = None if allowed == platforms else tuple(_term(*each) for each in sorted(allowed))
        return replace(spec, node_selector=(), affinity=affinity, preferred_nodes=(), tolerations=_EVERYTHING)

    return _with_specs(problem, changed)


def has_selectors(spec: PodSpec) -> bool:
    """Return whether a pod says which nodes it may or prefers to run on."""
    return bool(spec.node_selector or spec.affinity is not None or spec.preferred_nodes)


def _platform(group: NodeGroup) -> tuple[str, str]:
    return group.labels.get(OS, ""), group.labels.get(ARCH, "")


def _term(system: str, architecture: str) -> NodeSelectorTerm:
    found = ((OS, system), (ARCH, architecture))
    return NodeSelectorTerm(
        tuple(
            Requirement(key, Operator.IN, (value,)) if value else Requirement(key, Operator.DOES_NOT_EXIST)
            for key, value in found
        )
    )


def _with_specs(problem: Problem, change: Callable[[PodSpec], PodSpec]) -> Problem:
    known: dict[PodSpec, PodSpec] = {}
    sets = []
    for each in problem.pod_sets:
        if each.spec not in known:
            known[each.spec] = change(each.spec)
        sets.append(replace(each, spec=known[each.spec]))
    return replace(problem, pod_sets=tuple(sets))
