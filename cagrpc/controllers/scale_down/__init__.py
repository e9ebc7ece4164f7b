"""Which nodes the autoscaler may scale down, told by annotations."""
