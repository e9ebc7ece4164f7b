"""What bench/hunt.py hunts with: random clusters, what is planned for them, what the scheduler says, and shrinking."""
