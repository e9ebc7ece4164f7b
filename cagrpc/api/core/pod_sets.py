"""All pods of an input together: which of their labels selectors of others can see, and which pods are equivalent. One
pod alone is `pods`'s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from cagrpc.api.core.pods import NOWHERE, Pod
from cagrpc.api.core.selectors import LabelProjection, selectors_of
from solver.model import PodSet, PodSpec

K = TypeVar("K")


def with_visible_labels(pods: Mapping[K, Pod]) -> Mapping[K, Pod]:
    """Return the pods with those of their labels and namespaces in their specs that a selector of one of them can see.
    They must be all pods of the input."""
    specs = {id(pod.spec): pod.spec for pod in pods.values()}
    selectors = {selector for spec in specs.values() for selector in selectors_of(spec)}
    if not selectors:
        return pods
    projection = LabelProjection(selectors)
    return {
        key: pod if pod.spec is NOWHERE else replace(pod, spec=projection.identified(pod.spec, pod.identity))
        for key, pod in pods.items()
    }


def group(pods: Iterable[Pod], now_seconds: float = 0.0) -> tuple[tuple[PodSet, ...], dict[str, int]]:
    """Group pods into pod sets of equal spec, priority, gang and kind, in order of first appearance, and return them
    with each pod key's index of its set. A set has waited as long as its oldest pod (0 where `now_seconds` or the pods'
    age is unknown). Duplicate keys count once."""
    indices: dict[tuple[PodSpec, int, str | None, bool], int] = {}
    members_of: list[list[Pod]] = []
    set_of_pod: dict[str, int] = {}
    for pod in pods:
        if pod.key in set_of_pod:
            continue
        gang = pod.gang.name if pod.gang else None
        index = indices.setdefault((pod.spec, pod.priority, gang, pod.placeholder), len(members_of))
        if index == len(members_of):
            members_of.append([])
        members_of[index].append(pod)
        set_of_pod[pod.key] = index
    return tuple(_pod_set(alike, now_seconds) for alike in members_of), set_of_pod


def _pod_set(alike: Sequence[Pod], now_seconds: float) -> PodSet:
    first = alike[0]
    oldest = min((pod.created_at_seconds for pod in alike if pod.created_at_seconds), default=0)
    return PodSet(
        name=first.name,
        spec=first.spec,
        count=len(alike),
        priority=first.priority,
        waiting_seconds=max(0, int(now_seconds) - oldest) if oldest else 0,
        gang=first.gang.name if first.gang else None,
        placeholder=first.placeholder,
    )
