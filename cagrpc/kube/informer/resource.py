"""What an informer follows, and how its objects are decoded; those that cannot be decoded or accepted are logged once
each, and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cagrpc.errors import CagrpcError
from cagrpc.kube.client.envelopes import Encoding
from cagrpc.kube.client.failures import request_info

_log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_MOST_KNOWN = 10_000
"""More are neither logged nor counted one by one, because users can create any number of invalid objects."""
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A resource to follow. `decode` converts the protobuf bytes of an object, or its JSON as a dict, to what the sink
    takes. It raises InvalidInput to leave the object out; other errors affect only that object too."""

    path: str
    """The path of the collection: `/api/v1/pods`."""
    decode: Callable[[Any], T]
    encoding: Encoding = Encoding.PROTOBUF
    query: Mapping[str, str] = field(default_factory=dict)
    """`fieldSelector`, `labelSelector`."""
    optional: bool = False
    """Whether the cluster may lack the kind: it then has no objects, and discovery is retried every minute."""

    @property
    def name(self) -> str:
        """Return its name as in RBAC: `pods`, `deployments.apps`."""
        return request_info("GET", self.path, {}).resource


class UnreadableObjects(Generic[K]):
    """A set of such objects, by key. For one thread, except `len`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._now: set[K] = set()
        self._logged: set[K] = set()

    def __len__(self) -> int:
        return len(self._now)

    def add(self, key: K, error: Exception) -> None:
        """Add an object, and log its error once."""
        if len(self._now) < _MOST_KNOWN:
            self._now.add(key)
        if key in self._logged:
            return
        if len(self._logged) >= _MOST_KNOWN:
            self._logged = set(self._now)
        if len(self._logged) < _MOST_KNOWN:
            self._logged.add(key)
            reason = str(error) if isinstance(error, CagrpcError) else f"{type(error).__name__}: {error}"
            mistake = None if isinstance(error, CagrpcError) else error  # a defect of cagrpc: log its traceback
            _log.warning("%s: %s is left out: %s", self._kind, key, reason[:_LONGEST_REASON], exc_info=mistake)

    def discard(self, key: K) -> None:
        """Remove an object that is readable again, or deleted."""
        self._now.discard(key)

    def only(self, keys: Collection[K]) -> None:
        """Remove all objects but these."""
        self._now.intersection_update(keys)
