"""What is true of every decision on ProvisioningRequests, in scenarios small enough to try everything."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.shortages import Shortage
from cagrpc.controllers.provisioning.decision.planning import Scenario, decide
from cagrpc.controllers.provisioning.model import Candidate
from solver import Limit, Node, NodeGroup
from tests.support.controllers.provisioning_decisions import BUDGET, judge, request, served_by_trying
from tests.support.examples import examples
from tests.support.solver.problems import TAINT, TOLERATION, spec


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    units = st.integers(1, 4).map(lambda units: 1000 * units)
    groups = tuple(
        NodeGroup(
            name,
            {"cpu": draw(units), "pods": 20},
            draw(st.sampled_from((0.1, 0.5, 1.0))),
            labels={"pool": name},
            taints=(TAINT,) if name == "b" and draw(st.booleans()) else (),
            max_size=draw(st.integers(0, 3)),
            target_size=draw(st.integers(0, 1)),
        )
        for name in ("a", "b")
    )
    nodes = tuple(Node(f"n{number}", {"cpu": draw(units), "pods": 20}) for number in range(draw(st.integers(0, 2))))
    limits = (Limit("all", {"nodes": draw(st.integers(0, 4))}),) if draw(st.booleans()) else ()
    short = {"a": Shortage("a", 1, 0.0, 60.0, "none left")} if draw(st.integers(0, 5)) == 0 else {}
    return Scenario(nodes, groups, limits, short=short)


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    specs = st.builds(
        lambda units, pool, tolerates: spec(
            cpu=1000 * units,
            node_selector={"pool": pool} if pool else {},
            tolerations=(TOLERATION,) if tolerates else (),
        ),
        st.integers(1, 4),
        st.sampled_from(("", "", "", "a", "b")),
        st.booleans(),
    )
    sets = st.lists(st.tuples(specs, st.integers(1, 3)), min_size=1, max_size=2)
    return [
        request(f"r{number}", *draw(sets), priority=draw(st.integers(0, 1)), attempts=draw(st.integers(0, 1)))
        for number in range(draw(st.integers(1, 5)))
    ]


@examples(60)
@given(scenarios(), candidates())
def test_who_is_served_is_who_can_be_in_their_order(scenario: Scenario, asked: list[Candidate]) -> None:
    decided = decide(asked, scenario, BUDGET, advised=False)
    judge(asked, scenario, decided)
    assert decided.served == served_by_trying(asked, scenario)
    assert decided == decide(asked[::-1], scenario, BUDGET, advised=False)


@examples(40)
@given(scenarios(), candidates())
def test_infeasible_is_what_cannot_be_served_with_everything_empty(scenario: Scenario, asked: list[Candidate]) -> None:
    decided = decide(asked, scenario, BUDGET, advised=False)
    judge(asked, scenario, decided)
    groups = tuple(replace(each, target_size=0) for each in scenario.groups)
    empty = Scenario(groups=groups, limits=tuple(replace(limit, used={}) for limit in scenario.limits))
    assert decided.infeasible.keys() == {
        each.uid for each in asked if each.uid not in decided.served and not served_by_trying([each], empty)
    }
