"""ProvisioningRequests (autoscaling.x-k8s.io/v1): whole or not at all, over any number of node groups."""
