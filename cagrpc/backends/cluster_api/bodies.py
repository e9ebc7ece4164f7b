"""What a node group's Machines are made from, and the objects of one instance as they are created. The templates are
read from the management cluster: a MachineDeployment's, MachineSet's or MachinePool's, or those that the configuration
names; the objects are clones of them, and the Machine. `Kinds` are the versions and resources that the cluster serves.

Names and ownership are by the token: all objects of an instance have one name, which is made of the token's hash, and
the whole token in an annotation. Clones follow Cluster API's own cloning (`controllers/external` there); owned by the
Cluster until the core makes the Machine their controller, none outlives it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cagrpc.api.core.nodes import START_UP_TAINT, taint_document
from cagrpc.api.encoding.json_documents import mapping, strings
from cagrpc.backends.cluster_api.plugin import MachineSource, Reference
from cagrpc.cluster.markers import FLEET_LABEL, INCREMENT, NODE_GROUP, TOKEN
from cagrpc.errors import InvalidInput, NotFound
from cagrpc.fleet.backend import OrderedInstance
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.failures import Forbidden
from solver.model import NodeGroup, TaintEffect

CORE = "cluster.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""The preferred one first."""
TEMPLATE = "Template"
"""The ending of the kinds that are cloned."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The objects of one kind in one namespace."""

    group: str
    version: str
    kind: str
    plural: str
    namespace: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{self.version}/namespaces/{self.namespace}/{self.plural}"


class Kinds:
    """Looks kinds up once. `version` is that of Cluster API's own kinds."""

    def __init__(self, client: Client, namespace: str) -> None:
        """Raises InvalidInput where the cluster serves no version that is known here, and Unavailable."""
        self._client = client
        self._namespace = namespace
        self._known: dict[tuple[str, str, str], Collection] = {}
        self.version = self._core_version()

    def core(self, kind: str) -> Collection:
        return self.collection(CORE, kind, self.version)

    def collection(self, group: str, kind: str, version: str = "") -> Collection:
        """Return the collection of a kind, in the group's preferred version where none is given. Raises NotFound where
        the cluster does not know it, and Unavailable."""
        key = (group, kind, version)
        if key not in self._known:
            of = version or str(self._client.get(f"/apis/{group}")["preferredVersion"]["version"])
            for resource in self._client.get(f"/apis/{group}/{of}").get("resources") or ():
                if resource["kind"] == kind and "/" not in resource["name"]:
                    self._known[key] = Collection(group, of, kind, str(resource["name"]), self._namespace)
                    break
            else:
                raise NotFound(f"{self._client.server} knows no kind {kind} in {group}/{of}")
        return self._known[key]

    def of(self, reference: Reference) -> Collection:
        """Return the collection of a referred object. Raises as `collection`."""
        return self.collection(reference.api_group, reference.kind, reference.version)

    def _core_version(self) -> str:
        try:
            served = {str(each["version"]) for each in self._client.get(f"/apis/{CORE}").get("versions") or ()}
        except NotFound:
            served = set()
        for version in VERSIONS:
            if version in served:
                return version
        found = f"only {', '.join(sorted(served))}" if served else "none"
        raise InvalidInput(
            f"backend.cluster_api: {self._client.server} is not a management cluster: found {found} of {CORE},"
            f" expected {' or '.join(VERSIONS)}; give its kubeconfig"
        )


def reference(written: Mapping[str, Any]) -> Reference:
    """Return a reference as Cluster API writes it: with an apiGroup in v1beta2, with an apiVersion before."""
    group, _, version = str(written.get("apiVersion") or "").rpartition("/")
    return Reference(str(written.get("apiGroup") or group), str(written["kind"]), str(written["name"]), version)


T = TypeVar("T")

SPEC_FIELDS = (
    "version",
    "failureDomain",
    "minReadySeconds",
    "readinessGates",
    "deletion",
    "taints",
    "nodeDrainTimeout",
    "nodeVolumeDetachTimeout",
    "nodeDeletionTimeout",
)
"""Fields of a template's Machine spec that are taken over as they are, in the version that they were read in."""

Document = dict[str, Any]
CLUSTER_LABEL = f"{CORE}/cluster-name"
_NAME_PREFIX = "cagrpc-"
_HASH_LENGTH = 20
_KUBEADM = ("bootstrap.cluster.x-k8s.io", "KubeadmConfig")


@dataclass(frozen=True, slots=True)
class ClonedTemplate:
    """A template object, and where its clones live."""

    reference: Reference
    document: Mapping[str, Any]
    clones: Collection


@dataclass(frozen=True, slots=True)
class MachineTemplate:
    """All that the Machines of a node group are made from."""

    infrastructure: ClonedTemplate
    bootstrap: ClonedTemplate | None
    """None where they share a secret with bootstrap data."""
    data_secret: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels of the Machine."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the Machine's spec (`SPEC_FIELDS`)."""


class Sources:
    """Reads templates. Every call reads them anew: an order takes them as they are now."""

    def __init__(self, client: Client, kinds: Kinds) -> None:
        self._client = client
        self._kinds = kinds

    def read(self, source: MachineSource) -> MachineTemplate:
        """Return what a source consists of. Raises InvalidInput with what is missing or wrong, for people, and
        Unavailable."""
        labels: Mapping[str, str] = {}
        annotations: Mapping[str, str] = {}
        spec: Mapping[str, Any] = {}
        if source.owner is not None:
            kind, name = source.owner
            owner = self._get(lambda: self._client.get(f"{self._kinds.core(kind).path}/{name}"), f"{kind} {name}")
            template = mapping(mapping(owner, "spec"), "template")
            metadata = mapping(template, "metadata")
            labels, annotations = strings(metadata, "labels"), strings(metadata, "annotations")
            spec = mapping(template, "spec")
        taken = {key: spec[key] for key in SPEC_FIELDS if spec.get(key) is not None}
        infrastructure = source.infrastructure_template or self._referred(spec, source)
        bootstrap, secret = self._bootstrap(source, mapping(spec, "bootstrap"))
        return MachineTemplate(
            infrastructure=self._template(infrastructure),
            bootstrap=None if bootstrap is None else self._template(bootstrap),
            data_secret=secret,
            labels=labels,
            annotations=annotations,
            spec=taken,
        )

    def _referred(self, spec: Mapping[str, Any], source: MachineSource) -> Reference:
        written = spec.get("infrastructureRef")
        if not isinstance(written, Mapping):
            raise InvalidInput(f"{source}: has no infrastructureRef")
        found = reference(written)
        if not found.kind.endswith(TEMPLATE):
            raise InvalidInput(
                f"{source}: its infrastructureRef is {found}, which is not a template for single machines (as that of"
                " a MachinePool); name one under infrastructure_template"
            )
        return found

    def _bootstrap(self, source: MachineSource, written: Mapping[str, Any]) -> tuple[Reference | None, str]:
        if source.bootstrap_template is not None or source.bootstrap_data_secret:
            return source.bootstrap_template, source.bootstrap_data_secret or ""
        referred = written.get("configRef")
        found = reference(referred) if isinstance(referred, Mapping) else None
        if found is not None and found.kind.endswith(TEMPLATE):
            return found, ""
        secret = str(written.get("dataSecretName") or "")
        if secret:
            return None, secret
        if found is not None:
            raise InvalidInput(
                f"{source}: its bootstrap configuration is {found}, which is not a template; name one under "
                "bootstrap_template"
            )
        raise InvalidInput(f"{source}: has no bootstrap; name bootstrap_template or bootstrap_data_secret")

    def _template(self, of: Reference) -> ClonedTemplate:
        if not of.kind.endswith(TEMPLATE):
            raise InvalidInput(f"{of}: found kind {of.kind}, expected one that ends with {TEMPLATE}")
        collection = self._get(lambda: self._kinds.of(of), str(of))
        document = self._get(lambda: self._client.get(f"{collection.path}/{of.name}"), str(of))
        kind = of.kind.removesuffix(TEMPLATE)
        clones = self._get(
            lambda: self._kinds.collection(of.api_group, kind, collection.version), f"{kind}.{of.api_group}"
        )
        return ClonedTemplate(of, document, clones)

    def _get(self, read: Callable[[], T], what: str) -> T:
        try:
            return read()
        except (NotFound, Forbidden) as error:
            raise InvalidInput(f"{what} cannot be read: {error}") from error


_NEVER_COPIED = (
    f"{CORE}/set-name",
    f"{CORE}/deployment-name",
    f"{CORE}/pool-name",
    f"{CORE}/control-plane",
    f"{CORE}/control-plane-name",
    "machine-template-hash",
    "topology.cluster.x-k8s.io/",
)
"""Labels (with a slash: prefixes) by which MachineSets, MachineDeployments and topologies know their Machines: a
MachineSet adopts any Machine that its selector matches, and deletes what it has too many."""


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The Cluster object that Machines belong to."""

    name: str
    namespace: str
    uid: str
    api_version: str
    fleet: str = "cagrpc"
    """Whose Machines are made: the value of their label."""
    failure_domains: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Clone:
    """An object to create before the Machine."""

    collection: Collection
    body: Document


def name_of(token: str) -> str:
    """Return the name of an instance's objects, which is also that of its Node with most providers."""
    return f"{_NAME_PREFIX}{hashlib.sha256(token.encode()).hexdigest()[:_HASH_LENGTH]}"


def selector(cluster: str, fleet: str) -> Mapping[str, str]:
    """Return the query for a fleet's objects of a Cluster."""
    return {"labelSelector": f"{CLUSTER_LABEL}={cluster},{FLEET_LABEL}={fleet}"}


def clones(
    instance: OrderedInstance, increment: str, cluster: ClusterIdentity, made_from: MachineTemplate
) -> list[Clone]:
    """Return the infrastructure machine and, where there is one, the bootstrap configuration."""
    templates = [made_from.infrastructure, *([made_from.bootstrap] if made_from.bootstrap else [])]
    return [Clone(each.clones, _clone(instance, increment, cluster, each)) for each in templates]


def machine(
    instance: OrderedInstance,
    increment: str,
    cluster: ClusterIdentity,
    made_from: MachineTemplate,
    source: MachineSource,
) -> Document:
    """Return the Machine, in the version of Cluster API that the management cluster serves."""
    group, name = instance.group, name_of(instance.token)
    old = cluster.api_version.endswith("/v1beta1")
    spec = _overridden(made_from.spec, group, cluster, source, old=old)
    bootstrap: Document
    if made_from.bootstrap is None:
        bootstrap = {"dataSecretName": made_from.data_secret}
    else:
        bootstrap = {"configRef": _reference(made_from.bootstrap.clones, name, old=old)}
    return {
        "apiVersion": cluster.api_version,
        "kind": "Machine",
        "metadata": _metadata(
            instance, increment, cluster, {**_machine_labels(made_from, group)}, made_from.annotations
        ),
        "spec": {
            **spec,
            "clusterName": cluster.name,
            "infrastructureRef": _reference(made_from.infrastructure.clones, name, old=old),
            "bootstrap": bootstrap,
        },
    }


def _clone(instance: OrderedInstance, increment: str, cluster: ClusterIdentity, template: ClonedTemplate) -> Document:
    inner = mapping(mapping(template.document, "spec"), "template")
    metadata = mapping(inner, "metadata")
    cloned_from = {
        f"{CORE}/cloned-from-name": template.reference.name,
        f"{CORE}/cloned-from-groupkind": f"{template.reference.kind}.{template.reference.api_group}",
    }
    annotations = {**strings(metadata, "annotations"), **cloned_from}
    spec = dict(mapping(inner, "spec"))
    if (template.clones.group, template.clones.kind) == _KUBEADM:
        spec = _registered_with_taints(spec, instance.group)
    return {
        "apiVersion": template.clones.api_version,
        "kind": template.clones.kind,
        "metadata": _metadata(instance, increment, cluster, strings(metadata, "labels"), annotations),
        "spec": spec,
    }


def _metadata(
    instance: OrderedInstance,
    increment: str,
    cluster: ClusterIdentity,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> Document:
    owner = {"apiVersion": cluster.api_version, "kind": "Cluster", "name": cluster.name, "uid": cluster.uid}
    ours = {TOKEN: instance.token, NODE_GROUP: instance.group.id, INCREMENT: increment}
    return {
        "name": name_of(instance.token),
        "namespace": cluster.namespace,
        "labels": {**labels, CLUSTER_LABEL: cluster.name, FLEET_LABEL: cluster.fleet},
        "annotations": {**annotations, **ours},
        "ownerReferences": [owner],
    }


def _machine_labels(made_from: MachineTemplate, group: NodeGroup) -> dict[str, str]:
    """Return the node group's labels, but for late ones, over the template's: those of Cluster API's domains, and those
    that its flag --additional-sync-machine-labels names, are copied to the Node."""
    found = {**made_from.labels, **group.labels}
    return {
        key: value for key, value in found.items() if key not in group.post_registration_labels and not _claims(key)
    }


def _claims(label: str) -> bool:
    return any(label.startswith(each) if each.endswith("/") else label == each for each in _NEVER_COPIED)


def _overridden(
    spec: Mapping[str, Any], group: NodeGroup, cluster: ClusterIdentity, source: MachineSource, *, old: bool
) -> Document:
    """Return the template's fields of a Machine, with what the configuration says instead."""
    found = dict(spec)
    zone = group.zone if group.zone in cluster.failure_domains else ""
    instead = {"version": source.version, "failureDomain": source.failure_domain or zone}
    found.update({key: value for key, value in instead.items() if value})
    seconds = source.node_drain_timeout_seconds
    if seconds is not None and old:
        found["nodeDrainTimeout"] = f"{seconds:.0f}s"
    elif seconds is not None:
        found["deletion"] = {**mapping(spec, "deletion"), "nodeDrainTimeoutSeconds": round(seconds)}
    if source.machine_taints:
        found["taints"] = _machine_taints(list(spec.get("taints") or ()), group)
    return found


def _machine_taints(present: Sequence[Document], group: NodeGroup) -> list[Document]:
    start_up = {"key": START_UP_TAINT, "effect": TaintEffect.NO_SCHEDULE.value, "propagation": "OnInitialization"}
    ours = [start_up, *({**taint, "propagation": "Always"} for taint in _taints(group))]
    return [*present, *(taint for taint in ours if not _has(present, taint))]


def _registered_with_taints(spec: Mapping[str, Any], group: NodeGroup) -> Document:
    """Return kubeadm's configuration with the start-up taint and the node group's among those that the Node registers
    with."""
    join = mapping(spec, "joinConfiguration")
    registration = mapping(join, "nodeRegistration")
    present = list(registration.get("taints") or ())
    ours = [{"key": START_UP_TAINT, "effect": TaintEffect.NO_SCHEDULE.value}, *_taints(group)]
    taints = [*present, *(taint for taint in ours if not _has(present, taint))]
    return {**spec, "joinConfiguration": {**join, "nodeRegistration": {**registration, "taints": taints}}}


def _taints(group: NodeGroup) -> list[Document]:
    return [{key: value for key, value in taint_document(taint).items() if value} for taint in group.taints]


def _has(taints: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> bool:
    return any((each.get("key"), each.get("effect")) == (wanted["key"], wanted["effect"]) for each in taints)


def _reference(collection: Collection, name: str, *, old: bool) -> Document:
    """Return a reference as the version of Cluster API writes it."""
    if old:
        return {
            "apiVersion": collection.api_version,
            "kind": collection.kind,
            "name": name,
            "namespace": collection.namespace,
        }
    return {"apiGroup": collection.group, "kind": collection.kind, "name": name}
