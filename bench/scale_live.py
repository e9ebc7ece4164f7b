"""A large cluster under churn: `cagrpc serve` beside a real API server and etcd, 15,000 nodes, 150,000 pods, 50 changes
a second, and what it takes.

    python -m bench.scale_live [--drive plan|assist] [--minutes 15] [--nodes 15000] [--pods 150000] [--rate 50]

Of the control plane only the API server and etcd run; the bench plays the scheduler, workloads' controllers, kubelets
(without Leases: no controller asks for them) and machines. Nodes, workloads and their bound pods are put into etcd as a
restored backup would have them; the simulated cloud has an instance for each Node. In `drive: assist` a client in Go
asks every 10 s what the cluster-autoscaler asks in a loop, call after call (with `make native` of the native front),
and large pods that no node has room for are offered to the expander.

First nothing changes for a while, then there is churn. A row is a minute: the server's share of a core, its memory, the
longest step of any loop (the bound of its bucket), planning rounds, the autoscaler's loop. In the end: CPU by loop and
for each change, and verdicts. `--profile FILE` has py-spy, where it is in PATH, record the server during churn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from prometheus_client.parser import text_string_to_metric_families

from bench import scale_objects as objects
from bench.real_cluster import control_plane
from bench.scale_churn import Churn
from bench.table import machine, machine_line
from cagrpc.api.gen import expander_pb2 as pb
from cagrpc.config.load import load_settings
from cagrpc.kube.client.envelopes import Encoding, page
from cagrpc.replay.recording import EXPANDER
from tests.support.controlplane import binaries
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.live import Live
from tests.support.controlplane.plane import ControlPlane
from tests.support.serving import started_process

LONGEST_STEP_SECONDS = 2.0
MOST_GROWTH = 0.05
"""Of memory in an hour."""
LOOP_SECONDS = 10.0
PATIENCE_SECONDS = 900.0
_LARGE = {"labelSelector": "large=yes", "fieldSelector": "spec.nodeName=", "resourceVersion": "0"}
"""From the API server's cache, as informers list: etcd would read all pods to find the few."""


@dataclass(frozen=True)
class Reading:
    """What the server says of itself, at a moment."""

    at: float
    cpu_seconds: float
    memory_mib: float
    loop_cpu: Mapping[str, float]
    steps: Mapping[str, Mapping[float, float]]
    """By loop, how many took no longer than each bound."""
    rounds: float
    rounds_seconds: float

    def longest(self, before: Reading) -> tuple[float, str]:
        """Return the bound of the longest step since, and whose it was."""
        found = (0.0, "")
        for loop, buckets in self.steps.items():
            old = before.steps.get(loop, {})
            at_most = 0.0
            for bound in sorted(buckets):
                if buckets[bound] - old.get(bound, 0.0) > at_most:
                    at_most = buckets[bound] - old.get(bound, 0.0)
                    found = max(found, (bound, loop))
        return found


def read(live: Live) -> Reading:
    with urllib.request.urlopen(f"http://{live.serving.endpoints['http']}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    loop_cpu: dict[str, float] = {}
    steps: dict[str, dict[float, float]] = {}
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "cagrpc_loop_cpu_seconds_total":
                loop_cpu[sample.labels["loop"]] = sample.value
            elif sample.name == "cagrpc_loop_step_duration_seconds_bucket":
                steps.setdefault(sample.labels["loop"], {})[float(sample.labels["le"])] = sample.value
            else:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return Reading(
        time.monotonic(),
        values["process_cpu_seconds_total"],
        values["process_resident_memory_bytes"] / 2**20,
        loop_cpu,
        steps,
        values.get("cagrpc_planning_round_duration_seconds_count", 0.0),
        values.get("cagrpc_planning_round_duration_seconds_sum", 0.0),
    )


@dataclass
class Asked:
    """Loops of the autoscaler: seconds each."""

    loops: list[dict[str, float]] = field(default_factory=list)
    increased: int = 0
    ended_by: str = ""
    """What went wrong, if the loops ended before the bench."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drive", choices=["plan", "assist"], default="plan")
    parser.add_argument("--minutes", type=int, default=15, help="of churn")
    parser.add_argument("--quiet-minutes", type=int, default=2, help="before")
    parser.add_argument("--nodes", type=int, default=15_000)
    parser.add_argument("--pods", type=int, default=150_000)
    parser.add_argument("--rate", type=float, default=50.0, help="changes a second")
    parser.add_argument("--consolidation", choices=["off", "dry-run"], default="off")
    parser.add_argument("--profile", type=Path, help="file for py-spy's raw stacks")
    options = parser.parse_args()
    print(f"Machine: {machine_line(machine())}.\n", flush=True)
    with control_plane() as (plane, directory):
        (directory / "server").mkdir()
        plane.stop_scheduler()
        plane.stop_controller_manager()
        return run(plane, directory / "server", options)


def run(plane: ControlPlane, directory: Path, options: argparse.Namespace) -> int:
    clusters = [Cluster(plane, f"team-{number}") for number in range(objects.NAMESPACES)]
    live = Live(clusters[0], directory, started_process)
    live.configure(
        [{"name": "any", "node_groups": objects.node_groups()}],
        {"*": {"boot": "20s"}},
        drive=options.drive,
        planner={"idle": "1s", "window": "10s", "shortage": "5m"},
        consolidation=None if options.consolidation == "off" else {"mode": options.consolidation},
        simulated_nodes=False,
    )
    groups = {each.id: each for each in load_settings(directory / "cagrpc.yaml").groups}
    state = directory / "state"
    state.mkdir(mode=0o700)
    began = time.monotonic()
    standing_instances = objects.instances(state / "simulated.sqlite", list(groups.values()), options.nodes)
    names = [each.rpartition("/")[2] for each in standing_instances]
    standing = list(objects.pods(names, options.pods))
    stored = list(objects.stored(plane.admin, groups, standing_instances, standing))
    plane.fill(stored)
    print(f"{len(stored):,} objects are stored after {time.monotonic() - began:.0f} s", flush=True)
    del stored
    try:
        began = time.monotonic()
        live.start(PATIENCE_SECONDS)
        live.wait_for(lambda: _follows(live), "all is known", seconds=PATIENCE_SECONDS)
        first = read(live)
        print(f"all is known after {time.monotonic() - began:.0f} s (CPU {first.cpu_seconds:.0f} s)\n", flush=True)
        churn = Churn(plane, groups, state / "simulated.sqlite", standing, planned=options.drive == "plan")
        return measured(live, churn, list(standing_instances), options)
    finally:
        live.close()


def _follows(live: Live) -> bool:
    status = live.serving.get("/status")
    return "waiting_pods" in status and status.get("scale_down", {}) != {}


def measured(live: Live, churn: Churn, ids: Sequence[str], options: argparse.Namespace) -> int:
    """Print the rows and what follows; return the exit code."""
    print("| minute | changes | CPU % | MiB | longest step s | rounds | mean s | CA's loop s | wait | nodes |")
    print("| ---: | ---: | ---: | ---: | --- | ---: | ---: | --- | ---: | ---: |", flush=True)
    with asking(live, ids, churn, options.drive) as asked:
        time.sleep(30)  # what comes with the start is over
        quiet = [read(live)]
        for _ in range(options.quiet_minutes):
            quiet.append(_minute(live, churn, asked, quiet[-1], "quiet"))
        with churn.running(options.rate), profiled(live, options.profile):
            readings = [read(live)]
            for minute in range(options.minutes):
                readings.append(_minute(live, churn, asked, readings[-1], str(minute + 1)))
    for line in summary(quiet, readings, churn, asked):
        print(line)
    return 0 if all(each[1] for each in verdicts(readings, churn, asked)) else 1


def _minute(live: Live, churn: Churn, asked: Asked, before: Reading, name: str) -> Reading:
    changes, loops = churn.changes, len(asked.loops)
    time.sleep(max(0.0, before.at + 60 - time.monotonic()))
    now = read(live)
    seconds, (bound, loop) = now.at - before.at, now.longest(before)
    rounds = now.rounds - before.rounds
    mean = (now.rounds_seconds - before.rounds_seconds) / rounds if rounds else 0.0
    took = [each["seconds"] for each in asked.loops[loops:]]
    cells = (
        name,
        f"{churn.changes - changes:,}",
        f"{100 * (now.cpu_seconds - before.cpu_seconds) / seconds:.1f}",
        f"{now.memory_mib:.0f}",
        f"<= {bound:g} ({loop})",
        f"{rounds:.0f}",
        f"{mean:.2f}",
        f"{max(took):.1f} ({len(took)})" if took else "",
        str(churn.waiting),
        str(churn.new_nodes),
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    return now


def summary(quiet: Sequence[Reading], readings: Sequence[Reading], churn: Churn, asked: Asked) -> Iterator[str]:
    first, last = readings[0], readings[-1]
    seconds, cpu = last.at - first.at, last.cpu_seconds - first.cpu_seconds
    idle = (quiet[-1].cpu_seconds - quiet[0].cpu_seconds) / (quiet[-1].at - quiet[0].at) if len(quiet) > 1 else 0.0
    yield f"\nquiet {100 * idle:.1f} % of a core, churn {100 * cpu / seconds:.1f} %"
    yield f"{1000 * (cpu - idle * seconds) / churn.changes:.2f} ms of CPU for each of {churn.changes:,} changes"
    yield f"{len(churn.waited_seconds)} pods waited for a place, {max(churn.waited_seconds, default=0):.0f} s at most"
    if asked.loops:
        parts = [key for key in asked.loops[-1] if key not in ("seconds", "calls")]
        middle = {key: sorted(each[key] for each in asked.loops)[len(asked.loops) // 2] for key in parts}
        yield f"a loop of the autoscaler, medians: {', '.join(f'{key} {took:.2f} s' for key, took in middle.items())}"
        yield f"{asked.increased} increases"
    yield "\n| loop | CPU s | % of a core | longest step s |\n| --- | ---: | ---: | ---: |"
    for loop, used in sorted(last.loop_cpu.items(), key=lambda each: -each[1]):
        before, old = first.loop_cpu.get(loop, 0.0), {loop: first.steps.get(loop, {})}
        alone = Reading(last.at, 0, 0, {}, {loop: last.steps[loop]}, 0, 0)
        longest = alone.longest(Reading(0, 0, 0, {}, old, 0, 0))[0]
        yield f"| {loop} | {used - before:.1f} | {100 * (used - before) / seconds:.1f} | <= {longest:g} |"
    yield ""
    for text, met in verdicts(readings, churn, asked):
        yield f"{'met' if met else 'NOT MET'}: {text}"
    for problem, times in churn.problems.most_common(5):
        yield f"{times} x {problem}"


def verdicts(readings: Sequence[Reading], churn: Churn, asked: Asked) -> Iterator[tuple[str, bool]]:
    first, last = readings[0], readings[-1]
    bound, loop = last.longest(first)
    yield f"every step within {LONGEST_STEP_SECONDS:g} s (<= {bound:g} s, {loop})", bound <= LONGEST_STEP_SECONDS
    growth = _slope([(each.at / 3600, each.memory_mib) for each in readings[len(readings) // 4 :]]) / last.memory_mib
    yield f"memory flat: {100 * growth:+.1f} % an hour, goal < {100 * MOST_GROWTH:g} %", growth < MOST_GROWTH
    rate = churn.changes / (last.at - first.at)
    yield f"{rate:.1f} changes a second", True
    if asked.loops or asked.ended_by:
        why = f", ended by {asked.ended_by}" if asked.ended_by else ""
        yield f"{len(asked.loops)} loops of the autoscaler{why}", not asked.ended_by


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line through the points, by least squares."""
    if len(points) < 2:
        return 0.0
    x, y = (sum(each[axis] for each in points) / len(points) for axis in (0, 1))
    across = sum((each[0] - x) ** 2 for each in points)
    return sum((each[0] - x) * (each[1] - y) for each in points) / across if across else 0.0


# ---- the autoscaler


@contextmanager
def asking(live: Live, ids: Sequence[str], churn: Churn, drive: str) -> Iterator[Asked]:
    asked = Asked()
    if drive != "assist":
        yield asked
        return
    program = binaries.build(binaries.RPC) / "rpc"
    nodes = live.directory / "nodes"
    nodes.write_text("\n".join(ids))
    command = [str(program), "loop", str(live.serving.certificates), live.serving.endpoints["provider"], str(nodes)]
    stopping = threading.Event()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def loop() -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            asked.loops.append(json.loads(process.stdout.readline()))
            if churn.large():
                asked.increased += scale_up(live)

        def loops() -> None:
            try:
                while not stopping.wait(LOOP_SECONDS):
                    loop()
            except Exception as error:  # noqa: BLE001 - a verdict tells it
                asked.ended_by = repr(error)[:200]

        thread = threading.Thread(target=loops, daemon=True)
        thread.start()
        try:
            yield asked
        finally:
            stopping.set()
            thread.join(60)
            process.kill()


def scale_up(live: Live) -> int:
    """Offer the large pods that are pending and for which nothing comes, and do what the answer says."""
    coming = {pod for each in live.increments() if each["phase"] not in ("done", "rolled-back") for pod in [each["id"]]}
    client = live.cluster.plane.client()
    try:
        data = client.read("/api/v1/pods", _LARGE, Encoding.PROTOBUF)
        waiting = list(page(Encoding.PROTOBUF, data).items)
    finally:
        client.close()
    if coming or not waiting:
        return 0
    options = [
        pb.Option(nodeGroupId=f"type-{shape:02}-a", nodeCount=len(waiting), podBytes=waiting) for shape in range(3)
    ]
    certificates = live.serving.certificates
    credentials = grpc.ssl_channel_credentials((certificates / "ca.crt").read_bytes())
    with grpc.secure_channel(live.serving.endpoints["expander"], credentials) as channel:
        method = next(f"/{EXPANDER.full_name}/{each.name}" for each in EXPANDER.methods)
        best = channel.unary_unary(method, None, pb.BestOptionsResponse.FromString)
        answer = best(pb.BestOptionsRequest(options=options).SerializeToString(), timeout=5)
    with live.serving.provider() as provider:
        for option in answer.options:
            provider.increase(option.nodeGroupId, len(waiting))
    return len(answer.options)


@contextmanager
def profiled(live: Live, file: Path | None) -> Iterator[None]:
    if file is None:
        yield
        return
    command = ["py-spy", "record", "--pid", str(live.serving.process.pid), "--format", "raw", "--output", str(file)]
    with subprocess.Popen([*command, "--rate", "10", "--threads", "--nonblocking"]) as process:
        try:
            yield
        finally:
            process.send_signal(2)
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
