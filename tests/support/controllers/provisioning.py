"""The ProvisioningRequest controller with everything that it works on: the planner's harness, an API server in memory
for requests, PodTemplates and the labels of Nodes, and pods that consume requests. Tests can let its observations lag
behind, and kill it before or after any of its calls.

    harness = ProvisioningHarness([group("a")])
    harness.template("web", cpu=1000)
    harness.request("r", ("web", 3))
    harness.run(60)
    assert harness.is_true("r", "Provisioned")
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from cagrpc import errors
from cagrpc.api.encoding.times import timestamp
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.api.provisioning.objects import CLASSES, POD_TEMPLATES, REQUESTS, request_path
from cagrpc.cluster.markers import BOOKING_LABELS, booking_label
from cagrpc.cluster.node_info import Reservations
from cagrpc.cluster.state import ClusterNode, ClusterState, Consumer, ConsumerStage, PodRef
from cagrpc.cluster.view.model import PRIORITY_CLASSES
from cagrpc.controllers.events import Note
from cagrpc.controllers.placement.controller import PlacementController
from cagrpc.controllers.planning import PlanningController
from cagrpc.controllers.provisioning.classes import ATOMIC_SCALE_UP
from cagrpc.controllers.provisioning.controller import ProvisioningController
from cagrpc.controllers.provisioning.store import RequestObjects
from cagrpc.controllers.provisioning.writing import Outcome
from cagrpc.controllers.settings import RequestSettings
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, IncrementStatus, PodKey
from cagrpc.kube.client.client import PatchKind
from cagrpc.kube.client.failures import failure, request_info, status_of
from cagrpc.runtime.runner import Steps
from solver.model import Budget, PodSpec
from tests.support.api_server import ApiServer, Request
from tests.support.controllers.fake_cluster import ClusterApi, FakeCluster, SimPod, UncountedReads
from tests.support.controllers.planner import PlannerHarness

NODES = "/api/v1/nodes"
NAMESPACE = "ns"
IN_NAMESPACE = request_path(NAMESPACE, "").rstrip("/")
OTHER = "other"
"""One more namespace. Its requests are named by `other/name`."""
IN_OTHER = request_path(OTHER, "").rstrip("/")
TEMPLATES = f"/api/v1/namespaces/{NAMESPACE}/podtemplates"


def _path(name: str) -> str:
    return f"{IN_OTHER}/{name.partition('/')[2]}" if "/" in name else f"{IN_NAMESPACE}/{name}"


@dataclass
class ConsumerPod(SimPod):
    """A pod that consumes a request."""

    request: str = ""
    class_name: str = ""
    done: bool = False


@dataclass
class ClusterWithConsumers(FakeCluster):
    """A cluster with pods that consume requests, and with booking labels on Nodes."""

    labels: Callable[[str], Mapping[str, str]] = lambda _: {}
    half: tuple[tuple[PodRef, str], ...] = ()
    _only_demand: bool = False

    def unbound(self) -> list[SimPod]:
        return [
            pod for pod in super().unbound() if not (isinstance(pod, ConsumerPod) and (self._only_demand or pod.done))
        ]

    def consumers(self) -> tuple[Consumer, ...]:
        found = []
        for pod in self.pods.values():
            if isinstance(pod, ConsumerPod):
                bound = ConsumerStage.PENDING if pod.node is None else ConsumerStage.BOUND
                stage = ConsumerStage.SUCCEEDED if pod.done else bound
                found.append(Consumer(pod.ref, pod.request, pod.class_name, pod.spec, stage, pod.node or ""))
        return tuple(found)

    def read(self, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        self._only_demand = True
        try:
            state = super().read(without)
        finally:
            self._only_demand = False
        return replace(state, consumers=self.consumers(), half_consumers=self.half)

    def nodes(self) -> list[ClusterNode]:
        return [
            replace(each, node=replace(each.node, labels={**each.node.labels, **self.labels(each.node.name)}))
            for each in super().nodes()
        ]

    def finish(self, uid: str) -> None:
        """Complete a consumer, which leaves its node."""
        pod = self.pods[uid]
        assert isinstance(pod, ConsumerPod)
        pod.done, pod.node = True, None


class ProvisioningApi:
    """The part of the API server that the controller writes to."""

    def __init__(self) -> None:
        self.store = ApiServer(IN_NAMESPACE, IN_OTHER, NODES)
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.refuses: Callable[[str, str], errors.CagrpcError | None] = lambda method, path: None
        self.calls: list[str] = []

    def patch(self, path: str, body: Mapping[str, Any], kind: PatchKind = PatchKind.MERGE) -> dict[str, Any]:
        assert kind is PatchKind.MERGE
        return self._send("PATCH", path.removesuffix("/status"), body)

    def delete(self, path: str, *, uid: str = "") -> None:
        with suppress(errors.NotFound, errors.Conflict):
            self._send("DELETE", path, {"preconditions": {"uid": uid}} if uid else {})

    def _send(self, method: str, path: str, body: Any) -> dict[str, Any]:
        self.before()
        self.calls.append(f"{method} {path}")
        refusal = self.refuses(method, path)
        if refusal is not None:
            raise refusal
        code, answer = self.store.handle(Request(method, path, {}, {"metadata": {}, **body}))
        if code >= 400:
            raise failure("api", request_info(method, path, {}), code, status_of(json.dumps(answer).encode()))
        self.after()
        assert isinstance(answer, dict)
        return answer


class LabellingApi(ClusterApi):
    """An API server that also keeps the labels of Nodes in a store."""

    def __init__(self, cluster: FakeCluster, store: ApiServer) -> None:
        super().__init__(cluster)
        self.store = store

    def patch(self, path: str, body: Any, _kind: PatchKind = PatchKind.MERGE, **more: str) -> dict[str, Any]:
        labels = body.get("metadata", {}).get("labels") if isinstance(body, dict) else None
        if labels and path in self.store.objects:
            self.store.handle(Request("PATCH", path, {}, {"metadata": {"labels": labels}}))
        return super().patch(path, body, _kind, **more)


class MortalFleet:
    """The fleet as the controller calls it; the process can be killed at each call."""

    def __init__(self, fleet: Fleet, api: ProvisioningApi) -> None:
        self.fleet, self.api = fleet, api

    @property
    def problem(self) -> str | None:
        return self.fleet.problem

    @property
    def snapshot(self) -> FleetSnapshot:
        return self.fleet.snapshot

    def apply_all(self, request_info: Sequence[IncrementSpec]) -> list[IncrementStatus | errors.CagrpcError]:
        self.api.before()
        answers = self.fleet.apply_all(request_info)
        self.api.after()
        return answers

    def increment(self, increment_id: str) -> IncrementStatus:
        return self.fleet.increment(increment_id)

    def withdraw(self, increment_id: str, message: str) -> None:
        self.api.before()
        self.fleet.withdraw(increment_id, message)
        self.api.after()


class LaggingStore(RequestObjects):
    """The store of requests as far as informers have delivered it."""

    synced = True
    problem: str | None = None
    informers = ()


class ProvisioningHarness(PlannerHarness):
    cluster: ClusterWithConsumers

    def __init__(
        self, groups: Sequence[Any], limits: Sequence[Any] = (), *, requests: RequestSettings | None = None, **more: Any
    ) -> None:
        self.request_settings = requests or RequestSettings()
        self.api = ProvisioningApi()
        self.view_lags = self.store_lags = False
        self.node_labels: dict[str, dict[str, str]] = {}
        """As the view sees them."""
        self.recorded: list[Note] = []
        self.outcomes: list[Outcome] = []
        self.templates: dict[str, Any] = {}
        self.priority_classes: list[bytes] = []
        self.plans = False
        """Whether the planner loop works too (`drive: plan`)."""
        self.cpu: Callable[[], float] = lambda: 0.0
        self.turn = threading.Lock()
        super().__init__(groups, limits, **more)

    def _start(self) -> None:
        if not isinstance(self.cluster, ClusterWithConsumers):
            played = self.cluster
            self.cluster = ClusterWithConsumers(self.clock, self.backend, played.groups)
            self.cluster.daemon_sets = played.daemon_sets
            self.cluster.labels = lambda name: self.node_labels.get(name, {})
        super()._start()
        self.store = LaggingStore()
        self.sync(again=True)
        self.requests = ProvisioningController(
            self.store,
            self.cluster,
            MortalFleet(self.fleet, self.api),
            self.api,
            self.request_settings,
            turn=self.turn,
            record=self.recorded.append,
            observe=self.outcomes.append,
            now=self.clock,
            clock=self.clock,
            cpu=self.cpu,
            budget=Budget(deterministic_seconds=1.0),
            wanted=lambda snapshot, state: self.places.wanted(snapshot, self.cluster.nominated_by_us(), state),
            others=self.others,
            workers=1,
        )
        self.loop = PlanningController(
            self.fleet,
            self.cluster,
            self.settings,
            record=self.notes.append,
            clock=self.clock,
            now=self.clock,
            budget=Budget(deterministic_seconds=1.0),
            reservations=self.reservations,
            turn=self.turn,
            places=self.places,
            lost=lambda: self.placement.news,
        )
        self.planning = Steps(self.loop, self.clock)
        self.provisioning = Steps(self.requests, self.clock)

    def cluster_api(self) -> Any:
        return LabellingApi(self.cluster, self.api.store)

    def _placement(self) -> PlacementController:
        cluster: Any = UncountedReads(self.cluster)
        return PlacementController(
            self.cluster_api(),
            self.fleet,
            cluster,
            self.places,
            reservations=self.reservations,
            consumers=lambda: self.requests.consumer_nodes(self.cluster.pending),
            clock=self.clock,
        )

    def reservations(self, state: ClusterState) -> Reservations:
        return self.requests.reservations(state)

    def others(self, _: ClusterState) -> Reservations:
        """Return the reservations of others than requests."""
        return {}

    def restart(self) -> None:
        self.turn = threading.Lock()
        super().restart()

    # ---- users' actions

    def template(self, name: str, *, cpu: int = 1000, **spec: Any) -> None:
        """Create a PodTemplate in all namespaces."""
        requests = {"requests": {"cpu": f"{cpu}m"}}
        pod: dict[str, Any] = {"containers": [{"name": "main", "resources": requests}], **spec}
        self.templates[name] = {"metadata": {"name": name}, "template": {"spec": pod}}

    def priority_class(self, name: str, value: int) -> None:
        found = kubernetes_pb2.PriorityClass(metadata={"name": name}, value=value)
        self.priority_classes.append(found.SerializeToString())

    def request(self, name: str, *pod_sets: tuple[str, int], of: str = ATOMIC_SCALE_UP, **parameters: str) -> str:
        """Create a ProvisioningRequest and return its UID."""
        path = _path(name)
        namespace, name = (OTHER if "/" in name else NAMESPACE), path.rpartition("/")[2]
        sets = [{"podTemplateRef": {"name": template}, "count": count} for template, count in pod_sets]
        metadata = {"name": name, "namespace": namespace, "generation": 1}
        document = {
            "metadata": {**metadata, "creationTimestamp": timestamp(self.clock())},
            "spec": {"provisioningClassName": of, "podSets": sets, "parameters": parameters},
        }
        return str(self.api.store.put(path, document)["metadata"]["uid"])

    def delete(self, name: str) -> None:
        self.api.store.objects.pop(_path(name), None)

    def consume(self, name: str, count: int, *, cpu: int = 1000, of: str = ATOMIC_SCALE_UP) -> list[str]:
        """Create pods that consume a request and return their UIDs."""
        made = []
        for _ in range(count):
            self.made += 1
            ref = PodRef(f"uid-{self.made}", NAMESPACE, f"pod-{self.made}", int(self.clock()))
            spec = PodSpec((("cpu", cpu),))
            self.cluster.pods[ref.uid] = ConsumerPod(ref, spec, self.clock(), request=name, class_name=of)
            made.append(ref.uid)
        return made

    # ---- state

    def document(self, name: str) -> dict[str, Any]:
        return self.api.store.objects[_path(name)]

    def condition(self, name: str, kind: str) -> dict[str, Any] | None:
        conditions = self.document(name).get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), None)

    def is_true(self, name: str, kind: str) -> bool:
        found = self.condition(name, kind)
        return found is not None and found["status"] == "True"

    def message(self, name: str, kind: str) -> str:
        found = self.condition(name, kind)
        assert found is not None, self.document(name).get("status")
        return str(found["message"])

    def details(self, name: str) -> dict[str, str]:
        return dict(self.document(name).get("status", {}).get("provisioningClassDetails", {}))

    def labelled(self, uid: str) -> set[str]:
        objects = self.api.store.objects.items()
        return {
            path.rpartition("/")[2]
            for path, each in objects
            if path.startswith(NODES) and booking_label(uid) in each["metadata"].get("labels", {})
        }

    def any_labels(self) -> set[str]:
        objects = self.api.store.objects.items()
        return {
            label
            for path, each in objects
            if path.startswith(NODES)
            for label in each["metadata"].get("labels", {})
            if label.startswith(BOOKING_LABELS)
        }

    def notes_of(self, reason: str) -> list[Note]:
        return [note for note in self.recorded if note.reason == reason]

    # ---- events

    def sync(self, *, again: bool = False) -> None:
        """Deliver to the informers what the API server has now."""
        self._register()
        if again or not self.view_lags:
            self.node_labels = {
                path.rpartition("/")[2]: dict(each["metadata"].get("labels", {}))
                for path, each in self.api.store.objects.items()
                if path.startswith(NODES)
            }
        if again or not self.store_lags:
            requests = [each for path, each in self.api.store.objects.items() if "/provisioningrequests/" in path]
            templates = [
                {**each, "metadata": {**each["metadata"], "namespace": namespace}}
                for each in self.templates.values()
                for namespace in (NAMESPACE, OTHER)
            ]
            given: dict[str, Iterable[Any]] = {
                REQUESTS: requests,
                POD_TEMPLATES: templates,
                PRIORITY_CLASSES: self.priority_classes,
                CLASSES: (),
            }
            for each in self.store.followed:
                found = [each.resource.decode(document) for document in given.get(each.resource.path, ())]
                each.sink.replaced(found)

    def _register(self) -> None:
        """Create and delete Node objects as machines come and go."""
        there = {f"{NODES}/{each.node.name}" for each in self.cluster.nodes()}
        objects = self.api.store.objects
        for path in there - objects.keys():
            self.api.store.put(path, {"metadata": {"name": path.rpartition("/")[2]}})
        for path in [path for path in objects if path.startswith(NODES) and path not in there]:
            del objects[path]

    def place(self) -> None:
        self._register()
        super().place()

    def step(self) -> None:
        with suppress(errors.Unavailable):
            self.fleet.reconcile()
        self.place()
        self.cluster.drop_lost_pods()
        if self.cluster.scheduling:
            self.cluster.schedule()
        self.sync()
        self.provisioning.take()
        if self.plans:
            self.planning.take()


Make = Callable[..., ProvisioningHarness]
"""`make(*groups, **more)`, closed at the end of the test: the fixture of tests/controllers/provisioning."""
