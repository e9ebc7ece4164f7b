"""What carries placeholders in a cluster: nothing, CapacityBuffers, or pause pods."""
