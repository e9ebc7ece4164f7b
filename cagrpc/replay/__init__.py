"""Recorded conversations with a cluster-autoscaler: recorded, sent again, compared."""
