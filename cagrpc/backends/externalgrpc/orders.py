"""What was asked of one node group of a provider, and what came of it.

The protocol raises a target by a number and knows no tokens, so this is kept in the journal. A `Slot` is a token whose
target was raised; listed ids that are new go to slots in order. What nobody wants any more and was never listed is
owed: the next order takes it over, or the first instance that comes for it is deleted. An increase without an answer is
a doubt, which the provider's own target settles. Nothing here is sent or written; times are of the fleet's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cagrpc.errors import ErrorKind
from cagrpc.fleet.backend import BackendInstance
from cagrpc.fleet.model import InstanceError, InstanceState

_BRIEF_SECONDS = 1.0
"""What is said of a doubt that time has settled, until the next look."""


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """An instance as the provider lists it."""

    id: str
    state: InstanceState
    error: InstanceError | None = None
    placeholder: bool = False
    """Whether it stands for an instance that has no id yet."""


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A node group as the provider tells it."""

    target: int
    instances: tuple[SeenInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """A token whose target was raised."""

    token: str
    asked_at_seconds: float
    id: str = ""
    """Empty until an instance has come for it; then it never changes."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An increase that may have been carried out, now or later."""

    base: int
    """The target before it."""
    tokens: tuple[str, ...]
    asked_at_seconds: float
    refused: bool = False
    """Whether the fleet was told that it was refused: what comes of it is owed."""


@dataclass(frozen=True, slots=True)
class AskedDeletion:
    """An id that was asked to be deleted."""

    asked_at_seconds: float
    answered: bool = False
    owed: bool = False
    """Whether it came for what was owed, so that nobody else is to know of it."""


@dataclass(frozen=True, slots=True)
class GroupOrders:
    """All that has to survive the process."""

    slots: tuple[Slot, ...] = ()
    others: frozenset[str] = frozenset()
    """Ids of the group that came for no slot; kept while any is awaited."""
    owed: int = 0
    """How much of the target is for instances that nobody wants any more."""
    doubt: Doubt | None = None
    deletions: Mapping[str, AskedDeletion] = field(default_factory=dict)
    """By id."""

    def to_json(self) -> dict[str, Any]:
        """Return it for the journal."""
        value = asdict(self)
        value["others"] = sorted(self.others)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GroupOrders:
        """Return what `to_json` has made this of. Raises ValueError, KeyError or TypeError for anything else."""
        doubt = value["doubt"]
        return cls(
            tuple(Slot(**each) for each in value["slots"]),
            frozenset(value["others"]),
            int(value["owed"]),
            None if doubt is None else Doubt(**{**doubt, "tokens": tuple(doubt["tokens"])}),
            {key: AskedDeletion(**each) for key, each in value["deletions"].items()},
        )


class OrdersOfGroup:
    """The orders of one group, with what this process has seen of it. `look` is to be called with what the provider
    tells; the other methods follow a look, and change `orders`, which is then to be journalled."""

    def __init__(self, group: str, orders: GroupOrders, behind_seconds: float) -> None:
        """`behind_seconds` is how long the provider's answers may be behind what it was asked."""
        self.group = group
        self.orders = orders
        self.seen = SeenGroup(0)
        self.notes: dict[str, str] = {}
        """What people are to be told, by what it is about."""
        self.due_deletions = {key for key, each in orders.deletions.items() if not each.answered}
        """Ids to be deleted that the fleet need not ask for again."""
        self._behind_seconds = behind_seconds
        self._low_since: float | None = None
        self._absent_since: dict[str, float] = {}
        self._failed: dict[str, InstanceError] = {}
        """Slots without an instance, by token, that the provider has given up."""
        self._finals: Sequence[SeenInstance] = ()
        self._provisionals: Sequence[SeenInstance] = ()
        """What is seen, by whether its id is final."""
        self._hidden: frozenset[str] = frozenset()
        """Listed ids of which it is not known yet whose they are."""

    # ---- what is seen

    def look(self, seen: SeenGroup, now: float) -> None:
        """Take what the provider tells now."""
        self.seen, self.notes = seen, {}
        self._sort()
        self._settle_doubt(now)
        self._end_deletions(now)
        self._attribute(now)
        self._judge_target(now)
        self._forget_absent(now)

    def _sort(self) -> None:
        """Tell final ids from those that may still change: what is being created may get another one."""
        known = {each.id for each in self.orders.slots} | self.orders.others | self.orders.deletions.keys()
        seen = [
            (e, e.placeholder or (e.state is InstanceState.CREATING and e.id not in known)) for e in self.seen.instances
        ]
        self._provisionals = [each for each, provisional in seen if provisional]
        self._finals = [each for each, provisional in seen if not provisional]

    @property
    def _listed(self) -> dict[str, SeenInstance]:
        return {each.id: each for each in self._finals}

    @property
    def placeholders(self) -> Sequence[SeenInstance]:
        """Return those that stand for instances without final ids, those that have failed first."""
        there = (each for each in self._provisionals if each.state is not InstanceState.DELETING)
        return sorted(there, key=lambda each: each.error is None)

    @property
    def awaited(self) -> Sequence[Slot]:
        """Return the slots for which an instance is to come."""
        return [each for each in self.orders.slots if not each.id and each.token not in self._failed]

    def _alive(self) -> int:
        """Return how many listed instances the target ought to count."""
        gone = self.orders.deletions
        return sum(e.state is not InstanceState.DELETING and e.id not in gone for e in self._listed.values())

    def unaccounted(self) -> int:
        """Return by how much the target is above what is listed, awaited and owed; below 0 where it is lower."""
        return self.seen.target - self._alive() - len(self.awaited) - self.orders.owed

    def _settle_doubt(self, now: float) -> None:
        doubt = self.orders.doubt
        if doubt is None:
            return
        asked, came = len(doubt.tokens), self.seen.target - doubt.base
        over = now - doubt.asked_at_seconds >= self._behind_seconds
        if came < asked and not over:
            return
        if came not in (0, asked):
            self.notes["hand"] = (
                f"its target is {self.seen.target}, after {doubt.base} and an increase by {asked}: the provider has"
                " carried out a part, or somebody else has changed it"
            )
        done = min(max(came, 0), asked)
        orders = replace(self.orders, doubt=None)
        if doubt.refused:
            self.orders = replace(orders, owed=orders.owed + done)
        else:
            self.orders = replace(orders, slots=(*orders.slots, *_slots(doubt.tokens[:done], doubt.asked_at_seconds)))

    def _attribute(self, now: float) -> None:
        """Give new ids to slots in order, then to what is owed; what is left is somebody else's."""
        orders = self.orders
        known = {each.id for each in orders.slots} | orders.others | orders.deletions.keys()
        new = [key for key in self._listed if key not in known]
        failed_last = sorted(
            (each for each in orders.slots if not each.id), key=lambda each: each.token in self._failed
        )
        ids = dict(zip((each.token for each in failed_last), new, strict=False))
        rest = new[len(ids) :]
        deletions = dict(orders.deletions)
        for key in rest[: orders.owed]:
            deletions[key] = AskedDeletion(now, owed=True)
            self.due_deletions.add(key)
        paid = min(orders.owed, len(rest))
        rest, owed = rest[paid:], orders.owed - paid
        slots = tuple(replace(each, id=ids.get(each.token, each.id)) for each in orders.slots)
        self._failed = {token: error for token, error in self._failed.items() if token not in ids}
        self._hidden = frozenset(rest) if orders.doubt is not None else frozenset()
        awaits = orders.doubt is not None or owed or any(not each.id for each in slots)
        others = frozenset() if not awaits else (orders.others | frozenset(rest)) - self._hidden
        self.orders = replace(orders, slots=slots, owed=owed, deletions=deletions, others=others)

    def _end_deletions(self, now: float) -> None:
        """Forget deletions that are over, and those that the provider has not carried out: its target still counts the
        instance."""
        listed, left = self._listed, dict(self.orders.deletions)
        uncounted = self.unaccounted()
        for key, each in self.orders.deletions.items():
            if now - each.asked_at_seconds < self._behind_seconds:
                continue
            found = listed.get(key)
            if found is None:
                del left[key]
            elif uncounted > 0 and found.state is not InstanceState.DELETING:
                del left[key]
                uncounted -= 1
        if len(left) < len(self.orders.deletions):
            self.orders = replace(self.orders, deletions=left)
        self.due_deletions &= listed.keys() & left.keys()

    def _judge_target(self, now: float) -> None:
        """End what is owed, then fail what is awaited, as far as the target has been too low for long."""
        if self.orders.doubt is not None:
            self._low_since = None
            return
        above = self.unaccounted()
        if above > 0:
            self.notes["hand"] = (
                f"its target is {self.seen.target}, {above} more than is listed and was ordered: somebody else has"
                " raised it, or the provider replaces instances; what comes is counted"
            )
        if above >= 0:
            self._low_since = None
            return
        self._low_since = now if self._low_since is None else min(self._low_since, now)
        if now - self._low_since < self._behind_seconds:
            return
        ended = min(-above, self.orders.owed)
        self.orders = replace(self.orders, owed=self.orders.owed - ended)
        given_up = self.awaited[max(0, len(self.awaited) + above + ended) :]
        if given_up:
            why = f"the target of node group {self.group} fell to {self.seen.target}: the provider has given up on it"
            self._failed |= {each.token: InstanceError("target-fell", why) for each in given_up}
        elif not ended:
            self.notes["hand"] = f"its target is {self.seen.target}, {-above} less than is listed"
        self._low_since = None

    def _forget_absent(self, now: float) -> None:
        """Forget slots whose instances are gone."""
        listed = self._listed
        absent = [each for each in self.orders.slots if each.id and each.id not in listed]
        self._absent_since = {each.id: min(self._absent_since.get(each.id, now), now) for each in absent}
        gone = {key for key, since in self._absent_since.items() if now - since >= self._behind_seconds}
        gone |= {each.id for each in absent if each.id in self.orders.deletions}
        if gone:
            self.orders = replace(self.orders, slots=tuple(e for e in self.orders.slots if e.id not in gone))

    # ---- what is asked

    def unknown(self, tokens: Iterable[str]) -> tuple[str, ...]:
        """Return those of the tokens that are still to be asked for."""
        known = {each.token for each in self.orders.slots}
        return tuple(token for token in tokens if token not in known)

    def begin(self, tokens: Sequence[str], now: float) -> int:
        """Take over what is owed for the first of these tokens, and begin an increase for the rest; return by how
        much."""
        reused = min(self.orders.owed, len(tokens))
        rest = tuple(tokens[reused:])
        own = {each.id for each in self.orders.slots}
        self.orders = replace(
            self.orders,
            slots=(*self.orders.slots, *_slots(tokens[:reused], now)),
            owed=self.orders.owed - reused,
            others=frozenset(self._listed.keys() - own),
            doubt=Doubt(self.seen.target, rest, now) if rest else None,
        )
        return len(rest)

    def accept(self) -> None:
        """Note that the increase was carried out."""
        doubt = self.orders.doubt
        assert doubt is not None
        slots = (*self.orders.slots, *_slots(doubt.tokens, doubt.asked_at_seconds))
        self.orders = replace(self.orders, doubt=None, slots=slots)
        self.seen = replace(self.seen, target=max(self.seen.target, doubt.base + len(doubt.tokens)))

    def refuse(self) -> None:
        """Note that the provider answered with an error. What its target shows by now has come, and is deleted with the
        rest of the increment; where it shows nothing it may later."""
        doubt = self.orders.doubt
        assert doubt is not None
        came = doubt.tokens[: max(0, self.seen.target - doubt.base)]
        if came:
            slots = (*self.orders.slots, *_slots(came, doubt.asked_at_seconds))
            self.orders = replace(self.orders, doubt=None, slots=slots)
        else:
            self.orders = replace(self.orders, doubt=replace(doubt, refused=True))

    def doubt_seconds(self, now: float) -> float:
        """Return how long an increase may still be in doubt; 0 where none is."""
        doubt = self.orders.doubt
        return 0.0 if doubt is None else max(_BRIEF_SECONDS, doubt.asked_at_seconds + self._behind_seconds - now)

    def deletion_doubt_seconds(self, now: float) -> float:
        """Return for how long the target may still fall by deletions that were not answered; 0 where it has fallen, or
        there are none."""
        asked = [each.asked_at_seconds for each in self.orders.deletions.values() if not each.answered]
        if not asked or self.unaccounted() <= 0:
            return 0.0
        return max(_BRIEF_SECONDS, max(asked) + self._behind_seconds - now)

    def order_waits_seconds(self, tokens: Iterable[str], now: float) -> float:
        """Return for how long an order of these tokens has to wait for lists to settle a doubt; 0 where it need not, or
        where time has settled it, and a look will tell."""
        if not self.unknown(tokens):
            return 0.0
        doubt = self.orders.doubt
        told = doubt is None or doubt.refused
        return _left(max(self.deletion_doubt_seconds(now), 0.0 if told else self.doubt_seconds(now)))

    def deletion_waits_seconds(self, now: float) -> float:
        """Return the same for a deletion."""
        return _left(self.doubt_seconds(now))

    def delete(self, instances: Iterable[BackendInstance], now: float) -> Sequence[str]:
        """Give up the slots among these that have no instance, which are owed from now on; return the ids to delete of
        the others. What is being deleted, or is not known, is left out."""
        by_token = {each.token: each for each in self.orders.slots}
        listed, ids, given_up = self._listed, list[str](), set[str]()
        uncounted = self.unaccounted()
        for each in instances:
            slot = by_token.get(each.token)
            key = slot.id if slot is not None else each.id
            if slot is not None and not slot.id:
                given_up.add(slot.token)
            elif key in listed and key not in self.orders.deletions:
                ids.append(key)
            elif key in listed and not self.orders.deletions[key].answered and uncounted > 0:
                uncounted -= 1  # the target still counts it
                ids.append(key)
        self.orders = replace(
            self.orders,
            slots=tuple(each for each in self.orders.slots if each.token not in given_up),
            owed=self.orders.owed + len(given_up - self._failed.keys()),
            deletions={**self.orders.deletions, **dict.fromkeys(ids, AskedDeletion(now))},
        )
        self._failed = {token: error for token, error in self._failed.items() if token not in given_up}
        return ids

    def deleted(self, ids: Collection[str]) -> None:
        """Note that the provider has taken these deletions."""
        after = {
            key: replace(each, answered=each.answered or key in ids) for key, each in self.orders.deletions.items()
        }
        self.orders = replace(self.orders, deletions=after)
        self.due_deletions -= set(ids)

    def give_back(self, now: float) -> Sequence[str]:
        """Return ids of what stands for instances that are owed, to be deleted."""
        chosen = self.placeholders[: self.orders.owed]
        own = {each.id: AskedDeletion(now, owed=True) for each in chosen if not each.placeholder}
        self.orders = replace(self.orders, deletions={**self.orders.deletions, **own})
        return [each.id for each in chosen]

    def given_back(self) -> None:
        """End what is owed as far as the target has fallen, after placeholders were deleted for it."""
        fell = min(self.orders.owed, max(0, -self.unaccounted()))
        self.orders = replace(self.orders, owed=self.orders.owed - fell)

    def lost(self) -> tuple[str, ...]:
        """Give up the last of the awaited slots as far as the target does not have them any more; return their tokens,
        to be asked for again."""
        count = min(len(self.awaited), max(0, -self.unaccounted()))
        tokens = tuple(each.token for each in self.awaited[len(self.awaited) - count :])
        self.orders = replace(self.orders, slots=tuple(e for e in self.orders.slots if e.token not in tokens))
        return tokens

    # ---- what is listed

    def instances(self) -> Sequence[tuple[float, BackendInstance]]:
        """Return the instances of the group, each with when it was asked for; others come first."""
        listed = self._listed
        own = {each.id for each in self.orders.slots}
        hidden = self._hidden | {key for key, each in self.orders.deletions.items() if each.owed}
        strangers = (each for key, each in listed.items() if key not in own and key not in hidden)
        found = [(float("-inf"), self._instance(each, "")) for each in strangers]
        errors = [each.error for each in self.placeholders if each.error is not None]
        for slot in self.orders.slots:
            if slot.id in listed:
                found.append((slot.asked_at_seconds, self._instance(listed[slot.id], slot.token)))
            elif not slot.id:
                error = self._failed.get(slot.token) or (errors.pop(0) if errors else None)
                waiting = BackendInstance(slot.token, slot.token, self.group, InstanceState.CREATING, error)
                found.append((slot.asked_at_seconds, waiting))
        return found

    def _instance(self, seen: SeenInstance, token: str) -> BackendInstance:
        if seen.id in self.orders.deletions or seen.state is InstanceState.DELETING:
            return BackendInstance(seen.id, token, self.group, InstanceState.DELETING)
        state = seen.state if seen.error is None else InstanceState.CREATING
        return BackendInstance(seen.id, token, self.group, state, seen.error)


def _slots(tokens: Iterable[str], at_seconds: float) -> Iterable[Slot]:
    return (Slot(token, at_seconds) for token in tokens)


def _left(doubt_seconds: float) -> float:
    return doubt_seconds if doubt_seconds > _BRIEF_SECONDS else 0.0


def refusal_kind(words: str) -> ErrorKind:
    """Return the kind of an error by a provider's words, as most answer with bare texts."""
    lower = words.lower()
    if any(each in lower for each in _QUOTA):
        return ErrorKind.QUOTA
    return ErrorKind.CAPACITY if any(each in lower for each in _CAPACITY) else ErrorKind.OTHER


_QUOTA = ("quota", "limitexceeded", "limit exceeded", "resource_limit")
_CAPACITY = ("capacity", "stock", "exhausted", "insufficient", "not available", "out of resources")
