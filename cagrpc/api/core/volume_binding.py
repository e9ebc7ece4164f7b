"""What volumes come to for a pod: where it may run, which volumes a node attaches for it, and why it must wait.

Semantics are the kube-scheduler's: VolumeBinding (bound claims, WaitForFirstConsumer, Immediate), VolumeZone,
VolumeRestrictions (ReadWriteOncePod) and NodeVolumeLimits. Two things go beyond its filters, because a pod could start
nowhere else: pods that share a ReadWriteOnce claim keep together on one node, and pods that share a claim whose volume
is still to be made keep to one zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cagrpc.api.core.pods import Pod
from cagrpc.api.core.volumes import PodVolume, StorageClass, Volume, VolumeClaim, VolumeClaimSpec, driver_of
from solver.model import (
    ATTACHABLE_VOLUMES,
    HOSTNAME,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Requirement,
    Resources,
)
from solver.model.eligibility import matches_requirement

UNLIMITED_ATTACHMENTS = 10**6
"""What a node has of that resource where no limit is known: the scheduler knows none either."""
SHARED_CLAIM = "claim.planning.cagrpc.io/"
"""A label that only planning sees, of pods that share a claim; the claim's name follows."""
_ZONE = "topology.kubernetes.io/zone"

Terms = tuple[NodeSelectorTerm, ...]


@dataclass(frozen=True, slots=True)
class ClaimUser:
    """Another pod that uses a claim."""

    name: str
    """`namespace/name`."""
    node: str = ""
    """Where it runs; empty while it waits."""
    ends: bool = False
    """Whether it is being deleted."""
    order: tuple[object, ...] = ()
    """Of waiting pods, who comes first."""


class StorageObjects(Protocol):
    """The objects of a cluster, or of files. None where there is no such object."""

    def claim(self, key: str) -> VolumeClaim | None: ...

    def volume(self, name: str) -> Volume | None: ...

    def storage_class(self, name: str) -> StorageClass | None: ...

    def default_class(self) -> StorageClass | None: ...

    def unbound_volumes(self, class_name: str) -> Iterable[Volume]:
        """Return the volumes of a class that are bound to no claim."""
        ...

    def chosen_volumes(self, claim: VolumeClaim, of: StorageClass) -> Sequence[Volume]:
        """Return the volumes that a claim of a class without a provisioner can count on."""
        ...

    def users(self, claim: str, pod: str) -> Sequence[ClaimUser]:
        """Return the pods that use a claim, but for the pod with this key."""
        ...


@dataclass(frozen=True, slots=True)
class VolumeDemand:
    """What the volumes of one pod come to."""

    node_terms: tuple[Terms, ...] = ()
    attached: tuple[tuple[str, str], ...] = ()
    """Volumes that its node attaches: driver, and what tells the volume from others."""
    counted: tuple[tuple[str, str], ...] = ()
    """Those of them that are counted with this pod; others are counted with a pod that shares them."""
    shared: tuple[tuple[str, str], ...] = ()
    """Claims that it shares with other waiting pods: name, and the topology key of the domain that holds them all."""
    unschedulable: str = ""


class _Waits(Exception):  # noqa: N818 - no error: the pod waits, and why
    pass


def demand(pod: Pod, objects: StorageObjects, order: tuple[object, ...] = (), *, running: bool = False) -> VolumeDemand:
    """Return what the volumes of `pod` come to. `order` is its place among waiting pods. Of a `running` one only what
    its node attaches, and where it could go instead, is asked."""
    reader = _Demand(pod, objects, order, running=running)
    waits = ""
    for used in pod.volumes.claims:
        try:
            reader.read(used)
        except _Waits as error:
            waits = waits or str(error)
    attached = dict.fromkeys((*reader.attached, *pod.volumes.inline))
    counted = tuple(each for each in attached if each not in reader.counted_elsewhere)
    return VolumeDemand(
        tuple(dict.fromkeys(reader.terms)),
        tuple(attached),
        counted,
        tuple(reader.shared),
        "" if running else waits,
    )


class _Demand:
    def __init__(self, pod: Pod, objects: StorageObjects, order: tuple[object, ...], *, running: bool) -> None:
        self._pod, self._objects, self._order, self._running = pod, objects, order, running
        self._namespace = pod.identity.namespace
        self.terms: list[Terms] = []
        self.attached: list[tuple[str, str]] = []
        self.counted_elsewhere: set[tuple[str, str]] = set()
        self.shared: list[tuple[str, str]] = []

    def read(self, used: PodVolume) -> None:
        key = f"{self._namespace}/{used.claim}"
        found = self._objects.claim(key)
        if found is None:
            if used.template is None:
                raise _Waits(f'persistentvolumeclaim "{used.claim}" not found')
            found = VolumeClaim(key, used.template, owner=self._pod.key)  # as it will be made
            if used.template.class_name is None:
                default = self._objects.default_class()
                found = replace(found, spec=replace(used.template, class_name=default.name if default else ""))
        self._check(used, found)
        bound = self._objects.volume(found.volume) if found.bound else None
        of = self._class(found.spec)
        attached = self._attached(found, bound, of)
        if found.bound:
            if bound is None:
                raise _Waits(f'persistentvolumeclaim "{used.claim}" is bound to volume "{found.volume}", not found')
            self.terms += bound.node_terms
        else:
            self._unbound(used, found, of)
        if not used.ephemeral:
            self._share(used, found, attached, of)

    def _check(self, used: PodVolume, found: VolumeClaim) -> None:
        if self._running:
            return
        if found.lost:
            raise _Waits(f'persistentvolumeclaim "{used.claim}" has lost its volume "{found.volume}"')
        if found.deleted:
            raise _Waits(f'persistentvolumeclaim "{used.claim}" is being deleted')
        if used.ephemeral and found.owner != self._pod.key:
            raise _Waits(f'persistentvolumeclaim "{used.claim}" was not made for the pod, which needs one of that name')

    def _class(self, spec: VolumeClaimSpec) -> StorageClass | None:
        return self._objects.storage_class(spec.class_name) if spec.class_name else None

    def _attached(self, found: VolumeClaim, bound: Volume | None, of: StorageClass | None) -> tuple[str, str] | None:
        """Count the claim's volume for the node; a volume that is not there counts as what its class will make."""
        driver, name = "", f"of {found.key}"
        if bound is not None:
            driver, name = bound.driver, bound.name
        elif of is not None and of.provisions:
            driver = driver_of(of.provisioner)
        elif of is not None and of.waits:  # the scheduler counts one of these once it is bound
            driver = next((each.driver for each in self._objects.chosen_volumes(found, of)), "")
        if not driver:
            return None
        self.attached.append((driver, name))
        return driver, name

    def _unbound(self, used: PodVolume, found: VolumeClaim, of: StorageClass | None) -> None:
        name = f'persistentvolumeclaim "{used.claim}"'
        if found.volume:
            raise _Waits(f'{name} is not bound yet to volume "{found.volume}", which it names')
        if of is None:
            if not found.spec.class_name:
                raise _Waits(f"{name} has no storage class and is not bound to a volume yet")
            raise _Waits(f'{name} is not bound, and its storageclass "{found.spec.class_name}" is not found')
        if not of.waits:
            raise _Waits(f'{name} is not bound yet: its storageclass "{of.name}" binds at once (Immediate)')
        if found.selected_node:
            self.terms.append(_named((found.selected_node,)))
        elif of.provisions:
            self._provisioned(found, of)
        else:
            chosen = self._objects.chosen_volumes(found, of)
            if not chosen:
                raise _Waits(
                    f'{name} finds no volume: storageclass "{of.name}" makes none, and no available one is left for it'
                )
            self._any_of(chosen)

    def _provisioned(self, found: VolumeClaim, of: StorageClass) -> None:
        """Where a volume can be made, or one that is there is in reach."""
        if of.topologies:
            there = [v for v in self._objects.unbound_volumes(of.name) if suits(found, v)]
            self._any_of(there, of.topologies)

    def _any_of(self, volumes: Iterable[Volume], terms: Terms = ()) -> None:
        found = dict.fromkeys(terms)
        for each in volumes:
            if each.affinity is None:
                return
            found.update(dict.fromkeys(each.affinity))
        self.terms.append(tuple(found))

    def _share(
        self, used: PodVolume, found: VolumeClaim, attached: tuple[str, str] | None, of: StorageClass | None
    ) -> None:
        """Keep pods together that use one claim."""
        users = self._objects.users(found.key, self._pod.key)
        there = sorted({user.node for user in users if user.node and not user.ends})
        first = min((user.order for user in users if not user.node), default=None)
        waits = first is not None and first < self._order
        if self._running:
            return
        if found.spec.of_one_pod and users:
            other = next((user for user in users if user.node), users[0])
            if other.node or waits:
                raise _Waits(
                    f'persistentvolumeclaim "{used.claim}" is ReadWriteOncePod, and pod {other.name} uses it'
                    + ("" if other.node else " first")
                )
            return
        several = bool(users) or (not self._pod.key and used.template is None)  # pods to come of one template
        if not several or (found.bound and not found.spec.of_one_node):
            return
        if found.spec.of_one_node:
            key = HOSTNAME
        else:
            keys = {each.key for term in (of.topologies if of else ()) for each in term.match_expressions}
            key = keys.pop() if len(keys) == 1 else _ZONE
        if there and found.spec.of_one_node:
            self.terms.append(_named(there))
            if attached:
                self.counted_elsewhere.add(attached)
        elif first is not None or not users:
            self.shared.append((used.claim, key))
            if attached and waits and key == HOSTNAME:
                self.counted_elsewhere.add(attached)


def suits(claim: VolumeClaim, volume: Volume) -> bool:
    """Return whether the scheduler would bind the claim to this volume (upstream: FindMatchingVolume), wherever it
    is."""
    spec = claim.spec
    if volume.deleted or volume.size < spec.size or volume.mode != spec.mode:
        return False
    if volume.attributes_class != spec.attributes_class:
        return False
    if volume.claim:
        return volume.kept_for(claim)
    return (
        volume.available
        and volume.class_name == (spec.class_name or "")
        and {*spec.access_modes} <= {*volume.access_modes}
        and all(matches_requirement(each, volume.labels) for each in spec.selector)
    )


def choose(claims: Iterable[VolumeClaim], volumes: Iterable[Volume]) -> Mapping[str, Sequence[Volume]]:
    """Return by claim which of the volumes it can count on, of a class that makes none.

    A volume that is kept for a claim, as the scheduler keeps one while it binds a pod, goes to that claim, which counts
    on no other. Volumes of equal node affinity are a pool. Where a pool has enough for all other claims, each of them
    may use it, and pods go wherever is best. Where none has, every claim gets one volume: the smallest that suits, as
    the scheduler takes them, pool after pool, in the order of names. No more pods are so served than there are
    volumes."""
    there = sorted(volumes, key=lambda v: (v.size, v.name))
    keepers = {each.claim: each for each in reversed(there) if each.claim}
    waiting, kept = [], {}
    for each in sorted(claims, key=lambda claim: claim.key):
        own = keepers.get(each.key)
        if own is not None and suits(each, own):
            kept[each.key] = [own]
        else:
            waiting.append(each)
    pools: dict[Terms | None, list[Volume]] = {}
    for volume in there:
        if not volume.claim:
            pools.setdefault(volume.affinity, []).append(volume)
    ample = [taken for pool in pools.values() if len(taken := _taken(waiting, pool)) == len(waiting)]
    if ample:
        return kept | {each.key: [taken[each.key] for taken in ample] for each in waiting}
    ordered = [each for terms in sorted(pools, key=repr) for each in pools[terms]]
    return kept | {key: [found] for key, found in _taken(waiting, ordered).items()}


def _taken(claims: Iterable[VolumeClaim], volumes: Sequence[Volume]) -> dict[str, Volume]:
    """Return the volume of each claim that gets one."""
    left = {each.name: each for each in volumes}
    found = {}
    for claim in claims:
        mine = next((each for each in left.values() if suits(claim, each)), None)
        if mine is not None:
            found[claim.key] = mine
            del left[mine.name]
    return found


def bound_by(spec: PodSpec, found: VolumeDemand, namespace: str) -> PodSpec:
    """Return the spec with what its volumes require."""
    counts: dict[str, int] = {}
    for driver, _ in found.counted:
        counts[f"{ATTACHABLE_VOLUMES}{driver}"] = counts.get(f"{ATTACHABLE_VOLUMES}{driver}", 0) + 1
    together = tuple(
        PodAffinityTerm(
            key, PodSelector((Requirement(f"{SHARED_CLAIM}{claim}", Operator.EXISTS),), (namespace,)), alone=True
        )
        for claim, key in found.shared
    )
    return replace(
        spec,
        requests=tuple(sorted({**dict(spec.requests), **counts}.items())),
        node_terms=(*spec.node_terms, *found.node_terms),
        unschedulable=spec.unschedulable or found.unschedulable,
        pod_affinity=(*spec.pod_affinity, *together),
    )


def _named(nodes: Iterable[str]) -> Terms:
    return (NodeSelectorTerm(match_fields=(Requirement("metadata.name", Operator.IN, tuple(nodes)),)),)


def with_attachments(allocatable: Resources, drivers: Iterable[str], *limits: Mapping[str, int]) -> Resources:
    """Return what a node has for pods, with a number of attachments of each of these drivers and of no other: as the
    last of `limits` that knows the driver says, else as `allocatable` does (from configuration or the catalogue), else
    without limit."""
    found = {f"{ATTACHABLE_VOLUMES}{driver}": UNLIMITED_ATTACHMENTS for driver in drivers}
    known = {f"{ATTACHABLE_VOLUMES}{driver}": count for each in limits for driver, count in each.items()}
    others = {name: of for name, of in allocatable.items() if not name.startswith(ATTACHABLE_VOLUMES)}
    return {**others, **{name: known.get(name, allocatable.get(name, of)) for name, of in found.items()}}


def default_of(classes: Iterable[StorageClass]) -> StorageClass | None:
    """Return the class of claims that name none: the newest of those that are marked, as upstream."""
    marked = [each for each in classes if each.default]
    return max(marked, key=lambda each: (each.created_at, each.name), default=None)
