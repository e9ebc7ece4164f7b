"""What following a large cluster takes: 5,000 nodes, 150,000 pods, 50 changes a second.

    python -m bench.cluster_view [seconds of changes]

Prints one line for each figure, with its goal where there is one, and how many times cheaper 50 changes and a state are
than the view made anew. Times are CPU seconds of this process where nothing else is said; the server is another one.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from kubernetes.client import Configuration

from cagrpc.cluster.view.view import ClusterView
from cagrpc.kube.client.access import Access
from cagrpc.kube.client.client import Client

RATE = 50.0
MOST_MIB = 1024
MOST_LIST_SECONDS = 60.0
MOST_SHARE = 0.05
MOST_STATE_SECONDS = 1.0
_BURST = 2_000
_orders = count()


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    goal: float | None = None

    def __str__(self) -> str:
        goal = ""
        if self.goal is not None:
            goal = f"  goal < {self.goal:g}: {'met' if self.value < self.goal else 'not met'}"
        return f"{self.name:<44} {self.value:>10.3f} {self.unit:<4}{goal}"


def main(seconds: float) -> None:
    with _server() as client:
        view = ClusterView(client)
        before = _mib()
        wall, cpu = _timed(lambda: _followed(view))
        state_cpu = _timed(view.state)[1]
        state = view.state()
        print(f"{len(state.nodes):,} nodes, {view.arrivals().waiting:,} pods waiting in {len(state.waiting):,} sets")
        _print(Figure("first list, wall", wall, "s", MOST_LIST_SECONDS))
        _print(Figure("first list", cpu, "s"))
        _print(Figure("first state", state_cpu, "s"))
        _print(Figure("state again, nothing changed", _timed(view.state)[1], "s", MOST_STATE_SECONDS))
        _change(client, view, _BURST, 1e6)
        changed_cpu = _timed(lambda: _change(client, view, int(RATE), 1e6))[1]
        state_after = _timed(view.state)[1]
        _print(Figure("state after 50 changes", state_after, "s", MOST_STATE_SECONDS))
        wall, steady = _timed(lambda: _change(client, view, int(RATE * seconds), RATE))
        _print(Figure(f"share of a core at {RATE:g} changes a second", steady / wall, "", MOST_SHARE))
        _print(Figure("peak memory", _mib(), "MiB", MOST_MIB))
        _print(Figure("  of which before the first list", before, "MiB"))
        _print(Figure("made anew / 50 changes and a state", (cpu + state_cpu) / (changed_cpu + state_after), "x"))
        view.stop()


def _print(figure: Figure) -> None:
    print(figure, flush=True)


def _followed(view: ClusterView) -> None:
    view.start()
    while view.problem:
        time.sleep(0.01)


def _change(client: Client, view: ClusterView, changes: int, rate: float) -> None:
    """Have so many changes sent, and return when the last has arrived."""
    last = f"last-{next(_orders)}"
    client.create("/bench/changes", {"changes": changes, "rate": rate, "last": last})
    while view.pod_of(last) is None:
        time.sleep(0.02)


@contextmanager
def _server() -> Iterator[Client]:
    command = [sys.executable, "-m", "bench.cluster_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdin
        port = json.loads(process.stdout.readline())["port"]

        def load(configuration: Configuration) -> None:
            configuration.host = f"http://127.0.0.1:{port}"

        client = Client(Access(load, pool_size=16))
        try:
            yield client
        finally:
            client.close()
            process.stdin.close()


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
