"""The assume cache itself. It is changed only by who assumes, forgets, or lets expire; who decides takes a snapshot."""

from __future__ import annotations

from cagrpc.cluster.shortages import Shortage, Shortages
from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.view import ClusterView
from cagrpc.controllers.assume_cache.bookings import AssumedLabels, AssumedRequests
from cagrpc.controllers.assume_cache.displaced import DisplacedPods
from cagrpc.controllers.assume_cache.placements import Placements
from cagrpc.controllers.assume_cache.slack import NO_SLACK, SlackState
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.fleet.model import FleetSnapshot, PodKey
from cagrpc.runtime.clock import MonotonicClock
from cagrpc.runtime.fair_lock import FairLock


class AssumeCache:
    """Room that is spoken for, by its kind of owner. Thread-safe. An entry ends with its owner: a placement when its
    pod is bound or gone (`Placements.keep`), bookings with each observation of all requests, displaced pods with their
    disruption, placeholders with each computation of the slack, labels when they are seen."""

    def __init__(
        self, cluster: ClusterView, shortages: Shortages, clock: MonotonicClock, *, serves_requests: bool = False
    ) -> None:
        """`serves_requests` is whether a controller of ProvisioningRequests will say what these hold: until then it is
        unknown."""
        self.cluster = cluster
        self.planning_lock = FairLock()
        """Held by whoever plans, from the snapshot to what is assumed, so that no room is given away twice."""
        self.shortages = shortages
        """Offerings that are left out of planning for a while."""
        self.left_out: frozenset[PodKey] = frozenset()
        """Pods for which the latest planning round found no room."""
        self.placements = Placements()
        self.displaced = DisplacedPods(self.placements, cluster, clock)
        self.labels = AssumedLabels(clock)
        self.requests = AssumedRequests(unknown="starting" if serves_requests else "")
        """What all ProvisioningRequests hold, as their controller found it last; nothing while that is unknown."""
        self.slack = NO_SLACK
        """The placeholders, as they were assumed last."""
        self._placeholders = NO_SLACK.reservations()

    def assume_slack(self, state: SlackState) -> None:
        """Assume these placeholders, instead of those before."""
        self.slack, self._placeholders = state, state.reservations()

    def active_shortages(self, fleet: FleetSnapshot) -> tuple[Shortage, ...]:
        """Return the shortages that are not over, those among them that this snapshot of the fleet shows."""
        self.shortages.learn(fleet)
        return self.shortages.active()

    def snapshot(self, fleet: FleetSnapshot, cluster: ClusterState) -> Snapshot:
        """Return the snapshot of this moment; `cluster` is read after `fleet`. Pods that wait in it take the placements
        of those that they were created for."""
        displaced = self.displaced.reservations(fleet, cluster)  # first: it gives placements to pods that wait
        desired = self.placements.desired(fleet, self.cluster.nominated_by_us(), cluster)
        return Snapshot(
            fleet,
            self.labels.seen(cluster),
            desired,
            displaced,
            self.requests,
            self._placeholders,
            self.active_shortages(fleet),
        )
