"""The cluster-autoscaler's own ConfigMaps, as its releases write them."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.autoscaler import AutoscalerConfigMaps, GroupSize, read_priorities, read_status
from cagrpc.controllers.settings import AutoscalerConfigMapSettings
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.envelopes import ObjectIdentity
from tests.support.api_server import api_server
from tests.support.clocks import any_clock
from tests.support.examples import examples

YAML = """\
time: 2026-11-28 21:40:00.1 +0000 UTC
autoscalerStatus: Running
clusterWide:
  health: {status: Healthy, nodeCounts: {registered: {total: 5, ready: 5, notStarted: 0}}}
nodeGroups:
- name: eks-spot-a
  health:
    status: Healthy
    nodeCounts: {registered: {total: 3, ready: 2, notStarted: 1, unready: {total: 0, resourceUnready: 0}}}
    cloudProviderTarget: 3
    minSize: 0
    maxSize: 10
  scaleUp:
    status: Backoff
    backoffInfo: {errorCode: OutOfResources, errorMessage: no spot capacity}
- name: https://www.googleapis.com/compute/v1/projects/p/zones/z/instanceGroups/g
  health: {status: Healthy, cloudProviderTarget: 0, minSize: 0, maxSize: 1000}
  scaleUp: {status: NoActivity}
"""
TEXT = """\
Cluster-autoscaler status at 2023-08-01 10:00:00.5 +0000 UTC:
Cluster-wide:
  Health:      Healthy (ready=4 unready=0 notStarted=0 longNotStarted=0 registered=4 longUnregistered=0)
               LastProbeTime:      2023-08-01 10:00:00.4 +0000 UTC m=+100.1
  ScaleUp:     NoActivity (ready=4 registered=4)

NodeGroups:
  Name:        eks-spot-a
  Health:      Healthy (ready=2 unready=0 (resourceUnready=0) notStarted=1 longNotStarted=0 registered=3 \
longUnregistered=0 cloudProviderTarget=3 (minSize=0, maxSize=10))
               LastProbeTime:      2023-08-01 10:00:00.4 +0000 UTC m=+100.1
               LastTransitionTime: 2023-08-01 09:00:00.4 +0000 UTC m=+10.1
  ScaleUp:     Backoff (ready=2 cloudProviderTarget=3)
               LastProbeTime:      2023-08-01 10:00:00.4 +0000 UTC m=+100.1
  ScaleDown:   NoCandidates (candidates=0)

  Name:        other
  Health:      Healthy (ready=0 unready=0 (resourceUnready=0) notStarted=0 longNotStarted=0 registered=0 \
longUnregistered=0 cloudProviderTarget=0 (minSize=0, maxSize=1000))
  ScaleUp:     NoActivity (ready=0 cloudProviderTarget=0)

"""
URL = "https://www.googleapis.com/compute/v1/projects/p/zones/z/instanceGroups/g"


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        pytest.param(YAML, URL, "OutOfResources: no spot capacity", id="YAML, from 1.30 on"),
        pytest.param(TEXT, "other", "no reason given", id="text, until 1.29"),
    ],
)
def test_both_forms_of_the_status(text: str, name: str, why: str) -> None:
    assert read_status(text) == {"eks-spot-a": GroupSize(3, 10, why), name: GroupSize(0, 1000)}


@pytest.mark.parametrize(
    "text", ["", "autoscalerStatus: Initializing\n", "Cluster-autoscaler status at now:\nInitializing"]
)
def test_one_that_is_starting_has_no_groups(text: str) -> None:
    assert read_status(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "- 5",
        "nodeGroups: [{name: a}]",
        "nodeGroups: [{name: a, health: {cloudProviderTarget: x, maxSize: 1}}]",
    ],
)
def test_what_is_no_status(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a cluster-autoscaler's status"):
        read_status(text)


def test_priorities_are_weights_as_they_are() -> None:
    found = read_priorities("10: ['.*']\n50:\n- eks-spot-.*\n- ^m5\n")
    assert [found.weight(each) for each in ("eks-spot-a", "m5", "xm5")] == [50, 50, 10]


def test_priorities_beyond_the_weights_keep_their_order() -> None:
    found = read_priorities("0: [none]\n1000: [high]\n20: [low]\n")
    assert [found.weight(each) for each in ("high", "low", "none", "unnamed")] == [3, 2, 1, 0]


@given(st.dictionaries(st.integers(-1, 50_000), st.sampled_from("abcdef"), min_size=1, max_size=6))
@examples(30)
def test_a_higher_priority_is_never_a_lower_weight(written: dict[int, str]) -> None:
    found = read_priorities(yaml.safe_dump({priority: [name] for priority, name in written.items()}))
    highest = {name: priority for priority, name in sorted(written.items())}
    assert all(1 <= found.weight(name) <= 100 for name in highest)
    assert sorted(highest, key=highest.__getitem__) == sorted(highest, key=found.weight)


def test_priorities_that_have_no_expressions_or_are_never_used() -> None:
    found = read_priorities("10:\n20: [a]\n-2: [b]\n")
    assert [found.weight(each) for each in "ab"] == [20, 0]


@pytest.mark.parametrize("text", ["", "5", "a: [b]", "5: ['(']", "5: 5", "5: spot", "x: ["])
def test_what_are_no_priorities(text: str) -> None:
    with pytest.raises(InvalidInput, match="has no priorities that can be read"):
        read_priorities(text)


def test_both_are_followed_and_nothing_waits_for_them() -> None:
    now = [0.0]
    with api_server() as store:
        settings = AutoscalerConfigMapSettings(namespace="ca")
        followed = AutoscalerConfigMaps(store.client(), settings, any_clock(lambda: now[0]))
        status, priorities = followed.informers()
    assert {each.resource.path for each in (status, priorities)} == {"/api/v1/namespaces/ca/configmaps"}
    assert [each.resource.query["fieldSelector"] for each in (status, priorities)] == [
        "metadata.name=cluster-autoscaler-status", "metadata.name=cluster-autoscaler-priority-expander",
    ]  # fmt: skip
    assert (followed.sizes, followed.priorities.weight("eks-spot-a")) == ({}, 0)
    status.sink.replaced([status.resource.decode({"data": {"status": YAML}})])
    priorities.sink.applied(priorities.resource.decode({"data": {"priorities": "7: [spot]"}}))
    assert followed.status() == {"autoscaler_node_groups": 2, "autoscaler_priorities": 1}
    assert followed.priorities.weight("eks-spot-a") == 7
    now[0] += 601.0
    assert followed.sizes == {}, "it is of another time"
    status.sink.applied(status.resource.decode({"data": {"status": YAML}}))
    assert len(followed.sizes) == 2
    status.sink.deleted(ObjectIdentity("1", "ca", "cluster-autoscaler-status"))
    assert followed.sizes == {}
    with pytest.raises(InvalidInput, match="has no key priorities"):
        priorities.resource.decode({"data": {"others": ""}})
    assert not any(each.needed for each in followed.informers())
