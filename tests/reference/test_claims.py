"""Resource claims from Kubernetes' objects to a plan, against a kube-scheduler that tries everything."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, note

from tests.support.examples import examples
from tests.support.scheduler.claim_strategies import worlds_with_claims
from tests.support.scheduler.cluster import World
from tests.support.scheduler.oracle import Oracle
from tests.support.scheduler.planned import planned

_IN_TURN = "a claim shared with other pods"
"""docs/reference/resource-claims.md: a claim that is not allocated is planned with one pod, others go to its node."""


@given(worlds_with_claims())
@examples(100)
def test_every_pod_is_given_its_devices_where_it_is_planned(tmp_path: Path, world: World) -> None:
    found, oracle = planned(world, tmp_path), Oracle(world)
    note(str(found.plan))
    for assignment in found.assignments():
        assert not oracle.refuses(assignment)


@given(worlds_with_claims(plain=True))
@examples(100)
def test_with_counts_alone_who_could_be_served_is(tmp_path: Path, world: World) -> None:
    found, oracle = planned(world, tmp_path), Oracle(world)
    note(str(found.plan))
    for assignment in found.assignments():
        assert not oracle.refuses(assignment)
    in_turn = {pod for pod, reasons in found.reasons.items() if _IN_TURN in reasons}
    assert oracle.serving(found.served, without=in_turn) is None, found.reasons
