"""Replaying without sockets: what is sent, what is waited for, and that wrong answers are found out."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from cagrpc.api.gen import expander_pb2, kubernetes_pb2
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.cli.main import main
from cagrpc.errors import InvalidInput
from cagrpc.replay.conversation import Answer, Conversation, Deletion, Increase, RecordedDecision, Replay
from cagrpc.replay.expectations import ReplayedFleet, judge
from cagrpc.replay.identities import Identities
from cagrpc.replay.recording import Call, embedded_recordings, read_recording

RUNNING, CREATING, DELETING = (
    pb.InstanceStatus.instanceRunning,
    pb.InstanceStatus.instanceCreating,
    pb.InstanceStatus.instanceDeleting,
)


def call(method: str, request: Message | None = None, response: Message | None = None, code: str = "OK") -> Call:
    return Call(
        line=1,
        seconds=0.0,
        method=method,
        request=request.SerializeToString() if request else b"",
        code=code,
        response=response.SerializeToString() if response else b"",
    )


def instances(*ids: str, state: int = RUNNING) -> pb.NodeGroupNodesResponse:
    return pb.NodeGroupNodesResponse(
        instances=[pb.Instance(id=each, status=pb.InstanceStatus(instanceState=state)) for each in ids]  # type: ignore[arg-type]
    )


class FakeServer:
    """One group, `g`. Instances are `ours://1`, ... and need `polls_to_boot` looks until they run."""

    def __init__(self, *, polls_to_boot: int = 2, deletes: bool = True, refuse: str = "") -> None:
        self.polls_to_boot, self.deletes, self.refuse = polls_to_boot, deletes, refuse
        self.made: dict[str, int] = {}
        self.asked: list[tuple[str, Message]] = []

    def __call__(self, full_method: str, request: bytes) -> Answer:
        method = full_method.rsplit("/", 1)[1]
        answer = getattr(self, method)(request)
        return answer if isinstance(answer, Answer) else Answer("OK", answer.SerializeToString())

    def note(self, method: str, message: Message) -> None:
        self.asked.append((method, message))

    def NodeGroups(self, _: bytes) -> Message:  # noqa: N802 - the method's name
        return pb.NodeGroupsResponse(nodeGroups=[pb.NodeGroup(id="g", maxSize=10)])

    def NodeGroupTargetSize(self, _: bytes) -> Message:  # noqa: N802
        return pb.NodeGroupTargetSizeResponse(targetSize=len(self.made))

    def NodeGroupNodes(self, _: bytes) -> Message:  # noqa: N802
        self.made = {name: polls + 1 for name, polls in self.made.items()}
        answer = instances(*self.made)
        for each in answer.instances:
            each.status.instanceState = RUNNING if self.made[each.id] > self.polls_to_boot else CREATING
        return answer

    def NodeGroupIncreaseSize(self, request: bytes) -> Message | Answer:  # noqa: N802
        if self.refuse:
            return Answer(self.refuse, message="no")
        for _ in range(pb.NodeGroupIncreaseSizeRequest.FromString(request).delta):
            self.made[f"ours://{len(self.made) + 1}"] = 0
        return pb.NodeGroupIncreaseSizeResponse()

    def NodeGroupDeleteNodes(self, request: bytes) -> Message:  # noqa: N802
        message = pb.NodeGroupDeleteNodesRequest.FromString(request)
        self.note("NodeGroupDeleteNodes", message)
        for node in message.nodes:
            if self.deletes:
                self.made.pop(node.providerID, None)
        return pb.NodeGroupDeleteNodesResponse()

    def NodeGroupForNode(self, request: bytes) -> Message:  # noqa: N802
        message = pb.NodeGroupForNodeRequest.FromString(request)
        self.note("NodeGroupForNode", message)
        known = message.node.providerID in self.made
        return pb.NodeGroupForNodeResponse(nodeGroup=pb.NodeGroup(id="g" if known else ""))

    def BestOptions(self, request: bytes) -> Message:  # noqa: N802
        options = expander_pb2.BestOptionsRequest.FromString(request).options
        answer = expander_pb2.Option(nodeGroupId=options[-1].nodeGroupId, debug="the last")
        return expander_pb2.BestOptionsResponse(options=[answer])


def replay(server: FakeServer, *calls: Call, settle_seconds: float = 5.0) -> Replay:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return Conversation("test", calls, server, clock=lambda: now[0], sleep=sleep, settle_seconds=settle_seconds).run()


def node(number: int, *, made_up: bool = False) -> pb.ExternalGrpcNode:
    provider_id = f"example://g-{number:04d}"
    if made_up:
        return pb.ExternalGrpcNode(providerID=provider_id, name=provider_id)
    name = f"g-{number:04d}"
    return pb.ExternalGrpcNode(providerID=provider_id, name=name, labels={"kubernetes.io/hostname": name})


INCREASE = call("NodeGroupIncreaseSize", pb.NodeGroupIncreaseSizeRequest(id="g", delta=2))
IN_GROUP = pb.NodeGroupForNodeResponse(nodeGroup=pb.NodeGroup(id="g"))


def test_recorded_instances_are_ours_in_order_of_creation() -> None:
    server = FakeServer()
    found = replay(
        server,
        INCREASE,
        call("NodeGroupForNode", pb.NodeGroupForNodeRequest(node=node(20)), IN_GROUP),
        call("NodeGroupForNode", pb.NodeGroupForNodeRequest(node=node(7, made_up=True)), IN_GROUP),
        call("NodeGroupDeleteNodes", pb.NodeGroupDeleteNodesRequest(id="g", nodes=[node(7)])),
        call("NodeGroupDeleteNodes", pb.NodeGroupDeleteNodesRequest(id="g", nodes=[node(20)])),
    )
    assert found.disagreements == []
    (_, second), (_, first), *_ = server.asked
    assert isinstance(second, pb.NodeGroupForNodeRequest)
    assert isinstance(first, pb.NodeGroupForNodeRequest)
    assert (second.node.providerID, second.node.name) == ("ours://2", "2")
    assert second.node.labels["kubernetes.io/hostname"] == "2"
    assert (first.node.providerID, first.node.name) == ("ours://1", "ours://1")
    assert found.events[-1] == Deletion("g", 2, "OK", "OK")
    assert found.left_by_recording == found.instances_left == {}


def test_it_waits_until_an_increase_has_settled() -> None:
    found = replay(FakeServer(polls_to_boot=10), INCREASE)
    (increase,) = found.events
    assert isinstance(increase, Increase)
    assert increase.outcome == "2 running"
    assert increase.settled_seconds == pytest.approx(10 * 0.05)


def test_the_wait_is_bounded() -> None:
    (increase,) = replay(FakeServer(polls_to_boot=10_000), INCREASE, settle_seconds=3).events
    assert isinstance(increase, Increase)
    assert increase.outcome == "not settled after 3 s: target 2, 2 creating"


def test_what_the_recording_leaves_is_deleted() -> None:
    found = replay(FakeServer(), INCREASE)
    assert (found.left_by_recording, found.instances_left) == ({"g": 2}, {})


def test_what_cannot_be_deleted_is_reported() -> None:
    assert replay(FakeServer(deletes=False), INCREASE).instances_left == {"g": 2}


def test_instances_of_before_are_left_alone() -> None:
    server = FakeServer()
    server.made = {"ours://before": 5}
    found = replay(
        server,
        INCREASE,
        call(
            "NodeGroupTargetSize", pb.NodeGroupTargetSizeRequest(id="g"), pb.NodeGroupTargetSizeResponse(targetSize=2)
        ),
    )
    assert found.good
    assert list(server.made) == ["ours://before"]


def test_a_decision_shows_both_choices() -> None:
    options = [expander_pb2.Option(nodeGroupId=name, nodeCount=2, podBytes=[b"", b""]) for name in ("a", "b")]
    request = expander_pb2.BestOptionsRequest(options=options)
    (decision,) = replay(
        FakeServer(), call("BestOptions", request, expander_pb2.BestOptionsResponse(options=options[:1]))
    ).events
    assert isinstance(decision, RecordedDecision)
    assert (decision.recorded_choice, decision.choice, decision.reason) == ("a", "b", "the last")
    assert [(each.node_group, each.nodes, each.pods) for each in decision.options] == [("a", 2, 2), ("b", 2, 2)]


def test_another_status_than_recorded_is_a_disagreement() -> None:
    found = replay(FakeServer(refuse="RESOURCE_EXHAUSTED"), INCREASE)
    (wrong,) = found.disagreements
    assert wrong.problem == "answered RESOURCE_EXHAUSTED where OK was recorded: no"
    assert not found.good
    assert found.methods["NodeGroupIncreaseSize"].wrong == 1


def template(**allocatable: str) -> pb.NodeGroupTemplateNodeInfoResponse:
    made = kubernetes_pb2.Node()
    made.metadata.labels["kubernetes.io/arch"] = "amd64"
    for name, quantity in allocatable.items():
        made.status.allocatable[name].string = quantity
        made.status.capacity[name].string = quantity
    made.status.conditions.add(type="Ready", status="True")
    return pb.NodeGroupTemplateNodeInfoResponse(nodeBytes=made.SerializeToString())


WHOLE = template(cpu="2", memory="8Gi", pods="29")
ASKED = expander_pb2.BestOptionsRequest(options=[expander_pb2.Option(nodeGroupId="a")])
DEFAULTS = pb.NodeGroupAutoscalingOptionsRequest(
    id="g", defaults=pb.NodeGroupAutoscalingOptions(scaleDownUtilizationThreshold=0.5)
)
GROUPS = pb.NodeGroupsResponse(nodeGroups=[pb.NodeGroup(id="g", maxSize=1)])

# name: (the recorded call, our code and answer, what is said of it)
MEANINGLESS: Mapping[str, tuple[Call, str, Message | None, str]] = {
    "a group is missing": (call("NodeGroups", None, GROUPS), "OK", pb.NodeGroupsResponse(), "not served: g"),
    "a group upside down": (
        call("NodeGroups", None, GROUPS),
        "OK",
        pb.NodeGroupsResponse(nodeGroups=[pb.NodeGroup(id="g", minSize=2, maxSize=1)]),
        "min above max",
    ),
    "a node in another group": (
        call("NodeGroupForNode", pb.NodeGroupForNodeRequest(node=node(1)), IN_GROUP),
        "OK",
        pb.NodeGroupForNodeResponse(nodeGroup=pb.NodeGroup(id="h")),
        'is in group "h", recorded was "g"',
    ),
    "another target": (
        call(
            "NodeGroupTargetSize", pb.NodeGroupTargetSizeRequest(id="g"), pb.NodeGroupTargetSizeResponse(targetSize=3)
        ),
        "OK",
        pb.NodeGroupTargetSizeResponse(targetSize=2),
        "the target of g is 2, expected 3",
    ),
    "an instance twice": (call("NodeGroupNodes"), "OK", instances("a", "a"), "duplicate"),
    "an instance without a state": (call("NodeGroupNodes"), "OK", instances("a", state=0), "without a state: ['a']"),
    "an empty template": (
        call("NodeGroupTemplateNodeInfo", None, WHOLE),
        "OK",
        pb.NodeGroupTemplateNodeInfoResponse(),
        "not a whole node",
    ),
    "a template without pods": (
        call("NodeGroupTemplateNodeInfo", None, WHOLE),
        "OK",
        template(cpu="2", memory="8Gi"),
        "lacks ['pods']",
    ),
    "no GPU label": (call("GPULabel"), "OK", pb.GPULabelResponse(), "empty"),
    "zeroed options": (
        call("NodeGroupGetOptions", DEFAULTS, None, "UNIMPLEMENTED"),
        "OK",
        pb.NodeGroupAutoscalingOptionsResponse(nodeGroupAutoscalingOptions=pb.NodeGroupAutoscalingOptions()),
        "read as zero: scaleDownUtilizationThreshold",
    ),
    "a choice that nobody offered": (
        call("BestOptions", ASKED),
        "OK",
        expander_pb2.BestOptionsResponse(options=[expander_pb2.Option(nodeGroupId="z")]),
        "none of the options",
    ),
    "two choices": (
        call("BestOptions", ASKED),
        "OK",
        expander_pb2.BestOptionsResponse(options=[expander_pb2.Option(nodeGroupId="a")] * 2),
        "at most one",
    ),
    "a status of its own": (call("Refresh"), "UNAVAILABLE", None, "UNAVAILABLE where OK was recorded"),
    "OK where it failed": (call("NodeGroupIncreaseSize", None, None, "RESOURCE_EXHAUSTED"), "OK", None, "answered OK"),
}


@pytest.mark.parametrize(("recorded", "code", "answer", "problem"), MEANINGLESS.values(), ids=MEANINGLESS)
def test_a_meaningless_answer_is_found(recorded: Call, code: str, answer: Message | None, problem: str) -> None:
    verdict = judge(
        recorded, code, answer.SerializeToString() if answer else b"", ReplayedFleet(Identities([recorded]))
    )
    assert problem in verdict.problem


def test_bytes_that_are_no_message_are_found() -> None:
    verdict = judge(call("NodeGroups", None, GROUPS), "OK", b"\xff\xff", ReplayedFleet(Identities([])))
    assert "NodeGroupsResponse" in verdict.problem


@pytest.mark.parametrize("options", [None, DEFAULTS.defaults], ids=["none", "its own"])
def test_an_answer_to_options_is_an_allowed_exception(options: pb.NodeGroupAutoscalingOptions | None) -> None:
    answer = pb.NodeGroupAutoscalingOptionsResponse(nodeGroupAutoscalingOptions=options)
    recorded = call("NodeGroupGetOptions", DEFAULTS, None, "UNIMPLEMENTED")
    verdict = judge(recorded, "OK", answer.SerializeToString(), ReplayedFleet(Identities([])))
    assert (verdict.problem, verdict.exception) == ("", "CA takes its defaults where there are no options")


def test_a_deleted_instance_may_take_a_moment_to_go() -> None:
    gone = call("NodeGroupForNode", pb.NodeGroupForNodeRequest(node=node(1)), pb.NodeGroupForNodeResponse())
    world = ReplayedFleet(Identities([]))
    answer = IN_GROUP.SerializeToString()
    assert judge(gone, "OK", answer, world).problem
    world.deletion_asked.add("example://g-0001")
    assert not judge(gone, "OK", answer, world).problem


LINE: Mapping[str, Any] = {"seconds": 0, "method": "Refresh", "request": "", "code": "OK", "response": ""}
BAD_LINES: Mapping[str, tuple[str, str]] = {
    "not JSON": ("{", "line 1: is not a recorded RPC"),
    "an unknown method": (json.dumps({**LINE, "method": "Reboot"}), 'method "Reboot" is none of'),
    "an unknown code": (json.dumps({**LINE, "code": "FINE"}), 'code "FINE" is not a gRPC status code'),
    "a field too few": (json.dumps({"seconds": 0}), "method is missing"),
    "no base64": (json.dumps({**LINE, "request": "?"}), "line 1"),
    "nothing": ("", "holds no RPC"),
}


@pytest.mark.parametrize(("text", "message"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_recording(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(InvalidInput, match=f"r.jsonl.gz: .*{message}"):
        read_recording(str(path))


@pytest.mark.parametrize("content", [b"plain", gzip.compress(b"x" * 1000, mtime=0)[:20], b"\x1f\x8b" + bytes(30)])
def test_no_gzip_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"r\.jsonl\.gz"):
        read_recording(str(path))


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    line = {**LINE, "seconds": 1.5, "request": base64.b64encode(b"ab").decode()}
    path.write_bytes(gzip.compress((json.dumps(line) + "\n").encode()))
    assert read_recording(str(path)) == (Call(1, 1.5, "Refresh", b"ab", "OK", b""),)


def test_the_embedded_recording_has_a_name() -> None:
    assert embedded_recordings() == ("three-deployments",)
    assert len(read_recording("three-deployments")) == 4563


def test_an_unknown_recording_names_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("cagrpc: nothing: No such file or directory; expected")
