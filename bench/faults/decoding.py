"""Malformed messages to whatever reads what others write: drawn from a seed, without sockets and
without a look at coverage, which makes each eight times as fast."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from random import Random

from bench.faults.episode import Result
from tests.api.decoders import hostile
from tests.api.decoders.registry import Decoder, decoders

DRAWN = "messages to decoders, drawn"
MOST_SECONDS = 1.0
"""Of the processor, for one message."""
MOST_GROWTH_MIB = 96
"""Of a process that reads them, once it is warm."""
_MOST_NAMED = 20
_WARM_AFTER = 20_000
"""Messages, after which all that is kept has been loaded."""


def run(
    seed: int,
    messages: int,
    until: float = float("inf"),
    workers: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> Result:
    """Let decoders read so many messages, or until this time of the monotonic clock, in processes of their own."""
    total = Result(Counter())
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        shares = [messages // workers] * workers
        reading = [pool.submit(drawn, f"{seed}/{number}", share, until) for number, share in enumerate(shares)]
        for each in as_completed(reading):
            total += each.result()
            tell(f"{total.told[DRAWN]:,} messages read")
    return total


def drawn(seed: str, messages: int, until: float = float("inf"), of: Sequence[Decoder] | None = None) -> Result:
    """Let decoders read messages: seeds with values changed, seeds with bytes changed, and any bytes."""
    rng, result = Random(seed), Result(Counter())
    every = [each for each in of or decoders() for _ in range(each.share)]
    slowest = warm_mib = 0.0
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        for number in range(messages):
            if number == min(messages // 3, _WARM_AFTER):
                warm_mib = rss_mib()
            decoder = rng.choice(every)
            given = _message(decoder, rng)
            began = time.thread_time()
            wrong = _read(decoder, given, result.told)
            took = time.thread_time() - began
            slowest = max(slowest, took)
            if took > MOST_SECONDS:
                wrong = f"took {took:.1f} s"
            if wrong and len(result.violations) < _MOST_NAMED:
                result.violations.append(f"{decoder.name}: {wrong} for {given[:500]!r}")
            if time.monotonic() > until:
                break
    finally:
        logging.disable(disabled)
    growth_mib = max(0.0, rss_mib() - warm_mib)
    if growth_mib > MOST_GROWTH_MIB:
        result.violations.append(f"decoders grew from {warm_mib:.0f} to {rss_mib():.0f} MiB")
    result.most["decoders: most memory, MiB"] = int(rss_mib())
    result.most["decoders: growth once warm, MiB"] = int(growth_mib)
    result.most["decoders: slowest message, ms of the processor"] = int(1000 * slowest)
    return result


def _message(decoder: Decoder, rng: Random) -> bytes:
    match rng.randrange(8):
        case 0:
            return rng.randbytes(rng.choice((0, 1, 10, 100, 10_000)))
        case 1 | 2:
            return hostile.broken(rng.choice(list(decoder.raw_seeds())), rng)
        case 3 if not isinstance(seed := rng.choice(decoder.seeds), bytes):
            return hostile.grown(seed, rng, rng.choice((1, 10, 100)))
        case _:
            return hostile.changed(rng.choice(decoder.seeds), rng)


def _read(decoder: Decoder, given: bytes, told: Counter[str]) -> str:
    """Return what went wrong, if anything did."""
    told[DRAWN] += 1
    try:
        decoder.read(given)
    except decoder.errors:
        told["refused by decoders"] += 1
    except Exception as error:  # noqa: BLE001 - which is a violation
        return repr(error)[:500]
    return ""


def rss_mib(pid: int | None = None) -> float:
    """Return the memory of a process, by default of this one."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
