"""A management cluster in memory: an API server that answers discovery and watches, and what Cluster API's core and the
providers of TestMachine and TestConfig do there, when a test says `step`. The real core is in
`tests.support.controlplane.cluster_api`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Condition
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes.client import Configuration

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.kube.client.access import Access
from cagrpc.kube.client.client import Client
from tests.support.api_server import ApiRequest, ApiServer, Document, Fault, _ObjectsHandler
from tests.support.http_server import serving

CORE = "cluster.x-k8s.io"
PROVIDER = "test.cagrpc.io"
NAMESPACE = "machines"
CLUSTER = "workload"
KINDS: Mapping[str, Mapping[str, str]] = {
    CORE: {
        "Cluster": "clusters",
        "Machine": "machines",
        "MachineDeployment": "machinedeployments",
        "MachinePool": "machinepools",
    },
    PROVIDER: {
        "TestMachine": "testmachines",
        "TestMachineTemplate": "testmachinetemplates",
        "TestConfig": "testconfigs",
        "TestConfigTemplate": "testconfigtemplates",
    },
    "bootstrap.cluster.x-k8s.io": {
        "KubeadmConfig": "kubeadmconfigs",
        "KubeadmConfigTemplate": "kubeadmconfigtemplates",
    },
}
_FINALIZER = "machine.cluster.x-k8s.io"
_WATCH_SECONDS = 60.0


class ManagementCluster(ApiServer):
    """With one Cluster. `short` are pools without machines, `failing` those whose machines fail (reason and message),
    `unnamed` those whose machines get no providerID yet."""

    def __init__(self, version: str = "v1beta2") -> None:
        self.version = version
        super().__init__(*(self.path(kind) for group in KINDS.values() for kind in group))
        self.short: set[str] = set()
        self.failing: dict[str, tuple[str, str]] = {}
        self.lists_are_late = False
        """Whether watches deliver nothing."""
        self.changed = Condition()
        self.generation = 0
        """A watch lasts as long as this stays the same."""
        self.events: list[tuple[int, str, Document, bool]] = []
        """Resource version, path, object, whether it is there."""
        self._created_at = 0
        self.put(self.path("Cluster", CLUSTER), {"spec": {}, "status": {}})

    def path(self, kind: str, name: str = "") -> str:
        group = next(group for group, kinds in KINDS.items() if kind in kinds)
        version = self.version if group == CORE else "v1"
        collection = f"/apis/{group}/{version}/namespaces/{NAMESPACE}/{KINDS[group][kind]}"
        return f"{collection}/{name}" if name else collection

    def of(self, kind: str) -> list[Document]:
        """Return the objects of a kind, by name."""
        return [each for path, each in sorted(self.objects.items()) if path.rpartition("/")[0] == self.path(kind)]

    def client(self, wait: Callable[[float], object] = lambda _: None) -> Client:
        """With connections for each watch and each worker."""

        def load(configuration: Configuration) -> None:
            configuration.host = self.url

        return Client(Access(load, pool_size=32), wait)

    # ---- what people write

    def template(self, pool: str, **config: Any) -> None:
        """An infrastructure and a bootstrap template; `config` is the bootstrap configuration."""
        self.put(self.path("TestMachineTemplate", pool), _template("TestMachineTemplate", {"pool": pool}))
        self.put(self.path("TestConfigTemplate", pool), _template("TestConfigTemplate", config))

    def machine_deployment(self, pool: str, metadata: Mapping[str, Any] | None = None, **spec: Any) -> None:
        """One with templates of its name. `metadata` and `spec` are fields of its Machines."""
        machine = {
            "clusterName": CLUSTER,
            "infrastructureRef": self.reference("TestMachineTemplate", pool),
            "bootstrap": {"configRef": self.reference("TestConfigTemplate", pool)},
            **spec,
        }
        self.put(
            self.path("MachineDeployment", pool),
            {"spec": {"clusterName": CLUSTER, "template": {"metadata": dict(metadata or {}), "spec": machine}}},
        )

    def reference(self, kind: str, name: str) -> Document:
        """As this version of Cluster API writes it."""
        group = next(group for group, kinds in KINDS.items() if kind in kinds)
        where = (
            {"apiVersion": f"{group}/v1", "namespace": NAMESPACE} if self.version == "v1beta1" else {"apiGroup": group}
        )
        return {**where, "kind": kind, "name": name}

    # ---- what the core and the providers do

    def step(self) -> None:
        """Every Machine gets what it can, and every deleted one goes with its clones."""
        for machine in self.of("Machine"):
            name, metadata = machine["metadata"]["name"], machine["metadata"]
            infrastructure = self.objects.get(self.path("TestMachine", name))
            if metadata.get("deletionTimestamp"):
                for kind in ("TestMachine", "TestConfig", "KubeadmConfig", "Machine"):
                    if self.path(kind, name) in self.objects:
                        self.remove(self.path(kind, name))
                continue
            if infrastructure is None or machine["spec"].get("providerID"):
                continue
            self.edit(self.path("Machine", name), finalizers=[_FINALIZER])
            pool = infrastructure["spec"]["pool"]
            if pool in self.failing:
                reason, message = self.failing[pool]
                condition = {"type": "InfrastructureReady", "status": "False", "reason": reason, "message": message}
                self.change(self.path("Machine", name), status={"conditions": [condition]})
            elif pool not in self.short:
                self.change(self.path("Machine", name), spec={"providerID": f"test:///{metadata['uid']}"})

    # ---- the server

    def put(self, path: str, found: Document) -> Document:
        with self.changed:
            metadata = {**found.get("metadata", {}), "namespace": NAMESPACE}
            if path not in self.objects:
                self._created_at += 1
                metadata["creationTimestamp"] = timestamp(1_793_500_000 + self._created_at)
            stored = super().put(path, {**found, "metadata": metadata})
            self._record(path, stored, there=True)
            return stored

    def remove(self, path: str) -> Document:
        with self.changed:
            document = super().remove(path)
            self._record(path, document, there=False)
            return document

    def deliver(self) -> None:
        """Watches go on."""
        with self.changed:
            self.lists_are_late = False
            self.changed.notify_all()

    def disconnect(self) -> None:
        """Every watch breaks off."""
        with self.changed:
            self.generation += 1
            self.changed.notify_all()

    def since(self, path: str, query: Mapping[str, str], version: int) -> list[tuple[int, Document]]:
        """Return watch events after a version."""
        found = []
        for at, where, document, there in self.events:
            if at > version and where.rpartition("/")[0] == path and _selected(document, query):
                found.append((at, {"type": "MODIFIED" if there else "DELETED", "object": document}))
        return found

    def _record(self, path: str, document: Document, *, there: bool) -> None:
        with self.changed:
            self.events.append((self._version, path, json.loads(json.dumps(document)), there))
            self.changed.notify_all()

    def _do(self, request: ApiRequest) -> Any:
        parts = request.path.strip("/").split("/")
        if request.method == "GET" and parts[0] == "apis" and len(parts) in (2, 3):
            return self._discovered(*parts[1:])
        return super()._do(request)

    def _discovered(self, group: str, version: str = "") -> Document:
        if group not in KINDS:
            return super()._do(ApiRequest("GET", "/nowhere/at/all", {}, None))  # type: ignore[no-any-return]
        served = self.version if group == CORE else "v1"
        if not version:
            found = {"groupVersion": f"{group}/{served}", "version": served}
            return {"name": group, "versions": [found], "preferredVersion": found}
        return {"resources": [{"kind": kind, "name": plural} for kind, plural in KINDS[group].items()]}

    def _deleted(self, path: str, found: Document, options: Document) -> Document:
        if not found["metadata"].get("finalizers"):
            return super()._deleted(path, found, options)
        if not found["metadata"].get("deletionTimestamp"):
            self.edit(path, deletionTimestamp="2026-11-01T12:00:00Z")
        return self.objects[path]

    def _listed(self, request: ApiRequest) -> Any:
        page = super()._listed(ApiRequest("GET", request.path, {}, None))
        items = [each for each in page["items"] if _selected(each, request.query)]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": items}


def writes(request: ApiRequest) -> bool:
    return request.method in ("POST", "DELETE")


def lost_after(count: int) -> Any:
    """Return a fault: the answers to all writes but the next `count` are lost."""
    left = count

    def fault(request: ApiRequest) -> Fault:
        nonlocal left
        if not writes(request):
            return Fault.NONE
        left -= 1
        return Fault.NONE if left >= 0 else Fault.LOST

    return fault


@contextmanager
def management_cluster(version: str = "v1beta2") -> Iterator[ManagementCluster]:
    """Run it."""
    api = ManagementCluster(version)
    with serving(_WatchingHandler) as (server, url):
        server.api = api  # type: ignore[attr-defined]
        server.daemon_threads = True
        server.block_on_close = False  # watches may be open
        api.url = url
        yield api
        with api.changed:
            api.url = ""
            api.changed.notify_all()


class _WatchingHandler(_ObjectsHandler):
    def do_GET(self) -> None:  # noqa: N802 - a name of the base class
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        if "watch" in query:
            self._watch(self.server.api, url.path, query)  # type: ignore[attr-defined]
        else:
            self._answer()

    def _watch(self, api: ManagementCluster, path: str, query: dict[str, str]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        version = int(query["resourceVersion"])
        try:
            generation = api.generation
            while api.url and api.generation == generation:
                with api.changed:
                    events = [] if api.lists_are_late else api.since(path, query, version)
                    if not events and api.url and api.generation == generation:
                        api.changed.wait(_WATCH_SECONDS)
                for at, event in events:
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    version = at
                self.wfile.flush()
        except OSError:
            return  # nobody watches any more


def _selected(document: Document, query: Mapping[str, str]) -> bool:
    labels = document["metadata"].get("labels") or {}
    wanted = dict(each.split("=") for each in query.get("labelSelector", "").split(",") if each)
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return wanted.items() <= labels.items() and name in ("", document["metadata"]["name"])


def _template(kind: str, spec: Mapping[str, Any]) -> Document:
    return {"kind": kind, "spec": {"template": {"metadata": {}, "spec": dict(spec)}}}
