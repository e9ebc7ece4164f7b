"""A world with Kueue: one Workload with quota, its AdmissionChecks, their configurations and ResourceFlavors, and what
Kueue and the autoscaler write to them.

    with KueueWorld(workload(pod_set("workers", 8)), configs={"capacity": config()}) as world:
        world.play(says(condition("Provisioned")), KueueWorld.kueue_evicts)
        assert world.state["state"] == PENDING
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cagrpc.api import kueue as wire
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.api.provisioning.objects import POD_TEMPLATES, REQUESTS
from cagrpc.controllers.settings import Drive, KueueSettings
from cagrpc.kube.client.client import USER_AGENT
from tests.support.api_server import Document
from tests.support.cluster import path_of
from tests.support.fleet import FakeClock
from tests.support.world import World

Happening = float | Callable[[Any], object]
"""So many seconds that pass, or what somebody does to a `KueueWorld`."""
NOW = FakeClock()()
RESERVED = timestamp(NOW - 60)
CHECK = "capacity"
QUEUE = "batch"
CLASS = "atomic-scale-up.kubernetes.io"
NAMESPACE, VERSION = "team", wire.VERSIONS[0]


def condition(type_: str, status: bool = True, message: str = "", since: float = NOW, reason: str = "Test") -> Document:
    return {
        "type": type_,
        "status": "True" if status else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(since),
    }


def pod_set(name: str, count: int, requests: Mapping[str, str] | None = None, **spec: Any) -> Document:
    container = {"name": "main", "image": "example.com/none", "resources": {"requests": dict(requests or {"cpu": "1"})}}
    return {"name": name, "count": count, "template": {"spec": {"containers": [container], **spec}}}


def check_state(name: str = CHECK, state: str = wire.PENDING, **more: Any) -> Document:
    return {"name": name, "state": state, "message": "", "lastTransitionTime": RESERVED, **more}


def workload(
    *pod_sets: Document,
    checks: Sequence[Document] | None = None,
    conditions: Sequence[Document] = (),
    name: str = "job",
    annotations: Mapping[str, str] | None = None,
    flavors: Mapping[str, str] | None = None,
    counts: Mapping[str, int] | None = None,
    reserved: str = RESERVED,
    active: bool = True,
    **metadata: Any,
) -> Document:
    """Return a Workload with quota, unless `reserved` is empty."""
    sets = list(pod_sets) or [pod_set("workers", 8), pod_set("head", 1)]
    flavored = dict(flavors or {"cpu": "plain"})
    assigned = [
        {"name": s["name"], "flavors": flavored, "count": (counts or {}).get(s["name"], s["count"])} for s in sets
    ]
    quota = [{**condition("QuotaReserved"), "lastTransitionTime": reserved}] if reserved else []
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": "workload-uid",
            "resourceVersion": "7",
            "annotations": dict(annotations or {}),
            **metadata,
        },
        "spec": {"podSets": sets, "queueName": "queue", "active": active},
        "status": {
            "conditions": [*quota, *conditions],
            **({"admission": {"clusterQueue": QUEUE, "podSetAssignments": assigned}} if reserved else {}),
            "admissionChecks": [check_state()] if checks is None else list(checks),
        },
    }


def config(name: str = CHECK, **spec: Any) -> Document:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": wire.CONFIG_KIND,
        "metadata": {"name": name},
        "spec": {"provisioningClassName": CLASS, **spec},
    }


def flavor(name: str = "plain", **spec: Any) -> Document:
    return {"metadata": {"name": name}, "spec": spec}


def retries(limit: int, base: int = 60, longest: int = 1800) -> Document:
    return {
        "retryStrategy": {
            "backoffLimitCount": limit,
            "backoffBaseSeconds": base,
            "backoffMaxSeconds": longest,
        }
    }


def written_by(manager: str) -> Document:
    """Return the entry of `managedFields` of whoever wrote a status."""
    return {"manager": manager, "operation": "Update", "subresource": "status"}


def _evicted(check: Document) -> Document:
    count = {"retryCount": check.get("retryCount", 0) + 1} if check["state"] == wire.RETRY else {}
    kept = {key: value for key, value in check.items() if key != "retryCount"}
    return {**kept, **count, "state": wire.PENDING, "message": "Reset to Pending after eviction"}


def says(*conditions: Document, name: str = "", **details: str) -> Happening:
    """Return the happening of `KueueWorld.says`."""
    return lambda world: world.says(*conditions, name=name, **details)


def configured(**spec: Any) -> Happening:
    """Return the happening of `KueueWorld.configure`."""
    return lambda world: world.configure(**spec)


class KueueWorld(World):
    """The cluster-autoscaler drives, and nobody but the test answers requests."""

    def __init__(
        self,
        of: Document | None = None,
        *,
        configs: Mapping[str, Document] | None = None,
        flavors: Sequence[Document] | None = None,
        settings: KueueSettings | None = None,
        version: str = VERSION,
    ) -> None:
        """`configs` by the check that is ours and names it; other checks of the Workload have another controller."""
        super().__init__(drive=Drive.ASSIST, kueue=settings or KueueSettings())
        self.version = version
        self.api.put(f"/apis/{wire.GROUP}", {"versions": [{"version": version}]})
        self.api.kinds.add(f"/apis/{wire.GROUP}")  # it is this object, and no collection
        found = of or workload()
        self.path = path_of(wire.collection(version, "workloads"), found["metadata"]["name"], NAMESPACE)
        self.api.put(self.path, {**found, "apiVersion": f"{wire.GROUP}/{version}"})
        configs = {CHECK: config()} if configs is None else configs
        for name in {each["name"] for each in found["status"]["admissionChecks"]} - configs.keys():
            self.check(name, controller="example.com/another")
        for name, each in configs.items():
            self.check(name)
            self.configure(name, **each["spec"])
        for each in [flavor()] if flavors is None else flavors:
            name = each["metadata"]["name"]
            self.api.put(f"{wire.collection(version, 'resourceflavors')}/{name}", each)

    def _start(self) -> None:
        super()._start()
        calls = self.api.around

        def managed(what: str, do: Any) -> Any:
            answer = calls(what, do)
            path = what.removeprefix("PATCH ").removesuffix("/status")
            if "/admissionchecks/" in path and what != path and answer[0] == 200:
                self.api.edit(path, managedFields=[written_by(USER_AGENT)])
            return answer

        self.api.around = managed

    def play(self, *story: Happening) -> None:
        """Let one thing happen after the other, each once nobody writes any more."""
        self.settle()
        for each in story:
            super().play(each)
            self.settle()

    def settle(self) -> None:
        """Step, with no time passing, until nobody writes any more."""
        for _ in range(10):
            before = self.api.latest_version
            self.step()
            self.step()
            if self.api.latest_version == before:
                return
        raise AssertionError(f"it never ends: {self.api.requests[-10:]}")

    # ---- what administrators and users do

    def check(
        self,
        name: str = CHECK,
        *,
        controller: str = KueueSettings().controller_name,
        parameters: Document | None = None,
        **more: Any,
    ) -> None:
        """Create an AdmissionCheck, whose configuration has its name."""
        named = {"apiGroup": wire.GROUP, "kind": wire.CONFIG_KIND, "name": name}
        spec = {"controllerName": controller, "parameters": named if parameters is None else parameters}
        self.api.put(self._check(name), {"metadata": {"generation": 2}, "spec": spec, **more})

    def configure(self, name: str = CHECK, /, **spec: Any) -> None:
        self.api.put(self._config(name), config(name, **spec))

    def flavor(self, name: str, **spec: Any) -> None:
        """Create or change a ResourceFlavor."""
        self.api.put(f"{wire.collection(self.version, 'resourceflavors')}/{name}", flavor(name, **spec))

    def remove_config(self, name: str = CHECK) -> None:
        if self.configured(name):
            self.api.remove(self._config(name))

    def configured(self, name: str = CHECK) -> bool:
        return self._config(name) in self.api.objects

    def activate(self, active: bool) -> None:
        self.api.change(self.path, spec={"active": active})

    def delete(self) -> None:
        """Delete the Workload, which waits for finalizers."""
        self.api.edit(self.path, deletionTimestamp=timestamp(self.clock()))

    def delete_requests(self, *names: str) -> None:
        """Delete requests, or all that there are, as somebody else may."""
        for name in names or self.requests:
            self.api.remove(path_of(REQUESTS, name, NAMESPACE))

    # ---- what the autoscaler and Kueue say

    def says(self, *conditions: Document, name: str = "", **details: str) -> None:
        """Set conditions of a request: of the only one, or of the one with this name."""
        (name,) = [name] if name else self.requests
        status = {"conditions": list(conditions), "provisioningClassDetails": details}
        self.api.put(path_of(REQUESTS, name, NAMESPACE), {**self.requests[name], "status": status})

    def kueue_says(self, *conditions: Document) -> None:
        self.api.change(self.path, status={"conditions": list(conditions)})

    def kueue_evicts(self) -> None:
        """Evict as Kueue does: checks are reset, and one that was Retry is counted. Its server-side apply leaves fields
        of other managers: the pod sets' updates and the pause."""
        self.kueue_says(condition("Evicted", since=self.clock()), condition("Admitted", False))
        self.set_checks(*(each if each["state"] == wire.PENDING else _evicted(each) for each in self.checks))

    def kueue_reserves(self) -> None:
        """Reserve quota again."""
        again = {**condition("QuotaReserved"), "lastTransitionTime": timestamp(self.clock())}
        self.kueue_says(condition("Evicted", False), again)

    def set_checks(self, *checks: Document) -> None:
        self.api.change(self.path, status={"admissionChecks": list(checks)})

    # ---- what has come of it

    @property
    def workload(self) -> wire.KueueWorkload:
        return wire.workload(self.api.objects[self.path])

    @property
    def checks(self) -> list[Document]:
        """As they are on the Workload."""
        return list(self.api.objects[self.path]["status"]["admissionChecks"])

    @property
    def state(self) -> Document:
        """Of the only check."""
        (found,) = self.checks
        return found

    @property
    def requests(self) -> dict[str, Document]:
        return self._there(REQUESTS)

    @property
    def templates(self) -> dict[str, Document]:
        return self._there(POD_TEMPLATES)

    @property
    def made(self) -> list[str]:
        """Names of all requests that were ever made."""
        made = {each["metadata"]["uid"]: each["metadata"]["name"] for _, each, there in self._log[REQUESTS] if there}
        return list(made.values())

    def actions(self, action: str) -> int:
        """Return how often something was done, by `cagrpc_kueue_actions`."""
        found = self.metrics()["cagrpc_kueue_actions_total"].get((action,))
        return int(found.value) if found is not None else 0

    def _there(self, collection: str) -> dict[str, Document]:
        of = path_of(collection, namespace=NAMESPACE)
        objects = list(self.api.objects.items())
        return {each["metadata"]["name"]: each for path, each in objects if path.rpartition("/")[0] == of}

    def _check(self, name: str) -> str:
        return f"{wire.collection(self.version, 'admissionchecks')}/{name}"

    def _config(self, name: str) -> str:
        return f"{wire.collection(self.version, 'provisioningrequestconfigs')}/{name}"
