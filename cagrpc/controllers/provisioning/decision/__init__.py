"""Which ProvisioningRequests are served, by which nodes. Pure."""
