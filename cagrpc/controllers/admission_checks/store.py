"""The informer store of the admission check controller: Kueue's objects, and the requests and PodTemplates that were
created for its Workloads. Nothing is decided or written here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

from cagrpc.api import kueue as wire
from cagrpc.api.encoding.json_documents import object_key
from cagrpc.api.kueue import Check, Flavor, KueueWorkload, RequestConfig
from cagrpc.api.provisioning.objects import POD_TEMPLATES, REQUESTS
from cagrpc.cluster.view.objects import Named
from cagrpc.cluster.view.sinks import Followed, Values
from cagrpc.controllers.admission_checks.model import (
    OWNED,
    WORKLOAD_UID,
    OwnRequest,
    OwnTemplate,
    own_request,
    own_template,
)
from cagrpc.controllers.admission_checks.reconcile import KUEUES_NAME
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding
from cagrpc.kube.informer.informers import InformerStore
from cagrpc.kube.informer.resource import Resource

V = TypeVar("V")

WORKLOAD, CHECK = "workload", "check"
_OURS = {"labelSelector": f"{OWNED}=true"}


@dataclass(frozen=True, slots=True)
class ChecksObservation:
    """One Workload, with all that its reconciliation depends on."""

    workload: KueueWorkload
    checks: Mapping[str, Check]
    """All of the cluster, by name."""
    configs: Mapping[str, RequestConfig | str]
    """All of the cluster, by name; or why one is invalid."""
    flavors: Mapping[str, Flavor]
    requests: tuple[OwnRequest, ...]
    """Of this Workload, like the templates."""
    templates: tuple[OwnTemplate, ...]


class CheckStore(InformerStore):
    """The objects, kept up to date by informers from `start` to `stop`. Thread-safe."""

    def __init__(
        self,
        client: Client,
        version: str,
        changed: Callable[[tuple[str, str]], None],
    ) -> None:
        """`version` is that of Kueue's API. `changed` gets what is to be reconciled, a `WORKLOAD` by its key or a
        `CHECK` by its name, under the lock: it may call nothing here."""
        self.version = version
        self._lock = Lock()
        self._changed = changed
        self._keys: dict[str, str] = {}
        self._of_kueue: set[str] = set()
        """Workloads to which Kueue's own controller has been observed to write."""
        self._requests_of: _Index[OwnRequest] = _Index(
            lambda each: _Made(each.request.namespace, each.purpose.workload_uid, each.request.name)
        )
        self._templates_of: _Index[OwnTemplate] = _Index(
            lambda each: _Made(each.namespace, each.annotations.get(WORKLOAD_UID, ""), each.name)
        )
        self._workloads: Values[KueueWorkload] = Values(self._on_workload)
        self._checks: Values[Check] = Values(self._on_check)
        self._configs: Values[RequestConfig | str] = Values(self._everything)
        self._flavors: Values[Flavor] = Values(self._everything)
        self._requests: Values[OwnRequest] = Values(self._on_request)
        self._templates: Values[OwnTemplate] = Values(self._templates_of.changed)
        self.followed: tuple[Followed[Any], ...] = (
            self._follow(wire.collection(version, "workloads"), wire.workload, self._workloads),
            self._follow(wire.collection(version, "admissionchecks"), wire.check, self._checks),
            self._follow(wire.collection(version, "provisioningrequestconfigs"), _config, self._configs),
            self._follow(wire.collection(version, "resourceflavors"), wire.flavor, self._flavors),
            self._follow(REQUESTS, own_request, self._requests, _OURS),
            self._follow(POD_TEMPLATES, own_template, self._templates, _OURS),
        )
        self.informers = tuple(each.informer(client) for each in self.followed)

    def observe(self, key: str) -> ChecksObservation | None:
        """Return a Workload with its context; None where there is no such Workload."""
        with self._lock:
            found = self._workloads.of.get(key)
            if found is None:
                return None
            return ChecksObservation(
                found,
                dict(self._checks.of),
                dict(self._configs.of),
                dict(self._flavors.of),
                self._requests_of.of(found),
                self._templates_of.of(found),
            )

    def observe_check(self, name: str) -> tuple[Check, Mapping[str, RequestConfig | str], Mapping[str, Flavor]] | None:
        """Return an AdmissionCheck with all configurations and all ResourceFlavors, by name; None where there is no
        such check."""
        with self._lock:
            found = self._checks.of.get(name)
            return None if found is None else (found, dict(self._configs.of), dict(self._flavors.of))

    def all_changed(self) -> None:
        """Have all checks and Workloads reconciled."""
        with self._lock:
            self._everything()

    def kueue_writes(self) -> bool:
        """Return whether Kueue's own controller has been observed to write to a Workload."""
        with self._lock:
            return bool(self._of_kueue)

    def requests(self) -> tuple[OwnRequest, ...]:
        """Return the requests of all Workloads."""
        with self._lock:
            return tuple(self._requests.of.values())

    def _follow(
        self,
        path: str,
        read: Callable[[dict[str, Any]], V],
        table: Values[V],
        query: Mapping[str, str] | None = None,
    ) -> Followed[Named[V]]:
        resource = Resource(
            path,
            lambda document: Named(object_key(document), read(document)),
            Encoding.JSON,
            query or {},
            optional=path != POD_TEMPLATES,
        )
        return Followed(resource, table, self._lock)

    def _on_workload(self, _key: str, before: KueueWorkload | None, after: KueueWorkload | None) -> None:
        if before is not None and (after is None or after.uid != before.uid):
            self._keys.pop(before.uid, None)
        if before is not None:
            self._of_kueue.discard(before.key)
        if after is not None:
            if KUEUES_NAME in after.writers:
                self._of_kueue.add(after.key)
            self._keys[after.uid] = after.key
            self._changed((WORKLOAD, after.key))

    def _on_check(self, name: str, _before: Check | None, _after: Check | None) -> None:
        self._changed((CHECK, name))
        for workload in self._workloads.of.values():
            if any(str(each.get("name")) == name for each in workload.checks):
                self._changed((WORKLOAD, workload.key))

    def _on_request(self, key: str, before: OwnRequest | None, after: OwnRequest | None) -> None:
        self._requests_of.changed(key, before, after)
        for each in (before, after):
            workload = self._keys.get(each.purpose.workload_uid) if each is not None else None
            if workload is not None:
                self._changed((WORKLOAD, workload))

    def _everything(self, *_: object) -> None:
        for name in self._checks.of:
            self._changed((CHECK, name))
        for key in self._workloads.of:
            self._changed((WORKLOAD, key))


class _Made(NamedTuple):
    """An object that was made for a Workload of its namespace."""

    namespace: str
    workload_uid: str
    name: str


class _Index(Generic[V]):
    """Values by the Workload that they were made for: anybody may name any Workload in objects of its namespace."""

    def __init__(self, made: Callable[[V], _Made]) -> None:
        self._made = made
        self._of: defaultdict[tuple[str, str], dict[str, V]] = defaultdict(dict)

    def of(self, workload: KueueWorkload) -> tuple[V, ...]:
        return tuple(self._of.get((workload.namespace, workload.uid), {}).values())

    def changed(self, _key: str, before: V | None, after: V | None) -> None:
        if before is not None:
            namespace, uid, name = self._made(before)
            found = self._of[namespace, uid]
            found.pop(name, None)
            if not found:
                del self._of[namespace, uid]
        if after is not None:
            namespace, uid, name = self._made(after)
            self._of[namespace, uid][name] = after


def _config(document: dict[str, Any]) -> RequestConfig | str:
    try:
        return wire.request_config(document)
    except InvalidInput as error:
        return str(error)
