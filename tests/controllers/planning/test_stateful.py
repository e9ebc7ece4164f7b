"""The planning controller under random events: pods come and go, offerings run short at once or late, machines vanish,
nodes are late, the autoscaler takes nodes away, the journal breaks, cagrpc restarts. In the end all pods run, gangs are
whole or nothing, and no pod got a second node while its first was coming or there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.fleet.model import Phase, PodKey
from solver.model import Limit, NodeGroup, PodSpec, Taint, TaintEffect, Toleration
from tests.support.examples import examples
from tests.support.fleet import group
from tests.support.outages import Outages
from tests.support.world import BOOT_SECONDS, World

GPU = "nvidia.com/gpu"
GPU_TAINT = Taint(GPU, TaintEffect.NO_SCHEDULE, "present")
TOLERATES = (Toleration(GPU, "Exists"),)
ENOUGH = 400
"""Nodes of each group: more than all pods that are drawn can need."""
LIVE = (Phase.PLANNED, Phase.CREATING, Phase.READY, Phase.DONE)


def _groups() -> list[NodeGroup]:
    gpu = group("gpu", price=1.0, max_size=ENOUGH, taints=(GPU_TAINT,))
    gpu = replace(gpu, allocatable={**gpu.allocatable, GPU: 2})
    return [group("small", cpu=4000, max_size=ENOUGH), group("large", cpu=16000, price=0.35, max_size=ENOUGH), gpu]


SHAPES = {
    "tiny": PodSpec((("cpu", 500),)),
    "middle": PodSpec((("cpu", 3000),)),
    "big": PodSpec((("cpu", 9000),)),
    "gpu": PodSpec((("cpu", 1000), (GPU, 1)), tolerations=TOLERATES),
}


class PlannerMachine(Outages):
    @initialize()
    def start(self) -> None:
        limits, planner = [Limit("gpus", {"nodes": 60})], PlannerSettings(shortage_seconds=60.0)
        self.world = World(*_groups(), limits=limits, planner=planner)
        self.cluster = self.world.cluster
        self.gangs = 0
        self.excused: set[PodKey] = set()
        """Pods whose node was taken away, or that waited beside others of a higher priority, which may take their
        room."""
        self.torn: set[str] = {""}
        """Gangs that have lost a node on which they ran."""

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self._settle()
            self.world.close()

    # What people and workloads do.

    @rule(shape=st.sampled_from(list(SHAPES)), count=st.integers(1, 6), priority=st.sampled_from([0, 0, 10]))
    def pods_come(self, shape: str, count: int, priority: int) -> None:
        self.cluster.add(count, priority=priority, spec=SHAPES[shape])

    @rule(shapes=st.lists(st.sampled_from(list(SHAPES)), min_size=2, max_size=5))
    def a_gang_comes(self, shapes: list[str]) -> None:
        self.gangs += 1
        for shape in shapes:
            self.cluster.add(gang=f"gang-{self.gangs}", spec=SHAPES[shape])

    @rule(data=st.data(), again=st.booleans())
    def a_pod_goes(self, data: st.DataObject, again: bool) -> None:
        alone = [uid for uid in self.cluster.pods() if not self.cluster.gang_of(uid)]
        if alone:
            (self.cluster.replace if again else self.cluster.delete)(data.draw(st.sampled_from(alone)))

    # What happens around it.

    @rule(seconds=st.sampled_from([1.0, 1.0, 3.0, 12.0, BOOT_SECONDS, 45.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.run(seconds)

    @rule(name=st.sampled_from(["small", "large", "gpu"]), stock=st.sampled_from([0, 1, 3]), late=st.booleans())
    def an_offering_runs_short(self, name: str, stock: int, late: bool) -> None:
        shortage = Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=stock) if late else Behaviour(stock=stock)
        self.world.backend.set_behaviours({name: shortage})

    @rule(name=st.sampled_from(["small", "large", "gpu"]), boot=st.sampled_from([BOOT_SECONDS, 90.0]))
    def an_offering_is_there(self, name: str, boot: float) -> None:
        self.world.backend.set_behaviours({name: Behaviour(boot_seconds=boot)})

    @rule(data=st.data())
    def a_machine_vanishes(self, data: st.DataObject) -> None:
        machines = self.world.backend.list_instances().instances
        if machines:
            machine = data.draw(st.sampled_from(machines))
            self._excuse(machine.id)
            self.world.backend.vanish([machine.id])

    @rule(data=st.data())
    def the_autoscaler_takes_an_empty_node(self, data: st.DataObject) -> None:
        busy = {self.cluster.node_of(uid) for uid in self.cluster.pods()}
        empty = self.cluster.nodes().keys() - busy - self.cluster.held() - self.cluster.unready
        if empty:
            node = self.cluster.nodes()[data.draw(st.sampled_from(sorted(empty)))]
            chosen = node["spec"]["providerID"]
            group_id = self.world.fleet.snapshot.group_of_instance.get(chosen)
            if group_id is not None:
                self._excuse(chosen)
                self.world.fleet.delete_instances(group_id, [chosen])

    @rule()
    def the_scheduler_pauses(self) -> None:
        self.cluster.scheduling = not self.cluster.scheduling

    # What must hold.

    @invariant()
    def no_pod_is_given_a_second_node(self) -> None:
        """But where somebody of a higher priority has taken its room, or its node has gone."""
        pods = self.cluster.pods()
        waiting = {uid: pods[uid].pod.priority for uid in self.cluster.pending()}
        highest = max(waiting.values(), default=0)
        self.excused |= {uid for uid, priority in waiting.items() if priority < highest}
        live: Counter[PodKey] = Counter()
        for status in self.world.increments(*LIVE):
            live.update(status.increment.pods)
        twice = {uid for uid, count in live.items() if count > 1} - self.excused
        assert not twice, (twice, self.world.increments(*LIVE))

    @invariant()
    def gangs_run_whole_or_not_at_all(self) -> None:
        """But for gangs with pods that have room on nodes that stand: there the scheduler may put others first."""
        on_new = {uid for status in self.world.increments(*LIVE) for uid in status.increment.pods}
        pods = {uid: self.cluster.gang_of(uid) for uid in self.cluster.pods()}
        elsewhere = {gang for uid, gang in pods.items() if uid not in on_new}
        members: dict[str, set[bool]] = {}
        for uid, gang in pods.items():
            if gang not in self.torn | elsewhere:
                members.setdefault(gang, set()).add(bool(self.cluster.node_of(uid)))
        assert all(len(bound) == 1 for bound in members.values())

    def _excuse(self, instance_id: str) -> None:
        """Pods planned for the instance, or that run on it."""
        name = instance_id.removeprefix("simulated://")
        here = {uid for uid in self.cluster.pods() if self.cluster.node_of(uid) == name}
        self.excused |= here
        self.torn |= {self.cluster.gang_of(uid) for uid in here}
        for status in self.world.increments(*LIVE):
            self.excused |= status.increment.pods

    def _settle(self) -> None:
        """With everything around it in order every pod runs, and nothing more is ordered."""
        self.cluster.scheduling = True
        self.world.reconnect()
        for name in ("small", "large", "gpu"):
            self.world.backend.set_behaviours({name: None})
        self.world.run(3000, step=5.0)
        assert not self.cluster.pending(), self.world.page("/plans")[-1]
        assert not [each for each in self.world.increments() if each.phase.in_flight]
        before = len(self.world.increments())
        self.world.run(120, step=5.0)
        assert len(self.world.increments()) == before


PlannerMachine.TestCase.settings = examples(25, steps=25)
TestPlanner = PlannerMachine.TestCase
