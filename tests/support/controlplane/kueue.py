"""Kueue, played by a test: its definitions in the control plane, Workloads with quota, and what its controllers and the
autoscaler would write."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cagrpc.api import kueue as wire
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.api.provisioning.objects import API_VERSION as REQUESTS_API
from tests.support.controlplane.cluster import Cluster, pod_spec
from tests.support.controlplane.deployed import CRDS, apply, wait_until_served
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.processes import wait_for

OURS = "cagrpc.io/provisioning-request"
CHECK, CONFIG, FLAVOR = "capacity", "atomic", "plain"
CLASS = "atomic-scale-up.kubernetes.io"
PATIENCE_SECONDS = 90.0
"""The garbage collector may look for kinds that are new first, which it does every 30 s."""

Document = dict[str, Any]


def definitions(*versions: str) -> list[Document]:
    """Of Kueue's kinds; with `versions` only these are served, the first of them stored."""
    found: list[Document] = yaml.safe_load((Path(__file__).parent / "kueue-crds.yaml").read_text())["items"]
    if versions:
        for definition in found:
            spec = definition["spec"]
            spec["versions"] = [
                {**copy.deepcopy(each), "storage": each["name"] == versions[0]}
                for each in spec["versions"]
                if each["name"] in versions
            ]
    return found


def install(plane: ControlPlane, *versions: str) -> None:
    """Served when this returns."""
    for definition in definitions(*versions):
        apply(plane.admin, definition)
        wait_until_served(plane.admin, definition)


def remove(plane: ControlPlane) -> None:
    """Gone when this returns, with all objects."""
    names = {each["metadata"]["name"] for each in definitions()}
    for name in names:
        plane.admin.delete(f"{CRDS}/{name}")
    wait_for(lambda: not names & {each["metadata"]["name"] for each in plane.admin.items(CRDS)}, "they are gone")


class PlayedKueue:
    """In one namespace, by one version of the API. Times are those of a clock that goes on with each write, since the
    times of conditions have whole seconds."""

    def __init__(self, cluster: Cluster, version: str = wire.VERSIONS[0]) -> None:
        self.cluster = cluster
        self.admin = cluster.admin
        self.version = version
        self._now = 1_800_000_000

    def collection(self, resource: str, name: str = "") -> str:
        """Of a kind without namespaces, or one object of it."""
        return wire.collection(self.version, resource) + (f"/{name}" if name else "")

    def path(self, name: str = "") -> str:
        """Of Workloads."""
        return self.cluster.path("workloads", name, api=f"apis/{wire.GROUP}/{self.version}")

    # ---- what people write

    def configure(self, *, controller: str = OURS, check: str = CHECK, **spec: Any) -> None:
        """A flavor, a check and its configuration; `spec` are fields of that."""
        self.admin.ensure(self.collection("resourceflavors"), {**self._head("ResourceFlavor", FLAVOR), "spec": {}})
        self.config(**spec)
        named = {"apiGroup": wire.GROUP, "kind": wire.CONFIG_KIND, "name": CONFIG}
        self.admin.create(
            self.collection("admissionchecks"),
            {**self._head("AdmissionCheck", check), "spec": {"controllerName": controller, "parameters": named}},
        )

    def config(self, **spec: Any) -> None:
        """The configuration, made or changed."""
        body = {**self._head(wire.CONFIG_KIND, CONFIG), "spec": {"provisioningClassName": CLASS, **spec}}
        path = self.collection("provisioningrequestconfigs")
        found = [each for each in self.admin.items(path) if each["metadata"]["name"] == CONFIG]
        if found:
            body["metadata"]["resourceVersion"] = found[0]["metadata"]["resourceVersion"]
            self.admin.ask("PUT", f"{path}/{CONFIG}", body)
        else:
            self.admin.create(path, body)

    def remove_config(self) -> None:
        self.admin.delete(self.collection("provisioningrequestconfigs", CONFIG))

    def submit(
        self,
        name: str = "job",
        pods: Mapping[str, int] | None = None,
        requests: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Document:
        """A Workload, as for a suspended job: by pod set so many pods, and what each requests."""
        asked = requests or {}
        sets = [
            {"name": each, "count": count, "template": {"spec": pod_spec(asked.get(each, {"cpu": "1"}))}}
            for each, count in (pods or {"workers": 3}).items()
        ]
        head = self._head("Workload", name)
        return dict(self.admin.create(self.path(), {**head, "spec": {"podSets": sets, "queueName": "queue"}}))

    # ---- what Kueue writes

    def reserve(self, name: str = "job", checks: Sequence[str] = (CHECK,)) -> None:
        """Quota, and the checks that its queue requires."""
        found = self.workload(name)
        sets = [
            {"name": each["name"], "flavors": {"cpu": FLAVOR}, "count": each["count"]}
            for each in found["spec"]["podSets"]
        ]
        before = {each["name"]: each for each in found.get("status", {}).get("admissionChecks") or ()}
        now = self._time()
        states = [
            before.get(each) or {"name": each, "state": wire.PENDING, "message": "", "lastTransitionTime": now}
            for each in checks
        ]
        admission = {"clusterQueue": "batch", "podSetAssignments": sets}
        self._status(name, {"QuotaReserved": True, "Evicted": False}, admission=admission, admissionChecks=states)

    def admit(self, name: str = "job") -> None:
        self._status(name, {"Admitted": True})

    def start_pods(self, name: str = "job") -> None:
        """What its job's controller makes once it is admitted: pods with the updates of the check."""
        (check,) = self.checks(name)
        updates = {each["name"]: each for each in check["podSetUpdates"]}
        for pods in self.workload(name)["spec"]["podSets"]:
            update, spec = updates[pods["name"]], dict(pods["template"]["spec"])
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **update.get("nodeSelector", {})}
            metadata = {"annotations": update["annotations"], "labels": {"job": name}}
            for index in range(pods["count"]):
                body = {"metadata": {**metadata, "name": f"{name}-{pods['name']}-{index}"}, "spec": spec}
                self.admin.create(self.cluster.path("pods"), body)

    def finish(self, name: str = "job") -> None:
        self._status(name, {"Finished": True})

    def evict(self, name: str = "job") -> None:
        """Checks are reset; one that was Retry is counted. Server-side apply leaves what is another manager's: the pod
        sets' updates and the pause. Then the job is suspended, and the quota free."""
        checks = []
        for each in self.checks(name):
            if each["state"] != wire.PENDING:
                count = each.get("retryCount", 0) + 1 if each["state"] == wire.RETRY else None
                stays = {key: value for key, value in each.items() if key in ("podSetUpdates", "requeueAfterSeconds")}
                each = {  # noqa: PLW2901 - as it is from now on
                    **stays,
                    "name": each["name"],
                    "state": wire.PENDING,
                    "message": f"Reset to Pending after eviction. Previously: {each['state']}",
                    "lastTransitionTime": self._time(),
                    **({"retryCount": count} if count is not None else {}),
                }
            checks.append(each)
        self._status(name, {"Evicted": True, "Admitted": False}, admissionChecks=checks)
        self._status(name, {"QuotaReserved": False}, admission=None)

    def require(self, *checks: str, name: str = "job") -> None:
        """The queue's definition changes."""
        kept = [each for each in self.checks(name) if each["name"] in checks]
        self._status(name, {}, admissionChecks=kept)

    def _status(self, name: str, conditions: Mapping[str, bool], **fields: Any) -> None:
        found = self.workload(name).get("status", {}).get("conditions") or []
        kept = [each for each in found if each["type"] not in conditions]
        new = [self.condition(type_, value) for type_, value in conditions.items()]
        self.admin.merge(f"{self.path(name)}/status", {"status": {"conditions": [*kept, *new], **fields}})

    # ---- what the autoscaler writes

    def answer(self, request: str, *types: str, message: str = "as the test says", **details: str) -> None:
        """Conditions of a request that are true; with `!` before it one is false."""
        conditions = [self.condition(each.removeprefix("!"), not each.startswith("!"), message) for each in types]
        body = {"status": {"conditions": conditions, "provisioningClassDetails": details}}
        self.admin.merge(f"{self.request_path(request)}/status", body)

    def condition(self, type_: str, value: bool, message: str = "as the test says") -> Document:
        return {
            "type": type_,
            "status": "True" if value else "False",
            "reason": "Test",
            "message": message,
            "lastTransitionTime": self._time(),
        }

    # ---- what is there

    def request_path(self, name: str = "") -> str:
        return self.cluster.path("provisioningrequests", name, api=f"apis/{REQUESTS_API}")

    def workload(self, name: str = "job") -> Document:
        return dict(self.admin.get(self.path(name)))

    def checks(self, name: str = "job") -> list[Document]:
        return list(self.workload(name).get("status", {}).get("admissionChecks") or ())

    def state(self, name: str = "job") -> str:
        (check,) = self.checks(name)
        return str(check["state"])

    def message(self, name: str = "job") -> str:
        (check,) = self.checks(name)
        return str(check["message"])

    def requests(self) -> list[str]:
        """Their names."""
        return [each["metadata"]["name"] for each in self.admin.items(self.request_path())]

    def templates(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.admin.items(self.cluster.path("podtemplates"))]

    def active(self, check: str = CHECK) -> tuple[str, str]:
        """Status and message of the check's condition; empty where it has none."""
        found = self.admin.get(self.collection("admissionchecks", check)).get("status", {}).get("conditions") or ()
        return next(((each["status"], each["message"]) for each in found if each["type"] == wire.ACTIVE), ("", ""))

    def wait(self, what: str, condition: Any) -> None:
        try:
            wait_for(condition, what, seconds=PATIENCE_SECONDS)
        except AssertionError as error:
            workloads = [each.get("status") for each in self.admin.items(self.path())]
            error.add_note(f"requests {self.requests()}, templates {self.templates()}, Workloads {workloads}")
            raise

    def wait_for_requests(self, *names: str) -> None:
        """These there are, and their templates."""
        self.wait(f"the requests are {names}", lambda: sorted(self.requests()) == sorted(names))
        self.wait(
            "the templates are theirs",
            lambda: {each.removeprefix("ppt-").rpartition("-")[0] for each in self.templates()} == set(names),
        )

    def wait_for_state(self, state: str, name: str = "job") -> None:
        self.wait(f"the check is {state}", lambda: self.state(name) == state)

    def tidy(self) -> None:
        """What has no namespace, and what its namespace might keep."""
        for path in (self.path(), self.request_path(), self.cluster.path("podtemplates")):
            self.admin.delete(path)
        for resource in ("admissionchecks", "provisioningrequestconfigs", "resourceflavors"):
            self.admin.delete(self.collection(resource))

    def _head(self, kind: str, name: str) -> Document:
        return {"apiVersion": f"{wire.GROUP}/{self.version}", "kind": kind, "metadata": {"name": name}}

    def _time(self) -> str:
        self._now += 1
        return timestamp(self._now)
