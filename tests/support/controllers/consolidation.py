"""A played consolidation: a fleet of nodes in provisioners, plans that a test writes, and a walk that only notes what
it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.controllers.consolidation.controller import AskedQuestion, ConsolidationController
from cagrpc.controllers.settings import ConsolidationMode, ConsolidationSettings, NodeBudget
from cagrpc.fleet.model import (
    DisruptedNode,
    Disruption,
    DisruptionPhase,
    FleetSnapshot,
    GroupState,
    Instance,
    InstanceState,
)
from solver.consolidation.model import (
    ConsolidationPlan,
    ConsolidationProblem,
    ConsolidationStep,
    DisruptionReason,
    StandingNode,
)
from solver.model import Budget, Node, NodeGroup, PodClass, PodSpec
from tests.support.clocks import any_clock
from tests.support.solver.problems import previous

GENEROUS = (NodeBudget(100, is_percentage=True),)


def settings(mode: ConsolidationMode = ConsolidationMode.ON, **changes: object) -> ConsolidationSettings:
    return replace(ConsolidationSettings(mode=mode, budgets=GENEROUS), **changes)  # type: ignore[arg-type]


def step(
    *nodes: str, reason: DisruptionReason = DisruptionReason.UNDERUTILIZED, pods: int = 3, saving: float = 0.5
) -> ConsolidationStep:
    plan = replace(previous({"web": 1}), pod_classes=(PodClass(0, PodSpec(()), pods, "default/web-1"),))
    return ConsolidationStep(reason, nodes, plan, saving)


def plan_with(*steps: ConsolidationStep, **changes: object) -> ConsolidationPlan:
    found = ConsolidationPlan(steps, 10.0, 8.0, 7.0, 6.0)
    return replace(found, **changes)  # type: ignore[arg-type]


def disruption(
    name: str,
    phase: DisruptionPhase,
    *nodes: str,
    at: float = 0.0,
    ended: float | None = None,
    message: str = "",
    saving: float = 0.5,
) -> Disruption:
    going = tuple(DisruptedNode(each, f"id-{each}", "web") for each in nodes)
    return Disruption(
        name,
        "Underutilized",
        phase,
        going,
        at,
        at + 900,
        pods=5,
        saving_usd_per_hour=saving,
        finished_at_seconds=ended,
        message=message,
    )


@dataclass
class PlayedConsolidation:
    """Provisioners have a node group of the same name. `plans` are answered in their order, the last one for ever; a
    question of only some nodes is answered by the steps of the whole that are of them."""

    nodes: dict[str, str] = field(default_factory=lambda: dict.fromkeys(("a", "b", "c", "d"), "web"))
    """By name: the provisioner."""
    plan: ConsolidationPlan = field(default_factory=plan_with)
    settings: ConsolidationSettings = field(default_factory=settings)
    not_ready: set[str] = field(default_factory=set)
    must_go: dict[str, DisruptionReason] = field(default_factory=dict)
    disruptions: list[Disruption] = field(default_factory=list)
    why_not_now: str = ""
    now: float = 1_000_000.0
    asked: list[ConsolidationProblem] = field(default_factory=list)
    begun: list[tuple[ConsolidationStep, str]] = field(default_factory=list)
    advanced: int = 0
    waits_for: str = ""
    evicted: int = 0
    refused: int = 0
    undone: list[str] = field(default_factory=list)
    on_begin: Callable[[], None] = lambda: None
    on_ask: Callable[[], None] = lambda: None

    @property
    def snapshot(self) -> FleetSnapshot:
        groups = {}
        for name in sorted(set(self.nodes.values())):
            ids = tuple(
                Instance(f"id-{node}", name, InstanceState.RUNNING) for node, of in self.nodes.items() if of == name
            )
            group = NodeGroup(name, {"cpu": 4000}, 1.0, provisioner=name, target_size=len(ids))
            groups[name] = GroupState(group, len(ids), ids)
        of_instance = {f"id-{node}": group for node, group in self.nodes.items()}
        return FleetSnapshot(1, groups, (), of_instance, disruptions=tuple(self.disruptions))

    def observe(self) -> AskedQuestion[str] | str:
        if self.why_not_now:
            return self.why_not_now
        state = ClusterState(
            waiting=(),
            nodes=tuple(
                ClusterNode(Node(name, {"cpu": 4000}), f"id-{name}", name not in self.not_ready, held=False)
                for name in self.nodes
            ),
            daemon_sets=(),
        )
        groups = tuple(each.group for each in self.snapshot.groups.values())
        standing = tuple(
            StandingNode(Node(name, {"cpu": 4000}), group, must_go=self.must_go.get(name))
            for name, group in self.nodes.items()
        )
        return AskedQuestion(self.snapshot, state, ConsolidationProblem(standing, groups), "who is who")

    def answer(self, problem: ConsolidationProblem, budget: Budget) -> ConsolidationPlan:
        self.asked.append(problem)
        self.on_ask()
        free = {each.node.name for each in problem.nodes if not each.kept}
        steps = [replace(each, nodes=tuple(n for n in each.nodes if n in free)) for each in self.plan.steps]
        return replace(self.plan, steps=tuple(each for each in steps if each.nodes))

    def begin(self, step: ConsolidationStep, asked: AskedQuestion[str]) -> None:
        self.on_begin()
        self.begun.append((step, asked.question))
        name = f"step-{len(self.begun)}"
        self.disruptions.append(disruption(name, DisruptionPhase.CREATING, *step.nodes, at=self.now))

    def advance(self) -> None:
        self.advanced += 1

    def undo(self, why: str) -> None:
        self.undone.append(why)

    def end(self, phase: DisruptionPhase = DisruptionPhase.DONE, message: str = "") -> None:
        """End the step under way."""
        last = self.disruptions[-1]
        self.disruptions[-1] = replace(last, phase=phase, finished_at_seconds=self.now, message=message)

    @property
    def nodes_begun(self) -> list[tuple[str, ...]]:
        return [each.nodes for each, _ in self.begun]

    def controller(self) -> ConsolidationController[str]:
        clock = any_clock(lambda: self.now)
        return ConsolidationController(self, self.observe, self, self.settings, self.answer, now=clock, clock=clock)
