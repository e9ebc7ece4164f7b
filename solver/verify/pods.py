"""The checker's part for constraints between pods and for preferences.

A required constraint must hold everywhere. A preference may be broken by pods that gave it up. A plan does not
distinguish which pods of a class these are, so there must be enough of them: pods that break a preference are among
those that gave up this one and all before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from solver.model import Plan, Problem
from solver.verify.claims import CheckedConstraint, constraints_of
from solver.verify.places import CheckedPlaces
from solver.verify.terms import Judge


def faults_between_pods(problem: Problem, plan: Plan, places: CheckedPlaces) -> Iterator[str]:
    """Yield one sentence per broken constraint, and per class that keeps fewer preferences than the plan reports."""
    given_up: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for relaxed in plan.relaxed:
        given_up[relaxed.pod_class].append((len(relaxed.preferences), relaxed.count))
    constraints = {
        index: constraints_of(index, spec, places.placed[index], given_up.get(index, ()))
        for index, spec in enumerate(places.specs)
        if places.placed[index] > 0
    }
    yield from _relaxed(places, constraints, given_up)
    judge = Judge(problem, places, [constraint for mine in constraints.values() for constraint in mine])
    for index, mine in constraints.items():
        for constraint in mine:
            if constraint.rank is None:
                for place, _ in judge.broken(constraint):
                    yield f"{place}: class {index} breaks its {constraint}"
        yield from _preferences(
            places.placed[index], [constraint for constraint in mine if constraint.rank is not None], judge
        )
    yield from judge.of_running_pods()


def _relaxed(
    places: CheckedPlaces,
    constraints: Mapping[int, Sequence[CheckedConstraint]],
    given_up: Mapping[int, Sequence[tuple[int, int]]],
) -> Iterator[str]:
    """Yield what is inconsistent in the reported relaxations."""
    for index, reported in given_up.items():
        most = sum(constraint.rank is not None for constraint in constraints.get(index, ()))
        for depth, count in reported:
            if count < 1 or not 1 <= depth <= most:
                yield f"relaxed: {count} pods of class {index} give up {depth} of {most} preferences"
        if sum(count for _, count in reported) > places.placed[index]:
            yield f"relaxed: more pods of class {index} than are placed"


def _preferences(placed: int, preferences: Sequence[CheckedConstraint], judge: Judge) -> Iterator[str]:
    """Check `preferences`, which are in the order in which they are given up."""
    last: dict[int, tuple[int, CheckedConstraint]] = {}
    """Place -> pods there, the last preference that they cannot keep."""
    for constraint in preferences:
        broken = [(place, pods) for place, pods in judge.broken(constraint)]
        given_up = placed - constraint.kept
        if given_up and judge.has_one_domain(constraint):
            # The plan does not report which domain serves: only the number of pods can be checked.
            if sum(pods for _, pods in broken) > given_up:
                yield _too_few(constraint, sum(pods for _, pods in broken), given_up)
            continue
        for place, pods in broken:
            last[place.index] = (pods, constraint)
    for constraint in preferences:
        losing = [(pods, deepest) for pods, deepest in last.values() if (deepest.rank or 0) >= (constraint.rank or 0)]
        needed = sum(pods for pods, _ in losing)
        if needed > placed - constraint.kept:
            yield _too_few(losing[0][1], needed, placed - constraint.kept)


def _too_few(constraint: CheckedConstraint, needed: int, given_up: int) -> str:
    return (
        f"class {constraint.pod_class}: {needed} pods cannot keep their {constraint}, or a later preference,"
        f" but only {given_up}"
        " are reported to have given up so much"
    )
