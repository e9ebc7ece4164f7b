"""Whatever is asked of a provider, however its answers are lost, late or refused, and whenever the process is killed:
in the end every increment is whole or gone, and the provider has what the fleet lists, no more and no less."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cagrpc import errors
from cagrpc.fleet.model import InstanceState, Phase
from tests.backends.externalgrpc.test_conformance import HABITS
from tests.backends.externalgrpc.test_orders import Run

GROUPS = ("pool-a", "pool-b")


class Provider(RuleBasedStateMachine):
    @initialize(habits=st.sampled_from(sorted(HABITS)))
    def begin(self, habits: str) -> None:
        self.run = Run(HABITS[habits], deadline_seconds=300.0)
        self.asked: list[str] = []

    @rule(a=st.integers(0, 3), b=st.integers(0, 3))
    def ask(self, a: int, b: int) -> None:
        deltas = {key: number for key, number in (("a", a), ("b", b)) if number}
        if deltas and len(self.asked) < 6:
            with suppress(errors.Unavailable):  # a new process that has not reached the provider yet
                self.asked.append(self.run.ask(**deltas))

    @rule(seconds=st.sampled_from([0.0, 1.0, 20.0, 95.0]))
    def wait(self, seconds: float) -> None:
        self.run.step(seconds)

    @rule(group=st.sampled_from(GROUPS), number=st.integers(1, 3))
    def delete(self, group: str, number: int) -> None:
        ids = [each.id for each in self.run.listed(group) if each.state is not InstanceState.DELETING]
        with suppress(errors.Unavailable):
            self.run.fleet.delete_instances(group, ids[:number])

    @rule()
    def withdraw(self) -> None:
        if self.asked:
            with suppress(errors.Unavailable):
                self.run.fleet.withdraw(self.asked[-1], "not wanted any more")

    @rule()
    def kill(self) -> None:
        self.run.restart()

    @rule(after=st.integers(0, 2))
    def lose_answers(self, after: int) -> None:
        self.run.channel.losing = after

    @rule(seconds=st.sampled_from([5.0, 60.0, 1e9]))
    def delay(self, seconds: float) -> None:
        self.run.channel.delay_seconds = seconds

    @rule()
    def cut(self) -> None:
        self.run.channel.is_cut = True

    @rule()
    def reach_again(self) -> None:
        self.run.channel.recover()

    @rule(group=st.sampled_from(GROUPS), stock=st.sampled_from([0, 1, None]))
    def change_stock(self, group: str, stock: int | None) -> None:
        self.run.provider.groups[group].stock = stock

    @invariant()
    def nothing_is_there_twice(self) -> None:
        if hasattr(self, "run"):
            for group in GROUPS:
                ids = [each.id for each in self.run.listed(group)]
                assert len(ids) == len(set(ids))

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        run = self.run
        run.cloud.recover()
        for group in GROUPS:
            run.provider.restock(group)
        for _ in range(4):
            run.step(200.0)
            run.cloud.advance(1.0)
        for increment in self.asked:
            try:
                assert run.phase(increment) in (Phase.DONE, Phase.ROLLED_BACK)
            except errors.NotFound:
                continue
        for group in GROUPS:
            ids = {each.id for each in run.listed(group)}
            standing = {name for name in run.cloud.machines() if name.startswith(f"{group}/")}
            assert len(ids) == len(standing) == run.target(group), f"{ids}, {standing}, {run.target(group)}"
            assert run.fleet.snapshot.groups[group].target_size == run.target(group)
            assert run.kept(group).owed == 0
            assert run.kept(group).doubt is None


Provider.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    phases=(Stage.explicit, Stage.generate),
    suppress_health_check=list(HealthCheck),
)
TestProvider = Provider.TestCase
