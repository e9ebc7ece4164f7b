"""What small changes cost in clusters of different sizes: the view's state for planning, and a step of the fleet.

    python -m bench.scale_steps [nodes ...]        3000 and 15000 without any; ten pods on each

Everything is in this process: the objects of `bench.scale_objects` come to the view as from an API server, and the
simulated cloud has an instance for each node. Prints a Markdown row for each change, with the median of CPU
milliseconds at each size: what costs more the larger the cluster looks at the whole where little has changed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from bench import scale_objects as objects
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.api.encoding.messages import packed_known
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.cluster.view.model import NODES, PODS, ClusterModel
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, Origin, Placement
from cagrpc.runtime.clock import epoch, monotonic
from solver.model import NodeGroup

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
        yield from _of_the_fleet(Path(directory), groups, instances)
        yield from _of_the_view(View({each.id: each for each in groups}, instances))


def _group(number: int) -> NodeGroup:
    offered = {"cpu": 1000 * objects.CPUS, "memory": objects.MEMORY_GIB << 30, "pods": 110}
    return NodeGroup(f"type-{number:02}", offered, 1.0 + number / 100, max_size=5_000)


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
        self.model = ClusterModel(
            gang_label=DEFAULT_GANG_LABEL,
            schedulers=DEFAULT_SCHEDULERS,
            clock=monotonic,
            now=epoch,
            namespace="cagrpc",
            expects=True,
        )
        followed = {each.resource.path: each for each in self.model.followed}
        nodes, self._pods = followed[NODES], followed[PODS]
        names: list[str] = []

        def documents() -> Iterator[Any]:
            for instance_id, group in instances.items():
                document = objects.node_document(groups[group], instance_id, held=False)
                names.append(document["metadata"]["name"])
                document["metadata"].pop("creationTimestamp", None)
                document["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
                yield nodes.resource.decode(packed_known(kubernetes_pb2.Node, document).SerializeToString())

        nodes.sink.replaced(documents())
        self.standing = list(objects.pods(names, PODS_OF_A_NODE * len(names)))
        self._pods.sink.replaced(self._pods.resource.decode(_pod(each, each.node)) for each in self.standing)
        for path, each in followed.items():
            if path not in (NODES, PODS):
                each.sink.replaced(())

    def put(self, each: objects.Standing, node: str) -> None:
        self._pods.sink.applied(self._pods.resource.decode(_pod(each, node)))

    def state(self) -> None:
        self.model.state(frozenset())


def _pod(each: objects.Standing, node: str) -> bytes:
    found = kubernetes_pb2.Pod()
    found.metadata.name = found.metadata.uid = each.name
    found.spec.nodeName, found.status.phase = node, "Running" if node else "Pending"
    return _of_workload(each.workload) + found.SerializeToString()  # two messages in a row are one, merged


@cache
def _of_workload(workload: int) -> bytes:
    return packed_known(kubernetes_pb2.Pod, objects.pod(workload, "")).SerializeToString()


def _of_the_view(view: View) -> Iterator[tuple[str, float]]:
    places = (97 * number % len(view.standing) for number in count())

    def move() -> None:
        for _ in range(10):
            at = next(places)
            view.put(view.standing[at], view.standing[at - 1].node)

    def wait(workload: int) -> None:
        view.put(objects.Standing(workload, f"waits-{next(_numbers)}", ""), "")

    workloads = iter(range(0, objects.WORKLOADS, 10))
    yield "a state when nothing has changed", _cpu(view.state)
    yield "a state after ten pods have moved", _cpu(view.state, move)
    yield "a state after another pod waits", _cpu(view.state, lambda: wait(2))
    yield "a state after one waits of a workload that is spread", _cpu(view.state, lambda: wait(next(workloads)))


# ---- the fleet


class _Nodes:
    """All instances have a Node that is Ready."""

    def __init__(self, instances: Mapping[str, str]) -> None:
        self._ready = frozenset(instances)
        self._names = {each: each for each in instances}

    def ready_instances(self) -> AbstractSet[str]:
        return self._ready

    def lacking_labels(self, _: Mapping[str, AbstractSet[str]]) -> AbstractSet[str]:
        return frozenset()

    def node_names(self) -> Mapping[str, str]:
        return self._names


def _of_the_fleet(
    directory: Path, groups: Sequence[NodeGroup], instances: Mapping[str, str]
) -> Iterator[tuple[str, float]]:
    backend = SimulatedBackend(directory / "simulated.sqlite")
    fleet = Fleet(groups, [], backend, SqliteJournal(directory / "journal.sqlite"), nodes=_Nodes(instances))
    try:
        fleet.reconcile()
        yield "a step of the fleet when nothing has changed", _cpu(fleet.reconcile)
        yield "ordering two nodes", _cpu(lambda: fleet.apply(_two(groups[0].id)))
        yield "a step of the fleet with what was ordered on its way", _cpu(fleet.reconcile)
    finally:
        backend.close()


def _two(group: str) -> IncrementSpec:
    pods = [f"pod-{next(_numbers)}" for _ in range(2)]
    placements = tuple(Placement(group, pods=(each,)) for each in pods)
    return IncrementSpec({group: 2}, Origin.CAGRPC, frozenset(pods), placements=placements)


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [3_000, 15_000])
