"""Who works in the demonstration's cluster besides cagrpc: people who scale workloads, as `story` has it, what creates
the workloads' pods, and a scheduler. Nodes and kubelets are the simulated backend's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from cagrpc.api.core.nodes import node_of_document
from cagrpc.api.core.pod_bodies import pod_body
from cagrpc.demonstration.objects import NODES, Document
from cagrpc.demonstration.story import CYCLE_SECONDS, SCENES, WORKLOADS, MachineStock, Scale, Scene
from cagrpc.demonstration.wire import ApiInMemory
from cagrpc.runtime.clock import EpochClock, epoch
from cagrpc.runtime.controller import Controller, Json
from solver.model import PODS, Node, PodSpec
from solver.model.eligibility import why_not_eligible

NAMESPACE = "demonstration"
PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
REPLICA_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"
_EVENTS = "/apis/events.k8s.io/"
_MOST_EVENTS = 200
"""A cluster forgets them after an hour."""
_SPECS = {each.name: each.spec for each in WORKLOADS}
SAID = (
    "a demonstration: cluster, pods and machines are made up and kept in memory; plans, increments and consolidation"
    " are cagrpc's own"
)


class PlayedCluster(Controller):
    """A step does what is due: the story, the pods of workloads, binding."""

    name = "the demonstration's cluster"
    every_seconds = 0.5

    def __init__(
        self,
        scenes: Sequence[Scene] = SCENES,
        clock: EpochClock = epoch,
    ) -> None:
        self.simulate: Callable[[Json], object] = lambda _: None
        """Changes the behaviour of the simulated machines, as a PUT of `/simulation` does."""
        self.api = ApiInMemory(clock)
        self.client = self.api.client()
        self._scenes = scenes
        self._clock = clock
        self._began = clock()
        self._next = 0
        self._numbers = count(1)
        self.scene = ""
        """What happened last."""
        self.api.put(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"name": NAMESPACE}})
        for each in WORKLOADS:
            self._declare(each.name, 0)

    def status(self) -> Json:
        return {"demonstration": SAID, "scene": self.scene}

    def step(self) -> None:
        self._play()
        with self.api.changed:  # a pod that is looked at is not evicted meanwhile
            for each in WORKLOADS:
                self._replicate(each.name)
            self._schedule()
            for path in [each for each in self.api.objects if each.startswith(_EVENTS)][:-_MOST_EVENTS]:
                self.api.remove(path)

    def _play(self) -> None:
        while True:
            cycle, at = divmod(self._next, len(self._scenes))
            scene = self._scenes[at]
            if self._clock() < self._began + cycle * CYCLE_SECONDS + scene.at_seconds:
                return
            for each in scene.happens:
                match each:
                    case Scale(workload, replicas):
                        self._declare(workload, replicas)
                    case MachineStock(instance_type, None):
                        self.simulate({instance_type: None})
                    case MachineStock(instance_type, stock):
                        self.simulate({instance_type: {"stock": stock, "boot": "10s"}})
            self.scene = scene.what
            self._next += 1

    def _declare(self, name: str, replicas: int) -> None:
        """Create a ReplicaSet, or scale it."""
        path = f"{REPLICA_SETS}/{name}"
        if path in self.api.objects:
            self.api.change(path, spec={"replicas": replicas})
            return
        workload = next(each for each in WORKLOADS if each.name == name)
        labels = {"app": name, **workload.labels}
        template = {
            "metadata": {"labels": labels, "annotations": dict(workload.annotations)},
            "spec": pod_body(workload.spec, "example.com/idle", NAMESPACE),
        }
        metadata = {"namespace": NAMESPACE, **self.api.born()}
        spec = {"replicas": replicas, "template": template, "selector": {"matchLabels": {"app": name}}}
        self.api.put(path, {"metadata": metadata, "spec": spec, "status": {"replicas": 0}})

    def _replicate(self, name: str) -> None:
        """Create the pods that a ReplicaSet lacks, or delete those beyond it: pending ones first, then the youngest."""
        of = self.api.objects[f"{REPLICA_SETS}/{name}"]
        pods = [each for each in self._pods() if each["metadata"]["labels"].get("app") == name]
        wanted = of["spec"]["replicas"]
        pods.sort(key=lambda each: (not each["spec"].get("nodeName"), int(each["metadata"]["uid"].rpartition("-")[2])))
        for each in pods[wanted:]:
            self.api.remove(_path(each))
        for _ in range(wanted - len(pods)):
            self._create(of)
        if of["status"]["replicas"] != wanted:
            self.api.change(f"{REPLICA_SETS}/{name}", status={"replicas": wanted})

    def _create(self, owner: Document) -> None:
        template, number = owner["spec"]["template"], next(self._numbers)
        name = f"{owner['metadata']['name']}-{number}"
        controller = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        metadata = {
            **template["metadata"],
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"pod-{number}",
            "ownerReferences": [controller],
            **self.api.born(),
        }
        body = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
        self.api.put(f"{PODS_PATH}/{name}", body)

    def _pods(self) -> list[Document]:
        return [each for path, each in list(self.api.objects.items()) if path.rpartition("/")[0] == PODS_PATH]

    def _schedule(self) -> None:
        """Bind pods that wait, oldest first, to the node that they are nominated for, or else to the first with room
        beside those that are nominated there."""
        pods = self._pods()
        waiting = [each for each in pods if not each["spec"].get("nodeName")]
        nodes = dict(self._nodes()) if waiting else {}
        free = {name: Counter(node.allocatable) for name, node in nodes.items()}
        kept = {name: Counter[str]() for name in nodes}
        for each in pods:
            if (name := each["spec"].get("nodeName")) in free:
                free[name].subtract(_needs(each))
            elif _nominated(each) in kept:
                kept[_nominated(each)].update(_needs(each))
        for each in waiting:
            needs, nominated = _needs(each), _nominated(each)
            for name in [*(each for each in (nominated,) if each in nodes), *sorted(nodes.keys() - {nominated})]:
                left = free[name] if name == nominated else _less(free[name], kept[name])
                if _fits(each, left, nodes[name]):
                    self.api.change(_path(each), spec={"nodeName": name}, status={"nominatedNodeName": None})
                    free[name].subtract(needs)
                    kept.get(nominated, Counter()).subtract(needs)
                    break

    def _nodes(self) -> Iterator[tuple[str, Node]]:
        """Yield the nodes that pods may be bound to."""
        for path, each in list(self.api.objects.items()):
            if path.rpartition("/")[0] == NODES and not each["spec"].get("unschedulable") and _ready(each):
                node = node_of_document(each, [])
                yield node.name, node


def _ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _nominated(pod: Document) -> str:
    return str(pod["status"].get("nominatedNodeName") or "")


def _needs(pod: Document) -> Counter[str]:
    return Counter({**dict(_spec(pod).requests), PODS: 1})


def _spec(pod: Document) -> PodSpec:
    return _SPECS[pod["metadata"]["labels"]["app"]]


def _path(pod: Document) -> str:
    return f"{PODS_PATH}/{pod['metadata']['name']}"


def _less(amounts: Counter[str], others: Counter[str]) -> Counter[str]:
    left = amounts.copy()
    left.subtract(others)
    return left


def _fits(pod: Document, left: Counter[str], node: Node) -> bool:
    enough = all(left[of] >= amount for of, amount in _needs(pod).items())
    return enough and why_not_eligible(_spec(pod), node.labels, node.taints, node.name) is None
