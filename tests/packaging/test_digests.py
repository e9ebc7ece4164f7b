"""Images by digest: the Dockerfile's base is, and `make digests` pins all of them anew."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

import pytest
import yaml

from tools import digests

REPOSITORY = Path(__file__).resolve().parents[2]
BY_DIGEST = r"[a-z0-9./-]+:[\w.-]+@sha256:[0-9a-f]{64}"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that name images, and a Docker that knows some: the digest of python is all 1, of others all 2."""
    shutil.copytree(REPOSITORY / "deploy", tmp_path / "deploy")
    shutil.copy(REPOSITORY / "Dockerfile", tmp_path)
    docker = tmp_path / "docker"
    docker.write_text(
        f"""#!/bin/sh
[ "$1 $2 $3 $4 $5" = "buildx imagetools inspect --format {{{{.Manifest.Digest}}}}" ] || exit 9
case "$6" in
  python:*) echo sha256:{"1" * 64} ;;
  *nowhere*) echo "no such host" >&2; exit 1 ;;
  *silent*) ;;
  *@*) echo "asked by digest: $6" >&2; exit 1 ;;
  *) echo sha256:{"2" * 64} ;;
esac
"""
    )
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def images(root: Path) -> dict[str, str]:
    """What stands in the values, by who runs it."""
    values = yaml.safe_load((root / "deploy" / "chart" / "values.yaml").read_text())
    (load,) = yaml.safe_load((root / "deploy" / "values" / "try-slack.yaml").read_text())["extraObjects"]
    parts = {"cagrpc": values["image"], "autoscaler": values["clusterAutoscaler"]["image"]}
    found = {name: f"{each['repository']}:{each['tag']}@{each['digest']}" for name, each in parts.items()}
    return {**found, "load": load["spec"]["template"]["spec"]["containers"][0]["image"]}


def base(root: Path) -> str:
    (found,) = re.findall(r"^ARG BASE=(\S+)$", (root / "Dockerfile").read_text(), re.MULTILINE)
    return str(found)


def test_nothing_is_built_on_a_tag_alone() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}"] * 3
    assert re.fullmatch(BY_DIGEST, base(REPOSITORY))


def test_all_are_pinned_by_what_the_registries_say_now(tree: Path) -> None:
    before = images(tree)
    assert digests.pin(tree) == digests.pin(tree)  # from digests as well
    assert base(tree) == f"python:3.11-slim@sha256:{'1' * 64}"
    after = images(tree)
    assert after["cagrpc"] == before["cagrpc"]
    for name in ("autoscaler", "load"):
        assert after[name].partition("@")[0] == before[name].partition("@")[0]
        assert after[name].endswith(f"@sha256:{'2' * 64}")
    values = (tree / "deploy" / "chart" / "values.yaml").read_text()
    written = (REPOSITORY / "deploy" / "chart" / "values.yaml").read_text()
    assert values.replace(f"sha256:{'2' * 64}", "") == written


def test_a_release_pins_its_own_image(tree: Path) -> None:
    for _ in range(2):
        digests.pin(tree, "registry.example/team/cagrpc:0.1.0")
        assert images(tree)["cagrpc"] == f"registry.example/team/cagrpc:0.1.0@sha256:{'2' * 64}"


@pytest.mark.parametrize(
    ("own", "reported"), [("nowhere/cagrpc:1", "no such host"), ("silent/cagrpc:1", "gives no digest")]
)
def test_without_a_digest_nothing_is_written(tree: Path, own: str, reported: str) -> None:
    before = base(tree), images(tree)
    with pytest.raises(SystemExit, match=rf"{own}: .*{reported}"):
        digests.pin(tree, own)
    assert (base(tree), images(tree)) == before
