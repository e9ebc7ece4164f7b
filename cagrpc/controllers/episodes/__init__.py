"""What pods that waited got from the autoscaler of a cluster, beside what would have been planned for them."""
