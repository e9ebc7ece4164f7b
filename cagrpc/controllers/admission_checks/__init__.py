"""The admission check controller for Kueue (KEP-1136): a Workload runs once its ProvisioningRequests are served."""
