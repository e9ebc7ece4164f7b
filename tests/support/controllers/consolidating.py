"""The controller of consolidation over the scene of `walking`: it asks about the scene's cluster, plans for real, and
has its steps walked there. Every write to the API server is noted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from cagrpc.controllers.consolidation.controller import ConsolidationController
from cagrpc.controllers.consolidation.observer import Observer
from cagrpc.controllers.consolidation.question import ConsolidationQuestion
from cagrpc.controllers.settings import ConsolidationSettings
from cagrpc.errors import CagrpcError
from cagrpc.server.consolidation import Walker
from solver.consolidation.consolidate import consolidate
from solver.consolidation.model import ConsolidationPlan, ConsolidationProblem
from solver.model import Budget, NodeGroup
from tests.support.controllers.walking import WalkHarness


def quickly(problem: ConsolidationProblem, _: Budget) -> ConsolidationPlan:
    return consolidate(problem, Budget(deterministic_seconds=0.5))


class ConsolidatingHarness(WalkHarness):
    """`controller` is the one of the process that runs; `settings_now` are those of the next one."""

    controller: ConsolidationController[ConsolidationQuestion]

    def __init__(self, groups: Sequence[NodeGroup], settings: ConsolidationSettings) -> None:
        self.settings_now = settings
        self.writes: list[str] = []
        super().__init__(groups)
        self.fault = self._noted

    def _noted(self, what: str, do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        self.writes.append(what)
        return do()

    def _start(self) -> None:
        super()._start()
        cluster: Any = self.cluster
        fleet, clock = self.fleet, self.clock
        observer = Observer(cluster, fleet, self.settings_now, shortage_seconds=300.0, now=clock)
        self.controller = ConsolidationController(
            fleet, observer, Walker(self.walk), self.settings_now, quickly, now=clock, clock=clock
        )

    def step(self) -> None:
        with suppress(CagrpcError):
            self.controller.step()
        super().step()

    @property
    def shown(self) -> Any:
        return self.controller.status()["consolidation"]
