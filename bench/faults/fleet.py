"""The campaign over the fleet, each episode in one process and with clocks that are set by hand, with
the journal in a file and in a cluster in turns."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from random import Random

from bench.faults.disk import Disk, small_disk
from bench.faults.episode import Episode, Result, seeded
from bench.faults.stores import FileStore, Store, cluster_store
from tests.support.fleet import FakeClock

PER_EPISODE = 100
"""Increments of one episode: a new cloud and a new journal, so that no run is at the mercy of one draw."""


def run(
    seed: int,
    increments: int,
    until: float = float("inf"),
    workers: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> Result:
    """Play episodes until so many increments were journalled; none is begun after this time of the monotonic clock."""
    total = Result(Counter())
    goals = [min(PER_EPISODE, increments - done) for done in range(0, increments, PER_EPISODE)]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        playing = [pool.submit(_alone, f"{seed}/{number}", goal, until) for number, goal in enumerate(goals)]
        for each in as_completed(playing):
            total += each.result()
            tell(f"{total.told['increments']:,} increments, {len(total.violations)} violations")
    total.violations.sort()
    return total


def _alone(seed: str, goal: int, until: float) -> Result:
    if time.monotonic() >= until:
        return Result(Counter())
    with tempfile.TemporaryDirectory() as directory, small_disk(Path(directory)) as disk:
        return play(seed, goal, Path(directory) / "episode", disk)


def play(seed: str, goal: int, directory: Path, disk: Disk) -> Result:
    """Play one episode. Its journal is in the cluster or in a file, as its seed says."""
    rng = Random(seed)
    clock, told = FakeClock(), Counter[str]()
    directory.mkdir()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with seeded(Random(f"{seed}/ids")), ExitStack() as stack:
            if rng.random() < 0.5:
                store: Store = stack.enter_context(cluster_store(clock, rng, told))
            else:
                place = disk.path / directory.name
                place.mkdir()
                stack.callback(shutil.rmtree, place)
                stack.callback(disk.empty)
                store = FileStore(place, disk)
            episode = Episode(directory, store, clock, rng, told)
            result = episode.run(goal)
    finally:
        logging.disable(disabled)
    told["increments"], told["episodes"] = episode.callers.journalled, 1
    result.violations[:] = [f"episode {seed}: {each}" for each in result.violations]
    return result
