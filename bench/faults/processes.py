"""The campaign over real processes: two servers beside a real control plane, waves of pods that come and go, and faults
one after the other. In cycles: a wave, faults, then none until all has settled, which is judged."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from bench.faults.cluster import AWAY, Watcher
from bench.faults.episode import Result
from bench.faults.servers import Servers
from bench.faults.waves import PROVISIONERS, Waves
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour, behaviour_from_json
from cagrpc.errors import Unavailable
from tests.support.controlplane.cluster import Cluster
from tests.support.controlplane.deployed import clear_journal, install_crds, remove_crds
from tests.support.controlplane.provisioning import FILE

_TICK_SECONDS = 0.5
_APPLY_SECONDS = 4.0
_BETWEEN_FAULTS_SECONDS = (1.0, 6.0)
SETTLES_WITHIN_SECONDS = 420.0
LOGS = Path("build/campaign")
"""Where logs stay of a campaign that found something: of its servers, of the control plane, and of what it did."""
_CALM = Behaviour(boot_seconds=2.0, boot_jitter_seconds=2.0, delete_seconds=0.5)
_BAD: Sequence[Mapping[str, Any]] = (
    {"failure_probability": 0.2},
    {"late_shortage": 2},
    {"stock": 1},
    {"lost_answer_probability": 0.5},
    {"list_delay": "8s"},
    {"id_after": "5s"},
    {"boot": "20s"},
    {"vanish_probability": 0.1, "vanish_after": "6s"},
    {"refusal": "quota"},
)
_GROUPS = ("web", "a", "b", "c")
"""Not that of requests, which wait a minute and more between two tries."""


@dataclass(frozen=True, slots=True)
class Pace:
    waves: int = 3
    """That come in a cycle."""
    faults_seconds: float = 40.0
    restores: bool = True


class ProcessCampaign:
    """In a cluster that nobody else uses."""

    def __init__(self, cluster: Cluster, directory: Path, seed: int, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._rng = Random(seed)
        self._cluster = cluster
        self._plane = cluster.plane
        self._directory = directory
        self._file = directory / "cloud.sqlite"
        self._cloud = SimulatedBackend(self._file)
        self.told: Counter[str] = Counter()
        self.found: list[str] = []
        self.most_settled_seconds = 0.0
        install_crds(cluster.admin)
        install_crds(cluster.admin, FILE)
        self._servers = Servers(
            cluster,
            directory,
            provisioners=PROVISIONERS,
            drive="plan",
            planner={"idle": "1s", "window": "30s", "shortage": "4s", "budget": "2s"},
            increment_deadline_seconds=120.0,
            backend={"file": str(self._file), "simulated": {"*": {"boot": "2s", "delete": "0.5s"}}},
        )
        self._waves = Waves(cluster, self._rng)
        self._watcher = Watcher(cluster, self._waves, self._file, self.told)
        self._later: list[tuple[float, Callable[[], object]]] = []
        """What ends a fault, and when."""
        self._backup: Path | None = None
        self._restored = False
        self._behaviours: dict[str, Behaviour] = {"*": _CALM}
        self._applies_at = 0.0

    def run(self, cycles: int, until: float = float("inf"), tell: Callable[[str], None] = lambda _: None) -> Result:
        """Go through so many cycles, or until this time of the monotonic clock; then let everything go."""
        try:
            self._waves.prepare()
            self._settle()  # with nothing to do: they start
            while self.told["cycles"] < cycles and time.monotonic() < until and not self.found:
                self._torment(come=self._pace.waves, go=0.0)
                self._settle()
                self._torment(come=0, go=0.7)
                self._settle(goes=True)
                self.told["cycles"] += 1
                tell(f"{self.told['cycles']} cycles, {len(self._watcher.increments)} increments")
            if not self.found:
                self._turn(0, go=1.0)
                self._settle(goes=True)
            self.found += [each for each in self._servers.faults() if each not in self.found]
        finally:
            if self.found:
                self._keep_logs()
            self.close()
        self.told["increments"] = len(self._watcher.increments)
        self.told["instances made"] = len(self._watcher.books())
        self.told["ProvisioningRequests that lost a node, and were made anew"] = self._waves.made_anew
        self.told["processes started"] = sum(each.started for each in self._servers)
        most = Counter({"longest time to settle, s": int(self.most_settled_seconds)})
        most["most memory of a process, MiB"] = int(max(each.most_rss_mib for each in self._servers))
        return Result(self.told, self.found, most=most)

    def _status(self) -> str:
        """Return what the leader says of itself."""
        leader = self._servers.leader
        if leader is None:
            return "nobody leads"
        try:
            return json.dumps(leader.get("/status"))
        except OSError as error:
            return f"the leader does not say how it is: {error}"

    def _keep_logs(self) -> None:
        """Whoever reads what was found asks next what they said."""
        LOGS.mkdir(parents=True, exist_ok=True)
        for each in (*self._directory.glob("*.log"), *self._plane.directory.glob("*.log")):
            shutil.copy(each, LOGS)

    def close(self) -> None:
        """Leave the control plane as it was."""
        with suppress(ProcessLookupError):
            self._plane.resume_apiserver()
        self._servers.close()
        self._cloud.close()
        clear_journal(self._cluster.admin)
        remove_crds(self._cluster.admin, FILE)

    # ---- what goes wrong

    def _turn(self, come: int, *, go: float) -> None:
        self._waves.turn(come, go=go)
        self._write(f"wanted: {', '.join(f'{each.name} ({each.pods} pods)' for each in self._waves.wanted.values())}")
        self._applies_at = 0.0

    def _torment(self, come: int, *, go: float) -> None:
        """Let waves come or go, with one fault after the other, of which some overlap."""
        if self.found:
            return
        self._turn(come, go=go)
        rng, began = self._rng, time.monotonic()
        next_at = began
        restores_at = began + rng.uniform(0.3, 0.9) * self._pace.faults_seconds
        while time.monotonic() < began + self._pace.faults_seconds:
            if time.monotonic() >= next_at:
                self._fault()
                next_at = time.monotonic() + rng.uniform(*_BETWEEN_FAULTS_SECONDS)
            if self._pace.restores and time.monotonic() >= restores_at:
                restores_at = float("inf")
                self._use_backups()
            self._tick()
        for _, end in self._later:
            end()
        self._later.clear()

    def _fault(self) -> None:
        faults = (
            self._kill,
            self._kill,
            self._pause,
            self._end,
            self._slow_wire,
            self._dead_wire,
            self._cut_wires,
            self._slow_apiserver,
            self._restart_apiserver,
            self._behave,
            self._behave,
            self._behave,
            self._set_clock,
        )
        self._rng.choice(faults)()

    def _one(self) -> Any:
        """Return the leader twice as often as any other."""
        leader = self._servers.leader
        return leader if leader is not None and self._rng.random() < 0.5 else self._rng.choice(self._servers)

    def _kill(self) -> None:
        one = self._one()
        one.kill()
        self._note("processes killed", one.name)

    def _end(self) -> None:
        one = self._one()
        one.end()
        self._note("processes told to end", one.name)

    def _pause(self) -> None:
        one = self._one()
        one.pause()
        self._after((2.0, 25.0), one.resume)
        self._note("processes paused", one.name)

    def _slow_wire(self) -> None:
        one = self._one()
        one.wire.delay_seconds = self._rng.choice((0.02, 0.1, 0.5))
        self._after((5.0, 15.0), one.wire.heal)
        self._note("connections slowed down", f"{one.name} by {one.wire.delay_seconds:g} s")

    def _dead_wire(self) -> None:
        one = self._one()
        one.wire.die()
        self._after((3.0, 20.0), one.wire.heal)
        self._note("connections dead for a while", one.name)

    def _cut_wires(self) -> None:
        for each in self._servers:
            each.wire.cut()
        self._note("times that all connections were cut")

    def _slow_apiserver(self) -> None:
        self._plane.pause_apiserver()
        time.sleep(self._rng.uniform(1.0, 8.0))
        self._plane.resume_apiserver()
        self._note("times that the API server hung")

    def _restart_apiserver(self) -> None:
        if self._rng.random() < 0.5:
            self._plane.restart_apiserver()
            self._note("times that the API server restarted")
        else:
            self._plane.forget()
            self._note("times that the API server forgot the past")

    def _behave(self) -> None:
        key = self._rng.choice(_GROUPS)
        bad = {"boot": "2s", "delete": "0.5s", **self._rng.choice(_BAD)}
        self._behaviours[key] = behaviour_from_json(bad, key)
        self._note("times that the cloud behaved badly", f"{key}: {bad}")

    def _set_clock(self) -> None:
        one, seconds = self._one(), self._rng.choice((-120.0, -20.0, -1.0, 1.0, 20.0, 120.0))
        one.set_clock(seconds)
        self._note("times that a clock was set", f"{one.name} by {seconds:+g} s")

    def _use_backups(self) -> None:
        if self._backup is None:
            self._backup = self._directory / f"backup-{self.told['backups']}"
            self._note("backups")
            self._plane.backup(self._backup)
        elif self._rng.random() < 0.5:
            higher = self._rng.random() < 0.5
            self._plane.restore_backup(self._backup, higher_versions=higher)
            self._note(f"older backups restored, with {'higher' if higher else 'the same'} versions")
            shutil.rmtree(self._backup)
            self._backup, self._restored = None, True

    def _note(self, what: str, which: str = "") -> None:
        """Count what was done, and note when, for whoever reads the logs of the servers."""
        self.told[what] += 1
        self._write(f"{what}: {which}" if which else what)

    def _write(self, text: str) -> None:
        with (self._directory / "campaign.log").open("a") as notes:
            notes.write(f"{datetime.now(UTC).isoformat()} {text}\n")

    def _after(self, seconds: tuple[float, float], do: Callable[[], object]) -> None:
        self._later.append((time.monotonic() + self._rng.uniform(*seconds), do))

    # ---- what goes on all the time

    def _tick(self) -> None:
        now = time.monotonic()
        for each in [each for each in self._later if each[0] <= now]:
            self._later.remove(each)
            each[1]()
        self._servers.keep()
        with suppress(Unavailable):  # a process that is paused in the middle of a write keeps others from it
            self._cloud.set_behaviours({**dict.fromkeys(self._cloud.behaviours()), **self._behaviours})
        if now >= self._applies_at:
            self._applies_at = now + (_APPLY_SECONDS if self._waves.apply() else 0.0)
        seen = self._watcher.look()
        leader = self._servers.leader
        if seen is not None and leader is not None:
            self._watcher.scale_down(seen, leader)
        time.sleep(max(0.0, now + _TICK_SECONDS - time.monotonic()))

    # ---- quiet points

    def _settle(self, *, goes: bool = False) -> None:
        """Wait until all is as it should be, and judge. Where pods go, others find room that nobody knew of, and nodes
        that come for them may be for nobody."""
        if self.found:
            return
        self._servers.heal()
        self._behaviours = {"*": _CALM}
        self._write("all is well again")
        began = time.monotonic()
        why = "nobody answers"
        while time.monotonic() < began + SETTLES_WITHIN_SECONDS:
            self._tick()
            seen, leader = self._watcher.look(), self._servers.leader
            if seen is None or leader is None:
                why = "no server leads" if seen is not None else "the API server does not answer"
                continue
            why = self._watcher.unsettled(seen)
            if not why and self._waves.apply() and not self._watcher.unsettled(self._watcher.look() or seen):
                break
        else:
            self.found.append(f"cycle {self.told['cycles']}: it does not settle: {why}; {self._status()}")
            return
        self._write("all has settled")
        self.most_settled_seconds = max(self.most_settled_seconds, time.monotonic() - began)
        with suppress(*AWAY):
            self.found += [
                f"cycle {self.told['cycles']}: {each}"
                for each in self._watcher.judge(seen, leader, room_came=goes or self._restored)
            ]
        self._restored = False
        if self._backup is None:
            self._waves.forget_unwanted()
