"""Attacks by objects that stay just below each cap: what is planned with is bounded, and somebody may use all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench.hostile.cluster import REPLICA_SETS, FedCluster, pod, replica_set
from bench.hostile.meter import Meter
from bench.hostile.reading import CLAIMS, DRIVER, SLICES, claim, unschedulable, with_devices
from cagrpc.api.core import caps
from cagrpc.api.devices import cel, expressions
from cagrpc.api.gen import kubernetes_pb2 as k8s
from cagrpc.cluster.view.bound import MOST_COMPARED, POD_DISRUPTION_BUDGETS
from cagrpc.cluster.view.model import NODES
from cagrpc.cluster.view.storage import CLAIMS as VOLUME_CLAIMS
from cagrpc.cluster.view.storage import CLASSES as STORAGE_CLASSES
from cagrpc.cluster.view.storage import VOLUMES
from tests.support.controllers.cluster_objects import node

_ROUNDS = 5
_DEVICES_OF_A_SLICE = 128
_STEPS_OF_AN_ELEMENT = 27
"""Of `[…].all(e, e > 0)`."""
_PROGRAM = "(?i)[a-z]{0,1000}"
"""Repeated as often as RE2 allows: 7,000 instructions."""
_HOSTNAME = "kubernetes.io/hostname"
_STATEFUL_SETS = "/apis/apps/v1/statefulsets"


# ---- expressions


def _sharing(cluster: FedCluster, name: str, *texts: str, namespace: str = "default") -> None:
    """Put a pod and a claim that selects devices by these expressions."""
    selecting = claim(f"claim-{name}", *texts)
    selecting["metadata"]["namespace"] = namespace
    cluster.put(selecting, path=CLAIMS)
    of_pod = [{"name": "c", "resourceClaimName": f"claim-{name}"}]
    cluster.put(pod(name, namespace=namespace, resourceClaims=of_pod))


def _rounds(meter: Meter, cluster: FedCluster, what: str) -> None:
    for number in range(_ROUNDS):
        with meter.measuring(f"round {number + 1} with {what}"):
            found = cluster.state()
    left = sum("not read yet" in each.pod_set.spec.unschedulable for each in found.waiting)
    first = unschedulable(found) or "planned with"
    meter.note(f"{left} of {len(found.waiting)} kinds of pods wait for their turn; first: {first}")


def expression_bytes(meter: Meter, namespaces: int) -> None:
    """Expressions of the longest kind, in each namespace as many as its share takes."""
    each = cel.LONGEST_EXPRESSION - 300
    of_claim = 6
    claims = expressions.MOST_BYTES_OF_OWNER // (of_claim * cel.LONGEST_EXPRESSION)
    cluster = with_devices()
    ones = ",".join(["1"] * ((each - 20) // 2))
    for number in range(namespaces):
        for at in range(claims):
            texts = (f"{number}{at}{text} > 0 && size([{ones}]) > 0" for text in range(of_claim))
            _sharing(cluster, f"p{number}-{at}", *texts, namespace=f"tenant-{number}")
    _rounds(meter, cluster, f"{namespaces * claims * of_claim} expressions")
    meter.note(f"{cluster.written_bytes:,} bytes were written")


def expression_steps(meter: Meter, devices: int) -> None:
    """One expression that takes nearly as many steps as it may, of so many devices that are all different."""
    cluster = with_devices()
    for at in range(0, devices, _DEVICES_OF_A_SLICE):
        of_slice = [
            {"name": f"d{number}", "attributes": {"serial": {"int": number}}}
            for number in range(at, min(at + _DEVICES_OF_A_SLICE, devices))
        ]
        name = f"n-{at}"
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": of_slice}
        cluster.put(node(name), path=NODES)
        cluster.put({"metadata": {"name": name}, "spec": spec}, path=SLICES)
    ones = ",".join(["1"] * (9 * cel.MOST_STEPS // (10 * _STEPS_OF_AN_ELEMENT)))
    _sharing(cluster, "p", f'device.attributes["{DRIVER}"].serial >= 0 && [{ones}].all(e, e > 0)')
    _rounds(meter, cluster, f"{devices} devices")


def programs(meter: Meter, patterns: int) -> None:
    """Patterns whose programs are nearly as large as they may be."""
    cluster = with_devices()
    texts = [f'!"{"a" * 250}".matches("{_PROGRAM}{number}")' for number in range(patterns)]
    for at in range(0, patterns, 32):
        _sharing(cluster, f"p{at}", *texts[at : at + 32])
    _rounds(meter, cluster, f"{patterns} patterns like {_PROGRAM}")


# ---- pods


def _in(*values: str, key: str = "k") -> k8s.LabelSelectorRequirement:
    return k8s.LabelSelectorRequirement(key=key, operator="NotIn", values=values)


def _terms(number: int) -> dict[str, Any]:
    """Return terms with as many conditions and values as a pod may have; no two pods' are alike."""
    conditions, values = caps.MOST_CONDITIONS // caps.MOST_TERMS, caps.MOST_VALUES // caps.MOST_CONDITIONS
    terms = [
        k8s.PodAffinityTerm(
            topologyKey="a",
            labelSelector=k8s.LabelSelector(
                matchExpressions=[
                    _in(*(f"{number}-{term}-{value}" for value in range(values - 1)), key=f"k{each}")
                    for each in range(conditions - 1)
                ]
            ),
        )
        for term in range(caps.MOST_TERMS - 1)
    ]
    half = len(terms) // 2
    return {
        "affinity": k8s.Affinity(
            podAffinity=k8s.PodAffinity(requiredDuringSchedulingIgnoredDuringExecution=terms[:half]),
            podAntiAffinity=k8s.PodAntiAffinity(requiredDuringSchedulingIgnoredDuringExecution=terms[half:]),
        )
    }


def _spreads(number: int) -> dict[str, Any]:
    return {
        "topologySpreadConstraints": [
            k8s.TopologySpreadConstraint(
                maxSkew=1,
                topologyKey=f"t{each}",
                whenUnsatisfiable="DoNotSchedule",
                labelSelector=k8s.LabelSelector(matchLabels={"a": f"{number}-{each}"}),
            )
            for each in range(caps.MOST_SPREADS)
        ]
    }


def _lists(number: int) -> dict[str, Any]:
    """Return all that is of a pod alone."""
    node_terms = [
        k8s.NodeSelectorTerm(
            matchExpressions=[
                k8s.NodeSelectorRequirement(key=f"k{number}-{each}", operator="NotIn", values=["a", "b", "c"])
            ]
        )
        for each in range(caps.MOST_NODE_TERMS)
    ]
    required = k8s.NodeSelector(nodeSelectorTerms=node_terms)
    affinity = k8s.NodeAffinity(requiredDuringSchedulingIgnoredDuringExecution=required)
    ports = [k8s.ContainerPort(hostPort=1 + each) for each in range(caps.MOST_HOST_PORTS)]
    container = k8s.Container(ports=ports)
    for each in range(caps.MOST_RESOURCES - 1):
        container.resources.requests[f"example.com/r{number}-{each}"].string = "1"
    return {
        "affinity": k8s.Affinity(nodeAffinity=affinity),
        "tolerations": [
            k8s.Toleration(key=f"t{number}-{each}", operator="Exists") for each in range(caps.MOST_TOLERATIONS)
        ],
        "containers": [container],
        "volumes": [_volume(f"c{number}-{each}") for each in range(caps.MOST_VOLUMES)],
    }


def _volume(name: str) -> k8s.Volume:
    source = k8s.VolumeSource(persistentVolumeClaim=k8s.PersistentVolumeClaimVolumeSource(claimName=name))
    return k8s.Volume(name=name, volumeSource=source)


def _pods(specs: Callable[[int], Mapping[str, Any]], meter: Meter, pods: int) -> None:
    labels = {f"l{each}": "x" for each in range(caps.MOST_LABELS - 1)}

    def made(number: int, **more: Any) -> k8s.Pod:
        return pod(f"p{number}", labels={**labels, "k": f"{number}"}, cpu="", **specs(number), **more)

    cluster = FedCluster(nodes=20)
    meter.measure(f"{pods} pods come", lambda: cluster.put(*map(made, range(pods))))
    meter.note(f"{cluster.written_bytes:,} bytes were written")
    found = meter.measure("a state", cluster.state)
    meter.note(f"{sum(not each.pod_set.spec.unschedulable for each in found.waiting)} kinds of pods are planned with")
    bound = [made(number, nodeName=f"n{number % 20}") for number in range(pods)]
    meter.measure("they are bound", lambda: cluster.put(*bound))
    cluster.put(pod("other"))
    meter.measure("a state with another pod", cluster.state)
    meter.measure("they go", lambda: cluster.drop(*bound))


def terms(meter: Meter, pods: int) -> None:
    """Pods with as many terms, conditions and values as planning handles."""
    _pods(_terms, meter, pods)


def spreads(meter: Meter, pods: int) -> None:
    """Pods with as many topology spread constraints as planning handles."""
    _pods(_spreads, meter, pods)


def lists(meter: Meter, pods: int) -> None:
    """Pods with as many tolerations, terms of node affinity, ports, resources and volumes as planning handles."""
    _pods(_lists, meter, pods)


# ---- what pods share


def budgets(meter: Meter, count: int) -> None:
    """PodDisruptionBudgets that nearly select each of as many pods, all different."""
    cluster = FedCluster(nodes=20)
    bound = (pod(f"p{at}", labels={"k": "v", "at": f"{at}"}, nodeName=f"n{at % 20}") for at in range(count))
    cluster.put(*bound)

    def budget(number: int, more: str = "") -> k8s.PodDisruptionBudget:
        found = k8s.PodDisruptionBudget()
        found.metadata.name, found.metadata.namespace = f"b{number}", "default"
        values = ("v", *(f"{number}-{each}{more}" for each in range(MOST_COMPARED // 8)))
        found.spec.selector.matchExpressions.append(_in(*values))
        return found

    come = [budget(number) for number in range(count)]
    meter.measure(f"{count} budgets come", lambda: cluster.put(*come, path=POD_DISRUPTION_BUDGETS))
    meter.measure("who is bound, and why it may not be moved", partial(cluster.state, with_bound=True))
    cluster.put(budget(0, "x"), path=POD_DISRUPTION_BUDGETS)
    meter.measure("the same after one of them has changed", partial(cluster.state, with_bound=True))


def one_claim(meter: Meter, pods: int) -> None:
    """Pods that share one ResourceClaim and one PersistentVolumeClaim, each older than those before."""
    cluster = with_devices()
    cluster.put(claim("claim"), path=CLAIMS)
    storage_class = {
        "metadata": {"name": "fast"}, "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer"
    }  # fmt: skip
    cluster.relist([storage_class], STORAGE_CLASSES)
    cluster.relist([], VOLUMES)
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}
    cluster.relist([{"metadata": {"name": "v", "namespace": "default"}, "spec": spec}], VOLUME_CLAIMS)

    def sharing(number: int, **more: Any) -> k8s.Pod:
        of_pod = [{"name": "c", "resourceClaimName": "claim"}]
        found = pod(f"p{number}", resourceClaims=of_pod, volumes=[_volume("v")], **more)
        found.metadata.creationTimestamp.seconds = 10**6 - number
        return found

    meter.measure(f"{pods} pods come", lambda: cluster.put(*(sharing(number) for number in range(pods))))
    meter.measure("a state", cluster.state)
    cluster.put(sharing(pods))
    meter.measure("a state with one more", cluster.state)
    bound = [sharing(number, nodeName=f"n{number}") for number in range(pods)]
    meter.measure("they are bound, each to a node of its own", lambda: cluster.put(*bound))
    meter.measure("a state", cluster.state)


# ---- workloads


def children(meter: Meter, workloads: int) -> None:
    """ReplicaSets that one workload owns."""
    cluster = FedCluster()
    come = [replica_set(f"r{number}", 2, owner="top") for number in range(workloads)]
    meter.measure(f"{workloads} ReplicaSets come", lambda: cluster.put(*come, path=REPLICA_SETS))
    pods = [pod(f"p{number}", replica_set=f"r{number}") for number in range(workloads)]
    meter.measure("a pod of each comes", lambda: cluster.put(*pods))
    meter.measure("a state", cluster.state)


def replicas(meter: Meter, workloads: int) -> None:
    """ReplicaSets that want more pods than are expected of one, of which each gets a few."""
    cluster = FedCluster()
    come = [replica_set(f"r{number}", 5_000) for number in range(workloads)]
    meter.measure(f"{workloads} ReplicaSets come", lambda: cluster.put(*come, path=REPLICA_SETS))
    pods = [pod(f"p{number}", replica_set=f"r{number % 10}") for number in range(workloads)]
    meter.measure("pods of ten of them come", lambda: cluster.put(*pods))
    meter.measure("pods are counted", cluster.arrivals)
    cluster.seconds += 10_000
    meter.measure("pods are counted, when those to come are too late", cluster.arrivals)
    meter.measure("a state", cluster.state)


def stateful_sets(meter: Meter, workloads: int) -> None:
    """StatefulSets with claims of their own, of which as many pods are expected as may be."""
    template = k8s.PodTemplateSpec(spec=pod().spec).SerializeToString()

    def made(number: int) -> k8s.StatefulSet:
        found = k8s.StatefulSet(metadata=k8s.ObjectMeta(name=f"s{number}", namespace="default"))
        found.spec.replicas, found.spec.template, found.spec.podManagementPolicy = 500, template, "Parallel"
        found.spec.volumeClaimTemplates.add().metadata.name = "data"
        return found

    cluster = FedCluster()
    come = [made(number) for number in range(workloads)]
    meter.measure(f"{workloads} StatefulSets come", lambda: cluster.put(*come, path=_STATEFUL_SETS))
    meter.measure("a state", cluster.state)
