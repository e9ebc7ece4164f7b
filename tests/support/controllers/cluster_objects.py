"""Objects of a small cluster, and a cluster model whose informers are the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.model import NODES, PODS, ClusterModel, ModelSettings
from cagrpc.cluster.view.sinks import Followed
from cagrpc.fleet.model import PodKey
from cagrpc.kube.client.envelopes import identity
from solver import PodSpec
from tests.support.clocks import any_clock

NOW = 10_000.0
REPLICA_SETS, STATEFUL_SETS, JOBS = "/apis/apps/v1/replicasets", "/apis/apps/v1/statefulsets", "/apis/batch/v1/jobs"
DAEMON_SETS, PRIORITIES = "/apis/apps/v1/daemonsets", "/apis/scheduling.k8s.io/v1/priorityclasses"
POD_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/podgroups"


class Fed:
    """A cluster model that a test feeds with objects."""

    def __init__(self, slack: Exclusion | None = None, *, expects: bool = False, **devices: Any) -> None:
        self.time = 0.0
        self.model = ClusterModel(
            ModelSettings(schedulers={"default-scheduler"}, slack=slack, expects=expects, **devices),
            any_clock(lambda: self.time),
            any_clock(lambda: NOW),
        )
        self._by_path = {each.resource.path: each for each in self.model.followed}

    def followed(self, path: str) -> Followed[Any]:
        """Return what follows the resource of this path."""
        return self._by_path[path]

    def paths(self) -> Iterable[str]:
        """Return the collections that are followed."""
        return self._by_path.keys()

    def put(self, *objects: Message | dict[str, Any], path: str = PODS) -> None:
        followed = self._by_path[path]
        for each in objects:
            followed.applied(followed.resource.decode(_raw(each)))

    def drop(self, *objects: Message | dict[str, Any], path: str = PODS) -> None:
        followed = self._by_path[path]
        for each in objects:
            followed.deleted(identity(followed.resource.encoding, _raw(each)))

    def relist(self, objects: Iterable[Message | dict[str, Any]], path: str = PODS) -> None:
        followed = self._by_path[path]
        followed.replaced(followed.resource.decode(_raw(each)) for each in objects)

    def nodes(self, *nodes: kubernetes_pb2.Node) -> None:
        self.put(*nodes, path=NODES)

    def state(self, *without: PodKey) -> ClusterState:
        return self.model.state(frozenset(without))

    def waiting(self, *without: PodKey) -> dict[str, int]:
        """Return example -> count of pending pods."""
        return {each.pod_set.name: each.pod_set.count for each in self.state(*without).waiting}

    def specs(self) -> dict[str, PodSpec]:
        """Return example -> spec of pending pods."""
        return {each.pod_set.name: each.pod_set.spec for each in self.state().waiting}

    def leftovers(self) -> tuple[Any, ...]:
        """Return what the model still holds; nothing once all objects are gone."""
        self.model.arrivals()  # what has changed is looked at then
        pods, nodes = self.model._pods, self.model._nodes
        classes = pods.classes
        tallies = classes._selectors, classes._terms, classes._waiting_selectors, classes._waiting_ports
        tables: tuple[Any, ...] = (
            pods._pods,
            pods._nominated,
            pods.consumers.of,
            pods.waiting,
            nodes._uses,
            nodes._changed - nodes._shown._of.keys(),
            classes._shapes,
            classes._classes,
            classes._by_identity._with_label,
            classes._by_identity._with_key,
            classes._by_identity._in_namespace,
            classes.gangs,
            *remembered(classes._selecting),
            *remembered(classes.shares),
        )
        expected = self.model._expected
        if expected is not None:
            tree = expected._tree
            tables = (*tables, tree._workloads, tree._children, tree._members, tree._ordinals, tree._refused)
            tables = (*tables, expected.refs, expected._roots, expected._pods, expected._quotas, expected._ending)
            tables = (
                *tables,
                tree._failing,
                tree._shares,
                expected._with_pods,
                expected._of_namespace,
                expected._left,
                expected._asked,
            )
            tables = (*tables, expected._of_namespaces, expected._short, expected._outdated)
        return (*tables, classes.with_waiting, *(list(tally) for tally in tallies))

    def free(self, name: str = "n1") -> Mapping[str, int]:
        (found,) = (each.node.free for each in self.state().nodes if each.node.name == name)
        return found


def _raw(obj: Message | dict[str, Any]) -> Any:
    return obj.SerializeToString() if isinstance(obj, Message) else obj


def comparable(state: ClusterState) -> Any:
    """Return the state in a form that compares equal whatever the order of its parts."""
    nodes = [replace(each, movable=(), node=replace(each.node, running=(), free={})) for each in state.nodes]
    of_nodes = [
        (
            {r: a for r, a in each.node.free.items() if a},
            Counter({run.spec: run.count for run in each.node.running}),
            Counter({run.spec: run.count for run in each.movable}),
        )
        for each in state.nodes
    ]
    return replace(state, nodes=tuple(nodes)), of_nodes


def pod(
    name: str = "p",
    cpu: str = "1",
    *,
    uid: str = "",
    node: str = "",
    phase: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "default",
    created: int = 100,
    priority: int = 0,
    owner: str = "",
    owner_name: str = "owner",
    deleting: bool = False,
    nominated: str = "",
    **spec: Any,
) -> kubernetes_pb2.Pod:
    found = kubernetes_pb2.Pod()
    metadata = found.metadata
    metadata.name, metadata.namespace, metadata.uid = name, namespace, uid or f"uid-{name}"
    metadata.creationTimestamp.seconds = created
    metadata.labels.update(labels or {})
    metadata.annotations.update(annotations or {})
    if owner:
        metadata.ownerReferences.add(kind=owner, name=owner_name, controller=True)
    if deleting:
        metadata.deletionTimestamp.seconds = created + 1
    found.spec.MergeFrom(kubernetes_pb2.PodSpec(nodeName=node, priority=priority, **spec))
    if cpu:
        found.spec.containers.add().resources.requests["cpu"].string = cpu
    found.status.phase = phase or ("Running" if node else "Pending")
    found.status.nominatedNodeName = nominated
    return found


def node(name: str = "n1", cpu: str = "8", *, ready: bool = True, **spec: Any) -> kubernetes_pb2.Node:
    found = kubernetes_pb2.Node(spec=kubernetes_pb2.NodeSpec(providerID=f"id-{name}", **spec))
    found.metadata.name = name
    found.metadata.labels["kubernetes.io/hostname"] = name
    found.status.allocatable["cpu"].string = cpu
    found.status.allocatable["pods"].string = "110"
    found.status.conditions.add(type="Ready", status="True" if ready else "False")
    return found


def spread(app: str, key: str = "kubernetes.io/hostname") -> dict[str, Any]:
    """Return the field of a pod spec that spreads the pods of one app over hosts."""
    constraint = kubernetes_pb2.TopologySpreadConstraint(
        maxSkew=1, topologyKey=key, whenUnsatisfiable="DoNotSchedule", labelSelector={"matchLabels": {"app": app}}
    )
    return {"topologySpreadConstraints": [constraint]}


def spread_over_all_but(app: str) -> dict[str, Any]:
    """Return the field of a pod spec that spreads the pods of all other apps, and of none, over hosts."""
    found = spread("")
    other = kubernetes_pb2.LabelSelectorRequirement(key="app", operator="NotIn", values=[app])
    found["topologySpreadConstraints"][0].labelSelector.CopyFrom(kubernetes_pb2.LabelSelector(matchExpressions=[other]))
    return found


def apart(app: str) -> dict[str, Any]:
    """Return the field of a pod spec that keeps it off hosts with pods of one app."""
    term = kubernetes_pb2.PodAffinityTerm(
        topologyKey="kubernetes.io/hostname", labelSelector={"matchLabels": {"app": app}}
    )
    required = kubernetes_pb2.PodAntiAffinity(requiredDuringSchedulingIgnoredDuringExecution=[term])
    return {"affinity": kubernetes_pb2.Affinity(podAntiAffinity=required)}


def remembered(by: object) -> list[Any]:
    """Return the tables, sets and lists of what something remembers."""
    return [each for each in vars(by).values() if isinstance(each, dict | set | list)]


def of_devices(model: ClusterModel) -> list[Any]:
    """Return what the model remembers of the devices that pods ask for."""
    devices = model._devices
    kept = devices._expressions
    used = [item for item in kept._kept if item not in kept._unused]
    tables = kept._needs, kept._users, kept._short, kept._unread, kept._of_owners
    return [devices._users, devices._shares, devices._uses, used, *tables]
