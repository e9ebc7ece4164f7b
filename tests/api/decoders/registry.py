"""Every decoder of what others write, in one list, with objects that it reads: for the properties and the fuzzer.

What informers follow is taken from where they follow it: decoded, put into its table, looked at and taken out again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import yaml
from google.protobuf.message import Message

from cagrpc.api import capacity_buffers
from cagrpc.api.autoscaler import expander
from cagrpc.api.core import consumption, nodes, pods
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL, MIN_COUNT, VOLCANO_GROUP
from cagrpc.api.core.slack import EXCLUDE, MIRROR, PLACEHOLDER, SHAPE
from cagrpc.api.encoding.json_documents import json_value
from cagrpc.api.gen import api_pb2, expander_pb2, externalgrpc_pb2, kubernetes_pb2
from cagrpc.backends.karpenter.claims import name_of
from cagrpc.backends.karpenter.pools import NodePools, explained
from cagrpc.backends.karpenter.store import ClaimStore
from cagrpc.backends.simulated.nodes import controller
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.view.model import ClusterModel, ModelSettings
from cagrpc.cluster.view.objects import PodReader
from cagrpc.cluster.view.sinks import Followed
from cagrpc.controllers.admission_checks.model import ATTEMPT, OWNED, WORKLOAD_UID
from cagrpc.controllers.admission_checks.reconcile import reconcile
from cagrpc.controllers.admission_checks.store import ChecksObservation, CheckStore
from cagrpc.controllers.autoscaler import AutoscalerConfigMaps
from cagrpc.controllers.provisioning import conditions
from cagrpc.controllers.provisioning.store import RequestStore
from cagrpc.controllers.settings import AutoscalerConfigMapSettings, KueueSettings
from cagrpc.errors import CagrpcError, InvalidInput
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.model import IncrementSpec, Phase, Placement
from cagrpc.fleet.records import Contents, GroupRecord, IncrementRecord, Member, MemberState
from cagrpc.kube.client.envelopes import Encoding, event, frames, identity, page
from cagrpc.kube.client.failures import status_of
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource
from cagrpc.kube.journal import objects
from cagrpc.services.grpc.failed_scale_ups import FailedScaleUps
from cagrpc.services.grpc.provider import Provider
from cagrpc.services.grpc.status import CallContext
from cagrpc.services.grpc.template_groups import TemplateGroups
from tests.api.decoders import files
from tests.support import devices, kueue, storage
from tests.support.api_server import ApiServer
from tests.support.clocks import any_clock
from tests.support.controllers.cluster_objects import apart, node, pod, spread
from tests.support.fleet import FleetHarness, group
from tests.support.scripted_api import enveloped

_DEFAULT_SCHEDULER = frozenset({"default-scheduler"})


@dataclass(frozen=True)
class Decoder:
    """`read` takes bytes, of protobuf or of a JSON text. What it may raise is `errors`."""

    name: str
    read: Callable[[bytes], object]
    seeds: tuple[Any, ...]
    """Messages, JSON documents, or bytes."""
    errors: tuple[type[Exception], ...] = (InvalidInput,)
    share: int = 8
    """How often the fuzzer takes it, in proportion: files take milliseconds."""

    def raw_seeds(self) -> Iterator[bytes]:
        for seed in self.seeds:
            if isinstance(seed, Message):
                yield seed.SerializeToString()
            else:
                yield seed if isinstance(seed, bytes) else json.dumps(seed).encode()


@cache
def decoders() -> tuple[Decoder, ...]:
    """Return all of them, the same ones each time: some keep a file."""
    return (
        *_view(),
        *_requests(),
        *_kueue(),
        *_node_life(),
        *_karpenter(),
        *_of_pods(),
        *_doors(),
        *_of_autoscaler(),
        *_envelopes(),
        *_written_by_us(),
        *(Decoder(*each, share=1) for each in files.readers(_TEMPLATE, _RECORD)),
    )


# ---- what informers follow


def _view() -> Iterator[Decoder]:
    model = ClusterModel(
        ModelSettings(schedulers=_DEFAULT_SCHEDULER, slack=Exclusion(), expects=True),
        any_clock(lambda: 0.0),
        any_clock(lambda: 1e9),
    )

    def look() -> None:
        model.state()
        model.arrivals()
        model.held_nodes()

    for each in model.followed:
        yield _followed("view", each, look)


def _requests() -> Iterator[Decoder]:
    objects = RequestStore(ApiServer().client())

    def look() -> None:
        objects.expected()
        objects.template("ns", "worker")
        for each in objects.requests():
            change = conditions.consumption(conditions.consumed_of(each))
            conditions.merged(each, change, conditions.retry_at(each))
            conditions.attempts_of(each), conditions.bypassed_of(each), conditions.reported_nodes(each)

    for each in objects.followed:
        yield _followed("requests", each, look)


def _kueue() -> Iterator[Decoder]:
    objects = CheckStore(ApiServer().client(), "v1beta2", lambda _: None)

    def look() -> None:
        for key in list(objects._workloads.of):
            found = objects.observe(key)
            assert found is not None
            _reconcile(found)
        objects.kueue_writes()

    for each in objects.followed:
        yield _followed("kueue", each, look)


def _reconcile(found: ChecksObservation) -> None:
    configs = {"capacity": _CONFIG, **{str(each.get("name")): _CONFIG for each in found.workload.checks}}
    reconcile(found.workload, configs, found.requests, found.templates, found.flavors, KueueSettings(), kueue.NOW)


def _followed(whose: str, followed: Followed[Any], look: Callable[[], None]) -> Decoder:
    resource = followed.resource

    def read(data: bytes) -> None:
        item = item_of(resource, data)
        decoded = resource.decode(item)
        try:
            followed.applied(decoded)
            assert not followed.left_out, "the table could not take it"
            look()
        finally:
            followed.replaced(())
        followed.deleted(identity(resource.encoding, item))

    return Decoder(f"{whose} {resource.path}", read, _SEEDS[resource.path.rpartition("/")[2]])


def _karpenter() -> Iterator[Decoder]:
    def stores() -> tuple[Informer[Any], ...]:
        client = ApiServer().client()  # nobody calls it
        claims = ClaimStore(client, "cagrpc", 180.0, any_clock(lambda: 1e9))
        return (*claims.informers, *NodePools(client, frozenset({"pool"})).informers)

    def read(index: int, data: bytes) -> None:
        informer = stores()[index]
        resource, sink = informer.resource, informer.sink
        item = item_of(resource, data)
        decoded = resource.decode(item)
        sink.applied(decoded)
        if isinstance(sink, ClaimStore):
            sink.listing()
        if isinstance(sink, NodePools):
            explained(sink.fighting.values())
        sink.deleted(identity(resource.encoding, item))
        sink.replaced([decoded])

    for index, each in enumerate(stores()):
        yield Decoder(f"karpenter {each.name}", partial(read, index), _KARPENTER[each.name])


def _node_life() -> Iterator[Decoder]:
    for resource in (controller.NODE_RESOURCE, controller.POD_RESOURCE):
        kind = resource.path.rpartition("/")[2]
        yield Decoder(f"simulated {kind}", _only_read(resource), _SEEDS[kind])


def _only_read(resource: Resource[Any]) -> Callable[[bytes], object]:
    return lambda data: resource.decode(item_of(resource, data))


def item_of(resource: Resource[Any], data: bytes) -> Any:
    return data if resource.encoding is Encoding.PROTOBUF else _object(data)


def _object(data: bytes) -> dict[str, Any]:
    found = json_value(data)
    if not isinstance(found, dict):
        raise InvalidInput("no object")
    return found


# ---- pods, and what CA sends


def _of_pods() -> Iterator[Decoder]:
    reader = PodReader(DEFAULT_GANG_LABEL, _DEFAULT_SCHEDULER, "cagrpc")
    decoder = pods.PodDecoder(consuming=False)
    yield Decoder("a pod's placement", reader.read, _PODS)
    yield Decoder("a pod for pricing", decoder.decode, _PODS)
    yield Decoder("a pod that is read for who it is", pods.unread, _PODS)


def _doors() -> Iterator[Decoder]:
    option = expander_pb2.Option(nodeGroupId="a", nodeCount=2, debug="x")
    option.podBytes.extend(each.SerializeToString() for each in _PODS)
    request = expander_pb2.BestOptionsRequest(options=[option])
    yield Decoder("BestOptions", lambda data: expander.decode(data, lambda: False), (request,))
    yield Decoder("BestOptions late", lambda data: expander.decode(data, lambda: True), (request,))
    template = kubernetes_pb2.Node.FromString(nodes.template(group("a")))
    templates = TemplateGroups(catalogue=embedded_catalogue())
    yield Decoder("a template in BestOptions", lambda data: templates.read("eks", data), (template,))
    for method in externalgrpc_pb2.DESCRIPTOR.services_by_name["CloudProvider"].methods:
        seed = method.input_type._concrete_class()
        if method.name == "PricingPodPrice":
            seed.pod_bytes = _PODS[0].SerializeToString()
        if "id" in seed.DESCRIPTOR.fields_by_name:
            seed.id = "a"
        yield Decoder(method.name, _answer(method.name), (seed,), (CagrpcError,))


def _answer(method: str) -> Callable[[bytes], object]:
    def answer(data: bytes) -> None:
        fleet = FleetHarness(groups=[group("a")]).fleet()
        try:
            Provider(fleet, refusal_wait_seconds=0.0).methods()[method](data, CallContext(method))
        finally:
            fleet.close()

    return answer


def _of_autoscaler() -> Iterator[Decoder]:
    client = ApiServer().client()
    status, priorities = AutoscalerConfigMaps(client, AutoscalerConfigMapSettings()).informers()
    health = {"cloudProviderTarget": 1, "minSize": 0, "maxSize": 9}
    back_off = {"status": "Backoff", "backoffInfo": {"errorCode": "OutOfResources", "errorMessage": "x"}}
    text = yaml.safe_dump({"nodeGroups": [{"name": "eks", "health": health, "scaleUp": back_off}]})
    older = "Cluster-autoscaler status at now:\n  Name: a\n  Health: (cloudProviderTarget=1 (minSize=0, maxSize=2))\n"
    seeds = tuple({"data": {"status": each}} for each in (text, older))
    yield Decoder("an autoscaler's status", lambda data: status.resource.decode(_object(data)), seeds)
    found = {"data": {"priorities": "10: [spot]"}}
    read = priorities.resource.decode
    yield Decoder("an autoscaler's priorities", lambda data: read(_object(data)), (found,))
    kept = {"eks": {"times": 1, "at": 5.0, "why": "x", "place": ["a", "b", "spot"]}}
    memory = FailedScaleUps(any_clock(lambda: 9.0))
    yield Decoder("failed scale-ups that were kept", lambda data: memory.restore(_object(data)), (kept,))


# ---- what the API server wraps objects in


def _envelopes() -> Iterator[Decoder]:
    raw = _PODS[0].SerializeToString()
    listed = api_pb2.List(metadata={"resourceVersion": "1"}, items=[raw])
    change = api_pb2.WatchEvent(type="ADDED", object={"raw": enveloped(raw)})
    in_json = {"metadata": {"resourceVersion": "1"}, "items": [_REQUEST]}
    yield Decoder("a list", lambda data: page(Encoding.PROTOBUF, enveloped(data)), (listed,))
    yield Decoder("a list in JSON", lambda data: page(Encoding.JSON, data), (in_json,))
    yield Decoder("a change", lambda data: event(Encoding.PROTOBUF, data), (change,))
    yield Decoder("a change in JSON", lambda data: event(Encoding.JSON, data), ({"type": "ADDED", "object": _REQUEST},))
    frame = change.SerializeToString()
    prefixed, line = len(frame).to_bytes(4, "big") + frame, json.dumps(in_json).encode() + b"\n"
    yield Decoder("a watch", _watch(Encoding.PROTOBUF), (prefixed,))
    yield Decoder("a watch in JSON", _watch(Encoding.JSON), (line,))
    yield Decoder("a refusal", status_of, ({"code": 409, "message": "x", "details": {"retryAfterSeconds": 1}},))


def _watch(encoding: Encoding) -> Callable[[bytes], object]:
    return lambda data: list(frames(encoding, (data[:5], data[5:])))


# ---- what is ours, where others may write it


def _written_by_us() -> Iterator[Decoder]:
    yield Decoder("a CapacityBuffer", lambda data: _buffer(_object(data)), (_BUFFER,))
    yield Decoder("a journal's increment", lambda data: _contents([_object(data)], ()), (_INCREMENT,))
    yield Decoder("a journal's page", lambda data: _contents((), [_object(data)]), (_PAGE,))


def _buffer(found: Mapping[str, Any]) -> None:
    capacity_buffers.status(found)


def _contents(increments: Iterable[Any], pages: Iterable[Any]) -> object:
    return objects.contents_from(increments, pages, objects.NOTHING_PENDING)


# ---- objects that can be read

_CONSUMES = dict.fromkeys((*consumption.CONSUME_KEYS, *consumption.CLASS_KEYS), "x")
_NODE_AFFINITY = kubernetes_pb2.Affinity(
    nodeAffinity={
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["4"]}]}]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}
        ],
    }
)
_PODS = (
    pod(labels={"app": "web", DEFAULT_GANG_LABEL: "g"}, annotations={MIN_COUNT: "3", MIRROR: "2", EXCLUDE: "true"}),
    pod("b", node="n1", annotations={**_CONSUMES, VOLCANO_GROUP: "v"}, owner="ReplicaSet", **spread("web")),
    pod("c", labels={PLACEHOLDER: "true"}, annotations={SHAPE: "s"}, nominated="n1", **apart("web")),
    pod("d", owner="DaemonSet", deleting=True, affinity=_NODE_AFFINITY, priorityClassName="high"),
)
for _each in _PODS:
    _each.metadata.resourceVersion = "7"
    _each.metadata.managed_fields.append(b"\x0a\x01x")
    _each.spec.tolerations.add(key="gpu", operator="Exists")
    _each.spec.initContainers.add(name="i", restartPolicy="Always").ports.add(hostPort=80, protocol="TCP")
    _each.spec.overhead["memory"].string = "1Mi"

_NODE = node(taints=[kubernetes_pb2.Taint(key="k", effect="NoSchedule")])
_NODE.metadata.resourceVersion = "7"

_TEMPLATE = {
    "metadata": {"labels": {"app": "web"}, "annotations": {MIN_COUNT: "2"}},
    "spec": {
        "containers": [
            {"name": "main", "ports": [{"hostPort": 80}], "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
        ],
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priority": 5,
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "zone",
                        "labelSelector": {"matchLabels": {"app": "web"}},
                        "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
                        "matchLabelKeys": ["app"],
                    }
                ]
            }
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}
        ],
    },
}
_TEMPLATE_BYTES = kubernetes_pb2.PodTemplateSpec(metadata=_PODS[0].metadata, spec=_PODS[0].spec).SerializeToString()
_META = {"name": "w", "namespace": "ns", "annotations": {MIRROR: "1"}, "resourceVersion": "1"}


def _metadata(name: str, **annotations: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "generation": 2,
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "labels": {OWNED: "true"},
        "annotations": {ATTEMPT: "1", WORKLOAD_UID: "workload-uid", **annotations},
    }


_REQUEST = {
    "metadata": _metadata("train"),
    "spec": {
        "provisioningClassName": "c",
        "podSets": [{"podTemplateRef": {"name": "worker"}, "count": 3}],
        "parameters": {"validUntilSeconds": "60"},
    },
    "status": {
        "conditions": [kueue.condition("Provisioned", status=False), kueue.condition("Other")],
        "provisioningClassDetails": {
            conditions.CONSUMED: "0=2",
            conditions.ATTEMPTS: "2",
            conditions.BYPASSED: "1",
            conditions.RETRY_AT: "2026-01-02T03:04:05Z",
        },
    },
}
_JOB_SET = {
    "metadata": _metadata("jobs"),
    "spec": {
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
        "replicatedJobs": [
            {
                "name": "r",
                "replicas": 2,
                "template": {"spec": {"parallelism": 3, "completions": 2, "template": _TEMPLATE}},
            }
        ],
    },
    "status": {"conditions": [{"type": "Suspended", "status": "False"}]},
}
_WORKLOADS = {
    "replicas": 3,
    "template": _TEMPLATE_BYTES,
}
_BUFFER = {
    "metadata": _metadata("b"),
    "status": {
        "podTemplateRef": {"name": "t"},
        "podTemplateGeneration": 1,
        "replicas": 3,
        "conditions": [kueue.condition("ReadyForProvisioning"), kueue.condition("Provisioning")],
    },
}
_RECORD = IncrementRecord(
    "i",
    IncrementSpec({"a": 1}, pods=frozenset({"u"}), placements=(Placement("a", ("u",)),)),
    Phase.CREATING,
    (Member("token", "a", MemberState.ORDERED),),
    1e9,
    2e9,
)
_INCREMENT = objects.increment_body(_RECORD)
_GROUPS = Contents(groups=[GroupRecord(group("a"), ("limit",))])
(_PAGE,) = objects.page_bodies([objects.page_of("a")], _GROUPS).values()
_CONFIG = "it is not there"

_SEEDS: Mapping[str, tuple[Any, ...]] = {
    **devices.SEEDS,
    "storageclasses": (storage.storage_class(zones=["a"]),),
    "persistentvolumes": (
        storage.volume("v", "a", of="c", driver="ebs.csi.aws.com", labels={storage.ZONE: "a__b"}),
        storage.volume("free", size="1Ti"),
    ),
    "persistentvolumeclaims": (storage.claim("c", "v"), storage.claim("d", owner="uid-p", phase="Pending")),
    "csinodes": (storage.csi_node("n1"),),
    "csidrivers": (storage.csi_driver(),),
    "csistoragecapacities": (storage.capacity("a", largest="5Gi"),),
    "volumeattachments": (storage.attachment("a", "n1", "v"),),
    "pods": _PODS,
    "nodes": (_NODE,),
    "daemonsets": (kubernetes_pb2.DaemonSet(metadata={"name": "d"}, spec={"template": {"spec": _PODS[0].spec}}),),
    "poddisruptionbudgets": (
        kubernetes_pb2.PodDisruptionBudget(
            metadata=_META,
            spec={"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}},
            status={"disruptionsAllowed": 1},
        ),
    ),
    "runtimeclasses": (
        {
            "metadata": _metadata("kata"),
            "overhead": {"podFixed": {"cpu": "250m"}},
            "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "k", "operator": "Exists"}]},
        },
    ),
    "priorityclasses": (kubernetes_pb2.PriorityClass(metadata={"name": "p"}, value=5, globalDefault=True),),
    "deployments": (kubernetes_pb2.Deployment(metadata=_META, spec=_WORKLOADS),),
    "replicasets": (kubernetes_pb2.ReplicaSet(metadata=_META, spec=_WORKLOADS),),
    "statefulsets": (kubernetes_pb2.StatefulSet(metadata=_META, spec=_WORKLOADS),),
    "jobs": (kubernetes_pb2.Job(metadata=_META, spec={"parallelism": 3, "template": _TEMPLATE_BYTES}),),
    "jobsets": (_JOB_SET,),
    "namespaces": (kubernetes_pb2.Namespace(metadata={"name": "n", "deletionTimestamp": {"seconds": 5}}),),
    "resourcequotas": (
        {
            "metadata": _metadata("q"),
            "status": {"hard": {"requests.cpu": "4", "pods": "10"}, "used": {"requests.cpu": "1500m", "pods": "3"}},
        },
    ),
    "capacityquotas": (
        {
            "metadata": _metadata("q"),
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "limits": {"resources": {"cpu": "4", "nodes": 3}}},
        },
    ),
    "events": (
        {
            "metadata": _metadata("j.1"),
            "involvedObject": {"kind": "Job", "namespace": "ns", "name": "j"},
            "message": 'Error creating: pods "j-x" is forbidden: exceeded quota: q',
            "lastTimestamp": "2026-11-02T10:00:00Z",
            "eventTime": None,
            "series": {"lastObservedTime": "2026-11-02T10:00:00.000000Z"},
        },
    ),
    "podgroups": (
        {"metadata": _metadata("g"), "spec": {"minMember": 3}},
        {"metadata": _metadata("g"), "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}},
    ),
    "provisioningrequests": (_REQUEST,),
    "podtemplates": ({"metadata": _metadata("worker"), "template": _TEMPLATE},),
    "provisioningclasses": (
        {"metadata": _metadata("c"), "spec": {"behaviour": "atomic-scale-up", "parameters": {"x": "y"}}},
    ),
    "workloads": (kueue.workload(kueue.pod_set("workers", 8), conditions=[kueue.condition("Admitted", status=False)]),),
    "admissionchecks": (
        {
            "metadata": _metadata("capacity"),
            "spec": {"controllerName": "c", "parameters": {"apiGroup": "x", "kind": "y", "name": "z"}},
            "status": {"conditions": [kueue.condition("Active")]},
        },
    ),
    "provisioningrequestconfigs": (kueue.config(**kueue.retries(3), managedResources=["cpu"]),),
    "resourceflavors": (kueue.flavor(nodeLabels={"zone": "a"}, tolerations=[{"key": "gpu"}]),),
}


_KARPENTER: Mapping[str, tuple[Any, ...]] = {
    "nodeclaims.karpenter.sh": (
        {
            "metadata": {
                "name": name_of("0123456789ab-a-1"),
                "uid": "u",
                "resourceVersion": "7",
                "creationTimestamp": "2026-11-23T03:00:00Z",
                "annotations": {"cagrpc.io/token": "0123456789ab-a-1", "cagrpc.io/node-group": "a"},
            },
            "spec": {
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]},
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]},
                ],
            },
            "status": {
                "providerID": "aws:///us-east-1a/i-1",
                "conditions": [
                    {"type": "Launched", "status": "Unknown", "reason": "LaunchFailed", "message": "forbidden"},
                    {"type": "Registered", "status": "True", "reason": "Registered"},
                ],
            },
        },
    ),
    "events": (
        {
            "metadata": {"name": "cagrpc-1.2", "namespace": "default"},
            "involvedObject": {"kind": "NodeClaim", "name": "cagrpc-1"},
            "reason": "InsufficientCapacityError",
            "message": "NodeClaim cagrpc-1 event: none left",
        },
    ),
    "nodepools.karpenter.sh": (
        {
            "metadata": {"name": "pool"},
            "spec": {
                "limits": {"cpu": "0", "memory": 5},
                "disruption": {
                    "consolidateAfter": "Never",
                    "budgets": [{"nodes": "0", "reasons": ["Empty"]}, {"nodes": "10%", "schedule": "@daily"}],
                },
            },
        },
        {"metadata": {"name": "pool"}, "spec": {"replicas": 3}},
    ),
}
