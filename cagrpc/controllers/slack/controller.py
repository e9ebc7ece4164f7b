"""The slack controller: observes the cluster, computes the wanted placeholders, their placement and their cost,
publishes them, has them carried, and records them. Without a change nothing is computed again.

Carriers differ in how capacity is provided; there is one set of placeholders with one placement."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_

from prometheus_client.registry import Collector

from cagrpc.cluster.fleet_capacity import deleting_instances
from cagrpc.cluster.node_info import ClusterCapacity
from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.assume_cache.slack import SlackState, target_of
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.slack.carriers import Switching
from cagrpc.controllers.slack.demand import ShapesOfNodes, over_share, targets
from cagrpc.controllers.slack.model import SlackSettings
from cagrpc.controllers.slack.record import SlackObject, as_json, metrics
from cagrpc.errors import CagrpcError
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.runtime.back_off import BackOff, Retry
from cagrpc.runtime.controller import Controller, Json, JsonPage
from cagrpc.runtime.log_once import LogOnce
from cagrpc.runtime.metrics import AtScrape
from solver.model import Node, NodeGroup
from solver.slack.amount import wanted
from solver.slack.model import Placement, Settled, SlackDemand, SlackShape, SlackTarget
from solver.slack.placement import settle

log = logging.getLogger(__name__)
STEP_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 1.0
_MOST_WARNINGS = 5


def costs(
    shapes: Iterable[SlackShape], placement: Placement, nodes: Iterable[ClusterNode], fleet: FleetSnapshot
) -> Mapping[str, float]:
    """Return US dollars an hour by target. A target's share of a node is that of its dominant resource. Nodes outside
    the fleet have no known price and cost nothing."""
    by_name = {each.node.name: each for each in nodes}
    requests = {shape.name: shape.spec.requests for shape in shapes}
    taken: dict[tuple[str, str], Counter[str]] = {}
    for name, by_node in placement.items():
        target = target_of(name)
        for node, count in by_node.items():
            amounts = taken.setdefault((target, node), Counter())
            for resource, amount in requests[name]:
                amounts[resource] += amount * count
    found = {target_of(name): 0.0 for name in requests}
    for (target, node), amounts in taken.items():
        group = fleet.groups.get(fleet.group_of_instance.get(by_name[node].provider_id, ""))
        if group is not None:
            size = by_name[node].node.allocatable
            share = max((amount / size[name] for name, amount in amounts.items() if size.get(name)), default=0.0)
            found[target] += group.group.price_usd_per_hour * share
    return {target: round(cost, 6) for target, cost in found.items()}


class SlackController(Controller):
    """Holds the slack. `step` is called by one thread; all else is thread-safe."""

    name = "the slack"
    every_seconds = STEP_SECONDS
    back_off = BackOff(STEP_SECONDS, 1.0)  # what fails is a view that is not synced yet

    def __init__(
        self,
        cluster: ClusterView,
        fleet: Fleet,
        settings: SlackSettings,
        carrier: Switching,
        record: SlackObject,
        assumed: AssumeCache,
        runtime: Runtime,
    ) -> None:
        self._cluster, self._fleet = cluster, fleet
        self._settings = settings
        self._carrier, self._record = carrier, record
        self._assumed = assumed
        self._now = runtime.now
        self._shapes = ShapesOfNodes()
        self._before: Placement | None = None
        """The last placement; None before it has been read."""
        self._observed: _SlackInputs | None = None
        self._retry = Retry(BackOff(first_seconds=_FIRST_PAUSE_SECONDS), runtime.clock)
        self._reported = LogOnce()

    @property
    def _state(self) -> SlackState:
        """Return the state that was assumed last."""
        return self._assumed.slack

    def as_json(self) -> Json:
        """Return the whole state, for `/slack`."""
        return as_json(self._state, self._carrier.name, self.waits_for)

    def status(self) -> Json:
        """Return how much of each target is held, and why not all of it."""
        targets = {name: f"{each.held} of {each.wanted}" for name, each in self._state.by_target().items()}
        return {
            "slack": {
                "carried": self.waits_for or "as it should be",
                "targets": targets,
                "warnings": list(self._state.warnings[:_MOST_WARNINGS]),
            }
        }

    def pages(self) -> Mapping[str, JsonPage]:
        return {"/slack": JsonPage(self.as_json)}

    def collectors(self) -> Iterable[Collector]:
        return (AtScrape(lambda: metrics(self._state)),)

    def step(self) -> bool:
        """Compute the wanted placeholders and their placement, and have them carried. Raises Unavailable before the
        cluster is synced. A failed write (False) is logged here and has its own back-off, since the state is computed
        all the same."""
        if self._before is None:
            self._before = self._carrier.placements()
            if self._before is None:
                self._before = self._record.placements()
        self._observe()
        return not self._retry.due or self._write()

    def _write(self) -> bool:
        try:
            carried = self._carrier.carry(self._state)
            self._record.write(self._state)
        except CagrpcError as error:
            if self._reported.is_new(str(error)):
                log.warning("the slack cannot be carried as it should be: %s", error)
            self.waits_for = str(error)
            self._retry.failed()
            return False
        self.waits_for = "" if carried else "on its way"
        self._retry.worked()
        self._reported.over()
        return True

    def _observe(self) -> None:
        snapshot, state = self._fleet.snapshot, self._cluster.state()
        asked = targets(self._settings, state.slack, self._now())
        ignored = (*over_share(self._settings, state.slack), *state.slack.warnings)
        carried, reservations = self._carrier.placements(), self._assumed.snapshot(snapshot, state).reservations
        rest = asked, reservations, state.daemon_sets, ignored
        last, observed = self._observed, _SlackInputs(snapshot, state.slack.pods, state.nodes, carried, rest)
        if last is not None and observed.same_as(last):
            return
        self._observed = observed
        available = _available(state, snapshot)
        found = self._wanted(asked, available, snapshot, state)
        shapes = [shape for each in found for shape in each.shapes]
        nodes = ClusterCapacity((each.node for each in available), reservations).nodes
        settled = _settled(shapes, nodes, (self._before or {}) if carried is None else carried)
        if carried is None or last is None:
            lost = _counts(settled.pushed_out)
        else:  # the scheduler has preempted them
            lost = Counter(_counts(last.carried or {})) - Counter(_counts(carried))
        self._before = settled.held
        warnings = (*(text for each in found for text in each.warnings), *ignored)
        now = SlackState(
            at_seconds=self._state.at_seconds,
            wanted=found,
            placement=settled.held,
            pushed_out=_pushed_out(settled.left, lost, self._state.pushed_out),
            left_over=settled.left,
            cost_usd_per_hour=costs(shapes, settled.held, available, snapshot),
            warnings=warnings,
        )
        if now != self._state:
            self._assumed.assume_slack(replace(now, at_seconds=self._now()))

    def _wanted(
        self,
        asked: Sequence[SlackTarget],
        available: Sequence[ClusterNode],
        snapshot: FleetSnapshot,
        state: ClusterState,
    ) -> tuple[SlackDemand, ...]:
        groups: list[NodeGroup] = [each.group for each in snapshot.groups.values() if each.group.max_size]
        shapes = self._shapes.of((each.node for each in available), groups, state, asked)
        before: dict[str, list[SlackShape]] = {}
        for shape in self._state.shapes:
            before.setdefault(target_of(shape.name), []).append(shape)
        return tuple(wanted(each, shapes, state.slack.pods, before.get(each.name, ())) for each in asked)


@dataclass(frozen=True, slots=True)
class _SlackInputs:
    """All that the state is computed from."""

    fleet: FleetSnapshot
    pods: object
    nodes: tuple[ClusterNode, ...]
    carried: Placement | None
    rest: object

    def same_as(self, before: _SlackInputs) -> bool:
        """Return whether nothing has changed. The view returns the same object for a node that has not."""
        return (
            self.fleet is before.fleet
            and self.pods is before.pods
            and len(self.nodes) == len(before.nodes)
            and all(map(is_, self.nodes, before.nodes))
            and (self.carried, self.rest) == (before.carried, before.rest)
        )


def _available(state: ClusterState, snapshot: FleetSnapshot) -> list[ClusterNode]:
    """Return the nodes that are Ready, released and not about to be deleted."""
    going = deleting_instances(snapshot)
    return [each for each in state.nodes if each.ready and not each.held and each.provider_id not in going]


def _settled(shapes: Sequence[SlackShape], nodes: Sequence[Node], before: Placement) -> Settled:
    """Return the placement that leaves placeholders where they are, unless moving some holds more of them."""
    stable = settle(shapes, nodes, before)
    if not stable.left or not stable.kept:
        return stable
    moved = settle(shapes, nodes, {})
    if sum(moved.left.values()) >= sum(stable.left.values()):
        return stable
    return replace(moved, pushed_out=stable.pushed_out)


def _counts(placement: Placement) -> dict[str, int]:
    return {name: sum(by_node.values()) for name, by_node in placement.items()}


def _pushed_out(left: Mapping[str, int], lost: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return how many of those left over were on a node: until now or earlier."""
    found = {name: min(count, before.get(name, 0) + lost.get(name, 0)) for name, count in left.items()}
    return {name: count for name, count in found.items() if count}
