"""The campaign over the fleet, in one process and with clocks that are set by hand: episodes one after the other, with
the journal in a file and in a cluster in turns."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from bench.faults.disk import Disk, small_disk
from bench.faults.episode import Episode, Result, seeded
from bench.faults.stores import FileStore, Store, cluster_store
from tests.support.fleet import FakeClock

PER_EPISODE = 100
"""Increments of one episode: a new cloud and a new journal, so that no run is at the mercy of one draw."""


def run(
    seed: int, increments: int, until: float = float("inf"), tell: Callable[[str], None] = lambda _: None
) -> Result:
    """Play episodes until so many increments were journalled, or until this time of the monotonic clock."""
    total, episodes = Result(Counter()), 0
    with tempfile.TemporaryDirectory() as directory, small_disk(Path(directory)) as disk:
        while (done := total.told["increments"]) < increments and time.monotonic() < until:
            goal, place = min(PER_EPISODE, increments - done), Path(directory) / f"{episodes}"
            total += play(f"{seed}/{episodes}", goal, place, disk)
            episodes += 1
            tell(f"{total.told['increments']:,} increments in {episodes} episodes")
    total.told["episodes"] = episodes
    return total


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
    told["increments"] = episode.callers.journalled
    result.violations[:] = [f"episode {seed}: {each}" for each in result.violations]
    return result
