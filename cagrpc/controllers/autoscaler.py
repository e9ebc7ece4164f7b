"""What a cluster-autoscaler with a cloud provider of its own says in its ConfigMaps: the sizes of its node groups and
which of them it has backed off from (cluster-autoscaler-status), and the priorities of people who use its priority
expander (cluster-autoscaler-priority-expander)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

from cagrpc.api.files.documents import values
from cagrpc.controllers.settings import AutoscalerConfigMapSettings
from cagrpc.errors import InvalidInput, shown, unexpected
from cagrpc.fleet.group_ids import GroupPattern
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding, ObjectIdentity
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.controller import Controller, Json

T = TypeVar("T")

_MOST_WEIGHT = 100
_LEAST_PRIORITY = -1
_STALE_SECONDS = 600.0
"""The autoscaler writes its status in each of its loops; one that it has not written for so long is of another time."""
_LONGEST_REASON = 200
_BACKED_OFF = "Backoff"
_UNLIKE = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""What reading another document than the one expected raises."""


@dataclass(frozen=True, slots=True)
class GroupSize:
    """What the autoscaler's status says of one node group."""

    target_size: int
    max_size: int
    back_off: str = ""
    """Why it has backed off from the group; empty where it has not."""


def read_status(text: str) -> Mapping[str, GroupSize]:
    """Return node groups by id, from the YAML of 1.30 and newer or the text of older releases (upstream:
    clusterstate/api). Raises InvalidInput."""
    if re.match(r"Cluster-autoscaler status at ", text):
        return _of_text(text)
    try:
        groups = (_document(text) or {}).get("nodeGroups") or ()
        return {str(each["name"]): _group_size(each) for each in groups}
    except _UNLIKE as error:
        raise InvalidInput(f"is not a cluster-autoscaler's status: {unexpected(error)}") from error


def _document(text: str) -> Any:
    """Return what the first document of a text in YAML says. Raises ValueError where it is none."""
    problems: list[str] = []
    found = next(values("it", text, problems), None)
    if problems:
        raise ValueError(problems[0])
    return found


def _group_size(group: Mapping[str, Any]) -> GroupSize:
    health, scale_up = group["health"], group.get("scaleUp") or {}
    why = ""
    if scale_up.get("status") == _BACKED_OFF:
        info = scale_up.get("backoffInfo") or {}
        why = ": ".join(filter(None, (info.get("errorCode"), info.get("errorMessage")))) or "no reason given"
    return GroupSize(int(health["cloudProviderTarget"]), int(health["maxSize"]), why[:_LONGEST_REASON])


_NAME = re.compile(r"^  Name:\s+(\S+)", re.MULTILINE)
_SIZES = re.compile(r"^  Health:.*cloudProviderTarget=(\d+) \(minSize=\d+, maxSize=(\d+)\)", re.MULTILINE)
_BACK_OFF_LINE = re.compile(r"^  ScaleUp:\s+Backoff\b", re.MULTILINE)


def _of_text(text: str) -> Mapping[str, GroupSize]:
    names = list(_NAME.finditer(text))
    found = {}
    for name, after in pairwise([*names, None]):
        assert name is not None
        part = text[name.end() : after.start() if after is not None else len(text)]
        if sizes := _SIZES.search(part):
            why = "no reason given" if _BACK_OFF_LINE.search(part) else ""
            found[name[1]] = GroupSize(int(sizes[1]), int(sizes[2]), why)
    return found


@dataclass(frozen=True, slots=True)
class GroupPriorities:
    """The priority expander's, highest first, as weights."""

    patterns: tuple[tuple[int, tuple[GroupPattern, ...]], ...] = ()

    def weight(self, group_id: str) -> int:
        """Return the weight of a group, 1 to 100; 0 where no expression names it: it comes after all that are named."""
        return next((weight for weight, some in self.patterns if any(each.matches(group_id) for each in some)), 0)


def read_priorities(text: str) -> GroupPriorities:
    """Return the priorities of the key `priorities`, a mapping of priorities to regular expressions (upstream:
    expander/priority); one below -1 is never used there. Those from 1 to 100 are weights as they are; where one is not,
    only their order counts. Raises InvalidInput."""
    try:
        every = {int(priority): _patterns(some) for priority, some in _document(text).items()}
    except _UNLIKE as error:
        raise InvalidInput(f"has no priorities that can be read: {error!s:.200}") from error
    read = {priority: some for priority, some in every.items() if priority >= _LEAST_PRIORITY}
    as_they_are = all(1 <= each <= _MOST_WEIGHT for each in read)
    order = {priority: min(_MOST_WEIGHT, rank) for rank, priority in enumerate(sorted(read), 1)}
    return GroupPriorities(
        tuple((priority if as_they_are else order[priority], read[priority]) for priority in sorted(read, reverse=True))
    )


def _patterns(written: Any) -> tuple[GroupPattern, ...]:
    if not isinstance(written, list | None):
        raise TypeError(f"found {shown(written)}, expected a list of regular expressions")
    return tuple(map(GroupPattern, written or ()))


class _Value(Generic[T]):
    """The sink of one ConfigMap's informer: what it says now."""

    def __init__(self, none: T, clock: MonotonicClock) -> None:
        self.now = self._none = none
        self.at_seconds = clock()
        self._clock = clock

    def replaced(self, objects: Iterable[T]) -> None:
        self.applied(next(iter(objects), self._none))

    def applied(self, obj: T) -> None:
        self.now, self.at_seconds = obj, self._clock()

    def deleted(self, of: ObjectIdentity) -> None:  # noqa: ARG002 - it follows one object
        self.now = self._none


class AutoscalerConfigMaps(Controller):
    """Follows both. Nothing waits for them: a cluster may have neither, or let nobody read them."""

    name = "following the cluster-autoscaler's ConfigMaps"

    def __init__(
        self, client: Client, settings: AutoscalerConfigMapSettings, clock: MonotonicClock = monotonic
    ) -> None:
        self._clock = clock
        self._sizes: _Value[Mapping[str, GroupSize]] = _Value({}, clock)
        self._priorities = _Value(GroupPriorities(), clock)
        self._informers: list[Informer[Any]] = [
            _informer(client, settings.namespace, settings.status_config_map, "status", read_status, self._sizes),
            _informer(
                client,
                settings.namespace,
                settings.priority_config_map,
                "priorities",
                read_priorities,
                self._priorities,
            ),
        ]

    @property
    def sizes(self) -> Mapping[str, GroupSize]:
        """Return what the status says of node groups, by id; nothing where it has not been written for long."""
        return self._sizes.now if self._clock() < self._sizes.at_seconds + _STALE_SECONDS else {}

    @property
    def priorities(self) -> GroupPriorities:
        """Return the priority expander's priorities."""
        return self._priorities.now

    def informers(self) -> Sequence[Informer[Any]]:
        return self._informers

    def status(self) -> Json:
        return {"autoscaler_node_groups": len(self.sizes), "autoscaler_priorities": len(self.priorities.patterns)}


def _informer(
    client: Client, namespace: str, name: str, key: str, read: Callable[[str], T], sink: _Value[T]
) -> Informer[T]:
    def decode(document: Mapping[str, Any]) -> T:
        data = document.get("data")
        text = data.get(key) if isinstance(data, dict) else None
        if not isinstance(text, str):
            raise InvalidInput(f"has no key {key}")
        return read(text)

    query = {"fieldSelector": f"metadata.name={name}"}
    resource = Resource(f"/api/v1/namespaces/{namespace}/configmaps", decode, Encoding.JSON, query)
    return Informer(client, resource, sink, needed=False)
