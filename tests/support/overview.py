"""Pages of a busy server, for what is shown of them: the values are made up, the JSON is the controllers' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.cluster.shortages import Shortage
from cagrpc.cluster.state import ClusterNode, IncompleteGang
from cagrpc.controllers.assume_cache.slack import SlackState
from cagrpc.controllers.consolidation.holds import Hold, Needs
from cagrpc.controllers.consolidation.status import PublishedPlan, Shown, in_full
from cagrpc.controllers.episodes.log import as_json as episode_as_json
from cagrpc.controllers.episodes.model import Ended, Episode, GroupNodes, Outcome
from cagrpc.controllers.fleet import group_as_json, increment_as_json
from cagrpc.controllers.overview import Sample, node_as_json
from cagrpc.controllers.planning.records import Ordered, PlanRecord
from cagrpc.controllers.slack.record import as_json as slack_as_json
from cagrpc.fleet.model import (
    GroupState,
    IncrementNode,
    IncrementSpec,
    IncrementStatus,
    Instance,
    InstanceError,
    InstanceState,
    Phase,
)
from cagrpc.runtime.controller import Json, JsonList, JsonPage
from cagrpc.services.decisions import ConsideredOption, Decision
from solver.consolidation.model import ConsolidationPlan
from solver.explanation.model import WhyWaiting
from solver.model import Node, NodeGroup, PodSpec
from solver.slack.model import Role, SlackDemand, SlackShape

AT = 1_790_000_000.0


@dataclass
class BusyServer:
    """Everything there is of each kind, so many times; every text has `mark` in it."""

    mark: str = ""
    many: int = 2
    running: int = 1
    """Instances of each increment that run."""
    ready: bool = False

    def pages(self) -> dict[str, JsonPage]:
        return {
            "/status": JsonPage(self.status),
            "/nodegroups": JsonPage(lambda: JsonList(self.groups(), group_as_json)),
            "/increments": JsonPage(self._increments),
            "/decisions": JsonPage(lambda: JsonList(self.decisions(), Decision.as_json)),
            "/plans": JsonPage(lambda: JsonList(self.rounds(), PlanRecord.as_json)),
            "/provisioningrequests": JsonPage(lambda: JsonList(self.requests())),
            "/slack": JsonPage(lambda: slack_as_json(self.slack(), self._text("carrier"), self._text("problem"))),
            "/consolidation": JsonPage(lambda: in_full(self.consolidation())),
            "/episodes": JsonPage(lambda: JsonList(self.episodes(), episode_as_json)),
            "/nodes": JsonPage(lambda: JsonList(self.nodes())),
            "/history": JsonPage(lambda: JsonList(self.samples(), Sample.as_json)),
            "/log": JsonPage(lambda: JsonList(self.lines())),
        }

    def status(self) -> Mapping[str, Any]:
        return {
            "ready": self.ready,
            "why_not_ready": "" if self.ready else self._text("the journal is out of reach"),
            "drive": "plan",
            "cluster": self._text("https://cluster"),
            "planner": self._text("waits for news"),
            "waiting_pods": 7,
            "expected_pods": 0,
            "backend_problem": self._text("no quota"),
            "left_out": {self._text("pods"): 1},
            "not_followed": {self._text("nodes"): "forbidden"},
            "certificates": [{"warning": self._text("it expires")}, {"warning": ""}],
            "orphans": {self._text("i-0"): "gone"},
            "loops": {"a step of the fleet": "0.1 s since a step"},
        }

    def groups(self) -> list[GroupState]:
        error = InstanceError("QUOTA", "no quota")
        return [
            GroupState(
                NodeGroup(
                    self._text(f"group-{number}"),
                    {"cpu": 4000},
                    0.1,
                    weight=number % 3 * 10,
                    provisioner=self._text(f"provisioner-{number}"),
                    instance_type=self._text("m7i.large"),
                    zone=self._text("zone-a"),
                    target_size=3,
                ),
                3,
                (
                    Instance(f"{number}-a", "", InstanceState.RUNNING),
                    Instance(f"{number}-b", "", InstanceState.CREATING),
                    Instance(f"{number}-c", "", InstanceState.CREATING, error),
                ),
            )
            for number in range(self.many)
        ]

    def _increments(self) -> JsonList:
        running = {f"{number}-{node}" for number in range(self.many) for node in range(self.running)}
        like = [self._text("ml/trainer")]
        return JsonList(self.increments(), lambda each: {**increment_as_json(each, running), "pods_like": like})

    def increments(self) -> list[IncrementStatus]:
        phases = [*Phase]
        return [
            IncrementStatus(
                f"{number:032x}",
                IncrementSpec(
                    {self._text(f"group-{number}"): 3},
                    pods=frozenset({"u1"}),
                    reason=self._text("planned"),
                    cost_usd_per_hour=0.3,
                    gap=0.01,
                ),
                phases[number % len(phases)],
                self._text("instances running: 1 of 3"),
                AT,
                AT + 600,
                nodes=tuple(IncrementNode(f"{number}/{node}", "", f"{number}-{node}") for node in range(3)),
            )
            for number in range(self.many * len(phases))
        ]

    def nodes(self) -> list[Json]:
        """Each fuller than the one before it, of group-0 all but the last."""
        found = []
        for number in range(self.many):
            there = {"cpu": 4000, "memory": 16 * 2**30, "nvidia.com/gpu": 2, "pods": 110}
            free = {**there, "cpu": 4000 - 4000 * number // self.many, "pods": 110 - number}
            node = Node(self._text(f"node-{number}"), free, allocatable=there)
            standing = ClusterNode(node, "", ready=True, held=False)
            group = self._text("group-0" if number < self.many - 1 else "group-1")
            found.append(node_as_json(standing, group, f"{number:032x}"))
        return found

    def samples(self) -> list[Sample]:
        return [
            Sample(AT + 300 * number, 2.0 + number % 7, 10 + number, number % 3) for number in range(10 * self.many)
        ]

    def lines(self) -> list[Json]:
        about = {"increment": f"{0:032x}"}
        text = self._text("increment is done")
        return [
            {"at_seconds": AT + number, "level": "info", "text": text, "about": about} for number in range(self.many)
        ]

    def decisions(self) -> list[Decision]:
        options = tuple(
            ConsideredOption(
                self._text(f"group-{number}"),
                2,
                5,
                (self._text("ns/pod"),),
                (float(number),) if number else (),
                0.2,
                self._text("cheapest"),
                "" if number else self._text("breaks a limit"),
            )
            for number in range(self.many)
        )
        return [
            Decision(AT + number, options, options[-1].node_group, self._text("cheapest"), "objective", 0.1)
            for number in range(self.many)
        ]

    def rounds(self) -> list[PlanRecord]:
        left = WhyWaiting(
            self._text("ml/trainer"), 8, (self._text("no room"),) * 2, (self._text("raise it"),) * 2, "train"
        )
        return [
            PlanRecord(
                f"{number:08x}",
                AT + 60 * number,
                self._text("news"),
                pods=40 + number,
                planned_cost_per_hour=2.0 + number % 7,
                lower_bound_per_hour=1.9 + number % 7,
                gap=0.1 / (2.0 + number % 7),
                nodes=4,
                increments=(Ordered({self._text("group-0"): 3}, 4, 0.3, "i", "creating"),),
                unplaced=(left,) * self.many,
                shortages=(Shortage(self._text("m7i.large/a"), 1, AT, AT + 60, self._text("sold out")),) * self.many,
                incomplete_gangs=(IncompleteGang(self._text("ml/gang"), 3, 4),) * self.many,
                warnings=(self._text("a pod cannot be read"),) * self.many,
            )
            for number in range(min(50, self.many * 10))
        ]

    def requests(self) -> list[dict[str, Any]]:
        return [
            {
                "namespace": "ml",
                "name": self._text(f"request-{number}"),
                "class": self._text("check-capacity"),
                "phase": "waiting",
                "explanation": self._text("no capacity; 3 of 8 pods could be had now"),
                "pods": 8,
                "attempts": 2,
                "retry_at": "2026-09-21T14:13:20Z",
                "node_groups": self._text("group-0+2"),
                "cost_per_hour": "3.0600",
                "lower_bound_per_hour": "3.0000",
                "gap": "0.0196",
            }
            for number in range(self.many)
        ]

    def slack(self) -> SlackState:
        shapes = tuple(
            SlackShape(self._text(f"web/{number}"), Role.FIXED, PodSpec((("cpu", 1000),)), 3, self._text("3 of it"))
            for number in range(self.many)
        )
        wanted = (SlackDemand(shapes),)
        return SlackState(AT, wanted, {shapes[0].name: {"node-1": 2}}, warnings=(self._text("no room"),))

    def consolidation(self) -> Shown:
        holding = (Hold(self._text(f"tenant-{number}"), AT, AT + 900, Needs(3)) for number in range(self.many))
        plan = PublishedPlan(AT, ConsolidationPlan((), 1.0, 0.8, 0.7, 0.6, {"node-0": self._text("it is young")}))
        return Shown("on", self._text("pods wait: 6"), plan, holding=tuple(holding))

    def episodes(self) -> list[Episode]:
        came = Outcome((GroupNodes(self._text("group-1"), 4, 1.2),), 1, 95.0)
        planned = Outcome((GroupNodes(self._text("group-0"), 2, 0.9),), 0, 65.0)
        return [
            Episode(
                f"{number}",
                AT + 60 * number,
                AT + 60 * number + 50,
                Ended.QUIET,
                12,
                1,
                came,
                planned,
                unknown=(self._text("the price of group-1"),),
            )
            for number in range(self.many)
        ]

    def _text(self, text: str) -> str:
        return f"{text}{self.mark}"
