"""What objects of a cluster say of the resource slack: labels and annotations. Which workloads are mirrored and what is
made of them is `cagrpc.controllers`' business."""

from __future__ import annotations

from collections.abc import Mapping

MIRROR = "slack.cagrpc.io/mirror"
"""Annotation of a pod or workload: room is kept for so many more of its pods ([S7]); empty and "true" are one."""
EXCLUDE = "slack.cagrpc.io/exclude"
"""Annotation of a pod or workload: with "true" no room is kept for the size of its pods ([R6])."""
PLACEHOLDER = "slack.cagrpc.io/placeholder"
"""Label of the pause pods of the carrier `pods`, with "true": they give way, and are nobody's demand."""
SHAPE = "slack.cagrpc.io/shape"
"""Annotation of the same: the name of the shape (`SlackShape.name`) that the pod stands for."""

MOST_MIRRORS = 1000
"""Of one workload; a larger number is taken for a mistake."""


def mirrored(annotations: Mapping[str, str]) -> int:
    """How many more pods room is kept for. Raises ValueError for what cannot be meant."""
    text = annotations.get(MIRROR)
    if text is None or text in ("0", "false"):
        return 0
    if text in ("", "true"):
        return 1
    if not text.isdecimal() or int(text) > MOST_MIRRORS:
        raise ValueError(f'annotation {MIRROR}: found "{text:.60}", expected a whole number up to {MOST_MIRRORS}')
    return int(text)


def excluded(annotations: Mapping[str, str]) -> bool:
    return annotations.get(EXCLUDE) == "true"


def is_pause_pod(labels: Mapping[str, str]) -> bool:
    return labels.get(PLACEHOLDER) == "true"
