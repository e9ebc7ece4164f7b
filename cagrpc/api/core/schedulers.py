"""Which pods are planned, by default. Whether a pod is one of them is for those who read pods."""

from __future__ import annotations

DEFAULT_SCHEDULER = "default-scheduler"
"""The scheduler of pods that name none."""

DEFAULT_SCHEDULERS = frozenset({DEFAULT_SCHEDULER})

EXPENDABLE_BELOW = -10
"""The default of CA's --expendable-pods-priority-cutoff: for pods of a lower priority no node is added, and none is
kept."""
