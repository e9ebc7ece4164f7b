"""How near to the optimum in hindsight the whole comes, and how soon all pods run: `cagrpc serve` beside a real control
plane, with simulated machines.

    python -m bench.live [--arrivals at-once|paced|bare|waves] [--trace NAME|FILE.csv] [--groups openb|catalogue]
                         [--pods-a-second 5,20,100] [--scheduling-seconds 1] [--busy 3] [--dedicated]
                         [--autoscaler PROGRAM [--drive assist] [--salvo] [--batch 20s,2m]]

The optimum is that of all pods planned together, which nobody knows before the last has come. Pods come

at-once  as Deployments created together, by controllers that make a thousand pods a second
paced    as Deployments created together, by controllers at their own pace (--pods-a-second is their kube-api-qps)
bare     one by one, 20 a second, without an owner that says how many will come
waves    as Deployments, a third of them at a time, five minutes from one third to the next (--apart)

`above` is what the nodes cost at the end above the optimum (the bound that is proven for it in brackets), `over plan`
above what the first round planned; `rounds` are scale-ups; `unused` are nodes that were deleted before a pod was bound
to them; `all run` is counted from the first creation, `after` from the later of the last pod's creation and the last
Node's readiness; `bound after lift` from the last taint to the last binding. With --scheduling-seconds an extender
keeps the scheduler for so long with every pod; --busy processes do nothing but take CPU; --dedicated is
`planner: {dedicated_nodes: true}`. With `--drive assist` the cluster-autoscaler decides, and there are no rounds. Rows
are Markdown, for docs/reference/performance.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

from bench.real_cluster import control_plane, external_provider, real_autoscaler, served
from bench.table import machine, machine_line
from bench.workloads import GPU, MIB, catalogue_groups, pod_sets, spec, with_tainted_gpus
from cagrpc.api.core.nodes import START_UP_TAINT
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.kube.client.envelopes import ObjectIdentity
from cagrpc.kube.informer.informers import Informer
from cagrpc.kube.informer.resource import Resource
from solver import Budget, NodeGroup, Plan, PodSet, Problem, solve
from solver.model.quantities import format_quantities
from solver.planning.warm_up import warm_up
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.live import Live, group
from tests.support.controlplane.plane import ControlPlane, Scoring
from tests.support.recordings import node_groups

BEFORE = """
Without nominations (plans realised by simulating the scheduler, until November 2026): openb-1000 at once 6 to 15 %
above the plan, and 100 s from the last Node's readiness until all ran; 2,266 pods at 20 a second 28 and 42 % above."""
PODS_A_SECOND = 20.0
PATIENCE_SECONDS = 900.0
HINDSIGHT = Budget(30.0, workers=2)
_DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
_numbers = count(1)
_HEADS = (
    "trace", "arrivals", "groups", "scoring", "pods", "optimum $/h", "$/h", "above %", "over plan %", "rounds", "nodes",
    "ordered", "unused", "all run s", "after s", "bound after lift s",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    trace: str
    arrivals: str
    groups: str
    scoring: Scoring
    boot_seconds: float
    apart_seconds: float
    window_seconds: float
    every: int = 1
    pods_a_second: float = PODS_A_SECOND
    """The controller-manager's kube-api-qps, of which half goes into Events and status."""
    scheduling_seconds: float = 0.0
    busy: int = 0
    dedicated: bool = False
    drive: str = "plan"
    salvo: bool = False
    batch: str = ""
    verbose: bool = False

    @property
    def expander(self) -> dict[str, Any] | None:
        """Its section of the configuration."""
        idle, _, window = self.batch.partition(",")
        return {"batch": {"idle": idle, "window": window}} if self.batch else None

    @property
    def pace(self) -> str:
        said = [self.arrivals]
        if self.arrivals in ("paced", "waves"):
            said.append(f"qps {self.pods_a_second:g}")
        if self.scheduling_seconds:
            said.append(f"{self.scheduling_seconds:g} s a pod")
        if self.busy:
            said.append(f"{self.busy} busy")
        if self.dedicated:
            said.append("dedicated nodes")
        if self.drive != "plan":
            said.append(self.drive)
        if self.salvo:
            said.append("salvo")
        if self.batch:
            said.append(f"batch {self.batch}")
        return ", ".join(said)


@dataclass
class Seen:
    """What happened when, by the watch. Seconds of one clock."""

    created: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    lifted: dict[str, float] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    """Of Nodes that are there."""
    used: set[str] = field(default_factory=set)
    """Nodes that a pod was bound to,"""
    unused: set[str] = field(default_factory=set)
    """and those that went before one was."""

    def pod(self, data: bytes) -> tuple[str, str, bool]:
        pod = kubernetes_pb2.Pod.FromString(data)
        return pod.metadata.uid, pod.spec.nodeName, pod.status.phase == "Running"

    def node(self, data: bytes) -> tuple[str, str, bool, bool]:
        node = kubernetes_pb2.Node.FromString(data)
        ready = any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
        held = any(taint.key == START_UP_TAINT for taint in node.spec.taints)
        return node.metadata.name, node.metadata.labels["pool"], ready, held


class Pods:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def replaced(self, objects: Any) -> None:
        for each in objects:
            self.applied(each)

    def applied(self, obj: tuple[str, str, bool]) -> None:
        now = time.monotonic()
        uid, node, running = obj
        self._seen.created.setdefault(uid, now)
        if node:
            self._seen.bound.setdefault(uid, now)
            self._seen.used.add(node)
        if running:
            self._seen.running.setdefault(uid, now)

    def deleted(self, of: ObjectIdentity) -> None:
        pass


class Nodes:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def replaced(self, objects: Any) -> None:
        for each in objects:
            self.applied(each)

    def applied(self, obj: tuple[str, str, bool, bool]) -> None:
        now = time.monotonic()
        name, pool, ready, held = obj
        self._seen.groups[name] = pool
        if ready:
            self._seen.ready.setdefault(name, now)
            if not held:
                self._seen.lifted.setdefault(name, now)

    def deleted(self, of: ObjectIdentity) -> None:
        self._seen.groups.pop(of.name, None)
        if of.name not in self._seen.used:
            self._seen.unused.add(of.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrivals", choices=["at-once", "paced", "bare", "waves"], action="append")
    parser.add_argument(
        "--trace", action="append", help="openb-1000, mixed-N (N pods of 60 shapes), or a pod list (CSV)"
    )
    parser.add_argument("--every", type=int, default=1, help="of a pod list every so many-th pod")
    parser.add_argument("--groups", choices=["openb", "catalogue"], default="openb")
    parser.add_argument("--scoring", choices=[each.value for each in Scoring], default=Scoring.LEAST_ALLOCATED.value)
    parser.add_argument("--boot", type=float, default=20.0, help="seconds that an instance takes")
    parser.add_argument("--apart", type=float, default=300.0, help="seconds from one wave to the next")
    parser.add_argument("--window", type=float, default=10.0, help="planner.window_seconds")
    parser.add_argument(
        "--pods-a-second", default=f"{PODS_A_SECOND:g}", help="the controllers' kube-api-qps, with commas between"
    )
    parser.add_argument("--scheduling-seconds", type=float, default=0.0, help="that the scheduler needs for each pod")
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside")
    parser.add_argument("--dedicated", action="store_true", help="planner.dedicated_nodes")
    parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS, help="seconds until all pods run, at most")
    parser.add_argument("--autoscaler", type=Path, help="the program of an unmodified cluster-autoscaler, run beside")
    parser.add_argument("--drive", choices=["plan", "assist"], default="plan")
    parser.add_argument("--salvo", action="store_true", help="the autoscaler with --salvo-scale-up")
    parser.add_argument("--batch", default="", help="expander.batch: idle and window, such as 20s,2m")
    parser.add_argument("--verbose", action="store_true", help="the server's rounds and its log as well")
    arguments = parser.parse_args()
    if arguments.autoscaler is None and (arguments.drive == "assist" or arguments.salvo):
        parser.error("--drive assist and --salvo need --autoscaler")
    warm_up()
    print(f"Machine: {machine_line(machine())}.\n", flush=True)
    with control_plane() as (plane, directory):
        print(f"| {' | '.join(_HEADS)} |\n|{' --- |' * len(_HEADS)}", flush=True)
        for case in cases(arguments):
            with busy(case.busy):
                print(run(plane, directory, case, arguments.patience, arguments.autoscaler), flush=True)
    print(BEFORE)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for trace in arguments.trace or ["openb-1000"]:
        for arrivals in arguments.arrivals or ["at-once", "paced", "bare", "waves"]:
            paced = arrivals in ("paced", "waves")
            for pods_a_second in map(float, arguments.pods_a_second.split(",") if paced else [str(PODS_A_SECOND)]):
                yield Case(
                    trace,
                    arrivals,
                    arguments.groups,
                    Scoring(arguments.scoring),
                    arguments.boot,
                    arguments.apart,
                    arguments.window,
                    arguments.every,
                    pods_a_second,
                    arguments.scheduling_seconds,
                    arguments.busy,
                    arguments.dedicated,
                    arguments.drive,
                    arguments.salvo,
                    arguments.batch,
                    arguments.verbose,
                )


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep so many processes busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in processes:
            each.kill()
            each.wait()


class SlowExtender(ThreadingHTTPServer):
    """A scheduler extender that lets every pod go to every node, after a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Filtering)
        self.seconds = seconds


class _Filtering(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert isinstance(self.server, SlowExtender)
        time.sleep(self.server.seconds)
        answer = json.dumps({"NodeNames": asked.get("NodeNames") or []}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@contextmanager
def scheduler(plane: ControlPlane, case: Case) -> Iterator[None]:
    """The case's scheduler for a while."""
    if not case.scheduling_seconds:
        with plane.scheduler(case.scoring):
            yield
        return
    with SlowExtender(case.scheduling_seconds) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        extender = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True, "httpTimeout": "1m"}
        try:
            with plane.scheduler(case.scoring, [extender]):
                yield
        finally:
            server.shutdown()


def run(plane: ControlPlane, directory: Path, case: Case, patience_seconds: float, autoscaler: Path | None) -> str:
    """One row."""
    problem = with_tainted_gpus(Problem(trace(case), groups_of(case.groups)))
    optimum = solve(problem, HINDSIGHT)
    pace: tuple[str, ...] = ()
    if case.arrivals in ("paced", "waves"):
        burst = max(1, round(1.5 * case.pods_a_second))
        pace = (f"--kube-api-qps={case.pods_a_second:g}", f"--kube-api-burst={burst}")
    with (
        scheduler(plane, case),
        plane.controller_manager(*pace),
        watching(plane) as seen,
        served(plane, directory, f"bench-{next(_numbers)}") as live,
        ExitStack() as beside,
    ):
        live.configure(
            provisioners(problem),
            {"*": {"boot": f"{case.boot_seconds}s"}},
            planner={
                "idle": "1s",
                "window": f"{case.window_seconds}s",
                "budget": "5s",
                "dedicated_nodes": case.dedicated,
            },
            drive=case.drive,
            expander=case.expander,
        )
        live.start()
        if autoscaler is not None:
            flags = (*external_provider(live), *(["--salvo-scale-up"] if case.salvo else []))
            beside.enter_context(real_autoscaler(live, autoscaler, flags))
        began = time.monotonic()
        wanted = sum(each.count for each in problem.pod_sets)
        create(live.cluster, problem.pod_sets, case)
        live.wait_for(lambda: len(seen.created) >= wanted, "all pods are created", patience_seconds)
        unserved = sum(each.count for each in optimum.unplaced)
        live.wait_for(lambda: len(seen.running) >= wanted - unserved, "all pods run", patience_seconds)
        return row(case, problem, optimum, seen, live, began)


def row(case: Case, problem: Problem, optimum: Plan, seen: Seen, live: Live, began: float) -> str:
    prices = {each.id: each.price_usd_per_hour for each in problem.node_groups}
    cost = sum(prices[pool] for pool in seen.groups.values())
    best, bound = optimum.certificate.cost_usd_per_hour, optimum.certificate.lower_bound_usd_per_hour
    last = max(seen.running.values())
    rounds = live.rounds()
    if case.verbose:
        print(live.serving.log())
        for each in rounds:
            print(
                {
                    key: each[key]
                    for key in ("why", "pods", "nodes", "on_existing", "planned_cost_per_hour", "elapsed_seconds")
                }
            )
        print(live.serving.get("/status"))
    cells = (
        f"{Path(case.trace).stem}{f' every {case.every}' if case.every > 1 else ''}",
        case.pace,
        case.groups,
        case.scoring.value,
        f"{len(seen.created):,}",
        f"{best:,.2f}",
        f"{cost:,.2f}",
        f"{100 * (cost / best - 1):.2f} ({100 * (cost / bound - 1):.2f})",
        f"{100 * (cost / rounds[0]['planned_cost_per_hour'] - 1):.2f}" if rounds else "",
        str(len(rounds)),
        str(len(seen.groups)),
        str(live.ordered()),
        str(len(seen.unused)),
        f"{last - began:.0f}",
        f"{last - max(*seen.created.values(), *seen.ready.values()):.1f}",
        f"{max(seen.bound.values()) - max(seen.lifted.values()):.1f}",
    )
    return f"| {' | '.join(cells)} |"


def trace(case: Case) -> tuple[PodSet, ...]:
    if case.trace.startswith("mixed-"):
        return pod_sets(60, int(case.trace.removeprefix("mixed-")), seed=7)
    path = _DATA / "openb-1000.csv" if case.trace == "openb-1000" else Path(case.trace)
    counts: Counter[tuple[str, str, str]] = Counter()
    with path.open() as table:
        for number, line in enumerate(csv.DictReader(table)):
            if number % case.every == 0 or "count" in line:
                counts[line["cpu_milli"], line["memory_mib"], line["num_gpu"]] += int(line.get("count") or 1)
    return tuple(
        PodSet(f"pods-{number:03}", spec({"cpu": int(cpu), "memory": int(memory) * MIB, GPU: int(gpus)}), pods)
        for number, ((cpu, memory, gpus), pods) in enumerate(counts.items())
    )


def groups_of(name: str) -> tuple[NodeGroup, ...]:
    if name == "openb":
        return node_groups("openb")
    # Every fourth type: no more than CA is shown.
    return tuple(replace(each, max_size=1000) for each in catalogue_groups()[::8])


def provisioners(problem: Problem) -> list[dict[str, Any]]:
    def written(groups: Sequence[NodeGroup]) -> list[dict[str, Any]]:
        return [
            group(
                each.id,
                f"{each.allocatable['cpu']}m",
                str(each.allocatable["memory"]),
                each.price_usd_per_hour,
                gpus=each.allocatable.get(GPU, 0),
                max_size=each.max_size,
            )
            for each in groups
        ]

    with_gpus = [each for each in problem.node_groups if each.allocatable.get(GPU)]
    others = [each for each in problem.node_groups if not each.allocatable.get(GPU)]
    taint = {"key": GPU, "value": "present", "effect": "NoSchedule"}
    found: list[dict[str, Any]] = [
        {"name": "cpu", "node_groups": written(others)},
        {"name": "gpu", "taints": [taint], "node_groups": written(with_gpus)},
    ]
    return [each for each in found if each["node_groups"]]


def create(cluster: Cluster, pod_sets: Sequence[PodSet], case: Case) -> None:
    if case.arrivals == "bare":
        create_bare(cluster, pod_sets)
        return
    waves = 3 if case.arrivals == "waves" else 1
    for wave in range(waves):
        began = time.monotonic()
        for pods in pod_sets[wave::waves]:
            requests = format_quantities(pods.spec.requests)
            cluster.create_deployment(pods.name, pods.count, requests, tolerations=tolerations(requests))
        if wave + 1 < waves:
            time.sleep(max(0.0, began + case.apart_seconds - time.monotonic()))


def create_bare(cluster: Cluster, pod_sets: Sequence[PodSet]) -> None:
    """Of all shapes together, each in proportion."""
    shares = [
        ((number + 0.5) / pods.count, index) for index, pods in enumerate(pod_sets) for number in range(pods.count)
    ]
    began = time.monotonic()
    for position, (_, index) in enumerate(sorted(shares)):
        time.sleep(max(0.0, began + position / PODS_A_SECOND - time.monotonic()))
        requests = format_quantities(pod_sets[index].spec.requests)
        cluster.create_pod(f"{pod_sets[index].name}-{position}", requests, tolerations=tolerations(requests))


def tolerations(requests: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": GPU, "operator": "Exists"}] if GPU in requests else []


@contextmanager
def watching(plane: ControlPlane) -> Iterator[Seen]:
    client, seen = plane.client(), Seen()
    informers: list[Informer[Any]] = [
        Informer(client, Resource("/api/v1/pods", seen.pod), Pods(seen)),
        Informer(client, Resource("/api/v1/nodes", seen.node), Nodes(seen)),
    ]
    for each in informers:
        each.start()
    try:
        yield seen
    finally:
        for each in informers:
            each.stop()
        client.close()


if __name__ == "__main__":
    main()
