"""From the objects of a cluster to a step of consolidation: the view, the question, the plan, its pods."""

from __future__ import annotations

from cagrpc.api.core.movability import SAFE_TO_EVICT, MovingRules
from cagrpc.controllers.consolidation.assignment import assigned
from cagrpc.controllers.consolidation.must_go import must_go
from cagrpc.controllers.consolidation.question import ConsolidationQuestion, question
from cagrpc.controllers.consolidation.steps import AssignedStep
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.fleet.model import FleetSnapshot, GroupState, Instance, InstanceState
from solver import consolidate
from solver.model import Budget, NodeGroup
from tests.support.controllers.cluster_objects import NOW, Fed, node, pod

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
    return [assigned(step, asked) for step in consolidate(asked.problem, Budget(5.0)).steps]


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


def test_what_may_not_be_moved_is_not() -> None:
    fed = _cluster("n1", "n2")
    kept = pod("a", "3", node="n1", owner="ReplicaSet", annotations={SAFE_TO_EVICT: "false"})
    fed.put(kept, pod("b", "3", node="n2", owner="Job"))
    asked = _asked(fed, "n1", "n2")
    assert not _steps(asked)
    assert [each.kept for each in asked.problem.nodes] == [
        f'default/a has the annotation {SAFE_TO_EVICT}: "false"',
        "default/b runs until it ends",
    ]


def test_an_interrupted_node_is_replaced_with_room_for_all_that_come_again() -> None:
    fed = _cluster("n2")
    interrupted = node("n1")
    interrupted.spec.taints.add(key="aws-node-termination-handler/spot-itn", effect="NoSchedule")
    fed.nodes(interrupted)
    fed.put(
        pod("asks", "4", node="n1", owner="ReplicaSet", annotations={SAFE_TO_EVICT: "false"}),
        pod("job", "4", node="n1", owner="Job"),
        pod("other", "6", node="n2", owner="ReplicaSet", annotations={SAFE_TO_EVICT: "false"}),
    )
    (step,) = _steps(_asked(fed, "n1", "n2"))
    assert [each.name for each in step.nodes] == ["n1"]
    assert step.new_nodes == {"g": 1}
    assert {each.pod.ref.name: each.target for each in step.pods} == {"asks": "g/0", "job": "g/0"}
