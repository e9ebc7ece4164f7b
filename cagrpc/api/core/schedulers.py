"""Which schedulers' pods are planned, by default. Whether a pod is one of them is for those who read pods."""

from __future__ import annotations

DEFAULT_SCHEDULER = "default-scheduler"
"""The scheduler of pods that name none."""

DEFAULT_SCHEDULERS = frozenset({DEFAULT_SCHEDULER})
