"""`cagrpc` without the native front, also where its wheel is installed: `python -m tests.support.python_front ...`."""

from __future__ import annotations

import sys

from cagrpc.cli.main import main

if __name__ == "__main__":
    sys.modules["cagrpc_native"] = None  # type: ignore[assignment]  # as where it is not installed
    sys.exit(main())
