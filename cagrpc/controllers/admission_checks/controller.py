"""The admission check controller: watches the cluster, reconciles one Workload or check at a time, and writes what
`reconcile` decides: in its order, each object at most once, with Events on the Workload. All state is in the cluster,
so that another process can take over at any time.

A decision on an object that has changed since is not written: status patches carry the resource version, deletions the
UID, and each created object has a unique name, so that it is created once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import Counter
from prometheus_client.registry import Collector

from cagrpc.api.kueue import (
    GROUP,
    PENDING,
    VERSIONS,
    Check,
    CheckUpdate,
    KueueWorkload,
    RequestConfig,
    active_patch,
    checks_patch,
    collection,
)
from cagrpc.api.provisioning.objects import API_VERSION
from cagrpc.controllers.admission_checks.model import CheckWrites, Creation, Removal, owned_by
from cagrpc.controllers.admission_checks.reconcile import (
    KUEUES_NAME,
    Claim,
    activity,
    claim,
    config_of,
    differs,
    reconcile,
    topology_first,
)
from cagrpc.controllers.admission_checks.store import CHECK, ChecksObservation, CheckStore
from cagrpc.controllers.events import Note, ObjectRef
from cagrpc.controllers.settings import KueueSettings
from cagrpc.errors import CagrpcError, Conflict, FailedPrecondition, InvalidInput, NotFound
from cagrpc.kube.client.client import Client
from cagrpc.kube.informer.informers import Informer
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from cagrpc.runtime.controller import Controller, Json
from cagrpc.runtime.work_queue import WorkQueue

STEP_SECONDS = 1.0
"""The pace of steps."""

_WORKERS = 3
_DISCOVERY_SECONDS = 60.0
_RESYNC_SECONDS = 120.0
_NOT_SYNCED_SECONDS = 0.5
_CONFLICT_SECONDS = 1.0

_log = logging.getLogger(__name__)


class AdmissionCheckController(Controller):
    """Answers AdmissionChecks. `step` is called by one thread; all else is thread-safe."""

    name = "Kueue's admission checks"
    every_seconds = STEP_SECONDS
    waits_for = "it is not known yet whether Kueue is installed"

    def __init__(
        self,
        client: Client,
        settings: KueueSettings,
        *,
        record: Callable[[Note], None] = lambda _: None,
        now: EpochClock = epoch,
        clock: MonotonicClock = monotonic,
    ) -> None:
        """`record` writes Events on Workloads and AdmissionChecks."""
        self._client = client
        self._settings = settings
        self._record = record
        self._now = now
        self._clock = clock
        self._actions = Counter(
            "cagrpc_kueue_actions",
            "Requests made, replaced and deleted for Kueue's Workloads, checks by state, conflicts.",
            ("action",),
            registry=None,
        )
        """Requests created, replaced and deleted, checks by their new state, and conflicts."""
        self._store: CheckStore | None = None
        self._discovered = False
        """Whether it is known if Kueue is installed."""
        self._next_discovery: float = clock()
        self._next_resync: float = clock()
        self._first_seen: dict[str, float] = {}
        self._refusals: dict[str, str] = {}
        """By check, why it is not answered."""
        self._topologies: dict[str, str] = {}
        """By check, which flavors it is not asked about while they have no nodes."""
        self._seen: dict[str, str] = {}
        """By Workload, the resource version that a write of ours has replaced."""
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue(
            "Kueue's admission checks", self._reconcile, workers=_WORKERS, clock=clock
        )

    def queues(self) -> Sequence[WorkQueue[Any]]:
        return (self.queue,)

    def informers(self) -> Sequence[Informer[Any]]:
        """Return the informers; none where Kueue is not installed."""
        return self._store.informers if self._store is not None else ()

    def still_to_come(self) -> str:
        """Return what is not synced yet; empty once all is, or where Kueue is not installed."""
        if not self._discovered:
            return self.waits_for
        return super().still_to_come()

    @property
    def problem(self) -> str | None:
        """Why checks are not answered now; None where they are."""
        unsynced = self._store.problem if self._store is not None else None
        return self.waits_for or unsynced or self.queue.problem

    def collectors(self) -> Iterable[Collector]:
        return (self._actions,)

    def status(self) -> Json:
        """Return whether Kueue is installed, which checks are refused, and which flavors need nodes first."""
        store = self._store
        refused = {"refused": "; ".join(sorted(self._refusals.values()))} if self._refusals else {}
        topologies = {"topologies": "; ".join(sorted(self._topologies.values()))} if self._topologies else {}
        return {
            "admission_checks": {
                "kueue": self.problem or (f"serves {GROUP}/{store.version}" if store else "Kueue is not installed"),
                "requests": len(store.requests()) if store is not None else 0,
                **refused,
                **topologies,
            }
        }

    def step(self) -> None:
        """Queue all checks and Workloads at each resync, and detect the version of Kueue's API that is served. Raises
        what the client raises while that is not known."""
        now = self._clock()
        if self._store is not None and now >= self._next_resync:
            self._next_resync = now + _RESYNC_SECONDS
            self._store.all_changed()
        if now >= self._next_discovery:
            self._discover()
            self._next_discovery = now + _DISCOVERY_SECONDS
            self._discovered, self.waits_for = True, ""

    def _discover(self) -> None:
        try:
            served = self._client.get(f"/apis/{GROUP}").get("versions") or ()
        except NotFound:
            return  # a store that there is has become empty, and Kueue may be installed again
        versions = {str(each.get("version")) for each in served}
        version = next((each for each in VERSIONS if each in versions), None)
        if version is None or (self._store is not None and self._store.version == version):
            return
        if self._store is not None:
            self._store.stop(0.0)
        _log.info("Kueue is installed: watching %s/%s", GROUP, version)
        self._store = CheckStore(self._client, version, self.queue.add)
        self._store.start()

    def _count(self, what: str) -> None:
        self._actions.labels(what).inc()

    def _reconcile(self, key: tuple[str, str]) -> float | None:
        store = self._store
        kind, which = key
        if store is None:
            return None
        if not store.synced:
            return _NOT_SYNCED_SECONDS  # what is missing may only not have been listed yet
        try:
            return self._reconcile_check(store, which) if kind == CHECK else self._reconcile_workload(store, which)
        except Conflict:  # another write came first, and its watch event is about to arrive
            self._count("conflicts")
            return _CONFLICT_SECONDS

    # ---- checks

    def _reconcile_check(self, store: CheckStore, name: str) -> float | None:
        observed = store.observe_check(name)
        if observed is None:
            self._refusals.pop(name, None)
            self._topologies.pop(name, None)
            return None
        check, configs, flavors = observed
        found = self._claim(store, check)
        if found.refusal and name not in self._refusals:
            self._warn(store, check, "Refused", found.refusal)
        _keep(self._refusals, name, found.refusal)
        topologies = topology_first(check, flavors) if found.ours else ""
        if topologies and self._topologies.get(name) != topologies:
            self._warn(store, check, "TopologyNeedsNodes", topologies)
        _keep(self._topologies, name, topologies)
        wanted = activity(config_of(check, configs))
        if found.ours and differs(check, wanted):
            self._write_active(store.version, check, wanted)
        return found.again_seconds

    def _warn(self, store: CheckStore, check: Check, reason: str, text: str) -> None:
        _log.warning("%s", text)
        about = ObjectRef(f"{GROUP}/{store.version}", "AdmissionCheck", "", check.name, check.uid)
        self._record(Note(about, reason, text))

    def _claim(self, store: CheckStore, check: Check) -> Claim:
        now = self._clock()
        known = now - self._first_seen.setdefault(check.uid, now)
        writes = self._settings.controller_name == KUEUES_NAME and store.kueue_writes()
        return claim(check, self._settings, kueue_writes=writes, known_seconds=known)

    # ---- Workloads

    def _reconcile_workload(self, store: CheckStore, key: str) -> float | None:
        found = store.observe(key)
        if found is None:
            self._seen.pop(key, None)
            return None
        workload = found.workload
        if self._seen.get(key) == workload.resource_version:
            return None  # we have written to it since, and its watch event is about to arrive
        writes = reconcile(
            workload,
            self._configs(store, found),
            found.requests,
            found.templates,
            found.flavors,
            self._settings,
            self._now(),
        )
        if self._write(workload, writes):
            self._seen[key] = workload.resource_version
        return writes.again_seconds

    def _configs(self, store: CheckStore, observed: ChecksObservation) -> Mapping[str, RequestConfig | str]:
        """Return those of the Workload's checks that are ours."""
        names = {str(each.get("name")) for each in observed.workload.checks}
        found = (observed.checks[name] for name in sorted(names) if name in observed.checks)
        return {check.name: config_of(check, observed.configs) for check in found if self._claim(store, check).ours}

    # ---- writes

    def _write(self, workload: KueueWorkload, writes: CheckWrites) -> bool:
        """Write all of it; return whether the Workload itself has changed by that."""
        for removal in writes.in_the_way:
            self._remove(removal)
        updates = dict(writes.updates)
        refused: CagrpcError | None = None
        for creation in writes.creations:
            try:
                self._make(workload, creation)
            except (InvalidInput, NotFound, FailedPrecondition) as error:
                # Reported on the check and tried again; the other checks are not held up.
                refused = error
                text = f"ProvisioningRequest {creation.name} cannot be created: {error}"
                updates[creation.check] = CheckUpdate(PENDING, text)
                self._record(Note(_about(workload), "FailedCreate", text))
        written = self._answer(workload, updates)
        if refused is not None:
            raise refused
        for removal in writes.removals:
            self._remove(removal)
        return written

    def _write_active(self, version: str, check: Check, wanted: tuple[bool, str, str]) -> None:
        """Set the condition `Active` of an AdmissionCheck to this status, reason and message."""
        path = f"{collection(version, 'admissionchecks')}/{check.name}/status"
        self._client.patch(path, active_patch(check, *wanted, self._now()))
        self._count("checks_active" if wanted[0] else "checks_inactive")

    def _answer(self, workload: KueueWorkload, updates: Mapping[str, CheckUpdate]) -> bool:
        before = {str(each.get("name")): each for each in workload.checks}
        changed = {name: each for name, each in updates.items() if each.differs(before[name])}
        if not changed:
            return False
        path = f"/apis/{GROUP}/{workload.version}/namespaces/{workload.namespace}/workloads/{workload.name}/status"
        try:
            answer = self._client.patch(path, checks_patch(workload, changed, self._now()))
        except NotFound:
            return False  # deleted meanwhile, and garbage collection removes what it owned
        for name, update in changed.items():
            was = before[name].get("state")
            if was != update.state:
                self._count(f"checks_{update.state.lower()}")
                text = f"AdmissionCheck {name}: {was} -> {update.state}: {update.message}"
                self._record(Note(_about(workload), "AdmissionCheckUpdated", text))
        return str(answer["metadata"].get("resourceVersion")) != workload.resource_version

    def _make(self, workload: KueueWorkload, creation: Creation) -> None:
        namespace = creation.namespace
        templates = [
            self._ensure(f"/api/v1/namespaces/{namespace}/podtemplates", each, "PodTemplate")[0]
            for each in creation.templates
        ]
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/provisioningrequests"
        _, made = self._ensure(path, owned_by(creation.request, templates[0]), "ProvisioningRequest")
        if made:
            self._count("requests_replaced" if creation.replaces else "requests_made")
            self._record(
                Note(_about(workload), "ProvisioningRequestCreated", f"ProvisioningRequest {creation.name} is made")
            )

    def _ensure(self, path: str, body: Mapping[str, Any], kind: str) -> tuple[dict[str, Any], bool]:
        """Return the object, and whether it was created now. An existing one is ours if it has all the annotations of
        its purpose."""
        try:
            return self._client.create(path, body), True
        except Conflict:
            name = body["metadata"]["name"]
            found = self._client.get(f"{path}/{name}")
        metadata, wanted = found["metadata"], body["metadata"]["annotations"]
        present = metadata.get("annotations") or {}
        if all(present.get(key) == value for key, value in wanted.items()) and not metadata.get("deletionTimestamp"):
            return found, False
        raise FailedPrecondition(f"another {kind} of that name exists; delete it first")

    def _remove(self, removal: Removal) -> None:
        api = "api/v1" if removal.resource == "podtemplates" else f"apis/{API_VERSION}"
        self._client.delete(f"/{api}/namespaces/{removal.namespace}/{removal.resource}/{removal.name}", uid=removal.uid)
        if removal.resource != "podtemplates":
            self._count("requests_deleted")


def _keep(texts: dict[str, str], name: str, text: str) -> None:
    if text:
        texts[name] = text
    else:
        texts.pop(name, None)


def _about(workload: KueueWorkload) -> ObjectRef:
    return ObjectRef(f"{GROUP}/{workload.version}", "Workload", workload.namespace, workload.name, workload.uid)
