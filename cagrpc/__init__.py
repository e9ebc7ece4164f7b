"""cagrpc: node groups for the Kubernetes cluster-autoscaler, planned with CP-SAT.

Planning is in the package `solver`, which comes with this one. Another distribution may install a package of that name
over or before it, so it is checked here that it is ours (docs/decisions/0018-solver-package-name.md).
"""

from __future__ import annotations

import solver

if getattr(solver, "DISTRIBUTION", None) != "cagrpc":
    raise ImportError(
        f"the package solver is not cagrpc's: found {solver.__file__ or list(solver.__path__)}; another distribution"
        " or directory of that name hides it or has replaced it. Remove that one and install cagrpc again, best in a"
        " virtual environment of its own"
    )
