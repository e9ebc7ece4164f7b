"""The controller: a cluster in memory, an autoscaler that is played, and what is kept, shown and counted of it."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from cagrpc.controllers.autoscaler import GroupSize
from cagrpc.controllers.episodes.controller import EpisodeController
from cagrpc.controllers.episodes.events import ScaleUpEvents, increases
from cagrpc.controllers.episodes.log import read
from cagrpc.controllers.episodes.model import BEFORE_SECONDS, Ended, ScaleUp
from cagrpc.controllers.episodes.planning import plan_waves
from cagrpc.controllers.kept import InFile
from cagrpc.controllers.runtime import Runtime
from cagrpc.errors import Unavailable
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.prices import NodePrices, PriceList
from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.runtime.controller import JsonList
from cagrpc.services.grpc.asked_groups import UNASKED, AskedGroups
from solver.model import Budget
from solver.model.errors import NotCompiledError
from tests.controllers.episodes.told import BIG, SMALL, Told

BUDGET = Budget(deterministic_seconds=0.5)


class Shown:
    """What the controller asks of the view, of a cluster that is told."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.unknown = ""

    def still_to_come(self) -> str:
        return self.unknown

    def arrivals(self) -> object:
        return type("Arrivals", (), {"waiting": len(self.told.waiting)})

    def state(self) -> object:
        return self.told.state

    def pending(self, uids: frozenset[str]) -> dict[str, object]:
        return {uid: None for uid in uids if uid in self.told.waiting}

    def nodes_of(self, uids: frozenset[str]) -> dict[str, str]:
        return {uid: "n" for uid in uids if uid in self.told.bound}


class Shadow:
    """A controller over a cluster that is told."""

    def __init__(self, path: Path, told: Told | None = None) -> None:
        self.told = told or Told()
        self.asked = AskedGroups()
        self.path = path
        self.sizes: dict[str, GroupSize] = {}
        self.view = Shown(self.told)
        self.start()

    def start(self) -> None:
        with patch.object(ScaleUpEvents, "informer", lambda *_: None):
            self.controller = EpisodeController(
                None,  # type: ignore[arg-type] # it follows Events alone
                self.view,  # type: ignore[arg-type]
                self.asked,
                lambda: self.sizes,
                InFile(self.path),
                NodePrices(PriceList(embedded_catalogue())),
                Runtime(lambda: self.told.now, budget=BUDGET),  # type: ignore[arg-type, return-value]
            )

    def run(self, seconds: float) -> None:
        until = self.told.now + seconds
        while self.told.now < until:
            self.told.now += 2.0
            self.controller.step()

    def episode(self) -> None:
        """Eight pods, for which the autoscaler has four small nodes come."""
        pods = self.told.add(8)
        self.run(6)
        self.asked.note(self.told.now, {"big": BIG, "small": SMALL}, ["small"], ())
        self.asked.chosen(self.told.now, "big", 1)
        self.run(6)
        for _ in range(4):
            self.told.node(SMALL)
        self.told.bind(pods)
        self.run(60)


@pytest.fixture
def shadow(tmp_path: Path) -> Shadow:
    return Shadow(tmp_path / "episodes.json")


def test_what_came_stands_beside_what_would_have_been_planned(shadow: Shadow) -> None:
    shadow.episode()
    (kept,) = shadow.controller.log.latest()
    episode = kept.episode
    assert episode.ended is Ended.SERVED
    assert episode.came.usd_per_hour == 1.0
    assert episode.saving_usd_per_hour == pytest.approx(0.2)
    assert [(each.node_group, each.nodes) for each in episode.choices] == [("big", 1)]
    assert UNASKED in episode.unknown
    assert any(each.startswith("prices of small") for each in episode.unknown)
    page = shadow.controller.pages()["/episodes"].get()
    assert isinstance(page, JsonList)
    (row,) = map(page.as_json, page.items)
    assert row["better"] == "plan"
    assert shadow.controller.status()["last_episode"] == row["said"]


def test_it_is_planned_again_from_what_is_kept(shadow: Shadow) -> None:
    shadow.episode()
    (kept,) = read(shadow.path.read_text())
    recorded = kept.recorded()
    assert recorded is not None
    plans = plan_waves(recorded, BUDGET)
    assert kept.episode.planned is not None
    assert sum(plan.certificate.cost_usd_per_hour for _, plan in plans) == pytest.approx(
        kept.episode.planned.usd_per_hour
    )


def test_it_outlives_the_process(shadow: Shadow) -> None:
    shadow.episode()
    shadow.start()
    shadow.run(2)
    assert len(shadow.controller.log.latest()) == 1
    shadow.episode()
    assert len(list(read(shadow.path.read_text()))) == 2
    assert shadow.controller.status()["episodes"] == 2


def test_metrics_have_the_last_one_and_count_all(shadow: Shadow) -> None:
    def metrics() -> dict[str, float]:
        registry = CollectorRegistry()
        for each in shadow.controller.collectors():
            registry.register(each)
        lines = generate_latest(registry).decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    assert not any(name.startswith("cagrpc_last") for name in metrics())
    shadow.episode()
    found = metrics()
    assert found['cagrpc_episodes_total{better="plan"}'] == 1
    assert found["cagrpc_last_episode_autoscaler_usd_per_hour"] == 1.0
    assert found["cagrpc_last_episode_planned_usd_per_hour"] == pytest.approx(0.8)
    assert (found["cagrpc_last_episode_autoscaler_nodes"], found["cagrpc_last_episode_planned_nodes"]) == (4, 1)


def test_what_cannot_be_planned_or_written_yet_is_not_lost(shadow: Shadow) -> None:
    planner = patch("cagrpc.controllers.episodes.controller.finished", side_effect=NotCompiledError("it is compiled"))
    with planner, pytest.raises(NotCompiledError):
        shadow.episode()
    with patch.object(InFile, "write", side_effect=Unavailable("away")), pytest.raises(Unavailable):
        shadow.run(2)
    assert len(shadow.controller.log.latest()) == 1
    assert not shadow.path.exists()
    shadow.run(2)
    assert len(list(read(shadow.path.read_text()))) == 1


def test_nothing_is_looked_at_before_the_cluster_is_known(shadow: Shadow) -> None:
    shadow.view.unknown = "the list of pods is still to come"
    shadow.told.add(1)
    with patch.object(Shown, "state", side_effect=AssertionError):
        shadow.run(20)
    assert shadow.controller.waits_for == "the list of pods is still to come"


def test_a_cluster_in_which_nothing_waits_is_not_looked_at(shadow: Shadow) -> None:
    with patch.object(Shown, "state", side_effect=AssertionError):
        shadow.run(20)


def test_groups_are_those_that_were_asked_about_lately() -> None:
    asked, told = AskedGroups(), Told()
    asked.note(100.0, {"big": BIG}, (), ())
    asked.note(100.0 + BEFORE_SECONDS, {"small": SMALL}, ["small"], ())
    assert {each.id for each in asked.known(told.state, 100.0 + BEFORE_SECONDS).groups} == {"big", "small"}
    known = asked.known(told.state, 101.0 + BEFORE_SECONDS)
    assert ([each.id for each in known.groups], known.estimated) == (["small"], frozenset({"small"}))
    assert asked.known(told.state, 1_000.0).unknown == ()


# ---- Events


def event(message: str, at: str = "2026-11-28T10:00:00Z") -> dict[str, object]:
    return {"metadata": {"name": "e"}, "reason": "TriggeredScaleUp", "message": message, "firstTimestamp": at}


def test_events_tell_of_increases_once_however_many_pods_they_are_on() -> None:
    events = ScaleUpEvents()
    said = "pod triggered scale-up: [{eks-spot-a 1->3 (max: 10)} {https://g/b 0->1 (max: 5)}]"
    events.replaced([increases(event(said)), increases(event(said, "2026-11-28T10:00:02Z"))])
    at = 1_795_860_000.0
    assert events.latest() == (ScaleUp(at, "eks-spot-a", 2), ScaleUp(at, "https://g/b", 1))
    events.deleted(ObjectIdentity("ns", "", "e"))
    assert len(events.latest()) == 2
    events.applied(increases(event("[{eks-spot-a 1->3 (max: 10)}]", "2026-11-28T11:00:00Z")))
    assert len(events.latest()) == 3, "it is another one an hour later"
    for number in range(600):
        events.applied(increases(event(f"[{{g {number}->{number + 1} (max: 1000)}}]")))
    assert len(events.latest()) == 500


@pytest.mark.parametrize("message", ["", "pod didn't trigger scale-up", "[{g 1->x (max: 3)}]", "{" * 5_000])
def test_an_event_of_another_kind_tells_of_none(message: str) -> None:
    assert increases(event(message)) == ()
