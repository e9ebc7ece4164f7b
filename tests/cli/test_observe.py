"""`cagrpc observe` on what was kept: its forms, its plans again, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cagrpc.cli.main import main
from cagrpc.controllers.episodes.log import EpisodeLog, KeptEpisode, kept, read
from cagrpc.controllers.episodes.model import Episode
from cagrpc.offline.inputs import Inputs
from tests.controllers.episodes.test_log import STATE, episode
from tests.support.waiting import AMPLE_SECONDS


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    found = EpisodeLog()
    found.add(kept(episode(100), STATE))
    path = tmp_path / "episodes.json"
    path.write_text(found.text())
    return path


def test_the_form_follows_from_the_suffix(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"report.{suffix}" for suffix in ("md", "html", "json")]
    assert main(["observe", "--from", str(file), "--to", *map(str, paths)]) == 0
    markdown, html, plain = (path.read_text() for path in paths)
    assert markdown.startswith("# The autoscaler beside the plan: pods waited for nodes 1 time")
    assert html.startswith("<!DOCTYPE html>")
    assert json.loads(plain)[0]["better"] == "autoscaler"
    assert f"{paths[0]} has 1 episode" in capsys.readouterr().out
    assert main(["observe", "--from", str(file)]) == 0
    assert capsys.readouterr().out.rstrip("\n") == markdown.rstrip("\n")


def test_each_is_planned_again_from_its_recorded_state(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["observe", "--from", str(file), "--plan-again", "--budget", "5s"]) == 0
    said = capsys.readouterr().out
    assert "planned: 1 big" not in said, "the three pods fit on what stands, whatever was kept of the plan"
    assert "the plan would have been better: 2 nodes came, 0 by the plan" in said


@pytest.mark.parametrize("ends", ["--for", "SIGTERM"])
def test_it_watches_until_its_time_is_over_or_it_is_told_to_end(
    ends: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Inputs] = []
    before = signal.getsignal(signal.SIGTERM)

    def watch(
        what: Inputs, kept: Path, _: object, on_end: Callable[[Episode], object], until: threading.Event
    ) -> list[KeptEpisode]:
        asked.append(what)
        assert kept == Path("episodes.json")
        on_end(episode(100))
        if ends == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        assert until.wait(AMPLE_SECONDS)
        return list(read(file.read_text()))

    monkeypatch.setattr("cagrpc.offline.observing.observe", watch)
    more = ["--for", "50ms"] if ends == "--for" else []
    assert main(["observe", "--kubeconfig", "there", "--scheduler", "volcano", *more]) == 0
    assert [(each.kubeconfig, each.schedulers) for each in asked] == [(Path("there"), frozenset({"volcano"}))]
    said = capsys.readouterr().out
    assert said.startswith("1970-01-01T00:01:50Z: 3 pods; the autoscaler was better: ")
    assert "# The autoscaler beside the plan: pods waited for nodes 1 time" in said
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "nowhere.json"], "nowhere.json: cannot be read"),
        (["--from", "pods.yaml"], "pods.yaml: has no episodes; expected what `cagrpc observe --kept` has written"),
        (["--plan-again"], "--plan-again takes --from"),
        (["--to", "report.pdf"], "--to report.pdf: its suffix is none of .md, .html, .json"),
        (["--kubeconfig", "nowhere"], "nowhere"),
        (["--kubeconfig", "nowhere", "--for", "soon"], "--for"),
    ],
)
def test_what_cannot_be_done_is_told(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pods.yaml").write_text("kind: Pod\n")
    assert main(["observe", *arguments]) == 2
    assert said in capsys.readouterr().err
