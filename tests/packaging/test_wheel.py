"""The wheel, installed into an environment of its own as by somebody who has no clone: `cagrpc --help`, a plan of the
first page's files, and a server. Its requirements are lent from the test's environment, so that pip checks their
versions and downloads nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cagrpc.config.load import default_text
from tests.support.commands import ROOT, blocks
from tests.support.controlplane.processes import wait_for
from tests.support.waiting import AMPLE_SECONDS

SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "tools", "protos", "solver", "cagrpc")


@pytest.fixture(name="environment", scope="module")
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's directory of programs."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "gen"))
        else:
            shutil.copy(ROOT / name, source)
    programs = directory / "environment" / "bin"
    _run(directory, sys.executable, "-m", "venv", directory / "environment")
    lent = directory / "lent"
    lent.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("cagrpc", "__editable__")):  # what is of this project comes by the wheel alone
            (lent / entry.name).symlink_to(entry)
    (site,) = directory.glob("environment/lib/python3*/site-packages")
    (site / "lent.pth").write_text(f"{lent}\n")
    build = "from setuptools.build_meta import build_wheel; build_wheel('../dist')"
    _run(source, sys.executable, "-c", build)
    (wheel,) = (directory / "dist").glob("cagrpc-*.whl")
    shutil.rmtree(source)
    _run(directory, programs / "pip", "install", "--no-index", wheel)
    return programs


def _clean() -> dict[str, str]:
    mine = {name: text for name, text in os.environ.items() if not name.startswith(("CAGRPC_", "PYTHON", "VIRTUAL_"))}
    return {**mine, "SETUPTOOLS_SCM_PRETEND_VERSION": "1.2.3"}


def _run(directory: Path, *command: str | Path) -> str:
    done = subprocess.run(
        [str(each) for each in command],
        cwd=directory,
        env=_clean(),
        capture_output=True,
        text=True,
        timeout=AMPLE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_it_says_what_it_can_do(environment: Path, tmp_path: Path) -> None:
    assert "serve" in _run(tmp_path, environment / "cagrpc", "--help")
    assert _run(tmp_path, environment / "cagrpc", "--version") == "cagrpc 1.2.3\n"
    where = _run(tmp_path, environment / "python", "-c", "import cagrpc; print(cagrpc.__file__)")
    assert Path(where.strip()).is_relative_to(environment.parent)


def test_it_plans_the_first_page(environment: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "five-minutes.md").read_text()
    for name, lines in zip(("pods.yaml", "nodepools.yaml"), blocks(page, "yaml"), strict=True):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    given = ("--pods", "pods.yaml", "--provisioners", "nodepools.yaml")
    assert "3 of 3 pods" in _run(tmp_path, environment / "cagrpc", "plan", *given)


def test_it_serves(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "cagrpc.yaml").write_text(default_text())
    given = (environment / "cagrpc", "serve", "--config", "cagrpc.yaml", "--ephemeral-ports", "--state-dir", "state")
    with (tmp_path / "serve.log").open("w") as log:
        server = subprocess.Popen([*map(str, given)], cwd=tmp_path, env=_clean(), stdout=log, stderr=log)
    try:
        wait_for(lambda: (tmp_path / "state" / "endpoints.json").exists() or server.poll() is not None, "it serves")
        assert "--grpc-expander-url=" in (tmp_path / "serve.log").read_text()
        server.send_signal(signal.SIGTERM)
        assert server.wait(AMPLE_SECONDS) == 0, (tmp_path / "serve.log").read_text()
    finally:
        server.kill()
        server.wait()
