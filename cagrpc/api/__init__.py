"""Objects of others to the planner's values and back: the autoscaler's messages, Kubernetes objects, files."""
