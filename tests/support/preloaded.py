"""Imports what a server imports once it needs it, for `forked`: planner, controllers, the client of Kubernetes."""

from __future__ import annotations

import os
from importlib import import_module
from pkgutil import walk_packages

import cagrpc
import solver

_LEFT_OUT = ("cagrpc.testing", "cagrpc.server.opentelemetry")
"""What few processes need, and what not every environment has."""

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as cagrpc.cli.main does; gRPC's C core reads it as it is loaded
for package in (cagrpc, solver):
    for found in walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.startswith(_LEFT_OUT) and not found.name.endswith(".__main__"):
            import_module(found.name)
