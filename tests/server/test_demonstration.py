"""`cagrpc serve --demonstration`: what somebody sees who opens its page, and what it says in the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cagrpc.config.load import load_default_settings
from cagrpc.config.schema.listen import Address
from cagrpc.controllers.settings import ConsolidationMode, Drive
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.server.process import announce
from cagrpc.server.server import JOURNAL, Endpoints
from tests.support.artifacts import kept
from tests.support.browser import Browser
from tests.support.controlplane.processes import wait_for
from tests.support.serving import cagrpc


def test_it_plans_and_orders_for_pods_that_are_played(started: Any) -> None:
    serving = started("--demonstration")
    said = serving.output.read_text()
    assert said.startswith("This is a demonstration: ")
    assert f"http://{serving.endpoints['http']}/" in said
    assert "cagrpc plan" in said
    wait_for(lambda: serving.get("/increments"), "nodes are ordered for the first pods")
    status = serving.get("/status")
    assert status["drive"] == "plan"
    assert status["demonstration"].startswith("a demonstration: ")
    assert serving.get("/plans")[0]["pods"] == 15
    shown = cagrpc("status", "--http", serving.endpoints["http"]).stdout
    kept("status.txt").write_text(shown)
    assert shown.startswith("ready\n")
    assert " in flight\n" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert serving.stop() == 0
    assert "ERROR" not in serving.log()


def test_the_page_says_that_it_is_one(browser: Browser, started: Any) -> None:
    serving = started("--demonstration")
    with browser.tab() as tab:
        tab.open(f"http://{serving.endpoints['http']}/")
        tab.wait(lambda: "This is a demonstration" in tab.text("main"), "it is said")
        tab.wait(lambda: "m7i.4xlarge +1" in tab.text("#increments"), "an increment is there")
        tab.screenshot(kept("demonstration.png"))
        assert not tab.complaints


@pytest.mark.parametrize("more", [("--config", "x.yaml"), ("--replay", "three-deployments")])
def test_it_has_a_cluster_of_its_own(more: tuple[str, str]) -> None:
    done = cagrpc("serve", "--demonstration", *more)
    assert done.returncode == 2
    assert "--demonstration plays a cluster of its own; leave out --config and --replay" in done.stderr


def test_it_does_not_play_over_the_machines_of_another_server(tmp_path: Path, started: Any) -> None:
    SqliteJournal(tmp_path / JOURNAL).close()
    done = cagrpc("serve", "--demonstration", "--state-dir", tmp_path)
    assert done.returncode == 2
    assert f"--state-dir {tmp_path}: belongs to another server; --demonstration takes one of its own" in done.stderr
    serving = started("--demonstration")
    assert serving.stop() == 0
    again = started("--demonstration")
    assert again.stop() == 0


def test_a_page_on_other_addresses_is_announced_as_it_is_served(tmp_path: Path) -> None:
    settings = load_default_settings(tmp_path, "demonstration")
    printed = io.StringIO()
    secured = replace(settings, state_directory=tmp_path, http=Address("0.0.0.0", 8088))
    announce(secured, Endpoints("a:1", "b:2", "localhost:8088"), Console(file=printed), demonstration=True)
    assert "Open https://localhost:8088/" in printed.getvalue()


def test_its_configuration_is_valid_and_shows_what_it_is_for(tmp_path: Any) -> None:
    settings = load_default_settings(tmp_path, "demonstration")
    assert not settings.warnings
    assert settings.drive is Drive.PLAN
    assert settings.consolidation is not None
    assert settings.consolidation.mode is ConsolidationMode.ON
    assert settings.consolidation.minimum_node_age_seconds < 60
