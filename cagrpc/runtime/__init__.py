"""What controllers and servers run on: loops, work queues, back-off, heartbeats, clocks. Knows no Kubernetes."""
