"""Pods and Nodes: what they request, what constrains them, and which gang they belong to."""
