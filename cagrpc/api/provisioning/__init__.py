"""ProvisioningRequests and PodTemplates."""
