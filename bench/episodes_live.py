"""Whether what an episode says is so: episodes that a server in shadow keeps beside an unmodified cluster-autoscaler
with its `kwok` provider are rebuilt, each from its recorded state alone, and played with that autoscaler in two ways:
with the expander that decided, and with `cagrpc serve` (`drive: plan`) over the same node groups and nodes.

    python -m bench.episodes_live --autoscaler PROGRAM [--episodes 10] [--kinds 8] [--seed 1]

PROGRAM is built as for `bench.own_provider_live`. Pods are drawn from openb-1000, `--kinds` Deployments at a time;
nodes and pods of an episode stand while the next one is recorded. `report` is what the episode says, `played` what the
new nodes cost in the rebuilt cluster; `off %` is how far the difference played is from the difference reported. Rows
are Markdown.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.live import Case, Seen, create, groups_of, provisioners, trace, watching
from bench.own_provider_live import Load, autoscaler, configure
from bench.real_cluster import control_plane, real_autoscaler, served
from bench.table import machine, machine_line
from bench.workloads import with_tainted_gpus
from cagrpc.controllers.episodes.log import KeptEpisode, read
from cagrpc.controllers.episodes.model import RecordedState
from solver import PodSet, Problem
from solver.model.quantities import format_quantities
from solver.planning.warm_up import warm_up
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.kubelets import kubelets
from tests.support.controlplane.live import Live
from tests.support.controlplane.plane import ControlPlane, Scoring

DECIDES = "least-waste"
_CASE = Case("openb-1000", "paced", "openb", Scoring.MOST_ALLOCATED, 0.0, 0.0, 10.0)
"""The scheduler packs, as the autoscaler's estimate does: else a pod that is left over by chance is a node more."""
_PACE = ("--kube-api-qps=500", "--kube-api-burst=1000")
_QUICK = ("--scan-interval=3s", "--new-pod-scale-up-delay=4s")
"""Pods that come together are decided on together."""
_NO_MORE_SECONDS = 20.0
_MOST_PODS = 12
_PATIENCE_SECONDS = 300.0
_QUIET_SECONDS = 60.0
_SETTLED_SECONDS = 5.0
_HEADS = (
    "episode", "pods", "waves", "stood", "report: came $/h", "plan $/h", "difference", "played: came $/h", "plan $/h",
    "difference", "off %", "served",
)  # fmt: skip


@dataclass(frozen=True)
class Played:
    """What came of an episode that was played."""

    usd_per_hour: float
    served: int
    nodes: Counter[str]
    """By group."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--autoscaler", type=Path, required=True, help="the program, with the provider kwok")
    parser.add_argument("--episodes", type=int, default=10, help="how many are recorded and played")
    parser.add_argument("--kinds", type=int, default=8, help="Deployments of an episode")
    parser.add_argument("--seed", type=int, default=1, help="of what pods there are")
    parser.add_argument("--kept", type=Path, help="episodes that a server has kept: none is recorded")
    parser.add_argument("--keep", type=Path, help="where to write those that were recorded")
    parser.add_argument("--verbose", action="store_true", help="the nodes by group as well")
    options = parser.parse_args()
    options.salvo, options.batch = False, None
    warm_up()
    print(f"Machine: {machine_line(machine())}.\n", flush=True)
    with control_plane() as (plane, directory), plane.scheduler(_CASE.scoring), plane.controller_manager(*_PACE):
        text = options.kept.read_text() if options.kept else recorded(plane, directory, options)
        if options.keep:
            options.keep.write_text(text)
        print(f"| {' | '.join(_HEADS)} |\n|{' --- |' * len(_HEADS)}", flush=True)
        for number, kept in enumerate(read(text), 1):
            try:
                print(f"| {' | '.join(row(plane, directory, number, kept, options))} |", flush=True)
            except AssertionError as error:
                print(f"| {number} | not played: {error!s:.200} |", flush=True)
    return 0


def recorded(plane: ControlPlane, directory: Path, options: Namespace) -> str:
    """Return what a server in shadow keeps of so many episodes."""
    openb = with_tainted_gpus(Problem(trace(_CASE), groups_of("openb")))
    load, drawn = Load(openb), random.Random(options.seed)
    with watching(plane) as seen, served(plane, directory, "recorded") as live:
        flags = configure(live, load, options, mode="shadow")
        live.start(flags=flags)
        with autoscaler(live, load, f"grpc,{DECIDES}", options, *_QUICK):
            for number in range(options.episodes):
                create(live.cluster, drawn_pods(openb, number, options.kinds, drawn), _CASE)
                wait_for_nodes(seen)
                with kubelets(plane, "own=true"):
                    live.wait_for(lambda: kept_by(live) > number, "an episode ends", _PATIENCE_SECONDS)  # noqa: B023
            return written_by(live)


def wait_for_nodes(seen: Seen) -> None:
    """Wait until no more nodes come: they boot only then, so that what is chosen does not depend on which pods were
    bound meanwhile."""
    nodes, since = dict(seen.groups), time.monotonic()
    while time.monotonic() < since + _NO_MORE_SECONDS:
        time.sleep(0.5)
        if seen.groups != nodes:
            nodes, since = dict(seen.groups), time.monotonic()


def written_by(live: Live) -> str:
    found = live.cluster.admin.items(live.cluster.path("configmaps"), fieldSelector="metadata.name=cagrpc-episodes")
    return str(found[0]["data"]["episodes"]) if found else ""


def kept_by(live: Live) -> int:
    return len(list(read(written_by(live))))


def drawn_pods(openb: Problem, number: int, kinds: int, drawn: random.Random) -> list[PodSet]:
    found = drawn.sample(openb.pod_sets, kinds)
    return [
        replace(each, name=f"{each.name}-{number}", count=min(each.count, drawn.randint(1, _MOST_PODS)))
        for each in found
    ]


def row(plane: ControlPlane, directory: Path, number: int, kept: KeptEpisode, options: Namespace) -> Iterator[str]:
    """Yield the cells of an episode, which is played for the last of them."""
    episode, state = kept.episode, kept.recorded()
    yield from (str(number), str(episode.pods), str(episode.waves))
    if state is None or episode.planned is None or episode.saving_usd_per_hour is None:
        yield "; ".join(("not compared", *episode.unknown))
        return
    came, planned, said = episode.came.usd_per_hour, episode.planned.usd_per_hour, episode.saving_usd_per_hour
    yield from (str(len(state.cluster.nodes)), f"{came:,.2f}", f"{planned:,.2f}", f"{said:,.2f}")
    with rebuilt(plane, directory, f"came-{number}", state) as (live, load, seen):
        live.start(flags=configure(live, load, options))
        with autoscaler(live, load, DECIDES, options, *_QUICK):
            first = played(live, state, seen, boots=True)
    with rebuilt(plane, directory, f"planned-{number}", state) as (live, load, seen):
        live.configure(
            provisioners(load.problem), {"*": {"boot": "2s"}}, planner={"budget": "5s", "dedicated_nodes": True}
        )
        live.start()
        with real_autoscaler(live, options.autoscaler):
            second = played(live, state, seen)
    difference = first.usd_per_hour - second.usd_per_hour
    off = f"{100 * (difference / said - 1):.1f}" if said else f"{difference:.2f} $/h"
    yield from (f"{first.usd_per_hour:,.2f}", f"{second.usd_per_hour:,.2f}", f"{difference:,.2f}", off)
    yield f"{first.served}, {second.served}"
    if options.verbose:
        for what, found in (("came", episode.came), ("planned", episode.planned)):
            print(what, "by the report:", {each.node_group: each.count for each in found.nodes})
        print("played:", dict(first.nodes), dict(second.nodes))


@contextmanager
def rebuilt(plane: ControlPlane, directory: Path, name: str, state: RecordedState) -> Iterator[tuple[Live, Load, Seen]]:
    """Make the cluster of a recorded state, without its pods: nodes that stand have the room that was free."""
    with served(plane, directory, name) as live, ExitStack() as beside:
        for number, node in enumerate(state.cluster.nodes):
            stands(live.cluster, f"stands-{number}", {**node.free})
            taints = [{"key": each.key, "value": each.value, "effect": each.effect} for each in node.taints]
            live.cluster.admin.merge(f"/api/v1/nodes/stands-{number}", {"spec": {"taints": taints or None}})
        seen = beside.enter_context(watching(plane))
        yield live, Load(replace(state.cluster, pod_sets=state.waves[0].pod_sets, nodes=())), seen


def stands(cluster: Cluster, name: str, free: Mapping[str, int]) -> None:
    amounts = format_quantities(free.items())
    cluster.create_node(name, amounts, labels={"own": "true"})


def played(live: Live, state: RecordedState, seen: Seen, *, boots: bool = False) -> Played:
    """Create the pods as they came, and return what came for them; `boots` where nodes are to boot as when it was
    recorded."""
    prices = {each.id: each.price_usd_per_hour for each in state.cluster.node_groups}
    began, first = time.monotonic(), state.waves[0].at_seconds
    for number, wave in enumerate(state.waves):
        time.sleep(max(0.0, began + wave.at_seconds - first - time.monotonic()))
        create(live.cluster, renamed(wave.pod_sets, number), _CASE)
    if boots:
        wait_for_nodes(seen)
    with kubelets(live.cluster.plane, "own=true"):
        wanted = sum(each.pods for each in state.waves)
        changed, before = time.monotonic(), (0, 0)
        while time.monotonic() < changed + (_QUIET_SECONDS if len(seen.running) < wanted else _SETTLED_SECONDS):
            time.sleep(0.5)
            if (now := (len(seen.running), len(seen.groups))) != before:
                changed, before = time.monotonic(), now
    nodes = Counter(pool for pool in seen.groups.values() if pool)
    return Played(sum(prices[pool] * count for pool, count in nodes.items()), len(seen.running), nodes)


def renamed(pod_sets: Sequence[PodSet], wave: int) -> list[PodSet]:
    return [replace(each, name=f"pods-{wave}-{number}") for number, each in enumerate(pod_sets)]


if __name__ == "__main__":
    sys.exit(main())
