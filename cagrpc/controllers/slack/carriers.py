"""What carries placeholders: the protocol, and the carrier `virtual`, which writes nothing since the planner alone
knows of them. Those that write into the cluster have modules of their own."""

from __future__ import annotations

from typing import Protocol

from cagrpc.controllers.slack.model import SlackState
from solver.slack_model import Placement


class Carrying(Protocol):
    """One way to carry placeholders. For one thread."""

    def carry(self, state: SlackState) -> None:
        """Write what differs from what is there. Raises Unavailable or Conflict; it is called again then."""
        ...

    def placements(self) -> Placement | None:
        """Where its placeholders are, where that is for others to say; None where the slack's own placement holds."""
        ...

    def withdraw(self) -> None:
        """Take back all that this carrier has written, if anything: called once another one carries. Raises
        Unavailable or Conflict; it is called again then."""
        ...


class Virtual:
    def carry(self, state: SlackState) -> None:
        """Nothing is written."""

    def placements(self) -> None:
        """The slack's own holds."""

    def withdraw(self) -> None:
        """Nothing was written."""
