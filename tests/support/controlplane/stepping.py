"""`cagrpc` on a machine whose wall clock is set while it runs: `python -m tests.support.controlplane.stepping FILE
ARGUMENT...`. The file has the seconds by which the clock is ahead; it is read at each look at the clock. (libfaketime
0.9.10 does the same to any program, but Python's `time.sleep` fails under it.)"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace


def stepping(file: Path, wall: Callable[[], float]) -> Callable[[], float]:
    def now() -> float:
        return wall() + float(file.read_text() or 0)

    return now


def leave_grpc_alone() -> None:
    """gRPC asks the kernel for the time as well, beside Python, and has one clock on any machine. Otherwise it would
    wait for minutes when a server starts, and take deadlines of calls for passed."""
    real = SimpleNamespace(**vars(time))
    for name in ("grpc._cython.cygrpc", "grpc._common", "grpc._server", "grpc._channel"):
        module = importlib.import_module(name)
        if getattr(module, "time", None) is time:
            module.time = real  # type: ignore[attr-defined]


if __name__ == "__main__":
    leave_grpc_alone()
    time.time = stepping(Path(sys.argv[1]), time.time)
    from cagrpc.cli.main import main

    sys.exit(main(sys.argv[2:]))
