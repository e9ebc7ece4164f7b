"""Attacks on consolidation: nothing is begun while pods wait, and a tenant can make pods that do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.hostile.cluster import REPLICA_SETS, FedCluster, pod, replica_set
from bench.hostile.meter import Meter
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.cluster.shortages import Shortages
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.consolidation.controller import ConsolidationController
from cagrpc.controllers.consolidation.question import Observer
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.runtime.clock import EpochSeconds, MonotonicSeconds
from solver.model import NodeGroup

_LOOK_SECONDS = 5.0
_LOOKS = 5
"""Of consolidation, between two changes of a ReplicaSet."""
_MINUTES_OF_A_CHANGE = 36
"""In a day a ReplicaSet is changed 40 times."""
_AGAIN_MINUTES = 14
"""After so many a pod is made anew: a minute before nobody would wait for it any more."""
_PLANNED = "nothing is worth moving"


class _Consolidation:
    """The controller over a cluster of one node and a fleet with none, which counts the looks at which it plans."""

    def __init__(self, fleet: Fleet, cluster: FedCluster) -> None:
        self.looks = self._planned = 0
        self._cluster = cluster
        settings = ConsolidationSettings(every_seconds=_LOOK_SECONDS, budget_seconds=_LOOK_SECONDS)
        viewed: Any = cluster
        no_events: Any = SimpleNamespace(event=lambda _: None)
        no_walk: Any = SimpleNamespace(waits_for="", evictions=SimpleNamespace(evicted=0, refused=0))  # it is a dry run
        runtime = Runtime(lambda: EpochSeconds(cluster.seconds), lambda: MonotonicSeconds(cluster.seconds))
        assumed = AssumeCache(viewed, Shortages(300.0, runtime.now), runtime.clock)
        observer = Observer(viewed, fleet, settings, assumed, no_events, runtime.now)
        self._controller = ConsolidationController(fleet, observer, no_walk, settings, assumed.planning_lock, runtime)

    def look(self, seconds: float) -> None:
        """Let so many seconds pass, and have it look."""
        self._cluster.seconds += seconds
        self._cluster.arrivals()
        self._controller.step()
        self.looks += 1
        self._planned += self._why() == _PLANNED

    def resize(self, replicas: int) -> None:
        """Give the tenant's ReplicaSet so many replicas, of which none is ever created."""
        self._cluster.put(replica_set("r", replicas, namespace="tenant"), path=REPLICA_SETS)
        for _ in range(_LOOKS):
            self.look(_LOOK_SECONDS)

    def make_anew(self, minute: int) -> None:
        """Replace the tenant's pod by an equal one that is younger."""
        if minute:
            self._cluster.drop(pod(f"p{minute - _AGAIN_MINUTES}", namespace="tenant"))
        self._cluster.put(pod(f"p{minute}", namespace="tenant", nodeSelector={"no": "where"}))

    def __str__(self) -> str:
        return f"at {self.looks - self._planned} of {self.looks} looks nothing may be begun; now: {self._why()}"

    def _why(self) -> str:
        return str(self._controller.status()["consolidation"]["waits_for"])


@contextmanager
def _consolidation(cluster: FedCluster) -> Iterator[_Consolidation]:
    with tempfile.TemporaryDirectory() as directory:
        backend = SimulatedBackend(Path(directory) / "simulated.sqlite")
        groups = [NodeGroup("g", {"cpu": 8000, "pods": 110}, 1.0)]
        fleet = Fleet(FleetSettings(groups), backend, SqliteJournal(Path(directory) / "journal.sqlite"))
        try:
            fleet.reconcile()
            yield _Consolidation(fleet, cluster)
        finally:
            backend.close()


def consolidation(meter: Meter, minutes: int) -> None:
    """A pod that fits no node and is made anew every 14 minutes, and ReplicaSets whose size changes every 25 s."""
    sizes: tuple[tuple[str, Callable[[int], int]], ...] = (
        ("a ReplicaSet grows by one pod that is refused", lambda turn: 1 + turn),
        ("a ReplicaSet has one or two replicas in turn", lambda turn: 1 + turn % 2),
        ("a ReplicaSet has none or two replicas in turn", lambda turn: 2 * (turn % 2)),
    )
    for what, size in sizes:
        with _consolidation(FedCluster()) as looking, meter.measuring(what):
            for turn in range(max(1, minutes // _MINUTES_OF_A_CHANGE)):
                looking.resize(size(turn))
        meter.note(str(looking))
    with _consolidation(FedCluster()) as looking, meter.measuring("a pod that fits nowhere is made anew"):
        for minute in range(minutes):
            if minute % _AGAIN_MINUTES == 0:
                looking.make_anew(minute)
            looking.look(60.0)
    meter.note(str(looking))
