"""What controllers and servers run on: the contract and the runner, work queues, back-off, heartbeats, clocks. Knows no
Kubernetes."""
