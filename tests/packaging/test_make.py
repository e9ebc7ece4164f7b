"""What a newcomer's first `make` says when the machine lacks something, and that CI runs what the README says."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def make(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Make in a directory that holds the Makefile and what its targets depend on."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "setup.py"):
        shutil.copy(REPOSITORY / name, directory)
    return subprocess.run(
        ["make", *arguments], cwd=directory, capture_output=True, text=True, timeout=60, check=False, env=os.environ
    )


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    done = make(tmp_path, "venv", "PYTHON=")
    assert done.returncode != 0
    assert "needs Python 3.11 or newer; python3 here is: Python 3" in done.stderr


def test_a_missing_venv_module_names_the_package(tmp_path: Path) -> None:
    python = script(tmp_path / "python3", "exit 1")
    done = make(tmp_path, "venv", f"PYTHON={python}")
    assert done.returncode != 0
    assert "apt install python3-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_without_a_target_it_lists_them(tmp_path: Path) -> None:
    done = make(tmp_path)
    assert done.returncode == 0
    for target in ("venv", "run", "test", "lint", "bench", "clean"):
        assert f"make {target} " in done.stdout


def test_ci_runs_the_command_that_the_readme_gives() -> None:
    ci = REPOSITORY / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    assert ci.read_text().rstrip().endswith("\nmake test")
    assert "make test" in (REPOSITORY / "README.md").read_text()
