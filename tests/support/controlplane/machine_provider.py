"""An infrastructure and bootstrap provider of Cluster API, which tests make to have no machines, or to fail. The
contract that it keeps is in `cluster_api`."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import urllib3

from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.cluster import NODES

PROVIDER_GROUP = "test.cagrpc.io"
PROVIDER_API = f"apis/{PROVIDER_GROUP}/v1"
UNINITIALIZED = {"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}
"""Kubeadm's bootstrap provider registers Nodes with it; the core removes it with its first write of the Node."""
_FINALIZER = "testmachine.test.cagrpc.io"

Document = dict[str, Any]


@dataclass
class MachineProvider:
    """An infrastructure and bootstrap provider in one thread: bootstrap data is there at once, and a machine becomes a
    Ready Node of the workload cluster as soon as its pool lets it. Change what it does at any time."""

    admin: Api
    namespace: str
    workload_admin: Api
    short: set[str] = field(default_factory=set)
    """Pools (`spec.pool` of the machine template) that have no machine to give, and never say so."""
    failing: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Pools whose machines fail, with reason and message of the Ready condition."""
    stock: dict[str, int] = field(default_factory=dict)
    """How many machines a pool has at most; any number where it has no entry."""
    delay_seconds: float = 0.0
    """How long a machine takes."""
    error: BaseException | None = None
    """What ended the thread."""
    launched: int = 0
    """Machines that were ever given out."""

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._first_seen: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="machine-provider", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def path(self, plural: str, name: str = "") -> str:
        return f"/{PROVIDER_API}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def _run(self) -> None:
        try:
            waited = 0.0
            while not self._stop.wait(0.1):
                waited += 0.1
                with suppress(urllib3.exceptions.HTTPError):  # the API server is restarted
                    self._step(waited)
        except BaseException as error:  # noqa: BLE001 - raised by `close`
            self.error = error

    def _step(self, now: float) -> None:
        for config in self.admin.items(self.path("testconfigs")):
            if not config.get("status") and _owner(config):
                status = {"initialization": {"dataSecretCreated": True}, "dataSecretName": "bootstrap-data"}
                self._patch("testconfigs", config, {"status": status}, "/status")
        machines = self.admin.items(self.path("testmachines"))
        given = [each["spec"]["pool"] for each in machines if each["spec"].get("providerID")]
        configs: dict[str, Document] = {}
        for machine in machines:
            pool, metadata = machine["spec"]["pool"], machine["metadata"]
            first_seen = self._first_seen.setdefault(metadata["uid"], now)
            if metadata.get("deletionTimestamp"):
                self._end(machine)
            elif not _owner(machine) or machine.get("status", {}).get("initialization"):
                continue
            elif _FINALIZER not in metadata.get("finalizers", ()):
                self._patch("testmachines", machine, {"metadata": {"finalizers": [_FINALIZER]}})
            elif pool in self.failing:
                self._fail(machine, *self.failing[pool])
            elif pool not in self.short and given.count(pool) < self.stock.get(pool, 10**9):
                configs = configs or {
                    each["metadata"]["name"]: each for each in self.admin.items(self.path("testconfigs"))
                }
                if now >= first_seen + self.delay_seconds:
                    given.append(pool)
                    self._launch(machine, configs.get(metadata["name"], {}))

    def _launch(self, machine: Document, config: Document) -> None:
        """The Node first, as it may come before the provider's own report."""
        name, provider_id = machine["metadata"]["name"], f"test:///{machine['metadata']['uid']}"
        registration = config.get("spec", {})
        labels = {"kubernetes.io/hostname": name, **registration.get("labels", {})}
        resources = {"pods": "110", **machine["spec"].get("resources", {})}
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "ready"}
        self.workload_admin.ensure(
            NODES,
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {"providerID": provider_id, "taints": [UNINITIALIZED, *registration.get("taints", ())]},
                "status": {"capacity": resources, "allocatable": resources, "conditions": [ready]},
            },
        )
        self._patch("testmachines", machine, {"spec": {"providerID": provider_id}})
        condition = _condition("True", "Provisioned", "")
        self._patch(
            "testmachines",
            machine,
            {"status": {"initialization": {"provisioned": True}, "conditions": [condition]}},
            "/status",
        )
        self.launched += 1

    def _fail(self, machine: Document, reason: str, message: str) -> None:
        if not machine.get("status"):
            condition = _condition("False", reason, message)
            self._patch("testmachines", machine, {"status": {"conditions": [condition]}}, "/status")

    def _end(self, machine: Document) -> None:
        """The machine is gone, and its Node where nobody has removed it."""
        if machine["spec"].get("providerID"):
            self.workload_admin.delete(f"{NODES}/{machine['metadata']['name']}")
        self._patch("testmachines", machine, {"metadata": {"finalizers": None}})

    def _patch(self, plural: str, document: Document, patch: Document, part: str = "") -> None:
        try:
            self.admin.merge(self.path(plural, document["metadata"]["name"]) + part, patch)
        except ApiRefusal as refused:
            if refused.status not in (404, 409, 500, 503):  # deleted meanwhile, or the API server ends
                raise


def _owner(document: Document) -> bool:
    """Return whether a Machine owns it: before that, providers wait."""
    return any(each["kind"] == "Machine" for each in document["metadata"].get("ownerReferences", ()))


def _condition(status: str, reason: str, message: str) -> Document:
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-01T00:00:00Z",
    }
