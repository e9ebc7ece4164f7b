"""What volumes come to for a pod: where it may run, which volumes a node attaches for it, and why it must wait; who
else uses its claims; and which of the volumes that are there a claim can count on, whichever pods the scheduler binds
first.

Semantics are the kube-scheduler's: VolumeBinding (bound claims, WaitForFirstConsumer, Immediate; of the volumes in
reach FindMatchingVolume takes the smallest that suits), VolumeZone, VolumeRestrictions (ReadWriteOncePod) and
NodeVolumeLimits. Two things go beyond its filters, because a pod could start nowhere else: pods that share a
ReadWriteOnce claim keep together on one node, and pods that share a claim whose volume is still to be made keep to one
zone.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from heapq import nsmallest

from cagrpc.api.core.nodes import ZONE
from cagrpc.api.core.pods import Pod
from cagrpc.api.core.volumes import (
    PodVolume,
    Reach,
    StorageClass,
    Volume,
    VolumeClaim,
    VolumeClaimSpec,
    driver_of,
    of_default_class,
)
from cagrpc.runtime.priority_map import PriorityMap
from solver.model import (
    ATTACHABLE_VOLUMES,
    HOSTNAME,
    Labels,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Requirement,
    Resources,
)
from solver.model.eligibility import matches_requirement
from solver.model.quantities import format_quantity

MOST_NODES = 16
"""How many nodes are told whose pods use one claim: others that share a ReadWriteOnce one go to these."""
MOST_KINDS = 50
"""Kinds of a namespace's claims that are compared with the volumes of one class."""


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
    """Who comes first of waiting pods."""


@dataclass(frozen=True, slots=True)
class OtherUsers:
    """The pods that use a claim or may, without the one that asks and those that their own volumes keep from every
    node."""

    running: ClaimUser | None
    """The first by name of those that have a node."""
    nodes: tuple[str, ...]
    """The nodes of those that are not being deleted; the first few by name."""
    waiting: ClaimUser | None
    """The first of those that wait."""

    def __bool__(self) -> bool:
        return bool(self.running or self.waiting)


class ClaimUsers:
    """The pods that use one claim. What each needs to know of all others costs as much however many they are."""

    __slots__ = ("_blocked", "_first_nodes", "_nodes", "_running", "_waiting")

    def __init__(self) -> None:
        self._running: PriorityMap[Hashable, ClaimUser] = PriorityMap()
        self._waiting: PriorityMap[Hashable, ClaimUser] = PriorityMap()
        self._blocked: dict[Hashable, ClaimUser] = {}
        """Those that wait, and whom their own volumes keep from every node: nobody waits for one of them."""
        self._nodes: Counter[str] = Counter()
        self._first_nodes: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting) + len(self._blocked)

    def put(self, key: Hashable, user: ClaimUser) -> bool:
        """Set a user; return whether that is a change."""
        if user in (self._running.get(key), self._waiting.get(key), self._blocked.get(key)):
            return False
        blocked = key in self._blocked and not user.node
        self.drop(key)
        if user.node:
            self._running.put(key, user.name, user)
            self._count(user, 1)
        elif blocked:
            self._blocked[key] = user
        else:
            self._waiting.put(key, (user.order, user.name), user)
        return True

    def drop(self, key: Hashable) -> None:
        """Forget a user."""
        running = self._running.drop(key)
        if running is not None:
            self._count(running, -1)
        elif self._waiting.drop(key) is None:
            self._blocked.pop(key, None)

    def block(self, key: Hashable, *, blocked: bool) -> bool:
        """Say whether a user that waits is kept from every node by its own volumes; return whether that is a change."""
        user = self._waiting.drop(key) if blocked else self._blocked.pop(key, None)
        if user is None:
            return False
        if blocked:
            self._blocked[key] = user
        else:
            self._waiting.put(key, (user.order, user.name), user)
        return True

    def _count(self, user: ClaimUser, count: int) -> None:
        if not user.ends:
            self._nodes[user.node] += count
            if not self._nodes[user.node]:
                del self._nodes[user.node]
            self._first_nodes = None

    def others(self, key: Hashable) -> OtherUsers:
        """Return the users but for this one, which has no node."""
        if self._first_nodes is None:
            self._first_nodes = tuple(nsmallest(MOST_NODES, self._nodes))
        running = self._running.first()
        return OtherUsers(running[1] if running else None, self._first_nodes, self._waiting.first_but(key))


Affinity = tuple[NodeSelectorTerm, ...] | None


@dataclass(frozen=True, slots=True)
class ChosenVolumes:
    """The volumes that a claim can count on, and what they come to for pods; claims of one kind share it. Two are equal
    where no pod could tell one from the other."""

    volumes: tuple[Volume, ...] = field(compare=False)
    affinity: Affinity
    """The terms of nodes that reach any of them; None where all do."""
    driver: str
    """That attaches them; empty where none does."""
    kept: Volume | None
    """The only one, which is kept for the claim."""


def _chosen(volumes: Sequence[Volume]) -> ChosenVolumes:
    terms: dict[NodeSelectorTerm, None] = {}
    for affinity in dict.fromkeys(each.affinity for each in volumes):
        terms.update(dict.fromkeys(affinity or ()))
    everywhere = any(each.affinity is None for each in volumes)
    driver = next((each.driver for each in volumes if each.driver), "")
    kept = volumes[0] if volumes[0].claim else None
    return ChosenVolumes(tuple(volumes), None if everywhere else tuple(terms), driver, kept)


BEYOND_KINDS = ChosenVolumes((), (), "", None)
"""What a claim has that is not looked at: none."""


def suits(claim: VolumeClaim, volume: Volume) -> bool:
    """Return whether the scheduler would bind the claim to this volume, wherever it is."""
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


def choose(claims: Iterable[VolumeClaim], volumes: Iterable[Volume]) -> Mapping[str, ChosenVolumes]:
    """Return by claim which of the volumes of its class it can count on.

    A volume that is kept for a claim is the only one for it. Of the others those of equal node affinity are a pool.
    Where each claim has pools in which it finds a volume whatever the others take, it may use any of these, and pods go
    wherever is best. Otherwise each is given one pool, in the order of names, as long as all that were given it before
    still find theirs. No more pods are so served than there are volumes.

    Of each namespace's claims, in the order of names, those of `MOST_KINDS` kinds are looked at where no volume is kept
    for them; others have `BEYOND_KINDS`."""
    waiting = sorted(claims, key=lambda each: each.key)
    by_claim: defaultdict[str, list[Volume]] = defaultdict(list)
    pools: defaultdict[Affinity, list[Volume]] = defaultdict(list)
    for each in sorted(volumes, key=lambda v: (v.size, v.name)):
        if each.claim:
            by_claim[each.claim].append(each)
        else:
            pools[each.affinity].append(each)
    found: dict[str, ChosenVolumes] = {}
    for claim in waiting:
        kept = [each for each in by_claim.get(claim.key, ()) if suits(claim, each)]
        if kept:
            found[claim.key] = _chosen(kept[:1])
    if not pools:
        return found
    kinds: defaultdict[str, set[VolumeClaimSpec]] = defaultdict(set)
    others = []
    for claim in waiting:
        known = kinds[claim.namespace]
        if claim.key in found:
            continue
        if claim.spec not in known and len(known) == MOST_KINDS:
            found[claim.key] = BEYOND_KINDS
        else:
            known.add(claim.spec)
            others.append(claim)
    if others:
        found.update(_Choice(others, [pools[terms] for terms in sorted(pools, key=repr)]).made())
    return found


class _AlikeVolumes:
    """Volumes of one node affinity, and what claims can be met from them."""

    def __init__(self, volumes: Sequence[Volume], claims: Mapping[VolumeClaimSpec, VolumeClaim]) -> None:
        self.affinity = volumes[0].affinity
        self._volumes = volumes
        self.suiting: dict[VolumeClaimSpec, frozenset[int]] = {}
        """Positions of the volumes that suit, of claims that any suits."""
        self._largest_first: dict[AbstractSet[VolumeClaimSpec], Sequence[int] | None] = {}
        for spec, claim in claims.items():
            numbers = frozenset(number for number, each in enumerate(volumes) if suits(claim, each))
            if numbers:
                self.suiting[spec] = numbers
        self._meeting = {
            spec: [other for other, theirs in self.suiting.items() if not mine.isdisjoint(theirs)]
            for spec, mine in self.suiting.items()
        }
        """The kinds of claims that may take a volume that suits a kind, itself among them."""

    def of(self, spec: VolumeClaimSpec) -> list[Volume]:
        return [self._volumes[number] for number in sorted(self.suiting[spec])]

    def served(self, counts: Mapping[VolumeClaimSpec, int]) -> AbstractSet[VolumeClaimSpec]:
        """Return the claims that find a volume here though so many of each kind come, in any order."""
        present = {spec: count for spec, count in counts.items() if count and spec in self.suiting}
        if self._all_are_served(present):
            return present.keys()
        return {
            spec
            for spec in present
            if sum([present[other] for other in self._meeting[spec] if other in present]) <= len(self.suiting[spec])
        }

    def _all_are_served(self, present: Mapping[VolumeClaimSpec, int]) -> bool:
        """Where claims differ in their sizes only, the smallest that suits is never one that another needs."""
        sizes = self._sizes(frozenset(present))
        if sizes is None:
            return False
        wanted = 0
        for spec in sorted(present, key=lambda each: -each.size):
            wanted += present[spec]
            # So many claims are as large as this one, or larger.
            if wanted > len(sizes) or sizes[wanted - 1] < spec.size:
                return False
        return True

    def _sizes(self, present: AbstractSet[VolumeClaimSpec]) -> Sequence[int] | None:
        """Return the sizes of all volumes that suit any of the claims, the largest first; None where claims differ in
        more than their sizes."""
        if present not in self._largest_first:
            used = frozenset[int]().union(*(self.suiting[spec] for spec in present))
            sizes = sorted((self._volumes[number].size for number in used), reverse=True)
            alike = all(sum(size >= spec.size for size in sizes) <= len(self.suiting[spec]) for spec in present)
            self._largest_first[present] = sizes if alike else None
        return self._largest_first[present]


class _Choice:
    def __init__(self, claims: Sequence[VolumeClaim], pools: Iterable[Sequence[Volume]]) -> None:
        kinds = {each.spec: each for each in claims}
        self._pools = [_AlikeVolumes(volumes, kinds) for volumes in pools]
        suited = {spec for pool in self._pools for spec in pool.suiting}
        self._claims = [each for each in claims if each.spec in suited]
        self._counts = Counter(each.spec for each in self._claims)

    def made(self) -> dict[str, ChosenVolumes]:
        ample: defaultdict[VolumeClaimSpec, list[Volume]] = defaultdict(list)
        for pool in self._pools:
            for spec in pool.served(self._counts):
                ample[spec] += pool.of(spec)
        if ample.keys() == self._counts.keys():
            chosen = {spec: _chosen(volumes) for spec, volumes in ample.items()}
            return {each.key: chosen[each.spec] for each in self._claims}
        return self._one_pool_each()

    def _one_pool_each(self) -> dict[str, ChosenVolumes]:
        touching = [
            [n for n, other in enumerate(self._pools) if n != number and not _apart(pool.affinity, other.affinity)]
            for number, pool in enumerate(self._pools)
        ]
        given: list[Counter[VolumeClaimSpec]] = [Counter() for _ in self._pools]
        found: dict[str, ChosenVolumes] = {}
        chosen: dict[tuple[int, VolumeClaimSpec], ChosenVolumes] = {}
        pools = [*enumerate(self._pools)]
        untried = {spec: deque(number for number, pool in pools if spec in pool.suiting) for spec in self._counts}
        for claim in self._claims:
            spec = claim.spec
            left = untried[spec]
            while left:
                number = left[0]
                given[number][spec] += 1
                if all(self._holds(each, given, touching[each]) for each in (number, *touching[number])):
                    if (number, spec) not in chosen:
                        chosen[number, spec] = _chosen(self._pools[number].of(spec))
                    found[claim.key] = chosen[number, spec]
                    break
                given[number][spec] -= 1
                left.popleft()  # others only make it worse
        return found

    def _holds(self, number: int, given: Sequence[Counter[VolumeClaimSpec]], touching: Iterable[int]) -> bool:
        present = sum((given[each] for each in touching), given[number].copy())
        return +given[number] == Counter() or (+given[number]).keys() <= self._pools[number].served(present)


def _apart(one: Affinity, other: Affinity) -> bool:
    """Return whether certainly no node meets both."""
    if one is None or other is None:
        return False
    return all(_disjoint(mine, theirs) for mine in one for theirs in other)


def _disjoint(one: NodeSelectorTerm, other: NodeSelectorTerm) -> bool:
    return any(
        mine.key == theirs.key
        and mine.operator is theirs.operator is Operator.IN
        and not {*mine.values} & {*theirs.values}
        for mine in one.match_expressions
        for theirs in other.match_expressions
    )


UNLIMITED_ATTACHMENTS = 10**6
"""What a node has of that resource where no limit is known: the scheduler knows none either."""
_SHARED = "claim.planning.cagrpc.io/"
"""A label that only planning sees, of pods that share a claim; the claim's name follows."""
_DISK = "disk.planning.cagrpc.io/"
"""The prefix of labels of pods that name a disk which two of a node must not share; what tells the disk from others
follows."""
_READS, _WRITES = "reads", "writes"
_WAITS, _TO_COME = "waits", "to-come"

Terms = tuple[NodeSelectorTerm, ...]


Lookup = tuple[str, Hashable]
"""A kind of object, in words of this module, and its key."""


@dataclass(slots=True)
class StorageObjects:
    """The objects of a cluster. What is asked for is remembered, whether it is there or not."""

    claims: Mapping[str, VolumeClaim]
    volumes: Mapping[str, Volume]
    classes: Mapping[str, StorageClass]
    chosen: Mapping[str, Mapping[str, ChosenVolumes]]
    """The volumes that claims can count on, of those of their class that are bound to none: by class, and by claim."""
    users_of: Mapping[str, ClaimUsers]
    twins: Mapping[tuple[str, str], Collection[str]]
    """The volumes of a driver and handle: nodes attach them as one."""
    room: Callable[[StorageClass, int], tuple[Reach, Lookup]]
    """Returns where the class's driver has room for a volume of so many bytes, and what that is asked as."""
    asked: set[Lookup] = field(default_factory=set, init=False)

    def claim(self, key: str) -> VolumeClaim | None:
        self.asked.add(("claim", key))
        return self.claims.get(key)

    def volume(self, name: str) -> Volume | None:
        self.asked.add(("volume", name))
        return self.volumes.get(name)

    def storage_class(self, name: str) -> StorageClass | None:
        self.asked.add(("class", name))
        return self.classes.get(name)

    def default_class(self) -> StorageClass | None:
        self.asked.add(("default class", ""))
        return default_of(self.classes.values())

    def chosen_volumes(self, claim: VolumeClaim, of: StorageClass) -> ChosenVolumes | None:
        """Return the volumes that a claim of this class can count on; None without any."""
        self.asked.add(("volumes for", claim.key))
        return self.chosen.get(of.name, {}).get(claim.key)

    def reach(self, of: StorageClass, size: int) -> Reach:
        found, asked = self.room(of, size)
        self.asked.add(asked)
        return found

    def is_shared(self, claim: str) -> bool:
        """Return whether several pods use a claim."""
        self.asked.add(("shared", claim))
        return len(self.users_of.get(claim, ())) > 1

    def has_twins(self, volume: Volume) -> bool:
        """Return whether other volumes have its driver and handle."""
        self.asked.add(("volume", volume.name))
        return len(self.twins.get((volume.driver, volume.disk), ())) > 1

    def users(self, claim: str, pod: Hashable) -> OtherUsers:
        """Return the pods that use a claim or may, but for the pod with this key and those that are `blocked`."""
        self.asked.add(("users", claim))
        return (self.users_of.get(claim) or ClaimUsers()).others(pod)


@dataclass(frozen=True, slots=True)
class SharedClaim:
    """A claim that a pod shares with other waiting ones."""

    name: str
    topology_key: str
    """The label of the domain that holds all of these pods."""
    follows: bool = False
    """Whether the pod is still to come, and goes where those are that wait."""
    of_one_pod: bool = False
    """Whether only one of them can have it: of pods that must be on one node, and that no node may have two of, one is
    placed at most."""

    def tie(self, namespace: str) -> PodAffinityTerm:
        key = f"{_SHARED}{self.name}"
        asked = Requirement(key, Operator.IN, (_WAITS,)) if self.follows else Requirement(key, Operator.EXISTS)
        return PodAffinityTerm(self.topology_key, PodSelector((asked,), (namespace,)), alone=True)


@dataclass(frozen=True, slots=True)
class VolumeDemand:
    """What the volumes of one pod come to."""

    node_terms: tuple[Terms, ...] = ()
    attached: tuple[tuple[str, str], ...] = ()
    """Volumes that its node attaches: driver, and what tells the volume from others."""
    counted: tuple[tuple[str, str], ...] = ()
    """Those of them that the nodes do not have attached already where this pod can be."""
    with_others: tuple[tuple[str, str], ...] = ()
    """Those of the counted ones that other pods use, too: a node attaches each once for all of them."""
    shared: tuple[SharedClaim, ...] = ()
    unschedulable: str = ""
    unshared: tuple[tuple[str, bool], ...] = ()
    """Disks that two pods of a node must not share, as in `PodVolumes`."""
    of_one_pod: str = ""
    """Why no second pod that does not exist yet can have the same claims; empty where it can."""
    blocked: bool = False
    """Whether its own volumes keep it from every node for now, whatever the pods do that share them."""

    @property
    def labels(self) -> Labels:
        """Labels by which planning keeps the pods of shared claims together, and those of one disk apart; nothing else
        sees them."""
        together = {f"{_SHARED}{each.name}": _TO_COME if each.follows else _WAITS for each in self.shared}
        return {**together, **{f"{_DISK}{disk}": _READS if reads else _WRITES for disk, reads in self.unshared}}


class _Waits(Exception):  # noqa: N818 - no error: the pod waits, and why
    pass


class _WaitsForPod(_Waits):
    """Another pod uses the claim."""


def demand(pod: Pod, objects: StorageObjects, order: tuple[object, ...] = (), *, running: bool = False) -> VolumeDemand:
    """Return what the volumes of `pod` come to. `order` is its place among waiting pods. Of a `running` one only what
    its node attaches, and where it could go instead, is asked."""
    reader = _Demand(pod, objects, order, running=running)
    waits: list[str] = []
    blocked = False
    for used in pod.volumes.claims:
        try:
            reader.read(used)
        except _Waits as error:
            waits.append(str(error))
            blocked = blocked or not isinstance(error, _WaitsForPod)
    attached = dict.fromkeys((*reader.attached, *pod.volumes.inline))
    counted = tuple(each for each in attached if each not in reader.attached_already)
    return VolumeDemand(
        tuple(dict.fromkeys(reader.terms)),
        tuple(attached),
        counted,
        tuple(each for each in counted if each in reader.with_others),
        tuple(reader.shared),
        "" if running else "; ".join(waits),
        pod.volumes.unshared,
        reader.of_one_pod,
        blocked and not running,
    )


class _Demand:
    def __init__(self, pod: Pod, objects: StorageObjects, order: tuple[object, ...], *, running: bool) -> None:
        self._pod, self._objects, self._order, self._running = pod, objects, order, running
        self._namespace = pod.identity.namespace
        self.terms: list[Terms] = []
        self.attached: list[tuple[str, str]] = []
        self.attached_already: set[tuple[str, str]] = set()
        self.with_others: set[tuple[str, str]] = set()
        self.shared: list[SharedClaim] = []
        self.of_one_pod = ""

    def read(self, used: PodVolume) -> None:
        key = f"{self._namespace}/{used.claim}"
        found = self._objects.claim(key)
        if found is None:
            if used.template is None:
                raise _Waits(f'persistentvolumeclaim "{used.claim}" not found')
            found = VolumeClaim(key, used.template, owner=self._pod.key)
        if found.spec.class_name is None:
            found = of_default_class(found, self._objects.default_class())
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
        chosen = self._objects.chosen_volumes(found, of) if bound is None and of is not None and of.waits else None
        if bound is None and chosen is not None:
            bound = chosen.kept
        if bound is not None:
            driver, name = bound.driver, bound.disk
        elif of is not None and of.provisions:
            driver = driver_of(of.provisioner)
        elif chosen is not None:  # the scheduler counts one of these once it is bound
            driver = chosen.driver
        if not driver:
            return None
        self.attached.append((driver, name))
        if bound is not None and self._objects.has_twins(bound):
            self.with_others.add((driver, name))
        return driver, name

    def _unbound(self, used: PodVolume, found: VolumeClaim, of: StorageClass | None) -> None:
        name = f'persistentvolumeclaim "{used.claim}"'
        if found.volume:
            raise _Waits(f'{name} is not bound yet to volume "{found.volume}", which it names{self._why_not(found)}')
        if of is None:
            if not found.spec.class_name:
                raise _Waits(
                    f"{name} has no storage class and is not bound to a volume yet: one has to be created for it"
                )
            raise _Waits(f'{name} is not bound, and its storageclass "{found.spec.class_name}" is not found')
        if not of.waits:
            made = f"{of.provisioner} has made no volume" if of.provisions else "there is no volume that is bound"
            raise _Waits(
                f'{name} is not bound yet: its storageclass "{of.name}" binds at once (Immediate), and {made} for it'
            )
        if found.selected_node:
            self._selected(name, found, of)
            return
        chosen = self._objects.chosen_volumes(found, of)
        if chosen is not None and chosen.kept is not None:
            self.terms += chosen.kept.node_terms
        elif (reach := self._made(found, of)) is None:
            return
        elif reach or chosen not in (None, BEYOND_KINDS):
            self._any_of(reach, () if chosen is None else chosen.affinity)
        else:
            raise _Waits(f"{name} {self._why_no_volume(found, of, chosen)}")

    def _why_no_volume(self, found: VolumeClaim, of: StorageClass, chosen: ChosenVolumes | None) -> str:
        """Return why there is neither a volume nor room for one."""
        if chosen is not None:
            return (
                f'is not looked at: the claims of its namespace that wait for a volume of storageclass "{of.name}" are'
                f" of more than {MOST_KINDS} kinds"
            )
        if of.provisions:
            size = format_quantity("storage", found.spec.size)
            return f'finds no storage: no CSIStorageCapacity of storageclass "{of.name}" has {size}'
        return (
            f'finds no volume: storageclass "{of.name}" makes none, and no available one is left for it'
            f" (it asks for {_asked(found.spec)})"
        )

    def _why_not(self, found: VolumeClaim) -> str:
        """Return what is wrong with the volume that a claim names; empty where the two are only not bound yet."""
        named = self._objects.volume(found.volume)
        if named is None:
            return " and which is not found"
        return "" if not named.claim or named.kept_for(found) else f' and which claim "{named.claim}" has'

    def _made(self, found: VolumeClaim, of: StorageClass) -> Reach:
        """Return where a volume can be made for the claim."""
        if not of.provisions:
            return ()
        room = self._objects.reach(of, found.spec.size) if found.spec.size else None
        if room is None or not of.topologies:
            return of.topologies or None if room is None else room
        both = ((*one.match_expressions, *other.match_expressions) for one in of.topologies for other in room)
        return tuple(map(NodeSelectorTerm, both))

    def _selected(self, name: str, found: VolumeClaim, of: StorageClass) -> None:
        """A volume is being made for the claim, on the node that the scheduler has selected."""
        if not of.provisions:
            raise _Waits(
                f'{name} waits for a volume to be made for node "{found.selected_node}", and storageclass "{of.name}"'
                " makes none"
            )
        self.terms.append(_named((found.selected_node,)))
        if of.topologies:
            self._any_of(of.topologies, ())

    def _any_of(self, terms: Terms, affinity: Affinity) -> None:
        if affinity is not None:
            self.terms.append(tuple(dict.fromkeys((*terms, *affinity))))

    def _share(
        self, used: PodVolume, found: VolumeClaim, attached: tuple[str, str] | None, of: StorageClass | None
    ) -> None:
        """Keep pods together that use one claim."""
        if self._running:
            if attached and self._objects.is_shared(found.key):
                self.with_others.add(attached)
            return
        users = self._objects.users(found.key, self._pod.key)
        there, first = users.nodes, users.waiting
        waits = first is not None and first.order < self._order
        if found.spec.of_one_pod and (users or not self._pod.key):
            self._use_alone(used, users, waits=waits)
            return
        several = bool(users) or (not self._pod.key and used.template is None)  # expected pods of one template
        if several and attached:
            self.with_others.add(attached)
        if not several or (found.bound and not found.spec.of_one_node):
            return
        if found.spec.of_one_node:
            key = HOSTNAME
        else:
            keys = {each.key for term in (of.topologies if of else ()) for each in term.match_expressions}
            key = keys.pop() if len(keys) == 1 else ZONE
        if there and found.spec.of_one_node:
            self.terms.append(_named(there))
            if attached:
                self.attached_already.add(attached)
        elif first is not None or not users:
            self.shared.append(SharedClaim(used.claim, key, follows=first is not None and not self._pod.key))

    def _use_alone(self, used: PodVolume, users: OtherUsers, *, waits: bool) -> None:
        name = f'persistentvolumeclaim "{used.claim}" is ReadWriteOncePod, and'
        if not self._pod.key and used.template is None:
            self.of_one_pod = f"{name} another pod of the same template uses it first"
        if users.running:
            raise _WaitsForPod(f"{name} pod {users.running.name} uses it")
        if self._pod.key:
            self.shared.append(SharedClaim(used.claim, HOSTNAME, of_one_pod=True))
        elif users.waiting and waits:
            raise _WaitsForPod(f"{name} pod {users.waiting.name} uses it first")


def _asked(spec: VolumeClaimSpec) -> str:
    """Return what a claim asks for, in words: "10Gi, ReadWriteOnce"."""
    labels = ["with labels as its selector says"] if spec.selector else []
    mode = [spec.mode] if spec.mode != "Filesystem" else []
    return ", ".join([format_quantity("storage", spec.size), *spec.access_modes, *mode, *labels])


def bound_by(spec: PodSpec, found: VolumeDemand, namespace: str) -> PodSpec:
    """Return the spec with what its volumes require."""
    counts: dict[str, int] = {}
    for driver, _ in found.counted:
        counts[f"{ATTACHABLE_VOLUMES}{driver}"] = counts.get(f"{ATTACHABLE_VOLUMES}{driver}", 0) + 1
    together = tuple(each.tie(namespace) for each in found.shared)
    alone = tuple(each.tie(namespace) for each in found.shared if each.of_one_pod)
    return replace(
        spec,
        requests=tuple(sorted({**dict(spec.requests), **counts}.items())),
        shared_volumes=tuple(sorted((f"{ATTACHABLE_VOLUMES}{driver}", name) for driver, name in found.with_others)),
        node_terms=(*spec.node_terms, *found.node_terms),
        unschedulable=spec.unschedulable or found.unschedulable,
        pod_affinity=(*spec.pod_affinity, *together),
        pod_anti_affinity=(*spec.pod_anti_affinity, *alone, *(_off_others_disk(*each) for each in found.unshared)),
    )


def _off_others_disk(disk: str, reads: bool) -> PodAffinityTerm:
    """Return the term that keeps a pod off the nodes of others with its disk; readers are kept from writers only."""
    key = f"{_DISK}{disk}"
    asked = Requirement(key, Operator.IN, (_WRITES,)) if reads else Requirement(key, Operator.EXISTS)
    return PodAffinityTerm(HOSTNAME, PodSelector((asked,)), alone=True)


def _named(nodes: Iterable[str]) -> Terms:
    return (NodeSelectorTerm(match_fields=(Requirement("metadata.name", Operator.IN, tuple(nodes)),)),)


def with_attachments(allocatable: Resources, drivers: Iterable[str], *limits: Mapping[str, int]) -> Resources:
    """Return what a node has for pods, with a number of attachments of each of these drivers and of no other: as the
    last of `limits` that knows the driver says, else as `allocatable` does (from configuration or the catalogue), else
    without limit."""
    found = {f"{ATTACHABLE_VOLUMES}{driver}": UNLIMITED_ATTACHMENTS for driver in drivers}
    known = {f"{ATTACHABLE_VOLUMES}{driver}": count for each in limits for driver, count in each.items()}
    wanted = {name: known.get(name, allocatable.get(name, of)) for name, of in found.items()}
    return {**without_attachments(allocatable), **wanted}


def without_attachments(resources: Resources) -> dict[str, int]:
    """Return the resources that a pod can request, or a Node tells: attachments of volumes are none."""
    return {name: of for name, of in resources.items() if not name.startswith(ATTACHABLE_VOLUMES)}


def without_volumes(spec: PodSpec) -> PodSpec:
    """Return the spec without the attachments that it takes: what a pod without volumes can stand for of it."""
    requests = tuple(without_attachments(dict(spec.requests)).items())
    return spec if requests == spec.requests else replace(spec, requests=requests, shared_volumes=())


def default_of(classes: Iterable[StorageClass]) -> StorageClass | None:
    """Return the class of claims that name none: the newest of those that are marked, as upstream."""
    marked = [each for each in classes if each.default]
    return max(marked, key=lambda each: (each.created_at, each.name), default=None)
