"""Kernels as the interpreter runs them, in a process that has the compiled ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from solver.compiled import Kernel
from solver.planning import warm_up
from solver.planning.compiling import examples


def kernels() -> list[Kernel[..., Any]]:
    """Return all of them."""
    return [kernel for kernel, _ in examples()]


@contextmanager
def not_loaded() -> Iterator[None]:
    """Let kernels be as in a process that has neither loaded nor interpreted any."""
    before = {kernel: kernel.compiled for kernel in kernels()}
    steps, warm_up._here.interpreted = warm_up._here.interpreted, 0
    try:
        for kernel in before:
            kernel.compiled = None
        yield
    finally:
        for kernel, compiled in before.items():
            kernel.compiled = compiled
        warm_up._here.interpreted = steps
