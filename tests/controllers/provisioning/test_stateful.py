"""The controller of ProvisioningRequests under random events: requests and their pods come and go, offerings run short
at once or late, machines vanish, the API server and the journal are unreachable, observations lag behind, others write
the same objects, and the process is killed before or after any of its calls. In the end every request is decided,
nothing is ordered, reserved or counted twice, nothing is left over, and conditions that were set stay true."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cagrpc import errors
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.markers import BOOKING_LABELS, booking_label
from cagrpc.cluster.node_info import requested
from cagrpc.controllers.settings import ClassBehaviour as Served
from cagrpc.controllers.settings import Drive, NamespaceSettings, RequestSettings
from cagrpc.fleet.model import IncrementStatus, Phase
from solver.model import Limit
from tests.support.api_server import Refusal
from tests.support.cluster import NAMESPACE
from tests.support.examples import examples
from tests.support.fleet import group
from tests.support.requests import ATOMIC, CHECK, FIRST_PAUSE_SECONDS, UPSTREAM_CHECK, RequestWorld, path
from tests.support.world import BOOT_SECONDS

GROUPS = ("small", "large")
SHAPES = {"tiny": 500, "middle": 3000, "big": 9000}
IN_FLIGHT = (Phase.PLANNED, Phase.CREATING, Phase.READY)
IN_FORCE = (*IN_FLIGHT, Phase.DONE)
ENOUGH = 30
MOST_OF_A_NAMESPACE = 2
FINAL = ("Failed", "BookingExpired", "CapacityRevoked", "Provisioned")


ASKED = {
    "namespace": st.sampled_from(["", "other/"]),
    "shapes": st.lists(st.tuples(st.sampled_from(list(SHAPES)), st.integers(1, 5)), min_size=1, max_size=3),
    "of": st.sampled_from([ATOMIC, ATOMIC, CHECK, UPSTREAM_CHECK]),
    "parameters": st.sampled_from([{}, {}, {"noRetry": "true"}, {"ValidUntilSeconds": "3m"}, {"What": "else"}]),
}


class RequestsMachine(RuleBasedStateMachine):
    @initialize(plans=st.booleans(), asked=st.lists(st.fixed_dictionaries(ASKED), min_size=1, max_size=4))
    def start(self, plans: bool, asked: list[Any]) -> None:
        self.world = RequestWorld(
            group("small", cpu=4000, max_size=ENOUGH),
            group("large", cpu=16_000, price=0.35, max_size=ENOUGH),
            limits=[Limit("nodes", {"nodes": 40})],
            requests=RequestSettings(
                booking_seconds=300,
                upstream_classes=frozenset(Served),
                per_namespace=NamespaceSettings(requests=MOST_OF_A_NAMESPACE),
            ),
            drive=Drive.PLAN if plans else Drive.ASSIST,
        )
        for name, cpu in SHAPES.items():
            self.world.template(name, cpu=cpu)
        self.names: dict[str, str] = {}
        """Of requests that are there, their UIDs by name."""
        self.said: defaultdict[str, set[str]] = defaultdict(set)
        """What has been true of a request, by UID."""
        self.increments: dict[str, IncrementStatus] = {}
        self.lost: set[str] = set()
        """UIDs of requests of which a node has vanished."""
        self.pods: defaultdict[str, set[str]] = defaultdict(set)
        """Of each request, by name; all that there ever were, and"""
        self.bound: set[str] = set()
        """those that were ever bound."""
        for each in asked:
            self._ask(**each)
            self.world.run(BOOT_SECONDS, step=5.0)
            self._consume(max(self.names), 2)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self._settle()
            self.world.close()

    # What people and workloads do.

    @rule(asked=st.fixed_dictionaries(ASKED))
    def a_request_comes(self, asked: Any) -> None:
        self._ask(**asked)

    def _ask(self, namespace: str, shapes: list[tuple[str, int]], of: str, parameters: dict[str, str]) -> None:
        name = f"{namespace}r{len(self.said) + len(self.names)}-{self.world.cluster.made}-{int(self.world.clock())}"
        if name not in self.names:
            self.names[name] = self.world.request(name, *shapes, of=of, **parameters)

    @rule(data=st.data())
    def a_request_is_deleted(self, data: st.DataObject) -> None:
        if self.names:
            name = data.draw(st.sampled_from(sorted(self.names)))
            self.world.delete(name)
            del self.names[name]

    @rule(data=st.data(), count=st.integers(1, 4))
    def its_pods_come(self, data: st.DataObject, count: int) -> None:
        if self.names:
            self._consume(data.draw(st.sampled_from(sorted(self.names))), count)

    def _consume(self, name: str, count: int) -> None:
        spec = self.world.document(name)["spec"]
        cpu = SHAPES[spec["podSets"][0]["podTemplateRef"]["name"]]
        namespace, _, of = name.rpartition("/")
        more = {"of": spec["provisioningClassName"], "namespace": namespace or NAMESPACE, "cpu": cpu}
        self.pods[name].update(self.world.consume(of, count, **more))

    @rule(data=st.data())
    def a_pod_is_done(self, data: st.DataObject) -> None:
        bound = sorted(uid for uid in self.world.cluster.pods() if self.world.cluster.node_of(uid))
        if bound:
            self.world.cluster.finish(data.draw(st.sampled_from(bound)))

    @rule(data=st.data())
    def somebody_edits_a_request(self, data: st.DataObject) -> None:
        if self.names:
            name = data.draw(st.sampled_from(sorted(self.names)))
            self.world.api.edit(path(name), annotations={"at": str(self.world.clock())})

    # What happens around it.

    @rule(seconds=st.sampled_from([1.0, 1.0, 2.0, 5.0, BOOT_SECONDS, 45.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.run(seconds)

    @rule(calls=st.integers(1, 16))
    def the_process_is_about_to_die(self, calls: int) -> None:
        """Before or after one of its calls."""
        self.world.calls.fatal = len(self.world.calls.names) + calls

    @rule()
    def the_process_is_restarted(self) -> None:
        self._note()
        self.world.restart()

    @rule(name=st.sampled_from(GROUPS), stock=st.sampled_from([0, 1, 3]), late=st.booleans())
    def an_offering_runs_short(self, name: str, stock: int, late: bool) -> None:
        shortage = Behaviour(boot_seconds=BOOT_SECONDS, late_shortage=stock) if late else Behaviour(stock=stock)
        self.world.backend.set_behaviours({name: shortage})

    @rule(name=st.sampled_from(GROUPS))
    def an_offering_is_there(self, name: str) -> None:
        self.world.backend.set_behaviours({name: Behaviour(boot_seconds=BOOT_SECONDS)})

    @rule(data=st.data())
    def a_machine_vanishes(self, data: st.DataObject) -> None:
        machines = self.world.backend.list_instances().instances
        if machines:
            machine = data.draw(st.sampled_from(machines))
            node = self.world.cluster.nodes().get(machine.id.removeprefix("simulated://"))
            labels = node["metadata"]["labels"] if node is not None else {}
            self.lost |= {each.removeprefix(BOOKING_LABELS) for each in labels}
            increments = (each for each in self.world.increments() if machine.token.startswith(each.id))
            self.lost.update(*(each.increment.requests for each in increments))
            self.world.backend.vanish([machine.id])

    @rule(late=st.sets(st.sampled_from(["provisioningrequests", "nodes", "pods"])))
    def what_is_seen_lags_behind(self, late: set[str]) -> None:
        self.world.late = late

    @rule(share=st.sampled_from([0, 2, 3]))
    def the_api_server_fails_now_and_then(self, share: int) -> None:
        api = self.world.api

        def refuse(request: str) -> None:
            if share and not request.startswith("GET") and len(api.requests) % share == 0:
                raise Refusal(503)

        api.before = refuse

    @rule()
    def the_cluster_is_out_of_reach(self) -> None:
        (self.world.reconnect if self.world.problem else self.world.disconnect)()

    @rule()
    def the_journal_breaks(self) -> None:
        if not self.world.journal.broken:
            self.world.journal.broken = True
            self.time_passes(5.0)
            self.world.journal.broken = False

    # What must hold.

    @invariant()
    def nothing_is_ordered_twice_for_a_request(self) -> None:
        """But where a node went that it had got, before it was told so."""
        self._note()
        asked: defaultdict[str, list[IncrementStatus]] = defaultdict(list)
        for status in self.increments.values():
            for uid in status.increment.requests:
                asked[uid].append(status)
        for uid, found in asked.items():
            counted = IN_FLIGHT if uid in self.lost else IN_FORCE
            assert sum(each.phase in counted for each in found) <= 1, (uid, found)
            found.sort(key=lambda each: each.created_at_seconds)
            for before, after in pairwise(found):
                assert before.finished_at_seconds is not None
                assert after.created_at_seconds >= before.finished_at_seconds + FIRST_PAUSE_SECONDS - 1

    @invariant()
    def what_was_told_stays_true(self) -> None:
        for name, uid in self.names.items():
            now = {kind for kind in FINAL if self.world.is_true(name, kind)}
            assert now >= self.said[uid], (name, now, self.said[uid])
            assert not {"Failed", "Provisioned"} <= now
            self.said[uid] = now

    @invariant()
    def nothing_is_reserved_twice(self) -> None:
        try:
            state = self.world.view.state()
            reserved = self.world.assumed.snapshot(self.world.fleet.snapshot, state).booked.reservations
        except errors.Unavailable:  # it has just begun
            return
        for each in state.nodes:
            asked = requested((found.spec, found.count) for found in reserved.get(each.node.name, ()))
            assert all(amount <= each.node.free.get(name, 0) for name, amount in asked.items()), (each, asked)

    @invariant()
    def no_pod_is_counted_twice(self) -> None:
        self.bound.update(uid for uid in self.world.cluster.paths if self.world.cluster.node_of(uid))
        for name in self.names:
            said = self.world.details(name).get("consumed", "")
            counted = sum(int(each.partition("=")[2]) for each in said.split(",") if each)
            assert counted <= len(self.pods[name] & self.bound), (name, said)

    @invariant()
    def no_namespace_has_more_than_its_share(self) -> None:
        books = [each for each in self.world.page("/provisioningrequests") if each["class"] != CHECK]
        kept = Counter(each["namespace"] for each in books if each["phase"] in ("coming", "provisioned"))
        assert max(kept.values(), default=0) <= MOST_OF_A_NAMESPACE

    def _note(self) -> None:
        self.increments.update((each.id, each) for each in self.world.increments())

    def _settle(self) -> None:
        """With everything around it in order every request is decided, and nothing more happens."""
        world = self.world
        world.calls.fatal = 0
        world.refuse()
        world.late = set()
        world.reconnect()
        for name in GROUPS:
            world.backend.set_behaviours({name: None})
        for _ in range(96):
            world.run(25, step=5.0)
            self.nothing_is_reserved_twice()
            self.no_pod_is_counted_twice()
            self.no_namespace_has_more_than_its_share()
        self.nothing_is_ordered_twice_for_a_request()
        self.what_was_told_stays_true()
        for name, uid in self.names.items():
            atomic = world.document(name)["spec"]["provisioningClassName"] == ATOMIC
            waits = world.condition(name, "Provisioned") is not None and "retryAt" in world.details(name)
            assert self.said[uid] or (waits and not atomic), (name, world.document(name))
        assert not [each for each in world.increments() if each.phase.in_flight]
        assert not world.without_owner()
        failed = {booking_label(uid) for uid in self.names.values() if "Failed" in self.said[uid]}
        there = {booking_label(uid) for uid in self.names.values()}
        assert world.any_labels() <= there - failed
        ordered = sum(
            sum(each.increment.deltas.values()) for each in self.increments.values() if each.phase is Phase.DONE
        )
        assert len(world.backend.list_instances().instances) <= ordered
        before, writes = len(world.increments()), len(world.writes())
        world.run(60, step=5.0)
        assert len(world.increments()) == before
        quiet = not any("retryAt" in world.details(name) for name in self.names)
        assert len(world.writes()) == writes or not quiet, world.writes()[writes:]


RequestsMachine.TestCase.settings = examples(20, steps=25)
TestRequests = RequestsMachine.TestCase
