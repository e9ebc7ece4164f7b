"""What objects of a cluster say of the resource slack: labels and annotations. Which workloads are mirrored and what is
made of them is `cagrpc.controllers`' business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cagrpc.wire.untrusted import whole_number

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


@dataclass(frozen=True, slots=True)
class Mark:
    """What an object says of itself."""

    mirrors: int = 0
    """How many more of its pods room is kept for."""
    excluded: bool = False
    warning: str = ""
    """What of it cannot be meant and was ignored."""


def mark(annotations: Mapping[str, str]) -> Mark | None:
    """None where it says nothing."""
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


def is_pause_pod(labels: Mapping[str, str]) -> bool:
    return labels.get(PLACEHOLDER) == "true"
