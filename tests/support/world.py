"""One world for tests of controllers: a cluster in memory (`cluster.Cluster`), a simulated cloud, a fleet with its
journal, and the controllers of a leader, wired as the server wires them. Time is told, plans are deterministic, and
nothing has a thread.

    with World(group("a", cpu=4000)) as world:   # drive: plan; `requests=RequestSettings()` and so on add controllers
        pods = world.cluster.add(3, cpu=2000)
        world.run(60)                            # so many seconds, in steps of one
        assert not world.cluster.pending()
        assert world.targets() == {"a": 2}

What is put in: `world.cluster.add`, `.workload`, `.node`, any object by `world.api.put(path, document)`; shortages and
failures by `world.backend.set_behaviour`. What comes out: `world.cluster.nodes()`, `.node_of(pod)`, `world.api`'s
objects and requests, `increments`, `targets`, `events`, `status`, `page`, `metrics`. Faults: `restart`, `disconnect`,
`late` watches, `api.before` and `api.fault` (a refused or lost request), `journal.broken`, `meanwhile` (during a plan),
and `fatal`: the process is killed at that step of its writes, orders and commits, and another one goes on.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from prometheus_client.openmetrics import parser as openmetrics

from cagrpc import errors
from cagrpc.backends.plugin import OpenBackend
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.node_info import PodOwner, RequestOwner
from cagrpc.config.schema.listen import Address
from cagrpc.config.settings import Settings
from cagrpc.controllers.assume_cache.cache import AssumeCache
from cagrpc.controllers.placement.controller import PlacementController
from cagrpc.controllers.runtime import Runtime
from cagrpc.controllers.settings import ClusterSettings, Drive
from cagrpc.demonstration.objects import collection_of
from cagrpc.demonstration.wire import protobuf
from cagrpc.fleet.catalogue import Catalogue
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.model import IncrementStatus, Phase
from cagrpc.fleet.visibility import ShownGroups
from cagrpc.kube.client.envelopes import Encoding, identity
from cagrpc.kube.informer.informers import Informer
from cagrpc.runtime.controller import Controller, JsonList
from cagrpc.runtime.runner import Steps as ControllerSteps
from cagrpc.server.cluster import ClusterConnection
from cagrpc.server.controllers import assume_cache, cluster_controllers
from cagrpc.services.http.metrics import Metrics
from solver.model import Budget, Limit, NodeGroup
from tests.support.api_server import Document
from tests.support.cluster import Cluster
from tests.support.fleet import FakeClock, MemoryJournal, run_inline
from tests.support.kills import Killed, SteppedJournal, Steps

NewWorld = Callable[..., "World"]
"""`new_world(*groups, **settings)`: the fixture of tests/controllers, which closes what it made."""
Happening = float | Callable[["World"], object]
"""So many seconds that pass, or what somebody does."""
BOOT_SECONDS = 20.0
"""How long machines boot, if nothing else is said of them."""
BUDGET = Budget(deterministic_seconds=1.0)
EVENTS = "/apis/events.k8s.io/v1/events"
PLANNER = "the planner loop"


@dataclass(frozen=True)
class Event:
    """One that was written."""

    name: str
    """Of the object that it is about."""
    reason: str
    text: str
    warning: bool
    kind: str
    uid: str
    labels: Mapping[str, str]


class World:
    """See above. What is not said here is the server's default."""

    def __init__(
        self,
        *groups: NodeGroup,
        limits: Sequence[Limit] = (),
        drive: Drive = Drive.PLAN,
        fatal: int = 0,
        **settings: Any,
    ) -> None:
        """`settings` are those of `cagrpc.config.settings.Settings`: planner, requests, kueue, slack, consolidation."""
        self.clock = FakeClock()
        self.directory = tempfile.TemporaryDirectory()
        self.backend = SimulatedBackend(Path(self.directory.name) / "simulated.sqlite", clock=self.clock)
        self.backend.set_behaviours({"*": Behaviour(boot_seconds=BOOT_SECONDS)})
        self.cluster = Cluster(self.clock, self.backend, groups)
        self.api = self.cluster.api
        self.journal = MemoryJournal()
        nowhere = Address("127.0.0.1", 0)
        self.settings = Settings(
            provider=nowhere,
            expander=nowhere,
            http=nowhere,
            tls=None,
            state_directory=Path(self.directory.name),
            backend=_NotOpened(),
            catalogue=Catalogue((), {}),
            groups=tuple(groups),
            limits=tuple(limits),
            shown=ShownGroups(),
            options={},
            devices={},
            gpu_label="",
            increment_deadline_seconds=600.0,
            expander_budget_seconds=1.0,
            drive=drive,
            cluster=ClusterSettings(),
            **settings,
        )
        self.late: set[str] = set()
        """Resources, as in `kubectl get`, of which changes are not seen now."""
        self.idle: set[str] = set()
        """Names of controllers that take no steps now."""
        self.cpu_seconds = 0.0
        """Of the thread of all steps."""
        self.calls = Steps()
        """Each write to the API server but Events, each order, deletion and commit: before it and after it."""
        self.reads: Counter[str] = Counter()
        """How often each controller, by name, has read the state of the cluster."""
        self.died = False
        """Whether the process was killed."""
        self.problem: str | None = None
        self._log: defaultdict[str, list[tuple[str, Document, bool]]] = defaultdict(list)
        self._logged = 0
        self._meanwhile: Callable[[], object] | None = None
        self.stepping = ""
        """The name of the controller that takes a step."""
        self._undo = patch.object(Informer, "start", lambda _: None)  # `deliver` does what their threads do
        self._undo.start()
        self._start()
        self.calls.names.clear()
        self.calls.fatal = fatal

    def _start(self) -> None:
        for call in (SimulatedBackend.order, SimulatedBackend.delete):
            vars(self.backend)[call.__name__] = self.calls.around(call.__name__, call.__get__(self.backend))
        self.api.around = lambda what, do: do() if "/events" in what else self.calls.around(what, do)()
        self._delivered: dict[Informer[Any], int] = {}
        self._all_delivered: tuple[object, ...] | None = None
        """What there was to deliver when all of it had been."""
        connection = ClusterConnection(
            ClusterSettings(), self.settings, self.api.client(), clock=self.clock, now=self.clock
        )
        self.view = connection.view
        vars(self.view)["state"] = self._interrupted(self.view.state)
        self.fleet = Fleet(
            FleetSettings(
                self.settings.groups,
                self.settings.limits,
                quotas=self.view.quota_limits,
                autoscaler_may_grow=self.settings.drive is not Drive.PLAN,
            ),
            self.backend,
            SteppedJournal(self.journal, self.calls),
            submit=run_inline,
            clock=self.clock,
            nodes=self.view,
        )
        runtime = Runtime(self.clock, self.clock, lambda: self.cpu_seconds, BUDGET, writers=1)
        opened = OpenBackend(self.backend, lambda: None)
        self.controllers = cluster_controllers(
            self.settings, connection, self.fleet, opened, assume_cache(self.settings, connection, runtime), runtime
        )
        self._steps = [ControllerSteps(each, self.clock) for each in self.controllers]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._undo.stop()
        self.fleet.close()
        self.backend.close()
        self.directory.cleanup()

    # ---- what happens

    def run(self, seconds: float, step: float = 1.0) -> None:
        """Step until `seconds` have passed. A process that is killed is replaced by another."""
        until = self.clock() + seconds
        while self.clock() < until:
            self.step()
            self.clock.advance(min(step, until - self.clock()))
        self.step()

    def play(self, *story: Happening) -> None:
        """Let one thing happen after the other."""
        for each in story:
            each(self) if callable(each) else self.run(each)

    def step(self) -> None:
        """Let everybody act once."""
        try:
            self._step()
        except Killed:
            self.died = True
            self.restart()

    def _step(self) -> None:
        with suppress(errors.Unavailable):
            self.fleet.reconcile()
        self.cluster.kubelets()
        self.deliver()
        for each in self._steps:
            if each.controller.name not in self.idle:
                self.stepping = each.controller.name
                each.take()
                for queue in each.controller.queues():
                    queue.run_due()
                self.stepping = ""
                self.deliver()
        self.cluster.schedule()
        self.cluster.controllers()
        self.deliver()

    def restart(self) -> None:
        """End the process, wherever it is, and begin another one."""
        self.calls = Steps()
        with suppress(errors.CagrpcError):
            self.fleet.close()
        shelf, broken = self.journal.shelf, self.journal.broken
        self.journal = MemoryJournal(shelf)
        self.journal.broken = False
        self._start()
        self.journal.broken = broken

    def disconnect(self, problem: str = "the API server does not answer") -> None:
        """From now on changes of no resource are seen."""
        self.problem = problem

    def reconnect(self) -> None:
        self.problem = None

    def meanwhile(self, do: Callable[[], object], controller: str = PLANNER) -> None:
        """Do something while the next plan is made: when this controller has read the state of the cluster."""
        self._meanwhile = lambda: self.stepping == controller and (do() or True)

    def _interrupted(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def state(**more: Any) -> Any:
            found = read(**more)
            self.reads[self.stepping] += 1
            happens, self._meanwhile = self._meanwhile, None
            if happens is not None and not happens():
                self._meanwhile = happens
            self.deliver()
            return found

        return state

    def deliver(self) -> None:
        """Deliver to all informers what the API server has now, as watches do."""
        while self.api.unseen:
            path, document, there = self.api.unseen.popleft()
            self._log[collection_of(path)].append((path, document, there))
            self._logged += 1
        informers = [informer for each in (self.view, *self.controllers) for informer in each.informers()]
        now = self._logged, len(informers), self.problem, frozenset(self.late)
        if now == self._all_delivered:
            return
        for informer in informers:
            if isinstance(informer, Informer):
                informer.problem = self.problem
                if self.problem is None and informer.resource.path.rpartition("/")[2] not in self.late:
                    self._deliver_to(informer)
        self._all_delivered = now

    def _deliver_to(self, informer: Informer[Any]) -> None:
        of = informer.resource
        changes = self._log[of.path]
        seen = self._delivered.get(informer)
        self._delivered[informer] = len(changes)
        if seen is None:
            there = {path: each for path, each in self.api.objects.items() if collection_of(path) == of.path}
            informer.sink.replaced(_decoded(informer, there.items()))
            informer.synced = True
            return
        for path, document, is_there in changes[seen:]:
            found = list(_decoded(informer, [(path, document)])) if is_there else []
            for each in found:
                informer.sink.applied(each)
            if not found:
                informer.sink.deleted(identity(Encoding.JSON, document))

    # ---- what has come of it

    def increments(self, *phases: Phase) -> list[IncrementStatus]:
        return [each for each in self.fleet.snapshot.increments if not phases or each.phase in phases]

    def targets(self) -> dict[str, int]:
        """Return the target sizes above 0."""
        return {name: each.target_size for name, each in self.fleet.snapshot.groups.items() if each.target_size}

    @property
    def ordered(self) -> int:
        """How many machines were ever ordered, whatever became of them."""
        with closing(sqlite3.connect(Path(self.directory.name) / "simulated.sqlite")) as connection:
            found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'instances'").fetchone()
        return int(found[0]) if found else 0

    def events(self, *reasons: str) -> list[Event]:
        """Return the Events that were written, in their order."""
        found = []
        for path, each in self.api.objects.items():
            if collection_of(path) == EVENTS and (not reasons or each["reason"] in reasons):
                about, labels = each["regarding"], each["metadata"].get("labels", {})
                warning = each["type"] == "Warning"
                event = Event(about["name"], each["reason"], each["note"], warning, about["kind"], about["uid"], labels)
                found.append(event)
        return found

    def status(self) -> dict[str, Any]:
        """Return `/status`."""
        return {name: of for each in (self.view, *self.controllers) for name, of in each.status().items()}

    def page(self, path: str) -> Any:
        """Return what a page shows."""
        (page,) = (each.pages()[path] for each in self.controllers if path in each.pages())
        found = page.get()
        return [found.as_json(each) for each in found.items] if isinstance(found, JsonList) else found

    def metrics(self) -> dict[str, dict[tuple[str, ...], Any]]:
        """Return the samples by name and by the values of their labels."""
        shown = Metrics(lambda: [of for each in self.controllers for of in each.collectors()])
        _, text = shown.exposition("application/openmetrics-text; version=1.0.0")
        samples: defaultdict[str, dict[tuple[str, ...], Any]] = defaultdict(dict)
        for family in openmetrics.text_string_to_metric_families(text.decode()):  # type: ignore[no-untyped-call]
            for each in family.samples:
                samples[each.name][tuple(each.labels.values())] = each
        return samples

    @property
    def assumed(self) -> AssumeCache:
        """The assume cache of the controllers."""
        (found,) = {each._assumed for each in self.controllers if isinstance(each, PlacementController)}
        return found

    def without_owner(self) -> list[object]:
        """Return everything that is assumed for somebody who is no more: a pod that is bound or gone, a request that is
        deleted, a disruption that has ended, a node that is gone."""
        fleet, state = self.fleet.snapshot, self.view.state()
        snapshot = self.assumed.snapshot(fleet, state)
        waiting = {pod.key for each in state.waiting for pod in each.pods} | state.expected | fleet.in_flight_pods
        moved = {each.uid for each in fleet.disruption.moves} if fleet.disruption is not None else set()
        requests = {
            each["metadata"]["uid"] for path, each in self.api.objects.items() if "/provisioningrequests/" in path
        }
        nodes = {each.node.name for each in state.nodes} | {n.name for of in fleet.increments for n in of.nodes}
        found: list[object] = [key for key in self.assumed.placements.known() if key not in waiting]
        found += [each.uid for each in snapshot.requests.bookings if each.uid not in requests]
        for reserved in (snapshot.booked.reservations, snapshot.displaced, snapshot.placeholders):
            found += [name for name in reserved if name not in nodes]
            for owner in {each.owner for of in reserved.values() for each in of}:
                match owner:
                    case PodOwner(pod):
                        has_ended = pod not in moved
                    case RequestOwner(uid):
                        has_ended = uid not in requests
                    case _:
                        has_ended = False
                found += [owner] if has_ended else []
        return found

    def controller(self, name: str) -> Controller:
        (found,) = (each for each in self.controllers if each.name == name)
        return found


class _NotOpened:
    def open(self, context: Any) -> OpenBackend:
        raise NotImplementedError


def _encoded(informer: Informer[Any], path: str, document: Document) -> Any:
    return document if informer.resource.encoding is Encoding.JSON else protobuf(path, document)


def _decoded(informer: Informer[Any], objects: Iterable[tuple[str, Document]]) -> Iterator[Any]:
    """Yield those that can be read, and that the resource selects."""
    label, _, value = informer.resource.query.get("labelSelector", "").partition("=")
    for path, document in objects:
        if label and document["metadata"].get("labels", {}).get(label) != value:
            continue
        try:
            yield informer.resource.decode(_encoded(informer, path, document))
        except errors.InvalidInput as error:
            informer.undecoded.add(identity(Encoding.JSON, document), error)
