"""Ties of pods that share a claim, where no node tells its domain: nothing says then that its volume is in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from solver.model import HOSTNAME, Labels, PodAffinityTerm, PodSpec, Problem, Taint
from solver.model.eligibility import why_not_eligible


def without_unknown_domains(problem: Problem, instead: Mapping[PodSpec, PodSpec]) -> dict[PodSpec, PodSpec]:
    """Return what is planned instead of specs, with specs whose pods share claims over a topology key that none of the
    nodes has which may take them: planned without that tie. Those of gangs ask for domains of their own."""
    found = dict(instead)
    for pods in problem.pod_sets:
        spec = instead.get(pods.spec, pods.spec)
        if pods.gang is None and any(_ties(term) for term in spec.pod_affinity) and not spec.unschedulable:
            kept = tuple(term for term in spec.pod_affinity if not _ties(term) or _is_known(problem, spec, term))
            if kept != spec.pod_affinity:
                found[pods.spec] = replace(spec, pod_affinity=kept)
    return found


def _ties(term: PodAffinityTerm) -> bool:
    return term.alone and term.topology_key != HOSTNAME


def _is_known(problem: Problem, spec: PodSpec, term: PodAffinityTerm) -> bool:
    places: list[tuple[Labels, tuple[Taint, ...], str]] = [
        *((each.labels, each.taints, "") for each in problem.node_groups),
        *((each.labels, each.taints, each.name) for each in problem.nodes),
    ]
    return any(term.topology_key in each[0] and why_not_eligible(spec, *each) is None for each in places)
