"""Compiled functions: loops that numpy cannot express, at the speed of C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_F = TypeVar("_F", bound=Callable[..., Any])

_NO_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # numba's types lack them
_NO_REFERENCES: dict[str, Any] = {**_NO_WRAPPERS, "_nrt": False}  # nothing allocated, nothing counted


def compiled(function: _F) -> _F:
    """Compile a function to run without the interpreter's lock, cached on disk where the user may write at all."""
    try:
        dispatcher = numba.njit(cache=True, nogil=True)(function)
        _drop_unreadable(dispatcher)
        return cast(_F, dispatcher)
    except RuntimeError:  # neither the package's directory nor the user's cache can be written to
        return cast(_F, numba.njit(nogil=True)(function))


def inner(function: _F) -> _F:
    """Compile a function that only compiled ones call, as a part of these: what the interpreter would call it by is a
    tenth of the time that compiling takes."""
    return cast(_F, numba.njit(nogil=True, **_NO_WRAPPERS)(function))


def step(function: _F) -> _F:
    """Compile a function that allocates nothing into the compiled ones that call it, without counting references: for
    loops of many such steps, each of which passes the same arrays on."""
    return cast(_F, numba.njit(nogil=True, forceinline=True, **_NO_REFERENCES)(function))


def aside(function: _F) -> _F:
    """As `step`, for what is done rarely."""
    return cast(_F, numba.njit(nogil=True, **_NO_REFERENCES)(function))


def inlined(function: _F) -> _F:
    """Compile a function into each one that calls it: for steps of innermost loops, where passing named tuples of
    arrays would cost more than the step."""
    return cast(_F, numba.njit(inline="always")(function))


def interpreted(function: _F) -> _F:
    """Return what was written of a compiled function, for the interpreter to run: where a few calls are not worth
    compiling it once more."""
    return cast(_F, cast(Any, function).py_func)


def _drop_unreadable(dispatcher: Any) -> None:
    """Empty a cache of another version whose named tuples are gone: numba would raise instead of compiling anew."""
    cache = dispatcher._cache  # noqa: SLF001 - numba has no other way to its index
    try:
        cache._cache_file._load_index()  # noqa: SLF001
    except (AttributeError, ImportError):
        cache.flush()
