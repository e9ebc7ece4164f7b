"""What an explanation says where there was no time to find out."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from cagrpc.offline.plan_words import print_explanation
from cagrpc.offline.planning import explain_plan, plan
from cagrpc.tables import console
from solver import Budget, Problem
from solver.explanation.model import WhyUnserved
from tests.support.solver.problems import group, pods, spec


@pytest.mark.parametrize(
    ("proven", "said"),
    [(True, "no node and no node group could run it"), (False, "not known: planning ran out of time")],
)
def test_what_there_was_no_time_for_is_not_said_to_be_so(proven: bool, said: str) -> None:
    planned = plan(Problem((pods("web", 3, spec(600)),), (group("few", 1000, 0.1, max_size=2),)), Budget(0.0))
    why = WhyUnserved("web", (0,), False, 3, 1, 2, (), proven, (), False, False)
    stream = io.StringIO()
    print_explanation(planned, replace(explain_plan(planned), unserved=(why,)), console(stream))
    assert said in " ".join(stream.getvalue().split())
