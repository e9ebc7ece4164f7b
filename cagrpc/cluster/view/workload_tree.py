"""Who creates pods in a cluster, who owns whom, and how many pods each still has to create. Not thread-safe."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from cagrpc.api.core.volumes import with_templates
from cagrpc.cluster.view.objects import ObservedPod
from cagrpc.cluster.view.workloads import Workload, expectable, ordinal


class WorkloadTree:
    def __init__(self) -> None:
        self._workloads: dict[str, Workload] = {}
        self._children: defaultdict[str, set[str]] = defaultdict(set)
        self._there: Counter[str] = Counter()
        """By workload."""
        self._like: dict[str, ObservedPod] = {}
        """The pod observed last of each workload."""
        self._ordinals: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """By StatefulSet and UID, the ordinals of its pods."""
        self._refused: dict[str, int] = {}
        """How many pods a workload wanted when the API server refused them."""

    def root(self, owner: str) -> str:
        """Return the top-level workload: of a cycle of owners the first by name."""
        seen = {owner: None}
        while (workload := self._workloads.get(owner)) is not None and workload.parent:
            owner = workload.parent
            if owner in seen:
                ways = list(seen)
                return min(ways[ways.index(owner) :])
            seen[owner] = None
        return owner

    def put(self, before: Workload | None, after: Workload | None) -> None:
        if before is not None:
            self._workloads.pop(before.key, None)
            self._forget_child(before)
            if after is None or after.wants > self._refused.get(after.key, after.wants):
                self._refused.pop(before.key, None)
        if after is not None:
            self._workloads[after.key] = after
            if after.parent:
                self._children[after.parent].add(after.key)

    def see(self, owner: str, seen: ObservedPod) -> None:
        """Note the latest pod of a workload."""
        self._like[owner] = seen
        if owner.startswith("StatefulSet/"):
            self._ordinals[owner][seen.key] = ordinal(seen.ref.name)

    def came(self, owner: str) -> None:
        """Count a pod that has come."""
        self._there[owner] += 1
        self._refused.pop(owner, None)

    def left(self, owner: str, pod: str) -> None:
        """Count a pod that has gone, or that its workload counts no longer."""
        self._ordinals.get(owner, {}).pop(pod, None)
        if not self._ordinals.get(owner, True):
            del self._ordinals[owner]
        self._there[owner] -= 1
        if not self._there[owner]:
            del self._there[owner], self._like[owner]

    def refuse(self, key: str, at_seconds: int) -> bool:
        """Note that the API server refused a pod of the workload then (since the epoch); return whether that still
        matters: it does not where a pod has come since."""
        found, like = self._workloads.get(key), self._like.get(key)
        if found is None or not found.wants or (like is not None and at_seconds < like.ref.created_at_seconds):
            return False
        self._refused[key] = found.wants
        return True

    def kinds(self, key: str) -> tuple[str, ...]:
        """Return the kinds of a workload and of what it has create its pods; none where one has failed to create them:
        it does not wait for its turn."""
        made = self._children.get(key, ())
        workloads = [self._workloads[each] for each in (key, *made) if each in self._workloads]
        if any(each.fails for each in workloads):
            return ()
        return tuple(dict.fromkeys(kind_of(each) for each in (key, *sorted(made)[:1])))

    def missing(self, key: str) -> Iterator[tuple[ObservedPod, int]]:
        """Yield the missing pods of a workload and all that it owns, with their numbers. Owner references are
        untrusted: they may form cycles and any number of levels."""
        left, visited, found = [key], {key}, []
        while left:
            found.append(left.pop())
            made = [child for child in sorted(self._children.get(found[-1], ())) if child not in visited]
            visited.update(made)
            left += made
        for each in reversed(found):  # owned workloads before their owners
            yield from self._own(each)

    def _own(self, key: str) -> Iterator[tuple[ObservedPod, int]]:
        workload = self._workloads.get(key)
        if workload is None:  # of an unknown kind, or not listed yet
            return
        own = workload.wants - self._there[key]
        like = self._like.get(key, workload.template)
        refused = workload.wants <= self._refused.get(key, -1)
        if own > 0 and not refused and workload.template is not None and like is not None and expectable(like):
            yield from self._to_come(workload, workload.template, like, own)
        children = [self._workloads[child] for child in self._children.get(key, ())]
        for part in workload.parts:
            rest = part.pods - sum(child.share for child in children if child.part == part.name)
            if rest > 0 and part.template is not None:
                yield part.template, rest

    def _to_come(
        self, workload: Workload, template: ObservedPod, like: ObservedPod, count: int
    ) -> Iterator[tuple[ObservedPod, int]]:
        """Yield pods like those that are there, with the volumes of the template: claims of their own are still to be
        made, but for those that a StatefulSet has kept."""
        volumes = template.pod.volumes
        if not workload.claims:
            yield replace(like, pod=replace(like.pod, volumes=volumes)), count
            return
        there = set(self._ordinals.get(workload.key, {}).values())
        missing = islice((each for each in itertools.count(workload.first_ordinal) if each not in there), count)
        name = workload.key.rpartition("/")[2]
        for each in missing:
            claims = with_templates(volumes, workload.claims, name, each)
            yield replace(like, pod=replace(like.pod, volumes=claims)), 1

    def _forget_child(self, workload: Workload) -> None:
        siblings = self._children.get(workload.parent)
        if siblings is not None:
            siblings.discard(workload.key)
            if not siblings:
                del self._children[workload.parent]


def kind_of(workload: str) -> str:
    """Return the kind of a workload's key."""
    return workload.partition("/")[0]
