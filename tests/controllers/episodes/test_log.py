"""What is kept of episodes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cagrpc.controllers.episodes import log
from cagrpc.controllers.episodes.log import EpisodeLog, KeptEpisode, as_json, kept, read
from cagrpc.controllers.episodes.model import Ended, Episode, GroupNodes, Outcome, RecordedState, ScaleUp, Wave
from solver.model import PodAffinityTerm, PodSelector, Problem
from tests.controllers.episodes.told import BIG, SMALL
from tests.support.solver.problems import node, pods, spec

AFFINE = spec(pod_affinity=(PodAffinityTerm("zone", PodSelector(())),))
STATE = RecordedState(
    Problem((), (BIG, SMALL), (node("n", 4000),), daemon_sets=(spec(cpu=100),)),
    (Wave(1.5, (pods("a", 3, AFFINE),), 2.0),),
)


def episode(at: float, seconds: float = 10.0) -> Episode:
    came = Outcome((GroupNodes("small", 2, 0.5, weight=10, estimated=True),), 0, 12.5)
    return Episode(
        f"{at:g}",
        at,
        at + seconds,
        Ended.SERVED,
        3,
        1,
        came,
        Outcome((GroupNodes("big", 1, 0.8),), 0, None),
        0.75,
        (ScaleUp(at, "small", 2),),
        targets={"small": (0, 2)},
        unknown=("something",),
    )


def ids(of: EpisodeLog) -> list[str]:
    return [each.episode.id for each in of.latest()]


def test_what_is_kept_is_read_again_as_it_was() -> None:
    hash(AFFINE)  # which the selector remembers, and is another one in another process
    found = EpisodeLog()
    found.add(kept(episode(100), STATE), kept(episode(200), STATE))
    again = EpisodeLog()
    again.restore(found.text())
    assert again.latest() == found.latest()
    (first, _) = again.latest()
    assert (first.episode, first.recorded()) == (episode(100), STATE)
    assert "_hash" not in found.text()


def test_there_is_one_at_a_time_and_of_those_that_overlap_the_one_that_is_there_stays() -> None:
    found = EpisodeLog()
    found.add(kept(episode(100), STATE))
    found.add(kept(episode(105), STATE), kept(episode(110), STATE), kept(episode(50), STATE))
    assert ids(found) == ["50", "100", "110"]


def test_it_is_bounded_and_the_oldest_states_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EpisodeLog()
    found.add(*(kept(episode(100.0 * at), STATE) for at in range(1, 4)))
    whole = len(found.text())
    monkeypatch.setattr(log, "MOST_BYTES", whole)
    found.add(kept(episode(400), STATE))
    assert ids(found) == ["100", "200", "300", "400"]
    states = [bool(each.state) for each in found.latest()]
    assert (states[0], states[-1]) == (False, True)
    assert states == sorted(states)
    monkeypatch.setattr(log, "MOST_BYTES", 1_500)
    found.add(kept(episode(500), STATE))
    assert ids(found)[-1] == "500"
    assert len(found.text()) <= 1_500
    monkeypatch.setattr(log, "KEPT_EPISODES", 1)
    found.add(kept(episode(600), STATE))
    assert ids(found) == ["600"]


@pytest.mark.parametrize(
    "text", ["", "no JSON", "{}", "[5]", '[{"episode": 5}]', '[{"episode": {"id": "1"}}]', "[" * 9000]
)
def test_what_is_malformed_is_left_out(text: str) -> None:
    assert list(read(text)) == []


@pytest.mark.parametrize("state", ["", "no base64", "aGVsbG8=", kept(episode(1), STATE).state[:-8]])
def test_a_state_that_cannot_be_read_is_none(state: str) -> None:
    assert KeptEpisode(episode(1), state).recorded() is None


def test_a_state_that_would_be_too_large_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_STATE_BYTES", 100)
    assert kept(episode(1), STATE).recorded() is None


def test_the_page_has_the_sums_and_the_sentences() -> None:
    shown = as_json(replace(episode(100), opened_at_seconds=99.0))
    assert (shown["came"]["usd_per_hour"], shown["planned"]["node_count"]) == (0.5, 1)
    assert (shown["better"], shown["saving_usd_per_hour"]) == ("autoscaler", pytest.approx(-0.3))
    assert shown["said"][0].startswith("the autoscaler was better: ")
    assert json.loads(json.dumps(shown)) == shown
