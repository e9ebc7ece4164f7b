"""Replays a recorded conversation in order, as fast as possible, and compares the responses. Sockets and clocks are
injected: channels are opened in `sockets`, results printed in `report`.

After each NodeGroupIncreaseSize it waits until the group has settled, because the recorded autoscaler waited as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cagrpc.api.encoding.messages import parse
from cagrpc.api.gen import expander_pb2
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.replay.expectations import ReplayedFleet, judge
from cagrpc.replay.identities import Identities
from cagrpc.replay.recording import BEST_OPTIONS, PROVIDER, Call

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: a gRPC status by name, the bytes where it is OK, else the message."""

    code: str
    response: bytes = b""
    message: str = ""


Send = Callable[[str, bytes], Answer]
"""Sends one request to the server of its service, by the full name of its method."""


@dataclass(frozen=True, slots=True)
class OptionAsked:
    node_group: str
    nodes: int
    pods: int


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """One BestOptions: the options, the recorded choice, cagrpc's choice and its reason. An empty choice is a veto, or
    follows an error."""

    options: tuple[OptionAsked, ...]
    recorded_choice: str
    choice: str
    reason: str
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Increase:
    """One NodeGroupIncreaseSize and its outcome."""

    node_group: str
    delta: int
    recorded_code: str
    code: str
    outcome: str
    settled_seconds: float


@dataclass(frozen=True, slots=True)
class Deletion:
    """Consecutive NodeGroupDeleteNodes calls for one group."""

    node_group: str
    instances: int
    recorded_code: str
    code: str


@dataclass(slots=True)
class MethodTotals:
    requests: int = 0
    as_recorded: int = 0
    allowed_exceptions: int = 0
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A request with an unexpected response; `line` is the recording's."""

    line: int
    method: str
    recorded_code: str
    code: str
    problem: str


@dataclass(slots=True)
class Replay:
    """The result of a replay."""

    recording: str
    events: list[RecordedDecision | Increase | Deletion] = field(default_factory=list)
    methods: dict[str, MethodTotals] = field(default_factory=dict)
    exceptions: Counter[str] = field(default_factory=Counter)
    """Requests by the reason of an allowed exception."""
    disagreements: list[Disagreement] = field(default_factory=list)
    left_by_recording: dict[str, int] = field(default_factory=dict)
    """Instances by node group after the last request; they are then deleted."""
    instances_left: dict[str, int] = field(default_factory=dict)
    """Instances by node group after that deletion."""
    elapsed_seconds: float = 0.0

    @property
    def requests(self) -> int:
        return sum(totals.requests for totals in self.methods.values())

    @property
    def good(self) -> bool:
        return not self.disagreements


class Conversation:
    """One replay. `progress` is called with the number of requests sent."""

    def __init__(
        self,
        name: str,
        calls: Sequence[Call],
        send: Send,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        settle_seconds: float,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._calls = calls
        self._send = send
        self._clock = clock
        self._sleep = sleep
        self._settle_seconds = settle_seconds
        self._progress = progress
        self._identities = Identities(calls)
        self._replay = Replay(name)
        self._fleet = ReplayedFleet(self._identities)

    def run(self) -> Replay:
        """Replay all calls, then delete the instances that are left."""
        began = self._clock()
        groups = self._node_groups()
        for node_group in groups:
            self._fleet.initial_targets[node_group] = self._target_size(node_group)
            self._fleet.initial_instances |= {instance.id for instance in self._listed(node_group)}
        for sent, call in enumerate(self._calls, start=1):
            self._one(call)
            self._progress(sent)
        self._replay.left_by_recording = self._left(groups)
        self._replay.elapsed_seconds = self._clock() - began
        self._clean_up(self._replay.left_by_recording)
        self._replay.instances_left = self._left(groups)
        return self._replay

    def _left(self, groups: Iterable[str]) -> dict[str, int]:
        """Return the replay's instances by node group, once these have settled."""
        for node_group in groups:
            self._settle(node_group)
        left = {node_group: len(self._made(node_group)) for node_group in groups}
        return {node_group: count for node_group, count in left.items() if count}

    def _made(self, node_group: str) -> list[pb.Instance]:
        return [each for each in self._listed(node_group) if each.id not in self._fleet.initial_instances]

    def _clean_up(self, groups: Iterable[str]) -> None:
        """Delete the replay's instances: a recording may end with nodes in use."""
        for node_group in groups:
            nodes = [pb.ExternalGrpcNode(providerID=each.id, name=each.id) for each in self._made(node_group)]
            request = pb.NodeGroupDeleteNodesRequest(id=node_group, nodes=nodes)
            self._ask("NodeGroupDeleteNodes", request.SerializeToString())

    def _one(self, call: Call) -> None:
        request = self._identities.rewrite(call.method, call.request)
        began = self._clock()
        answer = self._send(call.full_method, request)
        elapsed_seconds = self._clock() - began
        verdict = judge(call, answer.code, answer.response, self._fleet)
        totals = self._replay.methods.setdefault(call.method, MethodTotals())
        totals.requests += 1
        if verdict.problem:
            totals.wrong += 1
            problem = f"{verdict.problem}{f': {answer.message}' if answer.message else ''}"
            self._replay.disagreements.append(Disagreement(call.line, call.method, call.code, answer.code, problem))
        elif verdict.exception:
            totals.allowed_exceptions += 1
            self._replay.exceptions[verdict.exception] += 1
        else:
            totals.as_recorded += 1
        if call.method == BEST_OPTIONS:
            self._decided(call, answer, elapsed_seconds)
        elif call.method == "NodeGroupIncreaseSize":
            self._increased(call, answer)
        elif call.method == "NodeGroupDeleteNodes":
            self._deleted(call, request, answer)

    def _decided(self, call: Call, answer: Answer, elapsed_seconds: float) -> None:
        asked = parse(expander_pb2.BestOptionsRequest, call.request).options
        recorded = parse(expander_pb2.BestOptionsResponse, call.response).options
        ours = parse(expander_pb2.BestOptionsResponse, answer.response).options
        reason = ours[0].debug if ours else answer.message or "veto: nothing scales up in this loop"
        options = tuple(OptionAsked(o.nodeGroupId, o.nodeCount, len(o.podBytes) or len(o.pod)) for o in asked)
        self._replay.events.append(
            RecordedDecision(
                options,
                recorded[0].nodeGroupId if recorded else "",
                ours[0].nodeGroupId if ours else "",
                reason,
                elapsed_seconds * 1000,
            )
        )

    def _increased(self, call: Call, answer: Answer) -> None:
        request = parse(pb.NodeGroupIncreaseSizeRequest, call.request)
        outcome, settled_seconds = answer.message, 0.0
        if answer.code == "OK":
            outcome, settled_seconds = self._settle(request.id)
        self._replay.events.append(
            Increase(request.id, request.delta, call.code, answer.code, outcome, settled_seconds)
        )

    def _deleted(self, call: Call, rewritten: bytes, answer: Answer) -> None:
        request = parse(pb.NodeGroupDeleteNodesRequest, rewritten)
        if answer.code == "OK":
            self._fleet.deletion_asked |= {node.providerID for node in request.nodes}
        deletion = Deletion(request.id, len(request.nodes), call.code, answer.code)
        last = self._replay.events[-1] if self._replay.events else None
        if isinstance(last, Deletion) and replace(last, instances=deletion.instances) == deletion:
            self._replay.events.pop()
            deletion = replace(deletion, instances=deletion.instances + last.instances)
        self._replay.events.append(deletion)

    def _settle(self, node_group: str) -> tuple[str, float]:
        """Wait until all of the group's instances are running or failed and none is being deleted; return the outcome
        and the seconds waited, which are the server's: it may be made later at once."""
        waited = 0.0
        while True:
            listed, target = self._listed(node_group), self._target_size(node_group)
            settled = len(listed) == target and not any(_changing(instance) for instance in listed)
            if settled or waited >= self._settle_seconds:
                break
            self._sleep(POLL_SECONDS)
            waited += POLL_SECONDS
        self._identities.saw(node_group, [i.id for i in listed], before=frozenset(self._fleet.initial_instances))
        states = Counter(_state(instance) for instance in listed)
        outcome = ", ".join(f"{count} {state}" for state, count in states.items()) or "no instances"
        if not settled:
            outcome = f"not settled after {waited:.0f} s: target {target}, {outcome}"
        return outcome, waited

    def _node_groups(self) -> tuple[str, ...]:
        answer = self._ask("NodeGroups", b"")
        return tuple(group.id for group in parse(pb.NodeGroupsResponse, answer.response).nodeGroups)

    def _target_size(self, node_group: str) -> int:
        answer = self._ask("NodeGroupTargetSize", pb.NodeGroupTargetSizeRequest(id=node_group).SerializeToString())
        return parse(pb.NodeGroupTargetSizeResponse, answer.response).targetSize

    def _listed(self, node_group: str) -> Sequence[pb.Instance]:
        answer = self._ask("NodeGroupNodes", pb.NodeGroupNodesRequest(id=node_group).SerializeToString())
        return parse(pb.NodeGroupNodesResponse, answer.response).instances

    def _ask(self, method: str, request: bytes) -> Answer:
        return self._send(f"/{PROVIDER.full_name}/{method}", request)


def _state(instance: pb.Instance) -> str:
    status = instance.status
    if status.errorInfo.errorCode:
        return f"failed ({status.errorInfo.errorCode})"
    return pb.InstanceStatus.InstanceState.Name(status.instanceState).removeprefix("instance").lower()


def _changing(instance: pb.Instance) -> bool:
    """Return whether the instance is being created without a failure, or being deleted."""
    states: Mapping[int, bool] = {
        pb.InstanceStatus.instanceCreating: not instance.status.errorInfo.errorCode,
        pb.InstanceStatus.instanceDeleting: True,
    }
    return states.get(instance.status.instanceState, False)
