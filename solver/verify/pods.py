"""The checker's part for constraints between pods and for preferences.

A required claim must be broken nowhere. A preference may be broken where pods stand that gave it up. A plan does not
distinguish which pods of a class these are, so there must be enough of them: pods that stand where a preference is
broken are among those that gave up this one and all before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from solver.model import Plan, Problem
from solver.verify.claims import CheckedConstraint, claims_of
from solver.verify.places import CheckedPlaces
from solver.verify.terms import Judge


def faults_between_pods(problem: Problem, plan: Plan, places: CheckedPlaces) -> Iterator[str]:
    """One sentence per broken constraint, and per class that keeps fewer preferences than the plan reports."""
    given_up: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for relaxed in plan.relaxed:
        given_up[relaxed.pod_class].append((len(relaxed.preferences), relaxed.count))
    claims = {
        index: claims_of(index, spec, places.placed[index], given_up.get(index, ()))
        for index, spec in enumerate(places.specs)
        if places.placed[index] > 0
    }
    yield from _relaxed(places, claims, given_up)
    judge = Judge(problem, places, [claim for mine in claims.values() for claim in mine])
    for index, mine in claims.items():
        for claim in mine:
            if claim.rank is None:
                for place, _ in judge.broken(claim):
                    yield f"{place}: class {index} breaks its {claim}"
        yield from _preferences(places.placed[index], [claim for claim in mine if claim.rank is not None], judge)
    yield from judge.of_running_pods()


def _relaxed(
    places: CheckedPlaces,
    claims: Mapping[int, Sequence[CheckedConstraint]],
    given_up: Mapping[int, Sequence[tuple[int, int]]],
) -> Iterator[str]:
    """What is reported as relaxed must be consistent."""
    for index, reported in given_up.items():
        most = sum(claim.rank is not None for claim in claims.get(index, ()))
        for depth, count in reported:
            if count < 1 or not 1 <= depth <= most:
                yield f"relaxed: {count} pods of class {index} give up {depth} of {most} preferences"
        if sum(count for _, count in reported) > places.placed[index]:
            yield f"relaxed: more pods of class {index} than are placed"


def _preferences(placed: int, preferences: Sequence[CheckedConstraint], judge: Judge) -> Iterator[str]:
    """`preferences` in the order in which they are given up."""
    last: dict[int, tuple[int, CheckedConstraint]] = {}
    """Place -> pods there, the last preference that they cannot keep."""
    for claim in preferences:
        broken = [(place, pods) for place, pods in judge.broken(claim)]
        given_up = placed - claim.kept
        if given_up and judge.has_one_domain(claim):
            # Which domain is the one is not reported: only the number can be held against the plan.
            if sum(pods for _, pods in broken) > given_up:
                yield _too_few(claim, sum(pods for _, pods in broken), given_up)
            continue
        for place, pods in broken:
            last[place.index] = (pods, claim)
    for claim in preferences:
        losing = [(pods, deepest) for pods, deepest in last.values() if (deepest.rank or 0) >= (claim.rank or 0)]
        needed = sum(pods for pods, _ in losing)
        if needed > placed - claim.kept:
            yield _too_few(losing[0][1], needed, placed - claim.kept)


def _too_few(claim: CheckedConstraint, needed: int, given_up: int) -> str:
    return (
        f"class {claim.pod_class}: {needed} pods cannot keep their {claim}, or a later preference, but only {given_up}"
        " are reported to have given up so much"
    )
