"""`cagrpc` without the native front, also where its wheel is installed: `python -m tests.support.python_front ...`."""

from __future__ import annotations

import sys

from cagrpc.cli.main import main
from cagrpc.services.grpc import native

if __name__ == "__main__":
    native.load = lambda: None
    sys.exit(main())
