"""The campaign at the listeners: malformed messages to whatever reads what others write. To decoders they are drawn
(`decoding`), and coverage-guided in a child (`tests.api.decoders.fuzz`); over real sockets they go to a real
server, of which memory and open files are watched while somebody else is to be answered as ever."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import Random

import grpc

from bench.faults import decoding
from bench.faults.decoding import DRAWN, MOST_GROWTH_MIB, rss_mib
from bench.faults.episode import Result
from bench.faults.messages import Hostile, calls, connections, pages
from cagrpc.services.grpc import native
from tests.support.serving import SMALL, Serving, configuration, serve, started_process

MOST_MORE_FILES = 40
_SHARES = 3
_USUAL_SECONDS = 30.0
"""Within which others are answered, also while somebody sends as much as he can, on a machine that others use."""
FRONTS = ("python", "native")
FUZZED = "messages to decoders, coverage-guided"
_FRONT = {"python": "tests.support.python_front", "native": "cagrpc.cli"}
"""The module by which `cagrpc` is started with each."""


def lacking() -> str:
    """Return what this machine lacks for this part, and what would help; empty if it has everything."""
    if find_spec("atheris") is None:
        return "decoders are fuzzed by atheris, which `make fuzz` installs"
    if native.load() is None:
        return "both fronts are tormented, and the native one is not built: `make native`"
    return ""


@dataclass(frozen=True, slots=True)
class Length:
    """Of this part of a campaign."""

    messages: int
    """To decoders, drawn."""
    fuzz_seconds: int
    """Of messages to decoders, coverage-guided."""
    calls: int
    """Over sockets, to a server with each front."""
    until: float = float("inf")
    """When to stop drawing messages, whatever is left: a time of the monotonic clock."""
    workers: int = 1
    """Processes that read drawn messages."""


def run(seed: int, length: Length, tell: Callable[[str], None] = lambda _: None) -> Result:
    """Send malformed messages to decoders and to servers."""
    result = Result(Counter())
    if length.messages:
        result += decoding.run(seed, length.messages, length.until, length.workers, tell)
    if length.fuzz_seconds:
        result += fuzzed(seed, length.fuzz_seconds)
        tell(f"{result.told[FUZZED]:,} messages to decoders, coverage-guided")
    for front in FRONTS if length.calls else ():
        result += over_sockets(front, seed, length.calls)
        tell(f"{length.calls:,} calls, {front} front")
    sent = (DRAWN, FUZZED, "answered with", "connections")
    result.told["messages in all"] = sum(n for what, n in result.told.items() if any(each in what for each in sent))
    return result


def fuzzed(seed: int, seconds: int) -> Result:
    """Let all decoders read messages, coverage-guided, in a process of its own."""
    variables = {"PYTHONPATH": Path(__file__).parents[2], "FUZZ_SECONDS": seconds, "FUZZ_SEED": seed}
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, "-m", "tests.api.decoders.fuzz"],
            cwd=directory,
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            capture_output=True,
            text=True,
            check=False,
        )
    return told_by_fuzzer(done.stderr, done.returncode)


def told_by_fuzzer(words: str, code: int) -> Result:
    """Read what it says in the end."""
    said = {name: int(value) for name, value in re.findall(r"stat::(\w+): +(\d+)", words)}
    told = Counter({FUZZED: said.get("number_of_executed_units", 0)})
    told["inputs that reached different code"] = said.get("new_units_added", 0)
    most = Counter({"fuzzer: most memory, MiB": said.get("peak_rss_mb", 0)})
    return Result(told, [f"the fuzzer failed: {words[-3_000:]}"] if code else [], most=most)


def over_sockets(front: str, seed: int, calls_each: int) -> Result:
    """Send messages to the listeners of one server: calls, connections that are none, and requests for pages."""
    result, hostile = Result(Counter()), Hostile(Random(f"{seed}/{front}"))
    with _server(front) as serving:
        watch = Watch(serving)
        for share in range(_SHARES):
            count = calls_each // _SHARES
            answers = calls(serving, hostile, count)
            answers += connections(serving, hostile, count // 20)
            answers += pages(serving, hostile, count // 10)
            result.told.update({f"{front}: {what}": number for what, number in answers.items()})
            if share == 0:
                watch.begin()
            if serving.process.poll() is not None:
                break
            watch.ask_as_usual()
        result.violations += [f"{front}: {what}" for what in (*hostile.wrong, *watch.end())]
    result.most[f"{front}: MiB after a third"] = int(watch.first_mib)
    result.most[f"{front}: MiB in the end"] = int(watch.last_mib)
    result.most[f"{front}: slowest usual answer, ms"] = int(1000 * watch.slowest_seconds)
    return result


@contextmanager
def _server(front: str) -> Iterator[Serving]:
    with tempfile.TemporaryDirectory() as directory:
        behaviours = {"*": {"stock": 50}}
        group = {**SMALL, "max_size": 60}
        path = configuration(Path(directory) / "cagrpc.yaml", [{"name": "one", "node_groups": [group]}], behaviours)
        serving = serve(Path(directory) / "state", "--config", path, program=[_FRONT[front]], start=started_process)
        try:
            yield serving
        finally:
            serving.process.kill()
            serving.process.wait()


@dataclass
class Watch:
    """What a server needs, and whether it answers those who ask as they should."""

    serving: Serving
    first_mib: float = 0.0
    first_files: int = 0
    last_mib: float = 0.0
    slowest_seconds: float = 0.0
    unanswered: list[str] = field(default_factory=list)

    def begin(self) -> None:
        self.first_mib, self.first_files = rss_mib(self.serving.process.pid), self._files()

    def ask_as_usual(self) -> None:
        began = time.monotonic()
        while True:
            try:
                with self.serving.provider() as provider:
                    provider.node_groups()
                self.serving.get("/healthz")
            except (grpc.RpcError, OSError) as error:
                if time.monotonic() > began + _USUAL_SECONDS:
                    self.unanswered.append(f"somebody else is not answered: {error}")
                    break
            else:
                break
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)

    def end(self) -> Iterator[str]:
        """Yield what must not be."""
        yield from self.unanswered
        if self.serving.process.poll() is not None:
            yield f"the server has ended: {self.serving.log()[-2_000:]}"
            return
        self.last_mib = rss_mib(self.serving.process.pid)
        if self.last_mib > self.first_mib + MOST_GROWTH_MIB:
            yield f"it grew from {self.first_mib:.0f} to {self.last_mib:.0f} MiB"
        give_up = time.monotonic() + 30.0
        while (files := self._files()) > self.first_files + MOST_MORE_FILES and time.monotonic() < give_up:
            time.sleep(0.2)
        if files > self.first_files + MOST_MORE_FILES:
            yield f"it had {self.first_files} open files, and has {files}"
        with self.serving.provider() as provider:
            try:
                provider.wait_for_running("small", provider.target("small"))
            except AssertionError as states:
                yield f"a target of {provider.target('small')}, and these instances: {states}"
        faults = [line for line in self.serving.log().splitlines() if "Traceback" in line or "unexpected" in line]
        yield from faults[:20]

    def _files(self) -> int:
        return len(list(Path(f"/proc/{self.serving.process.pid}/fd").iterdir()))
