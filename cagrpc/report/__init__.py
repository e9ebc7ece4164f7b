"""The report on what a cluster costs, what it could cost, and why: reading, planning, values, rendering."""
