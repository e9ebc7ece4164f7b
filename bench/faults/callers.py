"""Who asks the fleet for nodes in a campaign, and remembers what was answered: a planner for pods and for
ProvisioningRequests, and a cluster-autoscaler. A caller knows only answers. What it may conclude from them is what the
fleet promises, and `observer` holds the fleet to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from bench.faults.cloud import BookedInstance
from cagrpc import errors
from cagrpc.fleet.fleet import Fleet
from cagrpc.fleet.model import IncrementSpec, IncrementStatus, InstanceState, Origin, Phase

CA_WAITS_SECONDS = 5.0
"""For the answer to an increase; afterwards it has failed, whatever comes."""
_FAILING = (Phase.ROLLING_BACK, Phase.ROLLED_BACK)
_GROUPS = ("a", "b", "c")
_MOST_OPEN = 12
_MOST_TRIES = 4


class Answer(StrEnum):
    TAKEN = "taken"
    """It is in the journal."""
    UNCLEAR = "unclear"
    """The process ended, or the answer came too late for whoever waited."""
    SHORT = "short"
    """The cloud refused: nothing is left behind, but the record that it failed."""
    NOTHING = "nothing"
    """Nothing was changed."""


@dataclass(slots=True)
class Ask:
    """One request for an increment."""

    reason: str
    """Its own, by which it is found again."""
    deltas: Mapping[str, int]
    asked_at_seconds: float
    """By the world's clock, as all times here."""
    answer: Answer = Answer.UNCLEAR
    id: str = ""
    """Of its increment, once an answer named it."""
    known_at_seconds: float = float("inf")
    phase: Phase | None = None
    """The last one that an answer named,"""
    changed_at_seconds: float = float("-inf")
    """and since when."""
    failed_at_seconds: float | None = None
    """When that was a failing one for the first time."""
    withdrawn: bool = False
    """Whether the caller wanted it back, whatever was answered."""
    lost: bool = False
    """Whether an older backup of the journal does not know it."""
    restored: bool = False
    """Whether an older backup has it as it was before it ended."""


@dataclass(slots=True)
class Demand:
    """What needs nodes: pods, a ProvisioningRequest, or what the autoscaler has seen."""

    number: int
    origin: Origin
    deltas: Mapping[str, int]
    of_request: bool
    asks: list[Ask] = field(default_factory=list)
    over: bool = False
    """Nobody needs its nodes any more."""

    @property
    def name(self) -> str:
        return f"demand-{self.number}"

    @property
    def last(self) -> Ask | None:
        return self.asks[-1] if self.asks else None


class Callers:
    def __init__(self, rng: Random, now: Callable[[], float], told: Counter[str], goal: int) -> None:
        """They ask for about `goal` increments."""
        self._rng = rng
        self._now = now
        self._told = told
        self._goal = goal
        self.demands: list[Demand] = []
        self.deletes: dict[str, bool] = {}
        """Ids of instances that were to be deleted: whether that was answered with OK."""
        self.violations: list[str] = []

    @property
    def asks(self) -> list[Ask]:
        return [ask for demand in self.demands for ask in demand.asks]

    @property
    def journalled(self) -> int:
        """How many increments there were."""
        return sum(bool(ask.id) for ask in self.asks)

    @property
    def is_done(self) -> bool:
        return self.journalled >= self._goal

    # ---- what they learn

    def look(self, fleet: Fleet) -> None:
        """Find their increments in what the fleet shows."""
        by_reason = {ask.reason: ask for ask in self.asks}
        for status in fleet.snapshot.increments:
            ask = by_reason.get(status.increment.reason)
            if ask is not None:
                self._learn(ask, status)

    def _learn(self, ask: Ask, status: IncrementStatus) -> None:
        failing = status.phase in _FAILING
        if ask.answer is Answer.NOTHING or (ask.answer is Answer.SHORT and not failing):
            self.violations.append(f"{ask.reason} was answered with {ask.answer}, and is {status.phase}")
        if ask.id and ask.id != status.id:
            self.violations.append(f"{ask.reason} is two increments, {ask.id} and {status.id}")
        if ask.phase is Phase.DONE and status.phase is not Phase.DONE:
            self.violations.append(f"{ask.reason} was done and is {status.phase}")
        if ask.phase in _FAILING and not failing:
            self.violations.append(f"{ask.reason} was {ask.phase} and is {status.phase}")
        if ask.phase is not status.phase:
            ask.changed_at_seconds = self._now()
        ask.id, ask.phase = status.id, status.phase
        ask.known_at_seconds = min(ask.known_at_seconds, self._now())
        if failing and ask.failed_at_seconds is None:
            ask.failed_at_seconds = self._now()

    # ---- what they do

    def act(self, fleet: Fleet, books: Mapping[str, BookedInstance]) -> None:
        self.look(fleet)
        rng = self._rng
        if rng.random() < 0.5:
            self._new_demand()
        for demand in [each for each in self.demands if self._wants(fleet, each)]:
            if rng.random() < 0.6:
                self._ask(fleet, demand)
        for demand in self.demands:
            ask = demand.last
            if ask is None or not ask.id:
                continue
            if ask.phase in (Phase.PLANNED, Phase.CREATING, Phase.READY) and rng.random() < 0.01:
                self._withdraw(fleet, demand, ask)
            if ask.phase is Phase.DONE and not demand.over and rng.random() < 0.1:
                demand.over = True
        self.finish(fleet, books, likely=0.4)

    def finish(self, fleet: Fleet, books: Mapping[str, BookedInstance], likely: float = 1.0) -> None:
        """What ends what was begun: what failed is taken off the lists, and nodes that nobody needs are deleted."""
        by_increment: dict[str, list[BookedInstance]] = {}
        for each in books.values():
            if each.stands:
                by_increment.setdefault(each.increment_id, []).append(each)
        for demand in self.demands:
            for ask in demand.asks:
                unneeded = demand.over or ask.lost or ask is not demand.last
                standing = by_increment.get(ask.id, []) if unneeded and ask.phase not in _FAILING else []
                standing = [each for each in standing if not self.deletes.get(each.id)]
                if standing and (ask.phase is Phase.DONE or ask.lost) and self._rng.random() < likely:
                    some = standing if likely == 1.0 else standing[: self._rng.randint(1, len(standing))]
                    for group_id in sorted({each.node_group for each in some}):
                        self._delete(fleet, group_id, [each.id for each in some if each.node_group == group_id])
        for key, state in fleet.snapshot.groups.items():
            failed = [each.id for each in state.instances if each.error is not None]
            if failed and self._rng.random() < likely:
                if self._rng.random() < 0.3:
                    self._decrease(fleet, key, failed)
                else:
                    self._delete(fleet, key, failed)

    def release(self, fleet: Fleet, books: Mapping[str, BookedInstance], ready: Iterable[str]) -> None:
        """What placement does: whole increments are let go."""
        standing = [each for each in books.values() if each.stands]
        ready_now = set(ready)
        for status in fleet.snapshot.increments:
            if status.phase is not Phase.READY:
                continue
            of_it = {each.id for each in standing if each.increment_id == status.id and not self._asked_for(each)}
            held = {node.instance_id for node in status.held}
            if not held & of_it <= ready_now:
                continue  # a Node that was Ready is not any more
            fleet.release(status.id)
            if not of_it <= held:
                self.violations.append(f"{status.id} was released, and {sorted(of_it - held)} of it were not held")

    def _asked_for(self, each: BookedInstance) -> bool:
        """Return whether its deletion was asked for, by its id or, while that was not known, by its token."""
        return each.id in self.deletes or each.token in self.deletes

    def _new_demand(self) -> None:
        rng, number = self._rng, len(self.demands)
        open_now = sum(not each.over for each in self.demands if each.last is None or each.last.phase is not Phase.DONE)
        if self.is_done or open_now >= _MOST_OPEN:
            return
        if rng.random() < 0.35:
            deltas = {rng.choice(_GROUPS): rng.randint(1, 4)}
            self.demands.append(Demand(number, Origin.AUTOSCALER, deltas, of_request=False))
        else:
            groups = rng.sample(_GROUPS, rng.choice((1, 1, 2, 3)))
            deltas = {key: rng.randint(1, 3) for key in groups}
            self.demands.append(Demand(number, Origin.CAGRPC, deltas, of_request=rng.random() < 0.3))

    def _wants(self, fleet: Fleet, demand: Demand) -> bool:
        """Return whether the demand has to be asked for, as far as answers tell."""
        ask = demand.last
        if demand.over:
            return False
        if ask is None or ask.lost:
            return True
        if ask.answer is Answer.UNCLEAR and not ask.id:
            return True  # the fleet was looked at: it does not know it
        failed = ask.answer in (Answer.NOTHING, Answer.SHORT) or ask.phase in _FAILING
        if failed and len(demand.asks) >= _MOST_TRIES:
            demand.over = True
        key = demand.name
        in_flight = key in fleet.snapshot.in_flight_pods
        return failed and not demand.over and not in_flight and ask.phase is not Phase.ROLLING_BACK

    def _ask(self, fleet: Fleet, demand: Demand) -> None:
        ask = Ask(f"{demand.name}/{len(demand.asks)}", demand.deltas, self._now())
        demand.asks.append(ask)  # before it is asked for: the process may end
        key = frozenset({demand.name})
        spec = IncrementSpec(
            demand.deltas,
            demand.origin,
            pods=frozenset() if demand.of_request else key,
            requests=key if demand.of_request else frozenset(),
            reason=ask.reason,
        )
        self._told["asked for"] += 1
        try:
            if demand.origin is Origin.AUTOSCALER:
                status = fleet.apply(spec, refusal_wait_seconds=1.0, answer_within_seconds=CA_WAITS_SECONDS)
            elif self._rng.random() < 0.5:
                status = fleet.apply(spec)
            else:
                (found,) = fleet.apply_all([spec])
                if isinstance(found, errors.CagrpcError):
                    raise found
                status = found
        except errors.OrderRefused:
            ask.answer = Answer.SHORT
        except errors.CagrpcError as error:
            ask.answer = self._meaning(fleet, ask, error)
        else:
            ask.answer = Answer.TAKEN
            self._learn(ask, status)

    def _meaning(self, fleet: Fleet, ask: Ask, error: errors.CagrpcError) -> Answer:
        """Return what an error lets its caller conclude."""
        too_late = self._now() - ask.asked_at_seconds > CA_WAITS_SECONDS
        if isinstance(error, errors.DeadlineExpired) or (too_late and isinstance(error, errors.Unavailable)):
            return Answer.UNCLEAR
        closed = fleet.problems["journal"] is not None and "could not be confirmed" in str(error)
        return Answer.UNCLEAR if closed else Answer.NOTHING

    def _withdraw(self, fleet: Fleet, demand: Demand, ask: Ask) -> None:
        ours = demand.origin is Origin.CAGRPC
        ask.withdrawn |= ours
        try:
            fleet.withdraw(ask.id, "nobody needs it")
        except errors.FailedPrecondition as error:
            if ours:
                self.violations.append(f"{ask.reason} is our own, and is not withdrawn: {error}")
        else:
            if not ours:
                self.violations.append(f"{ask.reason} is the autoscaler's and was withdrawn")
            demand.over = True
            self._told["withdrawn"] += 1

    def _delete(self, fleet: Fleet, group_id: str, ids: list[str]) -> None:
        listed = fleet.snapshot.group_of_instance
        ids = [each for each in ids if each in listed]
        if not ids:
            return
        state = fleet.snapshot.groups[group_id]
        going = {each.id for each in state.instances if each.state is not InstanceState.DELETING}
        for each in ids:
            self.deletes.setdefault(each, False)
        before = state.target_size
        fleet.delete_instances(group_id, ids)
        after = fleet.snapshot.groups[group_id].target_size
        if before - after != len(going.intersection(ids)):
            self.violations.append(
                f"{len(ids)} instances of {group_id} deleted: its target went from {before} to {after}"
            )
        for each in ids:
            self.deletes[each] = True
        self._told["instances that callers deleted"] += len(ids)

    def _decrease(self, fleet: Fleet, group_id: str, failed: list[str]) -> None:
        for each in failed:
            self.deletes.setdefault(each, False)
        fleet.decrease_target(group_id, -len(failed))

    # ---- an older backup of the journal

    def restored(self, taken_at_seconds: float) -> None:
        """Of what was answered since the backup was taken nothing is promised any more."""
        for ask in self.asks:
            if ask.changed_at_seconds > taken_at_seconds:
                ask.restored, ask.phase, ask.failed_at_seconds = True, None, None
        self.deletes = dict.fromkeys(self.deletes, False)

    def find_again(self, fleet: Fleet, taken_at_seconds: float) -> None:
        """Once a restored journal was read: what it does not know is lost."""
        for ask in self.asks:
            if not ask.id or ask.lost:
                continue
            try:
                self._learn(ask, fleet.increment(ask.id))
            except errors.NotFound:
                if ask.known_at_seconds <= taken_at_seconds:
                    self.violations.append(f"{ask.reason} was known before the backup, and is not in it")
                ask.lost, ask.phase = True, None
