"""What is said of claims on devices that are not met, and what would help."""

from __future__ import annotations

import pytest

from solver import Budget, NodeGroup, Problem, explain, solve
from solver.explanation.kinds import advice, reason
from solver.explanation.model import ConstraintChange
from solver.model import DeviceClaim
from tests.support.solver.device_examples import GPUS, NUMA, SOCKETS, asks, claim, first_of, together
from tests.support.solver.problems import group, pods, spec

ONE = (group("g", devices=GPUS, max_size=1),)


@pytest.mark.parametrize(
    ("claims", "count", "groups", "core", "ways"),
    [
        pytest.param(
            claim(count=9),
            1,
            ONE,
            ["pods like p claim 9 devices by request gpu"],
            ["claim fewer devices by request gpu of pods like p: 8, not 9"],
            id="too-many",
        ),
        pytest.param(
            claim("fpga"), 1, ONE, ["pods like p claim 1 device by request fpga"], [], id="what-a-pod-is-about-is-kept"
        ),
        pytest.param(
            first_of(("fpga", 1), ("gpu", 9)),
            1,
            ONE,
            ["pods like p claim devices by request gpu"],
            [],
            id="alternatives",
        ),
        pytest.param(
            together(NUMA, asks(count=5)),
            1,
            (group("g", devices=SOCKETS),),
            [
                "pods like p claim devices with one value of example.com/numa",
                "pods like p claim 5 devices by request gpu",
            ],
            [
                "drop the constraint on example.com/numa from the claims of pods like p",
                "claim fewer devices by request gpu of pods like p: 4, not 5",
            ],
            id="attribute",
        ),
        pytest.param(
            together(NUMA, asks("nic"), asks("gpu")),
            1,
            (group("g", devices=SOCKETS),),
            ["pods like p claim 1 device by request nic"],
            [],
            id="one-of-two-requests",
        ),
        pytest.param(
            claim(count=4),
            4,
            ONE,
            ["pods like p claim 4 devices by request gpu", "node group g may have 1 node"],
            ["raise maxSize of g from 1 to 2", "claim fewer devices by request gpu of pods like p: 2, not 4"],
            id="sizes",
        ),
    ],
)
def test_why_claims_are_not_met(
    claims: tuple[DeviceClaim, ...], count: int, groups: tuple[NodeGroup, ...], core: list[str], ways: list[str]
) -> None:
    problem = Problem((pods("p", count, spec(10, claims=claims)),), groups)
    (why,) = explain(
        problem, solve(problem, Budget(deterministic_seconds=5)), Budget(deterministic_seconds=20)
    ).unserved
    assert [reason(each) for each in why.core if isinstance(each, ConstraintChange)] == core
    assert why.proven
    assert [" and ".join(map(advice, way.changes)) for way in why.ways] == ways
