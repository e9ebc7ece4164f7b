"""Runs one function over many items on few threads, until all are done or one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(name: str, do: Callable[[T], R], items: Iterable[T], workers: int) -> list[R]:
    """Return the result of `do` for each item, in order, using at most `workers` threads in the caller's context. After
    the first error no further call is made; it is raised once running calls have ended."""
    tasks = list(items)
    results: dict[int, R] = {}
    errors: list[BaseException] = []
    left = iter(range(len(tasks)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index = next(left, None)
                if index is None or errors:
                    return
            try:
                results[index] = do(tasks[index])
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                errors.append(error)

    if len(tasks) == 1 or workers == 1:
        return [do(task) for task in tasks]
    threads = [
        threading.Thread(target=copy_context().run, args=(work,), name=f"{name}-{index}", daemon=True)
        for index in range(min(workers, len(tasks)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(tasks))]
