"""Which new nodes are open, and which pods go now."""

from __future__ import annotations

from collections.abc import Collection

from cagrpc.controllers.consolidation.turns import NewNodeTurns, next_evictions, with_open_targets
from cagrpc.fleet.model import DisruptedNode, Disruption, DisruptionPhase, PodMove
from solver.consolidation.model import DisruptionReason

NEW = tuple(DisruptedNode(name, f"id-{name}", "group") for name in ("a", "b", "c"))


def move(uid: str, target: str, gang: str = "") -> PodMove:
    return PodMove(uid, "ns", uid, "ReplicaSet/ns/web", target, gang)


def disruption(
    phase: DisruptionPhase = DisruptionPhase.MOVING, reason: str = DisruptionReason.UNDERUTILIZED, name: str = "one"
) -> Disruption:
    return Disruption(name, reason, phase, (), 0.0, 900.0, new_nodes=NEW)


def advance(
    turns: NewNodeTurns,
    left: list[PodMove],
    *,
    refused: Collection[str] = (),
    needed: Collection[str] = (),
    open_now: int = 0,
) -> set[str]:
    """Return the names of the nodes that are held afterwards; what is not held is open at once."""
    under_way = disruption()

    def is_open(each: PodMove) -> bool:
        return f"id-{each.target}" not in turns.held(under_way)

    turns.advance(
        under_way,
        left,
        is_open=is_open,
        is_refused=lambda each: each.uid in refused,
        needed=set(needed),
        open_now=open_now,
    )
    return {each.removeprefix("id-") for each in turns.held(under_way)}


def test_a_node_opens_once_those_before_have_their_pods() -> None:
    turns, left = NewNodeTurns(), [move("1", "b"), move("2", "a"), move("3", "c")]
    assert advance(turns, left) == {"a", "c"}
    assert advance(turns, left) == {"a", "c"}
    assert advance(turns, left[1:], open_now=1) == {"a", "c"}
    assert advance(turns, left[1:]) == {"c"}
    assert advance(turns, left[2:]) == set()


def test_pods_go_to_nodes_that_stand_first() -> None:
    turns, left = NewNodeTurns(), [move("1", "a"), move("2", "standing")]
    assert advance(turns, left) == {"a", "b", "c"}
    assert advance(turns, left[:1]) == {"b", "c"}


def test_a_pod_that_may_not_go_yet_holds_up_nobody() -> None:
    turns, left = NewNodeTurns(), [move("1", "a"), move("2", "b")]
    advance(turns, left)
    assert advance(turns, left, refused={"1"}) == {"c"}


def test_a_node_that_others_need_opens_at_once() -> None:
    turns, left = NewNodeTurns(), [move("1", "a"), move("2", "b")]
    advance(turns, left)
    assert advance(turns, left, needed={"c", "standing"}) == {"b"}


def test_all_nodes_of_a_gang_open_together() -> None:
    turns, left = NewNodeTurns(), [move("1", "a", "x"), move("2", "b", "x"), move("3", "b", "y"), move("4", "c", "y")]
    assert advance(turns, left) == set()


def test_before_pods_move_and_after_it_and_for_nodes_that_must_go_nothing_is_held() -> None:
    turns = NewNodeTurns()
    assert turns.held(None) == frozenset()
    for phase in (DisruptionPhase.CREATING, DisruptionPhase.UNDOING, DisruptionPhase.DONE):
        assert turns.held(disruption(phase)) == frozenset()
    assert turns.held(disruption(reason=DisruptionReason.INTERRUPTED)) == frozenset()


def test_what_was_open_for_another_disruption_is_held() -> None:
    turns = NewNodeTurns()
    advance(turns, [move("1", "a")])
    assert len(turns.held(disruption(name="two"))) == len(NEW)


def test_pods_of_a_gang_wait_for_all_of_its_targets() -> None:
    left = [move("1", "a", "x"), move("2", "b", "x"), move("3", "a")]
    assert with_open_targets(left, lambda each: each.target == "a") == [left[2]]
    assert with_open_targets(left, lambda _: True) == left


def test_so_many_pods_go_at_a_time_and_a_gang_at_once() -> None:
    left = [move(str(n), "a") for n in range(3)] + [move(f"g{n}", "a", "x") for n in range(5)]
    assert next_evictions(left, lambda _: True, 4, 0) == left[:3]
    assert next_evictions(left, lambda _: True, 4, 3) == left[:1]
    assert next_evictions(left[3:], lambda _: True, 4, 0) == left[3:]
    assert next_evictions(left[3:], lambda _: True, 4, 1) == []
    assert next_evictions(left, lambda uid: uid != "0", 2, 0) == left[1:3]
