"""The journal's records as custom resources, and back.

Pure: nothing is read or written here. `journal` decides when which object is written, `deploy/crds.yaml` has the
schema.

An Increment has the readable part of a record in plain fields, and the whole record (members, pods, placements) packed:
JSON, compressed, base64. What never changes is in `spec`, the rest in `status`. All other records share FleetRecords,
the pages; a record's key determines its page.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from cagrpc import errors
from cagrpc.api.encoding.json_documents import json_value, mapping, timestamp
from cagrpc.fleet.model import IncrementSpec
from cagrpc.fleet.records import INCREMENTS as INCREMENT_RECORDS
from cagrpc.fleet.records import KINDS, Contents, IncrementRecord, MemberState, RecordKind

API = "/apis/cagrpc.io/v1alpha1"
INCREMENTS = f"{API}/increments"
FLEET_RECORDS = f"{API}/fleetrecords"

ROOT = "journal"
"""The FleetRecord that says what is in force; see `root`."""

PAGES = tuple(f"page-{number:02d}" for number in range(16))
"""The FleetRecords of all records but increments. Their number is part of the stored form."""

LARGEST_BYTES = 1_500_000
"""The size of one object as JSON: etcd takes requests of 1.5 MiB (--max-request-bytes), and the API server adds
metadata."""

PAGED: tuple[RecordKind[Any], ...] = tuple(kind for kind in KINDS if kind is not INCREMENT_RECORDS)
"""Kinds of records that share pages."""

NOTHING_PENDING: Mapping[str, Any] = {kind.plural: {} for kind in KINDS}
"""What the root carries for objects that may lack it, by kind and key."""

_MOST_UNPACKED = 256 * 1024 * 1024
"""Bytes: four times those of an increment of 100,000 nodes. A packed megabyte may stand for a thousand."""

_LONGEST_TEXT = 1000
"""How long a reason or message for people is; the whole of it is in the packed part."""

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What reading raises for objects that were not written here."""

Object = Mapping[str, Any]
R = TypeVar("R")


def pack(value: object) -> str:
    """Return anything that JSON can say, as ASCII text."""
    text = json.dumps(value, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode())).decode()


def unpack(text: str) -> Any:
    """Return what `pack` has made this text of. Raises ValueError for anything else."""
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(base64.b64decode(text, validate=True), _MOST_UNPACKED)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacking.eof:
        raise ValueError(f"it ends too early, or is more than {_MOST_UNPACKED} bytes long")
    try:
        return json_value(data)
    except errors.InvalidInput as error:
        raise ValueError(str(error)) from error


def size(body: Object) -> int:
    """Return how many bytes an object has on its way."""
    return len(json.dumps(body))


def increment_body(record: IncrementRecord) -> dict[str, Any]:
    """Return the whole Increment of a record."""
    increment = INCREMENT_RECORDS.value(record)["increment"]
    placed = {pod for placement in increment["placements"] for pod in placement["pods"]}
    pods = set(increment["pods"])
    if placed <= pods:  # always so where a planner made it: each pod is kept once
        increment["pods"] = sorted(pods - placed)
        increment["placed_too"] = True
    spec = {
        "summary": ", ".join(f"{group}+{delta}" for group, delta in record.increment.deltas.items())[:_LONGEST_TEXT],
        "groups": [{"nodeGroup": group, "nodes": delta} for group, delta in record.increment.deltas.items()],
        "origin": str(record.increment.origin),
        "reason": record.increment.reason[:_LONGEST_TEXT],
        "plan": record.increment.plan,
        "pods": len(record.increment.pods),
        "content": pack(increment),
    }
    if record.increment.cost_usd_per_hour is not None:
        spec["costPerHour"] = round(record.increment.cost_usd_per_hour, 4)
    if record.increment.gap is not None:
        spec["gap"] = round(record.increment.gap, 4)
    return {**head("Increment", record.id), "spec": spec, "status": increment_status(moving(record))}


def moving(record: IncrementRecord) -> dict[str, Any]:
    """Return all of a record that is not the increment itself: what a commit to a known increment changes."""
    value = INCREMENT_RECORDS.value(replace(record, increment=IncrementSpec({})))
    del value["increment"]
    return value


def increment_status(moving_part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `status` of an Increment. Always the same keys, so that it can be sent as a merge patch."""
    states = Counter(member["state"] for member in moving_part["members"])
    return {
        "phase": moving_part["phase"],
        "message": moving_part["message"][:_LONGEST_TEXT],
        "nodes": {str(state).partition("-")[0]: states[state] for state in MemberState},
        "createdAt": timestamp(moving_part["created_at_seconds"]),
        "deadlineAt": timestamp(moving_part["deadline_at_seconds"]),
        "content": pack(moving_part),
    }


def increment_from(found: Object, moved: Mapping[str, Any] | None = None) -> IncrementRecord:
    """Return the record of an Increment, with its moving part replaced by `moved` where that is newer. Raises
    ValueError, KeyError or TypeError for anything that was not written here."""
    increment = unpack(found["spec"]["content"])
    if increment.pop("placed_too", False):
        placed = {pod for placement in increment["placements"] for pod in placement["pods"]}
        increment["pods"] = sorted(placed.union(increment["pods"]))
    rest = unpack(found["status"]["content"]) if moved is None else moved
    return INCREMENT_RECORDS.record({**rest, "increment": increment})


def page_of(key: str) -> str:
    """Return the name of the page that keeps the record of this key, of any kind but an increment."""
    return PAGES[zlib.crc32(key.encode()) % len(PAGES)]


def page_bodies(names: Iterable[str], contents: Contents) -> dict[str, Object]:
    """Return these pages as they are with these contents."""
    pages: dict[str, dict[str, dict[str, Any]]] = {name: {kind.plural: {} for kind in PAGED} for name in names}
    for kind in PAGED:
        for key, record in contents.of(kind).items():
            if (name := page_of(key)) in pages:
                pages[name][kind.plural][key] = kind.value(record)
    return {
        name: {
            **head("FleetRecord", name),
            "spec": {
                "deletions": len(page["deletions"]),
                "nodeGroups": len(page["groups"]),
                "content": pack(page),
            },
        }
        for name, page in pages.items()
    }


def part_body(name: str, content: str) -> dict[str, Any]:
    """Return a part of the content of another object."""
    return {**head("FleetRecord", name), "spec": {"content": content}}


def contents_from(increments: Iterable[Object], pages: Iterable[Object], pending: Mapping[str, Any]) -> Contents:
    """Return the contents in force: what the objects say, with what is pending put over it. Raises
    `InvalidConfiguration` with everything that cannot be read."""
    problems: list[str] = []
    records = [
        _read(f"increment {name}", partial(increment_from, item, pending["increments"].get(name)), problems)
        for item, name in ((each, _name(each)) for each in increments)
    ]
    paged: dict[str, dict[str, Any]] = {kind.plural: {} for kind in PAGED}
    for page in pages:
        content = _read(f"fleetrecord {_name(page)}", partial(_page_content, page), problems) or {}
        for plural, values in content.items():
            paged[plural] |= values
    result = Contents(
        [record for record in records if record is not None],
        *(_read_all(kind, {**paged[kind.plural], **pending[kind.plural]}, problems) for kind in PAGED),
    )
    if problems:
        raise errors.InvalidConfiguration(problems)
    return result


def by_age(increments: Iterable[Object]) -> list[str]:
    """Return names of Increments in order of creation, as well as can be told without a root."""
    found = [(str(i["status"]["createdAt"]), str(i["metadata"]["name"])) for i in increments]
    return [name for _, name in sorted(found)]


def version(found: Object) -> str:
    """Return the resource version."""
    return str(found["metadata"]["resourceVersion"])


def at_version(body: Object, version: str) -> dict[str, Any]:
    """Return the body, to be taken only where this resource version is still in force."""
    return {**body, "metadata": {**body["metadata"], "resourceVersion": version}}


def damaged(place: str, error: Exception) -> str:
    found = f"{type(error).__name__}: {error}"
    return f"journal in the cluster: {place} cannot be read ({found}); restore it, or delete it to go on without it"


def _name(found: Object) -> str:
    return str(mapping(found, "metadata").get("name") or "")


def _page_content(page: Object) -> dict[str, dict[str, Any]]:
    content = {
        "disruptions": {},
        "backend": {},
        "own": {},
        **unpack(page["spec"]["content"]),
    }  # which earlier releases do not have
    return {kind.plural: dict(content[kind.plural]) for kind in PAGED}


def _read_all(kind: RecordKind[R], values: Mapping[str, Any], problems: list[str]) -> list[R]:
    read = [
        _read(f"{kind.what} {key}", partial(kind.record, values[key]), problems)
        for key in sorted(values)
        if values[key] is not None
    ]
    return [record for record in read if record is not None]


def _read(place: str, parse: Callable[[], R], problems: list[str]) -> R | None:
    try:
        return parse()
    except UNREADABLE as error:
        problems.append(damaged(place, error))
        return None


def head(kind: str, name: str) -> dict[str, Any]:
    """Return what every object has."""
    labels = {"app.kubernetes.io/managed-by": "cagrpc"}
    return {"apiVersion": "cagrpc.io/v1alpha1", "kind": kind, "metadata": {"name": name, "labels": labels}}
