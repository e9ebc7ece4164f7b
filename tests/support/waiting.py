"""How long tests wait for what is bound to come: a server's answer, another thread, the end of a program."""

from __future__ import annotations

import threading
from collections.abc import Callable

AMPLE_SECONDS = 300.0
"""For any machine, however busy. A wait ends when what it waits for is there, so only failing takes all of it."""


def assert_ends(work: Callable[[], object], what: str) -> None:
    """Do it in another thread, and fail if it waits for something that does not come."""
    thread = threading.Thread(target=work, name=what, daemon=True)
    thread.start()
    thread.join(AMPLE_SECONDS)
    assert not thread.is_alive(), f"{what} does not end"
