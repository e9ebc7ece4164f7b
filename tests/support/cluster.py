"""A cluster around cagrpc, in memory: objects in an API server, and those who work on them when a test says `step`:
kubelets, kube-scheduler, the controllers of workloads and of PodDisruptionBudgets. Its time is told.

The scheduler binds one pod after the other, by priority and age: to the nominated node, else to the first with room
beside the pods that are nominated there. Gangs are bound whole or not at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.nodes import START_UP_TAINT, node_document
from cagrpc.api.core.pod_bodies import pod_body
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.cluster.view.objects import ObservedNode, ObservedPod, PodReader, read_node
from cagrpc.demonstration.wire import protobuf
from cagrpc.fleet.model import InstanceState
from solver.model import ATTACHABLE_VOLUMES, Node, NodeGroup, PodSpec
from solver.model import PODS as PODS_RESOURCE
from solver.model.eligibility import why_not_eligible
from tests.support.api_server import ApiServer, Document
from tests.support.fleet import FakeClock

NAMESPACE, OTHER_NAMESPACE = "ns", "other"
NODES = "/api/v1/nodes"
REGISTER_SECONDS = 5.0
"""From when a machine runs to when its Node is Ready."""

_COLLECTION = re.compile(r"/apis(/[^/]+)?|/(api|apis/[^/]+)/v[^/]+(/namespaces/[^/]+)?/[a-z]+")


def path_of(collection: str, name: str = "", namespace: str = NAMESPACE) -> str:
    """Return the path of an object of a collection such as `/api/v1/pods` in a namespace, or that of the collection
    there."""
    of, _, plural = collection.rpartition("/")
    there = f"{of}/namespaces/{namespace}/{plural}"
    return f"{there}/{name}" if name else there


class _Served(set[str]):
    """All collections but some."""

    def __contains__(self, path: object) -> bool:
        return _COLLECTION.fullmatch(str(path)) is not None and not super().__contains__(path)


@dataclass(frozen=True)
class Workload:
    """A ReplicaSet; `pods` are those of its template."""

    name: str
    replicas: int
    spec: PodSpec
    more: Mapping[str, Any]
    budget: int | None = None
    """How many of its pods may be away at a time, by its PodDisruptionBudget; None without one."""
    creates: bool = True
    """Whether it creates what it lacks, in each step."""

    @property
    def key(self) -> str:
        return f"ReplicaSet/{NAMESPACE}/{self.name}"

    @property
    def labels(self) -> dict[str, str]:
        return {"app": self.name}


class Cluster:
    """`api` has all objects; more can be put there, and any of them changed."""

    def __init__(self, clock: FakeClock, backend: SimulatedBackend, groups: Iterable[NodeGroup]) -> None:
        self.clock, self.backend = clock, backend
        self.groups = {each.id: each for each in groups}
        self.api = ApiServer()
        self.api.clock = clock
        self.api.kinds = _Served()
        """The collections that this cluster does not serve can be added."""
        self.made = 0
        self.paths: dict[str, str] = {}
        """Of all pods there ever were, by UID."""
        self.gangs: dict[str, int] = {}
        """Minimum count by gang; a gang without an entry needs as many pods as it has."""
        self.workloads: dict[str, Workload] = {}
        self.daemon_sets: dict[str, PodSpec] = {}
        self.scheduling = True
        self.passed_over: set[str] = set()
        """Pods that the scheduler does not come to."""
        self.tries_a_second: float | None = None
        """How many pods the scheduler tries; None where it takes no time. What it tried in vain waits for another
        node."""
        self.replaces = True
        """Whether pods without a workload are replaced where they go with their node."""
        self.daemons_come = True
        """Whether DaemonSets' pods come as soon as there is a node."""
        self.tells_ages = False
        """Whether nodes say when they were created."""
        self.scattered: set[str] = set()
        """Node groups whose machines come in a topology domain each, though they are ordered for one."""
        self.unready: set[str] = set()
        """Names of nodes that are not Ready."""
        self.broken: dict[str, Document] = {}
        """A condition by node, which its kubelet reports from now on."""
        self.grace_seconds = 0.0
        """How long a pod that is evicted still runs."""
        self._running_since: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._read: dict[str, tuple[str, Any]] = {}
        self._pods = PodReader(DEFAULT_GANG_LABEL, DEFAULT_SCHEDULERS, "cagrpc")
        self._scheduled_at = -1
        """In which version of all objects."""
        self._tries, self._tried_at = 0.0, clock()
        self._tried: dict[str, frozenset[str]] = {}
        """The nodes that there were when a pod was tried last."""

    # ---- what people do

    def add(
        self,
        count: int = 1,
        *,
        cpu: int = 1000,
        spec: PodSpec | None = None,
        priority: int = 0,
        gang: str | None = None,
        namespace: str = NAMESPACE,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        owner: str = "",
        node: str = "",
        **constraints: Any,
    ) -> list[str]:
        """Create pods and return their UIDs. Their spec has `cpu` millicores and these `constraints` of `PodSpec`;
        `owner` is a workload, `kind/namespace/name`."""
        spec = spec or PodSpec((("cpu", cpu),), **constraints)
        body = {**pod_body(spec, "example.com/idle", namespace), **({"priority": priority} if priority else {})}
        made = []
        for _ in range(count):
            self.made += 1
            name, uid = f"pod-{self.made}", f"uid-{self.made}"
            kind, _, of = owner.partition("/")
            controller = {"kind": kind, "name": of.rpartition("/")[2], "controller": True}
            metadata = {
                "name": name,
                "namespace": namespace,
                "uid": uid,
                "creationTimestamp": int(self.clock()),
                "labels": {**dict(spec.labels), **({DEFAULT_GANG_LABEL: gang} if gang else {}), **(labels or {})},
                "annotations": dict(annotations or {}),
                **({"ownerReferences": [controller]} if owner else {}),
                **({"finalizers": ["kubelet"]} if self.grace_seconds else {}),
            }
            bound = {"nodeName": node} if node else {}
            status = {"phase": "Running" if node else "Pending"}
            self.paths[uid] = path_of("/api/v1/pods", name, namespace)
            self.api.put(self.paths[uid], {"metadata": metadata, "spec": {**body, **bound}, "status": status})
            made.append(uid)
        return made

    def workload(
        self,
        name: str,
        replicas: int,
        *,
        cpu: int = 1000,
        budget: int | None = None,
        creates: bool = True,
        on: Sequence[str] = (),
        **more: Any,
    ) -> Workload:
        """Create or scale a ReplicaSet. Its pods are bound to the nodes `on` in turn, or created by `step`, or, without
        `creates`, by `create`. `more` is as for `add`."""
        spec = more.pop("spec", None) or PodSpec((("cpu", cpu),))
        made = self.workloads[name] = Workload(name, replicas, spec, more, budget, creates)
        template = {"metadata": {"labels": made.labels}, "spec": pod_body(spec, "example.com/idle", NAMESPACE)}
        wanted = {"replicas": replicas, "template": template, "selector": {"matchLabels": made.labels}}
        metadata = {"namespace": NAMESPACE, "creationTimestamp": int(self.clock())}
        self.api.put(path_of("/apis/apps/v1/replicasets", name), {"metadata": metadata, "spec": wanted, "status": {}})
        for number in range(replicas if on else 0):
            self.create(name, node=on[number % len(on)])
        self._count(made, [pod for pod in self.pods().values() if pod.ref.workload == made.key])
        return made

    def create(self, workload: str, count: int = 1, *, node: str = "") -> list[str]:
        """Let a workload create pods, and return their UIDs."""
        of = self.workloads[workload]
        return self.add(count, spec=of.spec, labels=of.labels, owner=of.key, node=node, **of.more)

    def daemon_set(self, name: str, *, cpu: int) -> None:
        spec = self.daemon_sets[name] = PodSpec((("cpu", cpu),))
        body = pod_body(spec, "example.com/idle", NAMESPACE)
        document = {"metadata": {"namespace": NAMESPACE}, "spec": {"template": {"metadata": {}, "spec": body}}}
        self.api.put(path_of("/apis/apps/v1/daemonsets", name), document)

    def gang(self, name: str, minimum: int) -> None:
        """Create a PodGroup."""
        self.gangs[name] = minimum
        document = {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": {"minMember": minimum}}
        self.api.put(path_of("/apis/scheduling.x-k8s.io/v1alpha1/podgroups", name), document)

    def node(self, name: str, group: NodeGroup, **spec: Any) -> None:
        """Create a Node of no configured node group."""
        document = node_document(group, name)
        self.api.put(f"{NODES}/{name}", {**document, "spec": {**document["spec"], **spec}})

    def delete(self, *uids: str) -> None:
        """Delete pods."""
        for uid in uids:
            self.api.remove(self.paths[uid])

    def replace(self, uid: str) -> str:
        """Delete a pod, and return the UID of one like it."""
        pod = self.api.remove(self.paths[uid])
        self.made += 1
        name, new = f"pod-{self.made}", f"uid-{self.made}"
        metadata = {**pod["metadata"], "name": name, "uid": new, "creationTimestamp": int(self.clock())}
        pod["spec"].pop("nodeName", None)
        metadata.pop("managedFields", None)
        self.paths[new] = path_of("/api/v1/pods", name, metadata["namespace"])
        self.api.put(self.paths[new], {**pod, "metadata": metadata, "status": {"phase": "Pending"}})
        return new

    def finish(self, uid: str) -> None:
        """Complete a pod, which leaves its node."""
        self.api.change(self.paths[uid], status={"phase": "Succeeded", "nominatedNodeName": None})

    def vanish(self, *names: str) -> None:
        """Take machines away; without names, all of them."""
        machines = self.backend.list_instances().instances
        self.backend.vanish([each.id for each in machines if not names or _name(each.id) in names])

    # ---- what there is

    def pods(self) -> dict[str, ObservedPod]:
        """Return all pods by UID, as planning reads them."""
        return {uid: self._pod(path) for uid, path in self.paths.items() if path in self.api.objects}

    def node_of(self, uid: str) -> str:
        """Return the node that a pod is bound to, or was before it finished; empty of one that waits or is gone."""
        pod = self.api.objects.get(self.paths[uid])
        return "" if pod is None else str(pod["spec"].get("nodeName", ""))

    def gang_of(self, uid: str) -> str:
        """Return the gang of a pod; empty of one without."""
        return str(self.api.objects[self.paths[uid]]["metadata"]["labels"].get(DEFAULT_GANG_LABEL, ""))

    def pending(self) -> list[str]:
        """Return the UIDs of pods that wait for a node."""
        return [uid for uid, path in self.paths.items() if path in self.api.objects and self._waits(path)]

    def nodes(self) -> dict[str, Document]:
        """Return the Nodes by name."""
        objects = self.api.objects.items()
        return {path[len(NODES) + 1 :]: each for path, each in objects if path.rpartition("/")[0] == NODES}

    def held(self) -> set[str]:
        """Return the names of nodes that are not released yet."""
        return {name for name, each in self.nodes().items() if START_UP_TAINT in _taints(each)}

    def cordoned(self) -> set[str]:
        return {name for name, each in self.nodes().items() if each["spec"].get("unschedulable")}

    # ---- who works on it

    def kubelets(self) -> None:
        """Register and remove Nodes as machines come and go, with the pods that ran on those that are gone."""
        now, nodes = self.clock(), self.nodes()
        since = self._running_since
        running = {}
        for machine in self.backend.list_instances().instances:
            if machine.state is InstanceState.RUNNING and machine.error is None:
                name = _name(machine.id)
                running[name] = since.get(name, now)
                if name not in nodes:
                    group = self.groups[machine.node_group]
                    self.api.put(f"{NODES}/{name}", self._registered(machine.id, group))
                    self._register_drivers(name, group)
                ready = "True" if now >= running[name] + REGISTER_SECONDS and name not in self.unready else "False"
                if name in self.broken:
                    self._report(name, self.broken[name])
                elif _ready(self.api.objects[f"{NODES}/{name}"]) != ready:
                    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": int(now)}]
                    self.api.change(f"{NODES}/{name}", status={"conditions": conditions})
        for name in since.keys() - running.keys():
            self.api.objects.get(f"{NODES}/{name}") and self.api.remove(f"{NODES}/{name}")
            self._end_pods_of(name)
        self._running_since = running
        for path in [path for path, at in self._ends.items() if at <= now]:
            del self._ends[path]
            if path in self.api.objects:
                self.api.remove(path)

    def _report(self, name: str, condition: Document) -> None:
        there = self.nodes()[name]["status"]["conditions"]
        if condition not in there:
            others = [each for each in there if each["type"] != condition["type"]]
            self.api.change(f"{NODES}/{name}", status={"conditions": [*others, condition]})

    def _register_drivers(self, name: str, group: NodeGroup) -> None:
        """Say how many volumes of CSI drivers may be attached."""
        limits = {of: count for of, count in group.allocatable.items() if of.startswith(ATTACHABLE_VOLUMES)}
        drivers = [
            {"name": of.removeprefix(ATTACHABLE_VOLUMES), "nodeID": name, "allocatable": {"count": count}}
            for of, count in limits.items()
        ]
        if drivers:
            document = {"metadata": {}, "spec": {"drivers": drivers}}
            self.api.put(f"/apis/storage.k8s.io/v1/csinodes/{name}", document)

    def _registered(self, instance_id: str, group: NodeGroup) -> Document:
        if group.new_domains is not None:  # what is ordered together comes together
            domain = instance_id if group.id in self.scattered else f"since-{int(self.clock())}"
            group = replace(group, labels=group.labels_in(_name(domain)))
        document = node_document(group, _name(instance_id))
        created = {"creationTimestamp": int(self.clock())} if self.tells_ages else {}
        taints = [*document["spec"]["taints"], {"key": START_UP_TAINT, "effect": "NoSchedule"}]
        status = {**document["status"], "conditions": [{"type": "Ready", "status": "False"}]}
        metadata, spec = {**document["metadata"], **created}, {"providerID": instance_id, "taints": taints}
        return {"metadata": metadata, "spec": spec, "status": status}

    def _end_pods_of(self, name: str) -> None:
        for uid, path in list(self.paths.items()):
            found = self.api.objects.get(path)
            if found is not None and found["spec"].get("nodeName") == name:
                alone = not found["metadata"].get("ownerReferences") and found["status"]["phase"] == "Running"
                if alone and self.replaces:
                    self.replace(uid)
                else:
                    self.api.remove(path)

    def controllers(self) -> None:
        """Let workloads and DaemonSets create pods that they lack, and count what PodDisruptionBudgets allow."""
        for name, spec in self.daemon_sets.items() if self.daemons_come else ():
            owner = f"DaemonSet/{NAMESPACE}/{name}"
            have = {each.node for each in self.pods().values() if each.ref.workload == owner}
            for node in self.nodes().keys() - have:
                if (known := self._node(node, held=True)) is not None and _runs_on(spec, known):
                    self.add(spec=spec, owner=owner, node=node)
        pods: dict[str, list[ObservedPod]] = {}
        for pod in self.pods().values():
            pods.setdefault(pod.ref.workload, []).append(pod)
        for each in self.workloads.values():
            there = pods.get(each.key, [])
            lacking = each.replicas - sum(pod.counted for pod in there) if each.creates else 0
            self._count(each, [*there, *(self._pod(self.paths[uid]) for uid in self.create(each.name, lacking))])
        for path, document in self._each_pod():
            if "deletionTimestamp" in document["metadata"] and path not in self._ends:
                self._ends[path] = self.clock() + self.grace_seconds

    def _count(self, each: Workload, pods: Sequence[ObservedPod]) -> None:
        path = path_of("/apis/apps/v1/replicasets", each.name)
        if self.api.objects[path]["status"].get("replicas") != len(pods):
            self.api.change(path, status={"replicas": len(pods)})
        if each.budget is not None:
            running = sum(bool(pod.node) and pod.counted for pod in pods)
            allowed = max(0, running - (each.replicas - each.budget))
            path = path_of("/apis/policy/v1/poddisruptionbudgets", each.name)
            document = {
                "metadata": {"namespace": NAMESPACE},
                "spec": {"selector": {"matchLabels": each.labels}},
                "status": {"disruptionsAllowed": allowed},
            }
            if self.api.objects.get(path, {}).get("status") != document["status"]:
                self.api.put(path, document)

    def schedule(self) -> None:
        """Bind what can be bound."""
        if not self.scheduling or (self.tries_a_second is None and self._scheduled_at == self.api.latest_version):
            return
        pods = self.pods()
        nodes = {name: node for name in self.nodes() if (node := self._node(name)) is not None}
        free = {name: Counter(node.allocatable) for name, node in nodes.items()}
        for uid, pod in pods.items():
            if (name := self.node_of(uid)) in free and not self._is_over(uid):
                free[name].subtract(_needs(pod))
        left_out = {uid for uid in self.pending() if self._incomplete(self.gang_of(uid))} | self.passed_over
        waiting = [uid for uid in self.pending() if uid not in left_out]
        waiting.sort(key=lambda uid: (-pods[uid].pod.priority, pods[uid].pod.created_at_seconds))
        if self.tries_a_second is not None:
            waiting = self._tried_now(waiting, frozenset(nodes), self.tries_a_second)
        rivals = {uid: pods[uid] for uid in self.pending()}
        gangs: dict[str, list[str]] = {}
        for uid in waiting:
            gangs.setdefault(self.gang_of(uid) or uid, []).append(uid)
        for uids in gangs.values():
            self._bind({uid: pods[uid] for uid in uids}, nodes, free, rivals)
        self._scheduled_at = -1 if self.passed_over else self.api.latest_version

    def _tried_now(self, waiting: Sequence[str], nodes: frozenset[str], tries_a_second: float) -> list[str]:
        now = self.clock()
        self._tries = min(self._tries + (now - self._tried_at) * tries_a_second, max(1.0, tries_a_second))
        self._tried_at = now
        found = [uid for uid in waiting if self._tried.get(uid) != nodes][: int(self._tries)]
        self._tries -= len(found)
        self._tried.update(dict.fromkeys(found, nodes))
        return found

    def _bind(
        self,
        gang: Mapping[str, ObservedPod],
        nodes: Mapping[str, Node],
        free: Mapping[str, Counter[str]],
        rivals: Mapping[str, ObservedPod],
    ) -> None:
        chosen: dict[str, str] = {}
        for uid, pod in gang.items():
            nominated = self._nominated(uid)
            for name in sorted(nodes, key=lambda each: each != nominated):
                left = free[name].copy()
                for other, rival in rivals.items():
                    ahead = other not in (uid, *chosen) and rival.pod.priority >= pod.pod.priority
                    if ahead and self._nominated(other) == name and not self.node_of(other):
                        left.subtract(_needs(rival))
                if all(left[of] >= amount for of, amount in _needs(pod).items()) and _runs_on(
                    pod.pod.spec, nodes[name]
                ):
                    chosen[uid] = name
                    free[name].subtract(_needs(pod))
                    break
        for uid, pod in gang.items():
            if len(chosen) == len(gang):
                status = {"phase": "Running", "nominatedNodeName": None}
                self.api.change(self.paths[uid], spec={"nodeName": chosen[uid]}, status=status)
                continue
            if uid in chosen:
                free[chosen[uid]].update(_needs(pod))
            if self._nominated(uid):
                self.nominate(uid, "")

    def nominate(self, uid: str, node: str) -> None:
        """Nominate a pod as the scheduler does, or clear its nomination."""
        managers = {"managedFields": ["kube-scheduler"]}
        self.api.change(self.paths[uid], metadata=managers, status={"nominatedNodeName": node or None})

    def _node(self, name: str, *, held: bool = False) -> Node | None:
        """Return a node where pods can run; None for another one. Pods of DaemonSets run on nodes that are held."""
        read: ObservedNode = self._cached(
            f"{NODES}/{name}", lambda path: read_node(protobuf(path, self.api.objects[path]))
        )
        found = read.bare
        if not held and (not found.ready or found.held):
            return None
        return replace(found.node, name=name, free={})

    def _pod(self, path: str) -> ObservedPod:
        read = self._cached(path, lambda path: self._pods.read(protobuf(path, self.api.objects[path])))
        assert isinstance(read, ObservedPod)
        return read

    def _cached(self, path: str, read: Any) -> Any:
        version = self.api.objects[path]["metadata"]["resourceVersion"]
        known = self._read.get(path)
        if known is None or known[0] != version:
            known = self._read[path] = version, read(path)
        return known[1]

    def _each_pod(self) -> list[tuple[str, Document]]:
        return [(path, self.api.objects[path]) for path in self.paths.values() if path in self.api.objects]

    def _is_over(self, uid: str) -> bool:
        return self.api.objects[self.paths[uid]]["status"]["phase"] in ("Succeeded", "Failed")

    def _waits(self, path: str) -> bool:
        pod = self.api.objects[path]
        return not pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending"

    def _nominated(self, uid: str) -> str:
        return str(self.api.objects[self.paths[uid]]["status"].get("nominatedNodeName", ""))

    def _incomplete(self, gang: str) -> bool:
        needed = self.gangs.get(gang, 0)
        labels = (each["metadata"]["labels"] for _, each in self._each_pod()) if needed else ()
        return bool(sum(each.get(DEFAULT_GANG_LABEL) == gang for each in labels) < needed)


def _runs_on(spec: PodSpec, node: Node) -> bool:
    return why_not_eligible(spec, node.labels, node.taints, node.name) is None


def _needs(pod: ObservedPod) -> dict[str, int]:
    return {**dict(pod.pod.spec.requests), PODS_RESOURCE: 1}


def _name(instance_id: str) -> str:
    return instance_id.removeprefix("simulated://")


def _taints(node: Document) -> list[str]:
    return [each["key"] for each in node["spec"].get("taints", ())]


def _ready(node: Document) -> str:
    return next(str(each["status"]) for each in node["status"]["conditions"] if each["type"] == "Ready")
