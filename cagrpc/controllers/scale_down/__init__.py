"""Which nodes the autoscaler may scale down, marked by annotations."""
