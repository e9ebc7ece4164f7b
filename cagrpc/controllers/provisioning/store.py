"""The store of requests, PodTemplates, ProvisioningClasses and PriorityClasses, as informers report them. Nothing is
decided or written here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeVar

from cagrpc.api.encoding.json_documents import (
    LARGEST,
    Problems,
    epoch_seconds,
    mapping,
    members,
    object_key,
    strings,
    whole,
)
from cagrpc.api.provisioning import objects as wire
from cagrpc.cluster.view.model import PRIORITY_CLASSES
from cagrpc.cluster.view.objects import Named
from cagrpc.cluster.view.sinks import Followed, Values
from cagrpc.cluster.view.workloads import Priorities, priority_class
from cagrpc.controllers.provisioning.model import (
    OURS,
    ConditionType,
    ProvisioningRequest,
    RequestedPods,
    Service,
)
from cagrpc.controllers.settings import ClassBehaviour
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.envelopes import Encoding
from cagrpc.kube.informer.informers import InformerStore
from cagrpc.kube.informer.resource import Resource
from solver.model import PodSpec

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Template:
    """A PodTemplate, as planning sees the pods made from it."""

    pod: wire.TemplatePod
    spec: PodSpec
    """Without what its volumes and claims come to; with namespace and all labels, which constraints between pods select
    by."""
    priority: int = 0


class _Requests(Values[ProvisioningRequest]):
    """Requests, each as observed or as written by us, whichever is newer."""

    def __init__(self, changed: Callable[[str, object, object], None]) -> None:
        super().__init__(changed)
        self._superseded: defaultdict[str, set[str]] = defaultdict(set)
        """By UID, the resource versions before our latest write, until the watch has come to it. They are lost with the
        process, at no cost: a new one lists everything first."""

    def put(self, named: Named[ProvisioningRequest]) -> None:
        if named.value.resource_version not in self._superseded.get(named.value.uid, ()):
            self._superseded.pop(named.value.uid, None)
            super().put(named)

    def drop(self, key: str) -> None:
        if key in self.of:
            self._superseded.pop(self.of[key].uid, None)
        super().drop(key)

    def wrote(self, before: str, request: ProvisioningRequest) -> None:
        known = self.of.get(request.key)
        if known is None or (known.uid, known.resource_version) != (request.uid, before):
            return  # the watch has come further
        self._superseded[request.uid].add(before)
        super().put(Named(request.key, request))


class RequestStore(InformerStore):
    """The objects, kept up to date by informers from `start` to `stop`. Thread-safe."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._lock = Lock()
        self._requests = _Requests(self._changed)
        self._templates: Values[wire.TemplatePod | str] = Values(self._template_changed)
        self._classes: Values[Service] = Values()
        self._priorities = Priorities(self._template_changed)
        self._read: dict[str, Template] = {}
        """Templates resolved since one of them changed: many requests refer to the same one."""
        self._in_order: tuple[ProvisioningRequest, ...] | None = ()
        self._expected: frozenset[wire.TemplatePod] | None = frozenset()
        self._kept: frozenset[wire.TemplatePod] = frozenset()
        self.followed: tuple[Followed[Any], ...] = (
            Followed(Resource(wire.REQUESTS, read_request, Encoding.JSON, optional=True), self._requests, self._lock),
            Followed(Resource(wire.POD_TEMPLATES, _template, Encoding.JSON), self._templates, self._lock),
            Followed(Resource(PRIORITY_CLASSES, priority_class), self._priorities, self._lock),
            Followed(
                Resource(wire.CLASSES, _provisioning_class, Encoding.JSON, optional=True), self._classes, self._lock
            ),
        )
        """The resources to watch; a cluster may not serve optional ones."""
        self.informers = tuple(
            # without the right to list ProvisioningClasses we do without them
            each.informer(client, needed=each.resource.path != wire.CLASSES)
            for each in self.followed
        )

    def requests(self) -> tuple[ProvisioningRequest, ...]:
        """Return all requests, oldest first."""
        with self._lock:
            if self._in_order is None:
                found = self._requests.of.values()
                self._in_order = tuple(sorted(found, key=lambda each: (each.created_at_seconds, each.key)))
            return self._in_order

    def wrote(self, before: str, request: ProvisioningRequest) -> None:
        """Take in a write of ours; `before` is the resource version that it replaced."""
        with self._lock:
            self._requests.wrote(before, request)

    def template(self, namespace: str, name: str) -> Template | str:
        """Return the template, or why there is none, in a sentence."""
        key = f"{namespace}/{name}"
        with self._lock:
            if key in self._read:
                return self._read[key]
            found = self._templates.of.get(key)
            if found is None:
                return f"there is no PodTemplate {key}"
            if isinstance(found, str):
                return f"PodTemplate {key} is invalid: {found}"
            priority = self._priorities.of_template(found.priority_class)
            if priority is None:
                return f"PodTemplate {key}: there is no PriorityClass {found.priority_class}"
            spec = replace(found.spec, namespace=found.namespace, labels=found.labels)
            self._read[key] = Template(found, spec, priority)
            return self._read[key]

    def service(self, class_name: str) -> Service | None:
        """Return the service of the ProvisioningClass of that name; None where there is none."""
        with self._lock:
            return self._classes.of.get(class_name)

    def keep(self, templates: frozenset[wire.TemplatePod]) -> None:
        """Have these be `expected` too, whatever becomes of their objects: capacity is reserved for their pods."""
        with self._lock:
            if templates != self._kept:
                self._kept, self._expected = templates, None

    def expected(self) -> frozenset[wire.TemplatePod]:
        """Return all templates that requests refer to, except failed ones, for `ClusterView.expect`. The same object
        until one of them changes."""
        with self._lock:
            if self._expected is None:
                asked = {
                    f"{request.namespace}/{pods.template}"
                    for request in self._requests.of.values()
                    if not request.holds(ConditionType.FAILED)
                    for pods in request.pod_sets
                }
                found = (self._templates.of.get(name) for name in asked)
                self._expected = self._kept | {each for each in found if isinstance(each, wire.TemplatePod)}
            return self._expected

    def _changed(self, _key: str, _before: object, _after: object) -> None:
        self._in_order = self._expected = None

    def _template_changed(self, _key: str, _before: object, _after: object) -> None:
        self._expected = None
        self._read.clear()


def read_request(document: dict[str, Any]) -> Named[ProvisioningRequest]:
    """Return the request. Invalid fields raise nothing: they are in its `problems`."""
    problems: Problems = []
    metadata = mapping(document, "metadata", "", problems)
    spec = mapping(document, "spec", "", problems)
    pod_sets = wire.pod_sets(spec, problems)
    parameters = strings(spec, "parameters", "spec", problems)
    status = mapping(document, "status")  # invalid fields there are not the requester's mistake
    conditions = members(status, "conditions", "status", [])
    found = ProvisioningRequest(
        uid=str(metadata.get("uid") or ""),
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata.get("name") or ""),
        class_name=str(spec.get("provisioningClassName") or ""),
        pod_sets=tuple(RequestedPods(name, count) for name, count in pod_sets),
        parameters=parameters,
        created_at_seconds=float(epoch_seconds(metadata.get("creationTimestamp"))),
        resource_version=str(metadata.get("resourceVersion") or ""),
        generation=whole(metadata, "generation", "metadata", [], 1, LARGEST, default=1),
        conditions={each.type: each for each in wire.conditions(status)},
        others=tuple(each for each, _ in conditions if str(each.get("type")) not in OURS),
        details=strings(status, "provisioningClassDetails", "status", []),
        deleting=bool(metadata.get("deletionTimestamp")),
        problems=tuple(problems),
    )
    return Named(found.key, found)


def _template(document: dict[str, Any]) -> Named[wire.TemplatePod | str]:
    name = object_key(document)
    try:
        return Named(name, wire.template_pod(document))
    except InvalidInput as error:
        return Named(name, str(error))


def _provisioning_class(document: dict[str, Any]) -> Named[Service]:
    behaviour, parameters = wire.provisioning_class(document)
    atomic = ClassBehaviour(behaviour) is ClassBehaviour.ATOMIC
    # It is as the proposal's class of that behaviour is: checking reserves nothing.
    return Named(object_key(document), Service(ClassBehaviour(behaviour), atomic, parameters))
