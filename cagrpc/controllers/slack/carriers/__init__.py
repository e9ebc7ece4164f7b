"""Carriers of placeholders: the planner alone, CapacityBuffers, or pause pods."""
