"""What the cluster-autoscaler asks of a provider and an expander, in a few lines: pods that no node has room for, one
option for each node group that they fit, and the size that the answer's group is to have. By cpu alone, and without
pods that ask for more than resources."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import grpc

from cagrpc.api.core.pods import PodDecoder
from cagrpc.api.encoding.messages import parse
from cagrpc.api.gen import expander_pb2 as pb
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.envelopes import Encoding, page
from cagrpc.replay.recording import EXPANDER
from solver.model import PodSpec
from tests.support.controlplane.live import Live
from tests.support.serving import ProviderClient

_PODS, _NODES = "/api/v1/pods", "/api/v1/nodes"
_MOST_NODES = 20
_ASKS_FOR_MORE = ("nodeSelector", "affinity", "topologySpreadConstraints", "schedulingGates", "resourceClaims")


class Autoscaler:
    """Of a `cagrpc serve` that is up. `step` is one loop; a group that cannot grow is passed over."""

    def __init__(self, live: Live, cpus: dict[str, int]) -> None:
        """`cpus`: node group -> whole cpus of one of its nodes."""
        self._client = live.cluster.plane.client()
        serving = live.serving
        self._provider = ProviderClient(serving.endpoints["provider"], serving.certificates)
        authority = (serving.certificates / "ca.crt").read_bytes()
        credentials = grpc.ssl_channel_credentials(authority)
        self._channel = grpc.secure_channel(serving.endpoints["expander"], credentials)
        self._cpus = {name: cpus * 1000 for name, cpus in cpus.items()}
        self.chosen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._provider.__exit__()
        self._channel.close()
        self._client.close()

    def step(self) -> None:
        options = self._options(self._unschedulable())
        if not options:
            return
        method = next(f"/{EXPANDER.full_name}/{each.name}" for each in EXPANDER.methods)
        best = self._channel.unary_unary(method, None, pb.BestOptionsResponse.FromString)
        answer = best(pb.BestOptionsRequest(options=options).SerializeToString(), timeout=5)
        for option in answer.options:
            asked = next(each for each in options if each.nodeGroupId == option.nodeGroupId)
            try:
                self._provider.increase(asked.nodeGroupId, asked.nodeCount)
                self.chosen += 1
            except grpc.RpcError:
                continue

    def _unschedulable(self) -> list[tuple[bytes, PodSpec]]:
        """Pending pods for which there is no room, on nodes that stand or come; and what they ask for."""
        decoder, used, waiting = PodDecoder(), dict[str, int](), []
        for data in self._listed(_PODS):
            pod = parse(kubernetes_pb2.Pod, data)
            try:
                spec = decoder.decode(data).spec
            except InvalidInput:
                continue
            if pod.spec.nodeName:
                used[pod.spec.nodeName] = used.get(pod.spec.nodeName, 0) + dict(spec.requests).get("cpu", 0)
            elif _plain(pod):
                waiting.append((data, spec))
        free = [*self._upcoming()]
        for data in self._listed(_NODES):
            node = parse(kubernetes_pb2.Node, data)
            group = node.metadata.labels.get("pool", "")
            free.append(self._cpus.get(group, 0) - used.get(node.metadata.name, 0))
        return [each for each in waiting if not _taken(free, dict(each[1].requests).get("cpu", 0))]

    def _upcoming(self) -> Iterable[int]:
        there: dict[str, int] = {}
        for data in self._listed(_NODES):
            group = parse(kubernetes_pb2.Node, data).metadata.labels.get("pool", "")
            there[group] = there.get(group, 0) + 1
        for group, cpu in self._cpus.items():
            yield from [cpu] * max(0, self._provider.target(group) - there.get(group, 0))

    def _options(self, pods: list[tuple[bytes, PodSpec]]) -> list[Any]:
        options = []
        for group, cpu in self._cpus.items():
            nodes: list[int] = []
            fitting = []
            for data, spec in pods:
                wanted = dict(spec.requests).get("cpu", 0)
                if wanted > cpu or set(dict(spec.requests)) - {"cpu", "memory"}:
                    continue
                if not _taken(nodes, wanted):
                    if len(nodes) == _MOST_NODES:
                        continue
                    nodes.append(cpu - wanted)
                fitting.append(data)
            if fitting:
                options.append(pb.Option(nodeGroupId=group, nodeCount=len(nodes), podBytes=fitting))
        return options

    def _listed(self, path: str) -> list[bytes]:
        found = page(Encoding.PROTOBUF, self._client.read(path, {}, Encoding.PROTOBUF))
        return list(found.items)


def _plain(pod: Any) -> bool:
    spec, ours = pod.spec, pod.spec.schedulerName in ("", "default-scheduler")
    owners = {owner.kind for owner in pod.metadata.ownerReferences}
    asks = {field.name for field, _ in spec.ListFields()} & set(_ASKS_FOR_MORE)
    return ours and not asks and "DaemonSet" not in owners and not pod.metadata.HasField("deletionTimestamp")


def _taken(free: list[int], wanted: int) -> bool:
    """First fit."""
    for index, left in enumerate(free):
        if left >= wanted:
            free[index] = left - wanted
            return True
    return False
