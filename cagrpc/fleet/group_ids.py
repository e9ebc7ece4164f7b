"""Regular expressions over ids of node groups, searched for as cluster-autoscaler's priority expander does: in Go's
syntax, which is RE2's, and in time that is linear in the length of the id."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import re2

from cagrpc.errors import shown


@dataclass(frozen=True, slots=True)
class GroupPattern:
    """One expression. Raises ValueError where it is none."""

    source: str
    _compiled: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        options = re2.Options()
        options.log_errors = False
        try:
            object.__setattr__(self, "_compiled", re2.compile(self.source, options))
        except re2.error as error:
            why = error.args[0] if error.args else error
            said = why.decode(errors="replace") if isinstance(why, bytes) else why
            raise ValueError(
                f"found {shown(self.source)}, which is not a regular expression of Go (RE2): {said}"
            ) from error

    def matches(self, group_id: str) -> bool:
        """Return whether it is found anywhere in an id."""
        return self._compiled.search(group_id) is not None
