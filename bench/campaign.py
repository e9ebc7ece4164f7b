"""A fault campaign: the fleet, real processes and the listeners, with everything wrong around them.

    python -m bench.campaign [--only fleet|processes|listeners] [--seed S] [--at-most MINUTES] [--workers N]
                             [--increments N] [--minutes M] [--messages N] [--fuzz-minutes M] [--calls N]
                             [--markdown docs/reference/reliability.md]

fleet      increments of fleets in this program, under clocks that are set by hand (`bench.faults.fleet`)
processes  two `cagrpc serve` beside a real control plane, for `--minutes` (`bench.faults.processes`)
listeners  malformed messages to decoders, and over sockets to a server with each front (`bench.faults.listeners`)

What must not be is named, and makes the exit code 1. `--markdown` writes the figures between the marks of that page; of
a part that was not run, those that are there stay. What each figure was checked by is on the page.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.faults import fleet, listeners
from bench.faults.episode import Result
from bench.faults.figures import Figures, write_markdown
from bench.faults.processes import ProcessCampaign
from bench.real_cluster import control_plane
from bench.table import machine, machine_line
from tests.support.controlplane import binaries
from tests.support.controlplane.cluster import Cluster

_LACKING: Mapping[str, Callable[[], str | None]] = {
    "fleet": lambda: None,
    "processes": binaries.lacking,
    "listeners": listeners.lacking,
}
INCREMENTS, MESSAGES, CALLS = 10_000, 1_000_000, 20_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="of real processes")
    parser.add_argument("--seed", type=int, default=1, help="of whatever is drawn")
    parser.add_argument("--only", choices=("fleet", "processes", "listeners"), help="one part")
    parser.add_argument("--increments", type=int, default=INCREMENTS, help="of the fleet")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="to decoders, drawn")
    parser.add_argument("--fuzz-minutes", type=float, default=30.0, help="of messages to decoders, coverage-guided")
    parser.add_argument("--calls", type=int, default=CALLS, help="over sockets, to a server with each front")
    parser.add_argument("--markdown", type=Path, help="the page that gets the figures")
    parser.add_argument("--at-most", type=float, default=24 * 60.0, help="minutes of the fleet, and of messages drawn")
    parser.add_argument("--workers", type=int, default=2, help="processes for the fleet, and for messages drawn")
    options = parser.parse_args()
    most_seconds: float = 60 * options.at_most

    def until() -> float:
        return time.monotonic() + most_seconds

    def length() -> listeners.Length:
        return listeners.Length(
            options.messages, int(60 * options.fuzz_minutes), options.calls, until(), options.workers
        )

    parts: Mapping[str, Callable[[], Result]] = {
        "fleet": lambda: fleet.run(options.seed, options.increments, until(), options.workers, tell),
        "processes": lambda: processes(options.seed, options.minutes),
        "listeners": lambda: listeners.run(options.seed, length(), tell),
    }
    wanted = [name for name in parts if options.only in (None, name)]
    if missing := [why for name in wanted if (why := _LACKING[name]())]:
        parser.error("; ".join(missing))
    print(f"Machine: {machine_line(machine())}\n", flush=True)
    violations: list[str] = []
    for name in wanted:
        began, cpu = time.monotonic(), _cpu_seconds()
        result = parts[name]()
        figures = Figures(name, options.seed, time.monotonic() - began, _cpu_seconds() - cpu, result)
        print(figures.text(), flush=True)
        violations += result.violations
        if options.markdown is not None:
            write_markdown(options.markdown, figures)
    print(*(violations or ["nothing that must not be"]), sep="\n")
    return 1 if violations else 0


def tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def processes(seed: int, minutes: float) -> Result:
    with control_plane() as (plane, directory):
        servers = directory / "servers"
        servers.mkdir()
        campaign = ProcessCampaign(Cluster(plane, "campaign"), servers, seed)
        return campaign.run(sys.maxsize, time.monotonic() + 60 * minutes, tell)


def _cpu_seconds() -> float:
    """Of this process and of those that it waited for."""
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    sys.exit(main())
