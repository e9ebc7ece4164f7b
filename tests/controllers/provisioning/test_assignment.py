"""Which request gets which nodes of a plan, and which nodes must come together."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.provisioning.decision.assignment import assign, together
from solver.model import PlacedOnNode, PlannedNodes


def test_whole_nodes_go_to_one_request_and_only_what_is_left_is_shared() -> None:
    demands = [("a", {0: 5}), ("b", {0: 5}), ("c", {1: 2})]
    handed = assign(demands, (), (PlannedNodes("g", 5, {0: 2}), PlannedNodes("h", 1, {1: 2})))
    assert Counter(handed.new) == {("g", ("a",)): 2, ("g", ("b",)): 2, ("g", ("a", "b")): 1, ("h", ("c",)): 1}
    assert sorted(len(part) for part in together(handed.new)) == [1, 5]


def test_what_stands_goes_to_the_first() -> None:
    demands = [("a", {0: 3}), ("b", {0: 1})]
    handed = assign(demands, (PlacedOnNode("n2", {0: 1}), PlacedOnNode("n1", {0: 2})), (PlannedNodes("g", 1, {0: 1}),))
    assert handed.on_nodes == {"a": ("n1", "n2")}
    assert handed.new == (("g", ("b",)),)


def test_nodes_without_pods_go_with_others_of_their_group() -> None:
    nodes = (
        PlannedNodes("g", 1, {0: 1}),
        PlannedNodes("h", 1, {1: 1}),
        PlannedNodes("h", 2, {}),
        PlannedNodes("i", 1, {}),
    )
    handed = assign([("a", {0: 1}), ("b", {1: 1})], (), nodes)
    assert Counter(handed.new) == {("g", ("a",)): 1, ("h", ("b",)): 3, ("i", ("a",)): 1}


_PODS = st.dictionaries(st.integers(0, 3), st.integers(1, 3), min_size=1, max_size=3)


@given(
    st.lists(st.tuples(st.sampled_from("gh"), st.integers(1, 4), _PODS), min_size=1, max_size=4),
    st.lists(_PODS, max_size=2),
    st.lists(st.integers(0, 4), max_size=4),
)
def test_every_node_has_an_owner_and_parts_have_none_in_common(
    nodes: list[tuple[str, int, dict[int, int]]], standing: list[dict[int, int]], cuts: list[int]
) -> None:
    """All pods of the nodes, cut among requests."""
    existing = [PlacedOnNode(f"n{number}", pods) for number, pods in enumerate(standing)]
    planned = [PlannedNodes(group, count, pods) for group, count, pods in nodes]
    left: Counter[int] = Counter()
    for pods in (*standing, *(each.pods for each in planned for _ in range(each.count))):
        left.update(pods)
    demands = []
    for number, most in enumerate(cuts):
        mine = Counter({who: min(most, count) for who, count in left.items()})
        left -= mine
        demands.append((f"r{number}", +mine))
    demands.append(("last", left))
    handed = assign(demands, existing, planned)
    assert Counter(group for group, _ in handed.new) == sum(
        (Counter({each.node_group: each.count}) for each in planned), Counter()
    )
    assert all(uids and len(set(uids)) == len(uids) for _, uids in handed.new)
    owners = {uid for _, uids in handed.new for uid in uids} | handed.on_nodes.keys()
    assert owners == {uid for uid, pods in demands if any(pods.values())}
    parts = together(handed.new)
    assert sorted(node for part in parts for node in part) == sorted(handed.new)
    of_parts = [{uid for _, uids in part for uid in uids} for part in parts]
    assert sum(map(len, of_parts)) == len(set().union(*of_parts))
    assert handed == assign(demands, existing, planned)
