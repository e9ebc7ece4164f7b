"""What an informer follows, and how its objects are decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cagrpc.kube.client.envelopes import Encoding
from cagrpc.kube.client.failures import request_info

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A resource to follow. `decode` converts the protobuf bytes of an object, or its JSON as a dict, to what the sink
    takes. It raises InvalidInput to leave the object out; other errors affect only that object too."""

    path: str
    """Of the collection: `/api/v1/pods`."""
    decode: Callable[[Any], T]
    encoding: Encoding = Encoding.PROTOBUF
    query: Mapping[str, str] = field(default_factory=dict)
    """`fieldSelector`, `labelSelector`."""
    optional: bool = False
    """Whether the cluster may lack the kind: it then has no objects, and discovery is retried every minute."""

    @property
    def name(self) -> str:
        """As in RBAC: `pods`, `deployments.apps`."""
        return request_info("GET", self.path, {}).resource
