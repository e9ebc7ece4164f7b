"""A scene for the placement and release controllers: a real fleet, and real cluster state over an API server in memory,
with an increment of three nodes and three pods for each.

    with api_server() as cluster:
        scene = Scene(cluster)
        scene.run()
        assert scene.nominated() == scene.planned()
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import deepcopy
from typing import Any

from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.cluster.shortages import Shortages
from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.model import NODES, PODS, ClusterModel, ModelSettings
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.placement.controller import PlacementController
from cagrpc.controllers.placement.release import APART_SECONDS, ReleaseController
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.demonstration.wire import pod_bytes
from cagrpc.errors import CagrpcError, Unavailable
from cagrpc.fleet.model import IncrementSpec, Phase, Placement, PodKey
from cagrpc.kube.client.envelopes import identity
from tests.support.api_server import ApiServer, node_bytes
from tests.support.fleet import FleetHarness, MemoryJournal, ScriptedNodes, group

OTHER_TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}
HELD = ("nvidia.com/gpu", START_UP_TAINT)
FREE = ("nvidia.com/gpu",)
CPU_OF_A_POD, CPU_OF_A_NODE = 1000, 4000
RETRIED_SECONDS = 60.0
"""Whatever failed is tried again by then."""


class FedView:
    """Cluster state that `sync` updates with what has changed in the API server."""

    def __init__(self, cluster: ApiServer, clock: Any) -> None:
        self.unknown = False
        self._cluster = cluster
        self._model = ClusterModel(ModelSettings(), clock, clock)
        self._followed = {each.resource.path: each for each in self._model.followed}
        for path, document in cluster.objects.items():
            self._feed(path, document, there=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def state(self, *, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        self._check()
        return self._model.state(without)

    def held_nodes(self) -> Mapping[str, str]:
        self._check()
        return self._model.held_nodes()

    def sync(self) -> None:
        while self._cluster.unseen:
            path, document, there = self._cluster.unseen.popleft()
            self._feed(path, document, there=there)

    def _feed(self, path: str, document: Any, *, there: bool) -> None:
        of, data = (PODS, pod_bytes(document)) if "/pods/" in path else (NODES, node_bytes(document))
        followed = self._followed[of]
        if there:
            followed.applied(followed.resource.decode(data))
        else:
            followed.deleted(identity(followed.resource.encoding, data))

    def _check(self) -> None:
        if self.unknown:
            raise Unavailable("the list of nodes is still to come")


class Scene:
    """An increment of two nodes of group a and one of b, three pods planned for each, all of it ready."""

    def __init__(self, cluster: ApiServer) -> None:
        self.cluster = cluster
        self.ready = ScriptedNodes()
        self.journal = MemoryJournal()
        self.outside = FleetHarness(
            [group("a", cpu=CPU_OF_A_NODE), group("b", cpu=CPU_OF_A_NODE)],
            journal=self.journal,
            options={"nodes": self.ready},
        )
        self.clock = self.outside.clock
        self.fleet = self.outside.fleet()
        self.lags = False
        """Whether the cluster state does not get changes."""
        pods = [self.pod(f"pod-{number}") for number in range(9)]
        placements = tuple(
            Placement(of, tuple(f"uid-{name}" for name in pods[3 * index : 3 * index + 3]))
            for index, of in enumerate("aab")
        )
        uids = frozenset(f"uid-{name}" for name in pods)
        self.increment = self.apply(IncrementSpec({"a": 2, "b": 1}, placements=placements, pods=uids))
        self.cluster.requests.clear()
        self.restart()

    def pod(self, name: str, cpu: int = CPU_OF_A_POD, *, node: str = "", **spec: Any) -> str:
        resources = {"requests": {"cpu": f"{cpu}m"}}
        spec = {"containers": [{"name": "main", "resources": resources}], "tolerations": [TOLERATION], **spec}
        self.cluster.pod(name, node=node, spec=spec)
        return name

    def apply(self, increment: IncrementSpec) -> str:
        """Apply the increment, make it ready, and return its id."""
        applied = self.fleet.apply(increment)
        self.fleet.reconcile()
        self.outside.backend.boot_all()
        for instance_id in self.outside.backend.ids():
            self.register(instance_id)
        self.fleet.reconcile()
        assert self.fleet.increment(applied.id).phase is Phase.READY
        return applied.id

    def register(self, instance_id: str) -> str:
        """Create the Node of an instance, ready and held, and return its name."""
        name = instance_id.removeprefix("scripted://")
        self.ready.ready.add(instance_id)
        if self._path(name) not in self.cluster.objects:
            taints = [OTHER_TAINT, {"key": START_UP_TAINT, "effect": "NoSchedule"}]
            status = {
                "allocatable": {"cpu": f"{CPU_OF_A_NODE}m", "memory": "16Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            document = {"metadata": {"labels": {}}, "spec": {"providerID": instance_id, "taints": taints}}
            self.cluster.put(self._path(name), {**document, "status": status})
        return name

    def restart(self, *, dedicated: bool = False, serves_requests: bool = False) -> None:
        """Start a new process; the old one may have ended anywhere."""
        client: Any = self.cluster.client()
        self.view = FedView(self.cluster, self.clock)
        self.cluster.unseen.clear()
        view: Any = self.view
        settings = PlannerSettings(dedicated_nodes=dedicated)
        shortages = Shortages(settings.shortage_seconds, self.clock)
        self.assumed = AssumeCache(view, shortages, self.clock, serves_requests=serves_requests)
        self.placement = PlacementController(client, self.fleet, view, self.assumed, clock=self.clock)
        self.release = ReleaseController(
            client, self.fleet, view, self.placement, self.assumed, settings, clock=self.clock
        )

    # ---- events

    def run(self, steps: int = 4) -> None:
        """Run the controllers `steps` times, with time passing in between."""
        for _ in range(steps):
            self.place()
            self.let_go()
            self.clock.advance(APART_SECONDS)

    def place(self) -> None:
        self.sync()
        with suppress(CagrpcError):
            self.placement.step()
        self.placement.queue.run_due()
        self.sync()

    def let_go(self) -> None:
        with suppress(CagrpcError):
            self.release.step()
        self.release.queue.run_due()
        self.sync()

    def later(self, seconds: float = RETRIED_SECONDS) -> None:
        """Let time pass, so that failed writes are retried."""
        self.clock.advance(seconds)
        self.run()

    def sync(self) -> None:
        if not self.lags:
            self.view.sync()

    def bind(self, name: str, node: str) -> None:
        """Bind a pod as the scheduler does; the API server clears its nomination."""
        self.nominate(name, "")
        self.cluster.change(self._pod(name), spec={"nodeName": node})

    def nominate(self, name: str, node: str) -> None:
        """Nominate a pod as the scheduler does, or clear its nomination."""
        pod = deepcopy(self.cluster.objects[self._pod(name)])
        pod["metadata"]["managedFields"] = ["kube-scheduler"]
        pod["status"]["nominatedNodeName"] = node
        if not node:  # absent where it is empty
            del pod["status"]["nominatedNodeName"]
        self.cluster.put(self._pod(name), pod)

    # ---- state

    def phase(self) -> Phase:
        return self.fleet.increment(self.increment).phase

    def nodes(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.cluster.objects if "/nodes/" in path]

    def nominated(self) -> dict[str, str]:
        found = {path.rpartition("/")[2]: pod for path, pod in self.cluster.objects.items() if "/pods/" in path}
        return {name: node for name, pod in found.items() if (node := pod["status"].get("nominatedNodeName"))}

    def planned(self) -> dict[str, str]:
        """Return the planned placements of a ready increment."""
        held = self.fleet.increment(self.increment).held
        pods = {str(pod).removeprefix("uid-"): node.instance_id for node in held for pod in node.pods}
        return {name: instance_id.removeprefix("scripted://") for name, instance_id in pods.items()}

    def taints(self) -> set[tuple[str, ...]]:
        return {tuple(self.cluster.taints(name)) for name in self.nodes()}

    def _path(self, name: str) -> str:
        return f"/api/v1/nodes/{name}"

    def _pod(self, name: str) -> str:
        return f"/api/v1/namespaces/default/pods/{name}"
