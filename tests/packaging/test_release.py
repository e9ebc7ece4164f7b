"""Releases: what stands against one is reported at once, and the version is the tag's."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tools import release

REPOSITORY = Path(__file__).resolve().parents[2]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-12-01\n\n- New.\n\n## [0.2.0] - 2026-11-22\n\n- Old.\n"
CHART = "apiVersion: v2\nversion: 0.3.0\nappVersion: 0.3.0\n"


def test_what_can_be_released() -> None:
    assert release.problems("0.3.0", CHANGELOG, CHART, ["v0.2.0", "verbose"], "") == []


@pytest.mark.parametrize(
    ("version", "changelog", "chart", "tags", "changed", "reported"),
    [
        ("v0.3", CHANGELOG, CHART, [], "", "VERSION is 'v0.3'"),
        ("0.3.0", CHANGELOG, CHART, ["v0.3.0"], "", "the tag v0.3.0 exists"),
        ("0.3.0", CHANGELOG, CHART, ["v0.10.0"], "", "v0.10.0 is newer than 0.3.0"),
        ("0.3.0", CHANGELOG, CHART, [], " M README.md", " M README.md"),
        ("0.3.0", CHANGELOG.replace(" - 2026-12-01", ""), CHART, [], "", "has to begin with"),
        ("0.3.0", CHANGELOG.replace("ed]\n", "ed]\n\n- More.\n"), CHART, [], "", "move what stands below"),
        ("0.3.0", CHANGELOG, CHART.replace("0.3.0\napp", "0.3.01\napp"), [], "", "has to say version: 0.3.0"),
    ],
)
def test_what_stands_against_a_release(
    version: str, changelog: str, chart: str, tags: list[str], changed: str, reported: str
) -> None:
    (problem,) = release.problems(version, changelog, chart, tags, changed)
    assert reported in problem


def test_everything_is_reported_at_once() -> None:
    assert len(release.problems("0.1.0", CHANGELOG, CHART, ["v0.2.0"], "?? new")) == 5


def test_the_notes_of_a_version() -> None:
    assert release.sections(CHANGELOG)["0.2.0"] == "- Old."


def test_the_changelog_begins_with_what_is_not_released() -> None:
    parts = release.sections((REPOSITORY / "CHANGELOG.md").read_text())
    first, newest, *_ = parts
    assert first == "Unreleased"
    assert parts[newest]


def test_the_version_is_the_tags() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert "version" in project["dynamic"]
