"""A cluster that is observed: what its nodes show, and what its provisioners say."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.config.groups import Expanded
from cagrpc.controllers.autoscaler import GroupSize
from cagrpc.controllers.episodes.controller import EpisodeController
from cagrpc.controllers.episodes.events import TRIGGERED
from cagrpc.controllers.episodes.log import read
from cagrpc.controllers.episodes.model import Better
from cagrpc.controllers.kept import InFile
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.settings import Drive
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.prices import NodePrices, PriceList
from cagrpc.offline.observing import OF_NODES, ClusterGroups, planned_again
from cagrpc.report.standing import groups_that_stand
from cagrpc.runtime.runner import Steps
from solver.model import Limit
from tests.controllers.episodes.told import BIG, SMALL, Told
from tests.support.world import BUDGET, World

PRICES = NodePrices(PriceList(embedded_catalogue()))


def test_groups_are_those_that_nodes_show_with_sizes_where_the_status_has_the_pool() -> None:
    told = Told()
    told.node(BIG)
    told.node(SMALL)
    sizes = {"big": GroupSize(3, 9), "unlike": GroupSize(1, 2)}
    known = ClusterGroups(None, groups_that_stand, PRICES, lambda: sizes).known(told.state, 0.0)
    big, small = known.groups
    assert (big.target_size, big.max_size) == (3, 9)
    assert (small.target_size, small.max_size) == (0, 10**9)
    assert known.unknown == (OF_NODES,)


def test_limits_of_provisioners_count_what_stands() -> None:
    told = Told()
    told.node(BIG)
    limit = Limit("all", {"cpu": 10_000})
    known = ClusterGroups(Expanded(groups=(BIG,), limits=(limit,)), groups_that_stand, PRICES, dict).known(
        told.state, 0.0
    )
    assert known.limits[0].used["cpu"] == 8_000
    assert known.groups == (BIG,)


@pytest.fixture(name="kept")
def _kept(tmp_path: Path) -> Path:
    return tmp_path / "episodes.json"


def test_a_cluster_is_observed_from_the_api_server_to_the_report(kept: Path) -> None:
    """The autoscaler has two small nodes come where one of two groups that stand would do with less."""
    with World(drive=Drive.ASSIST) as world:
        groups = ClusterGroups(None, groups_that_stand, PRICES, dict)
        controller = EpisodeController(
            world.api.client(), world.view, groups, dict, InFile(kept), PRICES, Runtime(world.clock, budget=BUDGET)
        )
        world.controllers.append(controller)
        world._steps.append(Steps(controller, world.clock))
        for group in (BIG, SMALL):
            world.cluster.node(f"{group.id}-0", group)
        world.cluster.add(5, cpu=2000)  # one for the small node, four for the big one
        world.run(10)
        assert not world.cluster.pending()
        world.cluster.add(2, cpu=1500)
        world.run(10)
        assert world.cluster.pending()
        message = "pod triggered scale-up: [{small 1->3 (max: 10)}]"
        path = "/api/v1/namespaces/ns/events/triggered"
        event = {"metadata": {"name": "triggered"}, "reason": TRIGGERED.partition("=")[2], "message": message}
        world.api.put(path, {**event, "lastTimestamp": "2001-09-09T01:46:40Z"})
        world.run(10)
        for number in (1, 2):
            world.cluster.node(f"small-{number}", SMALL)
        world.run(60)
        (found,) = controller.log.latest()
        episode = found.episode
        assert (episode.pods, episode.came.node_count, episode.came.unserved) == (2, 2, 0)
        assert episode.planned is not None
        assert episode.planned.unserved == 0
        assert episode.better in (Better.EQUAL, Better.PLAN)
        assert 20.0 <= (episode.came.waited_seconds or 0.0) <= 30.0
        assert any(each.startswith("prices of ") for each in episode.unknown)
        requests = {each.partition(" ")[0] for each in world.api.requests}
        assert requests <= {"GET"}, "nothing is written there"
        (again,) = planned_again(list(read(kept.read_text())), BUDGET)
        assert again.planned is not None
        assert again.planned.nodes == episode.planned.nodes
