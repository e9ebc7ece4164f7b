"""Who creates pods in a cluster, who owns whom, and how many pods each still has to create. Owner references are
untrusted: they may form cycles, chains and trees of any size, and are followed within bounds. Not thread-safe."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeVar

from cagrpc.api.core.pods import Pod, PodClaims
from cagrpc.api.core.volumes import with_templates
from cagrpc.cluster.view.objects import ObservedPod
from cagrpc.cluster.view.workloads import Workload, expectable, ordinal
from cagrpc.runtime.priority_map import PriorityMap
from solver.model import Labels, PodSpec

K = TypeVar("K")

MOST_LEVELS = 8
"""How many levels of owners are followed; Kubernetes' own chains have two or three. No pods are expected of a workload
whose top-level workload is further up: they are planned once they exist."""
MOST_WORKLOADS = 1_000
"""From how many workloads of one top-level workload pods are expected; pods of its others are planned once they
exist."""
MOST_WITH_CLAIMS = 500
"""Kinds of pods with volumes, claims or extended resources that are expected of one top-level workload: each is read by
itself, and each pod of a StatefulSet has claims of its own."""


class _Like(NamedTuple):
    """What pods that a workload creates have in common, as one of them shows it: admission may have changed it."""

    spec: PodSpec
    labels: Labels
    priority: int
    priority_class: str
    resource_claims: PodClaims

    def of(self, template: ObservedPod) -> ObservedPod:
        """Return a pod to come: its volumes are the template's."""
        pod = replace(
            template.pod,
            spec=self.spec,
            labels=self.labels,
            priority=self.priority,
            resource_claims=self.resource_claims,
        )
        return replace(template, pod=pod, priority_class=self.priority_class, admitted=True)


class _Member(NamedTuple):
    """A pod of a workload."""

    created_at_seconds: int
    like: _Like | None


def _like(seen: ObservedPod) -> _Like | None:
    """Return what expected pods have of this one; None where such pods are not planned before they exist."""
    pod = seen.pod
    if not expectable(seen):
        return None
    claims = replace(pod.resource_claims, made=()) if pod.resource_claims.made else pod.resource_claims
    return _Like(pod.spec, pod.labels, pod.priority, seen.priority_class, claims)


class Missing(NamedTuple):
    """The missing pods of a workload and all that it owns."""

    pods: list[tuple[ObservedPod, int]]
    """One of each kind, with their number."""
    workloads: int
    """How many were looked at."""


class WorkloadTree:
    def __init__(self) -> None:
        self._workloads: dict[str, Workload] = {}
        self._children: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._failing: Counter[str] = Counter()
        """How many workloads that it owns could not create a pod, by workload."""
        self._shares: Counter[tuple[str, str]] = Counter()
        """The pods of the workloads that it owns, by workload and part."""
        self._members: defaultdict[str, PriorityMap[str, _Member]] = defaultdict(PriorityMap)
        """The pods that are there, by workload, the youngest first: in whatever order they were observed, those to come
        are like that one."""
        self._ordinals: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """The ordinals of its pods, by StatefulSet and UID."""
        self._refused: dict[str, int] = {}
        """How many pods a workload wanted when the API server refused them."""

    def root(self, owner: str) -> str:
        """Return the top-level workload: of a cycle of owners the first by name; empty where it is too far up."""
        seen = {owner: None}
        for _ in range(MOST_LEVELS):
            workload = self._workloads.get(owner)
            if workload is None or not workload.parent:
                return owner
            owner = workload.parent
            if owner in seen:
                ways = list(seen)
                return min(ways[ways.index(owner) :])
            seen[owner] = None
        return ""

    def put(self, before: Workload | None, after: Workload | None) -> None:
        if before is not None:
            self._workloads.pop(before.key, None)
            self._forget_child(before)
            if after is None or after.wants > self._refused.get(after.key, after.wants):
                self._refused.pop(before.key, None)
        if after is not None:
            self._workloads[after.key] = after
            if after.parent:
                self._children[after.parent][after.key] = None
                self._failing[after.parent] += after.fails
                self._shares[after.parent, after.part] += after.share

    def put_pod(self, owner: str, seen: ObservedPod) -> bool:
        """Count a pod of a workload; return whether those to come are otherwise than before."""
        before, created_at_seconds, like = self._youngest(owner), seen.ref.created_at_seconds, _like(seen)
        if before is not None and before.like == like:
            like = before.like  # most are alike: one value for all
        self._members[owner].put(seen.key, (-created_at_seconds, seen.key), _Member(created_at_seconds, like))
        if owner.startswith("StatefulSet/"):
            self._ordinals[owner][seen.key] = ordinal(seen.ref.name)
        after = self._youngest(owner)
        return before is not after and (before is None or after is None or before.like != after.like)

    def came(self, owner: str) -> None:
        """Note that a pod has come."""
        self._refused.pop(owner, None)

    def drop_pod(self, owner: str, pod: str) -> None:
        """Drop a pod that has gone, or that its workload counts no longer."""
        self._ordinals.get(owner, {}).pop(pod, None)
        if not self._ordinals.get(owner, True):
            del self._ordinals[owner]
        members = self._members[owner]
        members.drop(pod)
        if not members:
            del self._members[owner]

    def refuse(self, key: str, at_seconds: int) -> bool:
        """Note that the API server refused a pod of the workload then (since the epoch); return whether that still
        matters: it does not where a pod has come since."""
        found, youngest = self._workloads.get(key), self._youngest(key)
        if found is None or not found.wants or (youngest is not None and at_seconds < youngest.created_at_seconds):
            return False
        self._refused[key] = found.wants
        return True

    def kinds(self, key: str) -> tuple[str, ...]:
        """Return the kinds of a workload and of what it has create its pods; none where one has failed to create them:
        it does not wait for its turn."""
        workload = self._workloads.get(key)
        if self._failing[key] or (workload is not None and workload.fails):
            return ()
        first = min(islice(self._children.get(key, ()), MOST_WORKLOADS), default=key)
        return tuple(dict.fromkeys(map(kind_of, (key, first))))

    def missing(self, key: str) -> Missing:
        """Return the missing pods of a workload and all that it owns."""
        left, visited, found = [(key, 1)], {key}, []
        while left:
            owner, level = left.pop()
            found.append(owner)
            if level < MOST_LEVELS:
                new = (child for child in self._children.get(owner, ()) if child not in visited)
                made = sorted(islice(new, MOST_WORKLOADS - len(visited)))
                visited.update(made)
                left += ((child, level + 1) for child in made)
        pods, most = list[tuple[ObservedPod, int]](), MOST_WITH_CLAIMS
        for each in reversed(found):  # owned workloads before their owners
            for like, count in self._own(each, most):
                reads = depends_on_objects(like.pod)
                if not reads or most:
                    most -= reads
                    pods.append((like, count))
        return Missing(pods, len(found))

    def _own(self, key: str, most_with_claims: int) -> Iterator[tuple[ObservedPod, int]]:
        workload = self._workloads.get(key)
        if workload is None:  # of an unknown kind, or not listed yet
            return
        own = workload.wants - len(self._members.get(key, ()))
        refused = workload.wants <= self._refused.get(key, -1)
        if own > 0 and not refused and workload.template is not None:
            yield from self._to_come(workload, workload.template, own, most_with_claims)
        for part in workload.parts:
            rest = part.pods - self._shares[key, part.name]
            if rest > 0 and part.template is not None:
                yield part.template, rest

    def _to_come(
        self, workload: Workload, template: ObservedPod, count: int, most_with_claims: int
    ) -> Iterator[tuple[ObservedPod, int]]:
        """Yield pods like the youngest that is there, with the volumes of the template: claims of their own are still
        to be made, but for those that a StatefulSet has kept."""
        youngest = self._youngest(workload.key)
        if youngest is not None:
            if youngest.like is None:
                return
            template = youngest.like.of(template)
        if not workload.claims:
            yield template, count
            return
        there = set(self._ordinals.get(workload.key, {}).values())
        new = (each for each in itertools.count(workload.first_ordinal) if each not in there)
        missing = islice(new, min(count, most_with_claims))
        name = workload.key.rpartition("/")[2]
        for each in missing:
            claims = with_templates(template.pod.volumes, workload.claims, name, each)
            yield replace(template, pod=replace(template.pod, volumes=claims)), 1

    def _youngest(self, key: str) -> _Member | None:
        members = self._members.get(key)
        found = members.first() if members is not None else None
        return None if found is None else found[1]

    def _forget_child(self, workload: Workload) -> None:
        siblings = self._children.get(workload.parent, {})
        if workload.key not in siblings:
            return
        del siblings[workload.key]
        _less(self._failing, workload.parent, workload.fails)
        _less(self._shares, (workload.parent, workload.part), workload.share)
        if not siblings:
            del self._children[workload.parent]


def _less(counts: Counter[K], key: K, count: int) -> None:
    counts[key] -= count
    if not counts[key]:
        del counts[key]


def depends_on_objects(pod: Pod) -> bool:
    """Return whether it depends on other objects what such a pod comes to: on claims, or on who offers a resource."""
    return bool(pod.volumes or pod.resource_claims.claims) or any("/" in name for name, _ in pod.spec.requests)


def kind_of(workload: str) -> str:
    """Return the kind of a workload's key."""
    return workload.partition("/")[0]
