"""Expected pods: those that workloads still have to create, planned together with existing ones. A workload's replicas
are compared with the pods observed of it, not with its status, which lags behind. Each expected pod has a key of its
own, that of the top-level workload (a Deployment, not its ReplicaSets) and a number; as pods come, those with the
highest numbers are no longer expected. Not thread-safe.

A workload that creates none of its pods for a while is ignored until it creates one or wants more.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from cagrpc.api.core.volumes import with_templates
from cagrpc.cluster.state import PodRef
from cagrpc.cluster.view.classes import Classes, EquivalenceClass
from cagrpc.cluster.view.devices import DeviceTable
from cagrpc.cluster.view.objects import ObservedPod, PodStage
from cagrpc.cluster.view.planning_triggers import PlanningTriggers
from cagrpc.cluster.view.references import Reference, References
from cagrpc.cluster.view.storage import Storage
from cagrpc.cluster.view.workloads import Quota, Workload, expectable, ordinal
from cagrpc.fleet.model import ExpectedPod
from cagrpc.runtime.clock import EpochClock, MonotonicClock
from solver.model import PODS

MOST_OF_ONE, MOST = 5_000, 20_000
"""Expected pods at a time of one workload, and in all: a tenant may ask for any number. Beyond that each namespace has
its fair share, and the rest of those that want less is shared among the others."""
PATIENCE_SECONDS = 30.0
"""How long a workload may create none of its pods,"""
PODS_PER_SECOND = 10.0
"""plus the time that creating all expected pods takes at this rate: half of kube-controller-manager's default
`--kube-api-qps`."""


@dataclass(slots=True)
class _Root:
    """The expected pods of a top-level workload and all that it owns."""

    namespace: str
    pods: list[EquivalenceClass]
    """The class of each, by its number."""
    until: float
    """When it is ignored."""
    ignored: int = 0
    """How many pods it wanted when it was ignored; 0 where it is not."""


class _Reader(NamedTuple):
    """The expected pods of a workload, as readers of claims."""

    workload: str


class ExpectedPods:
    def __init__(
        self,
        classes: Classes,
        clock: MonotonicClock,
        now: EpochClock,
        triggers: PlanningTriggers,
        storage: Storage,
        devices: DeviceTable,
        references: References,
    ) -> None:
        """`triggers` records namespaces where more pods are expected than before. `storage` says what the volumes of
        pods require, `devices` what their resource claims do; `references` reads a workload again when that changes."""
        self._storage, self._devices, self._references = storage, devices, references
        self._with_claims: dict[str, set[str]] = {}
        """By workload, the keys by which `devices` knows its expected pods."""
        self._classes = classes
        self._triggers = triggers
        self._clock, self._now = clock, now
        self._workloads: dict[str, Workload] = {}
        self._children: defaultdict[str, set[str]] = defaultdict(set)
        self._pods: dict[str, str] = {}
        """UID -> its workload."""
        self._there: Counter[str] = Counter()
        """By workload."""
        self._like: dict[str, ObservedPod] = {}
        """The pod observed last of each workload."""
        self._ordinals: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """By StatefulSet and UID, the ordinals of its pods."""
        self._quotas: defaultdict[str, dict[str, Quota]] = defaultdict(dict)
        """By namespace and name."""
        self._ending: set[str] = set()
        """Namespaces that are being deleted."""
        self._roots: dict[str, _Root] = {}
        self.refs: dict[ExpectedPod, PodRef] = {}
        """By key."""
        self._of_namespaces: Counter[str] = Counter()
        """Expected pods by namespace."""
        self._short: dict[str, None] = {}
        """Workloads that get less than they want because of `MOST`."""

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

    def put_pod(self, seen: ObservedPod) -> bool:
        """Count a pod; return whether it was expected."""
        owner = seen.owner if seen.counted and not seen.owner.startswith("DaemonSet/") else ""
        if owner:
            self._like[owner] = seen
        if owner.startswith("StatefulSet/"):
            self._ordinals[owner][seen.key] = ordinal(seen.ref.name)
        return self._count(seen.key, owner)

    def drop_pod(self, key: str) -> None:
        self._count(key, "")

    def known_pods(self) -> AbstractSet[str]:
        return self._pods.keys()

    def roots(self, workloads: Iterable[str]) -> dict[str, str]:
        """Return the top-level workload of those of these that have another."""
        return {key: root for key in workloads if (root := self.root(key)) != key}

    def put_workload(self, before: Workload | None, after: Workload | None) -> None:
        changed = {each.key for each in (before, after) if each is not None}
        roots = changed | {self.root(key) for key in changed}
        if before is not None:
            self._workloads.pop(before.key, None)
            self._forget_child(before)
        if after is not None:
            self._workloads[after.key] = after
            if after.parent:
                self._children[after.parent].add(after.key)
        for root in sorted(roots | {self.root(key) for key in changed}):
            self._update(root)

    def put_quota(self, before: Quota | None, after: Quota | None) -> None:
        for each, left in ((before, False), (after, True)):
            if each is not None:
                of = self._quotas[each.namespace]
                of.pop(each.name, None)
                if left:
                    of[each.name] = each
                if not of:
                    del self._quotas[each.namespace]
        for namespace in {each.namespace for each in (before, after) if each is not None}:
            self._update_namespace(namespace)  # once: twice would look like new demand

    def put_ending(self, before: str | None, after: str | None) -> None:
        """Set a namespace that is being deleted, or is gone."""
        self._ending = self._ending - {before or ""} | ({after} if after else set())
        if before != after:
            self._update_namespace(after or before or "")

    def expire(self) -> None:
        """Ignore workloads that have created no pods for a while, and give what that frees of `MOST` to those that had
        too little."""
        now = self._clock()
        for key, root in list(self._roots.items()):
            if root.pods and now >= root.until:
                root.ignored = sum(count for _, count in self._missing(key))
                self._set(key, root, [])
                self._short.pop(key, None)
        for key in list(self._short) if len(self.refs) < MOST else ():
            self._update(key)

    def _count(self, pod: str, owner: str) -> bool:
        before = self._pods.pop(pod, "")
        if owner:
            self._pods[pod] = owner
        if owner == before:
            return False
        if before:
            self._ordinals.get(before, {}).pop(pod, None)
            if not self._ordinals.get(before, True):
                del self._ordinals[before]
            self._there[before] -= 1
            if not self._there[before]:
                del self._there[before], self._like[before]
            self._update(self.root(before))
        if not owner:
            return False
        self._there[owner] += 1
        key = self.root(owner)
        root = self._roots.get(key)
        expected = len(root.pods) if root else 0
        if root is not None:
            root.ignored = 0
        self._update(key, came=True)
        return root is not None and len(root.pods) < expected

    def _update_namespace(self, namespace: str) -> None:
        for key, root in list(self._roots.items()):
            if root.namespace == namespace:
                self._update(key)

    def _forget_child(self, workload: Workload) -> None:
        siblings = self._children.get(workload.parent)
        if siblings is not None:
            siblings.discard(workload.key)
            if not siblings:
                del self._children[workload.parent]

    def _update(self, key: str, *, came: bool = False) -> None:
        """Update the expected pods of this workload."""
        wanted = list(self._missing(key)) if self.root(key) == key else []
        root = self._roots.get(key)
        if root is None:
            if not wanted:
                return
            root = self._roots[key] = _Root(wanted[0][0].ref.namespace, [], 0.0)
        if wanted and sum(count for _, count in wanted) <= root.ignored:
            return
        root.ignored = 0
        before = len(root.pods)
        self._set(key, root, [] if root.namespace in self._ending else self._allowed(key, root, wanted))
        self._share()
        now = self._clock()
        if len(root.pods) > before:
            self._triggers.record(root.namespace)
        if came or len(root.pods) > before:
            root.until = now + PATIENCE_SECONDS + len(self.refs) / PODS_PER_SECOND
        if not wanted:
            del self._roots[key]
            self._short.pop(key, None)

    def _missing(self, key: str) -> Iterator[tuple[ObservedPod, int]]:
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
        if own > 0 and workload.template is not None and like is not None and expectable(like):
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

    def _allowed(self, key: str, root: _Root, wanted: list[tuple[ObservedPod, int]]) -> list[tuple[ObservedPod, int]]:
        """Return the wanted pods cut to the bounds, and to the namespace's quotas less what is expected of other
        workloads."""
        others = self._of_namespaces[root.namespace] - len(root.pods)
        share = MOST // len({*self._of_namespaces, root.namespace}) - others
        most = max(share, MOST - len(self.refs) + len(root.pods))
        if most < min(MOST_OF_ONE, sum(count for _, count in wanted)):
            self._short[key] = None
        else:
            self._short.pop(key, None)
        left = [{PODS: min(MOST_OF_ONE, most)}]
        if root.namespace in self._quotas:
            left += [dict(quota.left) for quota in self._quotas[root.namespace].values()]
            for other, each in self._roots.items():
                if each.namespace == root.namespace and other != key:
                    for of, count in Counter(each.pods).items():
                        _take(left[1:], {**of.key.shape.requests, PODS: 1}, count)
        found = []
        for like, count in wanted:
            requests = {**dict(like.pod.spec.requests), PODS: 1}
            room = (each[name] // amount for each in left for name, amount in requests.items() if name in each)
            allowed = max(0, min(count, *room))
            _take(left, requests, allowed)
            found.append((like, allowed))
        return found

    def _share(self) -> None:
        """Take expected pods above `MOST` from namespaces that have more than their share."""
        if len(self.refs) <= MOST:
            return
        share = MOST // len(self._of_namespaces)
        for key, root in self._roots.items():
            above = self._of_namespaces[root.namespace] - share
            for _ in range(min(len(self.refs) - MOST, above, len(root.pods))):
                self._pop(key, root)
                self._short[key] = None

    def _set(self, key: str, root: _Root, wanted: list[tuple[ObservedPod, int]]) -> None:
        number, references = 0, set[Reference]()
        for each in self._with_claims.pop(key, ()):
            self._devices.forget(each)
        for like, count in wanted:
            first, others, read = self._read(key, like) if count else (None, None, ())
            references.update(read)
            for index in range(count):
                of = others if index else first
                if number >= len(root.pods):
                    root.pods.append(self._enter(key, root.namespace, number, of))
                elif root.pods[number] is not of:
                    self._leave(key, root, number)
                    root.pods[number] = self._enter(key, root.namespace, number, of)
                number += 1
        while len(root.pods) > number:
            self._pop(key, root)
        self._references.put(_Reader(key), references, lambda: self._update(key))

    def _read(self, key: str, like: ObservedPod) -> tuple[EquivalenceClass, EquivalenceClass, Iterable[Reference]]:
        """Return the class of the first of such expected pods, with what its volumes require, and that of all others;
        and what they were read with. No pod owns its claims yet."""
        claims = replace(like.pod.resource_claims, made=())
        own = f"expected of {key} like {like.owner or like.ref.name}"
        seen, volumes, references = self._storage.resolved(
            replace(like, key=own, pod=replace(like.pod, key="", resource_claims=claims)), PodStage.WAITING
        )
        seen, of_devices = self._devices.resolved(seen, PodStage.WAITING)
        self._with_claims.setdefault(key, set()).add(own)
        first = others = self._classes.of(seen)
        if volumes.of_one_pod:
            spec = replace(seen.pod.spec, unschedulable=seen.pod.spec.unschedulable or volumes.of_one_pod)
            others = self._classes.of(replace(seen, pod=replace(seen.pod, spec=spec)))
        return first, others, references | of_devices

    def _pop(self, key: str, root: _Root) -> None:
        self._leave(key, root, len(root.pods) - 1)
        root.pods.pop()

    def _enter(self, key: str, namespace: str, number: int, of: EquivalenceClass | None) -> EquivalenceClass:
        assert of is not None
        name = key.rpartition("/")[2]
        pod = ExpectedPod(key, number)
        ref = PodRef(pod, namespace, f"{name}-{number:05d}", int(self._now()), key)
        self._classes.enter(of, PodStage.WAITING, pod, ref)
        self.refs[pod] = ref
        self._of_namespaces[namespace] += 1
        return of

    def _leave(self, key: str, root: _Root, number: int) -> None:
        pod = ExpectedPod(key, number)
        self._classes.leave(root.pods[number], PodStage.WAITING, pod)
        del self.refs[pod]
        self._of_namespaces[root.namespace] -= 1
        if not self._of_namespaces[root.namespace]:
            del self._of_namespaces[root.namespace]


def _take(left: list[dict[str, int]], requests: Mapping[str, int], count: int) -> None:
    for each in left:
        for name, amount in requests.items():
            if name in each:
                each[name] -= amount * count
