"""The planning controller with everything that it works on: a real fleet over a real simulated backend, the cluster of
`fake_cluster`, and the placement controller, which nominates pods and releases nodes. Tests move the clock.

    harness = PlannerHarness(groups=[group("a", cpu=4000)])
    harness.add(3, cpu=2000)
    harness.run(60)
    assert not harness.pending()
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cagrpc import errors
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.node_info import Reservations
from cagrpc.cluster.state import ClusterState, PodRef
from cagrpc.controllers.events import Note
from cagrpc.controllers.placement.controller import PlacementController
from cagrpc.controllers.placement.places import Places
from cagrpc.controllers.placement.release import ReleaseController
from cagrpc.controllers.planning import PlanningController
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.controllers.slack.carriers.carrier import Carrying, Virtual
from cagrpc.controllers.slack.controller import SlackController
from cagrpc.controllers.slack.model import SlackSettings, SlackState
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.journal import Journal
from cagrpc.fleet.model import IncrementStatus, Phase
from cagrpc.runtime.runner import Steps
from solver.model import Budget, Limit, NodeGroup, PodSpec
from solver.slack.model import Placement
from tests.support.controllers.fake_cluster import ClusterApi, FakeCluster, SimPod, UncountedReads
from tests.support.fleet import FakeClock, MemoryJournal, run_inline

BOOT_SECONDS = 20.0


@dataclass
class MemorySlackRecord:
    """The slack object, kept in memory."""

    state: SlackState = field(default_factory=lambda: SlackState(0.0))

    def placements(self) -> Placement:
        return self.state.placement

    def write(self, state: SlackState) -> None:
        self.state = state


class PlannerHarness:
    """The controller and what it works on. `restart` starts a new process over the journal, backend and cluster."""

    def __init__(
        self,
        groups: Sequence[NodeGroup],
        limits: Sequence[Limit] = (),
        *,
        settings: PlannerSettings | None = None,
        daemon_sets: Sequence[PodSpec] = (),
        slack: SlackSettings | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.directory = tempfile.TemporaryDirectory()
        self.backend = SimulatedBackend(Path(self.directory.name) / "simulated.sqlite", clock=self.clock)
        self.backend.set_behaviour("*", Behaviour(boot_seconds=BOOT_SECONDS))
        self.groups, self.limits = groups, limits
        self.cluster = self._cluster({each.id: each for each in groups})
        self.cluster.daemon_sets = tuple(daemon_sets)
        self.settings = settings or PlannerSettings()
        self.slack_settings = slack
        self.slack_record = MemorySlackRecord()
        self.carrier: Carrying = Virtual()
        self.journal: Journal = MemoryJournal()
        self.notes: list[Note] = []
        self.turn: Any = threading.Lock()
        self.reserved: Reservations = {}
        """Room reserved for ProvisioningRequests, by node."""
        self.releases = True
        """Whether the release controller runs."""
        self.made = 0
        self._start()

    def _cluster(self, groups: dict[str, NodeGroup]) -> FakeCluster:
        return FakeCluster(self.clock, self.backend, groups)

    def _start(self) -> None:
        self.fleet = Fleet(
            self.groups,
            self.limits,
            self.backend,
            self.journal,
            submit=run_inline,
            clock=self.clock,
            nodes=self.cluster,
        )
        self.slack = (
            None
            if self.slack_settings is None
            else SlackController(
                self.cluster,
                self.fleet,
                self.slack_settings,
                self.carrier,
                self.slack_record,
                now=self.clock,
                clock=self.clock,
                reservations=self.reservations,
            )
        )
        self.places = Places()
        self.placement = self._placement()
        client: Any = self.cluster_api()
        self.release = ReleaseController(
            client,
            self.fleet,
            self.cluster,
            self.placement,
            self.places,
            to_hold=self.instances_to_hold,
            clock=self.clock,
        )
        self.loop = PlanningController(
            self.fleet,
            self.cluster,
            self.settings,
            record=self.notes.append,
            clock=self.clock,
            now=self.clock,
            budget=Budget(deterministic_seconds=1.0),
            reservations=self.reservations,
            turn=self.turn,
            slack=self.slack_state,
            places=self.places,
            lost=lambda: self.placement.news,
        )
        self.planning = Steps(self.loop, self.clock)

    def instances_to_hold(self) -> frozenset[str]:
        """Return instances that nobody is to release yet."""
        return frozenset()

    def cluster_api(self) -> Any:
        return ClusterApi(self.cluster)

    def _placement(self) -> PlacementController:
        cluster: Any = UncountedReads(self.cluster)
        return PlacementController(
            self.cluster_api(), self.fleet, cluster, self.places, reservations=self.reservations, clock=self.clock
        )

    def slack_state(self) -> SlackState:
        return SlackState(0.0) if self.slack is None else self.slack.state

    def reservations(self, state: ClusterState) -> Reservations:
        """Return the reservations on nodes that exist."""
        return {
            each.node.name: self.reserved[each.node.name] for each in state.nodes if each.node.name in self.reserved
        }

    def restart(self) -> None:
        self.fleet.close()
        assert isinstance(self.journal, MemoryJournal)
        self.journal = MemoryJournal(self.journal.shelf)
        self._start()

    def close(self) -> None:
        self.fleet.close()
        self.backend.close()
        self.directory.cleanup()

    def add(
        self, count: int = 1, *, cpu: int = 1000, priority: int = 0, gang: str | None = None, **more: Any
    ) -> list[str]:
        """Create pods, and return their UIDs."""
        spec = PodSpec((("cpu", cpu),), **more)
        return [self._make(spec, priority, gang) for _ in range(count)]

    def _make(self, spec: PodSpec, priority: int, gang: str | None, workload: str = "") -> str:
        self.made += 1
        ref = PodRef(f"uid-{self.made}", "ns", f"pod-{self.made}", int(self.clock()), workload)
        pod = SimPod(ref, spec, self.clock(), priority, gang, was_expected=bool(workload))
        self.cluster.pods[ref.uid] = pod
        return ref.uid

    def want(self, workload: str, count: int, *, cpu: int = 1000) -> None:
        """Scale a workload up by `count` pods, none of which it has created yet."""
        self.cluster.to_come[workload] = PodSpec((("cpu", cpu),)), count
        self.cluster.wanted_at = self.clock()

    def create(self, workload: str, count: int = 1) -> list[str]:
        """Let a workload create pods that it wants, and return their UIDs."""
        spec, left = self.cluster.to_come[workload]
        self.cluster.to_come[workload] = spec, left - count
        return [self._make(spec, 0, None, workload) for _ in range(count)]

    def replace(self, pod: SimPod) -> str:
        """Replace a pod as its workload would, and return the UID of the new one."""
        self.cluster.pods.pop(pod.ref.uid, None)
        return self._make(pod.spec, pod.priority, pod.gang)

    def step(self) -> None:
        """Run every controller and the scheduler once."""
        with suppress(errors.Unavailable):
            self.fleet.reconcile()
        self.place()
        for pod in self.cluster.drop_lost_pods():  # their workloads replace them
            self.replace(pod)
        if self.cluster.scheduling:
            self.cluster.schedule()
        if self.slack is not None:
            self.slack.step()
        self.planning.take()

    def place(self) -> None:
        """Nominate pods and release nodes."""
        with suppress(errors.Unavailable):
            self.placement.step()
            self.placement.queue.run_due()
            if self.releases:
                self.release.step()
                self.release.queue.run_due()
                self.release.step()

    def run(self, seconds: float, step: float = 1.0) -> None:
        """Step until `seconds` have passed."""
        until = self.clock() + seconds
        while self.clock() < until:
            self.step()
            self.clock.advance(min(step, until - self.clock()))
        self.step()

    def pending(self) -> list[str]:
        return [pod.ref.uid for pod in self.cluster.unbound()]

    def increments(self, *phases: Phase) -> list[IncrementStatus]:
        return [each for each in self.fleet.snapshot.increments if not phases or each.phase in phases]

    def targets(self) -> dict[str, int]:
        return {name: each.target_size for name, each in self.fleet.snapshot.groups.items() if each.target_size}


Make = Callable[..., PlannerHarness]
"""`make(*groups, **more)`: the fixture of tests/controllers/planning, which closes what it made."""
