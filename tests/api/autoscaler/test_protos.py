"""Our descriptors against what was really on the wire."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-not-found]

from cagrpc.api.gen import expander_pb2, externalgrpc_pb2
from tests.support.recordings import CONVERSATIONS, conversation

_METHODS = {
    **externalgrpc_pb2.DESCRIPTOR.services_by_name["CloudProvider"].methods_by_name,
    **expander_pb2.DESCRIPTOR.services_by_name["Expander"].methods_by_name,
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_every_recorded_message_is_decoded_completely(name: str) -> None:
    rpcs = conversation(name)
    assert rpcs
    for rpc in rpcs:
        method = _METHODS[rpc.method]
        _assert_complete(method.input_type._concrete_class, rpc.request)
        if rpc.code == "OK":
            _assert_complete(method.output_type._concrete_class, rpc.response)


def _assert_complete(message_type: type[Message], data: bytes) -> None:
    message = message_type.FromString(data)
    assert not len(UnknownFieldSet(message)), message_type.DESCRIPTOR.full_name
    # Go writes maps in random order, so bytes are compared after a round trip, and lengths against the original.
    again = message.SerializeToString(deterministic=True)
    assert len(again) == len(data)
    assert message_type.FromString(again) == message


def test_all_fifteen_calls_and_the_expander_are_described() -> None:
    assert len(externalgrpc_pb2.DESCRIPTOR.services_by_name["CloudProvider"].methods) == 15
    assert [m.name for m in expander_pb2.DESCRIPTOR.services_by_name["Expander"].methods] == ["BestOptions"]
