"""A large cluster as the bytes that an API server would send: 5,000 nodes, 100,000 pods on them and 50,000 that wait.
What planning does not read is there too, as bytes: it has to be carried and passed over."""

from __future__ import annotations

from functools import cache

from cagrpc.api.gen import kubernetes_pb2

NODES = 5_000
DAEMONS = 5
OF_WORKLOADS = 75_000
"""Pods on nodes, beside the daemons'."""
PENDING = 50_000
WORKLOADS = 3_000
PODS = NODES * DAEMONS + OF_WORKLOADS + PENDING

_MANAGED_FIELDS = 17
_CONTAINER_STATUSES = 8
_IMAGES = 8
_ENV = 7


def node(index: int) -> bytes:
    name = f"node-{index:05}"
    found = kubernetes_pb2.Node(spec=kubernetes_pb2.NodeSpec(providerID=f"cloud://{name}"))
    found.metadata.name = name
    found.metadata.resourceVersion = "1"
    found.metadata.labels.update(
        {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": f"type-{index % 8}",
            "topology.kubernetes.io/zone": f"zone-{index % 3}",
            "topology.kubernetes.io/region": "region",
            "example.org/pool": f"pool-{index % 16}",
        }
    )
    for amounts in (found.status.capacity, found.status.allocatable):
        for resource, amount in (("cpu", "64"), ("memory", "256Gi"), ("pods", "110"), ("ephemeral-storage", "1Ti")):
            amounts[resource].string = amount
    for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready"):
        found.status.conditions.add(type=kind, status="True" if kind == "Ready" else "False", reason="Kubelet")
    found.status.MergeFromString(_blob(_IMAGES, 4_000))
    return found.SerializeToString()


def pod(index: int, version: int = 1, *, bound: bool | None = None, note: str = "") -> bytes:
    """The pod of this index, on its node (or not) as `bound` says; `note` is a status message."""
    if index < NODES * DAEMONS:
        workload, on = -1 - index % DAEMONS, index // DAEMONS
    else:
        workload, on = index % WORKLOADS, index % NODES
    bound = index < NODES * DAEMONS + OF_WORKLOADS if bound is None else bound
    name = f"workload-{workload}-{index}"
    uid = f"00000000-0000-4000-8000-{index:012}"
    metadata = kubernetes_pb2.ObjectMeta(name=name, uid=uid, resourceVersion=str(version))
    metadata.creationTimestamp.seconds = 1_700_000_000 + index % 1_000
    if workload >= 0 and workload % 20 == 2:  # as a StatefulSet's
        metadata.labels["statefulset.kubernetes.io/pod-name"] = name
    spec = kubernetes_pb2.PodSpec(nodeName=f"node-{on:05}" if bound else "")
    phase = "Running" if bound else "Pending"
    condition = kubernetes_pb2.PodCondition(type="PodScheduled", status=str(bound), message=note)
    status = kubernetes_pb2.PodStatus(phase=phase, conditions=[condition])
    return b"".join(
        (
            _field(1, metadata.SerializeToString() + _metadata(workload)),
            _field(2, spec.SerializeToString() + _spec(workload)),
            _field(3, status.SerializeToString() + (_blob(_CONTAINER_STATUSES, 600) if bound else b"")),
        )
    )


def last(name: str) -> bytes:
    """A pod that waits, with this name and UID."""
    metadata = kubernetes_pb2.ObjectMeta(name=name, uid=name, namespace="bench", resourceVersion="1")
    return kubernetes_pb2.Pod(metadata=metadata).SerializeToString()


@cache
def _metadata(workload: int) -> bytes:
    daemon = workload < 0
    found = kubernetes_pb2.ObjectMeta(namespace="kube-system" if daemon else f"team-{workload % 40}")
    found.labels.update({"app": f"app-{workload}", "pod-template-hash": f"{workload:010}"})
    found.ownerReferences.add(
        kind="DaemonSet" if daemon else "ReplicaSet", name=f"workload-{workload}", uid="owner", controller=True
    )
    return found.SerializeToString() + _blob(_MANAGED_FIELDS, 1_200)


@cache
def _spec(workload: int) -> bytes:
    found = kubernetes_pb2.PodSpec(schedulerName="default-scheduler")
    container = found.containers.add(name="main")
    amounts = (("cpu", f"{100 * (1 + workload % 16)}m"), ("memory", f"{256 * (1 + workload % 7)}Mi"))
    for resource, amount in amounts:
        container.resources.requests[resource].string = amount
        container.resources.limits[resource].string = amount
    container.MergeFromString(_blob(_ENV, 500))
    found.volumes.add()
    for key in ("not-ready", "unreachable"):
        found.tolerations.add(key=f"node.kubernetes.io/{key}", operator="Exists", effect="NoExecute")
    same = kubernetes_pb2.LabelSelector(matchLabels={"app": f"app-{workload}"})
    if workload >= 0 and workload % 10 == 0:
        found.topologySpreadConstraints.add(
            maxSkew=1,
            topologyKey="topology.kubernetes.io/zone",
            whenUnsatisfiable="ScheduleAnyway",
            labelSelector=same,
        )
    if workload >= 0 and workload % 50 == 1:
        found.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution.add(
            topologyKey="kubernetes.io/hostname", labelSelector=same
        )
    if workload >= 0 and workload % 20 == 2:
        found.volumes[0].volumeSource.persistentVolumeClaim.claimName = "data"
    return found.SerializeToString()


def _field(number: int, content: bytes) -> bytes:
    """One length-delimited field, as protobuf writes it."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


@cache
def _blob(number: int, size: int) -> bytes:
    return _field(number, b"x" * size)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
