"""CA's CloudProvider service: all fifteen calls over the fleet.

Thin: translate a call, call the fleet, translate the result. What CA reads thousands of times a loop comes from the
fleet's published snapshot, and is cached as bytes for as long as that snapshot is current. Odd answers have a comment;
CA's behaviour was read in kubernetes/autoscaler 1.36.1.

Instances are converted to CA's messages here, and the hourly prices of nodes and pods follow from those of node groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeVar

from google.protobuf.message import Message

from cagrpc.api.autoscaler import provider
from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.api.autoscaler.provider import LARGEST_ANSWER_BYTES, LONGEST_WORDS
from cagrpc.api.core import nodes
from cagrpc.api.core.nodes import INSTANCE_TYPE, ZONE, group_labels
from cagrpc.api.core.pods import PodDecoder
from cagrpc.api.encoding.messages import parse
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.errors import InvalidInput, NotFound, NotImplementedByDesign, shown
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import (
    FleetSnapshot,
    GroupState,
    IncrementSpec,
    Instance,
    InstanceState,
    Origin,
)
from cagrpc.runtime import tracing
from cagrpc.services.decisions import ExpanderChoice
from cagrpc.services.grpc.ready import ReadyAnswers
from cagrpc.services.grpc.status import CallContext, Method, on_messages
from solver.model import PODS, NodeGroup, PodSpec
from solver.model.eligibility import why_not_eligible

_OUT_OF_RESOURCES, _OTHER_ERROR = 1, 99  # cloudprovider.InstanceErrorClass

_STATES = {
    InstanceState.CREATING: pb.InstanceStatus.instanceCreating,
    InstanceState.RUNNING: pb.InstanceStatus.instanceRunning,
    InstanceState.DELETING: pb.InstanceStatus.instanceDeleting,
}

BY_NODE = ("NodeGroupForNode",)
"""Methods whose answer depends on the id of the request's node alone: Go writes a node's labels in another order each
time."""
M = TypeVar("M", bound=Message)
_MOST_MEMOISED = 50_000
_NO_DEADLINE_SECONDS = 10.0  # a caller without a deadline is given this one


def instances(listed: Iterable[Instance]) -> pb.NodeGroupNodesResponse:
    """Return the instances as a message. A failed creation is Creating with an errorCode: CA deletes it and backs
    off."""
    listed = tuple(listed)
    answer = pb.NodeGroupNodesResponse(instances=(_instance(instance, LONGEST_WORDS) for instance in listed))
    if answer.ByteSize() > LARGEST_ANSWER_BYTES:
        answer = pb.NodeGroupNodesResponse(instances=(_instance(instance, 0) for instance in listed))
    return answer


def _instance(instance: Instance, longest_words: int) -> pb.Instance:
    answer = pb.Instance(id=instance.id)
    answer.status.instanceState = _STATES[instance.state]
    if instance.error is not None and instance.state is InstanceState.CREATING:
        answer.status.errorInfo.errorCode = (instance.error.code or "CREATION_FAILED")[:LONGEST_WORDS]
        answer.status.errorInfo.errorMessage = instance.error.message[:longest_words]
        answer.status.errorInfo.instanceErrorClass = (
            _OUT_OF_RESOURCES if instance.error.out_of_resources else _OTHER_ERROR
        )
    return answer


def node_price(group: NodeGroup | None, labels: Mapping[str, str], groups: Iterable[NodeGroup]) -> float | None:
    """Return a node's price in US dollars per hour: its own group's, otherwise that of the cheapest group of its
    instance type, in its zone if there is one. None where no such group exists."""
    if group is not None:
        return group.price_usd_per_hour
    alike = [g for g in groups if g.instance_type and g.instance_type == labels.get(INSTANCE_TYPE)]
    in_zone = [g for g in alike if g.zone == labels.get(ZONE)]
    return min((g.price_usd_per_hour for g in in_zone or alike), default=None)


def pod_price(spec: PodSpec, groups: Iterable[NodeGroup]) -> float | None:
    """Return a pod's price in US dollars per hour: the least, over the groups that can run it, of the group's price
    times the largest share it takes of any allocatable resource (`pods` among them). None where no group can run it."""
    return min((price for group in groups if (price := _share(spec, group)) is not None), default=None)


def _share(spec: PodSpec, group: NodeGroup) -> float | None:
    if why_not_eligible(spec, group_labels(group), group.taints) is not None:
        return None
    asked = (*spec.requests, *([(PODS, 1)] if PODS in group.allocatable else []))
    if any(amount > group.allocatable.get(resource, 0) for resource, amount in asked):
        return None
    shares = (amount / group.allocatable[resource] for resource, amount in asked)
    return group.price_usd_per_hour * max(shares, default=0.0)


_FAKE_NODE_REASON, _UNREGISTERED = "k8s.io/cluster-autoscaler/fake-node-reason", "unregistered"
"""The annotation by which CA says of an instance that it has no Node (upstream: cloudprovider.FakeNode)."""
SERVICE = "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider"


@dataclass(frozen=True, slots=True)
class _Memo:
    """Cached answers of one snapshot. A thread uses the memo of the snapshot that it reads."""

    snapshot: FleetSnapshot
    answers: dict[tuple[str, bytes], bytes] = field(default_factory=dict)


class Provider:
    """The service's methods, on bytes. Thread-safe, as the fleet is."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        options: Mapping[str, AutoscalingOptions] | None = None,
        gpu_label: str = "cagrpc.io/gpu",
        take_choice: Callable[[str], ExpanderChoice | None] = lambda _: None,
        refusal_wait_seconds: float = 2.0,
        ready: ReadyAnswers | None = None,
    ) -> None:
        """`options`: node group id -> what is configured for it. `gpu_label`: the key of the label that CA tells
        nodes with GPUs by. `take_choice`: the expander's latest choice, if it was this node group, once.
        `refusal_wait_seconds`: the longest that an IncreaseSize waits for an immediate refusal; it never waits more
        than half of the call's deadline, so that CA hears the answer. `ready` gets the answers that only depend on the
        snapshot; the fleet tells it of a new one (`FleetListeners.published`)."""
        self._fleet = fleet
        self._options = {group: o for group, o in (options or {}).items() if not o.are_defaults}
        self._gpu_label = gpu_label
        self._take_choice = take_choice
        self._refusal_wait_seconds = refusal_wait_seconds
        self._ready = ready or ReadyAnswers()
        self._memo: _Memo | None = None
        self._renewing = Lock()

    def methods(self) -> dict[str, Method]:
        """Return the methods by name, for `status.generic_handler(SERVICE, ...)`."""
        return {
            "NodeGroups": self._hot(pb.NodeGroupsRequest, self._node_groups),
            "NodeGroupForNode": self._hot(
                pb.NodeGroupForNodeRequest,
                self._node_group_for_node,
                key_of=lambda request: provider.instance_id(request.node).encode(),
            ),
            "PricingNodePrice": on_messages(pb.PricingNodePriceRequest, self._node_price),
            "PricingPodPrice": on_messages(pb.PricingPodPriceRequest, self._pod_price),
            "GPULabel": on_messages(pb.GPULabelRequest, lambda *_: pb.GPULabelResponse(label=self._gpu_label)),
            "GetAvailableGPUTypes": self._hot(pb.GetAvailableGPUTypesRequest, self._gpu_types),
            # CA calls Cleanup when it stops. The fleet outlives it.
            "Cleanup": on_messages(pb.CleanupRequest, lambda *_: pb.CleanupResponse()),
            "Refresh": on_messages(pb.RefreshRequest, self._refresh),
            "NodeGroupTargetSize": self._hot(pb.NodeGroupTargetSizeRequest, self._target_size),
            "NodeGroupIncreaseSize": on_messages(pb.NodeGroupIncreaseSizeRequest, self._increase_size),
            "NodeGroupDeleteNodes": on_messages(pb.NodeGroupDeleteNodesRequest, self._delete_nodes),
            "NodeGroupDecreaseTargetSize": on_messages(pb.NodeGroupDecreaseTargetSizeRequest, self._decrease_target),
            "NodeGroupNodes": self._hot(pb.NodeGroupNodesRequest, self._nodes),
            "NodeGroupTemplateNodeInfo": self._hot(pb.NodeGroupTemplateNodeInfoRequest, self._template),
            "NodeGroupGetOptions": self._hot(pb.NodeGroupAutoscalingOptionsRequest, self._get_options),
        }

    def _hot(
        self,
        request_type: type[M],
        read: Callable[[M, FleetSnapshot], Message],
        key_of: Callable[[M], bytes] | None = None,
    ) -> Method:
        """Return a method that only reads the snapshot, with answers cached by request. Without `key_of` requests are
        equal when their bytes are."""

        def method(data: bytes, call: CallContext) -> bytes:
            memo = self._current_memo()
            request = None if key_of is None else parse(request_type, data)
            key = (call.method, data if request is None or key_of is None else key_of(request))
            answer = memo.answers.get(key)
            if answer is None:
                if request is None:
                    request = parse(request_type, data)
                answer = read(request, memo.snapshot).SerializeToString()
                if len(memo.answers) < _MOST_MEMOISED:
                    memo.answers[key] = answer
                    self._ready.put(memo.snapshot.version, *key, answer)
            return answer

        return method

    def _current_memo(self) -> _Memo:
        snapshot, memo = self._fleet.snapshot, self._memo
        if memo is None or memo.snapshot.version != snapshot.version:
            with self._renewing:  # once for all who ask
                memo = self._memo
                if memo is None or memo.snapshot.version != snapshot.version:
                    memo = self._memo = _Memo(snapshot)
                    if self._ready.keeps:
                        self._fill(snapshot)
        return memo

    def _fill(self, snapshot: FleetSnapshot) -> None:
        """Have NodeGroupForNode ready for every instance: CA asks for one after the other."""
        answers = {
            group_id: _of_group(state, snapshot).SerializeToString()
            for group_id, state in snapshot.groups.items()
            if state.instances
        }
        self._ready.fill(snapshot.version, BY_NODE[0], snapshot.group_of_instance, answers)

    def _node_groups(self, _: pb.NodeGroupsRequest, snapshot: FleetSnapshot) -> Message:
        # Never fails: CA takes an error for an empty list and forgets its running scale-ups. Refresh is where to fail.
        shown = (snapshot.groups.get(group_id) for group_id in snapshot.shown)
        return provider.node_groups((state.group for state in shown if state is not None), snapshot.limits)

    def _node_group_for_node(self, request: pb.NodeGroupForNodeRequest, snapshot: FleetSnapshot) -> Message:
        group_id = snapshot.group_of_instance.get(provider.instance_id(request.node), "")
        return _of_group(snapshot.groups.get(group_id), snapshot)

    def _target_size(self, request: pb.NodeGroupTargetSizeRequest, snapshot: FleetSnapshot) -> Message:
        return pb.NodeGroupTargetSizeResponse(targetSize=_state(snapshot, request.id).target_size)

    def _nodes(self, request: pb.NodeGroupNodesRequest, snapshot: FleetSnapshot) -> Message:
        return instances(_state(snapshot, request.id).instances)

    def _template(self, request: pb.NodeGroupTemplateNodeInfoRequest, snapshot: FleetSnapshot) -> Message:
        node = nodes.template(_state(snapshot, request.id).group)
        return pb.NodeGroupTemplateNodeInfoResponse(nodeInfo=node, nodeBytes=node)  # either wire generation reads one

    def _get_options(self, request: pb.NodeGroupAutoscalingOptionsRequest, snapshot: FleetSnapshot) -> Message:
        changed = self._options.get(_state(snapshot, request.id).group.id)
        # CA takes options verbatim: without its defaults we could only answer zeros.
        if changed is None or not request.HasField("defaults"):
            # Every CA takes its defaults where an answer has no options. CA 1.28 and older take UNIMPLEMENTED for a
            # failure, after which they never scale down; options make CA 1.36.1 take the node start-up time for 0
            # (kubernetes/autoscaler#10245).
            return pb.NodeGroupAutoscalingOptionsResponse()
        answer = provider.options(request.defaults, changed)
        return pb.NodeGroupAutoscalingOptionsResponse(nodeGroupAutoscalingOptions=answer)

    def _gpu_types(self, _: pb.GetAvailableGPUTypesRequest, snapshot: FleetSnapshot) -> Message:
        values = {state.group.labels.get(self._gpu_label) for state in snapshot.groups.values()}
        return provider.gpu_types(sorted(value for value in values if value))

    def _node_price(self, request: pb.PricingNodePriceRequest, _: CallContext) -> Message:
        hours = provider.interval_hours(request)
        snapshot = self._fleet.snapshot
        own = snapshot.groups.get(snapshot.group_of_instance.get(provider.instance_id(request.node), ""))
        price = node_price(own.group if own else None, request.node.labels, _groups(snapshot))
        if price is None:
            raise NotImplementedByDesign(f"no price is known for node {shown(request.node.name)}")
        return pb.PricingNodePriceResponse(price=price * hours)

    def _pod_price(self, request: pb.PricingPodPriceRequest, _: CallContext) -> Message:
        hours = provider.interval_hours(request)
        pod = PodDecoder().decode(request.pod_bytes or request.pod)
        price = pod_price(pod.spec, _groups(self._fleet.snapshot))
        if price is None:
            raise NotImplementedByDesign(f"no node group can run pod {pod.name}, so it has no price")
        return pb.PricingPodPriceResponse(price=price * hours)

    def _refresh(self, _: pb.RefreshRequest, call: CallContext) -> Message:
        call.check_not_expired()
        # A slow backend must hold neither CA nor the threads that answer everything else.
        seconds_left = _NO_DEADLINE_SECONDS if call.seconds_left is None else call.seconds_left
        self._fleet.refresh(wait_seconds=seconds_left / 2)
        return pb.RefreshResponse()

    def _increase_size(self, request: pb.NodeGroupIncreaseSizeRequest, call: CallContext) -> Message:
        call.check_not_expired()  # CA counts it as failed already, and would ask again
        _state(self._fleet.snapshot, request.id)
        if request.delta < 1:
            raise InvalidInput(f"node group {request.id}: delta is {request.delta}; an increase is 1 or more")
        wait_seconds = self._refusal_wait_seconds
        if call.seconds_left is not None:
            wait_seconds = min(wait_seconds, call.seconds_left / 2)
        choice = self._take_choice(request.id)
        increment = IncrementSpec(
            deltas={request.id: request.delta},
            origin=Origin.AUTOSCALER,
            pods=choice.pods if choice else frozenset(),
            reason=choice.reason if choice else "asked for by the cluster-autoscaler",
            placements=choice.placements[: request.delta] if choice else (),
            waiting_since_seconds=choice.waiting_since_seconds if choice else None,
        )
        with tracing.span("committing") as span:
            status = self._fleet.apply(
                increment,
                refusal_wait_seconds=wait_seconds,
                answer_within_seconds=float("inf") if call.seconds_left is None else call.seconds_left - wait_seconds,
            )
            span.set(tracing.increment(status.id).attributes)
            call.increments.append(status.id)
        return pb.NodeGroupIncreaseSizeResponse()

    def _delete_nodes(self, request: pb.NodeGroupDeleteNodesRequest, call: CallContext) -> Message:
        call.check_not_expired()
        _state(self._fleet.snapshot, request.id)
        ids = tuple(dict.fromkeys(provider.instance_id(node) for node in request.nodes))
        if "" in ids:
            raise InvalidInput(f"node group {request.id}: a node to delete has neither providerID nor name")
        if ids:
            # An instance that never became a Node is no part of a minimum (kubernetes/autoscaler#6650).
            unregistered = {
                provider.instance_id(node)
                for node in request.nodes
                if node.annotations.get(_FAKE_NODE_REASON) == _UNREGISTERED
            }
            self._fleet.delete_instances(request.id, ids, unregistered=unregistered)
        return pb.NodeGroupDeleteNodesResponse()

    def _decrease_target(self, request: pb.NodeGroupDecreaseTargetSizeRequest, call: CallContext) -> Message:
        call.check_not_expired()
        _state(self._fleet.snapshot, request.id)
        if request.delta > -1:
            raise InvalidInput(f"node group {request.id}: delta is {request.delta}; a decrease is -1 or less")
        # CA may ask for more than is still to come; the fleet clamps it and never removes an instance for it.
        self._fleet.decrease_target(request.id, request.delta)
        return pb.NodeGroupDecreaseTargetSizeResponse()


def _of_group(state: GroupState | None, snapshot: FleetSnapshot) -> Message:
    # An empty id says that the node is not ours; that is no error.
    group = provider.node_group(state.group, snapshot.limits) if state else pb.NodeGroup()
    return pb.NodeGroupForNodeResponse(nodeGroup=group)


def _state(snapshot: FleetSnapshot, group_id: str) -> GroupState:
    state = snapshot.groups.get(group_id)
    if state is None:
        raise NotFound(f"there is no node group {shown(group_id)}")
    return state


def _groups(snapshot: FleetSnapshot) -> list[NodeGroup]:
    return [state.group for state in snapshot.groups.values()]
