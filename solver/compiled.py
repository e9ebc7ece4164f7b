"""Kernels: loops that numpy cannot express, each written once, in plain Python, that the interpreter and numba run to
the same answer, to the bit.

What is here records how a function is to be compiled and calls it, compiled where that is loaded and interpreted where
it is not; it imports no numba, which takes half a second and 50 MiB. `solver.planning.compiling` compiles and loads,
`solver.planning.warm_up` says when.

So that both come to the same, kernels work on arrays of 64-bit integers, 64-bit floats and booleans, and take
exponentials from `math`: numpy has its own, which differ in the last bit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Generic, ParamSpec, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_P = ParamSpec("_P")
_R = TypeVar("_R")

HOW: dict[Callable[..., Any], Mapping[str, Any]] = {}
"""Per function, numba's options for it."""

_NO_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # numba's types lack them
_NO_REFERENCES: dict[str, Any] = {**_NO_WRAPPERS, "_nrt": False}  # nothing allocated, nothing counted


class TooManyStepsError(Exception):
    """What is to be interpreted takes more steps than it may: compiled kernels are for that."""


class Interpreted:
    """What interpreting kernels has come to, and how many steps of it there may be."""

    def __init__(self, most_steps: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.steps, self.seconds = 0, 0.0
        self._most, self._clock = most_steps, clock
        self._adding = threading.Lock()

    @contextmanager
    def taking(self, steps: int) -> Iterator[None]:
        """Count steps before they are taken, and then what they took. Raises TooManyStepsError where they are too
        many."""
        with self._adding:
            if self.steps + steps > self._most:
                raise TooManyStepsError
            self.steps += steps
        began = self._clock()
        try:
            yield
        finally:
            with self._adding:
                self.seconds += self._clock() - began


_COUNTED: ContextVar[Interpreted | None] = ContextVar("interpreted", default=None)


@contextmanager
def interpreted(account: Interpreted) -> Iterator[None]:
    """Count what this thread, and the `Threads` that it starts, interpret."""
    token = _COUNTED.set(account)
    try:
        yield
    finally:
        _COUNTED.reset(token)


def counted() -> bool:
    """Whether what this thread interprets is counted already."""
    return _COUNTED.get() is not None


_WAITS: ContextVar[bool] = ContextVar("waits", default=True)


@contextmanager
def not_waiting() -> Iterator[None]:
    """Let no planning of this thread wait for a compiler: it raises NotCompiledError instead."""
    token = _WAITS.set(False)
    try:
        yield
    finally:
        _WAITS.reset(token)


def waits() -> bool:
    """Whether planning of this thread may wait for a compiler."""
    return _WAITS.get()


class Threads(ThreadPoolExecutor):
    """Threads that count what they interpret where whoever starts them does."""

    def submit(self, fn: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        context = copy_context()
        return super().submit(lambda: context.run(fn, *args, **kwargs))


class Kernel(Generic[_P, _R]):
    """A function that callers see: the compiled one where that is loaded."""

    def __init__(self, written: Callable[_P, _R], steps: Callable[..., int]) -> None:
        """`steps` estimates from the arguments how many steps of an innermost loop a call takes, rather too many than
        too few."""
        self.written, self.steps = written, steps
        self.compiled: Callable[_P, _R] | None = None
        self.__name__, self.__doc__ = written.__name__, written.__doc__

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        compiled = self.compiled
        if compiled is not None:
            return compiled(*args, **kwargs)
        account = _COUNTED.get()
        if account is None:
            return self.written(*args, **kwargs)
        with account.taking(self.steps(*args, **kwargs)):
            return self.written(*args, **kwargs)


def kernel(steps: Callable[..., int]) -> Callable[[Callable[_P, _R]], Kernel[_P, _R]]:
    """Record a function that the interpreter calls, to be compiled to run without the interpreter's lock, and kept on
    disk. `steps` is as of `Kernel`."""

    def recorded(function: Callable[_P, _R]) -> Kernel[_P, _R]:
        return Kernel(_recorded(function, nogil=True), steps)

    return recorded


def inner(function: _F) -> _F:
    """Record a function that only kernels call, to be compiled as a part of these: what the interpreter would call it
    by is a tenth of the time that compiling takes."""
    return _recorded(function, nogil=True, **_NO_WRAPPERS)


def step(function: _F) -> _F:
    """Record a function that allocates nothing, to be compiled into those that call it, without counting references:
    for loops of many such steps, each of which passes the same arrays on."""
    return _recorded(function, nogil=True, forceinline=True, **_NO_REFERENCES)


def aside(function: _F) -> _F:
    """As `step`, for what is done rarely."""
    return _recorded(function, nogil=True, **_NO_REFERENCES)


def inlined(function: _F) -> _F:
    """Record a function to be compiled into each one that calls it: for steps of innermost loops, where passing named
    tuples of arrays would cost more than the step."""
    return _recorded(function, inline="always")


def _recorded(function: _F, **how: Any) -> _F:
    HOW[function] = how
    return function
