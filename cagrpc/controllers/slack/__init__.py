"""The resource slack in a cluster: capacity that is held in reserve by placeholders, on which nodes, and by which
carrier. The entry point is `SlackController`."""
