"""Content that is too large for one object, in parts: FleetRecords `part-…` that are written before the object that
names them, never changed, and deleted after it names others. So an object changes as a whole, however large it is. What
the content means is in `objects`, which object is written when in `journal` and `root`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cagrpc import errors
from cagrpc.kube.client.client import Client
from cagrpc.kube.journal.objects import FLEET_RECORDS, LARGEST_BYTES, Object, part_body, size

PREFIX = "part-"
_NAMES = "parts:"
"""What content begins with that is in parts; their names follow. Packed content has no colon."""
_PART_BYTES = LARGEST_BYTES - 10_000
_SECTIONS = ("spec", "status")


class Parts:
    """Writes, reads and deletes parts. Whoever may not write any more is refused by `check`."""

    def __init__(self, client: Client, check: Callable[[], None]) -> None:
        self._client = client
        self._check = check

    def put(self, body: Object) -> dict[str, Any]:
        """Return the body as it fits into one object: content that is too large is written as parts, the largest
        first."""
        fitting = dict(body)
        by_size = sorted(_SECTIONS, key=lambda name: -len(body.get(name, {}).get("content", "")))
        for section in by_size:
            content = body.get(section, {}).get("content", "")
            if content and size(fitting) > LARGEST_BYTES:
                fitting[section] = {**body[section], "content": self._write(content)}
        return fitting

    def _write(self, content: str) -> str:
        self._check()
        mark = secrets.token_hex(8)
        names = []
        for number, start in enumerate(range(0, len(content), _PART_BYTES)):
            names.append(f"{PREFIX}{mark}-{number}")
            self._client.create(FLEET_RECORDS, part_body(names[-1], content[start : start + _PART_BYTES]))
        return _NAMES + ",".join(names)

    def whole(self, found: Object, known: Mapping[str, Object] | None = None) -> Object:
        """Return the object with its content whole. `known` are FleetRecords by name that were read already. Raises
        ValueError where a part is gone."""
        sections = {name: found[name] for name in _SECTIONS if isinstance(found.get(name), Mapping)}
        joined = {
            name: {**section, "content": "".join(self._read(part, known or {}) for part in names)}
            for name, section in sections.items()
            if (names := _named(section))
        }
        return {**found, **joined} if joined else found

    def _read(self, name: str, known: Mapping[str, Object]) -> str:
        try:
            found = known.get(name) or self._client.get(f"{FLEET_RECORDS}/{name}")
        except errors.NotFound as error:
            raise ValueError(f"its {name} is gone") from error
        return str(found["spec"]["content"])

    def delete(self, names: Iterable[str]) -> None:
        """Delete parts that no object names any more."""
        for name in names:
            self._client.delete(f"{FLEET_RECORDS}/{name}")


def parts_of(found: Object) -> frozenset[str]:
    """Return the names of the parts that an object names."""
    return frozenset(name for section in _SECTIONS for name in _named(found.get(section)))


def _named(section: Any) -> tuple[str, ...]:
    content = section.get("content") if isinstance(section, Mapping) else None
    if not isinstance(content, str) or not content.startswith(_NAMES):
        return ()
    return tuple(content.removeprefix(_NAMES).split(","))
