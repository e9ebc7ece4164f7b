"""The node groups that a backend finds, as the fleet takes them: by the same reader, and so with the same weights and
prices, as those that the expander is asked about; and with the limits of the provisioners that take them in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from cagrpc.backends.plugin import FoundGroup
from cagrpc.fleet.fleet import FoundGroups
from cagrpc.fleet.provisioners import Provisioner, limit_of
from cagrpc.runtime.log_once import LogOnce
from cagrpc.services.grpc.template_groups import TemplateGroup, TemplateGroups
from solver.model import Limit, NodeGroup

_log = logging.getLogger(__name__)


class GroupFinder:
    """Returns them, the same object until something changes. For one thread at a time."""

    def __init__(
        self,
        found: Callable[[], Sequence[FoundGroup]],
        templates: TemplateGroups,
        provisioners: Sequence[Provisioner],
        limits: Sequence[Limit],
    ) -> None:
        """`limits` are those of the cluster; those of provisioners are made here."""
        self._find = found
        self._templates = templates
        self._provisioners = provisioners
        self._limits = limits
        self._before: Sequence[FoundGroup] | None = None
        self._read: dict[FoundGroup, TemplateGroup] = {}
        self._last = FoundGroups((), ())
        self._reported = LogOnce()

    def __call__(self) -> FoundGroups:
        found = self._find()
        if found is self._before:
            return self._last
        known = self._read
        self._read = {e: known.get(e) or self._templates.read(e.id, e.template, e.price_usd_per_hour) for e in found}
        groups = tuple(group for e, read in self._read.items() if (group := self._sized(e, read)) is not None)
        limits = [limit for each in self._provisioners if (limit := limit_of(each, _taken_in(each, groups)))]
        self._before, self._last = found, FoundGroups(groups, (*limits, *self._limits))
        return self._last

    def _sized(self, found: FoundGroup, read: TemplateGroup) -> NodeGroup | None:
        """Return the group with the sizes that its cloud tells; None where it is left out."""
        why = read.why_not
        if not 0 <= found.min_size <= found.max_size:
            why = f"has minimum {found.min_size} and maximum {found.max_size}; 0 <= minimum <= maximum must hold"
        if read.group is None or why:
            if self._reported.is_new(why, about=found.id):
                _log.warning("node group %s is left out: it %s", found.id[:100], why)
            return None
        if not read.group.provisioner and self._reported.is_new("", about=found.id):
            _log.info("node group %s is taken in by no provisioner: it has weight %d", found.id, read.group.weight)
        return replace(read.group, min_size=found.min_size, max_size=found.max_size, target_size=0)


def _taken_in(provisioner: Provisioner, groups: Sequence[NodeGroup]) -> Sequence[NodeGroup]:
    return [each for each in groups if each.provisioner == provisioner.name]
