"""The table of pods: each is counted in its class and on its node, and is moved between them as it changes. Nothing
here is for several threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cagrpc.controllers.state import PodRef
from cagrpc.controllers.view_classes import Classes, PodClass
from cagrpc.controllers.view_nodes import Nodes, NodeUse
from cagrpc.controllers.view_objects import SeenPod, Stage


class _Placed(NamedTuple):
    """A pod, as it is counted."""

    of: PodClass
    stage: Stage
    on: NodeUse | None


class Pods:
    """The table of pods, by UID."""

    def __init__(self, nodes: Nodes, clock: Callable[[], float]) -> None:
        self.classes = Classes()
        self.waiting: OrderedDict[str, tuple[float, PodRef]] = OrderedDict()
        """Those that wait, with when they were seen first, in that order."""
        self.warnings: dict[str, str] = {}
        self._nodes = nodes
        self._clock = clock
        self._pods: dict[str, _Placed] = {}

    def keys(self) -> Iterable[str]:
        return self._pods.keys() | self.warnings.keys()

    def put(self, seen: SeenPod) -> None:
        key, stage = seen.key, seen.stage
        if seen.warning:
            self.warnings[key] = seen.warning
        else:
            self.warnings.pop(key, None)
        if stage is None or (stage is Stage.SUCCEEDED and seen.pod.gang is None):
            self._forget(key)
            return
        before = self._pods.get(key)
        on = self._nodes.use(seen.node) if seen.node and stage in (Stage.MOVABLE, Stage.FIXED) else None
        now = _Placed(self.classes.of(seen), stage, on)
        self._set_waiting(key, seen.ref if stage is Stage.WAITING else None)
        if now == before:
            if stage is Stage.WAITING and now.of.waiting[key] != seen.ref:
                now.of.set_waiting(key, seen.ref)
            return
        self._pods[key] = now
        self.classes.enter(now.of, stage, key, seen.ref)
        if on:
            on.add(now.of, stage, 1)
        if before:
            self._leave(key, before)

    def drop(self, key: str) -> None:
        self.warnings.pop(key, None)
        self._forget(key)

    def _forget(self, key: str) -> None:
        before = self._pods.pop(key, None)
        if before:
            self._set_waiting(key, None)
            self._leave(key, before)

    def _leave(self, key: str, before: _Placed) -> None:
        if before.on:
            before.on.add(before.of, before.stage, -1)
            self._nodes.forget(before.on)
        self.classes.leave(before.of, before.stage, key)

    def _set_waiting(self, key: str, ref: PodRef | None) -> None:
        if ref is None:
            self.waiting.pop(key, None)
        else:
            known = self.waiting.get(key)
            self.waiting[key] = known[0] if known else self._clock(), ref
