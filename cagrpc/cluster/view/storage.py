"""Claims, volumes and storage classes, and the pods that use them: what a pod's volumes come to, as these change. The
meaning is `cagrpc.api.core.volume_binding`'s; who is read again is `references`'s. Not thread-safe.

CSIDrivers and CSIStorageCapacities say where there is room for a volume of a class and size. Capacities are published
whenever a volume is made; pods are read again only where that changes an answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from cagrpc.api.core.volume_binding import (
    ChosenVolumes,
    ClaimUser,
    ClaimUsers,
    StorageObjects,
    VolumeDemand,
    bound_by,
    choose,
    default_of,
    demand,
)
from cagrpc.api.core.volumes import (
    Reach,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeClaim,
    VolumeClaimSpec,
    of_default_class,
    reach,
)
from cagrpc.cluster.state import oldest_first
from cagrpc.cluster.view.objects import ObservedPod, PodStage
from cagrpc.cluster.view.references import Reference, References
from cagrpc.cluster.view.sinks import Values

CAPACITIES = "/apis/storage.k8s.io/v1/csistoragecapacities"
DRIVERS = "/apis/storage.k8s.io/v1/csidrivers"

CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_RUNNING = (PodStage.MOVABLE, PodStage.FIXED, PodStage.ENDING, PodStage.NOMINATED)
_NOT_LISTED = ("storage", "")
_NOTHING = VolumeDemand()
_MOST_TWINS = 2
"""Volumes of one handle of which one more, or one fewer, changes what the others are."""


class StorageRoom:
    """The tables, and `reach`, once both have been listed: before, there is room everywhere."""

    def __init__(self, references: References) -> None:
        self._references = references
        self.capacities: Values[StorageCapacity] = Values(
            lambda _, *both: self._changed(each and each.class_name for each in both)
        )
        self.drivers: Values[bool] = Values(lambda *_: self._changed(self._classes()))
        """Whether the CSIStorageCapacities of a driver are looked at."""
        self._unlisted = {CAPACITIES, DRIVERS}
        self._answers: dict[tuple[StorageClass, int], Reach] = {}
        self._unsettled: set[str] = set()
        """Classes of which the answers have to be found anew."""

    def listed(self, path: str) -> None:
        """Note that from now on what is not in the table is not in the cluster."""
        if path in self._unlisted:
            self._unlisted.discard(path)
            self._changed(self._classes())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why it is not looked at whether there is room, where it is not."""
        names = ", ".join(sorted(path.rpartition("/")[2] for path in self._unlisted))
        return (f"whether storage has room for volumes is not looked at: {names} cannot be listed",) if names else ()

    def reach(self, of: StorageClass, size: int) -> tuple[Reach, Reference]:
        """Return where a volume of the class can be made, and what to refer to for that."""
        asked = of, size
        if asked not in self._answers:
            self._answers[asked] = self._now(of, size)
        return self._answers[asked], _reference(of, size)

    def settle(self) -> None:
        """Tell of the answers that have changed."""
        for (of, size), before in list(self._answers.items() if self._unsettled else ()):
            if not self._references.is_read(_reference(of, size)):
                del self._answers[of, size]
            elif of.name in self._unsettled and (now := self._now(of, size)) != before:
                self._answers[of, size] = now
                self._references.changed(_reference(of, size))
        self._unsettled.clear()

    def _now(self, of: StorageClass, size: int) -> Reach:
        if self._unlisted or not self.drivers.of.get(of.provisioner):
            return None
        return reach(self.capacities.of.values(), of.name, size)

    def _classes(self) -> Iterator[str]:
        return (of.name for of, _ in self._answers)

    def _changed(self, classes: Any) -> None:
        self._unsettled.update(each for each in classes if each)


def _reference(of: StorageClass, size: int) -> Reference:
    return "room", f"{of.name} {size}"


class Storage:
    """The tables, and `resolved`: a pod with what its volumes come to."""

    def __init__(self, references: References) -> None:
        self._references = references
        self.claims: Values[VolumeClaim] = Values(self._claim_changed)
        self.volumes: Values[Volume] = Values(self._volume_changed)
        self.classes: Values[StorageClass] = Values(self._class_changed)
        self.volume_changed: Callable[[str, Volume | None, Volume | None], None] = lambda _name, _before, _after: None
        """Called with each change of a volume: its name, the volume before, and after."""
        self.drivers: frozenset[str] = frozenset()
        """Drivers that attach a volume of a pod, or have."""
        self._unbound: defaultdict[str, dict[str, Volume]] = defaultdict(dict)
        """Volumes bound to no claim, by class."""
        self._twins: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        """The volumes of a driver and handle."""
        self._users: defaultdict[str, ClaimUsers] = defaultdict(ClaimUsers)
        """The users of each claim."""
        self._used: dict[Hashable, tuple[str, ...]] = {}
        self._waiting: defaultdict[str | None, dict[str, None]] = defaultdict(dict)
        """Claims that pods use and that wait for a volume, by class: None of those that name none, and get the default
        one."""
        self._waits_for: dict[str, str | None] = {}
        """The class by which each of those claims waits."""
        self._templates: dict[str, VolumeClaimSpec] = {}
        """What claims that pods use will ask for once they are made for these."""
        self._chosen: dict[str, Mapping[str, ChosenVolumes]] = {}
        """The volumes that claims can count on, by class and by claim."""
        self._unsettled: set[str] = set()
        """Classes of which that has to be found anew: once for all changes, as it costs more the more claims wait."""
        self._unlisted = {CLAIMS, VOLUMES, CLASSES}
        self.room = StorageRoom(references)

    def listed(self, path: str) -> None:
        """Note that from now on what is not in the table is not in the cluster."""
        if path in self._unlisted:
            self._unlisted.discard(path)
            self._references.changed(_NOT_LISTED)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the volumes of pods are not planned, where they are not."""
        if not self._used:
            return ()
        if not self._unlisted:
            return self.room.warnings
        names = ", ".join(sorted(path.rpartition("/")[2] for path in self._unlisted))
        return (f"the volumes of pods are not planned: {names} cannot be listed",)

    # Tables

    def _claim_changed(self, key: str, before: VolumeClaim | None, after: VolumeClaim | None) -> None:
        self._references.changed(("claim", key))
        self._unsettled.update(self._of_default_class(each).spec.class_name or "" for each in (before, after) if each)
        self._note_class(key)

    def _volume_changed(self, name: str, before: Volume | None, after: Volume | None) -> None:
        for each in (before, after):
            if each is None:
                continue
            self._count_twin(each, there=each is after)
            free = self._unbound[each.class_name]
            free.pop(each.name, None)
            if each is after and not self._is_taken(each):
                free[each.name] = each
            if not free:
                del self._unbound[each.class_name]
            self._references.changed(("volume", each.name))
            if each.claim:
                self._references.changed(("claim", each.claim))
            if not self._is_taken(each):
                self._unsettled.add(each.class_name)
        self.volume_changed(name, before, after)

    def _count_twin(self, each: Volume, *, there: bool) -> None:
        twins = self._twins[each.driver, each.disk]
        if there:
            twins.add(each.name)
        else:
            twins.discard(each.name)
        if len(twins) <= _MOST_TWINS:  # of which one becomes two, or two become one
            self._references.changed(*(("volume", name) for name in sorted(twins)))
        if not twins:
            del self._twins[each.driver, each.disk]

    def _is_taken(self, each: Volume) -> bool:
        return bool(each.claim) and bool((found := self.claims.of.get(each.claim)) and found.bound)

    def _class_changed(self, name: str, before: StorageClass | None, after: StorageClass | None) -> None:
        others = [each for each in self.classes.of.values() if each.name != name]
        defaults = (default_of([*others, *([each] if each else ())]) for each in (before, after))
        self._unsettled.update((name, *(each.name for each in defaults if each is not None)))
        self._references.changed(("class", name), ("default class", ""))

    def read_again(self, most: int) -> bool:
        """Read again whom a change concerns, as much work as reading so many pods; return whether these are all."""
        self.room.settle()
        self._settle()
        done = self._references.read_again(most)
        while self._unsettled and done < most:
            self._settle()
            done += self._references.read_again(most - done)
        return done < most

    def _settle(self) -> None:
        for name in sorted(self._unsettled):
            of, before = self.classes.of.get(name), self._chosen.pop(name, {})
            after = {} if of is None else self._choose(of)
            if after:
                self._chosen[name] = after
            changed = (key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
            self._references.changed(*(("volumes for", key) for key in sorted(changed)))
        self._unsettled.clear()

    # Pods

    def use(self, key: Hashable, seen: ObservedPod, stage: PodStage | None, node: str) -> None:
        """Remember that a pod uses its claims: one that waits to be planned, or has a node."""
        counts = stage is PodStage.WAITING or stage in _RUNNING
        names = [each.claim for each in seen.pod.volumes.claims] if counts else []
        claims = tuple(f"{seen.pod.identity.namespace}/{name}" for name in names)
        self._forget(key, frozenset(claims))
        waits = stage is PodStage.WAITING
        order = oldest_first(seen.ref) if waits else ()
        user = ClaimUser(seen.pod.name, "" if waits else node, stage in (PodStage.FIXED, PodStage.ENDING), order)
        for used, each in zip(seen.pod.volumes.claims if counts else (), claims, strict=True):
            if used.template is not None:
                self._templates[each] = used.template
            before = len(self._users[each])
            changed = self._users[each].put(key, user)
            self._note_class(each)
            if changed:
                self._users_changed(each)
            self._note_shared(each, before)
        if claims:
            self._used[key] = claims

    def forget(self, key: Hashable) -> None:
        """Forget a pod that is gone."""
        self._forget(key, frozenset())

    def _forget(self, key: Hashable, kept: AbstractSet[str]) -> None:
        for each in self._used.pop(key, ()):
            if each not in kept:
                self._users_changed(each)
                before = len(self._users[each])
                self._users[each].drop(key)
                self._note_shared(each, before)
                if not self._users[each]:
                    del self._users[each]
                    self._templates.pop(each, None)
                    self._note_class(each)

    def _note_shared(self, key: str, before: int) -> None:
        """Tell where a claim has become one that several pods use, or of one."""
        if (before > 1) is not (len(self._users[key]) > 1):
            self._references.changed(("shared", key))

    def _users_changed(self, key: str) -> None:
        self._references.changed(("users", key))
        found = self._asked_for(key)
        if found is not None and not found.bound:
            self._unsettled.add(found.spec.class_name or "")

    def _note_class(self, key: str) -> None:
        """Note of which class this claim waits for a volume, if a pod uses it."""
        if key in self._waits_for:
            of = self._waits_for.pop(key)
            del self._waiting[of][key]
            if not self._waiting[of]:
                del self._waiting[of]
        found = self.claims.of.get(key)
        asked = self._templates.get(key) if found is None else found.spec
        if key not in self._users or asked is None:
            return
        if found is None or not (found.bound or found.volume or found.selected_node):
            self._waits_for[key] = asked.class_name
            self._waiting[asked.class_name][key] = None

    def _asked_for(self, key: str) -> VolumeClaim | None:
        """Return the claim, or the one that is still to be made for a pod."""
        found, template = self.claims.of.get(key), self._templates.get(key)
        if found is None and template is not None:
            found = VolumeClaim(key, template)
        return None if found is None else self._of_default_class(found)

    def _of_default_class(self, found: VolumeClaim) -> VolumeClaim:
        return of_default_class(found, default_of(self.classes.of.values()))

    def resolved(
        self, seen: ObservedPod, stage: PodStage | None
    ) -> tuple[ObservedPod, VolumeDemand, frozenset[Reference]]:
        """Return the pod as planning reads it, with what its volumes require; what these come to; and all that it was
        read with."""
        if not seen.pod.volumes:
            return seen, _NOTHING, frozenset()
        if self._unlisted:
            return seen, _NOTHING, frozenset((_NOT_LISTED,))
        objects = StorageObjects(
            self.claims.of, self.volumes.of, self.classes.of, self._chosen, self._users, self._twins, self.room.reach
        )
        found = demand(seen.pod, objects, oldest_first(seen.ref), running=stage in _RUNNING)
        self.drivers |= {driver for driver, _ in found.attached}
        self._note(seen.key, blocked=found.blocked)
        spec = bound_by(seen.pod.spec, found, seen.pod.identity.namespace)
        labels = {**seen.pod.labels, **found.labels}
        pod = replace(seen.pod, spec=spec, labels=labels)
        return replace(seen, pod=pod), found, frozenset(objects.asked)

    def _note(self, key: Hashable, *, blocked: bool) -> None:
        for each in self._used.get(key, ()):
            if self._users[each].block(key, blocked=blocked):
                self._references.changed(("users", each))

    def _choose(self, of: StorageClass) -> Mapping[str, ChosenVolumes]:
        volumes = self._unbound.get(of.name, {}).values()
        if not volumes:
            return {}
        of_default = self._waiting.get(None, ()) if default_of(self.classes.of.values()) is of else ()
        waiting = map(self._asked_for, (*self._waiting.get(of.name, ()), *of_default))
        return choose(filter(None, waiting), volumes)
