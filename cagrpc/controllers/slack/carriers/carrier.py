"""The protocol of carriers; the carrier `virtual`, which writes nothing since only the planner knows of placeholders;
and switching between carriers. Those that write to the cluster are in `store`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cagrpc.controllers.assume_cache.slack import SlackState
from cagrpc.controllers.slack.model import Carrier
from cagrpc.runtime.clock import MonotonicClock, monotonic
from solver.slack.model import Placement


class Carrying(Protocol):
    """A carrier of placeholders. For one thread."""

    def carry(self, state: SlackState) -> bool:
        """Write what differs from the state, and return whether all of it is carried now. It is called again where not,
        and where it raises Unavailable or Conflict."""
        ...

    def placements(self) -> Placement | None:
        """Return the placement where another component decides it; None where the slack's own placement applies."""
        ...

    def withdraw(self) -> None:
        """Delete all that this carrier has written: called once another one carries. Raises Unavailable or Conflict; it
        is called again then."""
        ...


class Virtual:
    """The carrier `virtual`."""

    def carry(self, state: SlackState) -> bool:
        """Do nothing: the planner knows of placeholders."""
        del state
        return True

    def placements(self) -> None:
        """Return None: the slack's own placement applies."""

    def withdraw(self) -> None:
        """Do nothing: nothing was written."""


CHOOSE_SECONDS = 60.0
"""How often the carrier is chosen again."""


def choose(configured: Carrier | None, *, planned: bool, serves_buffers: Callable[[], bool]) -> Carrier:
    """Return the configured carrier, or else the default: `planned` is whether the planner adds nodes, and
    `serves_buffers`, which may raise Unavailable, whether the cluster serves CapacityBuffers."""
    if configured is not None:
        return configured
    if planned:
        return Carrier.VIRTUAL
    return Carrier.BUFFER if serves_buffers() else Carrier.PODS


class Switching:
    """Delegates to the chosen carrier. The others are withdrawn once it carries everything, so that no slack is lost;
    this includes objects of an earlier process. For one thread, but for `name`."""

    def __init__(
        self,
        carriers: Mapping[Carrier, Carrying],
        choose: Callable[[], Carrier],
        *,
        timer: MonotonicClock = monotonic,
    ) -> None:
        """`choose` may raise Unavailable."""
        self._carriers = carriers
        self._choose = choose
        self._timer = timer
        self._choose_at: float = timer()
        self._alone = False
        self.carrier: Carrier | None = None
        """The chosen one; None before it is known."""

    @property
    def name(self) -> str:
        """The name of the chosen one; empty before it is known."""
        return self.carrier or ""

    def carry(self, state: SlackState) -> bool:
        """Carry with the chosen carrier, then withdraw the others."""
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
        """Return the placement of the chosen carrier; None before it is known."""
        return None if self.carrier is None else self._carriers[self.carrier].placements()

    def withdraw(self) -> None:
        """Withdraw all carriers."""
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
