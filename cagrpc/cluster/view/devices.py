"""ResourceClaims, templates, DeviceClasses and ResourceSlices, and the pods that use them: what a pod's claims come to,
and what nodes have for all of them, as these change. The meaning is `cagrpc.api.devices`'s; who is read again is
`references`'s. Not thread-safe.

A cluster may serve several versions of the API, which have the same objects: the newest that it serves counts.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cagrpc.api.core.nodes import INSTANCE_TYPE
from cagrpc.api.devices.claims import (
    NO_DEMAND,
    ClaimObjects,
    DeviceDemand,
    carrying,
    demand,
    with_demand,
    with_extended,
)
from cagrpc.api.devices.expressions import DEVICE_CLASSES, Expressions, namespace
from cagrpc.api.devices.matching import (
    Memory,
    NodeDevices,
    NodeMatching,
    PublishedDevices,
    WantedDevices,
    by_node,
    extended_selectors,
    taken_by,
    typical,
)
from cagrpc.api.devices.objects import (
    GROUP,
    VERSIONS,
    ClaimSpec,
    Device,
    DeviceClass,
    DeviceId,
    ResourceClaim,
    Slice,
    device_class,
    resource_claim,
    resource_claim_template,
    resource_slice,
)
from cagrpc.api.devices.selectors import Matcher, Selector, needs
from cagrpc.cluster.state import ClusterNode, oldest_first
from cagrpc.cluster.view.classes import CountedSet
from cagrpc.cluster.view.objects import ObservedPod, PodStage
from cagrpc.cluster.view.references import Reference, References
from cagrpc.cluster.view.sinks import Values
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.priority_map import PriorityMap
from solver.model import Labels, PodSpec

T = TypeVar("T")

_READ = (PodStage.WAITING, PodStage.MOVABLE)
"""Stages in which claims matter: of pods to plan, and of those that another node would have to take."""
_EXTENDED = "extended resources"
_NOT_LISTED = ("resource.k8s.io", "")
_KINDS = frozenset({"resourceclaims", "resourceclaimtemplates", "deviceclasses", "resourceslices"})
PUBLISHING_SECONDS = 600.0
"""How long after a Node is seen its drivers may take to publish its devices; until then it counts as its group's."""


class _Use(NamedTuple):
    """What a pod needs to know of devices, as many others do."""

    selectors: tuple[Selector, ...]
    attributes: frozenset[str]
    keys: frozenset[str]


class DeviceTable:
    """The tables, `resolved`, a pod with what its claims come to, and `matching`, what nodes have for all pods."""

    def __init__(
        self,
        references: References,
        clock: MonotonicClock = monotonic,
        configured: Mapping[str, tuple[Device, ...]] | None = None,
        labels_of_groups: Mapping[str, Labels] | None = None,
    ) -> None:
        """`configured` are the devices of new nodes, by node group; `labels_of_groups` the labels of such nodes."""
        self._labels_of_groups = labels_of_groups or {}
        self._references, self._clock = references, clock
        self.configured = configured or {}
        self._expressions = Expressions()
        self._matcher = Matcher(self._expressions)
        self._claims = self._tables(self._claim_changed)
        self._templates = self._tables(self._by_key("ResourceClaimTemplate"))
        self._classes = self._tables(self._class_changed)
        self._slices = self._tables(self._slice_changed)
        claims: Mapping[str, ResourceClaim] = ChainMap(*(each.of for each in self._claims))
        templates: Mapping[str, ClaimSpec] = ChainMap(*(each.of for each in self._templates))
        self._by_class: Mapping[str, DeviceClass] = ChainMap(*(each.of for each in self._classes))
        self._objects = ClaimObjects(claims, templates, self._by_class)
        self._known_backed: Mapping[str, DeviceClass] | None = None
        self._listed: set[str] = set()
        self._users: defaultdict[str, PriorityMap[Hashable, None]] = defaultdict(PriorityMap)
        """The waiting pods of shared claims that are not allocated, the oldest first."""
        self._shares: dict[Hashable, tuple[str, ...]] = {}
        self._uses: dict[Hashable, _Use] = {}
        self._in_use: CountedSet[_Use] = CountedSet()
        self._nodes: Mapping[str, NodeDevices] | None = None
        self._taken_by_claims: CountedSet[DeviceId] = CountedSet()
        self._of_types: dict[str, NodeDevices] = {}
        self._first_seen: dict[str, float] = {}
        """When a Node was seen first, of those without devices."""
        self._memory = Memory()
        self._matching: tuple[tuple[object, ...], NodeMatching, object] = (None,), NodeMatching(self._matcher), None
        """What devices are to all pods, with what that was made of: the selectors in use first, and all devices."""

    def followed(self, follow: Callable[..., T]) -> Iterator[T]:
        """Yield what `follow` makes of each kind, of which a cluster serves some, or nothing: it takes the path, the
        kind, its reader, the table, and what is to be called whenever the table has all objects."""
        for plural, kind, read, tables in (
            ("resourceclaims", "ResourceClaim", resource_claim, self._claims),
            ("resourceclaimtemplates", "ResourceClaimTemplate", resource_claim_template, self._templates),
            ("deviceclasses", "DeviceClass", device_class, self._classes),
            ("resourceslices", "ResourceSlice", resource_slice, self._slices),
        ):
            for version, table in zip(VERSIONS, tables, strict=True):
                path = f"/apis/{GROUP}/{version}/{plural}"
                yield follow(path, kind, read, table, partial(self._has_listed, plural))

    def _has_listed(self, plural: str) -> None:
        """Note that from now on what is not in the tables of a kind is not in the cluster."""
        if plural not in self._listed:
            self._listed.add(plural)
            self._references.changed(_NOT_LISTED)

    # Tables

    @staticmethod
    def _tables(changed: Callable[[str, Any, Any], None]) -> Sequence[Values[Any]]:
        return tuple(Values(changed) for _ in VERSIONS)

    def _by_key(self, kind: str) -> Callable[[str, Any, Any], None]:
        return lambda key, _before, _after: self._references.changed((kind, key))

    def _claim_changed(self, key: str, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        self._references.changed(("ResourceClaim", key))
        had, has = (taken_by(each) if each is not None else frozenset() for each in (before, after))
        if had != has:
            self._taken_by_claims.add(has)
            self._taken_by_claims.remove(had)

    def _class_changed(self, key: str, _before: DeviceClass | None, _after: DeviceClass | None) -> None:
        self._references.changed(("DeviceClass", key), (_EXTENDED, ""))
        self._known_backed = None

    @property
    def _backed(self) -> Mapping[str, DeviceClass]:
        """The classes that back extended resources."""
        if self._known_backed is None:
            self._known_backed = self._objects.extended_resources()
        return self._known_backed

    def _slice_changed(self, _key: str, _before: Slice | None, _after: Slice | None) -> None:
        self._nodes = None

    # Pods

    def forget(self, key: Hashable) -> None:
        """Forget a pod that is gone or no longer planned."""
        self._share(key, (), ())
        self._expressions.forget(key)
        use = self._uses.pop(key, None)
        if use is not None:
            self._in_use.remove((use,))

    def resolved(self, seen: ObservedPod, stage: PodStage | None) -> tuple[ObservedPod, frozenset[Reference]]:
        """Return the pod as planning reads it, with what its claims come to, and what it was read with."""
        pod = seen.pod
        waits = stage is PodStage.WAITING
        extended = (waits or seen.eviction is not None) and any("/" in name for name, _ in pod.spec.requests)
        if stage not in _READ or not (pod.resource_claims.claims or extended):
            self.forget(seen.key)
            return seen, frozenset()
        found = NO_DEMAND
        if pod.resource_claims.claims:
            found = demand(
                pod.identity.namespace, pod.key, pod.resource_claims, self._objects, self._matcher, runs=not waits
            )
        if found is not NO_DEMAND and (missing := _KINDS - self._listed):
            why = f"resource claims cannot be planned: {', '.join(sorted(missing))} of {GROUP} cannot be listed"
            found = DeviceDemand(problem=why, refers_to=frozenset({"/".join(_NOT_LISTED)}))
        selectors = (*found.selectors, *(extended_selectors((pod.spec,), self._backed) if extended else ()))
        if why := self._expressions.use(seen.key, needs(pod.identity.namespace, selectors)):
            selectors = ()
            found = DeviceDemand(problem=why, refers_to=found.refers_to)
        references: set[Reference] = {(kind, key) for kind, _, key in (each.partition("/") for each in found.refers_to)}
        if extended:
            references.add((_EXTENDED, ""))
        shared = tuple(key for key, _ in found.shared)
        # Not with an expected pod, nor with one that something else keeps from every node: nobody waits for those.
        carried = waits and pod.key and not (found.problem or pod.spec.unschedulable)
        self._share(seen.key, shared if carried else (), oldest_first(seen.ref))
        if shared:
            references.add(_carried_by(seen.key))
        carries = {key for key in shared if self._carrier(key) == seen.key}
        spec = with_extended(pod.spec, self._backed) if waits and extended else pod.spec  # of others see `elsewhere`
        references.add(_selectors_of(seen.key))
        self._use(seen.key, _Use(selectors, found.attributes, frozenset(found.keys)))
        spec = with_demand(spec, found, carries, set(shared))
        labels = {**pod.labels, **carrying(sorted(carries))}
        return replace(seen, pod=replace(pod, spec=spec, labels=labels)), frozenset(references)

    def read_expressions(self) -> None:
        """Begin a round, and read expressions of the pods' selectors, as many as its budget allows. To be called
        without locks: it may take a second."""
        self._matcher.begin()
        self._expressions.read()

    def expressions_changed(self) -> None:
        """Have those pods read again whose selectors were read, or have found room."""
        self._references.changed(*map(_selectors_of, self._expressions.changed()))

    def unread(self) -> Iterable[str]:
        """Return the namespaces whose expressions are left for the next rounds; empty for those of classes."""
        return ("" if each == DEVICE_CLASSES else each.removeprefix(namespace("")) for each in self._expressions.unread)

    def shares(self) -> tuple[float, int]:
        """Return how much of its share of selectors the owner uses that uses most, and how many pods have no room."""
        return self._expressions.most_used, self._expressions.left_out

    def elsewhere(self, spec: PodSpec) -> PodSpec:
        """Return what a pod that runs asks for on another node: there an extended resource that a class backs may come
        from devices. Where it runs it takes what it has requested, of a device plugin."""
        return with_extended(spec, self._backed)

    def is_allocated(self, claim: str) -> bool:
        """Return whether a claim (`namespace/name`) is there, and allocated."""
        found = self._objects.claims.get(claim)
        return found is not None and found.allocated

    def _use(self, key: Hashable, use: _Use) -> None:
        before = self._uses.get(key)
        if before == use:
            return
        self._in_use.add((use,))
        if before is not None:
            self._in_use.remove((before,))
        self._uses[key] = use

    def _share(self, key: Hashable, claims: tuple[str, ...], order: tuple[object, ...]) -> None:
        before = self._shares.pop(key, ())
        for each in dict.fromkeys((*before, *claims)):
            first, users = self._carrier(each), self._users[each]
            if each in claims:
                users.put(key, (*order, str(key)), None)
            else:
                users.drop(key)
            if not users:
                del self._users[each]
            now = self._carrier(each)
            if now != first:
                self._references.changed(*(_carried_by(pod) for pod in (first, now) if pod not in (None, key)))
        if claims:
            self._shares[key] = claims

    def _carrier(self, claim: str) -> Hashable | None:
        """Return the pod that a shared claim is planned with: the oldest of those that wait and may run."""
        users = self._users.get(claim)
        found = users.first() if users is not None else None
        return None if found is None else found[0]

    # Nodes

    def matching(self, nodes: Iterable[ClusterNode]) -> NodeMatching:
        """Return what nodes have for all pods; the same object as long as nothing has changed."""
        pools = self._pools()
        awaited = self._learn(nodes)
        based_on = self._in_use.version, self._taken_by_claims.version, awaited
        before, found, of_pools = self._matching
        self._memory.unplanned.for_now.clear()
        if before == based_on and of_pools is pools and not found.is_partial:
            return found
        if before[0] != based_on[0]:
            self._memory = Memory()
        uses = list(self._in_use)
        found = NodeMatching(
            self._matcher,
            WantedDevices(
                tuple(selector for use in uses for selector in use.selectors),
                frozenset(name for use in uses for name in use.attributes),
                frozenset(key for use in uses for key in use.keys),
            ),
            PublishedDevices(pools, frozenset(self._taken_by_claims), awaited),
            self._memory,
        )
        found.shared_by_nodes()
        self._matching = based_on, found, pools
        return found

    def _learn(self, nodes: Iterable[ClusterNode]) -> frozenset[str]:
        """Remember the devices of each instance type, of nodes that stand or have stood. Return the nodes whose drivers
        are still to publish."""
        if not self._uses and not self._nodes:
            return frozenset()
        of_types: defaultdict[str, list[NodeDevices]] = defaultdict(list)
        now, first_seen, awaited = self._clock(), self._first_seen, set()
        self._first_seen = {}
        for each in nodes:
            name, kind = each.node.name, each.node.labels.get(INSTANCE_TYPE)
            published = (self._nodes or {}).get(name)
            if published is not None and not published.incomplete:
                if kind:
                    of_types[kind].append(published)
                continue
            since = self._first_seen[name] = first_seen.get(name, now)
            if now < since + PUBLISHING_SECONDS:
                awaited.add(name)
        for kind, found in of_types.items():
            usual = typical(found)
            if usual is not None:
                self._of_types[kind] = usual
        return frozenset(awaited)

    def is_unpublished(self, name: str, labels: Labels) -> bool:
        """Return whether a new node is still without the devices that nodes like it have, and pods ask for some."""
        if not self._uses:
            return False
        there = self._pools().get(name)
        if there is not None and not there.incomplete:
            return False
        ours = (
            of.items() <= labels.items() for group, of in self._labels_of_groups.items() if group in self.configured
        )
        return labels.get(INSTANCE_TYPE) in self._of_types or any(ours)

    def _pools(self) -> Mapping[str, NodeDevices]:
        if self._nodes is None:
            self._nodes = by_node(ChainMap(*(each.of for each in self._slices)).values())
        return self._nodes

    def of_types(self) -> Mapping[str, NodeDevices]:
        """Return the devices of instance types, of nodes that stand or have stood."""
        return dict(self._of_types)


def _selectors_of(key: Hashable) -> Reference:
    return "selectors of", key


def _carried_by(key: Hashable) -> Reference:
    """Return which shared claims are planned with a pod."""
    return "carried by", key


def with_devices(nodes: Iterable[ClusterNode], matching: NodeMatching) -> tuple[ClusterNode, ...]:
    """Return the nodes with those of their devices that nobody has."""

    def described(each: ClusterNode) -> ClusterNode:
        node = each.node
        devices = matching.of_node(node.name, node.allocatable, node.free)
        return replace(each, node=replace(node, devices=devices)) if devices else each

    return tuple(map(described, nodes))
