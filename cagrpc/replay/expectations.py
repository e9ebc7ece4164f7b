"""Expected responses to recorded requests: the recorded status, with a few exceptions listed here and their reasons,
and content that an autoscaler accepts. No sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cagrpc.api.encoding.messages import parse
from cagrpc.api.gen import expander_pb2, kubernetes_pb2
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.errors import InvalidInput, shown
from cagrpc.replay.identities import Identities
from cagrpc.replay.recording import BEST_OPTIONS, Call

ALLOWED_EXCEPTIONS: Mapping[tuple[str, str, str], str] = {
    (
        "NodeGroupGetOptions",
        "UNIMPLEMENTED",
        "OK",
    ): "CA takes its defaults where there are no options",
    ("NodeGroupTemplateNodeInfo", "UNIMPLEMENTED", "OK"): "a template is always a whole node",
}
"""(method, recorded code, actual code) -> why that is right."""


@dataclass(slots=True)
class ReplayedFleet:
    """The state of the replayed fleet against which responses are judged."""

    identities: Identities
    initial_targets: dict[str, int] = field(default_factory=dict)
    """Targets before the replay, by node group; recorded targets are added to them."""
    initial_instances: set[str] = field(default_factory=set)
    deletion_asked: set[str] = field(default_factory=set)
    """Instances whose deletion was answered with OK: they may stay listed until they are gone."""


@dataclass(frozen=True, slots=True)
class ReplayVerdict:
    """A problem, an allowed exception, or neither."""

    problem: str = ""
    exception: str = ""


def judge(call: Call, code: str, response: bytes, fleet: ReplayedFleet) -> ReplayVerdict:
    """Compare a response with the recorded one."""
    exception = ""
    if code != call.code:
        exception = ALLOWED_EXCEPTIONS.get((call.method, call.code, code), "")
        if not exception:
            return ReplayVerdict(problem=f"answered {code} where {call.code} was recorded")
    if code != "OK":
        return ReplayVerdict(exception=exception)
    check = _CHECKS.get(call.method)
    try:
        problem = check(call, response, fleet) if check else ""
    except InvalidInput as error:
        problem = str(error)
    return ReplayVerdict(problem=problem, exception="" if problem else exception)


def _node_groups(call: Call, response: bytes, _: ReplayedFleet) -> str:
    recorded = {group.id for group in parse(pb.NodeGroupsResponse, call.response).nodeGroups}
    groups = parse(pb.NodeGroupsResponse, response).nodeGroups
    missing = recorded - {group.id for group in groups}
    if missing:
        return f"node groups of the recording are not served: {', '.join(sorted(missing))}"
    wrong = [group.id for group in groups if not group.id or not 0 <= group.minSize <= group.maxSize]
    return f"groups without an id or with min above max: {wrong}" if wrong else ""


def _node_group_for_node(call: Call, response: bytes, fleet: ReplayedFleet) -> str:
    node = parse(pb.NodeGroupForNodeRequest, call.request).node
    recorded = parse(pb.NodeGroupForNodeResponse, call.response).nodeGroup.id
    answered = parse(pb.NodeGroupForNodeResponse, response).nodeGroup.id
    if answered == recorded:
        return ""
    if not recorded and fleet.identities.ours(node.providerID) in fleet.deletion_asked:
        return ""  # a deletion takes time here; the recorded one was immediate
    if not answered and not fleet.identities.knows(node.providerID):
        return ""  # fewer instances were created here
    return f"{node.providerID or node.name} is in group {shown(answered)}, recorded was {shown(recorded)}"


def _target_size(call: Call, response: bytes, fleet: ReplayedFleet) -> str:
    node_group = parse(pb.NodeGroupTargetSizeRequest, call.request).id
    recorded = parse(pb.NodeGroupTargetSizeResponse, call.response).targetSize
    expected = recorded + fleet.initial_targets.get(node_group, 0)
    answered = parse(pb.NodeGroupTargetSizeResponse, response).targetSize
    return "" if answered == expected else f"the target of {node_group} is {answered}, expected {expected}"


def _nodes(_: Call, response: bytes, __: ReplayedFleet) -> str:
    instances = parse(pb.NodeGroupNodesResponse, response).instances
    ids = [instance.id for instance in instances]
    if len(set(ids)) != len(ids) or not all(ids):
        return "an instance id is empty or duplicate"
    unknown = [each.id for each in instances if each.status.instanceState == pb.InstanceStatus.unspecified]
    return f"instances without a state: {unknown}" if unknown else ""


def _template(call: Call, response: bytes, _: ReplayedFleet) -> str:
    node = parse(kubernetes_pb2.Node, parse(pb.NodeGroupTemplateNodeInfoResponse, response).nodeBytes)
    recorded = parse(kubernetes_pb2.Node, parse(pb.NodeGroupTemplateNodeInfoResponse, call.response).nodeBytes)
    allocatable = {name: quantity.string for name, quantity in node.status.allocatable.items()}
    missing = [name for name in ("cpu", "memory", "pods") if allocatable.get(name, "0") in ("", "0")]
    if missing or not node.status.capacity:
        return f"the template is not a whole node: allocatable lacks {missing}, capacity {dict(node.status.capacity)}"
    if not any(each.type == "Ready" and each.status == "True" for each in node.status.conditions):
        return "the template is not Ready"
    label = "kubernetes.io/arch"
    arch, recorded_arch = node.metadata.labels.get(label, ""), recorded.metadata.labels.get(label, "")
    return (
        "" if arch == recorded_arch else f"the template's {label} is {shown(arch)}, recorded was {shown(recorded_arch)}"
    )


def _gpu_label(_: Call, response: bytes, __: ReplayedFleet) -> str:
    return "" if parse(pb.GPULabelResponse, response).label else "the GPU label is empty"


def _options(call: Call, response: bytes, _: ReplayedFleet) -> str:
    defaults = parse(pb.NodeGroupAutoscalingOptionsRequest, call.request).defaults
    answer = parse(pb.NodeGroupAutoscalingOptionsResponse, response)
    if not answer.HasField("nodeGroupAutoscalingOptions"):
        return ""  # CA takes its defaults
    options = answer.nodeGroupAutoscalingOptions
    answered = {each.name for each, _ in options.ListFields()}
    zeroed = [each.name for each, _ in defaults.ListFields() if each.name not in answered]
    return f"options that CA would read as zero: {', '.join(zeroed)}" if zeroed else ""


def _best_options(call: Call, response: bytes, _: ReplayedFleet) -> str:
    asked = {option.nodeGroupId for option in parse(expander_pb2.BestOptionsRequest, call.request).options}
    answered = [option.nodeGroupId for option in parse(expander_pb2.BestOptionsResponse, response).options]
    if len(answered) > 1:
        return f"{len(answered)} options were answered; expected at most one"
    return "" if set(answered) <= asked else f"{answered} is none of the options"


_CHECKS: Mapping[str, Callable[[Call, bytes, ReplayedFleet], str]] = {
    "NodeGroups": _node_groups,
    "NodeGroupForNode": _node_group_for_node,
    "NodeGroupTargetSize": _target_size,
    "NodeGroupNodes": _nodes,
    "NodeGroupTemplateNodeInfo": _template,
    "GPULabel": _gpu_label,
    "NodeGroupGetOptions": _options,
    BEST_OPTIONS: _best_options,
}
