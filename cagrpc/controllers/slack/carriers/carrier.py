"""The base of carriers, that of those which write to the cluster, and switching between carriers. Those that write list
their objects, write the difference, and repeat until there is none: all state is in the cluster, so that another
process can take over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from cagrpc.controllers.assume_cache.slack import SlackState
from cagrpc.controllers.slack.carriers.objects import SELECTOR, CarrierUpdate, Object, Place, Verb, Write
from cagrpc.controllers.slack.model import Carrier
from cagrpc.errors import NotFound
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import MonotonicClock, monotonic
from solver.slack.model import Placement, SlackShape

LOOK_SECONDS = 10.0
"""How often the objects are compared while nothing new is wanted."""
_ROUNDS = 4
"""Of listing and writing, in one call."""
CHOOSE_SECONDS = 60.0
"""How often the carrier is chosen again."""


class PlaceholderCarrier:
    """A carrier of placeholders; by itself it is the carrier `virtual`, which writes nothing, since only the planner
    knows of placeholders. For one thread."""

    def carry(self, state: SlackState) -> bool:
        """Write what differs from the state, and return whether all of it is carried now. It is called again where not,
        and where it raises Unavailable or Conflict."""
        del state
        return True

    def placements(self) -> Placement | None:
        """Return the placement where another component decides it; None where the slack's own placement applies."""
        return None

    def withdraw(self) -> None:
        """Delete all that this carrier has written: called once another one carries. Raises Unavailable or Conflict; it
        is called again then."""


class WritingCarrier(PlaceholderCarrier, ABC):
    """The loop of listing and writing. For one thread."""

    def __init__(self, client: Client, place: Callable[[], Place], timer: MonotonicClock = monotonic) -> None:
        """`place` may raise Unavailable."""
        self._client = client
        self._place = place
        self._timer = timer
        self._carried: tuple[SlackShape, ...] | None = None
        self._compare_at = 0.0

    def carry(self, state: SlackState) -> bool:
        shapes = tuple(shape for shape in state.shapes if shape.count)
        if shapes == self._carried and self._timer() < self._compare_at:
            return True
        self._carried = None
        if not self._settle(shapes):
            return False
        self._carried, self._compare_at = shapes, self._timer() + LOOK_SECONDS
        return True

    def withdraw(self) -> None:
        self._carried = None
        self._settle(())

    def _settle(self, shapes: Sequence[SlackShape]) -> bool:
        place = self._place()
        for _ in range(_ROUNDS):
            todo = self._next(shapes, place)
            for write in todo.writes:
                self._write(write)
            if todo.done:
                return True
            if not todo.writes:
                break
        return False

    @abstractmethod
    def _next(self, shapes: Sequence[SlackShape], place: Place) -> CarrierUpdate: ...

    def _list(self, path: str) -> dict[str, Object] | None:
        """Return our objects by name; None where the cluster does not serve the kind."""
        try:
            found = self._client.get(path, {"labelSelector": SELECTOR})["items"]
        except NotFound:
            return None
        return {str(each["metadata"]["name"]): each for each in found}

    def _write(self, write: Write) -> None:
        match write.verb:
            case Verb.CREATE:
                self._client.create(write.path, write.body)
            case Verb.PATCH:
                self._client.patch(write.path, write.body)
            case Verb.DELETE:
                self._client.delete(write.path, uid=write.uid)


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
        carriers: Mapping[Carrier, PlaceholderCarrier],
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

    def _chosen(self) -> Carrier:
        now = self._timer()
        if self.carrier is None or now >= self._choose_at:
            chosen = self._choose()
            self._choose_at = now + CHOOSE_SECONDS
            if chosen is not self.carrier:
                self.carrier, self._alone = chosen, False
        return self.carrier
