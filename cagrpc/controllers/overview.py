"""What people see of a fleet as a whole: nodes and how full they are, and what they cost, how many there were and how
many pods waited over the last day. The day is kept in the journal, so whoever leads next goes on with it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cagrpc.errors import CagrpcError, Unavailable
from cagrpc.fleet.backend_records import BackendRecords
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.fleet.prices import GPUS
from cagrpc.runtime.clock import EpochClock, EpochSeconds, monotonic
from cagrpc.runtime.controller import Controller, Json, JsonList, JsonPage
from cagrpc.runtime.stopping import STOP_SECONDS
from solver.model.objects import PODS

if TYPE_CHECKING:  # not needed without a cluster
    from cagrpc.cluster.state import ClusterNode
    from cagrpc.cluster.view.view import ClusterView

SAMPLE_SECONDS = 10.0
DAY_SECONDS = 24 * 3600.0
_FINE_SECONDS = 1800.0
"""How far back every sample is kept; of older ones, one for each `_COARSE_SECONDS`."""
_COARSE_SECONDS = 300.0
_KEPT_EVERY_SECONDS = 300.0
_NODES_SECONDS, _NODES_SHARE = 2.0, 0.1
"""For so long the same nodes are shown, and no larger part of the time is spent on it: laying out thousands takes its
time, and the page asks all the while."""
_RECORD = "history"


@dataclass(frozen=True, slots=True)
class Sample:
    """How things stood."""

    at_seconds: float
    usd_per_hour: float
    nodes: int
    waiting_pods: int | None
    """None without a cluster, in which nobody knows of pods."""

    def as_json(self) -> Json:
        return asdict(self)


def thinned(samples: Iterable[Sample], now: float) -> list[Sample]:
    """Return the samples of the last day, oldest first: all of the last half hour, and of every five minutes before
    that the last one, with the most pods that waited in them."""
    kept: list[Sample] = []
    for each in samples:
        if not now - DAY_SECONDS <= each.at_seconds <= now:
            continue
        before = kept[-1] if kept else None
        coarse = before is not None and each.at_seconds < now - _FINE_SECONDS
        if before is not None and coarse and _period(before) == _period(each):
            known = [of.waiting_pods for of in (before, each) if of.waiting_pods is not None]
            kept[-1] = replace(each, waiting_pods=max(known, default=None))
        else:
            kept.append(each)
    return kept


def _period(sample: Sample) -> int:
    return int(sample.at_seconds // _COARSE_SECONDS)


def node_as_json(node: ClusterNode, group: str, increment: str) -> Json:
    """Return a node as `/nodes` shows it. `used` has, by resource, what the requests of its pods take, and of how
    much: millicores, bytes, devices."""
    there, free = node.node.allocatable, node.node.free
    gpus = (name for name in GPUS if name in there)
    shown = [name for name in ("cpu", "memory", *gpus) if there.get(name)]
    return {
        "name": node.node.name,
        "node_group": group,
        "increment": increment,
        "ready": node.ready,
        "held": node.held,
        "pods": there.get(PODS, 0) - free.get(PODS, 0),
        "used": {name: [there[name] - free.get(name, 0), there[name]] for name in shown},
    }


class OverviewController(Controller):
    """Takes samples, keeps them, and shows them and the nodes."""

    name = "samples of the last day"
    every_seconds = SAMPLE_SECONDS

    def __init__(self, fleet: Fleet, view: ClusterView | None, records: BackendRecords, clock: EpochClock) -> None:
        """`records` are its own."""
        self._fleet = fleet
        self._view = view
        self._records = records
        self._clock = clock
        self._samples: Sequence[Sample] | None = None
        """None before those that are kept have been read."""
        self._kept_at = clock()
        self._nodes: tuple[float, float, list[Json]] = (0.0, 0.0, [])
        """Since when, and until when the same ones are shown."""
        self._laying_out = threading.Lock()
        self._came_by: dict[str, str] = {}
        """Ids of increments by those of the instances that they brought, as far as this process has seen it."""
        # A daemon: a journal that does not answer must not keep the process from ending.
        self._ending = threading.Thread(target=self._keep_at_end, name="keeping samples", daemon=True)

    def step(self) -> None:
        """Take a sample; keep all of them now and then. Raises Unavailable."""
        snapshot = self._fleet.snapshot
        if not snapshot.group_of_instance and self._fleet.problems["backend"] is not None:
            return  # instances are not known, which is not none
        now = self._clock()
        before = self._read() if self._samples is None else self._samples
        groups = snapshot.groups.values()
        self._learn(snapshot)
        sample = Sample(
            now,
            round(sum(each.group.price_usd_per_hour * each.target_size for each in groups), 4),
            sum(each.target_size for each in groups),
            self._view.arrivals().waiting if self._view is not None else None,
        )
        self._samples = thinned([*before, sample], now)
        if now >= self._kept_at + _KEPT_EVERY_SECONDS:
            self._keep(now)

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Keep what there is, and wait at most so long for it."""
        if not self.stopping:
            super().stop(wait_seconds)
            self._ending.start()
        self._ending.join(wait_seconds)

    def pages(self) -> Mapping[str, JsonPage]:
        return {
            "/nodes": JsonPage(lambda: JsonList(self._nodes_now())),
            "/history": JsonPage(lambda: JsonList(self._samples or (), Sample.as_json)),
        }

    def _keep_at_end(self) -> None:
        with suppress(CagrpcError):
            self._keep(self._clock())

    def _keep(self, now: EpochSeconds) -> None:
        if self._samples:
            rows = [
                [round(each.at_seconds), each.usd_per_hour, each.nodes, each.waiting_pods] for each in self._samples
            ]
            self._records.write({_RECORD: {"samples": rows}})
        self._kept_at = now

    def _read(self) -> list[Sample]:
        rows: Any = self._records.read().get(_RECORD, {}).get("samples", [])
        return [
            Sample(float(at), float(cost), int(nodes), None if waiting is None else int(waiting))
            for at, cost, nodes, waiting in rows
        ]

    def _nodes_now(self) -> list[Json]:
        if self._view is None:
            return []
        with self._laying_out:
            now, (since, until, rows) = self._clock(), self._nodes
            if since <= now < until:
                return rows
            began = monotonic()
            self._learn(self._fleet.snapshot)
            try:
                nodes = self._view.state().nodes
            except Unavailable:  # they are still to come
                return []
            rows = _rows(self._fleet.snapshot, nodes, self._came_by)
            self._nodes = now, now + max(_NODES_SECONDS, (monotonic() - began) / _NODES_SHARE), rows
            return rows

    def _learn(self, snapshot: FleetSnapshot) -> None:
        """Remember what increments in flight bring: those that are done do not say it."""
        there = {each.id for of in snapshot.groups.values() for each in of.instances}
        brought = {node.instance_id: each.id for each in snapshot.increments for node in each.nodes}
        self._came_by = {id_: of for id_, of in {**self._came_by, **brought}.items() if id_ in there}


def _rows(snapshot: FleetSnapshot, nodes: Iterable[ClusterNode], increments: Mapping[str, str]) -> list[Json]:
    groups = {each.id: name for name, of in snapshot.groups.items() for each in of.instances}
    rows = [
        node_as_json(each, groups.get(each.provider_id, ""), increments.get(each.provider_id, "")) for each in nodes
    ]
    return sorted(rows, key=lambda row: (row["node_group"], row["name"]))
