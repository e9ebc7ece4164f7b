"""What is small is planned at once; what is not waits for compiled kernels, before its budget begins, where it may."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from solver import Budget, Problem, consolidate, rank, solve
from solver.compiled import Interpreted, Kernel, Threads, interpreted, not_waiting
from solver.model.budget import Interruption, RunningBudget
from solver.model.errors import NotCompiledError
from solver.planning import compiling, warm_up
from tests.support.fleet import FakeClock
from tests.support.solver.kernels import kernels, not_loaded
from tests.support.solver.problems import GPU, group, node, pods, spec
from tests.support.solver.standing import Draw, random_cluster

BUDGET = Budget(deterministic_seconds=0.3)
SMALL = Problem((pods("web", 7, spec(900)),), (group("small", 2000, 0.1), group("large", 4000, 0.19)))
LARGE = Problem(
    tuple(pods(f"p{i}", 50 + i, spec(700 + 90 * i, 1 + i % 5, gpu=i % 2)) for i in range(20)),
    tuple(group(f"g{size}", 1000 * size, size / 10, extra={GPU: size % 3}) for size in range(4, 16)),
    (node("n", 4000),),
)
CALLS: dict[str, Callable[[], Any]] = {
    "solver.planning.solve": lambda: solve(LARGE, BUDGET),
    "solver.consolidation.consolidate": lambda: consolidate(random_cluster(1, Draw(nodes=6)), BUDGET),
}


class Compiler:
    """Stands for the process that compiles: what this one does meanwhile is seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.kept: Path | None = None
        self._made = {kernel: kernel.compiled for kernel in kernels()}
        monkeypatch.setattr(compiling, "kept", lambda: self.kept)
        monkeypatch.setattr(compiling, "load", self.load)
        monkeypatch.setattr(warm_up, "_compiled_by_another", self.compile)
        monkeypatch.setattr(warm_up, "_here", warm_up._Process())

    def compile(self, *_: object) -> str:
        self.asked.append("compiled")
        self.kept = Path("kept")
        return ""

    def load(self, directory: Path | None) -> None:
        self.asked.append(f"loaded {directory}")
        for kernel, compiled in self._made.items():
            kernel.compiled = compiled


@pytest.fixture(name="compiler")
def _compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    stands_for = Compiler(monkeypatch)
    with not_loaded():
        yield stands_for


def plan_of(problem: Problem) -> Any:
    return replace(solve(problem, BUDGET), elapsed_seconds=0.0)


def test_what_is_small_waits_for_nothing(compiler: Compiler) -> None:
    early = plan_of(SMALL)
    assert compiler.asked == []
    warm_up.warm_up()
    assert plan_of(SMALL) == early


def test_what_is_large_waits_says_so_once_and_has_the_same_plan(
    compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    early = plan_of(LARGE)
    assert compiler.asked == ["compiled", "loaded kept"]
    assert [(each.levelname, each.message) for each in caplog.records] == [("WARNING", warm_up.COMPILING)]
    assert plan_of(LARGE) == early
    assert compiler.asked == ["compiled", "loaded kept"]


@pytest.mark.parametrize("module", CALLS)
def test_the_budget_begins_once_all_is_compiled(
    module: str, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(budget: Budget, **others: Any) -> RunningBudget:
        compiler.asked.append("budget")
        return RunningBudget(budget, **others)

    monkeypatch.setattr(f"{module}.RunningBudget", begin)
    monkeypatch.setattr(warm_up, "_MOST_STEPS", 0)  # nothing is small
    CALLS[module]()
    assert compiler.asked == ["budget", "compiled", "loaded kept", "budget"]


def test_who_cannot_wait_is_told_at_once_and_has_it_compiled(
    compiler: Compiler, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "_MOST_STEPS", 500_000)  # or each of the calls would take most of a second
    goes_on, compile_ = threading.Event(), compiler.compile
    monkeypatch.setattr(warm_up, "_compiled_by_another", lambda *each: (goes_on.wait(60), compile_(*each))[1])
    caplog.set_level(logging.INFO)
    with not_waiting():
        for _ in range(3):
            with pytest.raises(NotCompiledError, match="being compiled"):
                solve(LARGE, BUDGET)
        assert solve(SMALL, BUDGET).certificate.cost_usd_per_hour > 0
    with pytest.raises(NotCompiledError):
        rank(LARGE, (), Budget(10.0))
    assert warm_up.why_wait() == warm_up.COMPILING
    assert [each.message for each in caplog.records if each.levelno >= logging.INFO] == [warm_up.COMPILING]
    goes_on.set()
    thread = warm_up._here.thread
    assert thread is not None
    thread.join(60)
    assert warm_up.why_wait() == ""
    with not_waiting():
        assert solve(LARGE, BUDGET).certificate.cost_usd_per_hour > 0
    assert compiler.asked == ["compiled", "loaded kept"]


def test_many_small_problems_load_what_is_kept(compiler: Compiler) -> None:
    """Loading takes as long as interpreting them has taken."""
    compiler.kept = Path("kept")
    for _ in range(1000):
        solve(SMALL, BUDGET)
        if compiler.asked:
            break
        warm_up._here.interpreted += 500_000
    assert compiler.asked == ["loaded kept"]


def test_where_nothing_can_be_written_a_temporary_directory_is_enough(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, str]] = []

    def told_with(environment: Mapping[str, str], _: object) -> str:
        told.append(dict(environment))
        return ""

    monkeypatch.setattr(compiling, "writable", lambda: None)
    monkeypatch.setattr(warm_up, "_compiled_by_another", told_with)
    warm_up.warm_up()
    ((name, base),) = told[0].items()
    assert name == "NUMBA_CACHE_DIR"
    assert compiler.asked == [f"loaded {Path(base) / compiling.name()}"]
    assert not Path(base).exists()


def test_where_no_other_process_can_compile_this_one_does(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warm_up, "_compiled_by_another", lambda *_: "no space left on device")
    warm_up.warm_up()
    assert compiler.asked == ["loaded None"]
    assert "compiled in this process" in caplog.messages[-1]
    assert "no space left on device" in caplog.messages[-1]


def test_a_process_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho several >&2\necho no space left on device >&2\nexit 1\n")
    monkeypatch.setattr(sys, "executable", str(python))
    assert "Permission denied" in warm_up._compiled_by_another({}, Interruption())
    python.chmod(0o700)
    assert warm_up._compiled_by_another({}, Interruption()) == "no space left on device"
    python.write_text("#!/bin/sh\nkill -KILL $$\n")
    assert warm_up._compiled_by_another({}, Interruption()) == "the process that compiled ended with -9"


def test_whoever_waits_may_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no plan yet that could be printed; and the process that compiles does not go on."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    interruption = Interruption()
    interruption.interrupt()
    with pytest.raises(KeyboardInterrupt):
        warm_up._compiled_by_another({}, interruption)


def test_in_the_background_one_process_compiles_and_others_leave_it_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[Path, bool]] = []
    nice: list[int] = []
    monkeypatch.setattr(sys, "argv", ["warm_up", "--background"])
    monkeypatch.setattr(compiling, "kept", lambda: None)
    monkeypatch.setattr(compiling, "writable", lambda: tmp_path)
    monkeypatch.setattr(compiling, "load", lambda directory, keep: loaded.append((directory, keep)))
    monkeypatch.setattr(os, "nice", nice.append)
    monkeypatch.setattr(os, "setsid", lambda: None)
    with (tmp_path / "background").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        warm_up.main()
    assert loaded == []
    warm_up.main()
    assert loaded == [(tmp_path, True)]
    assert nice == [19, 19]


def test_loading_takes_what_is_kept_from_a_directory_that_it_does_not_write(tmp_path: Path) -> None:
    """So a container with a read-only file system starts compiled."""
    kept = compiling.kept()
    assert kept is not None
    compiler = compiling._Compiler(kept, keep=False)
    before = {path.name: path.stat().st_mtime_ns for path in kept.iterdir()}
    for kernel, arguments in compiling.examples():
        stats = compiler.compiled(kernel, arguments).stats
        assert sum(stats.cache_hits.values()) == 1
        assert not stats.cache_misses
    assert {path.name: path.stat().st_mtime_ns for path in kept.iterdir()} == before


def test_a_change_of_any_kernel_is_a_directory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    read, changed = Path.read_bytes, {kernel.written.__code__.co_filename for kernel in kernels()}
    assert len(changed) == 5
    assert compiling.name.__wrapped__() == compiling.name()
    names = {compiling.name()}
    for file in changed:

        def read_changed(path: Path, file: str = file) -> bytes:
            return read(path) + (b" " if str(path) == file else b"")

        monkeypatch.setattr(Path, "read_bytes", read_changed)
        names.add(compiling.name.__wrapped__())
    assert len(names) == 6


def test_time_in_interpreted_kernels_is_no_part_of_a_budget() -> None:
    clock = FakeClock()
    kernel: Kernel[[float], None] = Kernel(clock.advance, steps=lambda _: 1)
    left: list[float] = []

    def plan(budget: Budget) -> None:
        running = RunningBudget(budget)
        kernel(500.0)
        left.append(running.left_seconds())

    with not_loaded():
        warm_up.while_small(plan, Budget(10.0, clock=clock))
    assert left == [10.0]


def test_threads_count_what_they_interpret_where_whoever_starts_them_does() -> None:
    kernel: Kernel[[int], int] = Kernel(abs, steps=lambda _: 3)
    account = Interpreted(100)
    with interpreted(account), Threads(2) as threads:
        assert list(threads.map(kernel, range(4))) == [0, 1, 2, 3]
    assert account.steps == 12
    with Threads(1) as threads:
        assert threads.submit(kernel, 1).result() == 1
    assert account.steps == 12


def test_the_process_that_compiles_does_not_hold_the_terminal() -> None:
    """It is not waited for: at the lowest priority it gets no turn while others are busy."""
    process = warm_up._begun("--background")
    try:
        assert process.stdin is process.stdout is process.stderr is None
        assert os.getsid(process.pid) == process.pid
    finally:
        process.kill()
        process.wait()
