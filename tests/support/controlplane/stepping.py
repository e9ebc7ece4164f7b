"""`cagrpc` on a machine whose wall clock is set while it runs: `python -m tests.support.controlplane.stepping FILE
ARGUMENT...`. The file has the seconds by which the clock is ahead; it is read at each look at the clock. (libfaketime
0.9.10 does the same to any program, but Python's `time.sleep` fails under it.)"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path


def stepping(file: Path, wall: Callable[[], float]) -> Callable[[], float]:
    def now() -> float:
        return wall() + float(file.read_text() or 0)

    return now


if __name__ == "__main__":
    time.time = stepping(Path(sys.argv[1]), time.time)
    from cagrpc.cli.main import main

    sys.exit(main(sys.argv[2:]))
