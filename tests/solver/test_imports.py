"""What the solver's packages load: planning costs a second of imports, which only those pay who plan."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("ortools", "numba", "pandas", "numpy")


@pytest.mark.parametrize(
    "statement",
    [
        "import solver",
        "from solver import Budget, NodeGroup, PodSet, PodSpec, Problem, Plan",
        "from solver.model import Node",
        "from solver import ScaleUpCandidate, Score",
        "from solver.model.capacity import after_plan",
        "from solver.slack.model import SlackTarget",
        "from solver.explanation.model import Explanation",
        "from solver.verify.check import check",
    ],
)
def test_the_vocabulary_and_the_checker_load_no_mathematics(statement: str) -> None:
    shown = f"{statement}\nimport sys\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_public_is_there() -> None:
    shown = "import solver\nprint([name for name in solver.__all__ if getattr(solver, name, None) is None])"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_cache_of_classes_that_are_gone_is_dropped(tmp_path: Path) -> None:
    """numba would raise AttributeError at the first plan after an upgrade over an older cache."""
    code = "from solver.integral.packing_kernel import open_best as f; c = f._cache._cache_file; "
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(rest: str) -> str:
        command = [sys.executable, "-c", code + rest]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()

    run("c._save_index({})")
    index = next(tmp_path.rglob("packing_kernel.open_best*.nbi"))
    version = pickle.dumps(pickle.loads(index.read_bytes()))
    index.write_bytes(version + b"csolver.integral.packing_kernel\nGone\n.")
    assert run("print(c._load_index())") == "{}"
