"""The controller of ProvisioningRequests under random events: requests and their pods come and go, offerings run short
at once or late, machines vanish, the API server and the journal are unreachable, observations lag behind, others write
the same objects, and the process is killed before or after any of its calls. In the end every request is decided,
nothing is ordered twice, nothing is left over, and conditions that were set stay true."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cagrpc import errors
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.markers import booking_label
from cagrpc.controllers.provisioning.classes import ATOMIC_SCALE_UP, CHECK_CAPACITY, UPSTREAM_CHECK_CAPACITY
from cagrpc.controllers.provisioning.conditions import FIRST_PAUSE_SECONDS
from cagrpc.controllers.settings import ClassBehaviour as Served
from cagrpc.controllers.settings import RequestSettings
from cagrpc.fleet.model import IncrementStatus, Phase
from solver.model import Limit
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import ProvisioningHarness
from tests.support.examples import examples
from tests.support.fleet import MemoryJournal, group
from tests.support.kills import Killed

GROUPS = ("small", "large")
SHAPES = {"tiny": 500, "middle": 3000, "big": 9000}
IN_FORCE = (Phase.PLANNED, Phase.CREATING, Phase.READY, Phase.DONE)
ENOUGH = 30
FINAL = ("Failed", "BookingExpired", "CapacityRevoked", "Provisioned")


class RequestsMachine(RuleBasedStateMachine):
    @initialize(plans=st.booleans())
    def start(self, plans: bool) -> None:
        self.harness = ProvisioningHarness(
            [
                group("small", cpu=4000, max_size=ENOUGH),
                group("large", cpu=16_000, price=0.35, max_size=ENOUGH),
            ],
            [Limit("nodes", {"nodes": 40})],
            requests=RequestSettings(booking_seconds=300, upstream_classes=frozenset(Served)),
        )
        self.harness.plans = plans
        for name, cpu in SHAPES.items():
            self.harness.template(name, cpu=cpu)
        self.names: dict[str, str] = {}
        """Of requests that are there, their UIDs by name."""
        self.said: defaultdict[str, set[str]] = defaultdict(set)
        """What has been true of a request, by UID."""
        self.increments: dict[str, IncrementStatus] = {}
        self.calls_left: int | None = None

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self._settle()
            self.harness.close()

    # What people and workloads do.

    @rule(
        shapes=st.lists(st.tuples(st.sampled_from(list(SHAPES)), st.integers(1, 5)), min_size=1, max_size=3),
        of=st.sampled_from([ATOMIC_SCALE_UP, ATOMIC_SCALE_UP, CHECK_CAPACITY, UPSTREAM_CHECK_CAPACITY]),
        parameters=st.sampled_from([{}, {}, {"noRetry": "true"}, {"ValidUntilSeconds": "3m"}, {"What": "else"}]),
    )
    def a_request_comes(self, shapes: list[tuple[str, int]], of: str, parameters: dict[str, str]) -> None:
        name = f"r{len(self.said) + len(self.names)}-{self.harness.made}-{int(self.harness.clock())}"
        if name not in self.names:
            self.names[name] = self.harness.request(name, *shapes, of=of, **parameters)

    @rule(data=st.data())
    def a_request_is_deleted(self, data: st.DataObject) -> None:
        if self.names:
            name = data.draw(st.sampled_from(sorted(self.names)))
            self.harness.delete(name)
            del self.names[name]

    @rule(data=st.data(), count=st.integers(1, 4))
    def its_pods_come(self, data: st.DataObject, count: int) -> None:
        if self.names:
            name = data.draw(st.sampled_from(sorted(self.names)))
            spec = self.harness.document(name)["spec"]
            cpu = SHAPES[spec["podSets"][0]["podTemplateRef"]["name"]]
            self.harness.consume(name, count, cpu=cpu, of=spec["provisioningClassName"])

    @rule(data=st.data())
    def a_pod_is_done(self, data: st.DataObject) -> None:
        bound = sorted(uid for uid, pod in self.harness.cluster.pods.items() if pod.node is not None)
        if bound:
            self.harness.cluster.finish(data.draw(st.sampled_from(bound)))

    @rule(data=st.data())
    def somebody_edits_a_request(self, data: st.DataObject) -> None:
        if self.names:
            name = data.draw(st.sampled_from(sorted(self.names)))
            path = next(path for path in self.harness.api.store.objects if path.endswith(f"/{name}"))
            self.harness.api.store.edit(path, annotations={"at": str(self.harness.clock())})

    # What happens around it.

    @rule(seconds=st.sampled_from([1.0, 1.0, 2.0, 5.0, BOOT_SECONDS, 45.0]))
    def time_passes(self, seconds: float) -> None:
        try:
            self.harness.run(seconds)
        except Killed:
            self._begin_anew()

    @rule(calls=st.integers(0, 8), done=st.booleans())
    def the_process_is_about_to_die(self, calls: int, done: bool) -> None:
        """Before or after one of its calls."""
        self.calls_left = calls

        def count() -> None:
            assert self.calls_left is not None
            self.calls_left -= 1
            if self.calls_left < 0:
                raise Killed

        self.harness.api.before = (lambda: None) if done else count
        self.harness.api.after = count if done else (lambda: None)

    @rule()
    def the_process_is_restarted(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.harness.api.before = self.harness.api.after = lambda: None
        self._note()
        self.harness.restart()

    @rule(name=st.sampled_from(GROUPS), stock=st.sampled_from([0, 1, 3]), late=st.booleans())
    def an_offering_runs_short(self, name: str, stock: int, late: bool) -> None:
        shortage = Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=stock) if late else Behaviour(stock=stock)
        self.harness.backend.set_behaviour(name, shortage)

    @rule(name=st.sampled_from(GROUPS))
    def an_offering_is_there(self, name: str) -> None:
        self.harness.backend.set_behaviour(name, Behaviour(boot_seconds=BOOT_SECONDS))

    @rule(data=st.data())
    def a_machine_vanishes(self, data: st.DataObject) -> None:
        machines = self.harness.backend.list_instances().instances
        if machines:
            self.harness.backend.vanish([data.draw(st.sampled_from(machines)).id])

    @rule(store=st.booleans(), view=st.booleans())
    def what_is_seen_lags_behind(self, store: bool, view: bool) -> None:
        self.harness.store_lags, self.harness.view_lags = store, view

    @rule(share=st.sampled_from([0, 2, 3]))
    def the_api_server_fails_now_and_then(self, share: int) -> None:
        api = self.harness.api

        def refuses(method: str, path: str) -> errors.CagrpcError | None:
            broken = share and len(api.calls) % share == 0
            return errors.Unavailable("the API server does not answer") if broken else None

        api.refuses = refuses

    @rule()
    def the_cluster_is_out_of_reach(self) -> None:
        self.harness.cluster.problem = None if self.harness.cluster.problem else "the API server does not answer"

    @rule()
    def the_journal_breaks(self) -> None:
        assert isinstance(self.harness.journal, MemoryJournal)
        if not self.harness.journal.broken:
            self.harness.journal.broken = True
            self.time_passes(5.0)
            self.harness.journal.broken = False

    # What must hold.

    @invariant()
    def nothing_is_ordered_twice_for_a_request(self) -> None:
        self._note()
        asked: defaultdict[str, list[IncrementStatus]] = defaultdict(list)
        for status in self.increments.values():
            for uid in status.increment.requests:
                asked[uid].append(status)
        for uid, found in asked.items():
            assert sum(each.phase in IN_FORCE for each in found) <= 1, (uid, found)
            found.sort(key=lambda each: each.created_at_seconds)
            for before, after in pairwise(found):
                assert before.finished_at_seconds is not None
                assert after.created_at_seconds >= before.finished_at_seconds + FIRST_PAUSE_SECONDS - 1

    @invariant()
    def what_was_told_stays_true(self) -> None:
        for name, uid in self.names.items():
            now = {kind for kind in FINAL if self.harness.is_true(name, kind)}
            assert now >= self.said[uid], (name, now, self.said[uid])
            assert not {"Failed", "Provisioned"} <= now
            self.said[uid] = now

    def _note(self) -> None:
        self.increments.update((each.id, each) for each in self.harness.increments())

    def _settle(self) -> None:
        """With everything around it in order every request is decided, and nothing more happens."""
        harness = self.harness
        harness.api.before = harness.api.after = lambda: None
        harness.api.refuses = lambda method, path: None
        harness.store_lags = harness.view_lags = False
        harness.cluster.problem = None
        for name in GROUPS:
            harness.backend.set_behaviour(name, None)
        harness.run(2400, step=5.0)
        self.nothing_is_ordered_twice_for_a_request()
        self.what_was_told_stays_true()
        for name, uid in self.names.items():
            atomic = harness.document(name)["spec"]["provisioningClassName"] == ATOMIC_SCALE_UP
            waits = harness.condition(name, "Provisioned") is not None and "retryAt" in harness.details(name)
            assert self.said[uid] or (waits and not atomic), (name, harness.document(name))
        assert not [each for each in harness.increments() if each.phase.in_flight]
        failed = {booking_label(uid) for uid in self.names.values() if "Failed" in self.said[uid]}
        there = {booking_label(uid) for uid in self.names.values()}
        assert harness.any_labels() <= there - failed
        ordered = sum(
            sum(each.increment.deltas.values()) for each in self.increments.values() if each.phase is Phase.DONE
        )
        assert len(harness.backend.list_instances().instances) <= ordered
        before, writes = len(harness.increments()), len(harness.api.calls)
        harness.run(60, step=5.0)
        assert len(harness.increments()) == before
        quiet = not any("retryAt" in harness.details(name) for name in self.names)
        assert len(harness.api.calls) == writes or not quiet, harness.api.calls[writes:]


RequestsMachine.TestCase.settings = examples(20, steps=25)
TestRequests = RequestsMachine.TestCase
