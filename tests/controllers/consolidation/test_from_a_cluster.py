"""From the objects of a cluster to a step of consolidation: the view, the question, the plan, its pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cagrpc.api.core.movability import MovingRules
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.controllers.consolidation.assignment import assigned
from cagrpc.controllers.consolidation.must_go import must_go
from cagrpc.controllers.consolidation.question import ConsolidationQuestion, question
from cagrpc.controllers.consolidation.steps import AssignedStep
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.model import FleetSnapshot, GroupState, Instance, InstanceState
from solver import consolidate
from solver.model import Budget, NodeGroup
from tests.support.controllers.cluster_objects import NOW, Fed, node, pod
from tests.support.devices import CLAIMS, CLASSES, SLICES, TEMPLATES, claim, claim_template, device_class, gpus

GROUP = NodeGroup("g", {"cpu": 8000, "pods": 110}, 1.0, provisioner="p", max_size=10)
SETTINGS = ConsolidationSettings()


def _cluster(*names: str) -> Fed:
    fed = Fed(moving=MovingRules())
    for each in map(node, names):
        each.metadata.creationTimestamp.seconds = 1
        fed.nodes(each)
    return fed


def _fleet(*names: str) -> FleetSnapshot:
    instances = tuple(Instance(f"id-{name}", "g", InstanceState.RUNNING) for name in names)
    return FleetSnapshot(1, {"g": GroupState(GROUP, len(names), instances)}, ("g",), {i.id: "g" for i in instances})


def _asked(fed: Fed, *names: str) -> ConsolidationQuestion:
    state, fleet = fed.model.state(frozenset(), with_bound=True), _fleet(*names)
    return question(state, fleet, SETTINGS, NOW, going=must_go(state.nodes, fleet, SETTINGS, NOW))


def _steps(asked: ConsolidationQuestion) -> list[AssignedStep]:
    return [assigned(step, asked) for step in consolidate(asked.problem, Budget(deterministic_seconds=5.0)).steps]


def test_pods_move_together_to_where_they_fit() -> None:
    fed = _cluster("n1", "n2")
    fed.put(pod("a", "3", node="n1", owner="ReplicaSet"), pod("b", "3", node="n2", owner="ReplicaSet"))
    (step,) = _steps(_asked(fed, "n1", "n2"))
    (gone,) = step.nodes
    (moved,) = step.pods
    stays = {"n1": "n2", "n2": "n1"}[gone.name]
    assert (gone.instance_id, moved.target) == (f"id-{gone.name}", stays)
    assert moved.pod.ref.uid == {"n1": "uid-a", "n2": "uid-b"}[gone.name]
    assert (step.new_nodes, step.saving_usd_per_hour) == ({}, 1.0)


# ---- devices


def _devices(fed: Fed, *claims: Any, on: Mapping[str, int], extended: str = "") -> None:
    """Let there be so many devices on each node, and these claims."""
    fed.relist([device_class(**({"extendedResourceName": extended} if extended else {}))], CLASSES)
    fed.relist([claim_template()], TEMPLATES)
    fed.relist([gpus(count, on=name) for name, count in on.items()], SLICES)
    fed.relist(claims, CLAIMS)


def _made(name: str, on: str, device: str = "gpu-0") -> Any:
    """Return the claim that was made for a pod, allocated."""
    owner = {"kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True, "apiVersion": "v1"}
    return claim(f"{name}-gpu", device, on=on, ownerReferences=[owner])


def _claiming(name: str, on: str) -> kubernetes_pb2.Pod:
    """Return a pod with the claim that was made for it of the template."""
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    found = pod(name, "3", node=on, owner="ReplicaSet", resourceClaims=[entry])
    found.status.resourceClaimStatuses.add(name="gpu", resourceClaimName=f"{name}-gpu")
    return found


def _interrupted(fed: Fed) -> None:
    taken = node("n1")
    taken.spec.taints.add(key="aws-node-termination-handler/spot-itn", effect="NoSchedule")
    fed.nodes(taken)


def test_a_pod_whose_claims_are_made_of_templates_moves_to_free_devices() -> None:
    fed = _cluster("n1", "n2")
    _devices(fed, _made("a", "n1"), _made("b", "n2"), on={"n1": 1, "n2": 2})
    fed.put(_claiming("a", "n1"), _claiming("b", "n2"))
    (step,) = _steps(_asked(fed, "n1", "n2"))
    assert [each.name for each in step.nodes] == ["n1"], "n1 has no device to spare"
    assert {each.pod.ref.name: each.target for each in step.pods} == {"a": "n2"}


def test_where_no_device_is_free_its_node_is_replaced_only_if_it_has_to_go() -> None:
    fed = _cluster("n1", "n2")
    _devices(fed, _made("a", "n1"), _made("b", "n2"), on={"n1": 1, "n2": 1})
    fed.put(_claiming("a", "n1"), _claiming("b", "n2"))
    asked = _asked(fed, "n1", "n2")
    assert [each.kept for each in asked.problem.nodes] == ["", ""]
    assert not _steps(asked)
    _interrupted(fed)
    (step,) = _steps(_asked(fed, "n1", "n2"))
    assert step.new_nodes == {"g": 1}
    assert {each.pod.ref.name: each.target for each in step.pods} == {"a": "g/0"}


def test_a_claim_by_name_keeps_its_pod_also_where_its_node_has_to_go() -> None:
    fed = _cluster("n1", "n2")
    _devices(fed, claim("shared", "gpu-0", on="n1"), on={"n1": 4, "n2": 4})
    named = pod(
        "a", "3", node="n1", owner="ReplicaSet", resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]
    )
    fed.put(named, pod("b", "3", node="n2", owner="ReplicaSet"))
    asked = _asked(fed, "n1", "n2")
    assert (
        asked.problem.nodes[0].kept == "default/a has a volume, or a claim on devices by name, that is tied to its node"
    )
    _interrupted(fed)
    asked = _asked(fed, "n1", "n2")
    assert [each.ref.name for each in asked.left["n1"]] == ["a"]
    (step,) = _steps(asked)
    assert step.pods == ()


def test_without_the_template_there_would_be_no_other_claim() -> None:
    fed = _cluster("n1", "n2")
    _devices(fed, _made("a", "n1"), on={"n1": 4, "n2": 4})
    fed.put(_claiming("a", "n1"))
    assert _steps(_asked(fed, "n1", "n2"))
    fed.drop(claim_template(), path=TEMPLATES)
    asked = _asked(fed, "n1", "n2")
    gone = "default/a could not be planned anew: ResourceClaimTemplate default/t is not found"
    assert [each.kept for each in asked.problem.nodes] == [gone, ""]
    _interrupted(fed)
    assert [each.ref.name for each in _asked(fed, "n1", "n2").left["n1"]] == ["a"]


def test_an_extended_resource_that_a_class_backs_moves_to_devices_too() -> None:
    fed = _cluster("n1", "n2")
    _devices(fed, _made("a", "n1"), _made("b", "n2"), on={"n1": 1, "n2": 2}, extended="example.com/gpu")
    for name, on in (("a", "n1"), ("b", "n2")):
        asks = pod(name, "3", node=on, owner="ReplicaSet")
        asks.spec.containers[0].resources.requests["example.com/gpu"].string = "1"
        fed.put(asks)
    asked = _asked(fed, "n1", "n2")
    assert [each.count for each in asked.problem.nodes[0].node.devices] == [0]
    (step,) = _steps(asked)
    assert {each.pod.ref.name: each.target for each in step.pods} == {"a": "n2"}
    fed.put(device_class(), path=CLASSES)
    assert not _steps(_asked(fed, "n1", "n2")), "nothing offers the resource any more"
