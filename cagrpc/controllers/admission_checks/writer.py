"""Writing what `reconcile` has decided: in its order, each object at most once, with Events on the Workload. Nothing is
decided here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cagrpc.api.kueue import GROUP, PENDING, Check, CheckUpdate, KueueWorkload, active_patch, checks_patch, collection
from cagrpc.api.provisioning.objects import API_VERSION
from cagrpc.controllers.admission_checks.model import CheckWrites, Creation, Removal, owned_by
from cagrpc.controllers.events import Note, ObjectRef
from cagrpc.errors import CagrpcError, Conflict, FailedPrecondition, InvalidInput, NotFound
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import EpochClock


class CheckWriter:
    """Writes for Workloads and AdmissionChecks. Raises what the client raises; the caller reconciles again then."""

    def __init__(
        self,
        client: Client,
        count: Callable[[str], None],
        record: Callable[[Note], None],
        clock: EpochClock,
    ) -> None:
        """`count` is called with the name of each write, `record` writes Events."""
        self._client = client
        self._count = count
        self._record = record
        self._clock = clock

    def write(self, workload: KueueWorkload, writes: CheckWrites) -> bool:
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
                self._record(Note(_about(workload), "FailedCreate", text, warning=True))
        written = self._answer(workload, updates)
        if refused is not None:
            raise refused
        for removal in writes.removals:
            self._remove(removal)
        return written

    def write_active(self, version: str, check: Check, wanted: tuple[bool, str, str]) -> None:
        """Set the condition `Active` of an AdmissionCheck to this status, reason and message."""
        path = f"{collection(version, 'admissionchecks')}/{check.name}/status"
        self._client.patch(path, active_patch(check, *wanted, self._clock()))
        self._count("checks_active" if wanted[0] else "checks_inactive")

    def _answer(self, workload: KueueWorkload, updates: Mapping[str, CheckUpdate]) -> bool:
        before = {str(each.get("name")): each for each in workload.checks}
        changed = {name: each for name, each in updates.items() if each.differs(before[name])}
        if not changed:
            return False
        path = f"/apis/{GROUP}/{workload.version}/namespaces/{workload.namespace}/workloads/{workload.name}/status"
        try:
            answer = self._client.patch(path, checks_patch(workload, changed, self._clock()))
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


def _about(workload: KueueWorkload) -> ObjectRef:
    return ObjectRef(f"{GROUP}/{workload.version}", "Workload", workload.namespace, workload.name, workload.uid)
