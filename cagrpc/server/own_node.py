"""The node that this server runs on. What becomes of a leader that has to leave it is in `standby`."""

from __future__ import annotations

from collections.abc import Callable

NODE_NAME = "NODE_NAME"
"""The environment variable that names it, from the downward API (`spec.nodeName`); without it nothing is known."""


class OwnNode:
    """Finds out that somebody is about to drain the node. For one thread."""

    def __init__(self, name: str, is_cordoned: Callable[[str], bool]) -> None:
        self._name = name
        self._is_cordoned = is_cordoned
        self._before: bool | None = None

    def leaving(self) -> str:
        """Return why a leader should not stay, once for each time that the node is cordoned; empty otherwise. On a node
        that is cordoned already it may lead: who started here was meant to, or has nobody to hand over to."""
        now = bool(self._name) and self._is_cordoned(self._name)
        before, self._before = self._before, now
        return f"the node {self._name} was cordoned: a standby leads from here" if now and before is False else ""
