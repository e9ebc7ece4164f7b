"""What the author of a backend provides for the conformance suite: how the backend is opened, how time passes, what the
cloud really has, and how it is made to fail. The tests are in `suite`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import ClassVar, NoReturn

import pytest

from cagrpc.backends.plugin import OpenBackend
from cagrpc.runtime.clock import EpochClock
from solver.model import NodeGroup


class Ability(StrEnum):
    """What not every cloud can do, or can be made to do in a test. All but the last two are methods of `Cloud`."""

    CUT_OFF = "cut_off"
    LOSE_ANSWERS = "lose_answers"
    DELAY_LISTS = "delay_lists"
    DELAY_IDS = "delay_ids"
    RUN_OUT = "run_out"
    EXCEED_QUOTA = "exceed_quota"
    MISCONFIGURE = "misconfigure"
    VANISH = "vanish"
    ADD_STRANGER = "add_stranger"
    REPORT_SHORTAGE = "report_shortage"
    """A shortage is told, by a refusal or as an instance's error. Without it instances hang or vanish, and only the end
    of the increment says that there was one."""
    REMEMBER_TOKENS = "remember_tokens"
    """A token is known after its instance is gone, so that a repeated order does not create it again."""


class Cloud(ABC):
    """A cloud with one backend's instances, new for each test.

    A fault is switched on by its method and lasts until `recover`; an ability that the cloud does not have is in
    `lacks`, with the reason, and its tests are skipped with that reason. One that is neither there nor written fails.
    """

    lacks: ClassVar[Mapping[Ability, str]] = {}
    tick_seconds: float = 1.0
    """What a test that waits for something lets pass between two looks. In real time a small one."""
    patience_seconds: float = 900.0
    """How long a test waits for anything, creation and deletion of instances included."""
    deadline_seconds: float = 600.0
    """The increments' in tests with a `Fleet`: long enough for creation."""

    node_groups: Sequence[NodeGroup]
    """Two or more that differ in what `run_out` and the like act on, with minimum 0 and room for 20 instances each."""
    clock: EpochClock
    """The fleet's, with which the backend is opened."""

    @abstractmethod
    def open(self) -> OpenBackend:
        """Open the backend over this cloud, as a new process does. The earlier ones are not closed before the end of
        the test: a killed process closes nothing."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Let so much time pass for the cloud and the clock; in real time, sleep."""

    @abstractmethod
    def machines(self) -> AbstractSet[str]:
        """Return what exists in the cloud now and is not being deleted, whoever made it, by any names. Read it past the
        backend: it is the evidence that nothing was created twice and nothing is left."""

    def close(self) -> None:
        """Clean up after the test, once every backend that it opened is closed."""
        return

    def recover(self) -> None:
        """Switch every fault off."""
        return

    def cut_off(self) -> None:
        """Put the cloud out of reach: no request arrives, and nothing is told of what changes."""
        self._lacks(Ability.CUT_OFF)

    def lose_answers(self, after: int) -> None:
        """Lose the answers of the cloud to requests that create or delete, but for the next `after` requests: they are
        carried out, and the backend learns nothing of it."""
        self._lacks(Ability.LOSE_ANSWERS, after)

    def delay_lists(self) -> None:
        """Show new instances in the cloud's lists as late as `Pace.absent_after_seconds` allows."""
        self._lacks(Ability.DELAY_LISTS)

    def delay_ids(self) -> None:
        """Give new instances their ids so late that they are listed before."""
        self._lacks(Ability.DELAY_IDS)

    def run_out(self, group: NodeGroup) -> None:
        """Have no more capacity for a node group; those of the others can be had."""
        self._lacks(Ability.RUN_OUT, group)

    def exceed_quota(self, group: NodeGroup) -> None:
        """Refuse more instances of a node group because of the account's quota."""
        self._lacks(Ability.EXCEED_QUOTA, group)

    def misconfigure(self, group: NodeGroup) -> None:
        """Make the parameters of a node group wrong: a template that is missing, an image that is not there."""
        self._lacks(Ability.MISCONFIGURE, group)

    def vanish(self, instance_id: str) -> None:
        """Lose an instance that nobody asked to be deleted."""
        self._lacks(Ability.VANISH, instance_id)

    def add_stranger(self, group: NodeGroup) -> None:
        """Create, past the backend, instances that look like this fleet's as far as possible: another fleet's of the
        same name of node group, and one that somebody made by hand."""
        self._lacks(Ability.ADD_STRANGER, group)

    def need(self, *abilities: Ability) -> None:
        """Skip the test for want of an ability, with the author's reason."""
        for ability in abilities:
            if ability in self.lacks:
                pytest.skip(f"{type(self).__name__} cannot {ability}: {self.lacks[ability]}")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Let time pass until the condition holds, at most `patience_seconds`."""
        give_up = self.clock() + self.patience_seconds
        while not condition():
            if self.clock() >= give_up:
                raise AssertionError(f"waited {self.patience_seconds:g} s for {what}")
            self.advance(self.tick_seconds)

    def _lacks(self, ability: Ability, *_: object) -> NoReturn:
        name = type(self).__name__
        raise AssertionError(f"{name}.{ability} is not written; write it, or say in {name}.lacks why there is none")
