"""What may befall a world at any time, as rules of state machines."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.world import World


class Outages(RuleBasedStateMachine):
    """`world` is made by the machine's own first rule."""

    world: World

    @rule()
    def the_cluster_is_out_of_reach(self) -> None:
        (self.world.reconnect if self.world.problem else self.world.disconnect)()

    @rule()
    def the_journal_breaks(self) -> None:
        self.world.journal.broken = True
        self.world.run(5)
        self.world.journal.broken = False

    @rule()
    def cagrpc_is_restarted(self) -> None:
        self.world.restart()
