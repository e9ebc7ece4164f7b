"""What is wrong around the processes of an episode: with the cloud, the journal's store, the cluster and the clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from random import Random

from bench.faults.cloud import Cloud
from bench.faults.stores import Store
from cagrpc import errors
from cagrpc.backends.simulated.behaviour import REFUSALS, Behaviour
from cagrpc.fleet.model import InstanceState
from tests.support.fleet import FakeClock

_CALM = Behaviour(boot_seconds=5.0, boot_jitter_seconds=20.0, delete_seconds=3.0)
_CLOCK_STEPS_SECONDS = (-60_000.0, -3_600.0, -600.0, -30.0, -1.0, 1.0, 30.0, 600.0, 3_600.0, 60_000.0)
_MOST_OFF_SECONDS = 30_000.0
"""Two clocks are less than a day apart, after which finished increments are forgotten."""
_NODES_REGISTER_SECONDS = (0.0, 5.0, 60.0, 400.0)


class EpisodeNodes:
    """A cluster whose Nodes register late, are not Ready for a moment, and are not always known."""

    def __init__(self, cloud: Cloud, rng: Random, clock: FakeClock) -> None:
        self._cloud = cloud
        self._rng = rng
        self._clock = clock
        self._ready_at: dict[str, float] = {}
        self.not_ready: set[str] = set()
        self.unknown = False

    def there(self) -> frozenset[str]:
        """Return the Ready ones, whoever may know it."""
        running = [i.id for i in self._cloud.backend.list_instances().instances if i.state is InstanceState.RUNNING]
        for each in running:
            if each not in self._ready_at:
                self._ready_at[each] = self._clock() + self._rng.choice(_NODES_REGISTER_SECONDS)
        return frozenset(each for each in running if self._ready_at[each] <= self._clock()) - self.not_ready

    def ready_instances(self) -> AbstractSet[str]:
        if self.unknown:
            raise errors.Unavailable("the API server is out of reach")
        return self.there()

    def labels(self, _wanted: Mapping[str, AbstractSet[str]], /) -> Mapping[str, Mapping[str, str]]:
        return {}

    def node_names(self) -> Mapping[str, str]:
        return {each: each for each in (*self.ready_instances(), *self.not_ready)}


class Weather:
    def __init__(
        self,
        cloud: Cloud,
        store: Store,
        nodes: EpisodeNodes | None,
        clock: FakeClock,
        rng: Random,
        told: Counter[str],
    ) -> None:
        self._cloud = cloud
        self._store = store
        self._nodes = nodes
        self._clock = clock
        self._rng = rng
        self._told = told
        self._wall_offset = 0.0

    def wall(self) -> float:
        """Return the time of the wall clock of the machine that processes run on."""
        return float(self._clock()) + self._wall_offset

    def change(self) -> None:
        """Let something get worse, or all get better."""
        rng, of_cloud = self._rng, self._cloud.weather
        match rng.randrange(12):
            case 0 | 1:
                self.clear_up()
            case 2:
                of_cloud.away = True
                self._told["times that the cloud was away"] += 1
            case 3:
                of_cloud.lost = rng.choice((0.2, 1.0))
            case 4:
                of_cloud.late = rng.choice((0.2, 0.7))
            case 5 if self._nodes is not None:
                self._nodes.unknown = True
                self._told["times that the cluster was not known"] += 1
            case 5 | 6 | 7:
                self._behave_badly()
            case _:
                self._told[f"times that {self._store.trouble(rng)}"] += 1

    def clear_up(self) -> None:
        """Let all be well, but for some Nodes that are not Ready for a moment."""
        self._cloud.heal()
        self._cloud.behave("*", _CALM)
        self._store.heal()
        if self._nodes is not None:
            self._nodes.unknown = False
            self._nodes.not_ready = {each for each in sorted(self._nodes.there()) if self._rng.random() < 0.02}

    def set_clock(self) -> None:
        """Set the wall clock, also while a process runs."""
        moved = self._wall_offset + self._rng.choice(_CLOCK_STEPS_SECONDS)
        self._wall_offset = min(max(moved, -_MOST_OFF_SECONDS), _MOST_OFF_SECONDS)
        self._told["times that the clock was set"] += 1

    def _behave_badly(self) -> None:
        rng = self._rng
        bad = Behaviour(
            boot_seconds=rng.choice((0.0, 5.0, 100.0)),
            boot_jitter_seconds=rng.choice((0.0, 300.0)),
            delete_seconds=rng.choice((0.0, 3.0, 60.0)),
            stock=rng.choice((None, None, 0, 5, 10)),
            late_shortage=rng.choice((None, None, 4, 8)),
            failure_probability=rng.choice((0.0, 0.05, 0.3)),
            vanish_probability=rng.choice((0.0, 0.0, 0.05)),
            vanish_after_seconds=rng.choice((10.0, 100.0)),
            hang=rng.random() < 0.1,
            list_delay_seconds=rng.choice((0.0, 0.0, 20.0, 45.0)),
            id_after_seconds=rng.choice((0.0, 0.0, 10.0)),
            refusal=rng.choice((None, None, None, *REFUSALS)),
        )
        self._cloud.behave(rng.choice(("*", "a", "b", "c")), bad)
        self._told["times that the cloud behaved badly"] += 1
