"""What is found for all nodes at once is what is found for each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from solver.model import Node, PodSpec, Taint, TaintEffect
from solver.model.eligibility import all_why_not_eligible, why_not_eligible
from solver.reduction.node_columns import NodeColumns
from tests.support.examples import examples
from tests.support.solver.problems import TAINT
from tests.support.solver.strategies import pod_specs

_LABELS = st.fixed_dictionaries(
    {}, optional={"zone": st.sampled_from("ab"), "size": st.sampled_from("359"), "kind": st.just("x")}
)
_TAINTS = st.sampled_from([(), (TAINT,), (Taint("other", TaintEffect.NO_SCHEDULE), TAINT)])


@examples(150)
@given(st.lists(st.tuples(_LABELS, _TAINTS), max_size=8), st.lists(pod_specs(), min_size=1, max_size=4))
def test_where_pods_may_run(drawn: list[tuple[dict[str, str], tuple[Taint, ...]]], specs: list[PodSpec]) -> None:
    nodes = [Node(f"n{number}", {}, labels, taints) for number, (labels, taints) in enumerate(drawn)]
    columns = NodeColumns(nodes)
    for each in specs:
        why_not = [why_not_eligible(each, node.labels, node.taints, node.name) for node in nodes]
        assert [columns.why_not(each, position) for position in range(len(nodes))] == why_not
        assert columns.admits(each).tolist() == [why is None for why in why_not]
        causes = columns.causes(each)
        for position, node in enumerate(nodes):
            every = all_why_not_eligible(each, node.labels, node.taints, node.name)
            assert {cause for cause, where in causes.items() if where[position]} == set(every)


def test_what_is_free_is_never_below_0_nor_more_than_can_be_counted() -> None:
    columns = NodeColumns([Node("a", {"cpu": -5}), Node("b", {}), Node("c", {"cpu": 10**30}), Node("d", {"cpu": 7})])
    assert columns.free("cpu").tolist() == [0, 0, 2**62, 7]


def test_nodes_are_alike_by_taints_and_the_labels_asked_for() -> None:
    columns = NodeColumns(
        [
            Node("a", {}, {"zone": "1", "rack": "x"}),
            Node("b", {}, {"zone": "1", "rack": "y"}),
            Node("c", {}, {"rack": "x"}),
            Node("d", {}, {"zone": "1", "rack": "x"}, (TAINT,)),
        ]
    )
    kinds, first = columns.alike(["zone"])
    assert kinds[0] == kinds[1]
    assert len(set(kinds.tolist())) == 3
    assert sorted(first.tolist()) == [0, 2, 3]
    assert len(set(columns.alike(["zone", "rack"])[0].tolist())) == 4
    assert len(set(columns.alike([], names=True)[0].tolist())) == 4
