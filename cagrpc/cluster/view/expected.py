"""Expected pods: those that workloads still have to create, planned together with existing ones. A workload's replicas
are compared with the pods observed of it, not with its status, which lags behind. Each expected pod has a key of its
own, that of the top-level workload (a Deployment, not its ReplicaSets) and a number; as pods come, those with the
highest numbers are no longer expected. They are found anew before they are asked for, once for all that has changed of
a top-level workload and all that it owns. Pods that come without having been expected trigger planning, as do workloads
that want more. Not thread-safe.

A workload is believed as long as its controller makes progress, with its own pods or with those of others that come
first, and until the API server has refused its pods (`FailedCreates`). Then it is ignored until it creates one or wants
more, and where nothing was created at all until anything is.

Who creates pods, who owns whom, and how many pods each still has to create is in `WorkloadTree`. Owner references are
untrusted: they may form cycles, chains and trees of any size, and are followed within bounds.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from cagrpc.api.core.pods import Pod, PodClaims
from cagrpc.api.core.volumes import with_templates
from cagrpc.cluster.state import PodRef
from cagrpc.cluster.view.classes import Classes, EquivalenceClass, count_in
from cagrpc.cluster.view.objects import ObservedPod, PodStage
from cagrpc.cluster.view.references import Reference
from cagrpc.cluster.view.requirements import Requirements
from cagrpc.cluster.view.workloads import Quota, Workload, expectable, let_in, ordinal
from cagrpc.fleet.model import ExpectedPod
from cagrpc.runtime.clock import EpochClock, MonotonicClock
from cagrpc.runtime.priority_map import PriorityMap
from cagrpc.runtime.progress import DEADLINE_SECONDS, Progress, Turn
from solver.model import PODS, Labels, PodSpec

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

    def to_come(self, key: str) -> int:
        """Return how many pods a workload still has to create, as far as the API server has not refused them."""
        workload = self._workloads.get(key)
        if workload is None or workload.wants <= self._refused.get(key, -1):
            return 0
        return max(0, workload.wants - len(self._members.get(key, ())))

    def _own(self, key: str, most_with_claims: int) -> Iterator[tuple[ObservedPod, int]]:
        workload = self._workloads.get(key)
        if workload is None:  # of an unknown kind, or not listed yet
            return
        own = self.to_come(key)
        if own and workload.template is not None:
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
        count_in(self._failing, workload.parent, -workload.fails)
        count_in(self._shares, (workload.parent, workload.part), -workload.share)
        if not siblings:
            del self._children[workload.parent]


def depends_on_objects(pod: Pod) -> bool:
    """Return whether it depends on other objects what such a pod comes to: on claims, or on who offers a resource."""
    return bool(pod.volumes or pod.resource_claims.claims) or any("/" in name for name, _ in pod.spec.requests)


def kind_of(workload: str) -> str:
    """Return the kind of a workload's key."""
    return workload.partition("/")[0]


_MOST_NAMESPACES = 1000
"""Beyond that the oldest trigger is dropped: a round that any trigger starts plans all waiting pods."""

MOST_OF_ONE, MOST = 5_000, 20_000
"""Expected pods at a time of one workload, and in all: a tenant may ask for any number. Beyond that each namespace has
its fair share, and the rest of those that want less is shared among the others."""
MOST_LOOKED_AT = 1_000
"""How many workloads with expected pods are looked at, at a time, whether they are still to be waited for."""
_MOST_GIVEN = 100
"""How much work is done, in pods that are read, for workloads that get less than they want when there is more."""
_AS_READING_A_POD = 10
"""So many workloads are looked at, and expected pods counted, in the time that it takes to read one."""
_OWN_KINDS = ("Deployment", "ReplicaSet", "StatefulSet", "Job", "JobSet")
_MOST_KINDS, _LONGEST_KIND = 1_000, 63
"""How many kinds of workloads have their controllers' progress known each by itself; of others it is known together.
Owner references name any text as a kind; Kubernetes' own have at most so many characters."""
_AFTER_ALL_SECONDS = 2**63 - 1
"""When a pod is created that is still to come, as others that wait see it."""
_NONE = Missing([], 0)


class PlanningTriggers:
    def __init__(self, clock: MonotonicClock) -> None:
        self.clock = clock
        self._at: dict[str, float] = {}
        self._is_known = False
        self._told_until = float("-inf")

    def record(self, namespace: str, at: float | None = None) -> None:
        """Record new demand: a waiting pod that was not expected, or more expected pods than before. What is of no
        namespace has an empty one. It came now, or `at` a time (of the clock) before it could be told: that is news in
        any case, and counts as now where later news has been told before, of which a round may know."""
        if self._is_known and at is None:
            return
        self._at.pop(namespace, None)
        self._at[namespace] = at if at is not None and at > self._told_until else self.clock()
        if len(self._at) > _MOST_NAMESPACES:
            del self._at[next(iter(self._at))]

    @contextmanager
    def known(self, is_known: bool) -> Iterator[None]:
        """What is found within is part of the state that is being made, and no news, if `is_known`."""
        self._is_known = is_known
        try:
            yield
        finally:
            self._is_known = False

    def latest(self) -> dict[str, float]:
        """Return each namespace's latest trigger in the clock's seconds."""
        self._told_until = max(self._at.values(), default=self._told_until)
        return dict(self._at)


@dataclass(slots=True)
class _Root:
    """The expected pods of a top-level workload and all that it owns."""

    namespace: str
    pods: list[EquivalenceClass]
    """The class of each, by its number."""
    kinds: tuple[str, ...]
    """The kinds of itself and of what it has create its pods: their controllers' progress counts. None where the
    controller has tried and failed."""
    turn: Turn
    wanted: int = 0
    """How many pods it wanted when these were found."""
    ignored: int = 0
    """How many pods it wanted when it was ignored; 0 where it is not."""
    stalled: bool = False
    """Whether it is ignored because its controllers did nothing at all."""
    revived: bool = False
    """Whether it was believed again when its controllers went on, and has created nothing since."""


@dataclass(slots=True)
class _Change:
    """What has happened to a top-level workload and all that it owns since its expected pods were found."""

    since: float
    """When the first of it happened."""
    at: float
    """When the latest of it happened, but for pods that came."""
    waiting: int = 0
    """How many pods have come that wait: those that were expected are no news."""
    namespace: str = ""
    """Theirs."""


class ExpectedPods:
    def __init__(
        self,
        classes: Classes,
        clock: MonotonicClock,
        now: EpochClock,
        triggers: PlanningTriggers,
        requirements: Requirements,
        progress_deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """`triggers` records namespaces where more pods are expected than before. A controller that does nothing for
        the deadline is not waited for."""
        self._deadline_seconds = progress_deadline_seconds
        self._progress = defaultdict(Progress, {kind: Progress() for kind in _OWN_KINDS})
        """The progress of controllers, by the kind of their workloads: a Deployment's creates ReplicaSets, all others
        pods."""
        self._requirements, self._references = requirements, requirements.references
        self._with_claims: dict[str, set[str]] = {}
        """The keys by which the devices know the expected pods of each workload."""
        self._classes = classes
        self._triggers = triggers
        self._clock, self._now = clock, now
        self._tree = WorkloadTree()
        self._pods: dict[str, str] = {}
        """UID -> its workload."""
        self._quotas: defaultdict[str, dict[str, Quota]] = defaultdict(dict)
        """Quotas by namespace and name."""
        self._left: dict[str, dict[str, int]] = {}
        """What all quotas of a namespace leave."""
        self._asked: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """What the expected pods of a namespace request of that."""
        self._changes: Counter[EquivalenceClass] = Counter()
        """Expected pods of one workload that have come or gone, to be taken into account there."""
        self._ending: set[str] = set()
        """Namespaces that are being deleted."""
        self._roots: dict[str, _Root] = {}
        self._outdated: dict[str, _Change] = {}
        """What has changed of each top-level workload whose expected pods are to be found anew."""
        self._with_pods: OrderedDict[str, _Root] = OrderedDict()
        """Those that have expected pods, in the order in which it is looked whether they are to be waited for."""
        self._of_namespace: defaultdict[str, dict[str, _Root]] = defaultdict(dict)
        """Those that have expected pods, by namespace."""
        self.refs: dict[ExpectedPod, PodRef] = {}
        """The expected pods as they were found last, by key."""
        self._of_namespaces: Counter[str] = Counter()
        """Expected pods by namespace."""
        self._short: OrderedDict[str, None] = OrderedDict()
        """Workloads that get less than they want because of `MOST`."""

    def put_pod(self, seen: ObservedPod) -> bool:
        """Count a pod; return whether it is news that it is there. If that depends on how many were expected, it is
        recorded once that is known."""
        owner = seen.ref.workload
        if not seen.counted or owner.startswith("DaemonSet/"):
            owner = ""
        before = self._pods.get(seen.key, "")
        if owner != before:
            self.drop_pod(seen.key)
        if not owner:
            return True
        differs = self._tree.put_pod(owner, seen)
        if owner != before:
            self._pods[seen.key] = owner
            return self._came(owner, seen)
        if differs:
            self._change(self._tree.root(owner))
        return True

    def drop_pod(self, key: str) -> None:
        owner = self._pods.pop(key, "")
        if owner:
            self._tree.drop_pod(owner, key)
            self._change(self._tree.root(owner))

    def ref(self, pod: ExpectedPod) -> PodRef | None:
        """Return an expected pod, if it is still expected."""
        if pod.workload in self._outdated:
            self._update(pod.workload)
        return self.refs.get(pod)

    def to_come(self, workload: str) -> int:
        """Return how many pods a workload still has to create, planned with or not, such as members of a gang."""
        return self._tree.to_come(workload)

    @property
    def most_used(self) -> float:
        """What the namespace of which most pods are expected uses of its share."""
        return max(self._of_namespaces.values(), default=0) * max(1, len(self._of_namespaces)) / MOST

    def known_pods(self) -> AbstractSet[str]:
        return self._pods.keys()

    def roots(self, workloads: Iterable[str]) -> dict[str, str]:
        """Return the top-level workload of those of these that have another."""
        return {key: root for key in workloads if (root := self._tree.root(key)) not in (key, "")}

    def put_workload(self, before: Workload | None, after: Workload | None) -> None:
        changed = {each.key for each in (before, after) if each is not None}
        roots = changed | {self._tree.root(key) for key in changed}
        were_to_come = {key for key in changed if self.to_come(key)}
        self._tree.put(before, after)
        for key in were_to_come:
            if not self.to_come(key):  # a gang may be complete with the pods that are there
                self._triggers.record(key.split("/")[1])
        if before is None and after is not None and after.parent:
            self._serve(after.parent)
        for root in sorted(roots | {self._tree.root(key) for key in changed}):
            self._change(root)

    def put_quota(self, _key: str, before: Quota | None, after: Quota | None) -> None:
        for each, left in ((before, False), (after, True)):
            if each is not None:
                of = self._quotas[each.namespace]
                of.pop(each.name, None)
                if left:
                    of[each.name] = each
                if not of:
                    del self._quotas[each.namespace]
        for namespace in {each.namespace for each in (before, after) if each is not None}:
            self._left[namespace] = {}
            for quota in self._quotas.get(namespace, {}).values():
                for name, amount in quota.left.items():
                    self._left[namespace][name] = min(amount, self._left[namespace].get(name, amount))
            if not self._left[namespace]:
                del self._left[namespace]
            self._references.changed(_of_namespace(namespace))

    def put_ending(self, namespace: str, *, ends: bool) -> None:
        """Set whether a namespace is being deleted."""
        if (namespace in self._ending) is not ends:
            self._ending ^= {namespace}
            self._references.changed(_of_namespace(namespace))

    def refuse(self, workload: str, at_seconds: int) -> None:
        """Expect no pods of a workload whose pod the API server refused then (since the epoch). What was refused before
        it was known, or before its last pod, is over."""
        key = self._tree.root(workload)
        root = self._roots.get(key)
        if root is None and key not in self._outdated:
            return
        began = self._outdated[key].since if root is None else root.turn.since
        began_at_seconds = self._now() - (self._clock() - began)
        if at_seconds >= int(began_at_seconds) and self._tree.refuse(workload, at_seconds):
            self._change(key)

    def expire(self) -> None:
        """Ignore workloads that are not to be waited for any longer, and give what that frees of `MOST` to those that
        had too little."""
        now = self._clock()
        for key in list(islice(self._with_pods, MOST_LOOKED_AT)):
            self._with_pods.move_to_end(key)
            if key in self._outdated:  # just now
                continue
            root = self._with_pods[key]
            root.turn.before = max(root.turn.before, len(self.refs))
            progress = self._progress_of(root.kinds)
            if root.turn.is_over(progress, self._deadline_seconds, now):
                root.ignored = root.wanted
                root.stalled = now >= progress.at + self._deadline_seconds and not root.revived
                self._set(key, root, [])
                self._short.pop(key, None)
        work = 0
        for key in list(islice(self._short, _MOST_GIVEN)) if len(self.refs) < MOST else ():
            if work >= _MOST_GIVEN:
                break
            self._short.move_to_end(key)
            work += self._update(key)

    def _came(self, owner: str, seen: ObservedPod) -> bool:
        """Note that a pod of this workload has come; return whether that is news already."""
        self._tree.came(owner)
        self._serve(owner)
        key = self._tree.root(owner)
        if not key:
            return True
        root = self._roots.get(key)
        if root is not None:
            root.ignored, root.stalled, root.revived = 0, False, False
            root.turn = Turn(self._clock(), self._progress_of(root.kinds).served)
        at = self._outdated[key].at if key in self._outdated else self._clock()
        change = self._change(key, at)
        change.waiting += seen.stage is PodStage.WAITING and not seen.nominated
        change.namespace = seen.ref.namespace
        return False

    def _change(self, key: str, at: float | None = None) -> _Change:
        """Have the expected pods of this workload found anew before they are asked for next."""
        self._references.due(_reader(key), lambda: self._update(key))
        now = self._clock()
        change = self._outdated.setdefault(key, _Change(now, now))
        change.at = now if at is None else at
        return change

    def _update(self, key: str) -> int:
        """Find the expected pods of this workload anew; return how much work that was, in pods that are read."""
        change = self._outdated.pop(key, None)
        at = None if change is None else change.at
        came = 0 if change is None else change.waiting
        found = self._tree.missing(key) if self._tree.root(key) == key else _NONE
        wanted = sum(count for _, count in found.pods)
        work = 1 + len(found.pods) + found.workloads // _AS_READING_A_POD
        root = self._roots.get(key)
        if root is None:
            if not wanted:
                self._references.drop(_reader(key))
                if change is not None and came:
                    self._triggers.record(change.namespace, at)
                return work
            since = self._clock() if at is None else at
            root = self._roots[key] = _Root(found.pods[0][0].ref.namespace, [], (), Turn(since, 0))
        if root.stalled and self._clock() < self._progress_of(root.kinds).at + self._deadline_seconds:
            root.ignored, root.revived = 0, True
        if wanted and wanted <= root.ignored:
            return work
        root.ignored, root.wanted = 0, wanted
        before, kinds_before = len(root.pods), root.kinds
        root.kinds = tuple(map(self._kind, self._tree.kinds(key)))
        self._set(key, root, [] if root.namespace in self._ending else self._allowed(key, root, found.pods))
        self._share()
        if len(root.pods) + came > before:
            self._triggers.record(root.namespace, at)
        if len(root.pods) > before or root.kinds != kinds_before:
            root.stalled = False
            since = self._clock() if at is None else max(at, root.turn.since)
            root.turn = Turn(since, self._progress_of(root.kinds).served)
        if not wanted:
            del self._roots[key]
            self._short.pop(key, None)
            self._references.drop(_reader(key))
        return work + max(before, len(root.pods)) // _AS_READING_A_POD

    def _serve(self, workload: str) -> None:
        """Note that the controller of this workload has created something. After a time without anything, workloads
        that were ignored for that are believed once more, all together."""
        kind, now = self._kind(kind_of(workload)), self._clock()
        progress = self._progress[kind]
        was_stalled = now >= progress.at + self._deadline_seconds
        progress.serve(now)
        if was_stalled:
            self._references.changed(_controllers_of(kind))

    def _kind(self, kind: str) -> str:
        """Return by what the progress of controllers of this kind is known."""
        is_known = kind in self._progress or (len(kind) <= _LONGEST_KIND and len(self._progress) < _MOST_KINDS)
        return kind if is_known else ""

    def _progress_of(self, kinds: tuple[str, ...]) -> Progress:
        """Return what the controllers of these kinds have done together."""
        found = [self._progress[kind] for kind in kinds]
        return Progress(sum(each.served for each in found), max((each.at for each in found), default=float("-inf")))

    def _allowed(self, key: str, root: _Root, wanted: list[tuple[ObservedPod, int]]) -> list[tuple[ObservedPod, int]]:
        """Return the wanted pods cut to the bounds, and to the namespace's quotas less what is expected of other
        workloads."""
        others = self._of_namespaces[root.namespace] - len(root.pods)
        namespaces = len(self._of_namespaces) + (root.namespace not in self._of_namespaces)
        share = MOST // namespaces - others
        most = max(share, MOST - len(self.refs) + len(root.pods))
        if most < min(MOST_OF_ONE, sum(count for _, count in wanted)):
            self._short[key] = None
        else:
            self._short.pop(key, None)
        left = dict(self._left.get(root.namespace, {}))
        if left:
            own: Counter[str] = Counter()
            for of, count in Counter(root.pods).items():
                _take(own, of, -count)
            asked = self._asked.get(root.namespace, own)
            for name in left:
                left[name] -= asked[name] - own[name]
        left[PODS] = min(left.get(PODS, most), most, MOST_OF_ONE)
        found = []
        for like, count in wanted:
            found.append((like, let_in(left, like.pod.spec, count)))
        return found

    def _share(self) -> None:
        """Take expected pods above `MOST` from namespaces that have more than their share."""
        if len(self.refs) <= MOST:
            return
        share = MOST // len(self._of_namespaces)
        for namespace in [each for each, count in self._of_namespaces.items() if count > share]:
            while (above := min(len(self.refs) - MOST, self._of_namespaces[namespace] - share)) > 0:
                key, root = next(iter(self._of_namespace[namespace].items()))
                for _ in range(min(above, len(root.pods))):
                    self._pop(key, root)
                    self._short[key] = None
                self._note(key, root)

    def _note(self, key: str, root: _Root) -> None:
        """Remember that the expected pods of a workload are others now."""
        for each, count in self._changes.items():
            _take(self._asked[root.namespace], each, -count)
        self._changes.clear()
        if root.namespace not in self._of_namespaces:
            self._asked.pop(root.namespace, None)
        of = self._of_namespace[root.namespace]
        if root.pods:
            self._with_pods[key] = of[key] = root
        else:
            self._with_pods.pop(key, None)
            of.pop(key, None)
        if not of:
            del self._of_namespace[root.namespace]

    def _set(self, key: str, root: _Root, wanted: list[tuple[ObservedPod, int]]) -> None:
        number, references = 0, {_of_namespace(root.namespace), *map(_controllers_of, root.kinds)}
        for each in self._with_claims.pop(key, ()):
            self._requirements.forget(each)
        for index, (like, count) in enumerate(wanted):
            first, others, read = self._read(key, index, like) if count else (None, None, ())
            references.update(read)
            for at in range(count):
                of = others if at else first
                if number >= len(root.pods):
                    root.pods.append(self._enter(key, root.namespace, number, of))
                elif root.pods[number] is not of:
                    self._leave(key, root, number)
                    root.pods[number] = self._enter(key, root.namespace, number, of)
                number += 1
        while len(root.pods) > number:
            self._pop(key, root)
        self._note(key, root)
        self._references.put(_reader(key), references, lambda: self._update(key))

    def _read(
        self, key: str, index: int, like: ObservedPod
    ) -> tuple[EquivalenceClass, EquivalenceClass, Iterable[Reference]]:
        """Return the class of the first of such expected pods, with what its volumes require, and that of all others;
        and what they were read with. No pod owns its claims yet, and all that wait come before it."""
        if not depends_on_objects(like.pod):
            of = self._classes.of(like)
            return of, of, ()
        own = f"expected of {key}, {index}"
        ref = replace(like.ref, created_at_seconds=_AFTER_ALL_SECONDS)
        to_come = replace(like, key=own, ref=ref, pod=replace(like.pod, key=""))
        seen, volumes, references = self._requirements.resolved(to_come, PodStage.WAITING)
        self._with_claims.setdefault(key, set()).add(own)
        first = others = self._classes.of(seen)
        if volumes.of_one_pod:
            spec = replace(seen.pod.spec, unschedulable=seen.pod.spec.unschedulable or volumes.of_one_pod)
            others = self._classes.of(replace(seen, pod=replace(seen.pod, spec=spec)))
        return first, others, references

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
        self._changes[of] += 1
        return of

    def _leave(self, key: str, root: _Root, number: int) -> None:
        pod = ExpectedPod(key, number)
        self._changes[root.pods[number]] -= 1
        self._classes.leave(root.pods[number], PodStage.WAITING, pod)
        del self.refs[pod]
        self._of_namespaces[root.namespace] -= 1
        if not self._of_namespaces[root.namespace]:
            del self._of_namespaces[root.namespace]


def _reader(workload: str) -> Reference:
    """Return the expected pods of a workload, as reader of claims."""
    return "expected of", workload


def _of_namespace(name: str) -> Reference:
    """Return the quotas of a namespace, and whether it is being deleted."""
    return "quotas", name


def _controllers_of(kind: str) -> Reference:
    """Return whether controllers of a kind go on after they have created nothing for some time."""
    return "controllers", kind


def _take(asked: Counter[str], of: EquivalenceClass, count: int) -> None:
    """Remove so many pods of a class from what is requested."""
    asked[PODS] -= count
    for name, amount in of.key.shape.requests.items():
        asked[name] -= amount * count
        if not asked[name]:
            del asked[name]
