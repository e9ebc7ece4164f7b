"""Coverage-guided fuzzing of every decoder, with an eye on time and memory: `make fuzz`, or

    FUZZ_SECONDS=600 python -m tests.api.decoders.fuzz

and with FUZZ_RUNS=1000000 until so many inputs were read. FUZZ_SEED is of the fuzzer's own choices.

Fails on any exception but those that a decoder may raise, on inputs that take long, and where memory grows. What it
found is in build/fuzz: the inputs that reach different code, from which the next run goes on, and the one that failed.
`python -m tests.api.decoders.fuzz FILE` reads one again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import atheris

with atheris.instrument_imports(include=["cagrpc", "solver.model.quantities", "solver.model.eligibility"]):
    from tests.api.decoders import hostile
    from tests.api.decoders.registry import Decoder, decoders

T = TypeVar("T")

_DIRECTORY = Path("build/fuzz")
_LONGEST_BYTES = 32_768
_MOST_SECONDS = 2.0
"""Of the processor, for one input; coverage makes it several times slower."""
_HANGS_AFTER_SECONDS = 20
_MOST_RSS_MB, _MOST_GROWTH_MB = 2_048, 200
"""libFuzzer's own memory among it."""
_WARM_SHARE = 0.3
"""Of the time, after which caches are full, and memory should grow no more."""
_LOOK_EVERY = 2_000
_RAW, _BROKEN, _HOSTILE = range(3)
"""What an input is: bytes as they are, a seed with bytes changed, a seed with values changed."""


class _Choices:
    """A `hostile.Chooser`."""

    def __init__(self, data: atheris.FuzzedDataProvider) -> None:
        self._data = data

    def choice(self, of: Sequence[T]) -> T:
        return of[self.randint(0, len(of) - 1)]

    def randint(self, least: int, most: int) -> int:
        return int(self._data.ConsumeIntInRange(least, most))


class _Memory:
    """Of this process, compared with what it was once everything had been seen."""

    def __init__(self, seconds: float, runs: int) -> None:
        """Everything has been seen after a share of the time, or of the inputs where these are limited."""
        self._warm_at = 0.0 if runs else time.monotonic() + _WARM_SHARE * seconds
        self._warm_after = int(_WARM_SHARE * runs)
        self._before: float | None = None
        self._looks = 0

    def look(self) -> None:
        self._looks += 1
        if self._looks % _LOOK_EVERY or self._looks < self._warm_after or time.monotonic() < self._warm_at:
            return
        now = _rss_mb()
        if self._before is None:
            self._before = now
            print(f"memory: {now:.0f} MB once it was warm", file=sys.stderr, flush=True)
        elif now - self._before > _MOST_GROWTH_MB:
            raise MemoryError(f"it grew from {self._before:.0f} to {now:.0f} MB in {self._looks} inputs")


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _chosen(decoder: Decoder, how: int, data: Any) -> bytes:
    """Numbers are taken from the end of the data, so raw bytes are what comes first."""
    if how == _RAW:
        return bytes(data.ConsumeBytes(_LONGEST_BYTES))
    chooser = _Choices(data)
    if how == _BROKEN:
        return hostile.broken(chooser.choice(list(decoder.raw_seeds())), chooser)
    return hostile.changed(chooser.choice(decoder.seeds), chooser)


def main() -> None:
    runs = int(os.environ.get("FUZZ_RUNS", "0"))
    seconds = int(os.environ.get("FUZZ_SECONDS", "0" if runs else "600"))
    logging.disable(logging.CRITICAL)
    every = [each for each in decoders() for _ in range(each.share)]
    memory = _Memory(seconds, runs)

    def read(data: bytes) -> None:
        provider = atheris.FuzzedDataProvider(data)
        decoder = every[provider.ConsumeIntInRange(0, len(every) - 1)]
        given = _chosen(decoder, provider.ConsumeIntInRange(_RAW, _HOSTILE), provider)
        began = time.thread_time()
        try:
            decoder.read(given)
        except decoder.errors:
            pass
        except Exception as error:
            error.add_note(f"{decoder.name}: {given[:2_000]!r}")
            raise
        took = time.thread_time() - began
        if took > _MOST_SECONDS:
            raise TimeoutError(f"{decoder.name} took {took:.1f} s of the processor for {given[:2_000]!r}")
        memory.look()

    corpus = _DIRECTORY / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, decoder in enumerate(every):
        if number and every[number - 1] is decoder:
            continue
        for seed in decoder.raw_seeds():
            for how in (_RAW, _BROKEN, _HOSTILE):
                data = seed[:_LONGEST_BYTES] + bytes([how]) + number.to_bytes(2, "little")
                (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    options = {
        "max_total_time": seconds,
        "runs": runs or -1,
        "seed": int(os.environ.get("FUZZ_SEED", "0")),
        "max_len": _LONGEST_BYTES,
        "timeout": _HANGS_AFTER_SECONDS,
        "rss_limit_mb": _MOST_RSS_MB,
        "artifact_prefix": f"{_DIRECTORY}/",
        "print_final_stats": 1,
    }
    arguments = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *arguments, *(sys.argv[1:] or [str(corpus)])], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
