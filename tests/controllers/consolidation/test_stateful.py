"""The walk under random events: workloads grow and shrink, nodes vanish or are not Ready, offerings run short, requests
fail with and without effect, the API server goes away, processes end, people stop it. No node goes that has pods, no
eviction breaks a budget, and in the end every step is done or undone, with no cordon of ours left, no node that it made
and nobody needs, and every pod running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cagrpc import errors
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.fleet.model import DisruptionPhase, InstanceState
from solver.consolidation.model import DisruptionReason
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.walking import WalkHarness
from tests.support.examples import examples
from tests.support.fleet import group

_REASONS = (DisruptionReason.UNDERUTILIZED, DisruptionReason.BETTER_WEIGHT, DisruptionReason.INTERRUPTED)


class WalkMachine(RuleBasedStateMachine):
    @initialize(prompt=st.booleans(), most=st.sampled_from([1, 3, 10]), grace=st.sampled_from([0.0, 20.0]))
    def start(self, *, prompt: bool, most: int, grace: float) -> None:
        groups = [
            group("big", cpu=8000, price=0.8, max_size=20),
            group("small", cpu=2000, price=0.2, max_size=20),
        ]
        self.scene = WalkHarness(groups, plans=True)
        self.scene.most_in_flight, self.scene.prompt = most, prompt
        self.scene.restart()
        self.scene.cluster.grace_seconds = grace
        nodes = self.scene.stand("big", 4)
        self.scene.workload("web", 5, on=nodes, budget=1)
        self.scene.workload("db", 3, on=nodes[1:], cpu=1500, budget=2)
        self.scene.workload("train", 3, on=nodes[:2], gang="train")
        self.workloads = self.scene.cluster.workloads
        self.by_others: set[str] = set()
        """Instances that others have deleted."""
        self.checked: set[str] = set()
        self.faults: list[str] = []
        self.made = 0
        self.scene.fault = self._fault

    def teardown(self) -> None:
        if hasattr(self, "scene"):
            try:
                self._settle()
            finally:
                self.scene.close()

    def _fault(self, _what: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        fault = self.faults.pop() if self.faults else ""
        if fault == "lost":
            do()
        if fault:
            raise errors.Unavailable(f"the request was {fault}")
        return do()

    # What happens.

    @precondition(lambda self: self.scene.walk.under_way is None and self.scene.cluster.problem is None)
    @rule(
        data=st.data(),
        reason=st.sampled_from(_REASONS),
        small=st.integers(0, 3),
        count=st.integers(1, 2),
    )
    def a_step_begins(self, data: st.DataObject, reason: DisruptionReason, small: int, count: int) -> None:
        standing = sorted(self.scene.names() & {each.node.name for each in self.scene.cluster.nodes() if each.ready})
        free = [name for name in standing if name not in self.scene.cluster.unready]
        if len(free) <= count:
            return
        going = data.draw(st.permutations(free))[:count]
        onto = [name for name in free if name not in going] if not small or data.draw(st.booleans()) else []
        try:
            self.scene.begin(going, new={"small": small} if small else None, onto=onto, reason=reason)
        except errors.FailedPrecondition:
            return

    @rule(seconds=st.sampled_from([1, 1, 3, 10, 40]))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.scene.step()
            self._no_node_went_with_its_pods()
            self.scene.clock.advance(1.0)

    @rule(name=st.sampled_from(["web", "db"]), by=st.sampled_from([-2, -1, 1, 2]))
    def a_workload_is_scaled(self, name: str, by: int) -> None:
        of = self.workloads[f"ReplicaSet/ns/{name}"]
        of.replicas = max(1, min(8, of.replicas + by))
        surplus = [pod for pod in self.scene.cluster.pods.values() if pod.ref.workload == of.key][of.replicas :]
        for pod in surplus:
            self.scene.cluster.gone(pod)

    @rule()
    def a_new_workload_comes(self) -> None:
        self.made += 1
        self.scene.workload(f"new-{self.made}", 1)

    @rule(data=st.data())
    def somebody_deletes_a_node(self, data: st.DataObject) -> None:
        names = sorted(self.scene.names())
        if len(names) > 2:
            gone = f"simulated://{data.draw(st.sampled_from(names))}"
            self.by_others.add(gone)
            self.scene.fleet.delete_instances(self.scene.fleet.snapshot.group_of_instance[gone], [gone])

    @rule(data=st.data())
    def a_node_is_not_ready(self, data: st.DataObject) -> None:
        names = sorted(self.scene.names())
        if names:
            self.scene.cluster.unready = {data.draw(st.sampled_from(names))}

    @rule()
    def all_nodes_are_ready_again(self) -> None:
        self.scene.cluster.unready = set()

    @rule(away=st.booleans())
    def the_api_server_goes_or_comes(self, *, away: bool) -> None:
        self.scene.cluster.problem = "the API server is away" if away else None

    @rule(faults=st.lists(st.sampled_from(["", "refused", "lost"]), min_size=1, max_size=4))
    def requests_fail(self, faults: list[str]) -> None:
        self.faults = faults

    @rule(stock=st.sampled_from([0, None]))
    def an_offering_runs_short_or_is_back(self, stock: int | None) -> None:
        self.scene.backend.set_behaviour("small", Behaviour(boot_seconds=BOOT_SECONDS, stock=stock))

    @rule()
    def the_process_ends(self) -> None:
        self.scene.restart()

    @rule()
    def somebody_stops_it(self) -> None:
        self.scene.walk.undo("somebody stops it")

    # What always holds.

    def _no_node_went_with_its_pods(self) -> None:
        """Nor did one that pods were coming to."""
        deleting = {
            each.id
            for state in self.scene.fleet.snapshot.groups.values()
            for each in state.instances
            if each.state is InstanceState.DELETING
        }
        occupied = {f"simulated://{pod.node}" for pod in self.scene.cluster.pods.values() if pod.node}
        assert not (deleting & occupied) - self.by_others

    @invariant()
    def of_one_that_was_undone_no_node_is_left_over(self) -> None:
        for each in self.scene.fleet.snapshot.disruptions if hasattr(self, "scene") else ():
            if each.phase is DisruptionPhase.DONE and each.id not in self.checked:
                self.checked.add(each.id)
                left = {node.name for node in each.nodes} & self.scene.names()
                assert not left

    # How it ends.

    def _settle(self) -> None:
        cluster, scene = self.scene.cluster, self.scene
        cluster.problem, cluster.unready, self.faults = None, set(), []
        scene.backend.set_behaviour("*", Behaviour(boot_seconds=BOOT_SECONDS))
        scene.backend.set_behaviour("small", Behaviour(boot_seconds=BOOT_SECONDS))
        made: set[str] = set()
        for _ in range(1500):
            if scene.walk.under_way is not None:
                made = {each.name for each in scene.walk.under_way.new_nodes}
            scene.step()
            self._no_node_went_with_its_pods()
            if scene.walk.under_way is None:
                break
            scene.clock.advance(1.0)
        assert scene.walk.under_way is None, (scene.last(), scene.walk.waits_for)
        assert not scene.ours()
        if made and scene.ended() is DisruptionPhase.UNDONE:
            wanted = {*scene.pods_by_node(), *scene.places.nodes().values()}
            assert made & scene.names() <= wanted
        scene.run(200)
        assert not scene.pending()
        assert not scene.ours()
        for each in self.workloads.values():
            assert cluster.running(each.key) == each.replicas


TestWalk = WalkMachine.TestCase
TestWalk.settings = examples(20, steps=25)
