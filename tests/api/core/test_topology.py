"""What pods say of topology domains, as planning sees it."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.core.gangs import GangMembership, PodGroup, pod_group
from cagrpc.api.core.pods import Pod, PodDecoder
from cagrpc.api.core.topology import (
    AFTER_COST,
    POD_SET,
    PREFERRED,
    REQUIRED,
    SLICE_REQUIRED,
    SLICE_SIZE,
    WORKLOAD,
    TopologyRequest,
    topology_request,
)
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.api.provisioning.objects import template_pod
from cagrpc.errors import InvalidInput
from solver.model.domains import one_domain_terms

RACK, BLOCK = "example.com/rack", "example.com/block"


def pod(annotations: dict[str, str], owner: str = "train", **labels: str) -> Pod:
    found = kubernetes_pb2.Pod()
    found.metadata.name, found.metadata.namespace, found.metadata.uid = "p", "ns", "uid"
    found.metadata.annotations.update(annotations)
    found.metadata.labels.update(labels)
    if owner:
        found.metadata.ownerReferences.add(kind="Job", name=owner, controller=True)
    return PodDecoder().read(found)


def domains(of: Pod) -> list[tuple[str, str]]:
    """Return the topology keys that it asks for, each with what all of its gang have in common."""
    spec = of.spec.__class__(labels=tuple(of.labels.items()), namespace="ns", pod_affinity=of.spec.pod_affinity)
    return [(key, (selector.match_expressions or ())[0].key) for key, selector in one_domain_terms(spec)]


@pytest.mark.parametrize(
    ("annotations", "expected", "problem"),
    [
        ({}, None, ""),
        ({"kueue.x-k8s.io/podset-unconstrained-topology": "true"}, None, ""),
        ({REQUIRED: RACK}, TopologyRequest(RACK), ""),
        ({PREFERRED: RACK}, TopologyRequest(preferred=RACK), ""),
        ({REQUIRED: RACK, PREFERRED: BLOCK}, TopologyRequest(RACK), "set only one of them"),
        (
            {REQUIRED: BLOCK, SLICE_REQUIRED: RACK, SLICE_SIZE: "4"},
            TopologyRequest(BLOCK, slice_required=RACK, slice_size=4),
            "",
        ),
        ({SLICE_REQUIRED: RACK}, TopologyRequest(), '"" is not a whole number of pods, 1 or more'),
        ({SLICE_REQUIRED: RACK, SLICE_SIZE: "0"}, TopologyRequest(), '"0" is not a whole number of pods'),
    ],
)
def test_kueue_s_annotations(annotations: dict[str, str], expected: TopologyRequest | None, problem: str) -> None:
    problems: list[str] = []
    assert topology_request(annotations, "template", problems) == expected
    assert bool(problems) is bool(problem)
    assert all(problem in each and each.startswith("template.metadata.annotations[") for each in problems)


def test_pods_of_one_pod_set_of_one_workload_are_together_and_a_gang() -> None:
    first = pod({REQUIRED: RACK, WORKLOAD: "w"}, **{POD_SET: "workers"})
    second = pod({REQUIRED: RACK, WORKLOAD: "w"}, **{POD_SET: "driver"})
    assert first.gang == second.gang == GangMembership("workload.kueue.x-k8s.io ns/w")
    ((key, mine),), ((_, other),) = domains(first), domains(second)
    assert key == RACK
    assert mine != other
    assert domains(pod({REQUIRED: RACK, WORKLOAD: "w"}, owner="other", **{POD_SET: "workers"})) == domains(first)


def test_without_a_workload_its_controller_is_the_gang_and_without_both_a_pod_is_alone() -> None:
    assert pod({REQUIRED: RACK}).gang == GangMembership("job ns/train")
    alone = pod({REQUIRED: RACK}, owner="")
    assert alone.gang is None
    assert not alone.spec.pod_affinity


def test_what_is_preferred_makes_no_gang() -> None:
    found = pod({PREFERRED: RACK})
    assert found.gang is None
    assert [(each.term.topology_key, each.after_cost) for each in found.spec.preferred_domains] == [(RACK, False)]
    (wish,) = pod({PREFERRED: RACK, AFTER_COST: "true"}).spec.preferred_domains
    assert wish.after_cost


def test_slices_are_told_apart_by_the_index_of_the_pods() -> None:
    index = "batch.kubernetes.io/job-completion-index"
    asked = {REQUIRED: BLOCK, SLICE_REQUIRED: RACK, SLICE_SIZE: "4"}
    slices = [dict(domains(pod(asked, **{index: str(number)})))[RACK] for number in range(9)]
    assert [slices.count(each) for each in dict.fromkeys(slices)] == [4, 4, 1]
    assert len({dict(domains(pod(asked, **{index: str(number)})))[BLOCK] for number in range(9)}) == 1
    assert "has no label batch.kubernetes.io/job-completion-index" in pod(asked).spec.unschedulable


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
def test_pod_groups_of_each_version(version: str) -> None:
    spec: dict[str, Any] = {
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "schedulingConstraints": {"topology": [{"key": RACK}]},
        "parentCompositePodGroupName": "all",
    }
    document = {"apiVersion": f"scheduling.k8s.io/{version}", "kind": "PodGroup", "metadata": {"name": "g"}}
    problems: list[str] = []
    expected = PodGroup(GangMembership("podgroup.scheduling.k8s.io default/g", 4), (RACK,), "all")
    assert pod_group({**document, "spec": spec}, problems) == expected
    assert not problems
    spec["schedulingConstraints"] = {"topology": RACK}
    assert pod_group({**document, "spec": spec}, problems) is not None
    assert problems == [f'spec.schedulingConstraints.topology: expected a list, found "{RACK}"']


def test_templates_of_requests() -> None:
    def template(**annotations: str) -> dict[str, Any]:
        return {
            "metadata": {"name": "t", "namespace": "ns"},
            "template": {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c"}]}},
        }

    found = template_pod(template(**{REQUIRED: RACK}))
    assert [each.topology_key for each in found.spec.pod_affinity] == [RACK]
    assert len(found.labels) == 1
    assert found.slices is None
    sliced = template_pod(template(**{REQUIRED: BLOCK, SLICE_REQUIRED: RACK, SLICE_SIZE: "2"}))
    assert ([each.topology_key for each in sliced.spec.pod_affinity], sliced.slices) == ([BLOCK], (RACK, 2))
    with pytest.raises(InvalidInput, match="is not a whole number of pods"):
        template_pod(template(**{SLICE_REQUIRED: RACK, SLICE_SIZE: "x"}))
