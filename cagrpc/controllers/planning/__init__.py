"""The planner loop (`drive: plan`) and its parts: when to plan, what, as which increments, and what is reported of it.
Its entry point is `PlanningController`."""

from cagrpc.controllers.planning.controller import PlanningController
from cagrpc.controllers.planning.records import PlanRecord

__all__ = ["PlanRecord", "PlanningController"]
