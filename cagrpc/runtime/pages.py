"""An HTTP page that some part of the server brings along. Serving it is `services.http`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class SettablePage(Protocol):
    """A JSON object that is read (GET) and changed (PUT) while the server runs."""

    def get(self) -> Mapping[str, Any]:
        """Return the object."""
        ...

    def put(self, change: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change what is named, leave the rest; return the whole. Raises InvalidInput and Unavailable, with nothing
        changed."""
        ...
