"""Where planned pods go: the place of each (`places`), what that leaves free (`placed_pods`), the nomination that
makes the scheduler take it (`nominations`), and nodes released once their pods are nominated (`release`). Both
controllers are level-triggered; see docs/reference/placement.md."""
