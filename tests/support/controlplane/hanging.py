"""`cagrpc` of which a thread hangs for ever at a step of what it changes, with all the locks that it holds there:
`python -m tests.support.controlplane.hanging STEP ARGUMENT...`, with the steps of `dying`. A hanging fleet is noticed
after 3 s instead of minutes."""

from __future__ import annotations

import sys
from threading import Event

from cagrpc.server import leader, process
from tests.support.controlplane.dying import NamedSteps, run


class Hanging(NamedSteps):
    def end(self) -> None:
        Event().wait()


if __name__ == "__main__":
    leader.FLEET_PATIENCE_SECONDS = process.END_SECONDS = 3.0
    sys.exit(run(sys.argv[1:], Hanging))
