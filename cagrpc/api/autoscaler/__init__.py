"""The messages of the cluster-autoscaler's two gRPC services."""
