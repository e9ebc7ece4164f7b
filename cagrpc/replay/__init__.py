"""Conversations with a cluster-autoscaler: recording, replay and comparison."""
