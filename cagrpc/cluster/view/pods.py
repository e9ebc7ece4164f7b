"""The table of pods: each is counted in its class and on its node, and moved as it changes. Pods with annotations of a
ProvisioningRequest are listed beside it: those that consume one, and those that have only one of the two annotations.
Not thread-safe."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from sys import intern
from typing import NamedTuple

from cagrpc.api.core.movability import EvictionFacts
from cagrpc.cluster.state import Consumer, ConsumerStage, PendingPod, PodRef, oldest_first
from cagrpc.cluster.view.classes import Classes, EquivalenceClass
from cagrpc.cluster.view.expected import ExpectedPods, PlanningTriggers
from cagrpc.cluster.view.nodes import NodeTable, NodeUse
from cagrpc.cluster.view.objects import ObservedPod, PodStage
from cagrpc.cluster.view.references import Reference
from cagrpc.cluster.view.requirements import Requirements
from cagrpc.cluster.view.shares import room_for
from cagrpc.cluster.view.slack import Counted, SlackTable
from cagrpc.runtime.clock import MonotonicClock, MonotonicSeconds

_TAKING = (PodStage.NOMINATED, PodStage.MOVABLE, PodStage.FIXED, PodStage.ENDING, PodStage.DAEMON)
"""Stages whose requests are taken from a node."""


class Consumers:
    def __init__(self) -> None:
        self.of: dict[str, tuple[PodRef, Consumer | str]] = {}
        """By UID; of a pod with one of the two annotations what is missing."""
        self._sorted: tuple[tuple[PodRef, Consumer | str], ...] | None = ()

    def put(self, seen: ObservedPod) -> None:
        value = _consumer(seen)
        if value is None:
            self.drop(seen.key)
        elif self.of.get(seen.key) != (seen.ref, value):
            self.of[seen.key] = seen.ref, value
            self._sorted = None

    def drop(self, key: str) -> None:
        if self.of.pop(key, None) is not None:
            self._sorted = None

    def shown(self) -> tuple[Consumer, ...]:
        """Return the consumers, oldest first."""
        return tuple(each for _, each in self._oldest_first() if isinstance(each, Consumer))

    def missing_annotation(self) -> tuple[tuple[PodRef, str], ...]:
        """Return pods with one of the two annotations, oldest first, each with what is missing."""
        return tuple((ref, each) for ref, each in self._oldest_first() if isinstance(each, str))

    def _oldest_first(self) -> tuple[tuple[PodRef, Consumer | str], ...]:
        if self._sorted is None:
            self._sorted = tuple(sorted(self.of.values(), key=lambda each: oldest_first(each[0])))
        return self._sorted


def _consumer(seen: ObservedPod) -> Consumer | str | None:
    consumes = seen.pod.consumes
    if consumes is None or seen.life is None:
        return None
    if consumes.missing:
        return consumes.missing if seen.life is not ConsumerStage.SUCCEEDED else None
    node = seen.node if seen.life is ConsumerStage.BOUND else ""
    return Consumer(seen.ref, consumes.request, consumes.class_name, seen.pod.spec, seen.life, node)


class RememberedPod(NamedTuple):
    """A pod that is bound, and goes elsewhere if its node goes, or is being deleted."""

    ref: PodRef
    eviction: EvictionFacts
    request: str = ""
    """The ProvisioningRequest that it consumes, `namespace/name`."""


class _Placed(NamedTuple):
    """A pod, as it is counted."""

    of: EquivalenceClass
    stage: PodStage
    on: NodeUse | None
    counted: Counted | None
    """How the slack counts it."""
    attached: tuple[tuple[str, str], ...] = ()
    """Volumes that its node attaches: driver and volume."""
    bound: RememberedPod | None = None
    """Who it is, and what keeps it on its node, where that is asked for."""


def _remembered(seen: ObservedPod, of: EquivalenceClass) -> RememberedPod | None:
    """Return what is remembered of a bound pod: of 100,000 the texts that they have in common only once."""
    if seen.eviction is None:
        return None
    ref, consumes = seen.ref, seen.pod.consumes
    request = f"{ref.namespace}/{consumes.request}" if consumes is not None and seen.pod.consumer else ""
    lean = PodRef(seen.key, of.key.namespace, ref.name, ref.created_at_seconds, intern(ref.workload))
    return RememberedPod(lean, seen.eviction, request)


def _selecting(uid: str) -> Hashable:
    """Return a pod, as reader of Namespaces."""
    return "selecting", uid


def _nominee(uid: str) -> Hashable:
    """Return a pod, as reader of the node that it is nominated to."""
    return "nominee", uid


def _nominated_to(node: str) -> Reference:
    """Return whether a node is there that pods are nominated to."""
    return "nominated to", node


class Pending:
    """Unbound pods of schedulers that we plan for, planned or not, and who has nominated them."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self.of: dict[str, PendingPod] = {}
        self.ours: set[str] = set()
        """UIDs of pods that we have nominated."""
        self.changed: Callable[[str, PendingPod | None], object] = lambda _uid, _pod: None
        """Called with each change: the pod's UID, and None where it is no longer pending. Must be quick, and must not
        call the view."""
        self.bound: Callable[[str, float], object] = lambda _uid, _seconds: None
        """Called with each pod that was seen pending and is bound, and the seconds between. Must be as quick."""
        self._since: dict[str, MonotonicSeconds] = {}

    def put(self, key: str, pod: PendingPod | None, *, bound: bool = False) -> None:
        """Set a pending pod; None removes it, because it is `bound` or gone."""
        before = self.of.get(key)
        if pod is None:
            if before is not None:
                del self.of[key]
                self.ours.discard(key)
                since = self._since.pop(key)
                if bound:
                    self.bound(key, self._clock() - since)
                self.changed(key, None)
            return
        now = self._clock()
        if before is None:
            self._since[key] = now
            self.of[key] = replace(pod, tried_at_seconds=now)
        else:
            # A nomination of ours is the only change that is not the scheduler's.
            nominated = pod.nominated_by_us and pod.nominated_node != before.nominated_node
            tried_at = before.tried_at_seconds if nominated else now
            cleared = before.cleared + (before.nominated_by_us and not pod.nominated_node)
            self.of[key] = replace(pod, seen=before.seen + 1, tried_at_seconds=tried_at, cleared=cleared)
        if pod.nominated_by_us:
            self.ours.add(key)
        else:
            self.ours.discard(key)
        self.changed(key, self.of[key])


class PodTable:
    """The table of pods, by UID."""

    def __init__(
        self,
        nodes: NodeTable,
        classes: Classes,
        triggers: PlanningTriggers,
        requirements: Requirements,
        with_namespaces: Callable[[ObservedPod], tuple[ObservedPod, Iterable[Reference]]],
        slack: SlackTable | None = None,
        expected: ExpectedPods | None = None,
    ) -> None:
        """`classes`, `slack` and `expected` are updated, too. `triggers` records waiting pods that were not expected.
        `with_namespaces` reads a pod again that selects Namespaces by their labels, as these are now, and returns what
        it was read with."""
        self._with_namespaces = with_namespaces
        self._requirements = requirements
        self._references, self._storage = requirements.references, requirements.storage
        self._triggers = triggers
        self._slack = slack
        self._expected = expected
        self.classes = classes
        self.waiting: OrderedDict[str, float] = OrderedDict()
        """When each pod that waits was observed first; they are in that order."""
        self.pending = Pending(triggers.clock)
        self.consumers = Consumers()
        self.warnings: dict[str, str] = {}
        self._nodes = nodes
        self._clock = triggers.clock
        self._pods: dict[str, _Placed] = {}
        self._nominated: dict[str, ObservedPod] = {}
        """Pods that the scheduler has nominated to nodes, which may come and go."""
        nodes.came_or_went = lambda node: self._references.changed(_nominated_to(node))
        classes.made_room = self._try_again

    def keys(self) -> Iterable[str]:
        of_slack = self._slack.known_pods() if self._slack is not None else {}
        return (
            self._pods.keys()
            | self.warnings.keys()
            | self.pending.of.keys()
            | self.consumers.of.keys()
            | of_slack.keys()
            | (self._expected.known_pods() if self._expected is not None else set())
        )

    def nodes_of(self, uids: Iterable[str]) -> dict[str, str]:
        """Return the nodes of those of these pods that take capacity."""
        found = ((uid, self._pods.get(uid)) for uid in uids)
        return {uid: placed.on.name for uid, placed in found if placed is not None and placed.on is not None}

    def waiting_ref(self, key: str) -> PodRef | None:
        """Return a pod that waits."""
        placed = self._pods.get(key)
        return None if placed is None else placed.of.waiting.get(key)

    def bound(self) -> Iterable[tuple[str, EquivalenceClass, RememberedPod]]:
        """Yield the pods that are bound and do not go with their node, with its name and their class; those that
        were read with what keeps them there."""
        return ((each.on.name, each.of, each.bound) for each in self._pods.values() if each.bound and each.on)

    def nominated(self) -> Iterable[tuple[str, ObservedPod]]:
        """Yield the pods that the scheduler has nominated, each with the name of its node."""
        return ((seen.nominated, seen) for seen in self._nominated.values())

    def put(self, seen: ObservedPod) -> None:
        key = seen.key
        if seen.source is not None:
            # Namespaces may have changed since it was read, and will.
            source = seen
            seen, of = self._with_namespaces(source)
            self._references.put(_selecting(key), of, lambda: self._put_again(source))
        else:
            self._references.drop(_selecting(key))
        if seen.warning:
            self.warnings[key] = seen.warning
        else:
            self.warnings.pop(key, None)
        to = [_nominated_to(seen.nominated)] if seen.nominated else []
        if to:
            self._nominated[key] = seen
        else:
            self._nominated.pop(key, None)
        self._references.put(_nominee(key), to, lambda: self.put(seen))
        self.pending.put(key, seen.pending, bound=bool(seen.node))
        self.consumers.put(seen)
        if self._slack is not None:
            self._slack.put_pod(seen)
        is_news = self._expected is None or self._expected.put_pod(seen)
        stage, node = self._place(seen)
        self._storage.use(key, seen, stage, node)
        if stage is None or (stage is PodStage.SUCCEEDED and seen.pod.gang is None):
            self._requirements.forget(key)
            self._forget(key)
            return
        self._put_read(seen, stage, node, is_news=is_news)

    def _put_read(self, read: ObservedPod, stage: PodStage, node: str, *, is_news: bool) -> None:
        """Count a pod with what its volumes require now."""
        key = read.key
        seen, volumes, references = self._requirements.resolved(read, stage)
        of = self.classes.of(seen)
        share = {room_for(key)} if of.over_share else set[Reference]()
        self._references.put(key, {*references, *share}, lambda: self._read_again(read, stage, node))
        if of.over_share:
            self.classes.shares.leave_out(of.key.namespace, key)
        elif self.classes.shares.forget(of.key.namespace, key):
            self._try_again(of.key.namespace)
        before = self._pods.get(key)
        on = self._nodes.use(node) if node and stage in _TAKING else None
        counted = self._slack.counted(seen, of, stage) if self._slack is not None else None
        bound = _remembered(seen, of) if on else None
        now = _Placed(of, stage, on, counted, volumes.attached if on else (), bound)
        if stage is PodStage.WAITING and key not in self.waiting and is_news:
            self._triggers.record(seen.ref.namespace)
        if stage is PodStage.WAITING:
            self.waiting.setdefault(key, self._clock())
        else:
            self.waiting.pop(key, None)
        if now == before:
            if stage is PodStage.WAITING and now.of.waiting[key] != seen.ref:
                now.of.set_waiting(key, seen.ref)
            return
        same = before is not None and (before.of, before.stage) == (now.of, stage)
        if not same:
            self.classes.enter(now.of, stage, key, seen.ref)
        if on:
            on.add(now.of, stage, 1)
            on.attach(now.attached, 1)
        self._count(counted, 1)
        self._pods[key] = now
        if before:
            self._leave(key, before, of_class=not same)

    def _read_again(self, read: ObservedPod, stage: PodStage, node: str) -> None:
        """Read a pod again whose volumes have changed; what changes for a waiting one is news."""
        before = self._pods.get(read.key)
        self._put_read(read, stage, node, is_news=True)
        now = self._pods.get(read.key)
        if stage is PodStage.WAITING and before is not None and now is not None and now.of is not before.of:
            self._triggers.record(read.ref.namespace)

    def _put_again(self, source: ObservedPod) -> None:
        """Put a pod again whose constraints Namespaces have changed; what changes for a waiting one is news."""
        before = self._pods.get(source.key)
        self.put(source)
        now = self._pods.get(source.key)
        if now is not None and now.stage is PodStage.WAITING and (before is None or now.of is not before.of):
            self._triggers.record(source.ref.namespace)

    def put_copies(self, key: str, copies: Iterable[tuple[PodRef, str]]) -> None:
        """Count more pods in the class of this one, if it counts, each with its node."""
        placed = self._pods.get(key)
        if placed is None:
            return
        of, stage, bound = placed.of, placed.stage, placed.bound
        for ref, name in copies:
            self.classes.enter(of, stage, ref.key, ref)
            if placed.on is not None:
                on = self._nodes.use(name)
                on.add(of, stage, 1)
                copy = RememberedPod(ref, bound.eviction, bound.request) if bound is not None else None
                self._pods[ref.uid] = _Placed(of, stage, on, None, (), copy)

    def drop(self, key: str) -> None:
        self._requirements.forget(key)
        self._references.drop(_selecting(key))
        self._references.drop(_nominee(key))
        self._storage.forget(key)
        self.warnings.pop(key, None)
        self._nominated.pop(key, None)
        self.pending.put(key, None)
        self.consumers.drop(key)
        if self._slack is not None:
            self._slack.drop_pod(key)
        if self._expected is not None:
            self._expected.drop_pod(key)
        self._forget(key)

    def _place(self, seen: ObservedPod) -> tuple[PodStage | None, str]:
        if seen.nominated and self._nodes.there(seen.nominated):
            return PodStage.NOMINATED, seen.nominated
        return seen.stage, seen.node

    def _forget(self, key: str) -> None:
        before = self._pods.pop(key, None)
        if before:
            self.waiting.pop(key, None)
            self._leave(key, before)
            self.classes.shares.forget(before.of.key.namespace, key)

    def _try_again(self, namespace: str) -> None:
        """Read pods again that were beyond the share of their namespace, in which there may be room now."""
        self._references.changed(*map(room_for, self.classes.shares.next(namespace)))

    def _leave(self, key: str, before: _Placed, *, of_class: bool = True) -> None:
        if before.on:
            before.on.add(before.of, before.stage, -1)
            before.on.attach(before.attached, -1)
            self._nodes.forget(before.on)
        self._count(before.counted, -1)
        if of_class:
            self.classes.leave(before.of, before.stage, key)

    def _count(self, counted: Counted | None, pods: int) -> None:
        if self._slack is not None and counted is not None:
            self._slack.count(counted, pods)
