"""A client of one externalgrpc provider: its calls with their timeouts, and what its errors mean. One call at a time,
as some providers keep counters without locks; whoever uses it sees to that, as the fleet does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from cagrpc import errors
from cagrpc.api.encoding.certificates import Lifetime, authority_lifetime, chain_lifetime, check_authority, check_pair
from cagrpc.api.encoding.messages import parse
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.backends.externalgrpc.orders import SeenGroup, SeenInstance, refusal_kind
from cagrpc.backends.externalgrpc.plugin import ClientTls, ProviderAccess
from cagrpc.errors import ErrorKind, reason_of
from cagrpc.fleet.model import InstanceError, InstanceState
from cagrpc.runtime.clock import EpochClock, epoch
from cagrpc.runtime.log_once import LogOnce

_log = logging.getLogger(__name__)

SERVICE = "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider"
_DELETING = "deleting-machine-"
_PLACEHOLDERS = ("i-placeholder-", "pending-machine-", "failed-machine-", _DELETING)
"""What ids have in them that become others: those of CA's providers for AWS (aws/auto_scaling_groups.go) and Cluster
API (clusterapi/clusterapi_unstructured.go)."""
_UNSURE = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,  # a stream that broke
    )
)
_CONFIGURATION = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
)
_LARGEST_ANSWER_BYTES = 128 * 1024 * 1024
_LONGEST_WORDS = 500
_OUT_OF_RESOURCES = 1  # cloudprovider.InstanceErrorClass
_HOUR_SECONDS = 3600
_STATES = {
    pb.InstanceStatus.instanceCreating: InstanceState.CREATING,
    pb.InstanceStatus.instanceDeleting: InstanceState.DELETING,
}

A = TypeVar("A", bound=Message)
Call = Callable[[str, Message, type[Message], float], Message]
"""Makes a call: method, request, type of the answer, timeout in seconds. Raises grpc.RpcError."""


class RefusedCall(Exception):  # noqa: N818 - what the provider did
    """The provider answered with an error, which does not say that it has done nothing."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(f"{code.name}: {words}")
        self.kind = ErrorKind.CONFIGURATION if code in _CONFIGURATION else refusal_kind(words)
        if self.kind is ErrorKind.OTHER and code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self.kind = ErrorKind.CAPACITY


class Channel:
    """The connection. Certificates are read again for a call once their files have changed; until what they have fits
    together, as halfway through a rotation, the connection stays as it is. What expires soon is logged."""

    def __init__(self, address: str, tls: ClientTls | None, clock: EpochClock = epoch) -> None:
        self._address = address
        self._tls = tls
        self._clock = clock
        self._lifetimes: tuple[Lifetime, ...] = ()
        self._files: Mapping[Path, bytes] = {}
        self._channel: grpc.Channel | None = None
        self._reported = LogOnce()

    def __call__(self, method: str, request: Message, answer: type[Message], timeout_seconds: float) -> Message:
        call = self._open().unary_unary(
            f"/{SERVICE}/{method}", request_serializer=type(request).SerializeToString, response_deserializer=bytes
        )
        return parse(answer, call(request, timeout=timeout_seconds))

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _open(self) -> grpc.Channel:
        """Raises Unavailable where there is no connection yet, and files that cannot be used."""
        try:
            files = {} if self._tls is None else self._read(self._tls)
        except errors.InvalidInput as problem:
            if self._channel is None:
                raise errors.Unavailable(str(problem)) from problem
            if self._reported.is_new(str(problem)):
                _log.warning("provider %s: %s; the certificates in use stay", self._address, problem)
            return self._channel
        if self._channel is None or files != self._files:
            self.close()
            self._channel, self._files = self._connected(files), files
            self._lifetimes = () if self._tls is None else _lifetimes(self._tls, files)
            self._reported.all_over()
        now = datetime.fromtimestamp(self._clock(), UTC)
        for each in self._lifetimes:
            if (warning := each.warning(now)) and self._reported.is_new(warning, about=each.path):
                _log.warning("provider %s: %s", self._address, warning)
        return self._channel

    def _read(self, tls: ClientTls) -> Mapping[Path, bytes]:
        """Return what the files have, checked where it is new. Raises InvalidInput, which names the file."""
        files = {path: _content(path) for path in (tls.ca, tls.key, tls.certificate)}
        if files != self._files:
            now = datetime.fromtimestamp(self._clock(), UTC)
            check_pair(tls.certificate, files[tls.certificate], tls.key, files[tls.key], now=now)
            check_authority(tls.ca, files[tls.ca], now=now)
        return files

    def _connected(self, files: Mapping[Path, bytes]) -> grpc.Channel:
        options = [
            ("grpc.max_receive_message_length", _LARGEST_ANSWER_BYTES),
            ("grpc.max_reconnect_backoff_ms", 5000),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if self._tls is None:
            return grpc.insecure_channel(self._address, options)
        tls = self._tls
        credentials = grpc.ssl_channel_credentials(files[tls.ca], files[tls.key], files[tls.certificate])
        return grpc.secure_channel(self._address, credentials, options)


def _lifetimes(tls: ClientTls, files: Mapping[Path, bytes]) -> tuple[Lifetime, ...]:
    return chain_lifetime(tls.certificate, files[tls.certificate]), authority_lifetime(tls.ca, files[tls.ca])


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise errors.InvalidInput(f"{path}: {reason_of(error)}") from error


class ProviderClient:
    """The calls that are used of the fifteen. Those that only read raise Unavailable whatever goes wrong; `increase`
    and `delete` raise it where it is not known what was done, and RefusedCall for an error that was answered."""

    def __init__(self, access: ProviderAccess, call: Call) -> None:
        self.access = access
        self._call = call
        self._has_prices = True

    def groups(self) -> Sequence[pb.NodeGroup]:
        """Return the node groups, after the provider was told to renew what it knows."""
        self._read("Refresh", pb.RefreshRequest(), pb.RefreshResponse)
        return self._read("NodeGroups", pb.NodeGroupsRequest(), pb.NodeGroupsResponse).nodeGroups

    def refresh(self) -> None:
        """Let the provider renew what it knows."""
        self._read("Refresh", pb.RefreshRequest(), pb.RefreshResponse)

    def look(self, group: str) -> SeenGroup:
        """Return target and instances of a group."""
        target = self._read(
            "NodeGroupTargetSize", pb.NodeGroupTargetSizeRequest(id=group), pb.NodeGroupTargetSizeResponse
        ).targetSize
        answer = self._read("NodeGroupNodes", pb.NodeGroupNodesRequest(id=group), pb.NodeGroupNodesResponse)
        instances = {each.id: self._seen(each) for each in answer.instances if each.id}
        return SeenGroup(target, tuple(instances.values()))

    def template(self, group: str) -> bytes:
        """Return the serialised v1.Node that new nodes are like; empty where the provider has none."""
        request = pb.NodeGroupTemplateNodeInfoRequest(id=group)
        try:
            answer = self._made("NodeGroupTemplateNodeInfo", request, pb.NodeGroupTemplateNodeInfoResponse)
        except RefusedCall:
            return b""
        return answer.nodeBytes or answer.nodeInfo

    def price(self, template: bytes, now: float) -> float | None:
        """Return US dollars per hour of a node that is like this one; None where the provider has no prices."""
        if not self._has_prices:
            return None
        try:
            node = parse(kubernetes_pb2.Node, template)
        except errors.InvalidInput:
            return None
        request = pb.PricingNodePriceRequest(
            node=pb.ExternalGrpcNode(name=node.metadata.name, labels=dict(node.metadata.labels))
        )
        start = int(now)
        request.startTimestamp.seconds = request.startTime.seconds = start
        request.endTimestamp.seconds = request.endTime.seconds = start + _HOUR_SECONDS
        try:
            price = self._made("PricingNodePrice", request, pb.PricingNodePriceResponse).price
        except RefusedCall as error:
            self._has_prices = not str(error).startswith(grpc.StatusCode.UNIMPLEMENTED.name)
            return None
        return price if price > 0 else None

    def increase(self, group: str, delta: int) -> None:
        """Raise the target. Not safe to repeat."""
        request = pb.NodeGroupIncreaseSizeRequest(id=group, delta=delta)
        self._made("NodeGroupIncreaseSize", request, pb.NodeGroupIncreaseSizeResponse, orders=True)

    def delete(self, group: str, nodes: Sequence[pb.ExternalGrpcNode]) -> None:
        """Delete instances and lower the target by them."""
        request = pb.NodeGroupDeleteNodesRequest(id=group, nodes=nodes)
        self._made("NodeGroupDeleteNodes", request, pb.NodeGroupDeleteNodesResponse, orders=True)

    def _seen(self, each: pb.Instance) -> SeenInstance:
        info = each.status.errorInfo
        error = None
        if info.errorCode:
            kind = refusal_kind(f"{info.errorCode} {info.errorMessage}")
            if info.instanceErrorClass == _OUT_OF_RESOURCES and kind is not ErrorKind.QUOTA:
                kind = ErrorKind.CAPACITY
            message = info.errorMessage[:_LONGEST_WORDS] or info.errorCode
            error = InstanceError(info.errorCode, message, kind)
        state = _STATES.get(each.status.instanceState, InstanceState.RUNNING)  # unspecified says nothing: Nodes decide
        if any(mark in each.id for mark in _PLACEHOLDERS):
            state = InstanceState.DELETING if _DELETING in each.id else InstanceState.CREATING
            return SeenInstance(each.id, state, error, placeholder=True)
        prefix = self.access.node_id_prefix
        known = each.id if each.id.startswith(prefix) else prefix + each.id
        return SeenInstance(known, state, error)

    def _read(self, method: str, request: Message, answer: type[A]) -> A:
        try:
            return self._made(method, request, answer)
        except RefusedCall as error:
            raise errors.Unavailable(f"provider {self.access.called}: {method}: {error}") from error

    def _made(self, method: str, request: Message, answer: type[A], *, orders: bool = False) -> A:
        seconds = self.access.order_timeout_seconds if orders else self.access.timeout_seconds
        try:
            found = self._call(method, request, answer, seconds)
        except grpc.RpcError as error:
            code, words = error.code(), (error.details() or "")[:_LONGEST_WORDS]
            if code in _UNSURE:
                raise errors.Unavailable(f"provider {self.access.called}: {method}: {code.name}: {words}") from error
            raise RefusedCall(code, words) from error
        except errors.InvalidInput as error:
            raise errors.Unavailable(f"provider {self.access.called}: {method}: {error}") from error
        assert isinstance(found, answer)
        return found
