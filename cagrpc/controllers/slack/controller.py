"""The slack's loop: looks at the cluster, works out what is wanted and where it is held, publishes that, has it
carried, and writes it down. Where nothing has changed nothing is worked out again.

Carriers differ in who makes room; there is one set of placeholders, and one placement of them.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Protocol

from prometheus_client.registry import Collector

from cagrpc.cluster.fleet_capacity import deleting_instances
from cagrpc.cluster.node_info import ClusterCapacity, Reservations, nothing_reserved
from cagrpc.cluster.state import ClusterNode, ClusterSource, ClusterState
from cagrpc.controllers.slack.carriers.carrier import Carrying
from cagrpc.controllers.slack.costs import costs
from cagrpc.controllers.slack.demand import ShapesOfNodes, over_share, targets
from cagrpc.controllers.slack.model import SlackSettings, SlackState, target_of
from cagrpc.controllers.slack.page import SlackMetrics, as_json
from cagrpc.errors import CagrpcError
from cagrpc.fleet.model import FleetSnapshot, SnapshotSource
from cagrpc.runtime.back_off import BackOff, Retry
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from cagrpc.runtime.controller import Controller, Json, JsonPage
from cagrpc.runtime.log_once import LogOnce
from cagrpc.runtime.stopping import STOP_SECONDS
from solver.model import Node, NodeGroup
from solver.slack.amount import wanted
from solver.slack.model import Placement, Settled, SlackDemand, SlackShape, SlackTarget
from solver.slack.placement import settle

log = logging.getLogger(__name__)

STEP_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 1.0
_MOST_WARNINGS = 5


class Book(Protocol):
    """What is written down of the slack, so that a restart leaves placeholders where they are."""

    def placements(self) -> Placement:
        """As they were written last. Raises Unavailable."""
        ...

    def write(self, state: SlackState) -> None:
        """Raises Unavailable or Conflict; it is called again then. Not everything has to be written at once."""
        ...


class SlackController(Controller):
    """`step` is for one thread; all else is for any."""

    name = "the slack"
    every_seconds = STEP_SECONDS
    back_off = BackOff(STEP_SECONDS, 1.0)  # what fails is the view that is not there yet

    def __init__(
        self,
        cluster: ClusterSource,
        fleet: SnapshotSource,
        settings: SlackSettings,
        carrier: Carrying,
        book: Book,
        *,
        now: EpochClock = epoch,
        clock: MonotonicClock = monotonic,
        reservations: Callable[[ClusterState], Reservations] = nothing_reserved,
        carried_by: Callable[[], str] = str,
    ) -> None:
        """`reservations` are those of ProvisioningRequests, `carried_by` names the carrier."""
        self._carried_by = carried_by
        self._cluster, self._fleet = cluster, fleet
        self._settings = settings
        self._carrier, self._book = carrier, book
        self._now = now
        self._reservations = reservations
        self._shapes = ShapesOfNodes()
        self._before: Placement | None = None
        """None before it has been read."""
        self._known: _Known | None = None
        self._state = SlackState(0.0)
        self._problem = "starting"
        self._retry = Retry(BackOff(first_seconds=_FIRST_PAUSE_SECONDS), clock)
        self._reported = LogOnce()
        self._stopping = threading.Event()

    @property
    def state(self) -> SlackState:
        """As it was published last."""
        return self._state

    def current(self) -> SlackState:
        """Return the same, for whoever asks again and again."""
        return self._state

    def reservations(self) -> Reservations:
        """Return room for placeholders on the nodes that they are on."""
        return self._state.reservations()

    @property
    def problem(self) -> str:
        """Why it is not carried as it should be; empty where it is."""
        return self._problem

    def as_json(self) -> Json:
        """Return what is held in reserve, in full."""
        return as_json(self._state, self._carried_by(), self._problem)

    def status(self) -> Json:
        """Return how much of each target is held, and why not all."""
        targets = {name: f"{each.held} of {each.wanted}" for name, each in self._state.by_target().items()}
        return {
            "slack": {
                "carried": self._problem or "as it should be",
                "targets": targets,
                "warnings": list(self._state.warnings[:_MOST_WARNINGS]),
            }
        }

    def pages(self) -> Mapping[str, JsonPage]:
        """Return `/slack`."""
        return {"/slack": JsonPage(self.as_json)}

    def collectors(self) -> Iterable[Collector]:
        """Return the metrics of placeholders."""
        return (SlackMetrics(lambda: self._state),)

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Write nothing more. The cluster stays as it is."""
        self._stopping.set()
        super().stop(wait_seconds)

    def step(self) -> bool:
        """Work out what is wanted and where it is held, and have it carried. Raises Unavailable while the cluster is
        not known. Writing that fails (False) is logged here and has a back-off of its own: what is held is worked out
        all the same."""
        if self._stopping.is_set():
            return True
        if self._before is None:
            self._before = self._carrier.placements()
            if self._before is None:
                self._before = self._book.placements()
        self._look()
        return not self._retry.due or self._write()

    def _write(self) -> bool:
        try:
            carried = self._carrier.carry(self._state)
            self._book.write(self._state)
        except CagrpcError as error:
            if self._reported.is_new(str(error)):
                log.warning("the slack cannot be carried as it should be: %s", error)
            self._problem = str(error)
            self._retry.failed()
            return False
        self._problem = "" if carried else "on its way"
        self._retry.worked()
        self._reported.over()
        return True

    def _look(self) -> None:
        snapshot, state = self._fleet.snapshot, self._cluster.state()
        asked = targets(self._settings, state.slack, self._now())
        ignored = (*over_share(self._settings, state.slack), *state.slack.warnings)
        carried, reservations = self._carrier.placements(), self._reservations(state)
        last, known = self._known, _Known(state, snapshot, asked, carried, reservations, ignored)
        if last is not None and known.same_as(last):
            return
        self._known = known
        standing = _standing(state, snapshot)
        found = self._wanted(asked, standing, snapshot, state)
        shapes = [shape for each in found for shape in each.shapes]
        nodes = ClusterCapacity((each.node for each in standing), reservations).nodes
        settled = _settled(shapes, nodes, (self._before or {}) if carried is None else carried)
        if carried is None or last is None:
            lost = _counts(settled.pushed_out)
        else:  # the scheduler has pushed them out
            lost = Counter(_counts(last.carried or {})) - Counter(_counts(carried))
        self._before = settled.held
        warnings = (*(text for each in found for text in each.warnings), *ignored)
        now = SlackState(
            at_seconds=self._state.at_seconds,
            wanted=found,
            placement=settled.held,
            pushed_out=_pushed_out(settled.left, lost, self._state.pushed_out),
            left_over=settled.left,
            cost_usd_per_hour=costs(shapes, settled.held, standing, snapshot),
            warnings=warnings,
        )
        if now != self._state:
            self._state = replace(now, at_seconds=self._now())

    def _wanted(
        self,
        asked: Sequence[SlackTarget],
        standing: Sequence[ClusterNode],
        snapshot: FleetSnapshot,
        state: ClusterState,
    ) -> tuple[SlackDemand, ...]:
        groups: list[NodeGroup] = [each.group for each in snapshot.groups.values() if each.group.max_size]
        shapes = self._shapes.of((each.node for each in standing), groups, state, asked)
        before: dict[str, list[SlackShape]] = {}
        for shape in self._state.shapes:
            before.setdefault(target_of(shape.name), []).append(shape)
        return tuple(wanted(each, shapes, state.slack.pods, before.get(each.name, ())) for each in asked)


class _Known:
    """All that an observation depends on."""

    def __init__(
        self,
        state: ClusterState,
        snapshot: FleetSnapshot,
        asked: tuple[SlackTarget, ...],
        carried: Placement | None,
        reservations: Reservations,
        warnings: tuple[str, ...],
    ) -> None:
        self.carried = carried
        self._nodes = state.nodes
        self._pods = state.slack.pods
        self._fleet = snapshot
        self._rest = asked, carried, reservations, state.daemon_sets, warnings

    def same_as(self, before: _Known) -> bool:
        """The view gives the same node again where nothing of it has changed."""
        return (
            self._fleet is before._fleet
            and self._pods is before._pods
            and len(self._nodes) == len(before._nodes)
            and all(map(is_, self._nodes, before._nodes))
            and self._rest == before._rest
        )


def _standing(state: ClusterState, snapshot: FleetSnapshot) -> list[ClusterNode]:
    """Nodes that are Ready and let go; not those on their way out."""
    going = deleting_instances(snapshot)
    return [each for each in state.nodes if each.ready and not each.held and each.provider_id not in going]


def _settled(shapes: Sequence[SlackShape], nodes: Sequence[Node], before: Placement) -> Settled:
    """Placeholders stay where they are, unless more of them are held by moving some: that opens no node."""
    stable = settle(shapes, nodes, before)
    if not stable.left or not stable.kept:
        return stable
    anew = settle(shapes, nodes, {})
    if sum(anew.left.values()) >= sum(stable.left.values()):
        return stable
    return replace(anew, pushed_out=stable.pushed_out)


def _counts(placement: Placement) -> dict[str, int]:
    return {name: sum(there.values()) for name, there in placement.items()}


def _pushed_out(left: Mapping[str, int], lost: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Of those left over, so many have had a place: lost now or before."""
    found = {name: min(count, before.get(name, 0) + lost.get(name, 0)) for name, count in left.items()}
    return {name: count for name, count in found.items() if count}
