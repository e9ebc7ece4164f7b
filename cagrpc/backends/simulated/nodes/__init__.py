"""Nodes, Leases and kubelets of simulated instances."""
