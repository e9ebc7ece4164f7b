"""Consolidation under random events: workloads grow and shrink, clouds take nodes, nodes vanish or are not Ready,
offerings run short, requests fail with and without effect, the API server goes away, processes end, people lift
cordons. No node goes that has pods, no eviction breaks a budget, and in the end every step is done or undone, with no
cordon of ours left, no node that it made and nobody needs, and every pod running."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.fleet.model import DisruptionPhase, InstanceState
from tests.controllers.consolidation.scene import SPOT, Scene
from tests.support.api_server import Refusal
from tests.support.cluster import NODES, path_of
from tests.support.examples import examples
from tests.support.fleet import group
from tests.support.world import BOOT_SECONDS

GROUPS = (group("big", cpu=8000, price=0.8, max_size=20), group("small", cpu=2000, price=0.2, max_size=20))


class _Scene(Scene):
    prompt = False
    """Whether the scheduler binds pods before anybody else has seen them."""

    def _step(self) -> None:
        super()._step()
        if self.prompt:
            self.cluster.schedule()


class ConsolidationMachine(RuleBasedStateMachine):
    @initialize(prompt=st.booleans(), grace=st.sampled_from([0.0, 20.0]))
    def start(self, *, prompt: bool, grace: float) -> None:
        quick: dict[str, Any] = {
            "every_seconds": 5.0,
            "budget_seconds": 5.0,
            "pause_after_failure_seconds": 5.0,
            "longest_pause_seconds": 20.0,
        }
        self.scene = _Scene(*GROUPS, world={"planner": PlannerSettings(idle_seconds=2.0)}, **quick)
        self.cluster = self.scene.cluster
        self.scene.prompt, self.cluster.grace_seconds = prompt, grace
        nodes = self.scene.stand("big", 4)
        self.cluster.workload("web", 5, on=nodes, budget=1)
        self.cluster.workload("db", 3, on=nodes[1:], cpu=1500, budget=2)
        self.cluster.workload("train", 3, on=nodes[:2], gang="train")
        self.by_others: set[str] = set()
        """Nodes that others have deleted."""
        self.made: set[str] = set()
        """New nodes of the step under way, or of the last one."""
        self.checked: set[str] = set()
        self.faults: list[str] = []
        self.scene.api.before = self._fail
        self.scene.begin()
        self.scene.until(lambda: self.scene.fleet.snapshot.disruption)

    def teardown(self) -> None:
        if hasattr(self, "scene"):
            try:
                self._settle()
            finally:
                self.scene.close()

    def _fail(self, request: str) -> None:
        walks = request.startswith(f"PATCH {NODES}") or request.endswith("/eviction")
        if walks and self.faults and (fault := self.faults.pop()):
            raise Refusal(503, "away", lost=fault == "lost")

    # What happens.

    @rule(seconds=st.sampled_from([1, 1, 3, 10, 40]))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self._step()

    @rule(name=st.sampled_from(["web", "db"]), by=st.sampled_from([-2, -1, 1, 2]))
    def a_workload_is_scaled(self, name: str, by: int) -> None:
        of = self.cluster.workloads[name]
        replicas = max(1, min(8, of.replicas + by))
        self.cluster.workloads[name] = replace(of, replicas=replicas)
        self.scene.api.change(path_of("/apis/apps/v1/replicasets", name), spec={"replicas": replicas})
        pods = [uid for uid, pod in self.cluster.pods().items() if pod.ref.workload == of.key and pod.counted]
        self.cluster.delete(*pods[replicas:])

    @rule()
    def a_new_workload_comes(self) -> None:
        self.cluster.workload(f"new-{len(self.cluster.workloads)}", 1)

    @rule(data=st.data())
    def a_cloud_takes_a_node(self, data: st.DataObject) -> None:
        self.scene.change_node(data.draw(st.sampled_from(sorted(self.cluster.nodes()))), spec=SPOT)

    @precondition(lambda self: len(self._names()) > 2)
    @rule(data=st.data())
    def somebody_deletes_a_node(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self._names())))
        self.by_others.add(name)
        gone = f"simulated://{name}"
        self.scene.fleet.delete_instances(self.scene.fleet.snapshot.group_of_instance[gone], [gone])

    @rule(data=st.data())
    def a_node_is_not_ready(self, data: st.DataObject) -> None:
        self.cluster.unready = {data.draw(st.sampled_from(sorted(self.cluster.nodes())))}

    @rule()
    def all_nodes_are_ready_again(self) -> None:
        self.cluster.unready = set()

    @rule(away=st.booleans())
    def the_api_server_goes_or_comes(self, *, away: bool) -> None:
        (self.scene.disconnect if away else self.scene.reconnect)()

    @rule(faults=st.lists(st.sampled_from(["", "refused", "lost"]), min_size=1, max_size=4))
    def requests_fail(self, faults: list[str]) -> None:
        self.faults = faults

    @rule(stock=st.sampled_from([0, None]))
    def an_offering_runs_short_or_is_back(self, stock: int | None) -> None:
        self.scene.backend.set_behaviours({"small": Behaviour(boot_seconds=BOOT_SECONDS, stock=stock)})

    @rule()
    def the_process_ends(self) -> None:
        self.scene.restart()

    @rule()
    def somebody_lifts_cordons(self) -> None:
        for name in self.scene.ours():
            self.scene.change_node(name, spec={"unschedulable": False})

    # What always holds.

    def _names(self) -> set[str]:
        """Return the names of nodes that stand and are not being deleted."""
        states = self.scene.fleet.snapshot.groups.values()
        running = {each.id for of in states for each in of.instances if each.state is InstanceState.RUNNING}
        return {name for name in self.cluster.nodes() if f"simulated://{name}" in running}

    def _step(self) -> None:
        """No node goes with its pods, or while pods come to it."""
        if self.scene.fleet.snapshot.disruption is not None:
            self.made = {each.name for each in self.scene.fleet.snapshot.disruption.new_nodes}
        self.scene.step()
        states = self.scene.fleet.snapshot.groups.values()
        deleting = {each.id for of in states for each in of.instances if each.state is InstanceState.DELETING}
        assert not deleting & {f"simulated://{name}" for name in self.scene.pods_by_node().keys() - self.by_others}
        self.scene.clock.advance(1.0)

    @invariant()
    def of_one_that_is_done_no_node_is_left(self) -> None:
        for each in self.scene.fleet.snapshot.disruptions if hasattr(self, "scene") else ():
            if each.phase is DisruptionPhase.DONE and each.id not in self.checked:
                self.checked.add(each.id)
                assert not {node.name for node in each.nodes} & self._names()

    # How it ends.

    def _settle(self) -> None:
        scene, self.cluster.unready, self.faults = self.scene, set(), []
        scene.reconnect()
        for name in ("*", "small"):
            scene.backend.set_behaviours({name: Behaviour(boot_seconds=BOOT_SECONDS)})
        for _ in range(1500):
            if scene.fleet.snapshot.disruption is None:
                break
            self._step()
        assert scene.fleet.snapshot.disruption is None, scene.shown
        scene.idle.add("consolidation")
        scene.run(5)
        assert not scene.without_owner()
        if scene.fleet.snapshot.disruptions and scene.ended() is DisruptionPhase.UNDONE:
            waiting = (scene.api.objects[self.cluster.paths[uid]]["status"] for uid in self.cluster.pending())
            wanted = {*scene.pods_by_node(), *(each.get("nominatedNodeName") for each in waiting)}
            assert self.made & self._names() <= wanted
        scene.run(200, 4)
        assert not scene.cluster.pending()
        assert not scene.ours()
        running = [pod.ref.workload for pod in self.cluster.pods().values() if pod.node]
        assert {each.key: running.count(each.key) for each in self.cluster.workloads.values()} == {
            each.key: each.replicas for each in self.cluster.workloads.values()
        }


TestConsolidation = ConsolidationMachine.TestCase
TestConsolidation.settings = examples(10, steps=20)
