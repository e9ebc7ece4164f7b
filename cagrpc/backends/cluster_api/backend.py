"""The Cluster API backend: instances are Machines without a MachineSet, each with an infrastructure machine and a
bootstrap configuration cloned for it.

A Machine is the commit: its clones are created before it, all under one name, so that a repeated order completes what a
crash has left. Clones that no Machine followed are listed once nobody can be about to complete them any more, with an
error, so that the fleet deletes them or rolls their increment back. An instance's id is its token until its Machine has
spec.providerID.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from cagrpc import errors
from cagrpc.api.encoding.json_documents import Document, mapping
from cagrpc.backends.cluster_api.bodies import (
    ClusterIdentity,
    Collection,
    Kinds,
    MachineTemplate,
    Sources,
    clones,
    machine,
    name_of,
)
from cagrpc.backends.cluster_api.objects import OwnObject, OwnObjects, complaint_of, error_of, provider_id, state_of
from cagrpc.backends.cluster_api.plugin import ClusterApiSettings, MachineSource
from cagrpc.backends.plugin import BackendContext, OpenBackend
from cagrpc.cluster.markers import TOKEN
from cagrpc.errors import ErrorKind, InvalidInput
from cagrpc.fleet.backend import BackendInstance, Listing, Order, OrderedInstance, Pace
from cagrpc.fleet.model import InstanceError, InstanceState
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.failures import Forbidden
from cagrpc.kube.client.parallel import in_parallel
from cagrpc.runtime.clock import EpochClock, MonotonicClock, monotonic

_log = logging.getLogger(__name__)

_WORKERS = 8
"""Requests at once of one call."""
_ORPHANED_AFTER_SECONDS = 30.0
"""How long clones without a Machine belong to an order that will be repeated: the fleet does so within seconds."""
_ABSENT_AFTER_SECONDS = 2.0
"""How far a watch may be behind."""
_MOST_KNOWN = 100_000
"""Tokens that are remembered to have had a Machine: one that is gone is not made again."""

_FIRST_LISTS_SECONDS = 5.0
"""How long to wait for them; they may also come later."""


class ClusterApiBackend:
    """`Backend`. Calls come one at a time; `problem` from any thread."""

    pace = Pace(absent_after_seconds=_ABSENT_AFTER_SECONDS)

    def __init__(
        self,
        client: Client,
        kinds: Kinds,
        settings: ClusterApiSettings,
        clock: EpochClock,
        timer: MonotonicClock = monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._timer = timer
        self._sources = Sources(client, kinds)
        self._name = f"Cluster {settings.namespace}/{settings.cluster}"
        self._lock = threading.Lock()
        self._had_machine: OrderedDict[str, str] = OrderedDict()
        """Tokens of instances whose Machine was created, and when."""
        self._without_machine: dict[str, float] = {}
        """Tokens of clones that have no Machine, and since when."""
        core = (kinds.core("Cluster"), kinds.core("Machine"))
        self.objects = OwnObjects(client, settings.cluster, settings.fleet, *core, timer)

    def follow_templates(self) -> None:
        """Follow the clones of every node group. A template that cannot be read is logged; its group's orders are
        refused until it can be."""
        groups_of: dict[MachineSource, list[str]] = {}
        for group_id, source in self._settings.sources.items():
            groups_of.setdefault(source, []).append(group_id)
        for source, group_ids in groups_of.items():
            try:
                self._follow(self._sources.read(source))
            except errors.InvalidInput as error:
                _log.warning("node group %s: orders will be refused: %s", ", ".join(group_ids), error)

    def close(self) -> None:
        """Idempotent."""
        self.objects.stop()

    @property
    def problem(self) -> str | None:
        """Why no Machine can come up though the management cluster answers."""
        if self.objects.problem is not None:
            return None  # it does not answer
        found = self.objects.cluster_document
        if found is None:
            return f"there is no {self._name}"
        metadata, spec = mapping(found, "metadata"), mapping(found, "spec")
        if metadata.get("deletionTimestamp"):
            return f"{self._name} is being deleted"
        if spec.get("paused"):
            return f"{self._name} is paused (spec.paused), so Cluster API makes no Machine"
        return None

    # ---- listing

    def list_instances(self) -> Listing:
        self.objects.verify()
        now = self._clock()
        found: list[tuple[tuple[str, str], BackendInstance]] = []
        orphans: dict[str, float] = {}
        for token, objects in self.objects.by_token().items():
            first = objects[0]
            if first.collection == self.objects.machines:
                self._remember(token, first.created_at)
                found.append(((first.created_at, first.name), _instance(first)))
                continue
            since = orphans[token] = self._without_machine.get(token, self._timer())
            listed = self._orphan(first, objects, self._timer() - since)
            if listed is not None:
                created_at = self._had_machine.get(token) or first.created_at
                found.append(((created_at, first.name), listed))
        self._without_machine = orphans
        found.sort(key=lambda each: each[0])
        return Listing(tuple(instance for _, instance in found), now)

    def _orphan(self, first: OwnObject, objects: Sequence[OwnObject], seconds: float) -> BackendInstance | None:
        """Return what is listed of clones without a Machine."""
        if all(each.is_deleting for each in objects) or (
            first.token in self._had_machine and not self._is_left(seconds)
        ):
            state, error = InstanceState.DELETING, None
        elif not self._is_left(seconds):
            return None  # the order will be repeated
        else:
            what = f"{first.collection.kind} {first.name} has no Machine"
            state, error = InstanceState.CREATING, InstanceError("no-machine", what, ErrorKind.OTHER)
        return BackendInstance(first.token, first.token, first.node_group, state, error)

    def _is_left(self, seconds: float) -> bool:
        return seconds >= _ORPHANED_AFTER_SECONDS

    # ---- ordering

    def order(self, order: Order) -> None:
        self.objects.verify()
        there = self.objects.by_token()
        due = [each for each in order.instances if each.token in order.wanted and not self._is_made(each.token, there)]
        if not due:
            return
        cluster = self._cluster()
        made_from = self._read_sources({each.group.id for each in due})
        refusals = in_parallel(
            "cluster-api",
            lambda each: self._create(each, order.increment_id, cluster, made_from[each.group.id]),
            due,
            _WORKERS,
        )
        _raise_refusals([each for each in refusals if each is not None])

    def _is_made(self, token: str, there: Mapping[str, Sequence[OwnObject]]) -> bool:
        """Return whether there is, or was, a Machine for it."""
        objects = there.get(token, ())
        if objects and objects[0].collection == self.objects.machines:
            self._remember(token, objects[0].created_at)
        return token in self._had_machine

    def _cluster(self) -> ClusterIdentity:
        cluster = self.objects.cluster()
        problem = self.problem
        if cluster is None or problem is not None:
            raise errors.Unavailable(problem or f"there is no {self._name}")
        return cluster

    def _read_sources(self, group_ids: set[str]) -> Mapping[str, MachineTemplate]:
        """Return what the Machines of each group are made from. Raises OrderMisconfigured with the problems of all,
        before anything is created."""
        read: dict[MachineSource, MachineTemplate] = {}
        found: dict[str, MachineTemplate] = {}
        problems: dict[str, str] = {}
        for group_id in sorted(group_ids):
            source = self._settings.sources.get(group_id)
            if source is None:
                problems[group_id] = "has no templates in backend.cluster_api"
                continue
            try:
                if source not in read:
                    read[source] = self._sources.read(source)
                    self._follow(read[source])
            except errors.InvalidInput as error:
                problems[group_id] = str(error)
            else:
                found[group_id] = read[source]
        if problems:
            text = "; ".join(f"node group {group_id}: {problem}" for group_id, problem in problems.items())
            raise errors.OrderMisconfigured(text, tuple(problems))
        return found

    def _follow(self, made_from: MachineTemplate) -> None:
        for each in (made_from.infrastructure, made_from.bootstrap):
            if each is not None:
                self.objects.follow(each.clones)

    def _create(
        self, instance: OrderedInstance, increment: str, cluster: ClusterIdentity, made_from: MachineTemplate
    ) -> tuple[str, errors.OrderRefused] | None:
        """Create the clones, then the Machine; each that exists already is left as it is. Return the node group and the
        refusal, so that all are reported together."""
        source = self._settings.sources[instance.group.id]
        try:
            for clone in clones(instance, increment, cluster, made_from):
                self._ensure(clone.collection, clone.body)
            made = self._ensure(self.objects.machines, machine(instance, increment, cluster, made_from, source))
        except errors.OrderRefused as refusal:
            return instance.group.id, refusal
        self._remember(instance.token, made.created_at)
        return None

    def _ensure(self, collection: Collection, body: Document) -> OwnObject:
        """Create the object, unless it exists; return it. Raises OrderRefused where the API server does not take it."""
        try:
            found = self._client.create(collection.path, body)
        except errors.Conflict as conflict:
            found = self._client.get(f"{collection.path}/{body['metadata']['name']}")
            token = mapping(mapping(found, "metadata"), "annotations").get(TOKEN)
            if token != body["metadata"]["annotations"][TOKEN]:
                raise errors.OrderMisconfigured(f"an object of somebody else has the name: {conflict}") from conflict
        except Forbidden as error:  # a right, a ResourceQuota or a webhook
            if "exceeded quota" in str(error):
                raise errors.QuotaExceeded(str(error)) from error
            raise errors.OrderMisconfigured(str(error)) from error
        except (errors.InvalidInput, errors.NotFound) as error:
            raise errors.OrderMisconfigured(str(error)) from error
        self.objects.wrote(collection, found)
        return OwnObject(collection, found)

    # ---- deleting

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self.objects.verify()
        there = self.objects.by_token()
        self._log_complaints(instances, there)
        in_parallel(
            "cluster-api", lambda each: self._delete(each.token, there.get(each.token, ())), instances, _WORKERS
        )

    def _log_complaints(self, instances: Sequence[BackendInstance], there: Mapping[str, Sequence[OwnObject]]) -> None:
        """Log what Machines that never came up were waiting for: with them the only trace of it goes."""
        waiting: dict[tuple[str, str], list[str]] = {}
        for each in instances:
            first = next(iter(there.get(each.token, ())), None)
            if first is not None and not (provider_id(first.document) or first.is_deleting):
                complaint = complaint_of(first.document)
                if complaint:
                    waiting.setdefault((each.node_group, complaint), []).append(first.name)
        for (group_id, complaint), names in waiting.items():
            _log.warning(
                "node group %s: machines that had not come up, %d (%s): %s", group_id, len(names), names[0], complaint
            )

    def _delete(self, token: str, objects: Sequence[OwnObject]) -> None:
        """Delete the Machine, whose deletion drains its Node and takes its clones along. Where it has no Node, the core
        may not have seen it, and would leave its clones: they are deleted first, so that a crash leaves the Machine to
        be deleted again."""
        has_machine = bool(objects) and objects[0].collection == self.objects.machines
        if has_machine and provider_id(objects[0].document):
            objects = objects[:1]
        elif not has_machine:  # perhaps one that no watch has shown yet
            self._client.delete(f"{self.objects.machines.path}/{name_of(token)}")
        for each in reversed(objects):
            if not each.is_deleting:
                self._client.delete(each.path, uid=str(each.document["metadata"]["uid"]))
                self.objects.asked_to_delete(each)

    def _remember(self, token: str, created_at: str) -> None:
        with self._lock:
            self._had_machine[token] = created_at
            self._had_machine.move_to_end(token)
            if len(self._had_machine) > _MOST_KNOWN:
                self._had_machine.popitem(last=False)


def _instance(of: OwnObject) -> BackendInstance:
    state = state_of(of.document)
    error = error_of(of.document) if state is InstanceState.CREATING else None
    return BackendInstance(provider_id(of.document) or of.token, of.token, of.node_group, state, error)


def _raise_refusals(refusals: Sequence[tuple[str, errors.OrderRefused]]) -> None:
    """Raise one refusal for all: of the first one's kind, with the node groups of all of that kind."""
    if not refusals:
        return
    kind = type(refusals[0][1])
    groups = tuple(dict.fromkeys(group for group, refusal in refusals if isinstance(refusal, kind)))
    texts = dict.fromkeys(f"node group {group}: {refusal}" for group, refusal in refusals)
    raise kind("; ".join(texts), groups)


def open_backend(settings: ClusterApiSettings, context: BackendContext) -> OpenBackend:
    """Open it. Raises InvalidInput and Unavailable, with nothing left open."""
    is_another = settings.in_cluster or settings.kubeconfig is not None
    own = Client.connect(settings.kubeconfig, settings.context) if is_another else None
    client = own or context.client
    if client is None:
        raise InvalidInput(
            "backend.cluster_api: needs the section kubernetes, or a kubeconfig of the management cluster"
        )
    backend: ClusterApiBackend | None = None

    def close() -> None:
        if backend is not None:
            backend.close()
        if own is not None:
            own.close()

    try:
        backend = ClusterApiBackend(client, Kinds(client, settings.namespace), settings, context.clock)
        backend.follow_templates()
        backend.objects.wait(_FIRST_LISTS_SECONDS)
    except BaseException:
        close()
        raise
    return OpenBackend(backend, close)
