"""What keeps a bound pod on its node: each reason, and the pod beside it that has none."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from cagrpc.api.core.movability import (
    DO_NOT_DISRUPT,
    ORDINARY,
    SAFE_TO_EVICT,
    SAFE_TO_EVICT_LOCAL_VOLUMES,
    EvictionFacts,
    Kept,
    MovingRules,
    SharedFacts,
    eviction_facts,
    kept_by,
    why_kept,
    why_unplanned,
)
from cagrpc.api.core.nodes import HOSTNAME
from cagrpc.api.core.pods import NOWHERE
from cagrpc.api.gen import kubernetes_pb2
from solver.model import NodeSelectorTerm, Operator, PodSpec, Requirement
from tests.support.messages import filled

NOW = 1_000_000.0
OWNERS = [{"kind": "ReplicaSet", "name": "web-1", "controller": True}]
DISK, MEMORY, HOST = (
    {"name": "disk", "volumeSource": {"emptyDir": {}}},
    {"name": "memory", "volumeSource": {"emptyDir": {"medium": "Memory"}}},
    {"name": "host", "volumeSource": {"hostPath": {"path": "/var"}}},
)
CLAIM = {"name": "data", "volumeSource": {"persistentVolumeClaim": {"claimName": "data"}}}


def _facts(
    *,
    owners: list[dict[str, Any]] | None = None,
    deleted_at: int | None = None,
    started_at: int | None = 999_000,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> EvictionFacts:
    metadata: dict[str, Any] = {
        "name": "web-1-a",
        "namespace": "shop",
        "ownerReferences": OWNERS if owners is None else owners,
        "annotations": annotations or {},
    }
    if deleted_at is not None:
        metadata["deletionTimestamp"] = {"seconds": deleted_at}
    status = {} if started_at is None else {"startTime": {"seconds": started_at}}
    found = kubernetes_pb2.Pod()
    filled(found, {"metadata": metadata, "spec": spec, "status": status})
    return eviction_facts(found)


def _why(facts: EvictionFacts, shared: SharedFacts | None = None, **given: Any) -> tuple[str, Kept]:
    rules = given.pop("rules", MovingRules())
    why, because = why_kept("shop/web-1-a", facts, shared or SharedFacts(), rules, NOW, **given)
    return why, kept_by(because)


FREE = ("", Kept.NOTHING)
NO_CONTROLLER = ("shop/web-1-a has no controller that would replace it", Kept.WITHOUT_SUCCESSOR)
UNTIL_IT_ENDS = ("shop/web-1-a runs until it ends", Kept.UNTIL_IT_ENDS)
NOT_SAFE = (f'shop/web-1-a has the annotation {SAFE_TO_EVICT}: "false"', Kept.BY_OWNER)
FOR_EVER = (f"shop/web-1-a has the annotation {DO_NOT_DISRUPT}", Kept.BY_OWNER)


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        pytest.param({}, FREE, id="a Deployment's"),
        pytest.param({"owners": [{"kind": "CloneSet", "name": "x", "controller": True}]}, FREE, id="any controller"),
        pytest.param({"owners": []}, NO_CONTROLLER, id="of nobody"),
        pytest.param({"owners": [{"kind": "Backup", "name": "x"}]}, NO_CONTROLLER, id="an owner that does not control"),
        pytest.param({"owners": [], "annotations": {SAFE_TO_EVICT: "true"}}, NO_CONTROLLER,
                     id="nobody would run it again, whatever it says"),
        pytest.param({"annotations": {SAFE_TO_EVICT: "false"}}, NOT_SAFE, id="not safe to evict"),
        pytest.param({"annotations": {SAFE_TO_EVICT: "true"}}, FREE, id="safe to evict"),
        pytest.param({"annotations": {SAFE_TO_EVICT: "on-completion"}}, UNTIL_IT_ENDS, id="on completion"),
        pytest.param({"annotations": {DO_NOT_DISRUPT: "true"}}, FOR_EVER, id="do not disrupt"),
        pytest.param({"annotations": {DO_NOT_DISRUPT: "false"}}, FREE, id="an invalid value is none to Karpenter"),
        pytest.param({"annotations": {DO_NOT_DISRUPT: "1h"}},
                     (f"shop/web-1-a has the annotation {DO_NOT_DISRUPT}, until 1970-01-12T14:30:00Z", Kept.BY_OWNER),
                     id="for an hour from its start"),
        pytest.param({"annotations": {DO_NOT_DISRUPT: "10m"}}, FREE, id="ten minutes are over"),
        pytest.param({"annotations": {DO_NOT_DISRUPT: "10m"}, "started_at": None}, FOR_EVER, id="not yet started"),
        pytest.param({"owners": [{"kind": "Job", "name": "j", "controller": True}]}, UNTIL_IT_ENDS, id="a Job's"),
        pytest.param({"restartPolicy": "OnFailure"}, UNTIL_IT_ENDS, id="a workflow's"),
        pytest.param({"restartPolicy": "Always"}, FREE, id="always restarted"),
        pytest.param({"volumes": [DISK, HOST]},
                     ("shop/web-1-a has local storage: volumes disk, host", Kept.BY_OWNER), id="local storage"),
        pytest.param({"volumes": [MEMORY, CLAIM]}, FREE, id="memory, and a claim"),
        pytest.param({"volumes": [DISK], "annotations": {SAFE_TO_EVICT: "true"}}, FREE, id="that may be lost"),
        pytest.param({"volumes": [DISK, HOST], "annotations": {SAFE_TO_EVICT_LOCAL_VOLUMES: "disk,host"}}, FREE,
                     id="each of which may be lost"),
        pytest.param({"volumes": [DISK, HOST], "annotations": {SAFE_TO_EVICT_LOCAL_VOLUMES: "disk"}},
                     ("shop/web-1-a has local storage: volume host", Kept.BY_OWNER), id="one of which may be lost"),
    ],
)  # fmt: skip
def test_what_a_pod_says_of_itself(pod: dict[str, Any], why: tuple[str, Kept]) -> None:
    assert _why(_facts(**pod)) == why


def test_local_storage_keeps_a_pod_only_where_that_is_the_rule() -> None:
    assert _why(_facts(volumes=[DISK]), rules=MovingRules(keeps_local_storage=False)) == FREE


@pytest.mark.parametrize(
    ("shared", "why"),
    [
        pytest.param(SharedFacts(budgets=("shop/a",)), FREE, id="a budget that lets pods go"),
        pytest.param(
            SharedFacts(budgets=("shop/a",), exhausted="shop/a"),
            ("shop/web-1-a is kept by PodDisruptionBudget shop/a, which allows no disruption now", Kept.FOR_NOW),
            id="one that lets none go",
        ),
        pytest.param(
            SharedFacts(budgets=("shop/a", "shop/b")),
            ("shop/web-1-a is covered by PodDisruptionBudgets shop/a and shop/b, so it cannot be evicted",
             Kept.BY_OWNER),
            id="two",
        ),
        pytest.param(SharedFacts(unplanned="is tied"), ("shop/web-1-a is tied", Kept.WITHOUT_SUCCESSOR), id="tied"),
    ],
)  # fmt: skip
def test_what_is_known_of_its_class(shared: SharedFacts, why: tuple[str, Kept]) -> None:
    assert _why(ORDINARY, shared) == why


def test_a_pod_of_kube_system_without_a_budget_stays_for_an_hour() -> None:
    system, young, old = SharedFacts(system=True), NOW - 3599, NOW - 3600
    kept = (
        "shop/web-1-a is of kube-system, has no PodDisruptionBudget and is younger than an hour",
        Kept.FOR_NOW,
    )
    assert _why(ORDINARY, system, created_at_seconds=young) == kept
    assert _why(ORDINARY, system, created_at_seconds=old) == FREE
    assert _why(ORDINARY, SharedFacts(), created_at_seconds=young) == FREE
    assert _why(ORDINARY, SharedFacts(budgets=("kube-system/a",), system=True), created_at_seconds=young) == FREE
    assert _why(_facts(annotations={SAFE_TO_EVICT: "true"}), system, created_at_seconds=young) == FREE
    assert _why(ORDINARY, system, created_at_seconds=young, rules=MovingRules(keeps_system_pods=False)) == FREE


def test_consumers_and_pods_of_other_schedulers_have_no_successor_that_is_planned() -> None:
    assert _why(ORDINARY, request="shop/r") == (
        "shop/web-1-a consumes ProvisioningRequest shop/r",
        Kept.WITHOUT_SUCCESSOR,
    )
    pod = kubernetes_pb2.Pod()
    pod.metadata.ownerReferences.add(kind="ReplicaSet", name="x", controller=True)
    assert _why(eviction_facts(pod, "slurm")) == ("shop/web-1-a is scheduled by slurm", Kept.WITHOUT_SUCCESSOR)


def test_what_keeps_a_pod_most_is_named() -> None:
    """A Job's pod goes with a node that has to go; one that its owner keeps does not, nor one that nobody makes
    again."""
    everything = SharedFacts(budgets=("a/b",), exhausted="a/b")
    job = _facts(restartPolicy="Never")
    assert _why(job, everything)[1] is Kept.UNTIL_IT_ENDS
    annotated = _facts(restartPolicy="Never", annotations={SAFE_TO_EVICT: "false"})
    assert _why(annotated, everything)[1] is Kept.BY_OWNER
    alone = _facts(restartPolicy="Never", owners=[], annotations={SAFE_TO_EVICT: "false"})
    assert _why(alone, everything)[1] is Kept.WITHOUT_SUCCESSOR


def test_a_pod_that_is_being_deleted_has_its_grace_period_and_a_minute() -> None:
    deleted = _facts(deleted_at=int(NOW) + 30)
    assert deleted.is_ending(NOW)
    assert deleted.is_ending(NOW + 89)
    assert not deleted.is_ending(NOW + 90)
    assert not ORDINARY.is_ending(NOW)


def test_equal_facts_are_one_value() -> None:
    assert _facts() is ORDINARY
    assert _facts(annotations={DO_NOT_DISRUPT: "true"}) is _facts(annotations={DO_NOT_DISRUPT: "true"})
    assert _facts(annotations={DO_NOT_DISRUPT: "true"}).do_not_disrupt_until_seconds == inf


def _term(key: str, *, of_object: bool = False) -> NodeSelectorTerm:
    condition = (Requirement(key, Operator.IN, ("n1",)),)
    return NodeSelectorTerm(match_fields=condition) if of_object else NodeSelectorTerm(condition)


ZONE, HOST_TERM, FIELD = (
    _term("topology.kubernetes.io/zone"),
    _term(HOSTNAME),
    _term("metadata.name", of_object=True),
)
TIED = "has a volume, or a claim on devices by name, that is tied to its node"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param(PodSpec(), "", id="no volume"),
        pytest.param(PodSpec(node_terms=((ZONE,),)), "", id="a disk of a zone"),
        pytest.param(PodSpec(node_terms=((ZONE,), (HOST_TERM,))), TIED, id="a local PersistentVolume"),
        pytest.param(PodSpec(node_terms=((FIELD,),)), TIED, id="devices of its node"),
        pytest.param(PodSpec(node_terms=((HOST_TERM, ZONE),)), "", id="its node, or a zone"),
        pytest.param(PodSpec(node_selector=((HOSTNAME, "n1"),)), "", id="its own wish, which planning sees"),
        pytest.param(NOWHERE, "has fields that cannot be read", id="unreadable"),
        pytest.param(
            PodSpec(unschedulable="claim x is gone"), "could not be scheduled again: claim x is gone", id="why"
        ),
    ],
)
def test_whether_there_may_be_another_place(spec: PodSpec, why: str) -> None:
    assert why_unplanned(spec) == why
