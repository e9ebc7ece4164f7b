"""Room for a ProvisioningRequest passes from its increment to its booking, and at last to its pods: whoever looks on
the way, at any moment and however far the view is behind, finds none of it free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from cagrpc import errors
from cagrpc.cluster.fleet_capacity import groups_as_planned
from cagrpc.controllers.placement.placed_pods import PlacedPods
from cagrpc.controllers.placement.places import Wanted
from cagrpc.fleet.model import Phase
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import NODES, ProvisioningHarness
from tests.support.fleet import group


class Watched(ProvisioningHarness):
    """After everything that anybody does, it is looked what a planner would find free."""

    def free(self) -> dict[str, int]:
        """CPU by node."""
        snapshot, state = self.fleet.snapshot, self.cluster.state()
        groups = groups_as_planned(snapshot)
        placed = PlacedPods(state, snapshot, groups, Wanted(), self.requests.reservations(state))
        return {node.name: node.free["cpu"] for node in placed.nodes}

    def place(self) -> None:
        """Labels and taints change in one write, so a view that does not see the one does not see the other."""
        super().place()
        self.cluster.lifted -= {
            f"simulated://{path.rpartition('/')[2]}"
            for path, each in self.api.store.objects.items()
            if path.startswith(NODES)
            and each["metadata"].get("labels", {}).keys() - self.node_labels.get(path.rpartition("/")[2], {}).keys()
        }

    def step(self) -> None:
        def reconcile() -> None:
            with suppress(errors.Unavailable):
                self.fleet.reconcile()

        for act in (reconcile, self.place, self.sync, self.place, self.cluster.schedule, self.requests.step):
            act()
            self.looks()

    looks: Callable[[], None] = staticmethod(lambda: None)


@pytest.fixture
def world() -> Iterator[Watched]:
    world = Watched([group("a", cpu=4000)])
    world.template("web", cpu=1000)
    yield world
    world.close()


def _watch(world: Watched) -> None:
    def looks() -> None:
        free = world.free()
        assert sum(free.values()) == 0, free

    world.looks = looks


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("restarted_at", [None, "creating", "ready", "done"])
def test_from_the_order_to_the_last_pod(world: Watched, lags: bool, restarted_at: str | None) -> None:
    uid = world.request("r", ("web", 8))
    world.run(1)
    world.view_lags = lags
    _watch(world)
    world.releases = False
    world.run(BOOT_SECONDS / 2)
    assert world.targets() == {"a": 2}
    if restarted_at == "creating":
        _restart(world)
    world.run(2 * BOOT_SECONDS)
    (status,) = world.increments()
    assert status.phase is Phase.READY
    if restarted_at == "ready":
        _restart(world)
    world.releases = True
    world.run(3)
    assert len(world.labelled(uid)) == 2
    world.sync(again=True)
    world.run(3)
    assert world.is_true("r", "Provisioned")
    if restarted_at == "done":
        _restart(world)
    for _ in range(4):
        world.consume("r", 2)
        world.run(3)
    assert world.details("r")["consumed"] == "0=8"
    assert world.requests.bookings() == 0


def _restart(world: Watched) -> None:
    """Nobody plans before it is known what is booked."""
    watched, world.looks = world.looks, lambda: None
    world.restart()
    with pytest.raises(errors.Unavailable, match="unknown yet"):
        world.free()
    world.requests.step()
    world.looks = watched
