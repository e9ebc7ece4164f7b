"""How long a whole BestOptions call takes, and how much of it is decoding: the two recorded calls over 11 node groups.

    python -m bench.best_options [repeats]

Prints, for each recorded request, the best of `repeats` (default 5) times in milliseconds: decoding alone, the whole
answer without the socket, and their ratio.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cagrpc.api.autoscaler import expander as wire
from cagrpc.fleet.model import FleetSnapshot, GroupState
from cagrpc.runtime.clock import epoch
from cagrpc.services.decisions import DecisionLog
from cagrpc.services.grpc.expander import Expander
from cagrpc.services.grpc.status import CallContext
from solver.planning.rank import rank
from tests.support.recordings import conversation, node_groups

RECORDING = "openb-1165-pods-best-options"


@dataclass(frozen=True)
class _Standing:
    snapshot: FleetSnapshot


def main(repeats: int) -> None:
    logging.disable(logging.CRITICAL)
    groups = {group.id: GroupState(group, 0) for group in node_groups("openb")}
    fleet: Any = _Standing(FleetSnapshot(1, groups, tuple(groups), {}))
    decisions = DecisionLog(epoch)
    expander = Expander(fleet, rank, decisions, clock=epoch)
    print(f"{'request':>10} {'options':>8} {'pods':>6} {'decode ms':>10} {'whole ms':>9} {'ratio':>6}  chosen")
    for rpc in conversation(RECORDING):
        request = wire.decode(rpc.request, lambda: False)
        pods = len({pod.key for option in request.options for pod in option.pods})
        decode_ms = _best_ms(lambda data=rpc.request: wire.decode(data, lambda: False), repeats)  # type: ignore[misc]
        whole_ms = _best_ms(
            lambda data=rpc.request: expander.best_options(data, CallContext("BestOptions")),  # type: ignore[misc]
            repeats,
        )
        decision = decisions.latest()[-1]
        size = f"{len(rpc.request) / 1e6:.1f} MB"
        print(
            f"{size:>10} {len(request.options):>8} {pods:>6} {decode_ms:>10.1f} {whole_ms:>9.1f}"
            f" {whole_ms / decode_ms:>6.1f}  {decision.chosen} (by {decision.ranked_by})"
        )
    expander.close()


def _best_ms(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1000


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
