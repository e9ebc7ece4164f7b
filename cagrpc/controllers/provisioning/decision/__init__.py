"""Decides which ProvisioningRequests are served, by which nodes. Pure; `planning` is the entry point."""
