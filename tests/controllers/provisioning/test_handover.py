"""Room for a ProvisioningRequest passes from its increment to its booking, and at last to its pods: at every moment,
however far observations lag behind and whenever the process begins anew, none of it looks free to the planner."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.controllers.settings import Drive
from cagrpc.fleet.model import IncrementSpec, Phase
from tests.support.fleet import group
from tests.support.requests import RequestWorld

RELEASING = "releasing nodes"


AT_ONCE = pytest.mark.long("the same, and nothing lags behind")


@pytest.mark.parametrize(
    ("lags", "restarted_at"),
    [
        (False, None),
        *((True, at) for at in (None, "creating", "ready", "done")),
        *(pytest.param(False, at, marks=AT_ONCE) for at in ("creating", "ready", "done")),
    ],
)
def test_from_the_order_to_the_last_pod(*, lags: bool, restarted_at: str | None) -> None:
    groups = [group("a", cpu=4000, max_size=2), group("news", cpu=10, max_size=1000)]
    with RequestWorld(*groups, drive=Drive.PLAN) as world:
        world.template("web", cpu=1000)
        uid = world.request("r", ("web", 8))
        world.run(1)
        (rival,) = world.cluster.add(cpu=1000)
        world.cluster.passed_over.add(rival)

        def run(seconds: int, every: int = 1) -> None:
            """Have a round planned every so many seconds."""
            for _ in range(0, seconds, every):
                world.fleet.apply(IncrementSpec({"news": 1}))
                world.run(every)

        def restart(at: str) -> None:
            if restarted_at == at:
                plans.extend(world.page("/plans"))
                world.restart()
                world.step()

        plans: list[Any] = []
        world.idle.add(RELEASING)
        run(10)
        assert world.targets()["a"] == 2
        restart("creating")
        run(40, every=8)
        (status,) = [each for each in world.increments() if "a" in each.increment.deltas]
        assert status.phase is Phase.READY
        restart("ready")
        if lags:
            world.late.add("nodes")
        world.idle.clear()
        run(6)
        assert len(world.labelled(uid)) == 2
        world.late.clear()
        run(4)
        assert world.is_true("r", "Provisioned")
        restart("done")
        for _ in range(4):
            pods = world.consume("r", 2)
            run(4)
            assert all(map(world.cluster.node_of, pods))
        assert world.details("r")["consumed"] == "0=8"
        assert world.bookings == 0
        plans += world.page("/plans")
        assert len(plans) >= 4
        assert not [each for each in plans if each["on_existing"]]
        assert world.cluster.pending() == [rival]
