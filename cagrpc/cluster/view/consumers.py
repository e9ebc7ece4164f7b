"""Pods with annotations of a ProvisioningRequest: those that consume one, and those with one of the two annotations
only. What they take from nodes is counted with all other pods, in `pods`. Not thread-safe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from cagrpc.cluster.state import Consumer, ConsumerStage, PodRef, oldest_first
from cagrpc.cluster.view.objects import ObservedPod

V = TypeVar("V")


class Consumers:
    def __init__(self) -> None:
        self._whole: _Ordered[Consumer] = _Ordered()
        self._half: _Ordered[str] = _Ordered()

    def put(self, seen: ObservedPod) -> None:
        self._whole.put(seen, _consumer(seen))
        self._half.put(seen, _half(seen))

    def drop(self, key: str) -> None:
        self._whole.drop(key)
        self._half.drop(key)

    def shown(self) -> tuple[Consumer, ...]:
        """Return the consumers, oldest first."""
        return tuple(consumer for _, consumer in self._whole.shown())

    def half(self) -> tuple[tuple[PodRef, str], ...]:
        """Return pods with one of the two annotations, oldest first, each with what is missing."""
        return self._half.shown()

    def known(self) -> Mapping[str, object]:
        """Return the pods of the table, by UID."""
        return {**self._whole.of, **self._half.of}


class _Ordered(Generic[V]):
    """Values of pods, sorted after a change."""

    def __init__(self) -> None:
        self.of: dict[str, tuple[PodRef, V]] = {}
        self._shown: tuple[tuple[PodRef, V], ...] | None = ()

    def put(self, seen: ObservedPod, value: V | None) -> None:
        """Set a pod's value; None removes it."""
        if value is None:
            self.drop(seen.key)
        elif self.of.get(seen.key) != (seen.ref, value):
            self.of[seen.key] = seen.ref, value
            self._shown = None

    def drop(self, key: str) -> None:
        if self.of.pop(key, None) is not None:
            self._shown = None

    def shown(self) -> tuple[tuple[PodRef, V], ...]:
        if self._shown is None:
            self._shown = tuple(sorted(self.of.values(), key=lambda each: oldest_first(each[0])))
        return self._shown


def _consumer(seen: ObservedPod) -> Consumer | None:
    consumes = seen.pod.consumes
    if consumes is None or consumes.missing or seen.life is None:
        return None
    node = seen.node if seen.life is ConsumerStage.BOUND else ""
    return Consumer(seen.ref, consumes.request, consumes.class_name, seen.pod.spec, seen.life, node)


def _half(seen: ObservedPod) -> str | None:
    consumes = seen.pod.consumes
    if consumes is None or seen.life in (None, ConsumerStage.SUCCEEDED):
        return None
    return consumes.missing or None
