"""The node groups that the autoscaler asked about, and what would have been chosen, for whoever compares that with what
then came (`cagrpc.controllers.episodes`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock

from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.episodes.model import BEFORE_SECONDS, KnownGroups, ScaleUp
from solver.model import Limit, NodeGroup

_MOST_GROUPS, _MOST_CHOICES = 1_000, 500
UNASKED = "node groups that the autoscaler did not offer: it holds back those that are full, unhealthy or backed off"


@dataclass(frozen=True, slots=True)
class _AskedGroup:
    group: NodeGroup
    estimated: bool
    at_seconds: float


class AskedGroups:
    """A `GroupSource` of episodes. Thread-safe, and bounded whatever is asked."""

    def __init__(self) -> None:
        self._asked: dict[str, _AskedGroup] = {}
        self._limits: tuple[Limit, ...] = ()
        self._choices: deque[ScaleUp] = deque(maxlen=_MOST_CHOICES)
        self._lock = Lock()

    def note(
        self, at_seconds: float, groups: Mapping[str, NodeGroup], estimated: Iterable[str], limits: tuple[Limit, ...]
    ) -> None:
        """Note the groups of a request's options."""
        without = set(estimated)
        with self._lock:
            self._limits = limits
            for name, group in groups.items():
                self._asked.pop(name, None)
                self._asked[name] = _AskedGroup(group, name in without, at_seconds)
            while len(self._asked) > _MOST_GROUPS:
                del self._asked[next(iter(self._asked))]

    def chosen(self, at_seconds: float, node_group: str, nodes: int) -> None:
        """Note what would have been chosen."""
        with self._lock:
            self._choices.append(ScaleUp(at_seconds, node_group, nodes))

    def known(self, state: ClusterState, since_seconds: float) -> KnownGroups:  # noqa: ARG002 - templates say it all
        """Return those that were asked about since then."""
        since = since_seconds - BEFORE_SECONDS
        with self._lock:
            found = [each for each in self._asked.values() if each.at_seconds >= since]
            return KnownGroups(
                tuple(each.group for each in found),
                frozenset(each.group.id for each in found if each.estimated),
                self._limits,
                tuple(each for each in self._choices if each.at_seconds >= since),
                (UNASKED,) if found else (),
            )
