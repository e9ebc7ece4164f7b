"""Templates are whole nodes, and nodes are read back as what they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.nodes import UNSCHEDULABLE, ZONES_OF_DRIVERS, left, node_document, node_of_document, template
from cagrpc.api.encoding.messages import known_to_message, message_to_dict
from cagrpc.api.gen import kubernetes_pb2
from solver.model import NodeGroup, Taint, TaintEffect

_GPU_TAINT = Taint("nvidia.com/gpu", TaintEffect.NO_SCHEDULE, "present")
_GROUP = NodeGroup(
    id="gpu/g5.xlarge",
    allocatable={"cpu": 3920, "memory": 14 * 2**30, "pods": 58, "nvidia.com/gpu": 1},
    capacity={"cpu": 4000, "memory": 16 * 2**30, "ephemeral-storage": 20 * 2**30},
    price_usd_per_hour=1.0,
    labels={"kubernetes.io/arch": "arm64", "pool": "gpu"},
    taints=(_GPU_TAINT,),
    instance_type="g5.xlarge",
    zone="zone-b",
)


def test_a_template_is_a_whole_node() -> None:
    node = kubernetes_pb2.Node.FromString(template(_GROUP))
    assert dict(node.metadata.labels) == {
        "kubernetes.io/hostname": node.metadata.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        "node.kubernetes.io/instance-type": "g5.xlarge",
        "topology.kubernetes.io/zone": "zone-b",
        **dict.fromkeys(ZONES_OF_DRIVERS, "zone-b"),
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "arm64",
        "beta.kubernetes.io/instance-type": "g5.xlarge",
        "failure-domain.beta.kubernetes.io/zone": "zone-b",
        "pool": "gpu",
    }
    assert [(t.key, t.value, t.effect) for t in node.spec.taints] == [("nvidia.com/gpu", "present", "NoSchedule")]
    assert {r: q.string for r, q in node.status.allocatable.items()} == {
        "cpu": "3920m", "memory": "14Gi", "pods": "58", "nvidia.com/gpu": "1",
    }  # fmt: skip
    assert {r: q.string for r, q in node.status.capacity.items()} == {
        "cpu": "4", "memory": "16Gi", "pods": "58", "nvidia.com/gpu": "1", "ephemeral-storage": "20Gi",
    }  # fmt: skip
    conditions = {c.type: c.status for c in node.status.conditions}
    assert conditions.pop("Ready") == "True"
    assert conditions
    assert set(conditions.values()) == {"False"}
    assert node.spec.providerID == ""
    assert not node.spec.unschedulable


def test_a_node_registers_as_its_template_says() -> None:
    document = node_document(_GROUP, "g5-1")
    assert document["metadata"]["labels"]["kubernetes.io/hostname"] == document["metadata"]["name"] == "g5-1"
    assert message_to_dict(known_to_message(kubernetes_pb2.Node, document)) == document
    shown = message_to_dict(kubernetes_pb2.Node.FromString(template(_GROUP)))
    assert shown["spec"] == document["spec"]
    assert shown["status"] == document["status"]


def test_a_template_without_stated_pods_still_holds_some() -> None:
    node = kubernetes_pb2.Node.FromString(template(NodeGroup("g", {"cpu": 1000}, 1.0)))
    assert node.status.allocatable["pods"].string == node.status.capacity["pods"].string == "110"


_resources = st.dictionaries(st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu"]), st.integers(0, 10**15))
_words = st.text("abcz./-", min_size=1, max_size=20)


@given(
    _resources,
    st.dictionaries(_words, _words, max_size=4),
    st.lists(st.builds(Taint, _words, st.sampled_from(TaintEffect), _words)),
)
def test_what_a_template_says_is_read_back(
    allocatable: dict[str, int], labels: dict[str, str], taints: list[Taint]
) -> None:
    data = template(NodeGroup("g", {"pods": 10, **allocatable}, 1.0, labels, tuple(taints)))
    node = node_of_document(message_to_dict(kubernetes_pb2.Node.FromString(data)), [])
    assert node.allocatable == {"pods": 10, **allocatable}
    assert node.taints == tuple(taints)
    assert labels.items() <= node.labels.items()


def test_a_cordoned_node_carries_the_taint_that_says_so() -> None:
    assert node_of_document({"spec": {"unschedulable": True}}, []).taints == (UNSCHEDULABLE,)


def test_what_is_wrong_with_a_node_is_told_with_its_path() -> None:
    problems: list[str] = []
    document = {
        "metadata": {"labels": {"a": 1}},
        "spec": {"taints": [{"key": "k", "effect": "Never"}]},
        "status": {"allocatable": {"cpu": "-1"}},
    }
    node_of_document(document, problems)
    assert problems[0].startswith("metadata.labels.a: expected text") or "metadata.labels.a: expected text" in str(
        problems
    )
    assert any(p.startswith('spec.taints[0].effect: "Never" is not one of NoSchedule') for p in problems)
    assert any(p.startswith('status.allocatable.cpu: "-1" is negative') for p in problems)


def test_what_is_left_is_never_below_nothing() -> None:
    assert left({"cpu": 1000, "pods": 3}, {"cpu": 1200, "gpu": 1, "pods": 2}) == {"cpu": 0, "pods": 1, "gpu": 0}


@pytest.mark.parametrize("amount", [0, 1, 999, 1000, 2**40])
def test_offers_are_rounded_down(amount: int) -> None:
    document = {"status": {"allocatable": {"cpu": f"{amount}.9m"}}}
    assert node_of_document(document, []).allocatable == {"cpu": amount}
