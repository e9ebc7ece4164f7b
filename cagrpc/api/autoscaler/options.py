"""The autoscaling options of a node group. Their message is built in `provider`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from pydantic import Field

from cagrpc.forms import Duration, Section

_Fraction = Annotated[float, Field(ge=0, le=1)]


def _up_to_a_year(name: str) -> Duration:
    return Duration("1ms", "8760h", '"10m"', name, was_number=True)


@dataclass(frozen=True, slots=True)
class AutoscalingOptions(Section):
    """What CA is to do with nodes instead of its own flags; a field left out leaves CA's default."""

    scale_down_utilization_threshold: _Fraction | None = None
    scale_down_gpu_utilization_threshold: _Fraction | None = None
    scale_down_unneeded_seconds: Annotated[float, _up_to_a_year("scale_down_unneeded_time")] | None = None
    scale_down_unready_seconds: Annotated[float, _up_to_a_year("scale_down_unready_time")] | None = None
    max_node_provision_seconds: Annotated[float, _up_to_a_year("max_node_provision_time")] | None = None
    zero_or_max_node_scaling: bool | None = None
    ignore_daemon_sets_utilization: bool | None = None

    @property
    def are_defaults(self) -> bool:
        return all(getattr(self, field.name) is None for field in fields(self))

    def over(self, others: AutoscalingOptions | None) -> AutoscalingOptions:
        """Return these, with the others' where there is none of them."""
        if others is None:
            return self
        pairs = ((getattr(self, field.name), getattr(others, field.name)) for field in fields(self))
        return AutoscalingOptions(*(other if own is None else own for own, other in pairs))
