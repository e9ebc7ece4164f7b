"""Gangs of ordinary pods: how pods and PodGroups say it, and which of a gang's pods must be whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.gangs import (
    MIN_COUNT,
    VOLCANO_GROUP,
    GangMembership,
    PodGroup,
    divide,
    gang_of_pod,
    incomplete,
    pod_group,
)
from cagrpc.api.core.pods import PodDecoder
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import shown

_LABEL = {"scheduling.x-k8s.io/pod-group": "a"}
_VOLCANO = {VOLCANO_GROUP: "a"}
_NO_COUNT = "is not a whole number from 1 to 2147483647"
_CONSUME = {"autoscaling.x-k8s.io/consume-provisioning-request": "a"}


@pytest.mark.parametrize(
    ("labels", "annotations", "scheduling_group", "kind"),
    [
        pytest.param(_LABEL, {}, "", "podgroup.scheduling.x-k8s.io", id="the label"),
        pytest.param({}, _VOLCANO, "", "podgroup.scheduling.volcano.sh", id="Volcano's annotation"),
        pytest.param({}, {}, "a", "podgroup.scheduling.k8s.io", id="Kubernetes 1.36"),
        pytest.param({}, _CONSUME, "", "provisioningrequest.autoscaling.x-k8s.io", id="a ProvisioningRequest"),
        pytest.param(_LABEL, _VOLCANO, "", "podgroup.scheduling.x-k8s.io", id="the label before the annotation"),
        pytest.param(_LABEL, _VOLCANO, "a", "podgroup.scheduling.k8s.io", id="the field before both"),
        pytest.param(_LABEL, _CONSUME, "a", "provisioningrequest.autoscaling.x-k8s.io", id="a request before all"),
    ],
)
def test_ways_to_name_a_gang(
    labels: dict[str, str], annotations: dict[str, str], scheduling_group: str, kind: str
) -> None:
    assert gang_of_pod("ns", labels, annotations, scheduling_group) == GangMembership(f"{kind} ns/a")


def test_another_label_key_and_no_gang() -> None:
    found = gang_of_pod("ns", {"example.com/g": "b"}, {}, label_key="example.com/g")
    assert found == GangMembership("podgroup.scheduling.x-k8s.io ns/b")
    assert gang_of_pod("ns", _LABEL, {}, label_key="example.com/g") is None
    assert gang_of_pod("ns", {"scheduling.x-k8s.io/pod-group": ""}, {MIN_COUNT: "3"}) is None


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("12", 12), ("0", None), ("-3", None), ("03", None), ("", None), ("3000000000", None)]
)
def test_the_minimum_by_annotation(text: str, count: int | None) -> None:
    problems: list[str] = []
    found = gang_of_pod("ns", _LABEL, {MIN_COUNT: text}, problems=problems, path="spec.template")
    assert found == GangMembership("podgroup.scheduling.x-k8s.io ns/a", count)
    told = (
        f"spec.template.metadata.annotations[cagrpc.io/gang-min-count]: {shown(text)} is not a whole number from 1 to"
    )
    assert [problem[: len(told)] for problem in problems] == ([] if count else [told])


def _pod_group(api_version: str, spec: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": "PodGroup", "metadata": {"name": "a", "namespace": "ns"}, "spec": spec}


@pytest.mark.parametrize(
    ("api_version", "spec", "count"),
    [
        ("scheduling.x-k8s.io/v1alpha1", {"minMember": 4}, 4),
        ("scheduling.volcano.sh/v1beta1", {"minMember": 4}, 4),
        ("scheduling.k8s.io/v1alpha2", {"schedulingPolicy": {"gang": {"minCount": 4}}}, 4),
        ("scheduling.k8s.io/v1alpha2", {"schedulingPolicy": {"basic": {}}}, 1),
        ("scheduling.x-k8s.io/v1alpha1", {}, None),
        ("scheduling.k8s.io/v1alpha2", None, None),
    ],
)
def test_the_minimum_of_a_pod_group(api_version: str, spec: Any, count: int | None) -> None:
    problems: list[str] = []
    found = pod_group(_pod_group(api_version, spec), problems)
    assert found == PodGroup(GangMembership(f"podgroup.{api_version.partition('/')[0]} ns/a", count))
    assert not problems


@pytest.mark.parametrize(
    ("api_version", "spec", "problem"),
    [
        ("scheduling.x-k8s.io/v1alpha1", {"minMember": 0}, f"spec.minMember: 0 {_NO_COUNT}"),
        ("scheduling.volcano.sh/v1beta1", {"minMember": "4"}, f'spec.minMember: "4" {_NO_COUNT}'),
        ("scheduling.volcano.sh/v1beta1", {"minMember": True}, f"spec.minMember: true {_NO_COUNT}"),
        ("scheduling.k8s.io/v1alpha2", {"schedulingPolicy": {"gang": {"minCount": -1}}},
         f"spec.schedulingPolicy.gang.minCount: -1 {_NO_COUNT}"),
        ("scheduling.k8s.io/v1alpha2", {"schedulingPolicy": []},
         "spec.schedulingPolicy: expected a mapping, found a list"),
    ],
)  # fmt: skip
def test_a_minimum_that_cannot_be_meant_is_told_and_not_given(api_version: str, spec: Any, problem: str) -> None:
    problems: list[str] = []
    found = pod_group(_pod_group(api_version, spec), problems)
    assert found is not None
    assert found.gang.min_count is None
    assert problems == [problem]


@pytest.mark.parametrize(
    "document",
    [
        {"apiVersion": "example.com/v1", "kind": "PodGroup", "metadata": {"name": "a"}},
        {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "Workload", "metadata": {"name": "a"}},
        {"kind": "PodGroup"},
        {},
    ],
)
def test_other_objects_are_none(document: dict[str, Any]) -> None:
    problems: list[str] = []
    assert pod_group(document, problems) is None
    assert not problems


def test_a_decoded_pod_has_its_gang_and_the_warning_and_gangs_do_not_make_specs() -> None:
    decoder = PodDecoder("example.com/gang")
    pods = []
    for index, count in enumerate(("2", "two")):
        message = kubernetes_pb2.Pod()
        message.metadata.name, message.metadata.namespace = f"p{index}", "ns"
        message.metadata.labels["example.com/gang"] = "labelled"
        message.metadata.annotations[MIN_COUNT] = count
        message.spec.containers.add().resources.requests["cpu"].string = "1"
        message.spec.schedulingGroup.podGroupName = f"g{index}"
        pods.append(decoder.decode(message.SerializeToString()))
    assert [pod.gang for pod in pods] == [
        GangMembership("podgroup.scheduling.k8s.io ns/g0", 2), GangMembership("podgroup.scheduling.k8s.io ns/g1"),
    ]  # fmt: skip
    assert pods[0].spec is pods[1].spec
    assert not pods[0].warning
    assert pods[1].warning.startswith('pod ns/p1: metadata.annotations[cagrpc.io/gang-min-count]: "two" is not a whole')


def test_a_placeholder_is_of_no_gang() -> None:
    message = kubernetes_pb2.Pod()
    message.metadata.labels.update(_LABEL)
    message.metadata.annotations["podType"] = "capacityBufferFakePod"
    pod = PodDecoder().decode(message.SerializeToString())
    assert (pod.placeholder, pod.gang) == (True, None)


@pytest.mark.parametrize(
    ("pending", "known", "whole", "others", "missing"),
    [
        pytest.param([3, 2], {}, [3, 2], [], 0, id="without a minimum: all there are"),
        pytest.param([3], {"bound": 5}, [3], [], 0, id="also where some run already"),
        pytest.param([3], {"held_back": 2}, [], [], 2, id="but not before gated ones are let go"),
        pytest.param([3, 2], {"min_count": 4}, [3, 1], [1], 0, id="the oldest up to the minimum"),
        pytest.param([3, 2], {"min_count": 4, "bound": 2}, [2], [1, 2], 0, id="less those that run"),
        pytest.param([3, 2], {"min_count": 4, "bound": 4}, [], [3, 2], 0, id="all are ordinary once enough run"),
        pytest.param([3, 2], {"min_count": 7, "bound": 1}, [], [], 1, id="one is missing"),
        pytest.param([3, 2], {"min_count": 5, "held_back": 4}, [3, 2], [], 0, id="gated ones beyond the minimum"),
        pytest.param([3, 2], {"min_count": 1}, [1], [2, 2], 0, id="a minimum of one binds nobody to others"),
        pytest.param([], {"min_count": 3}, [], [], 3, id="nobody there"),
    ],
)
def test_division_of_a_gang(
    pending: list[int], known: dict[str, int], whole: list[int], others: list[int], missing: int
) -> None:
    division = divide(((str(index), count) for index, count in enumerate(pending)), **known)
    assert [count for _, count in division.whole] == whole
    assert [count for _, count in division.others] == others
    assert division.missing == missing


_COUNTS = st.integers(0, 12)


@given(st.lists(st.integers(1, 5), max_size=6), st.none() | st.integers(1, 20), _COUNTS, _COUNTS)
def test_nothing_is_lost_and_the_whole_is_what_the_minimum_lacks(
    pending: list[int], min_count: int | None, bound: int, held_back: int
) -> None:
    division = divide(list(enumerate(pending)), min_count=min_count, bound=bound, held_back=held_back)
    whole, others = sum(count for _, count in division.whole), sum(count for _, count in division.others)
    assert division.there == sum(pending) + bound
    if division.missing:
        assert whole == others == 0
        required = division.there + division.missing
        assert required == (min_count if min_count is not None else division.there + held_back)
        return
    shares = dict.fromkeys(range(len(pending)), 0)
    for index, count in (*division.whole, *division.others):
        shares[index] += count
    assert list(shares.values()) == pending
    if min_count is None:
        assert not others
    else:
        assert whole == max(0, min_count - bound)
    # Oldest first: nobody in the whole is younger than one of the others.
    assert max((i for i, _ in division.whole), default=0) <= min((i for i, _ in division.others), default=len(pending))


def test_an_incomplete_gang_in_words() -> None:
    division = divide([("a", 2)], min_count=5, bound=1)
    assert (
        incomplete("g", division.there, division.there + division.missing)
        == "gang g is not complete: it has 3 of 5 pods"
    )
