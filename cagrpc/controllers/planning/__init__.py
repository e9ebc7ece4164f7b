"""The planner loop (`drive: plan`) and its parts: when to plan, what, with which offerings, as which increments, and
what is told of it. The one way in is `PlanningController`."""

from cagrpc.controllers.planning.controller import PlanningController
from cagrpc.controllers.planning.records import PlanRecord

__all__ = ["PlanRecord", "PlanningController"]
