"""A backend's own place in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cagrpc.fleet.records import BACKEND, OWN, BackendRecord, Changes, Contents

if TYPE_CHECKING:  # it brings SQLite, which a check of the configuration does without
    from cagrpc.fleet.journal import Journal


class BackendRecords:
    """What a backend keeps in the journal, where the cloud itself keeps nothing for it: JSON objects by key. Whoever
    leads has the journal, so the next leader finds them. Every call raises `errors.Unavailable` as the journal's do."""

    def __init__(self, journal: Journal, own: str = "", found: Contents | None = None) -> None:
        """`own` is the place of something other than the backend, which sees nothing of it. `found` is what was found
        in the journal: `read` returns that then, since whoever reads a journal that is being written takes it over
        anew, and a lost answer to that ends its writer."""
        self._journal = journal
        self._kind = OWN if own else BACKEND
        self._place = f"{own}/" if own else ""
        self._found = None if found is None else self._of(found)

    def read(self) -> dict[str, Mapping[str, Any]]:
        """Return them all. It reads the whole journal: call it once, where the backend is opened."""
        return self._of(self._journal.read()) if self._found is None else self._found

    def _of(self, contents: Contents) -> dict[str, Mapping[str, Any]]:
        found = contents.of(self._kind).items()
        return {key.removeprefix(self._place): record.value for key, record in found if key.startswith(self._place)}

    def write(self, changed: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Write these durably, all or none, before it returns; None removes one. What is not the leader's any more is
        refused, so what is asked of a cloud after it is asked by the leader."""
        placed = {f"{self._place}{key}": value for key, value in changed.items()}
        kept = tuple(BackendRecord(key, value) for key, value in placed.items() if value is not None)
        forgotten = tuple(key for key, value in placed.items() if value is None)
        self._journal.commit(
            Changes(own=kept, forgotten_own=forgotten)
            if self._kind is OWN
            else Changes(backend=kept, forgotten_backend=forgotten)
        )
