"""The fleet and the cluster at one moment, with everything that is assumed there. Everything that plans takes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cagrpc.cluster.fleet_capacity import groups_as_planned
from cagrpc.cluster.markers import booking_labels
from cagrpc.cluster.node_info import Reservations, merged
from cagrpc.cluster.shortages import Shortage
from cagrpc.cluster.spares import as_spared, spare_nodes
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.assume_cache.bookings import AssumedRequests, Booked, Booking, book
from cagrpc.controllers.assume_cache.placements import DesiredPlacements, PlacedPods
from cagrpc.errors import StillStarting
from cagrpc.fleet.model import FleetSnapshot
from solver.model import NodeGroup


@dataclass(frozen=True)
class Snapshot:
    """Immutable. Room is found for it when it is asked for, once."""

    fleet: FleetSnapshot
    cluster: ClusterState
    """Taken after the fleet's snapshot: what is ordered by then is in it, or still held. With the booking labels that
    were written."""
    desired: DesiredPlacements = field(default_factory=DesiredPlacements)
    """Where every planned pod is to go."""
    displaced: Reservations = field(default_factory=dict)
    """The room of pods that a disruption displaces."""
    requests: AssumedRequests = field(default_factory=AssumedRequests)
    placeholders: Reservations = field(default_factory=dict)
    """The room of the slack's placeholders, which gives way to pods."""
    shortages: tuple[Shortage, ...] = ()
    """Of these offerings no node is opened."""

    @cached_property
    def short(self) -> frozenset[str]:
        """The offerings of the shortages."""
        return frozenset(each.offering for each in self.shortages)

    @cached_property
    def groups(self) -> tuple[NodeGroup, ...]:
        """The node groups with labels, devices and attachments as their Nodes will have them."""
        return as_spared(groups_as_planned(self.fleet, self.cluster), self.cluster, self.fleet, self.spares)

    @cached_property
    def spares(self) -> frozenset[str]:
        """The names of spares of topology domains, those that are coming among them. They have no pods, and no room is
        kept on them."""
        planned = {*self.desired.pods.values(), *self.displaced, *self.requests.nodes}
        return spare_nodes(self.cluster, self.fleet, planned)

    def book(self, bookings: Sequence[Booking]) -> Booked:
        """Find room for these bookings, beside planned pods and those that are displaced."""
        if not bookings:
            return Booked()
        anywhere = any(each.anywhere for each in bookings)
        nodes = {each.node.name for each in self.cluster.nodes if anywhere or booking_labels(each.node)}
        return book(bookings, self.cluster, merged(self.displaced, self.desired.reservations(self.cluster, nodes)))

    @cached_property
    def booked(self) -> Booked:
        """The room of ProvisioningRequests. Raises StillStarting while it is not known what they hold."""
        if self.requests.unknown:
            raise StillStarting(f"reservations of ProvisioningRequests are unknown yet: {self.requests.unknown}")
        return self.book(self.requests.bookings)

    @cached_property
    def reservations(self) -> Reservations:
        """The room of ProvisioningRequests and of pods that are displaced, by node. Raises StillStarting."""
        return merged(self.booked.reservations, self.displaced)

    def placed(self, reservations: Reservations | None = None) -> PlacedPods:
        """Return planned pods on the capacity of the fleet beside `reservations`, by default the snapshot's. Raises
        StillStarting."""
        reserved = self.reservations if reservations is None else reservations
        return PlacedPods(self.cluster, self.fleet, self.groups, self.desired, reserved, self.spares)
