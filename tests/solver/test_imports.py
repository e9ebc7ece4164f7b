"""What the solver's packages load: planning costs a second of imports, which only those pay who plan."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("ortools", "numba", "pandas", "numpy")


@pytest.mark.parametrize(
    "statement",
    [
        "import solver",
        "from solver import Budget, NodeGroup, PodSet, PodSpec, Problem, Plan",
        "from solver.model import Node",
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
