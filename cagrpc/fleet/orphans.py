"""Orphans: instances of the backend whose node group nobody serves, say after the journal was lost or by another
configuration over the same cloud. They are reported with the next list; one is deleted only where it carries a token of
ours and no Node of the cluster came of it in the time that an increment has. Instances of a group that is served are no
orphans, whoever ordered them: they count, and the cluster-autoscaler removes those that never register.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container
from dataclasses import dataclass

from cagrpc.fleet.backend import BackendInstance, ReadyNodes
from cagrpc.fleet.lifecycle import must_go
from cagrpc.fleet.model import InstanceState
from cagrpc.fleet.observation import Observation
from cagrpc.fleet.records import Changes, Contents, DeletionRecord

_log = logging.getLogger(__name__)

_MOST_NAMES = 10
_TOKEN = re.compile(r"[0-9a-f]{12}-(.+)-[1-9][0-9]*")
"""Increment, node group and number: see `admission.admit_increment`."""


@dataclass(frozen=True, slots=True)
class _Seen:
    since_seconds: float
    registered: bool
    """Whether a Node of it was in the cluster at any time since."""


class Orphans:
    """The orphans of the last list."""

    def __init__(self, nodes: ReadyNodes | None, grace_seconds: float) -> None:
        """`grace_seconds` without a Node have to pass before one is deleted; without a cluster none is."""
        self._nodes = nodes
        self._grace_seconds = grace_seconds
        self._seen: dict[str, _Seen] = {}
        self.found: tuple[BackendInstance, ...] = ()
        self._listing: tuple[BackendInstance, ...] = ()
        self._served: Container[str] = ()
        self._unserved: tuple[BackendInstance, ...] = ()
        """Those of this list whose groups are not among these."""

    def observe(self, contents: Contents, observed: Observation, served: Container[str], now: float) -> Changes:
        """Find the orphans of a list; return the deletions to journal, empty where there are none."""
        before = {each.id for each in self.found}
        if observed.listing is not self._listing or served is not self._served:
            self._listing, self._served = observed.listing, served
            self._unserved = tuple(each for each in observed.listing if each.node_group not in served)
        self.found = tuple(
            each for each in self._unserved if each.state is not InstanceState.DELETING and not must_go(contents, each)
        )
        new = [each for each in self.found if each.id not in before]
        if new:
            names = ", ".join(f"{each.id} of node group {each.node_group}" for each in new[:_MOST_NAMES])
            _log.warning("orphans, whose node groups are not served, are not counted (%d): %s", len(new), names)
        self._remember(observed, now)
        doomed = [each for each in self.found if self._is_lost(each, now)]
        for each in doomed:
            _log.warning("orphan %s has had no Node for %g s: it is deleted", each.id, self._grace_seconds)
        return Changes(deletions=tuple(DeletionRecord(each.id, each.node_group, now) for each in doomed))

    def _remember(self, observed: Observation, now: float) -> None:
        """Note since when each is seen, and whether it ever had a Node. While the cluster is unreachable any might."""
        if not self.found or self._nodes is None or observed.ready is None:
            self._seen = {}
            return
        registered = self._nodes.node_names()
        before = self._seen
        self._seen = {}
        for each in self.found:
            seen = before.get(each.token, _Seen(now, registered=False))
            self._seen[each.token] = _Seen(min(seen.since_seconds, now), seen.registered or each.id in registered)

    def _is_lost(self, orphan: BackendInstance, now: float) -> bool:
        token, seen = _TOKEN.fullmatch(orphan.token), self._seen.get(orphan.token)
        if token is None or token[1] != orphan.node_group or seen is None or seen.registered:
            return False
        return now >= seen.since_seconds + self._grace_seconds
