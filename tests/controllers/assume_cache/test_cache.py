"""The assume cache: what is assumed ends with its owner, whoever that is and however it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cagrpc.controllers.settings import ConsolidationMode, Drive, RequestSettings
from cagrpc.controllers.slack.model import SlackSettings
from cagrpc.errors import StillStarting
from tests.controllers.consolidation.scene import Scene
from tests.controllers.slack.test_holding import fixed
from tests.support.fleet import group
from tests.support.requests import RequestWorld
from tests.support.world import BOOT_SECONDS

SETTLED = 5 * BOOT_SECONDS


class _Scene(Scene, RequestWorld):
    """Two nodes stand, to which nothing is bound; all kinds of owners may come."""

    def __init__(self) -> None:
        groups = group("big", cpu=16000, price=0.9), group("small", cpu=4000, price=0.2)
        super().__init__(*groups, world={"requests": RequestSettings(), "drive": Drive.PLAN})
        self.template("job", cpu=2000)
        (self.big,) = self.stand("big")
        (self.small,) = self.stand("small")
        self.cluster.scheduling = False

    def holds(self) -> set[str]:
        """Return the kinds of owners for which room is assumed."""
        snapshot = self.assumed.snapshot(self.fleet.snapshot, self.view.state())
        found = {
            "pods": self.assumed.placements.nodes(),
            "requests": snapshot.booked.reservations,
            "displaced": snapshot.displaced,
            "slack": snapshot.placeholders,
        }
        return {kind for kind, of in found.items() if of}

    def configure(self, slack: SlackSettings | None) -> None:
        """Begin another process with this slack."""
        self.settings = replace(self.settings, slack=slack)
        self.restart()
        self.run(3)


Happens = Callable[[_Scene], object]


def pods_are_planned(scene: _Scene) -> None:
    scene.cluster.add(2, cpu=1000)


def pods_are_deleted(scene: _Scene) -> None:
    for uid in scene.cluster.pending():
        scene.cluster.delete(uid)


def pods_are_bound(scene: _Scene) -> None:
    scene.cluster.scheduling = True


def a_request_is_booked(scene: _Scene) -> None:
    scene.request("r", ("job", 1))


def a_request_is_deleted(scene: _Scene) -> None:
    scene.delete("r")


def slack_is_held(scene: _Scene) -> None:
    scene.configure(fixed(1))


def slack_is_switched_off(scene: _Scene) -> None:
    scene.configure(None)


def a_step_moves_pods(scene: _Scene) -> None:
    scene.cluster.workload("db", 1, on=[scene.big], cpu=1000)
    scene.begin()
    scene.until(lambda: scene.fleet.snapshot.disruption)


def a_step_is_undone(scene: _Scene) -> None:
    scene.cluster.scheduling = True
    scene.switch(ConsolidationMode.DRY_RUN)


def a_step_ends(scene: _Scene) -> None:
    scene.cluster.scheduling = True
    scene.until(scene.ended)


def nodes_are_gone(scene: _Scene) -> None:
    scene.idle.add("consolidation")
    scene.cluster.vanish()


@pytest.mark.parametrize("killed", [False, True], ids=["the process goes on", "the process is killed"])
@pytest.mark.parametrize(
    ("kind", "assume", "end"),
    [
        ("pods", pods_are_planned, pods_are_deleted),
        ("pods", pods_are_planned, pods_are_bound),
        ("pods", pods_are_planned, nodes_are_gone),
        ("requests", a_request_is_booked, a_request_is_deleted),
        ("requests", a_request_is_booked, nodes_are_gone),
        ("slack", slack_is_held, slack_is_switched_off),
        ("slack", slack_is_held, nodes_are_gone),
        ("displaced", a_step_moves_pods, a_step_is_undone),
        ("displaced", a_step_moves_pods, a_step_ends),
        ("displaced", a_step_moves_pods, nodes_are_gone),
    ],
)
def test_what_is_assumed_ends_with_its_owner(kind: str, assume: Happens, end: Happens, *, killed: bool) -> None:
    with _Scene() as scene:
        assume(scene)
        scene.until(lambda: kind in scene.holds())
        assert not scene.without_owner()
        end(scene)
        if killed:
            scene.restart()
        scene.run(SETTLED)
        assert not scene.without_owner()
        if end is not nodes_are_gone:  # those have found others by now
            assert kind not in scene.holds()


def test_one_snapshot_has_what_each_kind_of_owner_holds() -> None:
    with _Scene() as scene:
        slack_is_held(scene)
        a_request_is_booked(scene)
        scene.until(lambda: scene.holds() >= {"requests", "slack"})
        pods_are_planned(scene)
        scene.until(lambda: scene.holds() >= {"requests", "slack", "pods"})
        snapshot = scene.assumed.snapshot(scene.fleet.snapshot, scene.view.state())
        scene.delete("r")
        scene.run(SETTLED)
        assert snapshot.booked.reservations, "a snapshot does not change"


def test_nobody_plans_before_it_is_known_what_requests_hold() -> None:
    with _Scene() as scene:
        scene.restart()
        scene.deliver()
        snapshot = scene.assumed.snapshot(scene.fleet.snapshot, scene.view.state())
        with pytest.raises(StillStarting, match="reservations of ProvisioningRequests are unknown yet: starting"):
            snapshot.placed()
