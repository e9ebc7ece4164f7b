"""What carries placeholders: the protocol; the carrier `virtual`, which writes nothing since the planner alone knows of
them; and changing from one carrier to another. Those that write into the cluster are in `written`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cagrpc.controllers.slack.model import Carrier, SlackState
from cagrpc.runtime.clock import MonotonicClock, monotonic
from solver.slack.model import Placement


class Carrying(Protocol):
    """One way to carry placeholders. For one thread."""

    def carry(self, state: SlackState) -> bool:
        """Write what differs from what is there. Returns whether all of it is carried now; it is called again where
        not, and where it raises Unavailable or Conflict."""
        ...

    def placements(self) -> Placement | None:
        """Where its placeholders are, where that is for others to say; None where the slack's own placement holds."""
        ...

    def withdraw(self) -> None:
        """Take back all that this carrier has written, if anything: called once another one carries. Raises
        Unavailable or Conflict; it is called again then."""
        ...


class Virtual:
    def carry(self, state: SlackState) -> bool:
        """Nothing is written."""
        del state
        return True

    def placements(self) -> None:
        """The slack's own holds."""

    def withdraw(self) -> None:
        """Nothing was written."""


CHOOSE_SECONDS = 60.0
"""How often is looked which carrier it is to be."""


def choose(configured: Carrier | None, *, planned: bool, serves_buffers: Callable[[], bool]) -> Carrier:
    """The carrier that is configured; without one, what there is: `planned` says that the planner opens nodes, and
    `serves_buffers`, which may raise Unavailable, whether the cluster knows CapacityBuffers."""
    if configured is not None:
        return configured
    if planned:
        return Carrier.VIRTUAL
    return Carrier.BUFFER if serves_buffers() else Carrier.PODS


class Switching:
    """Carries by one of several, and by another when that is chosen. The one before is withdrawn once the new one
    carries all, so that no slack is lost; so is what another process has left behind."""

    def __init__(
        self,
        carriers: Mapping[Carrier, Carrying],
        choose: Callable[[], Carrier],
        *,
        timer: MonotonicClock = monotonic,
    ) -> None:
        """`choose` may raise Unavailable. `timer` gives seconds that only grow."""
        self._carriers = carriers
        self._choose = choose
        self._timer = timer
        self._choose_at: float = timer()
        self._alone = False
        self.carrier: Carrier | None = None
        """Who carries; None before it is known."""

    def carry(self, state: SlackState) -> bool:
        carrier = self._chosen()
        if not self._carriers[carrier].carry(state):
            return False
        if not self._alone:
            for other in self._carriers:
                if other is not carrier:
                    self._carriers[other].withdraw()
            self._alone = True
        return True

    def placements(self) -> Placement | None:
        return None if self.carrier is None else self._carriers[self.carrier].placements()

    def withdraw(self) -> None:
        for each in self._carriers.values():
            each.withdraw()

    def _chosen(self) -> Carrier:
        now = self._timer()
        if self.carrier is None or now >= self._choose_at:
            chosen = self._choose()
            self._choose_at = now + CHOOSE_SECONDS
            if chosen is not self.carrier:
                self.carrier, self._alone = chosen, False
        return self.carrier
