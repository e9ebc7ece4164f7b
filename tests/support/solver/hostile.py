"""Pods whose constraints are as much work as can be, of one kind or of several at once, beside honest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from solver import NodeGroup, Plan, PodSet, PodSpec, Problem, Requirement, Toleration
from solver.model import (
    HOSTNAME,
    HostPort,
    Node,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PreferredNodes,
    PreferredPods,
    RunningPods,
    TopologySpread,
    WhenUnsatisfiable,
)
from tests.support.solver.problems import group, node, spec

HOSTILE, HONEST = "hostile", "honest"
KEYS = ("zone", HOSTNAME, "rack", "machine", "unknown")
"""Of few values, of one for each node whatever its labels, of some, of one for each node, of none."""


def _one(number: int, term: int, pods: int) -> PodSelector:
    """Select one of the other pods."""
    return PodSelector((Requirement("k", Operator.IN, (f"{(7 * number + term) % pods}",)),), (HOSTILE,))


def _most(number: int, term: int, _pods: int) -> PodSelector:
    """Select all pods of all namespaces but a few."""
    return PodSelector((Requirement("k", Operator.NOT_IN, (f"{number}-{term}",)),))


Selecting = Callable[[int, int, int], PodSelector]
Made = Callable[[int, int, int], PodSpec]
"""(number of the pod, terms, pods) -> what it asks for."""


def _terms(select: Selecting, number: int, count: int, pods: int) -> Iterable[PodAffinityTerm]:
    return (PodAffinityTerm(KEYS[term % len(KEYS)], select(number, term, pods)) for term in range(count))


def _apart(select: Selecting) -> Made:
    return lambda *size: PodSpec(pod_anti_affinity=tuple(_terms(select, *size)))


def _together(select: Selecting) -> Made:
    return lambda *size: PodSpec(pod_affinity=tuple(_terms(select, *size)))


def _rather(select: Selecting, *, anti: bool) -> Made:
    return lambda *size: PodSpec(preferred_pods=tuple(PreferredPods(1, each, anti) for each in _terms(select, *size)))


def _even(select: Selecting, when: WhenUnsatisfiable) -> Made:
    def made(number: int, count: int, pods: int) -> PodSpec:
        terms = enumerate(_terms(select, number, count, pods))
        return PodSpec(
            topology_spread=tuple(TopologySpread(t.topology_key, 1 + n % 3, t.selector, when) for n, t in terms)
        )

    return made


def _on_nodes(number: int, count: int, _pods: int) -> PodSpec:
    return PodSpec(affinity=tuple(_node_term(number, term) for term in range(count)))


def _rather_on_nodes(number: int, count: int, _pods: int) -> PodSpec:
    asked = _on_nodes(number, count, 0).affinity
    preferred = (PreferredNodes(1, _node_term(number, term)) for term in range(count))
    return PodSpec(affinity=asked, preferred_nodes=tuple(preferred))


def _node_term(number: int, term: int) -> NodeSelectorTerm:
    key = (*KEYS, f"k{term}")[term % (1 + len(KEYS))]
    return NodeSelectorTerm((Requirement(key, Operator.NOT_IN, (f"{number}", f"{term}")),))


MADE: Mapping[str, Made] = {
    "ports": lambda n, count, _: PodSpec(host_ports=tuple(HostPort(1 + (n * count + p) % 9973) for p in range(count))),
    "apart from one": _apart(_one),
    "apart from most": _apart(_most),
    "with one": _together(_one),
    "with most": _together(_most),
    "rather apart": _rather(_most, anti=True),
    "rather with": _rather(_one, anti=False),
    "spread": _even(_one, WhenUnsatisfiable.DO_NOT_SCHEDULE),
    "spread of most": _even(_most, WhenUnsatisfiable.DO_NOT_SCHEDULE),
    "soft spread": _even(_one, WhenUnsatisfiable.SCHEDULE_ANYWAY),
    "nodes": _on_nodes,
    "rather nodes": _rather_on_nodes,
    "resources": lambda n, count, _: PodSpec(tuple((f"r{n:03}-{each:03}", 1) for each in range(count))),
    "tolerations": lambda n, count, _: PodSpec(
        tolerations=tuple(Toleration(f"k{n}-{each}", "Exists") for each in range(count))
    ),
    "labels": lambda n, count, _: PodSpec(labels=tuple((f"l{n:03}-{each:03}", "") for each in range(count))),
}


def hostile_pod(kinds: Iterable[str], number: int, count: int, pods: int) -> PodSpec:
    """Return the spec of the pod of this number, of so many, that has `count` of each of these."""
    found = spec(100 + number, namespace=HOSTILE, labels=(("k", f"{number}"),))
    for kind in kinds:
        asked = MADE[kind](number, count, pods)
        joined: dict[str, Any] = {
            name: (*(getattr(found, name) or ()), *value) for name in _JOINED if (value := getattr(asked, name))
        }
        found = replace(found, **joined)
    return replace(found, requests=tuple(sorted(found.requests)), labels=tuple(sorted(found.labels)))


_JOINED = (
    "affinity",
    "host_ports",
    "labels",
    "pod_affinity",
    "pod_anti_affinity",
    "preferred_nodes",
    "preferred_pods",
    "requests",
    "tolerations",
    "topology_spread",
)


def hostile_problem(kinds: Sequence[str], pods: int, count: int, nodes: int = 20) -> Problem:
    """Return so many hostile pods, of which no two are alike, a twentieth as many that run, and five honest pods."""
    made = [hostile_pod(kinds, number, count, pods) for number in range(pods)]
    sets = [PodSet(f"h{number}", each, 1) for number, each in enumerate(made)]
    honest = PodSet("honest", spec(namespace=HONEST, labels=(("app", "web"),)), 5)
    return Problem((*sets, honest), tuple(map(_group, range(9))), tuple(_node(n, made[::20]) for n in range(nodes)))


def _labels(number: int) -> dict[str, str]:
    return {"zone": f"z{number % 3}", "rack": f"r{number % 7}", "machine": f"m{number}"}


def _group(number: int) -> NodeGroup:
    return group(f"g{number}", 4000 * 2 ** (number % 3), 0.2 * 2 ** (number % 3), labels=_labels(number), max_size=1000)


def _node(number: int, running: Sequence[PodSpec]) -> Node:
    here = (RunningPods(running[number], 1),) if number < len(running) else ()
    return node(f"n{number}", 8000, labels=_labels(100 + number), running=here)


class Asked(NamedTuple):
    kinds: Sequence[str]
    pods: int
    of_each: int
    nodes: int

    @property
    def constraints(self) -> int:
        """All that is asked for."""
        return len(self.kinds) * self.pods * self.of_each


hostile = st.builds(
    Asked,
    st.lists(st.sampled_from(sorted(MADE)), min_size=1, max_size=3, unique=True),
    st.integers(5, 40),
    st.integers(1, 40),
    st.sampled_from((0, 20)),
)
"""What `hostile_problem` takes."""


def left_out(plan: Plan, namespace: str, *, why: str = "") -> int:
    """Return how many pods of the namespace have no place: those for this reason alone, if one is given."""
    classes = plan.pod_classes
    mine = (each for each in plan.unplaced if classes[each.pod_class].spec.namespace == namespace)
    return sum(each.count for each in mine if not why or each.reasons == (why,))
