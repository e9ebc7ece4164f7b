"""What keeps pods away from nodes and from each other, as constraints that explanations can remove and change. Sizes
and limits are in `capacity`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from solver.explanation.model import ConstraintChange, ConstraintKind
from solver.model import (
    ATTACHABLE_VOLUMES,
    CPU,
    MEMORY,
    HostPort,
    PodAffinityTerm,
    PodClass,
    PodSpec,
    Problem,
    Resources,
    Taint,
    TaintEffect,
    Toleration,
    TopologySpread,
    WhenUnsatisfiable,
)
from solver.model.eligibility import node_terms_text, selects, tolerates
from solver.model.quantities import format_quantity, resource_words
from solver.model.validation import MAX_COUNT
from solver.planning.reasons import between_pods

_SMALLEST_PART = 4
"""People are not told to lower a request to less than one of so many parts of it."""


def _taints(problem: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    found = {taint for group in problem.node_groups for taint in group.taints}
    found |= {taint for node in problem.nodes for taint in node.taints}
    hard = [taint for taint in found if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE]
    for each in classes:
        for taint in sorted(hard, key=lambda t: (t.key, t.value, t.effect)):
            if not any(tolerates(toleration, taint) for toleration in each.spec.tolerations):
                yield ConstraintChange("toleration", each.example, taint.key, pods=each, part=taint)


def _tolerate(spec: PodSpec, change: ConstraintChange) -> PodSpec:
    assert isinstance(change.part, Taint)
    taint = change.part
    return replace(
        spec, tolerations=(*spec.tolerations, Toleration(taint.key, "Equal", taint.value, taint.effect.value))
    )


def _having(
    kind: str, asked: Callable[[PodSpec], object]
) -> Callable[[Problem, Sequence[PodClass]], Iterator[ConstraintChange]]:
    """Return what finds the classes whose specs ask for something."""

    def find(_: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
        return (ConstraintChange(kind, each.example, pods=each) for each in classes if asked(each.spec))

    return find


def _selectors(_: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    for each in classes:
        for key, _value in each.spec.node_selector:
            yield ConstraintChange("node_selector", each.example, key, pods=each)


def _unselect(spec: PodSpec, change: ConstraintChange) -> PodSpec:
    return replace(spec, node_selector=tuple(pair for pair in spec.node_selector if pair[0] != change.key))


def _selector_text(change: ConstraintChange) -> str:
    assert change.pods is not None
    return f"{change.key}={dict(change.pods.spec.node_selector)[change.key]}"


def _reach(change: ConstraintChange) -> str:
    assert change.pods is not None
    return "; ".join(map(node_terms_text, change.pods.spec.node_terms))


def _unschedulable_text(change: ConstraintChange) -> str:
    assert change.pods is not None
    return change.pods.spec.unschedulable


def _requests(_: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    for each in classes:
        # What few nodes have says more than what all have, where either is enough.
        for resource, amount in sorted(each.spec.requests, key=lambda request: request[0] in (CPU, MEMORY)):
            if amount:
                yield ConstraintChange("request", each.example, resource, amount, 0, each)


def still_the_pod(change: ConstraintChange) -> ConstraintChange | None:
    """Return the change that leaves a quarter of the request, rounded up: what asks for less, or for no device at all
    where it asked for one, is another pod. None where that is the whole request."""
    assert change.before is not None
    if change.key.startswith(ATTACHABLE_VOLUMES):  # a pod without one of its volumes is another pod
        return None
    least = -(-change.before // _SMALLEST_PART)
    return replace(change, after=least) if least < change.before else None


def _ask(spec: PodSpec, change: ConstraintChange) -> PodSpec:
    amounts: Resources = {**dict(spec.requests), change.key: change.whole}
    return replace(
        spec,
        requests=tuple(sorted((name, amount) for name, amount in amounts.items() if amount)),
        shared_volumes=tuple(each for each in spec.shared_volumes if each[0] != change.key),
    )


# What a pod requires of other pods


def _terms(kind: str, field: str) -> Callable[[Problem, Sequence[PodClass]], Iterator[ConstraintChange]]:
    def find(_: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
        for each in classes:
            for term in dict.fromkeys(getattr(each.spec, field)):
                if getattr(term, "when_unsatisfiable", None) is not WhenUnsatisfiable.SCHEDULE_ANYWAY:
                    key = str(term.port) if isinstance(term, HostPort) else term.topology_key
                    yield ConstraintChange(kind, each.example, key, pods=each, part=term)

    return find


def _dropped(field: str) -> Callable[[PodSpec, ConstraintChange], PodSpec]:
    def drop(spec: PodSpec, change: ConstraintChange) -> PodSpec:
        kept: Any = tuple(term for term in getattr(spec, field) if term != change.part)
        return replace(spec, **{field: kept})

    return drop


def _not_of_a_claim(change: ConstraintChange) -> ConstraintChange | None:
    """Return None for what keeps the pods of a shared claim together: nobody can drop that."""
    return None if isinstance(change.part, PodAffinityTerm) and change.part.alone else change


def _less_even(change: ConstraintChange) -> ConstraintChange:
    assert isinstance(change.part, TopologySpread)
    return replace(change, kind="max_skew", before=change.part.max_skew, after=MAX_COUNT)


def _respread(spec: PodSpec, change: ConstraintChange) -> PodSpec:
    assert isinstance(change.part, TopologySpread)
    looser = replace(change.part, max_skew=change.whole)
    return replace(spec, topology_spread=tuple(looser if t == change.part else t for t in spec.topology_spread))


def _anti_affinities(problem: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    """Yield the anti-affinity terms of the classes, and of the pods beside them that repel them."""
    yield from _terms("pod_anti_affinity", "pod_anti_affinity")(problem, classes)
    own = {each.spec for each in classes}
    for pods in problem.pod_sets:
        repelling = _repelling(pods.spec, classes)
        if repelling and pods.spec not in own:
            other = PodClass(-1, pods.spec, pods.count, pods.name, pods.priority, pods.gang, pods.placeholder)
            for term in repelling:
                yield ConstraintChange("pod_anti_affinity", pods.name, term.topology_key, pods=other, part=term)


def _repelling(spec: PodSpec, classes: Sequence[PodClass]) -> tuple[PodAffinityTerm, ...]:
    """Return the anti-affinity terms of a spec that repel pods of any of the classes."""
    return tuple(
        term
        for term in dict.fromkeys(spec.pod_anti_affinity)
        if any(selects(term.selector, each.spec.namespace, dict(each.spec.labels)) for each in classes)
    )


def _running(problem: Problem, classes: Sequence[PodClass]) -> Iterator[ConstraintChange]:
    found = {term for node in problem.nodes for pods in node.running for term in _repelling(pods.spec, classes)}
    for term in sorted(found, key=repr):
        yield ConstraintChange("running_anti_affinity", "pods that run", term.topology_key, part=term)


def _move(problem: Problem, change: ConstraintChange) -> Problem:
    drop = _dropped("pod_anti_affinity")
    return replace(
        problem,
        nodes=tuple(
            replace(node, running=tuple(replace(pods, spec=drop(pods.spec, change)) for pods in node.running))
            for node in problem.nodes
        ),
    )


def _words(change: ConstraintChange) -> str:
    """Return the constraint between pods that a change drops or loosens, in words."""
    assert isinstance(change.part, HostPort | PodAffinityTerm | TopologySpread)
    fields = {"host_port": "host_ports", "max_skew": "topology_spread"}
    spec = PodSpec(**{fields.get(change.kind, change.kind): (change.part,)})  # type: ignore[arg-type]
    return next(iter(between_pods(spec)))


def like(change: ConstraintChange) -> str:
    """Return the pods that a change is about, in words."""
    return f"pods like {change.subject}"


def amount_text(change: ConstraintChange, amount: int | None) -> str:
    """Return an amount of the resource that a change is about, in words."""
    return format_quantity(change.key, amount or 0)


def _asked(change: ConstraintChange) -> str:
    to = amount_text(change, change.after)
    return f"lower the {change.key} request of {like(change)} from {amount_text(change, change.before)} to {to}"


KINDS = (
    ConstraintKind(
        "toleration",
        _taints,
        lambda c: f"{like(c)} do not tolerate the taint {c.part}",
        lambda c: f"let {like(c)} tolerate the taint {c.part}",
        edit_pods=_tolerate,
    ),
    ConstraintKind(
        "node_selector",
        _selectors,
        lambda c: f"{like(c)} have the node selector {_selector_text(c)}",
        lambda c: f"drop the node selector {_selector_text(c)} of {like(c)}",
        edit_pods=_unselect,
    ),
    ConstraintKind(
        "node_affinity",
        _having("node_affinity", lambda spec: spec.affinity is not None),
        lambda c: f"{like(c)} have a required node affinity",
        lambda c: f"drop the required node affinity of {like(c)}",
        edit_pods=lambda spec, _: replace(spec, affinity=None),
    ),
    ConstraintKind(
        "node_terms",
        _having("node_terms", lambda spec: spec.node_terms),
        lambda c: f"{like(c)} use volumes or devices that need {_reach(c)}",
        None,
        edit_pods=lambda spec, _: replace(spec, node_terms=()),
    ),
    ConstraintKind(
        "unschedulable",
        _having("unschedulable", lambda spec: spec.unschedulable),
        lambda c: f"{like(c)} cannot be scheduled for now: {_unschedulable_text(c)}",
        lambda c: f"resolve what keeps {like(c)} waiting: {_unschedulable_text(c)}",
        edit_pods=lambda spec, _: replace(spec, unschedulable=""),
    ),
    ConstraintKind(
        "host_port",
        _terms("host_port", "host_ports"),
        lambda c: f"{like(c)} have {_words(c)}",
        lambda c: f"drop the {_words(c).split(' ', 1)[1]} of {like(c)}",
        edit_pods=_dropped("host_ports"),
    ),
    ConstraintKind(
        "pod_affinity",
        _terms("pod_affinity", "pod_affinity"),
        lambda c: f"{like(c)} have {_words(c)}",
        lambda c: f"drop the {_words(c).split(' ', 1)[1]} of {like(c)}",
        edit_pods=_dropped("pod_affinity"),
        offered=_not_of_a_claim,
    ),
    ConstraintKind(
        "pod_anti_affinity",
        _anti_affinities,
        lambda c: f"{like(c)} have {_words(c)}",
        lambda c: f"drop the {_words(c).split(' ', 1)[1]} of {like(c)}",
        edit_pods=_dropped("pod_anti_affinity"),
    ),
    ConstraintKind(
        "running_anti_affinity",
        _running,
        lambda c: f"{c.subject} already have a required pod anti-affinity over {c.key} that counts them",
        lambda c: f"move {c.subject} away whose pod anti-affinity over {c.key} counts them",
        edit_problem=_move,
    ),
    ConstraintKind(
        "topology_spread",
        _terms("topology_spread", "topology_spread"),
        lambda c: f"{like(c)} have {_words(c)}",
        lambda c: f"drop the {_words(c).split(' ', 1)[1]} of {like(c)}",
        edit_pods=_dropped("topology_spread"),
        milder=_less_even,
    ),
    ConstraintKind(
        "max_skew",
        lambda *_: (),
        lambda c: f"{like(c)} have {_words(c)}",
        lambda c: f"raise maxSkew of the spread over {c.key} of {like(c)} from {c.before} to {c.after}",
        edit_pods=_respread,
    ),
)

REQUEST = ConstraintKind(
    "request",
    _requests,
    lambda c: f"{like(c)} ask for {amount_text(c, c.before)} {resource_words(c.key)}",
    _asked,
    edit_pods=_ask,
    offered=still_the_pod,
)
