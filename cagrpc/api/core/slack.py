"""Labels and annotations of the resource slack. Which workloads are mirrored, and what follows, is in
`cagrpc.controllers.slack`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cagrpc.api.encoding.json_documents import whole_number
from cagrpc.api.gen import kubernetes_pb2

MIRROR = "slack.cagrpc.io/mirror"
"""Annotation of a pod or workload: capacity is reserved for this many more of its pods; empty and "true" mean
one."""
EXCLUDE = "slack.cagrpc.io/exclude"
"""Annotation of a pod or workload: with "true" no capacity is reserved for the size of its pods."""
PLACEHOLDER = "slack.cagrpc.io/placeholder"
"""Label of the pause pods of the carrier `pods`, with "true". Any user can set it: see `is_pause_pod`."""
SHAPE = "slack.cagrpc.io/shape"
"""Annotation of pause pods: the name of the shape (`SlackShape.name`) that the pod stands for."""

PRIORITY_CLASS, PRIORITY = "cagrpc-slack", -10
"""The PriorityClass of pause pods, below the default of user pods; CA ignores pods below -10
(`--expendable-pods-priority-cutoff`), not those at -10."""

MOST_MIRRORS = 1000
"""Per workload; a larger number is treated as a mistake."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The slack annotations of an object."""

    mirrors: int = 0
    """How many more of its pods to reserve capacity for."""
    excluded: bool = False
    warning: str = ""
    """Invalid fields that were ignored."""


def mark(annotations: Mapping[str, str]) -> Mark | None:
    """Read the annotations; return None where there are none."""
    if MIRROR not in annotations and EXCLUDE not in annotations:
        return None
    excluded = annotations.get(EXCLUDE) == "true"
    text = annotations.get(MIRROR, "0")
    if text in ("", "true"):
        return Mark(1, excluded)
    if text == "false":
        return Mark(0, excluded)
    number = whole_number(text, MOST_MIRRORS)
    if number is not None:
        return Mark(number, excluded)
    return Mark(0, excluded, f'annotation {MIRROR}: found "{text:.60}", expected a whole number up to {MOST_MIRRORS}')


def is_pause_pod(pod: kubernetes_pb2.Pod, namespace: str) -> bool:
    """Return whether it is a pause pod of the slack in this namespace, which is preemptible and not planned. Any user
    who can create pods can set the label, so namespace, owner and priority must match as well."""
    metadata = pod.metadata
    return (
        metadata.labels.get(PLACEHOLDER) == "true"
        and metadata.namespace == namespace
        and (pod.spec.priorityClassName, pod.spec.priority) == (PRIORITY_CLASS, PRIORITY)
        and any(owner.controller and owner.kind == "ReplicaSet" for owner in metadata.ownerReferences)
    )
