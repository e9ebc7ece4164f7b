"""A package `solver` of somebody else is refused with one sentence (docs/decisions/0018-solver-package-name.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def importing(*path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-c", "import cagrpc"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=path[0], check=False)


def refused(done: subprocess.CompletedProcess[str], foreign: Path) -> bool:
    last = done.stderr.splitlines()[-1]
    return done.returncode == 1 and last.startswith(f"ImportError: the package solver is not cagrpc's: found {foreign}")


def test_a_foreign_package_in_front_of_ours(tmp_path: Path) -> None:
    foreign = tmp_path / "solver" / "__init__.py"
    foreign.parent.mkdir()
    foreign.write_text("def solve(): ...\n")
    assert refused(importing(tmp_path, REPOSITORY), foreign)


def test_a_foreign_package_installed_over_ours(tmp_path: Path) -> None:
    """pip lets the last distribution win, file by file: our other modules are still there."""
    for package in ("cagrpc", "solver"):
        shutil.copytree(REPOSITORY / package, tmp_path / package)
    assert importing(tmp_path).returncode == 0
    foreign = tmp_path / "solver" / "__init__.py"
    foreign.write_text("def solve(): ...\n")
    assert refused(importing(tmp_path), foreign)
