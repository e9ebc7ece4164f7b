"""Tables of values, and how they are fed: a sink between the informer of a resource and a table. The cluster's tables
are in `model`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from cagrpc.cluster.view.objects import Keyed, Named
from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.kube.informer.resource import Resource, UnreadableObjects

if TYPE_CHECKING:  # files need no client
    from cagrpc.kube.client.client import Client
    from cagrpc.kube.informer.informers import Informer

K = TypeVar("K", bound=Keyed)
V = TypeVar("V")
K_contra = TypeVar("K_contra", bound=Keyed, contravariant=True)


class Table(Protocol[K_contra]):
    def keys(self) -> Iterable[str]: ...

    def put(self, obj: K_contra, /) -> None: ...

    def drop(self, key: str, /) -> None: ...


class Values(Generic[V]):
    """A table of named values."""

    def __init__(self, changed: Callable[[str, V | None, V | None], object] = lambda *_: None) -> None:
        """`changed` is called with each change: the key, the value before, and after."""
        self.of: dict[str, V] = {}
        self._changed = changed

    def keys(self) -> Iterable[str]:
        return list(self.of)

    def put(self, named: Named[V]) -> None:
        before = self.of.get(named.key)
        self.of[named.key] = named.value
        if before != named.value:
            self._changed(named.key, before, named.value)

    def drop(self, key: str) -> None:
        before = self.of.pop(key, None)
        if before is not None:
            self._changed(key, before, None)


class Followed(Generic[K]):
    """A resource, and the table that an informer of it feeds, under a lock that is held for one object at a time. An
    object that the table rejects is not in it, and affects no other."""

    def __init__(
        self,
        resource: Resource[K],
        table: Table[K],
        lock: Lock,
        key: Callable[[ObjectIdentity], str] = str,
        listed: Callable[[], object] = lambda: None,
    ) -> None:
        """`key` gives the table's key of a deleted object; `listed` is called, under the lock, whenever the table has
        all objects."""
        self.resource = resource
        self._listed = listed
        self._table = table
        self._lock = lock
        self._key = key
        self.left_out: UnreadableObjects[str] = UnreadableObjects(resource.name)

    def informer(self, client: Client, *, needed: bool = True) -> Informer[K]:
        """Return its informer, which feeds the table once it is started."""
        from cagrpc.kube.informer.informers import Informer  # noqa: PLC0415 - files need no client

        return Informer(client, self.resource, self, needed=needed, refused=self.left_out)

    def replaced(self, objects: Iterable[K]) -> None:
        there: set[str] = set()
        left_out: set[str] = set()
        for obj in objects:
            (there if self._put(obj) else left_out).add(obj.key)
        with self._lock:
            for key in set(self._table.keys()) - there:
                self._drop(key)
            self._listed()
        self.left_out.only(left_out)

    def applied(self, obj: K) -> None:
        self._put(obj)

    def deleted(self, of: ObjectIdentity) -> None:
        key = self._key(of)
        self.left_out.discard(key)
        with self._lock:
            self._drop(key)

    def _put(self, obj: K) -> bool:
        """Put the object; return whether the table has it now."""
        with self._lock:
            try:
                self._table.put(obj)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this object's alone
                self.left_out.add(obj.key, error)
                self._drop(obj.key)
                return False
        self.left_out.discard(obj.key)
        return True

    def _drop(self, key: str) -> None:
        try:
            self._table.drop(key)
        except Exception as error:  # noqa: BLE001 - the same
            self.left_out.add(key, error)


def by_uid(of: ObjectIdentity) -> str:
    """Return the key of a pod."""
    return of.uid or str(of)
