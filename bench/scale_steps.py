"""What small changes cost in clusters of different sizes: the view's state for planning, planning rounds, steps of the
fleet and of the scale-down controller.

    python -m bench.scale_steps [nodes ...]        3000 and 15000 without any; ten pods on each

Everything is in this process: the objects of `bench.scale_objects` come to the view as from an API server, and the
simulated cloud has an instance for each node. Prints a Markdown row for each change, with the median of CPU
milliseconds at each size (of scale-down with the longest step, as its reviews come rarely): what costs more the larger
the cluster looks at the whole where little has changed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench import scale_down_steps
from bench import scale_objects as objects
from cagrpc.api.encoding.messages import known_to_message
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.nodes.controller import node_name
from cagrpc.cluster.shortages import Shortages
from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.model import NODES, PODS, ClusterModel, ModelSettings
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.planning.controller import PlanningController
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, Origin, Placement, PodKey
from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.runtime.clock import MonotonicSeconds, epoch, monotonic
from solver.model import NodeGroup
from solver.planning.warm_up import warm_up

PODS_OF_A_NODE = 10
TIMES = 7
_numbers = count(1)


def main(sizes: Sequence[int]) -> None:
    rows: dict[str, list[str]] = {}
    for nodes in sizes:
        for what, milliseconds in measured(nodes):
            rows.setdefault(what, []).append(f"{milliseconds:.1f}")
            print(f"{nodes:,} nodes, {what}: {milliseconds:.1f} ms", file=sys.stderr, flush=True)
    print(f"| CPU ms | {' | '.join(f'{nodes:,} nodes' for nodes in sizes)} |\n| --- |{' ---: |' * len(sizes)}")
    for what, cells in rows.items():
        print(f"| {what} | {' | '.join(cells)} |")


def measured(nodes: int) -> Iterator[tuple[str, float]]:
    with tempfile.TemporaryDirectory() as directory:
        groups = [_group(number) for number in range(objects.SHAPES * len(objects.ZONES))]
        instances = objects.instances(Path(directory) / "simulated.sqlite", groups, nodes)
        backend = SimulatedBackend(Path(directory) / "simulated.sqlite")
        journal = SqliteJournal(Path(directory) / "journal.sqlite")
        fleet = Fleet(FleetSettings(groups), backend, journal, nodes=_Nodes(instances))
        try:
            fleet.reconcile()
            view = View({each.id: each for each in groups}, instances)
            moves = Moves(view)
            yield from scale_down_steps.measured(view, fleet, instances, moves.ten)
            yield from _of_the_fleet(fleet, groups)
            yield from _of_planning(view, fleet, moves)
            yield from _of_the_view(view, moves)
        finally:
            backend.close()


def _group(number: int) -> NodeGroup:
    offered = {"cpu": 1000 * objects.CPUS, "memory": objects.MEMORY_GIB << 30, "pods": 110}
    zone = objects.ZONES[number % len(objects.ZONES)]
    return NodeGroup(f"type-{number:02}", offered, 1.0 + number / 100, max_size=5_000, zone=zone)


def _cpu(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """The median, after the first, which may have to make what later ones reuse."""
    took = []
    for _ in range(TIMES + 1):
        before()
        began = time.thread_time()
        work()
        took.append(1000 * (time.thread_time() - began))
    return statistics.median(took[1:])


# ---- the view


class View:
    """A cluster model with pods of `objects.WORKLOADS` workloads on all nodes."""

    def __init__(self, groups: Mapping[str, NodeGroup], instances: Mapping[str, str]) -> None:
        self.model = model = ClusterModel(ModelSettings(expects=True), monotonic, epoch)
        self.nominated_by_us, self.pending, self.node_names = model.nominated_by_us, model.pending, model.node_names
        followed = {each.resource.path: each for each in self.model.followed}
        self._nodes, self._pods = followed[NODES], followed[PODS]
        self._groups, self._instances = groups, instances
        marked = (self._node(each, scale_down_steps.MARKED) for each in instances)
        self._nodes.replaced(map(self._nodes.resource.decode, marked))
        names = [node_name(each) for each in instances]
        self.standing = list(objects.pods(names, PODS_OF_A_NODE * len(names)))
        self._pods.replaced(self._pods.resource.decode(_pod(each, each.node)) for each in self.standing)
        for path, each in followed.items():
            if path not in (NODES, PODS):
                each.replaced(())

    def _node(self, instance_id: str, annotations: Mapping[str, str]) -> bytes:
        document = objects.node_document(self._groups[self._instances[instance_id]], instance_id, held=False)
        document["metadata"].pop("creationTimestamp", None)
        document["metadata"]["annotations"] = {**annotations}
        document["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        return known_to_message(kubernetes_pb2.Node, document).SerializeToString()

    def annotate(self, instance_id: str, annotations: Mapping[str, str]) -> None:
        self._nodes.applied(self._nodes.resource.decode(self._node(instance_id, annotations)))

    def put(self, each: objects.Standing, node: str) -> None:
        self._pods.applied(self._pods.resource.decode(_pod(each, node)))

    def drop(self, each: objects.Standing) -> None:
        self._pods.deleted(ObjectIdentity(each.name, "", each.name))

    def state(self, *, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        return self.model.state(without)

    def undrainable(self, names: Iterable[str]) -> Mapping[str, str]:
        return self.model.undrainable(names)


def _pod(each: objects.Standing, node: str) -> bytes:
    found = kubernetes_pb2.Pod()
    found.metadata.name = found.metadata.uid = each.name
    found.spec.nodeName, found.status.phase = node, "Running" if node else "Pending"
    return _of_workload(each.workload) + found.SerializeToString()  # two messages in a row are one, merged


@cache
def _of_workload(workload: int) -> bytes:
    return known_to_message(kubernetes_pb2.Pod, objects.pod(workload, "")).SerializeToString()


class Moves:
    """Pods that go to other nodes."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._places = count()

    def ten(self) -> None:
        standing = self._view.standing
        for _ in range(10):
            at = 97 * next(self._places) % len(standing)
            self._view.put(standing[at], standing[at - 1].node)


def _of_the_view(view: View, moves: Moves) -> Iterator[tuple[str, float]]:
    def wait(workload: int) -> None:
        view.put(objects.Standing(workload, f"waits-{next(_numbers)}", ""), "")

    workloads = iter(range(0, objects.WORKLOADS, 10))
    yield "a state when nothing has changed", _cpu(view.state)
    yield "a state after ten pods have moved", _cpu(view.state, moves.ten)
    yield "a state after another pod waits", _cpu(view.state, lambda: wait(2))
    yield "a state after one waits of a workload that is spread", _cpu(view.state, lambda: wait(next(workloads)))


# ---- planning


class _Cluster:
    """What planning asks of the view."""

    problem = None

    def __init__(self, view: View) -> None:
        self.arrivals = view.model.arrivals
        self.pod_of = view.model.pod_of
        self.nominated_by_us = view.model.nominated_by_us
        self.state = view.state
        self.pending = view.model.pending
        self.node_names = view.model.node_names


def _of_planning(view: View, fleet: Fleet, moves: Moves) -> Iterator[tuple[str, float]]:
    """Each round has ten pods of ten workloads, after ten others have moved and those of the last round were bound."""
    settings = PlannerSettings()
    runtime = Runtime(epoch, lambda: MonotonicSeconds(monotonic() + settings.window_seconds))
    cluster: Any = _Cluster(view)
    no_events: Any = SimpleNamespace(event=lambda _: None)
    assumed = AssumeCache(cluster, Shortages(settings.shortage_seconds, epoch), runtime.clock)
    loop = PlanningController(fleet, cluster, settings, assumed, no_events, runtime)
    warm_up()
    waiting: list[objects.Standing] = []

    def ten_wait() -> None:
        for each in waiting:
            view.put(each, view.standing[next(_numbers)].node)
        waiting[:] = [objects.Standing(37 * n % objects.WORKLOADS, f"waits-{n}", "") for n in islice(_numbers, 10)]
        for each in waiting:
            view.put(each, "")
        moves.ten()

    yield "a planning round of ten pods", _cpu(loop.step, ten_wait)
    if [each.on_existing for each in loop.plans()[1:]] != [10] * TIMES:
        raise SystemExit(f"rounds have not planned ten pods each: {loop.plans()}")
    for each in waiting:
        view.drop(each)


# ---- the fleet


class _Nodes:
    """All instances have a Node that is Ready."""

    def __init__(self, instances: Mapping[str, str]) -> None:
        self._ready = frozenset(instances)
        self._names = {each: each for each in instances}

    def ready_instances(self) -> AbstractSet[str]:
        return self._ready

    def labels(self, _: Mapping[str, AbstractSet[str]]) -> Mapping[str, Mapping[str, str]]:
        return {}

    def node_names(self) -> Mapping[str, str]:
        return self._names


def _of_the_fleet(fleet: Fleet, groups: Sequence[NodeGroup]) -> Iterator[tuple[str, float]]:
    yield "a step of the fleet when nothing has changed", _cpu(fleet.reconcile)
    yield "ordering two nodes", _cpu(lambda: fleet.apply(_two(groups[0].id)))
    yield "a step of the fleet with what was ordered on its way", _cpu(fleet.reconcile)


def _two(group: str) -> IncrementSpec:
    pods = [f"pod-{next(_numbers)}" for _ in range(2)]
    placements = tuple(Placement(group, pods=(each,)) for each in pods)
    return IncrementSpec({group: 2}, Origin.CAGRPC, frozenset(pods), placements=placements)


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [3_000, 15_000])
