"""Conversion of objects in JSON to the messages that the API server's protobuf would be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from cagrpc.api.gen import kubernetes_pb2


def pod_bytes(document: Mapping[str, Any]) -> bytes:
    """Return a serialised v1.Pod; fields that kubernetes.proto does not have are left out."""
    return filled(kubernetes_pb2.Pod(), document).SerializeToString()


def filled(message: Any, document: Mapping[str, Any]) -> Message:
    """Return `message` filled from the document; an empty part is present, as in JSON."""
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        value = document.get(field.name)
        if value is None:
            continue
        if field.message_type is None:
            _set(message, field.name, value)
        elif field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), value)
        elif isinstance(value, list):
            for item in value:
                filled(getattr(message, field.name).add(), item)
        else:
            filled(getattr(message, field.name), value)
    return message  # type: ignore[no-any-return]


def _set(message: Any, name: str, value: Any) -> None:
    if isinstance(value, list):
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)


def _fill_map(held: Any, value: Mapping[str, Any]) -> None:
    for key, each in value.items():
        if hasattr(held, "GetEntryClass") and held.GetEntryClass().DESCRIPTOR.fields_by_name["value"].message_type:
            held[key].string = each  # a quantity
        else:
            held[key] = each
