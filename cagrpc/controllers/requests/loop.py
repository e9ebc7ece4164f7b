"""The loop of ProvisioningRequests: looks at them, the cluster and the fleet, and does for each what comes next. What
that is, `progress` says; what is written, `statuses`; who gets what room, `planning`. Here are the order of things and
what goes wrong with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cagrpc.controllers.requests.model import Behaviour
from cagrpc.controllers.requests.sources import Cluster, Increments, Requests, Writes
from cagrpc.controllers.settings import RequestSettings
from cagrpc.controllers.state import ClusterState
from solver.model import Budget, RunningPods

STEP_SECONDS = 0.25
"""How often to step."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request, for metrics."""

    class_name: str
    behaviour: Behaviour
    outcome: str
    """`provisioned`, `failed`, `booking-expired`, `capacity-revoked`, `cancelled`, `rolled-back`."""
    seconds: float
    """Since the request was created."""


class RequestsLoop:
    """`step` is for one thread, about every 0.25 s; all else is for any."""

    def __init__(
        self,
        store: Requests,
        cluster: Cluster,
        fleet: Increments,
        client: Writes,
        settings: RequestSettings,
        *,
        turn: threading.Lock,
        say: Callable[[Any], None] = lambda _: None,
        observe: Callable[[Outcome], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        budget: Budget | None = None,
    ) -> None:
        """`turn` is held by whoever plans, the planner loop among them. `say` takes what is to be told on requests and
        pods (`Events.say`), `observe` what became of a request. `clock` gives seconds since the epoch, as the fleet's
        does. `budget` is of one planning."""
        self._store = store
        self._cluster = cluster
        self._fleet = fleet
        self._client = client
        self._settings = settings
        self._turn = turn
        self._say = say
        self._observe = observe
        self._clock = clock
        self._budget = budget or Budget()
        self._stopping = threading.Event()
        self._waits_for = "starting"

    def stop(self) -> None:
        """Nothing more is begun."""
        self._stopping.set()

    @property
    def waits_for(self) -> str:
        """Why nothing is under way."""
        return self._waits_for

    def step(self) -> None:
        """Does what there is to do. Raises nothing: what goes wrong is told, and tried again after a while."""
        if not self._stopping.is_set():
            self._waits_for = self._store.problem or self._cluster.problem or self._fleet.problem or ""

    def held(self, state: ClusterState) -> Mapping[str, Sequence[RunningPods]]:
        """Room that is kept for requests, by node name: for whoever plans."""
        del state
        return {}

    def booked_nodes(self) -> Mapping[str, str]:
        """Names of the nodes on which room is kept, and for whom (namespace/name), for scale-down."""
        return {}

    def bookings(self) -> int:
        """Requests for which room is kept."""
        return 0

    def about(self) -> Mapping[str, Any]:
        """For `/status`."""
        return {"waits_for": self._waits_for}

    def records(self) -> list[dict[str, Any]]:
        """Every request of ours, oldest first, for `/provisioningrequests` and `cagrpc explain provisioningrequest`."""
        return []
