"""Room for a ProvisioningRequest passes from its increment to its booking, and at last to its pods: at every moment,
and however far observations lag behind, none of it looks free."""

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
        groups = groups_as_planned(snapshot, state)
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
def harness() -> Iterator[Watched]:
    harness = Watched([group("a", cpu=4000)])
    harness.template("web", cpu=1000)
    yield harness
    harness.close()


def _watch(harness: Watched) -> None:
    def looks() -> None:
        free = harness.free()
        assert sum(free.values()) == 0, free

    harness.looks = looks


@pytest.mark.parametrize("lags", [False, True])
@pytest.mark.parametrize("restarted_at", [None, "creating", "ready", "done"])
def test_from_the_order_to_the_last_pod(harness: Watched, lags: bool, restarted_at: str | None) -> None:
    uid = harness.request("r", ("web", 8))
    harness.run(1)
    harness.view_lags = lags
    _watch(harness)
    harness.releases = False
    harness.run(BOOT_SECONDS / 2)
    assert harness.targets() == {"a": 2}
    if restarted_at == "creating":
        _restart(harness)
    harness.run(2 * BOOT_SECONDS)
    (status,) = harness.increments()
    assert status.phase is Phase.READY
    if restarted_at == "ready":
        _restart(harness)
    harness.releases = True
    harness.run(3)
    assert len(harness.labelled(uid)) == 2
    harness.sync(again=True)
    harness.run(3)
    assert harness.is_true("r", "Provisioned")
    if restarted_at == "done":
        _restart(harness)
    for _ in range(4):
        harness.consume("r", 2)
        harness.run(3)
    assert harness.details("r")["consumed"] == "0=8"
    assert harness.requests.bookings() == 0


def _restart(harness: Watched) -> None:
    """Nobody plans before it is known what is booked."""
    watched, harness.looks = harness.looks, lambda: None
    harness.restart()
    with pytest.raises(errors.Unavailable, match=r"unknown yet: starting$"):
        harness.free()
    harness.requests.step()
    harness.looks = watched
