"""The constraints of each planned class as the checker reads them: required and preferred, between pods and about
nodes, in one list, preferences in the order in which they are given up (`docs/reference/constraints.md`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from solver.model import (
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    PreferredNodes,
    TopologySpread,
    WhenUnsatisfiable,
)


class Rule(Enum):
    AFFINITY = auto()
    ANTI_AFFINITY = auto()
    SPREAD = auto()
    NODES = auto()
    TAINTS = auto()


@dataclass(frozen=True, slots=True)
class CheckedConstraint:
    """One constraint of a class. `rank` is its position in the order of giving up, None for a required one; `kept` is
    the number of pods that keep it."""

    pod_class: int
    rule: Rule
    rank: int | None
    kept: int
    term: PodAffinityTerm | None = None
    spread: TopologySpread | None = None
    nodes: PreferredNodes | None = None

    def __str__(self) -> str:
        key = self.term.topology_key if self.term is not None else ""
        words = {
            Rule.AFFINITY: f"affinity over {key}",
            Rule.ANTI_AFFINITY: f"anti-affinity over {key}",
            Rule.SPREAD: f"topology spread over {key}",
            Rule.NODES: "node affinity",
            Rule.TAINTS: "dislike of PreferNoSchedule taints",
        }
        return ("required " if self.rank is None else "preferred ") + words[self.rule]


def constraints_of(
    index: int, spec: PodSpec, placed: int, given_up: Sequence[tuple[int, int]]
) -> list[CheckedConstraint]:
    """Return the required constraints of a class, then its preferences in order. `given_up` holds (number of
    preferences, pods) as the plan reports it: a pod that gives up n gives up the first n."""
    required = [
        *(CheckedConstraint(index, Rule.AFFINITY, None, placed, term) for term in required_affinity(spec)),
        *(CheckedConstraint(index, Rule.ANTI_AFFINITY, None, placed, term) for term in spec.pod_anti_affinity),
        *_spreads(index, spec, WhenUnsatisfiable.DO_NOT_SCHEDULE, None, placed),
    ]
    preferred = [
        replace(constraint, rank=rank, kept=placed - sum(pods for depth, pods in given_up if depth > rank))
        for rank, constraint in enumerate(_preferences(index, spec))
    ]
    return [*required, *preferred]


def required_affinity(spec: PodSpec) -> Iterator[PodAffinityTerm]:
    """Yield the required terms: the kube-scheduler lets each count only pods that the selectors of all of them match,
    but those of claims, which are no terms of the pod."""
    selectors = [term.selector for term in spec.pod_affinity if not term.alone]
    conditions = [each.match_expressions for each in selectors]
    within = [set(each.namespaces) for each in selectors if each.namespaces is not None]
    together = PodSelector(
        None if None in conditions else tuple(dict.fromkeys(one for each in conditions for one in each or ())),
        tuple(sorted(set.intersection(*within))) if within else None,
    )
    own = [term if term.alone else replace(term, selector=together) for term in spec.pod_affinity]
    yield from dict.fromkeys(own)


def _preferences(index: int, spec: PodSpec) -> list[CheckedConstraint]:
    of_taints = CheckedConstraint(index, Rule.TAINTS, 0, 0)
    if spec.preferences_left_out:
        return [of_taints]
    lightest = sorted(spec.preferred_pods, key=lambda each: each.weight)
    return [
        *(CheckedConstraint(index, Rule.AFFINITY, 0, 0, each.term) for each in lightest if not each.anti),
        *(CheckedConstraint(index, Rule.ANTI_AFFINITY, 0, 0, each.term) for each in lightest if each.anti),
        *(
            CheckedConstraint(index, Rule.NODES, 0, 0, nodes=each)
            for each in sorted(spec.preferred_nodes, key=lambda each: each.weight)
            if each.term.match_expressions or each.term.match_fields  # an empty one asks for nothing
        ),
        *_spreads(index, spec, WhenUnsatisfiable.SCHEDULE_ANYWAY, 0, 0),
        of_taints,
    ]


def _spreads(
    index: int, spec: PodSpec, when: WhenUnsatisfiable, rank: int | None, kept: int
) -> Iterator[CheckedConstraint]:
    for spread in spec.topology_spread:
        if spread.when_unsatisfiable is when:
            # Only pods in the carrier's own namespace are counted.
            own = PodSelector(spread.selector.match_expressions, (spec.namespace,))
            yield CheckedConstraint(index, Rule.SPREAD, rank, kept, PodAffinityTerm(spread.topology_key, own), spread)
