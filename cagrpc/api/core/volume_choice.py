"""Which of the volumes that are there a claim can count on, whichever pods the scheduler binds first: of classes that
make none, and of those that make more. What these come to for a pod is in `volume_binding`.

Upstream: component-helpers/storage/volume (FindMatchingVolume): of those in reach the smallest that suits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from cagrpc.api.core.volumes import Volume, VolumeClaim, VolumeClaimSpec
from solver.model import NodeSelectorTerm, Operator
from solver.model.eligibility import matches_requirement

Affinity = tuple[NodeSelectorTerm, ...] | None


@dataclass(frozen=True, slots=True)
class ChosenVolumes:
    """The volumes that a claim can count on, and what they come to for pods; claims of one kind share it. Two are equal
    where no pod could tell one from the other."""

    volumes: tuple[Volume, ...] = field(compare=False)
    affinity: Affinity
    """Of nodes that reach any of them; None where all do."""
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
    still find theirs. No more pods are so served than there are volumes."""
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
    others = [each for each in waiting if each.key not in found]
    if others and pools:
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
            if sum(n for other, n in present.items() if not self.suiting[other].isdisjoint(self.suiting[spec]))
            <= len(self.suiting[spec])
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
        refused: set[tuple[int, VolumeClaimSpec]] = set()
        for claim in self._claims:
            spec = claim.spec
            for number, pool in enumerate(self._pools):
                if spec not in pool.suiting or (number, spec) in refused:
                    continue
                given[number][spec] += 1
                concerned = [number, *touching[number]]
                if all(self._holds(each, given, touching[each]) for each in concerned):
                    if (number, spec) not in chosen:
                        chosen[number, spec] = _chosen(pool.of(spec))
                    found[claim.key] = chosen[number, spec]
                    break
                given[number][spec] -= 1
                refused.add((number, spec))  # others only make it worse
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
