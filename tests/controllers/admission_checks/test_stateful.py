"""The admission check controller under random events: requests are served, fail, expire and are revoked, Kueue admits,
evicts and counts, configurations change and go, and the process is killed between any two writes. Once it has settled,
all objects fit what the Workload says, and nothing is left behind."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cagrpc.api.kueue import PENDING, READY, REJECTED, RETRY, KueueWorkload
from cagrpc.controllers.settings import KueueSettings, RetryMode
from tests.support.examples import examples
from tests.support.kueue import KueueWorld, condition, retries

ANSWERS = {
    "accepted": ("Accepted",),
    "provisioned": ("Accepted", "Provisioned"),
    "failed": ("Failed",),
    "expired": ("Accepted", "Provisioned", "BookingExpired"),
    "revoked": ("Accepted", "Provisioned", "CapacityRevoked"),
}
CONFIGS: list[dict[str, Any] | None] = [
    {},
    {"parameters": {"a": "b"}},
    retries(0),
    retries(1),
    {"managedResources": ["nvidia.com/gpu"]},
    {"podSetMergePolicy": "IdenticalPodTemplates"},
    None,
]


def over(workload: KueueWorkload) -> bool:
    """Return whether it has no quota now, or is about to lose it."""
    return not workload.reserved_at or workload.evicted


class KueueMachine(RuleBasedStateMachine):
    @initialize(mode=st.sampled_from(RetryMode))
    def start(self, mode: RetryMode) -> None:
        self.world = KueueWorld(settings=KueueSettings(retry_mode=mode))

    @rule(calls=st.integers(1, 8))
    def is_killed(self, calls: int) -> None:
        """Before or after one of its next writes."""
        self.world.calls.fatal = len(self.world.calls.names) + calls
        self.world.step()

    @rule()
    def looks(self) -> None:
        self.world.settle()

    @rule(answer=st.sampled_from(sorted(ANSWERS)), which=st.integers(0, 5))
    def is_answered(self, answer: str, which: int) -> None:
        names = sorted(self.world.requests)
        if names:
            found = [condition(each, since=self.world.clock()) for each in ANSWERS[answer]]
            self.world.says(*found, name=names[which % len(names)])

    @rule(spec=st.sampled_from(CONFIGS))
    def configuration_changes(self, spec: dict[str, Any] | None) -> None:
        self.world.remove_config() if spec is None else self.world.configure(**spec)

    @rule()
    def kueue_admits(self) -> None:
        if self.world.state["state"] == READY and not over(self.world.workload):
            self.world.kueue_says(condition("Admitted"))

    @rule()
    def kueue_evicts(self) -> None:
        self.world.kueue_evicts()

    @rule()
    def kueue_acts(self) -> None:
        if self.world.state["state"] in (RETRY, REJECTED):
            self.world.kueue_evicts()

    @rule()
    def kueue_reserves(self) -> None:
        if over(self.world.workload):
            self.world.kueue_reserves()

    @rule(seconds=st.sampled_from((1.0, 60.0, 600.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule(which=st.integers(0, 5))
    def somebody_deletes(self, which: int) -> None:
        names = sorted(self.world.requests)
        if names:
            self.world.delete_requests(names[which % len(names)])

    @invariant()
    def nothing_is_made_twice(self) -> None:
        if not hasattr(self, "world"):
            return
        # one of before may be there until the next look, never more than one for the same attempt
        attempts = [each["metadata"]["annotations"]["kueue.cagrpc.io/attempt"] for each in self.world.requests.values()]
        assert len(attempts) == len(set(attempts))
        assert not self.world.events("FailedCreate"), "another is in the way"

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self._settled()
            self.world.close()

    def _settled(self) -> None:
        world = self.world
        world.calls.fatal = 0
        world.settle()
        workload, state = world.workload, world.state
        assert len(world.requests) <= 1
        of = {each["metadata"]["annotations"]["kueue.cagrpc.io/request"] for each in world.templates.values()}
        assert of <= set(world.requests)
        if over(workload):
            assert not world.requests
        elif world.requests and state["state"] in (PENDING, READY):
            (request,) = world.requests.values()
            assert request["metadata"]["annotations"]["kueue.cagrpc.io/quota-reserved-at"] == workload.reserved_at
        if state["state"] == PENDING and not over(workload) and not workload.admitted:
            waits = bool(world.requests) or not world.configured()
            assert waits, "Pending, and nobody will ever answer"
        # An eviction resets the state, and leaves what was answered before.
        assert bool(state.get("podSetUpdates")) <= (state["state"] == READY or over(workload))


KueueMachine.TestCase.settings = examples(150, steps=25)
TestKueue = KueueMachine.TestCase
