"""Conversion between external formats (cluster-autoscaler messages, Kubernetes objects, files) and the planner's
values."""
