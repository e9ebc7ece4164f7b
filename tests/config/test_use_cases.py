"""The use cases of the provisioner-priority design, decided: the example documents as they are, over a catalogue that
has reserved offerings and p3 types, planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.config.files import load_provisioners
from cagrpc.fleet.catalogue import parse_catalogue
from solver import (
    HOSTNAME,
    Budget,
    Operator,
    Plan,
    PodAffinityTerm,
    PodSelector,
    PodSet,
    PodSpec,
    Problem,
    Requirement,
    Toleration,
    solve,
)
from tests.config.schema.test_karpenter import EXAMPLES, EXTENDED

ARM = (("kubernetes.io/arch", "arm64"),)
TOLERATING = (Toleration("custom-workloads", "Equal", "true", "NoSchedule"),)
TIGHT = EXTENDED + "t3.small,amd64,t,t3,3,small,2,2048,,1930,1500,11,0,0.0208,,,\n"


def pods(name: str, count: int, cpu_milli: int = 1000, **spec: object) -> PodSet:
    return PodSet(name, PodSpec((("cpu", cpu_milli),), **spec), count)  # type: ignore[arg-type]


def decide(document: str | Path, *pod_sets: PodSet) -> tuple[dict[str, int], Plan]:
    """Nodes by provisioner/type, and the plan."""
    path = Path(document) if Path(document).is_absolute() else EXAMPLES / document
    expanded = load_provisioners([path], parse_catalogue(TIGHT, "extended.csv"))
    plan = solve(Problem(pod_sets, expanded.groups, limits=expanded.limits), Budget(deterministic_seconds=5))
    return {i.node_group: i.delta for i in plan.increments}, plan


def test_amd64_serves_every_pod_that_does_not_ask_for_arm64() -> None:
    nodes, plan = decide("default-and-arm64.yaml", pods("any", 6), pods("arm", 1, node_selector=ARM))
    assert {group.split("/")[0] for group in nodes} == {"default", "arm64"}
    assert nodes["arm64/m6g.large/zone-a/on-demand"] == 1
    arm = next(c.index for c in plan.pod_classes if c.example == "arm")
    assert all(arm in n.pods for n in plan.nodes if n.node_group.startswith("arm64"))


def test_arm64_is_not_opened_where_nobody_asks_though_it_is_cheaper() -> None:
    nodes, plan = decide("default-and-arm64.yaml", pods("any", 2, 1900))
    assert all(group.startswith("default/") for group in nodes)
    assert plan.certificate.price_of_priority_usd_per_hour == 0  # t3.small is cheaper still: priority costs nothing


def test_reserved_instances_are_used_up_before_anything_else() -> None:
    nodes, plan = decide("reserved-and-fallback.yaml", pods("p", 30, 1900))
    assert nodes["reserved/m5.2xlarge/zone-a/reserved"] == 4
    assert sum(delta for group, delta in nodes.items() if group.endswith("/reserved")) == 4  # there are four in all
    assert {tier.weight for tier in plan.certificate.tiers} == {50, 0}
    assert not plan.unplaced


def test_within_the_reservation_nothing_else_is_opened() -> None:
    nodes, plan = decide("reserved-and-fallback.yaml", pods("p", 16, 1900))
    assert nodes == {"reserved/m5.2xlarge/zone-a/reserved": 4}
    assert plan.certificate.cost_usd_per_hour == 0


def test_pods_that_tolerate_the_taint_go_to_the_tainted_types_first() -> None:
    nodes, plan = decide("tainted-gpu-and-fallback.yaml", pods("custom", 1, tolerations=TOLERATING))
    assert nodes == {"custom-workloads/p3.8xlarge/zone-a/on-demand": 1}
    assert plan.certificate.price_of_priority_usd_per_hour == pytest.approx(12.24)  # a reserved node costs nothing


def test_pods_that_do_not_tolerate_it_go_to_the_fallback() -> None:
    nodes, _ = decide("tainted-gpu-and-fallback.yaml", pods("plain", 3))
    assert nodes
    assert all(group.startswith("fallback/") for group in nodes)


def test_the_caveat_of_an_expensive_first_choice_is_kept_and_shown(tmp_path: Path) -> None:
    """Twenty replicas with strict anti-affinity: the preferred type is bought twenty times, and the plan says what that
    costs."""
    path = tmp_path / "caveat.yaml"
    path.write_text(
        """\
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: expensive}
spec:
  weight: 100
  requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [p3.16xlarge]}]
---
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: inexpensive}
spec:
  requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [t3.small]}]
"""
    )
    alone = PodAffinityTerm(HOSTNAME, PodSelector((Requirement("app", Operator.IN, ("p",)),)))
    nodes, plan = decide(path, pods("p", 20, labels=(("app", "p"),), pod_anti_affinity=(alone,)))
    assert nodes == {"expensive/p3.16xlarge/zone-a/on-demand": 20}
    assert plan.certificate.price_of_priority_usd_per_hour == pytest.approx(20 * (24.48 - 0.0208))
