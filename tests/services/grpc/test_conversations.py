"""Whole recorded conversations of an unmodified cluster-autoscaler, replayed over real sockets against our fleet: every
request gets the recorded status, and an answer that means the same. Recorded instance ids stand for ours in order of
creation; the backend plays what the recorded one did."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import pytest

from cagrpc.api.gen import expander_pb2
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.fleet.model import IncrementSpec
from cagrpc.replay.expectations import ALLOWED_EXCEPTIONS
from cagrpc.replay.recording import Call
from solver.model import NodeGroup
from tests.support.fleet import FleetHarness, ScriptedBackend
from tests.support.grpc_servers import House
from tests.support.recordings import conversation, node_groups

_VETOED = re.compile("increment in flight|needs drive: plan|the planner loop decides")


class _Backend(ScriptedBackend):
    """Remembers ids in order of creation, also of instances that are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.created: dict[str, list[str]] = {}

    def add(self, group_id: str, **more: object) -> str:
        instance_id = super().add(group_id, **more)  # type: ignore[arg-type]
        self.created.setdefault(group_id, []).append(instance_id)
        return instance_id


@dataclass
class _Recorded:
    """What a recording says of its own instances."""

    group_of: dict[str, str] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, rpcs: Sequence[Call]) -> _Recorded:
        found = cls()
        for rpc in rpcs:
            if rpc.method == "NodeGroupForNode":
                node = pb.NodeGroupForNodeRequest.FromString(rpc.request).node
                group_id = pb.NodeGroupForNodeResponse.FromString(rpc.response).nodeGroup.id
                if group_id:
                    found.group_of[node.providerID] = group_id
                    found.ran |= {node.providerID} if node.labels else set()
            elif rpc.method == "NodeGroupNodes":
                group_id = pb.NodeGroupNodesRequest.FromString(rpc.request).id
                for instance in pb.NodeGroupNodesResponse.FromString(rpc.response).instances:
                    found.group_of[instance.id] = group_id
        return found

    def ids(self, group_id: str) -> list[str]:
        """In order of creation: the recorded provider numbered its instances."""
        return sorted(recorded for recorded, of in self.group_of.items() if of == group_id)


class _Replay:
    def __init__(
        self, name: str, groups: Sequence[NodeGroup], refused: AbstractSet[str] = frozenset(), *, planned: bool = False
    ) -> None:
        self.planned = planned
        self.rpcs = conversation(name)
        self.recorded = _Recorded.of(self.rpcs)
        self.backend = _Backend()
        self.backend.refused_groups = set(refused)
        self.harness = FleetHarness(groups=groups, backend=self.backend)
        self.choices: list[str] = []

    def ours(self, recorded_id: str) -> str:
        group_id = self.recorded.group_of.get(recorded_id, "")
        ids = self.recorded.ids(group_id)
        created = self.backend.created.get(group_id, [])
        place = ids.index(recorded_id) if recorded_id in ids else len(created)
        return created[place] if place < len(created) else recorded_id

    def run(self, house: House) -> None:
        for number, rpc in enumerate(self.rpcs):
            self._before(house, rpc)
            client = house.advice if rpc.method == "BestOptions" else house.ca
            code, details, response = client.raw(rpc.method, self._request(rpc))
            allowed = (rpc.method, rpc.code, code) in ALLOWED_EXCEPTIONS
            assert allowed or code == rpc.code, f"{number}: {rpc.method}: {code} {details}, recorded {rpc.code}"
            if code == rpc.code == "OK":
                self._check(house, number, rpc, response)
            if rpc.method in ("NodeGroupIncreaseSize", "NodeGroupDeleteNodes"):
                house.fleet.reconcile()  # in real time a second passes
                self.backend.finish_deletes()  # the recorded provider's machines went at once
                house.fleet.reconcile()

    def _before(self, house: House, rpc: Call) -> None:
        if rpc.method == "NodeGroupTargetSize" and self.planned:
            self._plan(house, rpc)
        if rpc.method == "Refresh":
            running = {self.ours(recorded) for recorded in self.recorded.ran}
            for instance in tuple(self.backend.instances.values()):
                if instance.id in running and instance.state == "creating":
                    self.backend.boot(instance.id)
            self.backend.finish_deletes()
        if rpc.method == "NodeGroupNodes" and any(
            i.status.errorInfo.errorCode for i in pb.NodeGroupNodesResponse.FromString(rpc.response).instances
        ):
            group_id = pb.NodeGroupNodesRequest.FromString(rpc.request).id
            for instance in tuple(self.backend.instances.values()):
                if instance.node_group == group_id and instance.state == "creating" and not instance.error:
                    self.backend.fail(instance.id)
            house.fleet.reconcile()

    def _plan(self, house: House, rpc: Call) -> None:
        """What the recorded planner loop ordered behind the autoscaler's back, seen by what a target grew by."""
        group_id = pb.NodeGroupTargetSizeRequest.FromString(rpc.request).id
        recorded = pb.NodeGroupTargetSizeResponse.FromString(rpc.response).targetSize
        more = recorded - house.fleet.snapshot.groups[group_id].target_size
        if more > 0:
            house.fleet.apply(IncrementSpec({group_id: more}))
            house.fleet.reconcile()

    def _request(self, rpc: Call) -> bytes:
        if rpc.method == "NodeGroupForNode":
            about = pb.NodeGroupForNodeRequest.FromString(rpc.request)
            self._rename(about.node)
            return about.SerializeToString()
        if rpc.method == "NodeGroupDeleteNodes":
            doomed = pb.NodeGroupDeleteNodesRequest.FromString(rpc.request)
            for node in doomed.nodes:
                self._rename(node)
            return doomed.SerializeToString()
        return rpc.request

    def _rename(self, node: pb.ExternalGrpcNode) -> None:
        made_up = node.name == node.providerID
        node.providerID = self.ours(node.providerID)
        if made_up:
            node.name = node.providerID

    def _check(self, house: House, number: int, rpc: Call, response: bytes) -> None:
        match rpc.method:
            case "BestOptions":
                asked = expander_pb2.BestOptionsRequest.FromString(rpc.request).options
                answered = expander_pb2.BestOptionsResponse.FromString(response).options
                decision = house.decisions.latest()[-1]
                assert [o.nodeGroupId for o in answered] == ([decision.chosen] if decision.chosen else [])
                assert decision.chosen in {o.nodeGroupId for o in asked} or _VETOED.search(decision.reason)
                self.choices.append(decision.chosen)
            case "NodeGroupForNode":
                got = pb.NodeGroupForNodeResponse.FromString(response).nodeGroup.id
                assert got == pb.NodeGroupForNodeResponse.FromString(rpc.response).nodeGroup.id, number
            case "NodeGroupTargetSize":
                size = pb.NodeGroupTargetSizeResponse.FromString(response)
                assert size == pb.NodeGroupTargetSizeResponse.FromString(rpc.response), number
            case "NodeGroupNodes":
                listed = pb.NodeGroupNodesResponse.FromString(response).instances
                recorded = pb.NodeGroupNodesResponse.FromString(rpc.response).instances
                assert {i.id for i in listed} >= {self.ours(i.id) for i in recorded}, number
                failed = {i.id for i in listed if i.status.errorInfo.errorCode}
                assert failed == {self.ours(i.id) for i in recorded if i.status.errorInfo.errorCode}, number
            case "NodeGroupTemplateNodeInfo":
                assert pb.NodeGroupTemplateNodeInfoResponse.FromString(response).nodeBytes


@pytest.mark.parametrize(
    ("name", "refused", "left"),
    [
        pytest.param("three-deployments", set(), {"m7g.xlarge": 3}, id="three deployments up, and down again"),
        pytest.param("stockout", {"m7i.large"}, {"m5.large": 4}, id="two groups are out of stock"),
        pytest.param("rollback-and-startup-taint", set(), {"m5.large": 6}, id="an increment fails half-way"),
    ],
)
def test_a_recorded_conversation_is_answered_as_recorded(name: str, refused: set[str], left: dict[str, int]) -> None:
    replay = _Replay(name, node_groups(name), refused)
    with House(replay.harness) as house:
        replay.run(house)
        replay.backend.finish_deletes()
        house.fleet.reconcile()
        standing = {g: len(s.instances) for g, s in house.fleet.snapshot.groups.items() if s.instances}
        assert standing == left
        assert replay.choices[0]
        assert len(house.decisions.latest()) == len(replay.choices)


def test_with_a_planner_the_autoscaler_is_vetoed_and_takes_the_nodes_as_they_come() -> None:
    """Recorded with `drive: plan` in a cluster: nine pods, two larger ones, and a gang over two groups of which no
    option of the autoscaler's has all."""
    replay = _Replay("gang-planned", node_groups("gang-planned"), planned=True)
    with House(replay.harness, expander_options={"planner_drives": True}) as house:
        replay.run(house)
        replay.backend.finish_deletes()
        house.fleet.reconcile()
        assert {g: len(created) for g, created in replay.backend.created.items()} == {
            "m7i.4xlarge": 2,
            "g4dn.xlarge": 3,
            "m7i.large": 2,
        }
        assert not any(state.instances for state in house.fleet.snapshot.groups.values())
        assert set(replay.choices) == {""}


def test_an_autoscaler_alone_is_kept_from_half_a_gang() -> None:
    """The same pods with `drive: assist`: ordinary pods are served, also those that CA fits beside a part of the gang
    (which were starved when this was recorded); the gang is not."""
    replay = _Replay("gang-assisted", node_groups("gang-assisted"))
    with House(replay.harness) as house:
        replay.run(house)
        replay.backend.finish_deletes()
        house.fleet.reconcile()
        assert {g: len(created) for g, created in replay.backend.created.items()} == {"m7i.large": 5}
        assert replay.choices[0] == "m7i.large"
        assert set(replay.choices[1:]) == {"m7i.4xlarge"}
        for_others, for_the_gang = house.decisions.latest()[-1].options
        assert "for 2 pods" in for_others.reason
        assert "needs drive: plan" in for_others.reason
        assert "needs drive: plan" in for_the_gang.left_out


def test_requests_of_the_autoscaler_and_of_ours_beside_each_other() -> None:
    """Recorded with `drive: assist` and --enable-provisioning-requests: a ProvisioningRequest of CA's own class for two
    pods with a GPU, one of its class over two groups, which it never serves, and then one of ours over the same two
    groups, whose pods come and go. It ends with the deletions."""
    replay = _Replay("requests-assisted", node_groups("requests-assisted"), planned=True)
    with House(replay.harness, expander_options={"serves_requests": True}) as house:
        replay.run(house)
        replay.backend.finish_deletes()
        house.fleet.reconcile()
        assert {g: len(created) for g, created in replay.backend.created.items()} == {
            "g4dn.xlarge": 5,
            "m7i.4xlarge": 1,
        }
        assert replay.choices == ["g4dn.xlarge"]
        assert not any(state.instances for state in house.fleet.snapshot.groups.values())
