"""Unmodified cluster-autoscalers of several versions in front of `cagrpc serve`, beside a real control plane with
simulated machines: a scale-up, a shortage and what is chosen instead, and scale-down until nothing is left.

    python -m bench.versions_live --autoscaler PROGRAM... [--drive assist] [--drive plan] [--minutes 10] [--verbose]

PROGRAM has the provider externalgrpc (`go build -tags externalgrpc`). Of two node groups the preferred one can have one
node more once the first pods run; then as many pods come again. `up` and `instead` are seconds until they run,
`nodes` what they run on, `down` seconds from the pods' deletion until no node is left. For so many minutes all this is
done again and again with the same processes: seconds are then of the fastest and the slowest time. What must not be is
named, and makes the exit code 1. Rows are Markdown.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bench.real_cluster import control_plane, external_provider, real_autoscaler, served
from bench.table import machine, machine_line
from solver.planning.warm_up import warm_up
from tests.support.controlplane.live import FINISHED, Live, group
from tests.support.controlplane.plane import ControlPlane

_PODS, _CPU = 12, "1800m"
_FIRST, _SECOND = "first", "second"
_PATIENCE_SECONDS = 240.0
_HEADS = ("CA", "drive", "times", "up s", "nodes", "instead s", "nodes", "rolled back", "down s")
_BEHAVIOUR: Mapping[str, Any] = {"boot": "5s", "delete": "1s"}
_TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/cagrpc-increment"
_FLAGS = (
    "--scan-interval=5s",
    "--scale-down-unneeded-time=15s",
    "--scale-down-delay-after-add=5s",
    "--unremovable-node-recheck-timeout=10s",  # 5 min by default, which is longer than anybody waits here
)
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Story:
    """How long each part took, in seconds, and on which nodes pods ran."""

    up_seconds: float
    up_nodes: Counter[str]
    instead_seconds: float
    instead_nodes: Counter[str]
    down_seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--autoscaler", type=Path, nargs="+", required=True, help="programs")
    parser.add_argument("--drive", choices=("assist", "plan"), action="append", help="both by default")
    parser.add_argument("--flag", action="append", default=[], help="one more of CA's, such as --salvo-scale-up")
    parser.add_argument("--minutes", type=float, default=0.0, help="how long to go on; once by default")
    parser.add_argument("--verbose", action="store_true", help="the server's log as well")
    options = parser.parse_args()
    warm_up()
    print(f"Machine: {machine_line(machine())}.\n\n| {' | '.join(_HEADS)} |\n|{' --- |' * len(_HEADS)}", flush=True)
    found: list[str] = []
    with control_plane() as (plane, directory):
        for program in options.autoscaler:
            for drive in options.drive or ("assist", "plan"):
                try:
                    cells = run(plane, directory, program, drive, options)
                except AssertionError as error:
                    found.append(f"{program.name}, {drive}: {error} {getattr(error, '__notes__', '')}")
                    continue
                print(f"| {' | '.join((program.name, drive, *cells))} |", flush=True)
    print(*(found or ["nothing that must not be"]), sep="\n")
    return 1 if found else 0


def run(
    plane: ControlPlane, directory: Path, program: Path, drive: str, options: argparse.Namespace
) -> tuple[str, ...]:
    with served(plane, directory, f"versions-{next(_numbers)}") as live:
        groups = {_FIRST: group(_FIRST, "4", "16Gi", 0.1), _SECOND: group(_SECOND, "8", "32Gi", 0.3)}
        live.configure(
            [
                {"name": _FIRST, "weight": 50, "node_groups": [groups[_FIRST]]},
                {"name": _SECOND, "weight": 10, "node_groups": [groups[_SECOND]]},
            ],
            {"*": _BEHAVIOUR},
            drive=drive,
        )
        live.start()
        flags = (*external_provider(live), *_FLAGS, *held(program), *options.flag)
        with real_autoscaler(live, program, flags):
            try:
                return rows(live, options.minutes)
            finally:
                if options.verbose:
                    print(live.serving.log(), (live.directory / "cluster-autoscaler.log").read_text()[-20_000:])


def held(program: Path) -> tuple[str, ...]:
    """Return what an autoscaler of before 1.29 has to be told of start-up taints (docs/guides/connect.md)."""
    said = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    return () if re.search(r"--startup-taint\b", said.stdout + said.stderr) else (f"--ignore-taint={_TAINT}",)


def rows(live: Live, minutes: float) -> tuple[str, ...]:
    """Return the cells of what is done until the minutes are over, at least once."""
    ends = time.monotonic() + 60 * minutes
    first = story(live)
    assert set(first.up_nodes) == {_FIRST}, f"the preferred group has enough, and nodes are {first.up_nodes}"
    assert _SECOND in first.instead_nodes, f"the preferred group has run out, and new nodes are {first.instead_nodes}"
    stories = [first]
    while time.monotonic() < ends:  # what was short is still avoided then, and the nodes are not foreseen
        live.behave({_FIRST: _BEHAVIOUR})
        stories.append(story(live))
    return (
        str(len(stories)),
        _range([each.up_seconds for each in stories]),
        _said(first.up_nodes),
        _range([each.instead_seconds for each in stories]),
        _said(first.instead_nodes),
        str(live.phases().count("rolled-back")),
        _range([each.down_seconds for each in stories]),
    )


def story(live: Live) -> Story:
    requests = {"cpu": _CPU, "memory": "1Gi"}
    began = time.monotonic()
    live.cluster.create_deployment("first", _PODS, requests)
    live.wait_for_running(_PODS, _PATIENCE_SECONDS)
    up, pools = time.monotonic() - began, live.pools()
    live.wait_until_settled()
    live.behave({_FIRST: {**_BEHAVIOUR, "late_shortage": pools[_FIRST] + 1}})
    began = time.monotonic()
    live.cluster.create_deployment("second", _PODS, requests)
    live.wait_for_running(2 * _PODS, _PATIENCE_SECONDS)
    instead, after = time.monotonic() - began, live.pools() - pools
    live.wait_until_settled()
    began = time.monotonic()
    for name in ("first", "second"):
        live.cluster.admin.delete(live.cluster.path("deployments", name, api="apis/apps/v1"))
    live.wait_for(lambda: not live.nodes(), "no node is left", _PATIENCE_SECONDS)
    down = time.monotonic() - began
    assert set(live.phases()) <= set(FINISHED)
    return Story(up, pools, instead, after, down)


def _range(seconds: list[float]) -> str:
    least, most = f"{min(seconds):.0f}", f"{max(seconds):.0f}"
    return least if least == most else f"{least} to {most}"


def _said(pools: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(pools.items()))


if __name__ == "__main__":
    sys.exit(main())
