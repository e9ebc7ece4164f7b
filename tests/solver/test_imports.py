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
    shown = (
        "import solver.model\nnames = *solver.__all__, *solver.model.__all__\n"
        "print([name for name in names if getattr(solver, name, None) is None])"
    )
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_small_plan_loads_no_compiler() -> None:
    shown = (
        "from solver import Budget, NodeGroup, PodSet, PodSpec, Problem, solve\n"
        "pods, group = PodSet('p', PodSpec((('cpu', 1),)), 7), NodeGroup('g', {'cpu': 4, 'pods': 9}, 1.0)\n"
        "plan = solve(Problem((pods,), (group,)), Budget(deterministic_seconds=1.0))\n"
        "import sys\nprint(plan.certificate.cost_usd_per_hour, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2.0", "False"]
