"""Where planned pods go: which place each has (`places`), what that leaves on nodes (`room`),
`status.nominatedNodeName` so that the scheduler takes it (`nominations`), and the start-up taint off nodes whose pods
are nominated (`release`). `controller` does it, level-triggered; see docs/reference/placement.md."""
