"""What following pods with claims takes: 15,000 that wait, each with a PersistentVolumeClaim, or a volume to be made or
found, and a ResourceClaim of its own.

    python -m bench.volumes_view [PODS]

Prints CPU seconds of reading all of it, with the storage listed before the pods and after them, and of a burst in which
every pod, and then every claim, changes; twice as many must take about twice as long.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view.model import PODS, ClusterModel, ModelSettings
from cagrpc.cluster.view.storage import CLAIMS, CLASSES, VOLUMES
from cagrpc.runtime.clock import epoch, monotonic

GOAL_SECONDS = 3.0
_WORKLOADS = 100
_ZONE = "topology.kubernetes.io/zone"
_DRA = "/apis/resource.k8s.io/v1"
_DEVICE_CLASSES, _TEMPLATES = f"{_DRA}/deviceclasses", f"{_DRA}/resourceclaimtemplates"
_RESOURCE_CLAIMS, _SLICES = f"{_DRA}/resourceclaims", f"{_DRA}/resourceslices"

Objects = Mapping[str, list[Any]]
"""By path, as an API server sends them."""


class Followed:
    """A cluster that is fed by the bench."""

    def __init__(self) -> None:
        schedulers = {"default-scheduler"}
        self.model = ClusterModel(ModelSettings(schedulers=schedulers), monotonic, epoch)
        self._by_path = {each.resource.path: each for each in self.model.followed}

    def relist(self, objects: Iterable[Any], path: str) -> None:
        followed = self._by_path[path]
        followed.replaced(map(followed.resource.decode, objects))

    def change(self, objects: Iterable[Any], path: str) -> None:
        followed = self._by_path[path]
        for each in objects:
            followed.applied(followed.resource.decode(each))


def cluster(pods: int) -> Objects:
    """Return the objects of so many pods: of three, one has its volume, one has a volume made for it, one finds one of
    those that are there."""
    numbers = range(pods)
    return {
        CLASSES: [_class("made", "ebs.csi.aws.com"), _class("there", "kubernetes.io/no-provisioner")],
        VOLUMES: [_volume(n) for n in numbers if n % 3 != 1],
        CLAIMS: [_claim(n) for n in numbers],
        _DEVICE_CLASSES: [{"metadata": {"name": "gpu"}, "spec": {}}],
        _TEMPLATES: [{"metadata": {"name": "gpu", "namespace": "team"}, "spec": {"spec": _DEVICES}}],
        _RESOURCE_CLAIMS: [_resource_claim(n) for n in numbers],
        _SLICES: [],
        PODS: [pod(n) for n in numbers],
    }


_DEVICES = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}


def _class(name: str, provisioner: str) -> Any:
    return {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}


def _claim(number: int) -> Any:
    bound = number % 3 == 0
    return {
        "metadata": {
            "name": f"data-{number}",
            "namespace": "team",
            "uid": f"claim-{number}",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"} if bound else {},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi"}},
            "storageClassName": "there" if number % 3 == 2 else "made",
            **({"volumeName": f"pv-{number}"} if bound else {}),
        },
        "status": {"phase": "Bound" if bound else "Pending"},
    }


def _volume(number: int) -> Any:
    bound = number % 3 == 0
    zone = {"key": _ZONE, "operator": "In", "values": [f"zone-{'abc'[number // 3 % 3]}"]}
    return {
        "metadata": {"name": f"pv-{number}"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "made" if bound else "there",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}},
            "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": f"vol-{number}"},
            **({"claimRef": {"namespace": "team", "name": f"data-{number}"}} if bound else {}),
        },
        "status": {"phase": "Bound" if bound else "Available"},
    }


def _resource_claim(number: int) -> Any:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": f"pod-{number}", "uid": f"uid-{number}", "controller": True}
    metadata = {"name": f"gpu-{number}", "namespace": "team", "uid": f"rc-{number}", "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": _DEVICES}


def pod(number: int, note: str = "") -> bytes:
    """Return a pod that waits; `note` is a status message."""
    found = kubernetes_pb2.Pod()
    found.metadata.name, found.metadata.namespace, found.metadata.uid = f"pod-{number}", "team", f"uid-{number}"
    found.metadata.creationTimestamp.seconds = 1_700_000_000 + number % 1_000
    found.metadata.ownerReferences.add(kind="StatefulSet", name=f"set-{number % _WORKLOADS}", controller=True)
    found.spec.MergeFromString(_spec(number % _WORKLOADS))
    volume = found.spec.volumes.add()
    volume.name = "data"
    volume.volumeSource.persistentVolumeClaim.claimName = f"data-{number}"
    found.spec.resourceClaims.add(name="gpu", resourceClaimTemplateName="gpu")
    found.status.phase = "Pending"
    found.status.conditions.add(type="PodScheduled", status="False", message=note)
    found.status.resourceClaimStatuses.add(name="gpu", resourceClaimName=f"gpu-{number}")
    return found.SerializeToString()


@cache
def _spec(workload: int) -> bytes:
    found = kubernetes_pb2.PodSpec()
    requests = found.containers.add(name="main").resources.requests
    requests["cpu"].string, requests["memory"].string = f"{100 * (1 + workload)}m", "1Gi"
    return found.SerializeToString()


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 15_000
    for pods in (most // 2, most):
        _measure(pods)


def _measure(pods: int) -> None:
    objects = cluster(pods)
    before, after = Followed(), Followed()
    others = [path for path in objects if path != PODS]
    again = [pod(n, "0/5000 nodes are available") for n in range(pods)]

    def print_seconds(what: str, work: Callable[[], object], goal: str = "") -> None:
        print(f"{pods:>6} pods: {what:<42} {_seconds(work):6.2f} s of CPU{goal}", flush=True)

    goal = f"  goal < {GOAL_SECONDS:g} s"
    print_seconds("claims listed, then pods", lambda: _listed(before, objects, [*others, PODS]), goal)
    print_seconds("pods listed, then claims", lambda: _listed(after, objects, [PODS, *others]))
    print_seconds("every pod changes", lambda: _changed(before, again, PODS))
    print_seconds("every claim changes", lambda: _changed(before, objects[CLAIMS], CLAIMS))
    print_seconds("100 times ten pods and a state", lambda: _changed_by_ten(before, again[:1000]))


def _listed(cluster: Followed, objects: Objects, order: Iterable[str]) -> None:
    for path in order:
        cluster.relist(objects[path], path)
    cluster.model.state()


def _changed(cluster: Followed, objects: Iterable[Any], path: str) -> None:
    cluster.change(objects, path)
    cluster.model.state()


def _changed_by_ten(cluster: Followed, pods: Sequence[bytes]) -> None:
    for first in range(0, len(pods), 10):
        _changed(cluster, pods[first : first + 10], PODS)


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
