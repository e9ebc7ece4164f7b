"""The planner's slack under random events: pods come and go, offerings run short, machines vanish, the journal breaks,
cagrpc restarts. In the end all pods run, the wanted slack is held beside them, and no more nodes come."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.controllers.settings import PlannerSettings
from cagrpc.controllers.slack.model import SlackSettings, TargetSettings
from cagrpc.fleet.model import Phase
from solver.model import HOSTNAME, PODS, Operator, PodAffinityTerm, PodSelector, PodSpec, Requirement
from solver.model.eligibility import why_not_eligible
from solver.slack.model import Copies, Version
from tests.controllers.slack.test_holding import configure, mirror
from tests.support.cluster import NAMESPACE
from tests.support.examples import examples
from tests.support.fleet import group
from tests.support.outages import Outages
from tests.support.world import BOOT_SECONDS, World

ENOUGH = 60
APART = PodAffinityTerm(HOSTNAME, PodSelector((Requirement("app", Operator.IN, ("db",)),), (NAMESPACE,)))
DATABASE = PodSpec((("cpu", 700),), labels=(("app", "db"),), pod_anti_affinity=(APART,))
ON_LARGE = PodSpec((("cpu", 1500),), node_selector=(("size", "large"),))
TARGETS = {
    "none": (),
    "fixed": (TargetSettings("f", fixed=(Copies("x", PodSpec((("cpu", 1500),)), 3),)),),
    "rate": (TargetSettings("r", 0.4, version=Version.EVEN, granularity=3),),
    "biggest": (TargetSettings("b", 0.3), TargetSettings("f", fixed=(Copies("x", PodSpec((("cpu", 500),)), 2),))),
}
IN_FLIGHT = (Phase.PLANNED, Phase.CREATING, Phase.READY, Phase.ROLLING_BACK)


class SlackMachine(Outages):
    @initialize(wanted=st.sampled_from(sorted(TARGETS)))
    def start(self, wanted: str) -> None:
        large = replace(group("large", cpu=16000, price=0.35, max_size=ENOUGH), labels={"size": "large"})
        self.world = World(
            group("small", cpu=4000, max_size=ENOUGH),
            large,
            planner=PlannerSettings(shortage_seconds=60.0),
            slack=SlackSettings(targets=TARGETS[wanted]),
        )
        self.cluster = self.world.cluster

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self._settle()
            self.world.close()

    @rule(count=st.integers(1, 5), cpu=st.sampled_from([500, 1500, 3000]))
    def pods_come(self, count: int, cpu: int) -> None:
        self.cluster.add(count, cpu=cpu)

    @rule(data=st.data(), again=st.booleans())
    def a_pod_goes(self, data: st.DataObject, again: bool) -> None:
        if pods := sorted(self.cluster.pods()):
            uid = data.draw(st.sampled_from(pods))
            (self.cluster.replace if again else self.cluster.delete)(uid)

    @rule(wanted=st.sampled_from(sorted(TARGETS)))
    def it_is_configured_otherwise(self, wanted: str) -> None:
        configure(self.world, SlackSettings(targets=TARGETS[wanted]))

    @rule(databases=st.integers(0, 3), large=st.integers(0, 2))
    def workloads_are_marked(self, databases: int, large: int) -> None:
        mirror(self.world, "db", databases, DATABASE, NAMESPACE)
        mirror(self.world, "y", large, ON_LARGE, NAMESPACE)

    @rule(seconds=st.sampled_from([1.0, 1.0, 3.0, 12.0, BOOT_SECONDS, 45.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.run(seconds)

    @rule(name=st.sampled_from(["small", "large"]), stock=st.sampled_from([0, 1]), late=st.booleans())
    def an_offering_runs_short(self, name: str, stock: int, late: bool) -> None:
        shortage = Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=stock) if late else Behaviour(stock=stock)
        self.world.backend.set_behaviours({name: shortage})

    @rule(data=st.data())
    def a_machine_vanishes(self, data: st.DataObject) -> None:
        if machines := self.world.backend.list_instances().instances:
            self.world.backend.vanish([data.draw(st.sampled_from(machines)).id])

    @property
    def slack(self) -> Any:
        return self.world.controller("the slack")

    @invariant()
    def placeholders_have_room_beside_pods_where_they_are_held(self) -> None:
        """By plain sums, apart from how they were placed."""
        if not hasattr(self, "world") or self.world.problem is not None:
            return
        self.world.step()
        self.slack.step()
        state, cluster = self.world.assumed.slack, self.world.view.state()
        nodes = {each.node.name: each.node for each in cluster.nodes if each.ready and not each.held}
        for shape in state.shapes:
            held = sum(state.placement.get(shape.name, {}).values())
            assert held + state.left_over.get(shape.name, 0) == shape.count
        for name, pods in state.reservations().items():
            used = Counter[str]()
            for each in pods:
                assert why_not_eligible(each.spec, nodes[name].labels, nodes[name].taints) is None
                used.update({resource: amount * each.count for resource, amount in (*each.spec.requests, (PODS, 1))})
            assert all(nodes[name].free[resource] >= amount for resource, amount in used.items())
            assert sum(each.count for each in pods if each.spec.pod_anti_affinity) <= 1

    def _settle(self) -> None:
        self.world.reconnect()
        for name in ("small", "large"):
            self.world.backend.set_behaviours({name: Behaviour(boot_seconds=BOOT_SECONDS)})
        for _ in range(15):
            self.world.run(60, step=4.0)
            if not (self.cluster.pending() or self.world.assumed.slack.left_over or self.world.increments(*IN_FLIGHT)):
                break
        assert not self.cluster.pending()
        assert not self.world.assumed.slack.left_over
        assert not self.world.without_owner()
        assert not self.world.increments(*IN_FLIGHT)
        before = self.world.targets(), len(self.world.increments()), self.world.assumed.slack.placement
        self.world.run(120, step=5.0)
        assert (self.world.targets(), len(self.world.increments()), self.world.assumed.slack.placement) == before


SlackMachine.TestCase.settings = examples(12, steps=15)
TestSlackMachine = SlackMachine.TestCase
