"""What a call costs that the autoscaler makes for every node in every loop: NodeGroupForNode over mTLS, asked by one Go
client of a Go server, of ours with Python alone, and of ours behind the native front, in one run.

    python -m bench.rpc [--nodes 15000] [--seconds 5] [--rounds 5]

First one client asks for every node, one after the other, as the autoscaler does; the servers take turns in several
rounds, and the median of the rounds counts. Then ten clients ask at once for some seconds in which a planner works, in
the process of ours, and beside Go's; ours has a new snapshot every second meanwhile. Needs Go, and `make native`.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.cases import CASES
from cagrpc.fleet.model import FleetSnapshot, GroupState, Instance, InstanceState
from cagrpc.server.certificates import ensure_certificates
from cagrpc.services.grpc import native, provider
from cagrpc.services.grpc.native import Endpoint
from cagrpc.services.grpc.provider import Provider
from cagrpc.services.grpc.ready import ReadyAnswers
from cagrpc.services.grpc.servers import RpcServer
from cagrpc.services.tls import LiveTls, TlsMaterial
from solver import Budget, NodeGroup, solve
from solver.planning.warm_up import warm_up
from tests.support.controlplane import binaries

GROUPS = 50
CLIENTS = 10
GO, PYTHON, NATIVE = "Go", "Python", "native front"
_CHANGES_EVERY_SECONDS = 1.0
_PLANNED = "openb-default"


@dataclass(frozen=True)
class Times:
    """Of the calls of one load, in microseconds."""

    calls: float
    seconds: float
    p50: float
    p99: float
    p999: float
    most: float


class _Standing:
    """A fleet whose nodes all stand, and whose snapshot is replaced by one that differs in a target."""

    def __init__(self, nodes: int, ready: ReadyAnswers) -> None:
        self._ready = ready
        listed: dict[str, list[Instance]] = {f"group-{index}": [] for index in range(GROUPS)}
        for index in range(nodes):
            group = f"group-{index % GROUPS}"
            listed[group].append(Instance(f"kwok://node-{index}", group, InstanceState.RUNNING))
        self.snapshot = FleetSnapshot(
            version=1,
            groups={
                group: GroupState(
                    NodeGroup(group, {"cpu": 2000, "pods": 110}, 1.0, max_size=1000), len(found), tuple(found)
                )
                for group, found in listed.items()
            },
            shown=tuple(listed),
            group_of_instance={each.id: group for group, found in listed.items() for each in found},
        )
        ready.advance(1)

    def change(self) -> None:
        groups = dict(self.snapshot.groups)
        groups["group-0"] = replace(groups["group-0"], target_size=groups["group-0"].target_size + 1)
        self.snapshot = replace(self.snapshot, version=self.snapshot.version + 1, groups=groups)
        self._ready.advance(self.snapshot.version)


def serve(directory: Path, nodes: int, seconds: float, *, by: str) -> None:
    """Serve, and print the port; plan for so long, or with 0 seconds not at all, when a line comes."""
    logging.disable(logging.WARNING)
    ready = native.answers_of(native.load(), provider.SERVICE, provider.BY_NODE) if by == NATIVE else ReadyAnswers()
    fleet = _Standing(nodes, ready)
    files = (directory / name for name in ("server.crt", "server.key", "ca.crt"))
    tls = LiveTls(TlsMaterial(*(each.read_bytes() for each in files)))
    methods = Provider(fleet, ready=ready).methods()  # type: ignore[arg-type] # nobody changes it
    server = RpcServer(provider.SERVICE, methods, Endpoint("127.0.0.1:0", tls, asks_clients=True), ready=ready)
    server.start()
    warm_up()
    problem = CASES[_PLANNED].build()
    print(server.port, flush=True)
    sys.stdin.readline()
    planned = threading.Event()

    def plan() -> None:
        solve(problem, Budget(seconds, workers=2))
        planned.set()

    threading.Thread(target=plan).start()
    while not planned.wait(_CHANGES_EVERY_SECONDS):
        fleet.change()
    print("planned", flush=True)
    sys.stdin.readline()
    server.stop(0.0)


def measure(nodes: int, seconds: int, rounds: int) -> tuple[dict[str, Times], dict[str, Times]]:
    """Return the times of the one client and those of the ten, by server."""
    program = binaries.build(binaries.RPC) / "rpc"
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        directory = Path(made)
        ensure_certificates(directory)
        arguments = ("--nodes", nodes, "--seconds", seconds, "--serve")
        ours = [
            stack.enter_context(_process(sys.executable, "-m", "bench.rpc", *arguments, by, directory))
            for by in (PYTHON, PYTHON, NATIVE)
        ]
        addresses = [f"127.0.0.1:{_line(each)}" for each in ours]
        go = stack.enter_context(_process(program, "serve", directory, nodes, GROUPS))
        address_of = dict(zip((GO, PYTHON, NATIVE), (f"127.0.0.1:{_line(go)}", *addresses[1:]), strict=True))

        def load(address: str, clients: int, lasts: int) -> Times:
            command = [str(word) for word in (program, "load", directory, address, nodes, clients, lasts)]
            return Times(**json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))

        alone: dict[str, list[Times]] = {name: [] for name in address_of}
        for _ in range(rounds):
            for name, address in address_of.items():
                alone[name].append(load(address, 1, 0))
        busy = {}
        for (name, address), planner in zip(address_of.items(), ours, strict=True):
            _say(planner)
            busy[name] = load(address, CLIENTS, seconds)
            assert _line(planner) == "planned"
    return {name: _middle(times) for name, times in alone.items()}, busy


@contextmanager
def _process(*command: object) -> Iterator[subprocess.Popen[str]]:
    words = [str(word) for word in command]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit("a server has ended; what it says is above")
    return line


def _say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _middle(times: Sequence[Times]) -> Times:
    return Times(*(median(getattr(each, name) for each in times) for name in Times.__dataclass_fields__))


def show(alone: dict[str, Times], busy: dict[str, Times]) -> Iterator[str]:
    """Yield the two tables."""
    yield f"{'one client':<14} {'p50 us':>8} {'/ Go':>6} {'p99 us':>8} {'/ Go':>6} {'all nodes s':>12}"
    for name, each in alone.items():
        yield (
            f"{name:<14} {each.p50:>8.0f} {each.p50 / alone[GO].p50:>6.2f} {each.p99:>8.0f}"
            f" {each.p99 / alone[GO].p99:>6.2f} {each.seconds:>12.2f}"
        )
    yield ""
    yield f"{f'{CLIENTS} at once':<14} {'calls/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'p99.9 ms':>9} {'most ms':>8}"
    for name, each in busy.items():
        yield (
            f"{name:<14} {each.calls / each.seconds:>8,.0f} {each.p50 / 1e3:>8.2f} {each.p99 / 1e3:>8.2f}"
            f" {each.p999 / 1e3:>9.2f} {each.most / 1e3:>8.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=15_000)
    parser.add_argument("--seconds", type=int, default=5, help="how long the planner works")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        by, directory = options.serve
        serve(Path(directory), options.nodes, options.seconds, by=by)
        return
    if missing := binaries.lacking(*binaries.TO_BUILD):
        raise SystemExit(missing)
    if native.load() is None:
        raise SystemExit("cagrpc-native is not installed: `make native`")
    for line in show(*measure(options.nodes, options.seconds, options.rounds)):
        print(line)


if __name__ == "__main__":
    main()
