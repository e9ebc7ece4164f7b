"""What a tenant who may create objects in one namespace, or a peer who reaches a port, can make cagrpc do.

    python -m bench.hostile [--scale 0.1] [--twice] [--most-seconds 900] [--most-mib 8192] [NAME ...]

Without a NAME it runs all; `solve` is all whose names begin so. Each runs in a process of its own that is killed, with
the server that it attacks, when it has taken so long or so much memory. Printed are, for each piece of work, seconds of
the wall and of CPU and the peak of memory (of the server, where one is attacked); with `--twice` the same at twice the
size, and how many times as much that takes. `--scale` is for smaller sizes than these:

{table}
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench.hostile import caps, escapes, held, reading, sockets, solving
from bench.hostile.meter import Meter, Totals, memory_mib
from bench.table import machine, machine_line
from cagrpc.cli.main import COLLECT_AFTER

GOAL = 2.3
"""Twice the size takes at most so many times as much,"""
_LEAST_SECONDS, _LEAST_MIB = 0.2, 16.0
"""where it took at least so much: less says nothing."""
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Attack:
    size: int
    unit: str
    run: Callable[[Meter, int], None]
    what: str


ATTACKS: Mapping[str, Attack] = {
    "terms": Attack(200, "pods", reading.terms, "80 anti-affinity terms each"),
    "ns_sel": Attack(2_000, "namespaces", reading.namespaces, "and a pod with as many terms with namespaceSelectors"),
    "quotas": Attack(2_000, "workloads", reading.quota, "below one quota"),
    "chain": Attack(1_500, "workloads", reading.owners, "that own each other"),
    "cel_claim": Attack(140, "expressions", reading.expressions, "of 10 KiB in ResourceClaims"),
    "cel_re2b": Attack(60, "patterns", reading.patterns, "in one expression of a ResourceClaim"),
    **{
        f"solve-{kind}": Attack(200, "pods", partial(solving.solving, kind), f"{count} {each} each")
        for kind, (each, count, _) in solving.KINDS.items()
    },
    "solve-mixed": Attack(200, "pods", solving.mixed, "of all these kinds together"),
    "solve-machines": Attack(200, "nodes", solving.machines, "each with a value of a key of which one pod has a term"),
    "solve-claims": Attack(200, "pods", solving.claims, "whose claims on devices all differ"),
    "cap-cel-bytes": Attack(12, "namespaces", caps.expression_bytes, "each with its share of bytes of expressions"),
    "cap-cel-steps": Attack(300, "devices", caps.expression_steps, "on each of which an expression takes its steps"),
    "cap-cel-program": Attack(64, "patterns", caps.programs, "with programs just below the cap"),
    "cap-terms": Attack(40, "pods", caps.terms, "with terms, conditions and values just below the caps"),
    "cap-spreads": Attack(200, "pods", caps.spreads, "with topology spread constraints just below the cap"),
    "cap-lists": Attack(40, "pods", caps.lists, "with tolerations, ports, resources, volumes just below the caps"),
    "cap-budgets": Attack(1_000, "PodDisruptionBudgets", caps.budgets, "and as many pods that are all different"),
    "cap-claim": Attack(1_000, "pods", caps.one_claim, "of one claim for devices and one for a volume"),
    "cap-children": Attack(500, "workloads", caps.children, "that one workload owns"),
    "cap-replicas": Attack(500, "workloads", caps.replicas, "that want 5,000 pods each"),
    "cap-stateful": Attack(20, "StatefulSets", caps.stateful_sets, "of 500 pods with claims of their own each"),
    "consol": Attack(24 * 60, "minutes", held.consolidation, "in which pods are made that no node serves"),
    "escapes": Attack(1, "expressions", escapes.escapes, "with escapes, on an administrator's terminal"),
    "continuation": Attack(20, "seconds", sockets.continuation, "of CONTINUATION frames at the expander, three times"),
    "silence": Attack(300, "connections", sockets.silence, "to the provider that say nothing"),
}


def main() -> int:
    table = "\n".join(f"    {name:<14} {each.size:>5} {each.unit}, {each.what}" for name, each in ATTACKS.items())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").format(table=table), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes")
    parser.add_argument("--twice", action="store_true", help="also at twice the size")
    parser.add_argument("--most-seconds", type=float, default=900.0, help="of one attack")
    parser.add_argument("--most-mib", type=float, default=8192.0, help="of one attack and its server")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        size, totals = options.inside
        return _inside(ATTACKS[options.names[0]], int(size), Path(totals))
    chosen = [name for name in ATTACKS if not options.names or name.startswith(tuple(options.names))]
    unknown = [each for each in options.names if not any(name.startswith(each) for name in ATTACKS)]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(ATTACKS)}")
    print(f"Machine: {machine_line(machine())}\n", flush=True)
    bounds = Bounds(options.most_seconds, options.most_mib)
    for name in chosen:
        size = max(1, round(options.scale * ATTACKS[name].size))
        once = run(name, size, bounds)
        if options.twice:
            print(f"  {times(once, run(name, 2 * size, bounds))}\n", flush=True)
    return 0


@dataclass(frozen=True)
class Bounds:
    """Of one attack."""

    seconds: float
    mib: float


def run(name: str, size: int, bounds: Bounds) -> Totals | str:
    """Run it in a process of its own; return what it took, or why it was ended."""
    attack = ATTACKS[name]
    print(f"{name}: {size} {attack.unit}, {attack.what}", flush=True)
    with tempfile.NamedTemporaryFile() as totals:
        command = [sys.executable, "-m", "bench.hostile", name, "--inside", str(size), totals.name]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            why = _watched(process, bounds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not why:
            return Totals(**json.loads(Path(totals.name).read_text()))
    print(f"  ended: {why}", flush=True)
    return why


def _watched(process: subprocess.Popen[bytes], bounds: Bounds) -> str:
    """Wait for it; return why it has to end or has failed, empty where it is through."""
    until = time.monotonic() + bounds.seconds
    while process.poll() is None:
        if time.monotonic() > until:
            return f"it takes more than {bounds.seconds:g} s"
        if _memory_of_group_mib(process.pid) > bounds.mib:
            return f"it takes more than {bounds.mib:g} MiB"
        time.sleep(_LOOK_SECONDS)
    return f"it has failed with exit code {process.returncode}" if process.returncode else ""


def _memory_of_group_mib(group: int) -> float:
    found = 0.0
    for each in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getpgid(int(each.name)) == group:
                found += memory_mib(int(each.name))
    return found


def _inside(attack: Attack, size: int, totals: Path) -> int:
    # As in a server: what is imported stays, garbage is sought as rarely, and never among that. With Python's own
    # thresholds the double size may be the first at which all that was imported is gone through.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    meter = Meter(partial(print, flush=True))
    attack.run(meter, size)
    totals.write_text(json.dumps(asdict(meter.totals)))
    return 0


def times(once: Totals | str, twice: Totals | str) -> str:
    """Say how many times as much the double size takes."""
    if isinstance(once, str) or isinstance(twice, str):
        return f"twice the size: not measured, goal at most {GOAL} times: not met"
    found = []
    for what, small, large, least in (
        ("CPU", once.cpu_seconds, twice.cpu_seconds, _LEAST_SECONDS),
        ("memory", once.grown_mib, twice.grown_mib, _LEAST_MIB),
    ):
        if large < least:
            found.append(f"{what} too little to tell")
        else:
            ratio = large / max(small, 1e-9)
            found.append(f"{what} {ratio:.1f} times, goal at most {GOAL}: {'met' if ratio <= GOAL else 'not met'}")
    return f"twice the size: {'; '.join(found)}"


if __name__ == "__main__":
    sys.exit(main())
