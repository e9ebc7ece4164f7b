"""The admission check controller under random events: requests are served, fail, expire and are revoked, Kueue admits,
evicts and counts, configurations change and go, and the process is killed between any two writes. Once it has settled,
all objects fit what the Workload says, and nothing is left behind."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cagrpc.api import kueue as wire
from cagrpc.api.kueue import PENDING, READY, REJECTED, RETRY
from cagrpc.controllers.admission_checks.reconcile import over
from cagrpc.controllers.settings import KueueSettings, RetryMode
from tests.support.controllers.kueue_objects import CHECK, KueueHarness, condition, config, retries
from tests.support.examples import examples

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


class KueueMachine(RuleBasedStateMachine):
    @initialize(mode=st.sampled_from(RetryMode))
    def start(self, mode: RetryMode) -> None:
        self.harness = KueueHarness(settings=KueueSettings(retry_mode=mode))

    @rule(steps=st.integers(0, 4))
    def killed_after(self, steps: int) -> None:
        self.harness.do(self.harness.writes(), steps)

    @rule()
    def looks(self) -> None:
        self.harness.settle()

    @rule(answer=st.sampled_from(sorted(ANSWERS)), which=st.integers(0, 5))
    def is_answered(self, answer: str, which: int) -> None:
        names = sorted(self.harness.requests)
        if names:
            found = [condition(each, since=self.harness.now) for each in ANSWERS[answer]]
            self.harness.says(*found, name=names[which % len(names)])

    @rule(spec=st.sampled_from(CONFIGS))
    def configuration_changes(self, spec: dict[str, Any] | None) -> None:
        self.harness.configs[CHECK] = "it is gone" if spec is None else config(**spec)

    @rule()
    def kueue_admits(self) -> None:
        if self.harness.state["state"] == READY and not over(wire.workload(self.harness.workload)):
            self.harness.kueue_says(condition("Admitted"))

    @rule()
    def kueue_evicts(self) -> None:
        self.harness.kueue_evicts()

    @rule()
    def kueue_acts(self) -> None:
        if self.harness.state["state"] in (RETRY, REJECTED):
            self.harness.kueue_evicts()

    @rule()
    def kueue_reserves(self) -> None:
        if over(wire.workload(self.harness.workload)):
            self.harness.kueue_reserves()

    @rule(seconds=st.sampled_from((1.0, 60.0, 600.0)))
    def time_passes(self, seconds: float) -> None:
        self.harness.now += seconds

    @rule(which=st.integers(0, 5))
    def somebody_deletes(self, which: int) -> None:
        names = sorted(self.harness.requests)
        if names:
            del self.harness.requests[names[which % len(names)]]

    @invariant()
    def nothing_is_made_twice(self) -> None:
        if not hasattr(self, "harness"):
            return
        # one of before may be there until the next look, never more than one for the same attempt
        attempts = [
            each["metadata"]["annotations"]["kueue.cagrpc.io/attempt"] for each in self.harness.requests.values()
        ]
        assert len(attempts) == len(set(attempts))

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        harness = self.harness
        harness.settle()
        workload, state = wire.workload(harness.workload), harness.state
        assert len(harness.requests) <= 1
        assert {t["metadata"]["annotations"]["kueue.cagrpc.io/request"] for t in harness.templates.values()} <= set(
            harness.requests
        )
        if over(workload):
            assert not harness.requests
        elif harness.requests and state["state"] in (PENDING, READY):
            (request,) = harness.requests.values()
            assert request["metadata"]["annotations"]["kueue.cagrpc.io/quota-reserved-at"] == workload.reserved_at
        if state["state"] == PENDING and not over(workload) and not workload.admitted:
            waits = bool(harness.requests) or isinstance(harness.configs[CHECK], str)
            assert waits, "Pending, and nobody will ever answer"
        # An eviction resets the state, and leaves what was answered before.
        assert bool(state.get("podSetUpdates")) <= (state["state"] == READY or over(workload))


KueueMachine.TestCase.settings = examples(150, steps=25)
TestKueue = KueueMachine.TestCase
