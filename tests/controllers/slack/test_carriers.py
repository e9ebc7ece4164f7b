"""Which carrier is chosen, and how the objects of the previous one are removed."""

from __future__ import annotations

import pytest

from cagrpc.controllers.slack.carriers.carrier import CHOOSE_SECONDS, Carrying, Switching, choose
from cagrpc.controllers.slack.model import Carrier, SlackState
from cagrpc.errors import Unavailable
from solver.slack.model import Placement
from tests.support.clocks import any_clock

STATE = SlackState(0.0)


class _Carrier:
    """Says what is asked of it."""

    def __init__(self, name: str, said: list[str], *, ready: bool = True) -> None:
        self._name = name
        self._said = said
        self.ready = ready
        self.trouble = ""

    def carry(self, state: SlackState) -> bool:
        assert state is STATE
        if self.trouble:
            raise Unavailable(self.trouble)
        self._said.append(f"{self._name} carries")
        return self.ready

    def placements(self) -> Placement | None:
        return {self._name: {"node": 1}}

    def withdraw(self) -> None:
        if self.trouble:
            raise Unavailable(self.trouble)
        self._said.append(f"{self._name} withdraws")


class _CarriersHarness:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.buffer, self.pods = _Carrier("buffer", self.said), _Carrier("pods", self.said)
        self.chosen, self.now = Carrier.PODS, 0.0
        of: dict[Carrier, Carrying] = {Carrier.BUFFER: self.buffer, Carrier.PODS: self.pods}
        self.switching = Switching(of, lambda: self.chosen, timer=any_clock(lambda: self.now))


def test_what_another_process_left_behind_is_withdrawn_once() -> None:
    harness = _CarriersHarness()
    assert harness.switching.placements() is None
    assert harness.switching.carry(STATE)
    assert harness.switching.carry(STATE)
    assert harness.said == ["pods carries", "buffer withdraws", "pods carries"]
    assert harness.switching.placements() == {"pods": {"node": 1}}


def test_the_one_before_stays_until_the_new_one_carries_all() -> None:
    harness = _CarriersHarness()
    harness.switching.carry(STATE)
    harness.said.clear()
    harness.chosen, harness.now, harness.buffer.ready = Carrier.BUFFER, CHOOSE_SECONDS, False
    assert not harness.switching.carry(STATE)
    harness.buffer.trouble = "no answer"
    with pytest.raises(Unavailable):
        harness.switching.carry(STATE)
    assert harness.said == ["buffer carries"]
    harness.buffer.trouble, harness.buffer.ready = "", True
    assert harness.switching.carry(STATE)
    assert harness.said == ["buffer carries", "buffer carries", "pods withdraws"]


def test_withdrawing_is_tried_again() -> None:
    harness = _CarriersHarness()
    harness.buffer.trouble = "no answer"
    with pytest.raises(Unavailable):
        harness.switching.carry(STATE)
    harness.buffer.trouble = ""
    harness.switching.carry(STATE)
    assert harness.said == ["pods carries", "pods carries", "buffer withdraws"]


@pytest.mark.parametrize(
    ("configured", "planned", "served", "wanted"),
    [
        (None, True, True, Carrier.VIRTUAL),
        (None, False, True, Carrier.BUFFER),
        (None, False, False, Carrier.PODS),
        (Carrier.PODS, True, True, Carrier.PODS),
        (Carrier.BUFFER, False, False, Carrier.BUFFER),
    ],
)
def test_the_default_is_what_there_is(configured: Carrier | None, planned: bool, served: bool, wanted: Carrier) -> None:
    assert choose(configured, planned=planned, serves_buffers=lambda: served) is wanted
