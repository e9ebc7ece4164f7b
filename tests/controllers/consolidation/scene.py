"""A world with consolidation, of which nodes stand from the start.

with Scene(group("big", cpu=8000, price=0.8), mode=ConsolidationMode.ON) as scene:
    old = scene.stand("big", 2)
    scene.cluster.workload("web", 2, on=old)
    scene.begin()                            # consolidation takes steps from now on
    scene.run(200, 2)
    assert scene.ended() is DisruptionPhase.DONE
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cagrpc.cluster.markers import DISRUPTION
from cagrpc.controllers.settings import ConsolidationMode, ConsolidationSettings, NodeBudget
from cagrpc.fleet.model import Disruption, DisruptionPhase, IncrementSpec
from solver.model import NodeGroup
from tests.support.api_server import Refusal
from tests.support.cluster import NODES
from tests.support.world import World

GENEROUS = (NodeBudget("100%"),)
DO_NOT_DISRUPT = {"karpenter.sh/do-not-disrupt": "true"}
SPOT = {"taints": [{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]}
"""Of a node that its cloud takes."""
_BOOTS_SECONDS = 60.0


class Scene(World):
    """Consolidation takes no step before `begin`. `consolidation` are its settings; nodes may be young."""

    def __init__(
        self,
        *groups: NodeGroup,
        mode: ConsolidationMode = ConsolidationMode.ON,
        world: Mapping[str, Any] | None = None,
        **consolidation: Any,
    ) -> None:
        chosen = {"budgets": GENEROUS, "minimum_node_age_seconds": 0.0, **consolidation}
        super().__init__(*groups, consolidation=ConsolidationSettings(mode, **chosen), **(world or {}))
        self.idle.add("consolidation")

    def begin(self) -> None:
        self.idle.discard("consolidation")

    def before_beginning(self, do: Callable[[], object]) -> None:
        """Do something once the whole is planned and before the step that is to begin is."""
        self.meanwhile(lambda: self.meanwhile(do, "consolidation"), "consolidation")

    def until(self, true: Callable[[], object], seconds: float = 600.0, step: float = 1.0) -> None:
        """Step until it is true."""
        end = self.clock() + seconds
        while not true():
            assert self.clock() < end, (self.shown["waits_for"], self.fleet.snapshot.disruption)
            self.step()
            self.clock.advance(step)

    def switch(self, mode: ConsolidationMode | None) -> None:
        """Begin another process, in this mode; None: without consolidation."""
        of = self.settings.consolidation
        self.settings = replace(self.settings, consolidation=replace(of, mode=mode) if of and mode else None)
        self.restart()

    def stand(self, group: str, count: int = 1) -> list[str]:
        """Let so many more nodes of a group stand, those of its minimum first; return their names."""
        before = set(self.cluster.nodes())
        self.step()
        ordered = self.fleet.snapshot.groups[group].target_size - sum(name.startswith(f"{group}-") for name in before)
        if count > ordered:
            self.fleet.apply(IncrementSpec({group: count - ordered}))
        self.run(_BOOTS_SECONDS, 5.0)
        assert not self.cluster.held()
        return sorted(each for each in self.cluster.nodes().keys() - before if each.startswith(f"{group}-"))

    def change_node(self, name: str, **parts: Any) -> None:
        """Merge these parts into a Node; taints and conditions come to those that it has."""
        node, spec, status = self.cluster.nodes()[name], parts.get("spec", {}), parts.get("status", {})
        if "taints" in spec:
            parts["spec"] = {**spec, "taints": [*node["spec"].get("taints", ()), *spec["taints"]]}
        if "conditions" in status:
            parts["status"] = {**status, "conditions": [*node["status"]["conditions"], *status["conditions"]]}
        self.api.change(f"{NODES}/{name}", **parts)

    # ---- what has become of it

    @property
    def shown(self) -> Any:
        """Return consolidation's member of `/status`."""
        return self.status()["consolidation"]

    @property
    def plan(self) -> Any:
        """Return the whole plan."""
        return self.page("/consolidation")["plan"]

    def stays(self) -> dict[str, str]:
        """Return why nodes stay, by their names."""
        examples = (each for kind in self.plan["stays"] for each in kind["examples"])
        return dict(each.split(": ", 1) for each in examples)

    def goes(self) -> dict[str, str]:
        """Return the reasons of the nodes that are planned to go, by their names."""
        return {name: str(step["reason"]) for step in self.plan["steps"] for name in step["nodes"]}

    def last(self) -> Disruption:
        return self.fleet.snapshot.disruptions[-1]

    def ended(self) -> DisruptionPhase | None:
        """Return how the last step ended; None while it is under way."""
        return None if self.last().phase.under_way else self.last().phase

    def cost(self) -> float:
        """Return what the targets cost, in $/h."""
        groups = self.fleet.snapshot.groups.values()
        return round(sum(each.group.price_usd_per_hour * each.target_size for each in groups), 6)

    def pods_by_node(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for uid in self.cluster.pods():
            if node := self.cluster.node_of(uid):
                found[node] = found.get(node, 0) + 1
        return found

    def ours(self) -> set[str]:
        """Return the nodes that are cordoned by us."""
        nodes = self.cluster.nodes()
        return {each for each in self.cluster.cordoned() if DISRUPTION in nodes[each]["metadata"]["annotations"]}


def evictions_are_forbidden(scene: Scene) -> None:
    def refuse(request: str) -> None:
        if request.endswith("/eviction"):
            raise Refusal(403)

    scene.api.before = refuse
