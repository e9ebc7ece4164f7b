"""Simulates the Nodes and kubelets of the backend's instances in a cluster, as kwok does: a running instance has a Node
with a renewed Lease, pods bound to it start running and are removed when deleted, and all of it goes with the instance.
Nodes register with the start-up taint, which the `startup` controller removes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cagrpc.backends.simulated.backend import ID_PREFIX
from cagrpc.backends.simulated.nodes import nodes, pods
from cagrpc.backends.simulated.nodes.nodes import (
    NOT_READY_TAINT,
    SIMULATED,
    NodeLeases,
    SimulatedNode,
    SimulatedNodes,
    is_simulated,
    read,
    ready_again,
    registration,
)
from cagrpc.backends.simulated.nodes.pods import BoundPod, BoundPods, Stage, running, started, stopped
from cagrpc.errors import CagrpcError, Conflict, FailedPrecondition, NotFound
from cagrpc.fleet.backend import Backend, BackendInstance
from cagrpc.fleet.model import FleetSnapshot, InstanceState
from cagrpc.kube.client.client import Client, PatchKind
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource
from cagrpc.kube.nodes import NODES, lift
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from cagrpc.runtime.controller import Controller, Json
from cagrpc.runtime.work_queue import WorkQueue
from solver.model import NodeGroup

_log = logging.getLogger(__name__)

NODE_RESOURCE = Resource(NODES, nodes.decode, query={"labelSelector": f"{SIMULATED}=true"})
POD_RESOURCE = Resource("/api/v1/pods", pods.decode, query={"fieldSelector": "spec.nodeName!="})

_WORKERS = 16
_LONGEST_PAUSE_SECONDS = 10.0
_PODS_GO_SECONDS = 0.2
_NEWS_SECONDS = 0.5
_DELETED_AGAIN_SECONDS = 10.0
"""After which a pod is deleted once more that is half deleted; a kubelet tries as often."""
_MOST_GONE = 20_000
"""Removed Nodes that are remembered, so that pods bound to them at the last moment are deleted as well."""
_NODE, _POD = "node", "pod"


def node_name(instance_id: str) -> str:
    return instance_id.removeprefix(ID_PREFIX)


_DOMAIN_LENGTH = 12
"""Characters of an increment's id that tell its topology domain from others."""


class NodeController(Controller):
    """Maintains Nodes, Leases and pods for the instances of `backend`. It changes and removes only Nodes with the label
    `cagrpc.io/simulated`. All state is in the cluster, so any other process can take over."""

    name = "the life of simulated nodes"
    every_seconds = 0.2

    def __init__(
        self,
        client: Client,
        backend: Backend,
        snapshot: Callable[[], FleetSnapshot],
        *,
        lease_seconds: float = 40.0,
        now: EpochClock = epoch,
        clock: MonotonicClock = monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called when a Node has become Ready."""
        self._client = client
        self._changed = changed
        self._backend = backend
        self._snapshot = snapshot
        self._now = now
        self._wanted: Mapping[str, BackendInstance] = {}
        """Running instances by the names of their Nodes, from the backend's last list."""
        self._orphaned: AbstractSet[str] = frozenset()
        """Nodes without a running instance in the backend's last list; empty while the backend is unavailable."""
        self._gone: dict[str, str] = {}
        """Uids of removed Nodes by name."""
        self._ready: set[str] = set()
        """Names of Nodes that are Ready."""
        self.queue: WorkQueue[tuple[str, str]] = WorkQueue(
            "simulated nodes", self._sync, workers=_WORKERS, longest_pause_seconds=_LONGEST_PAUSE_SECONDS, clock=clock
        )
        self.nodes = SimulatedNodes(self._node_changed)
        self.pods = BoundPods(self._pod_changed)
        self.leases = NodeLeases(client, self.nodes.get, duration_seconds=lease_seconds, now=now, clock=clock)
        self._informers = (
            Informer(client, NODE_RESOURCE, self.nodes),
            Informer(client, POD_RESOURCE, self.pods),
        )

    @property
    def problem(self) -> str | None:
        """Why Nodes are not in the desired state; None where they are."""
        reflected = (each.problem for each in self._informers)
        return next(filter(None, (*reflected, self.queue.problem, self.leases.queue.problem)), None)

    def queues(self) -> Sequence[WorkQueue[Any]]:
        """Return the queues of Nodes with their pods, and of Leases."""
        return self.queue, self.leases.queue

    def informers(self) -> Sequence[Informer[Any]]:
        """Return the informers of its Nodes and of bound pods."""
        return self._informers

    def status(self) -> Json:
        return {"simulated_nodes": self.problem or "as they should be"}

    def step(self) -> None:
        """Compare the backend's list with the existing Nodes and queue the differences. Raises Unavailable where the
        backend is unavailable; nothing is removed until it is back."""
        known = (
            self.nodes.names()
        )  # before the list, or a Node that another process just registered would seem orphaned
        try:
            listing = self._backend.list_instances().instances
        except CagrpcError:
            self._orphaned = frozenset()
            raise
        first = not self._wanted
        wanted = {node_name(i.id): i for i in listing if i.state is InstanceState.RUNNING}
        self._wanted, self._orphaned = wanted, known - wanted.keys()
        if self.nodes.synced:
            for name in wanted.keys() if first else wanted.keys() - known:
                self.queue.add((_NODE, name))
            for name in self._orphaned:
                self.queue.add((_NODE, name))

    def _node_changed(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is None or not node.ready:
            self._ready.discard(name)
        elif name not in self._ready:
            self._ready.add(name)
            self._changed()
        # The node lifecycle controller often corrects it at once.
        self.queue.add((_NODE, name), _NEWS_SECONDS)

    def _pod_changed(self, pod: BoundPod) -> None:
        waits = pod.stage in (Stage.WAITING, Stage.LEAVING) or pod.half_deleted
        if self._is_removed(pod.node) or (waits and self.nodes.get(pod.node) is not None):
            self.queue.add((_POD, pod.uid), _DELETED_AGAIN_SECONDS if pod.half_deleted else 0.0)

    def _is_removed(self, name: str) -> bool:
        node, gone = self.nodes.get(name), self._gone.get(name)
        # An instance that runs again, as after a clock was set back, has a Node of the same name.
        return name in self._orphaned or (gone is not None and (node is None or node.uid == gone))

    def _sync(self, key: tuple[str, str]) -> float | None:
        kind, which = key
        if kind == _POD:
            pod = self.pods.get(which)
            if pod is not None:
                self._sync_pod(pod)
            return None
        instance, node = self._wanted.get(which), self.nodes.get(which)
        if instance is not None:
            return self._keep(which, instance, node)
        if node is not None and which in self._orphaned:
            return self._remove(node)
        return None

    def _keep(self, name: str, instance: BackendInstance, node: SimulatedNode | None) -> float | None:
        """Restore what a Node lacks: itself, its readiness, its Lease, the status of its pods."""
        if node is None:
            self._register(name, instance)
            self.leases.keep(name)
            return None  # the rest follows once its controllers have acted on it
        if not node.ready:
            with suppress(NotFound):
                self._observed(
                    self._client.patch(f"{NODES}/{name}/status", ready_again(self._now()), PatchKind.STRATEGIC)
                )
        if NOT_READY_TAINT in node.taint_keys:
            lift(self._client, name, NOT_READY_TAINT)
        self._label(instance, node)
        self.leases.keep(name)
        for pod in self.pods.on(name):
            self._pod_changed(pod)
        return None

    def _register(self, name: str, instance: BackendInstance) -> None:
        state = self._snapshot().groups.get(instance.node_group)
        if state is None:
            raise FailedPrecondition(
                f"instance {instance.id} has no Node: its node group {instance.node_group} is not known"
            )
        try:
            group = _in_its_domain(self._snapshot(), state.group, instance.id)
            node = self._client.create(NODES, registration(group, name, instance.id, self._now()))
        except Conflict:
            node = self._client.get(f"{NODES}/{name}")
            if not is_simulated(node) or node["spec"].get("providerID") != instance.id:
                raise Conflict(
                    f"instance {instance.id} has no Node: there is another one called {name}, which is left alone"
                ) from None
        self._observed(node)

    def _label(self, instance: BackendInstance, node: SimulatedNode) -> None:
        """Set the labels of its group that come late, as feature discovery does."""
        state = self._snapshot().groups.get(instance.node_group)
        late = frozenset() if state is None else state.group.post_registration_labels
        if state is not None and not late <= node.label_keys:
            labels = {key: state.group.labels[key] for key in late}
            with suppress(NotFound):
                self._observed(self._client.patch(f"{NODES}/{node.name}", {"metadata": {"labels": labels}}))

    def _observed(self, document: Mapping[str, Any]) -> None:
        self.nodes.applied(read(document))

    def _remove(self, node: SimulatedNode) -> float | None:
        """Remove a Node in steps: cordon it first, so that the scheduler does not use the room that its pods leave, and
        delete it last, so that another process resumes here after a crash."""
        name = node.name
        if self._gone.get(name) == node.uid:
            return None  # its deletion was not observed yet
        if not node.cordoned:
            try:
                self._observed(self._client.patch(f"{NODES}/{name}", {"spec": {"unschedulable": True}}))
            except NotFound:
                return None
        left = [pod for pod in self.pods.on(name) if pod.stage is not Stage.LET_GO]
        if left:
            for pod in left:
                self.queue.add((_POD, pod.uid))
            return _PODS_GO_SECONDS
        self.leases.remove(name)
        self._client.delete(f"{NODES}/{name}", uid=node.uid)
        self._gone[name] = node.uid
        if len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]
        _log.debug("node %s is removed: its instance is gone", name)
        return None

    def _sync_pod(self, pod: BoundPod) -> None:
        if pod.stage is Stage.LET_GO and not pod.half_deleted:
            return
        if pod.stage is Stage.LEAVING or pod.half_deleted or self._is_removed(pod.node):
            if pod.waits_for_end:
                with suppress(NotFound):
                    self._client.patch(f"{pod.path}/status", stopped(pod), PatchKind.STRATEGIC)
            self._client.delete(pod.path, uid=pod.uid, grace_seconds=0)
            self.pods.learned(replace(pod, stage=Stage.LET_GO))
        elif pod.stage is Stage.WAITING and self.nodes.get(pod.node) is not None:
            with suppress(NotFound):
                answer = self._client.patch(f"{pod.path}/status", running(pod, self._now()), PatchKind.STRATEGIC)
                self.pods.learned(started(pod, answer["metadata"]["resourceVersion"]))


def _in_its_domain(fleet: FleetSnapshot, group: NodeGroup, instance_id: str) -> NodeGroup:
    """Return the group as it is to this instance: nodes that are ordered together share the domains that they begin."""
    if group.new_domains is None:
        return group
    increments = (each.id for each in fleet.increments for node in each.nodes if node.instance_id == instance_id)
    domain = next(increments, instance_id)[:_DOMAIN_LENGTH]
    return replace(group, labels=group.labels_in(domain))
