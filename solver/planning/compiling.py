"""Kernels compiled by numba, and kept on disk: by one process, in a directory that others only read.

The directory's name is a digest of all that its content depends on, so it is valid or not there, and whether it is
known without importing numba. What is in it runs on every processor of the architecture: an image that is built on one
machine has it for all.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any
from uuid import uuid4

from solver.columns import knapsack, pricing
from solver.compiled import HOW, Kernel
from solver.integral import annealing, balanced_kernel, packing

_PREFIX = f"kernels-{sys.implementation.cache_tag}-"
_COMPLETE = "complete"
BASE = "NUMBA_CACHE_DIR"
"""The variable that says where kernels are kept; numba's own."""
_HERE = Path(__file__).resolve().parents[1]

Example = tuple[Kernel[..., Any], tuple[Any, ...]]
"""A kernel, and arguments of the types that it is compiled for."""


def examples() -> Iterator[Example]:
    """All kernels."""
    for module in (knapsack, pricing, packing, balanced_kernel, annealing):
        yield from module.examples()


def loaded() -> bool:
    """Whether kernels are compiled in this process."""
    return _last().compiled is not None


def kept() -> Path | None:
    """Return the directory in which all kernels are, compiled by whichever process; None where there is none."""
    return next((each for each in _directories() if (each / _COMPLETE).exists()), None)


def writable() -> Path | None:
    """Return a directory to keep them in, made where it is not there; None where nothing can be written."""
    for each in _directories():
        with suppress(OSError):
            each.mkdir(parents=True, exist_ok=True)
            probe = each / f"probe-{uuid4().hex}"
            probe.touch()
            probe.unlink()
            return each
    return None


def load(directory: Path | None, *, keep: bool = False) -> None:
    """Compile all kernels, those that are not in the directory, and let them be called from now on. With `keep` they
    are written there."""
    compiler = _Compiler(directory, keep=keep)
    made = [(kernel, compiler.compiled(kernel, arguments)) for kernel, arguments in examples()]
    for kernel, dispatcher in made:
        kernel.compiled = dispatcher
    if keep and directory is not None:
        (directory / _COMPLETE).touch()
        for other in directory.parent.glob(f"{_PREFIX}*"):  # of other versions
            if other != directory:
                shutil.rmtree(other, ignore_errors=True)


@cache
def _last() -> Kernel[..., Any]:
    *_, (kernel, _) = examples()
    return kernel


@cache
def _directories() -> tuple[Path, ...]:
    """Where compiled kernels may be: where numba is told to keep what it compiles, beside the source, and in the user's
    cache."""
    told, users, home = (os.environ.get(variable) for variable in (BASE, "XDG_CACHE_HOME", "HOME"))
    users = users or (f"{home}/.cache" if home else None)
    bases = (told, str(_HERE / "__pycache__"), users and f"{users}/cagrpc")
    return tuple(Path(base) / name() for base in bases if base)


@cache
def name() -> str:
    """Return the directory's name: a digest of the kernels' source, of how and by what it is compiled, and of the
    architecture."""
    facts = hashlib.sha256(repr(sorted((each.__qualname__, *how.items()) for each, how in HOW.items())).encode())
    for path in sorted({each.__code__.co_filename for each in HOW} | {__file__}):
        facts.update(Path(path).read_bytes())
    for fact in (*map(version, ("numba", "llvmlite", "numpy")), sys.version, platform.machine(), sys.platform):
        facts.update(fact.encode() + b"\0")
    return f"{_PREFIX}{facts.hexdigest()[:20]}"


class _Compiler:
    """numba, and what it has compiled of this process's kernels."""

    def __init__(self, directory: Path | None, *, keep: bool) -> None:
        numba: Any = import_module("numba")  # half a second and 50 MiB
        numba.core.config.CPU_NAME, numba.core.config.CPU_FEATURES = "generic", ""
        self._numba, self._directory, self._keep = numba, directory, keep
        self._made: dict[Callable[..., Any], Any] = {}

    def compiled(self, kernel: Kernel[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return the kernel, compiled for such arguments."""
        dispatcher = self._of(kernel.written)
        if self._directory is not None:
            dispatcher._cache = _cache_in(self._directory, kernel, keep=self._keep)  # noqa: SLF001 - numba has no other way
        dispatcher.compile(tuple(self._numba.typeof(argument) for argument in arguments))
        return dispatcher

    def _of(self, function: Callable[..., Any]) -> Any:
        """Return what numba compiles of a function: a copy that calls compiled ones where it calls kernels."""
        if function not in self._made:
            assert isinstance(function, FunctionType)
            scope = dict(function.__globals__)
            for name in function.__code__.co_names:
                called = scope.get(name)
                called = called.written if isinstance(called, Kernel) else called
                if isinstance(called, FunctionType) and called in HOW:
                    scope[name] = self._of(called)
            copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
            copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
            self._made[function] = self._numba.njit(**HOW[function])(copy)
        return self._made[function]


def _cache_in(directory: Path, kernel: Kernel[..., Any], *, keep: bool) -> Any:
    """Return what numba asks for what was compiled of a kernel. Its own asks for a directory that can be written, one
    for each source file, and knows of no change in the others."""
    caching, compiler, serialize = (_numba_core(part) for part in ("caching", "compiler", "serialize"))

    def path(signature: Any) -> Path:
        arguments = hashlib.sha256(str(signature).encode()).hexdigest()[:12]
        return directory / f"{kernel.written.__module__}.{kernel.written.__name__}-{arguments}"

    class Kept(caching.NullCache):  # type: ignore[misc, name-defined] # numba has no types
        def load_overload(self, sig: Any, target_context: Any) -> Any:
            target_context.refresh()
            try:
                reduced = pickle.loads(path(sig).read_bytes())  # noqa: S301 - of this user
            except FileNotFoundError:
                return None
            return compiler.CompileResult._rebuild(target_context, *reduced)  # noqa: SLF001

        def save_overload(self, sig: Any, cres: Any) -> None:
            if keep:
                unfinished = path(sig).with_suffix(f".{uuid4().hex}")
                unfinished.write_bytes(serialize.dumps(cres._reduce()))  # noqa: SLF001
                unfinished.replace(path(sig))

    return Kept()


def _numba_core(part: str) -> Any:
    return import_module(f"numba.core.{part}")
