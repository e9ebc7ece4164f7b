"""The planner's slack under random events: pods come and go, offerings run short, machines vanish, windows open, the
journal breaks, cagrpc restarts. In the end all pods run, the wanted slack is held beside them, and no more nodes
come."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.state import Mirror
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.controllers.slack.model import SlackSettings, TargetSettings
from cagrpc.fleet.model import Phase
from solver.model import HOSTNAME, PODS, Operator, PodAffinityTerm, PodSelector, PodSpec, Requirement
from solver.model.eligibility import why_not_eligible
from solver.slack.model import Copies, Version
from tests.support.controllers.planner import BOOT_SECONDS, PlannerHarness
from tests.support.examples import examples
from tests.support.fleet import MemoryJournal, group

ENOUGH = 60
APART = PodAffinityTerm(HOSTNAME, PodSelector((Requirement("app", Operator.IN, ("db",)),)))
DATABASE = PodSpec((("cpu", 700),), labels=(("app", "db"),), pod_anti_affinity=(APART,))
ON_LARGE = PodSpec((("cpu", 1500),), node_selector=(("size", "large"),))
TARGETS = {
    "none": (),
    "fixed": (TargetSettings("f", fixed=(Copies("x", PodSpec((("cpu", 1500),)), 3),)),),
    "rate": (TargetSettings("r", 0.4, version=Version.EVEN, granularity=3),),
    "biggest": (TargetSettings("b", 0.3), TargetSettings("f", fixed=(Copies("x", PodSpec((("cpu", 500),)), 2),))),
}


class SlackMachine(RuleBasedStateMachine):
    @initialize(wanted=st.sampled_from(sorted(TARGETS)))
    def start(self, wanted: str) -> None:
        large = replace(group("large", cpu=16000, price=0.35, max_size=ENOUGH), labels={"size": "large"})
        self.harness = PlannerHarness(
            [group("small", cpu=4000, max_size=ENOUGH), large],
            settings=PlannerSettings(shortage_seconds=60.0),
            slack=SlackSettings(targets=TARGETS[wanted]),
        )
        self.cluster = self.harness.cluster

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self._settle()
            self.harness.close()

    @rule(count=st.integers(1, 5), cpu=st.sampled_from([500, 1500, 3000]))
    def pods_come(self, count: int, cpu: int) -> None:
        self.harness.add(count, cpu=cpu)

    @rule(data=st.data(), again=st.booleans())
    def a_pod_goes(self, data: st.DataObject, again: bool) -> None:
        if self.cluster.pods:
            pod = self.cluster.pods[data.draw(st.sampled_from(sorted(self.cluster.pods)))]
            if again:
                self.harness.replace(pod)
            else:
                del self.cluster.pods[pod.ref.uid]

    @rule(wanted=st.sampled_from(sorted(TARGETS)))
    def it_is_configured_otherwise(self, wanted: str) -> None:
        self.harness.slack_settings = SlackSettings(targets=TARGETS[wanted])
        self.harness.restart()

    @rule(databases=st.integers(0, 3), large=st.integers(0, 2))
    def workloads_are_marked(self, databases: int, large: int) -> None:
        mirrors = [Mirror("deployment/x/db", "x", DATABASE, databases), Mirror("job/x/y", "x", ON_LARGE, large)]
        self.cluster.mirrors = tuple(each for each in mirrors if each.count)

    @rule(seconds=st.sampled_from([1.0, 1.0, 3.0, 12.0, BOOT_SECONDS, 45.0]))
    def time_passes(self, seconds: float) -> None:
        self.harness.run(seconds)

    @rule(name=st.sampled_from(["small", "large"]), stock=st.sampled_from([0, 1]), late=st.booleans())
    def an_offering_runs_short(self, name: str, stock: int, late: bool) -> None:
        shortage = Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=stock) if late else Behaviour(stock=stock)
        self.harness.backend.set_behaviour(name, shortage)

    @rule(data=st.data())
    def a_machine_vanishes(self, data: st.DataObject) -> None:
        machines = self.harness.backend.list_instances().instances
        if machines:
            self.harness.backend.vanish([data.draw(st.sampled_from(machines)).id])

    @rule()
    def the_cluster_is_out_of_reach(self) -> None:
        self.cluster.problem = None if self.cluster.problem else "the API server does not answer"

    @rule()
    def the_journal_breaks(self) -> None:
        assert isinstance(self.harness.journal, MemoryJournal)
        self.harness.journal.broken = True
        self.harness.run(5)
        self.harness.journal.broken = False

    @rule()
    def cagrpc_is_restarted(self) -> None:
        self.harness.restart()

    @invariant()
    def placeholders_have_room_beside_pods_where_they_are_held(self) -> None:
        """By plain sums, apart from how they were placed."""
        if not hasattr(self, "harness") or self.harness.slack is None:
            return
        self.harness.slack.step()
        state = self.harness.slack.state
        nodes = {each.node.name: each.node for each in self.cluster.nodes() if each.ready and not each.held}
        shapes = {shape.name: shape for shape in state.shapes}
        for shape, there in state.placement.items():
            assert sum(there.values()) + state.left_over.get(shape, 0) == shapes[shape].count
        for name, pods in state.reservations().items():
            used = {PODS: 0}
            for each in pods:
                assert why_not_eligible(each.spec, nodes[name].labels, nodes[name].taints) is None
                for resource, amount in (*each.spec.requests, (PODS, 1)):
                    used[resource] = used.get(resource, 0) + amount * each.count
            assert all(nodes[name].free[resource] >= amount for resource, amount in used.items())
            assert sum(each.count for each in pods if each.spec == DATABASE) <= 1

    def _settle(self) -> None:
        self.cluster.problem = None
        for name in ("small", "large"):
            self.harness.backend.set_behaviour(name, Behaviour(boot_seconds=BOOT_SECONDS))
        self.harness.run(900, step=2.0)
        assert not self.harness.pending()
        assert self.harness.slack is not None
        state = self.harness.slack.state
        assert not state.left_over
        assert not self.harness.increments(Phase.PLANNED, Phase.CREATING, Phase.READY, Phase.ROLLING_BACK)
        before = self.harness.targets(), len(self.harness.increments()), state.placement
        self.harness.run(300, step=5.0)
        assert (self.harness.targets(), len(self.harness.increments()), self.harness.slack.state.placement) == before


SlackMachine.TestCase.settings = examples(12, steps=15)
TestSlackMachine = SlackMachine.TestCase
