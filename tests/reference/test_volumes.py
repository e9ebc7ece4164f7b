"""Volumes from Kubernetes' objects to a plan, against a kube-scheduler that tries everything."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, note

from tests.support.examples import examples
from tests.support.scheduler.cluster import World
from tests.support.scheduler.oracle import Oracle
from tests.support.scheduler.planned import Planned, planned
from tests.support.scheduler.volume_strategies import worlds_with_volumes

_ASSIGNED_BEFOREHAND = "no available one is left for it", "out of reach of its volumes"
_IN_TURN = "uses it first", "a claim shared with other pods"
_WITH_VOLUMES = "local", "fast"


@given(worlds_with_volumes())
@examples(100)
def test_every_pod_is_bound_where_it_is_planned_and_who_could_be_is(tmp_path: Path, world: World) -> None:
    found, oracle = planned(world, tmp_path), Oracle(world)
    note(str(found.plan))
    for assignment in found.assignments():
        assert not oracle.refuses(assignment)
    better = oracle.serving(found.served, without=_excepted(world, found))
    assert better is None, found.reasons


def _excepted(world: World, found: Planned) -> set[str]:
    """Return the pods that docs/reference/volumes.md says may be left out though the scheduler could bind them: those
    that share a claim with an older pod and wait for it, and those for which volumes that are there were chosen before
    nodes were."""
    excepted = set()
    for pod, reasons in found.reasons.items():
        documented = (*_IN_TURN, *(_ASSIGNED_BEFOREHAND if _chooses(world, pod) else ()))
        if any(each in reasons for each in documented):
            excepted.add(pod)
    return excepted


def _chooses(world: World, pod: str) -> bool:
    """Whether a claim of the pod gets one of the volumes that are there."""
    claims = world.of("PersistentVolumeClaim")
    for volume in world.waiting[pod]["spec"]["volumes"]:
        made = volume.get("ephemeral", {}).get("volumeClaimTemplate")
        claim = made or claims.get(volume.get("persistentVolumeClaim", {}).get("claimName"))
        if claim is not None and claim["spec"].get("storageClassName") in _WITH_VOLUMES:
            return True
    return False
