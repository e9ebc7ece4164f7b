"""The table of pods: each is counted in its class and on its node, and is moved between them as it changes. Nothing
here is for several threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cagrpc.controllers.state import PodRef
from cagrpc.controllers.view_classes import Classes, PodClass
from cagrpc.controllers.view_consumers import Consumers
from cagrpc.controllers.view_nodes import Nodes, NodeUse
from cagrpc.controllers.view_objects import SeenPod, Stage
from cagrpc.controllers.view_slack import Counted, SlackTable

_TAKING = (Stage.NOMINATED, Stage.MOVABLE, Stage.FIXED)
"""Whose requests are taken from a node."""


class _Waiting(NamedTuple):
    """A pod that waits."""

    ref: PodRef
    since: float
    """When it was seen first."""
    news: int
    """How often it was seen. The scheduler writes to a pod why it does not fit, each time that has changed."""


class _Placed(NamedTuple):
    """A pod, as it is counted."""

    of: PodClass
    stage: Stage
    on: NodeUse | None
    counted: Counted | None
    """What it is to the slack."""


class _Nominated:
    """Pods for which the scheduler makes room, by the node where it does; that may come and go."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._pods: dict[str, dict[str, SeenPod]] = {}

    def of(self, node: str) -> tuple[SeenPod, ...]:
        return tuple(self._pods.get(node, {}).values())

    def put(self, seen: SeenPod) -> None:
        self.drop(seen.key)
        if seen.nominated:
            self._nodes[seen.key] = seen.nominated
            self._pods.setdefault(seen.nominated, {})[seen.key] = seen

    def drop(self, key: str) -> None:
        node = self._nodes.pop(key, None)
        if node is not None:
            del self._pods[node][key]
            if not self._pods[node]:
                del self._pods[node]

    def __bool__(self) -> bool:
        return bool(self._nodes or self._pods)


class Pods:
    """The table of pods, by UID."""

    def __init__(self, nodes: Nodes, clock: Callable[[], float], slack: SlackTable | None = None) -> None:
        """`slack` is kept up to date, too."""
        self._slack = slack
        self.classes = Classes()
        self.waiting: OrderedDict[str, _Waiting] = OrderedDict()
        """In the order in which they were seen first."""
        self.consumers = Consumers()
        self.warnings: dict[str, str] = {}
        self._nodes = nodes
        self._clock = clock
        self._pods: dict[str, _Placed] = {}
        self._nominated = _Nominated()
        nodes.came_or_went = self._place_nominated

    def keys(self) -> Iterable[str]:
        of_slack = self._slack.known_pods() if self._slack is not None else {}
        return self._pods.keys() | self.warnings.keys() | self.consumers.known().keys() | of_slack.keys()

    def put(self, seen: SeenPod) -> None:
        key = seen.key
        if seen.warning:
            self.warnings[key] = seen.warning
        else:
            self.warnings.pop(key, None)
        self._nominated.put(seen)
        self.consumers.put(seen)
        if self._slack is not None:
            self._slack.put_pod(seen)
        stage, node = self._place(seen)
        if stage is None or (stage is Stage.SUCCEEDED and seen.pod.gang is None):
            self._forget(key)
            return
        before = self._pods.get(key)
        on = self._nodes.use(node) if node and stage in _TAKING else None
        of = self.classes.of(seen)
        counted = self._slack.counted(seen, of, stage) if self._slack is not None else None
        now = _Placed(of, stage, on, counted)
        self._set_waiting(key, seen.ref if stage is Stage.WAITING else None)
        if now == before:
            if stage is Stage.WAITING and now.of.waiting[key] != seen.ref:
                now.of.set_waiting(key, seen.ref)
            return
        self._pods[key] = now
        self.classes.enter(now.of, stage, key, seen.ref)
        if on:
            on.add(now.of, stage, 1)
        self._count(counted, 1)
        if before:
            self._leave(key, before)

    def drop(self, key: str) -> None:
        self.warnings.pop(key, None)
        self._nominated.drop(key)
        self.consumers.drop(key)
        if self._slack is not None:
            self._slack.drop_pod(key)
        self._forget(key)

    def _place(self, seen: SeenPod) -> tuple[Stage | None, str]:
        if seen.nominated and self._nodes.there(seen.nominated):
            return Stage.NOMINATED, seen.nominated
        return seen.stage, seen.node

    def _place_nominated(self, node: str) -> None:
        for seen in self._nominated.of(node):
            self.put(seen)

    def _forget(self, key: str) -> None:
        before = self._pods.pop(key, None)
        if before:
            self._set_waiting(key, None)
            self._leave(key, before)

    def _leave(self, key: str, before: _Placed) -> None:
        if before.on:
            before.on.add(before.of, before.stage, -1)
            self._nodes.forget(before.on)
        self._count(before.counted, -1)
        self.classes.leave(before.of, before.stage, key)

    def _count(self, counted: Counted | None, pods: int) -> None:
        if self._slack is not None and counted is not None:
            self._slack.count(counted, pods)

    def _set_waiting(self, key: str, ref: PodRef | None) -> None:
        if ref is None:
            self.waiting.pop(key, None)
        else:
            known = self.waiting.get(key)
            self.waiting[key] = _Waiting(ref, known.since, known.news + 1) if known else _Waiting(ref, self._clock(), 1)
