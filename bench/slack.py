"""What one loop of the resource slack takes on a large cluster: 5,000 nodes, 150,000 pods in 3,000 classes.

    python -m bench.slack [loops]

In every loop 1 % of the pods come or go; then how much is wanted is counted anew and placeholders are settled. The same
are also placed as if none had been there before: what that takes, and how many would move by it. Prints medians, with
the goal of a loop; times are CPU seconds of this process.
"""

from __future__ import annotations

import random
import sys
from statistics import median

from bench.measure import timed
from solver import HOSTNAME, Node, Operator, PodAffinityTerm, PodSelector, PodSpec, Requirement, RunningPods
from solver.slack.amount import wanted
from solver.slack.model import Copies, NodeShape, Placement, PodCount, SlackShape, SlackTarget
from solver.slack.placement import settle

NODES = 5_000
PODS = 150_000
CLASSES = 3_000
MOST_LOOP_SECONDS = 0.5
_GIB = 2**30
_SIZES = ((4_000, 16), (8_000, 32), (16_000, 64))


class Cluster:
    """Nodes, and pods on them by class; a change makes new values of the nodes that it concerns only."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)
        self._specs = [self._spec(number) for number in range(CLASSES)]
        sizes = [_SIZES[number % len(_SIZES)] for number in range(NODES)]
        self._allocatable = [{"cpu": cpu, "memory": gib * _GIB, "pods": 110} for cpu, gib in sizes]
        self._on: list[dict[int, int]] = [{} for _ in range(NODES)]
        for _ in range(PODS):
            self._add(self._random.randrange(NODES))
        self.nodes = [self._node(number) for number in range(NODES)]

    def _spec(self, number: int) -> PodSpec:
        """A twentieth of them keep apart on hosts."""
        cpu = self._random.choice((50, 100, 200, 400))
        memory = self._random.choice((1, 2, 4)) * cpu * 1024 * 1024
        requests = (("cpu", cpu), ("memory", memory))
        if number % 20:
            return PodSpec(requests)
        mine = PodSelector((Requirement("app", Operator.IN, (str(number),)),), ("shop",))
        labels = (("app", str(number)),)
        return PodSpec(requests, namespace="shop", labels=labels, pod_anti_affinity=(PodAffinityTerm(HOSTNAME, mine),))

    def _add(self, node: int) -> None:
        of = self._random.randrange(CLASSES)
        self._on[node][of] = self._on[node].get(of, 0) + 1

    def _node(self, number: int) -> Node:
        allocatable, on = self._allocatable[number], self._on[number]
        used = {"cpu": 0, "memory": 0, "pods": 0}
        for of, count in on.items():
            for name, amount in (*self._specs[of].requests, ("pods", 1)):
                used[name] += amount * count
        free = {name: amount - used[name] for name, amount in allocatable.items()}
        running = tuple(RunningPods(self._specs[of], count) for of, count in on.items())
        return Node(f"node-{number:05}", free, running=running, allocatable=allocatable)

    def change(self, pods: int) -> None:
        """So many pods go and as many come, on a few nodes: as pods come by workloads, 10 to a node."""
        for number in self._random.sample(range(NODES), pods // 20):
            for _ in range(10):
                on = self._on[number]
                if on:
                    of = self._random.choice(list(on))
                    on[of] -= 1
                    if not on[of]:
                        del on[of]
                self._add(number)
            self.nodes[number] = self._node(number)

    def shapes(self) -> list[NodeShape]:
        return [
            NodeShape({"cpu": cpu, "memory": gib * _GIB, "pods": 110}, len(range(first, NODES, len(_SIZES))))
            for first, (cpu, gib) in enumerate(_SIZES)
        ]

    def pods(self) -> list[PodCount]:
        counts = [0] * CLASSES
        for on in self._on:
            for of, count in on.items():
                counts[of] += count
        return [PodCount(spec, count) for spec, count in zip(self._specs, counts, strict=True)]

    def mirrors(self, number: int) -> tuple[Copies, ...]:
        """Of workloads that keep apart."""
        return tuple(Copies(f"workload-{of}", self._specs[of], 3) for of in range(0, 20 * number, 20))


def main(loops: int) -> None:
    cluster = Cluster()
    target = SlackTarget("bench", 0.1, mirrors=cluster.mirrors(20))
    shapes: tuple[SlackShape, ...] = ()
    before: Placement = {}
    counting, settling, anew, moved, moved_anew = [], [], [], [], []
    for loop in range(loops + 1):
        pods, nodes = cluster.pods(), cluster.shapes()
        found, _, seconds = timed(lambda: wanted(target, nodes, pods, shapes))  # noqa: B023 - called at once
        shapes = found.shapes
        settled, _, settle_seconds = timed(lambda: settle(shapes, cluster.nodes, before))  # noqa: B023
        fresh, _, anew_seconds = timed(lambda: settle(shapes, cluster.nodes, {}))  # noqa: B023
        if loop:
            counting.append(seconds)
            settling.append(settle_seconds)
            anew.append(anew_seconds)
            moved.append(_came(before, settled.held))
            moved_anew.append(_came(before, fresh.held))
        before = settled.held
        cluster.change(PODS // 100)
    placeholders = sum(shape.count for shape in shapes)
    print(f"{NODES:,} nodes, {PODS:,} pods, {placeholders:,} placeholders of {len(shapes)} shapes, {loops} loops")
    both = [one + other for one, other in zip(counting, settling, strict=True)]
    met = "met" if max(both) < MOST_LOOP_SECONDS else "not met"
    print(f"{'counting what is wanted':<44} {median(counting):>8.3f} s")
    print(f"{'settling after 1 % change':<44} {median(settling):>8.3f} s")
    print(f"{'both; the slowest loop':<44} {median(both):>8.3f} s {max(both):.3f} s  goal < 0.5: {met}")
    print(f"{'all placed anew':<44} {median(anew):>8.3f} s")
    print(f"{'all placed anew / settled, time':<44} {median(anew) / median(settling):>8.1f} x")
    print(f"{'placeholders that come to a node in a loop':<44} {median(moved):>8.0f} of {placeholders:,}")
    print(f"{'the same, all placed anew':<44} {median(moved_anew):>8.0f}")
    print(f"{'all placed anew / settled, moves':<44} {median(moved_anew) / max(1, median(moved)):>8.1f} x")


def _came(before: Placement, after: Placement) -> int:
    """Placeholders where there was none of their kind."""
    return sum(
        max(0, count - before.get(name, {}).get(node, 0))
        for name, there in after.items()
        for node, count in there.items()
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
