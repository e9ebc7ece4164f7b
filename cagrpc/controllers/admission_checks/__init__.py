"""The admission check controller for Kueue (KEP-1136): a Workload starts once its ProvisioningRequests are served."""
