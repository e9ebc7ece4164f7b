"""Planned pods come to where they were planned: they are nominated (`nominations`), and nodes are released once their
pods are (`release`). Both controllers are level-triggered; see docs/reference/placement.md."""
