"""The autoscaling options of a node group as a plain value. Their message is built in `provider`."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class AutoscalingOptions:
    """How CA treats one node group where that differs from CA's flags; None keeps CA's default."""

    scale_down_utilization_threshold: float | None = None
    scale_down_gpu_utilization_threshold: float | None = None
    scale_down_unneeded_seconds: float | None = None
    scale_down_unready_seconds: float | None = None
    max_node_provision_seconds: float | None = None
    zero_or_max_node_scaling: bool | None = None
    ignore_daemon_sets_utilization: bool | None = None

    @property
    def are_defaults(self) -> bool:
        return all(getattr(self, field.name) is None for field in fields(self))
