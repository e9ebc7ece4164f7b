"""The planner loop (`drive: plan`) and its parts: when to plan, what, as which increments, what is reported of it."""
