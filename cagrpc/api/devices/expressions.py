"""The CEL expressions and selectors in use, within shares: what whose pods use is kept, and read outside the locks of
whoever asks. What an expression means is `cel`'s, what a selector does `selectors`'.

The owner of what a claim says is its namespace; all DeviceClasses are one owner. What is in use is limited in bytes, of
each owner and of all; an expression is read once, when its owner's share of a round's steps has room for it, and goes
with the last pod that uses it. So nobody's expressions keep those of others from being read, kept or evaluated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from cagrpc.errors import InvalidInput

if TYPE_CHECKING:
    from cagrpc.api.devices.cel import Expression

MOST_STEPS = 400_000
"""How many steps reading and evaluating take in one round, for all owners: a second or two. The rest is done in the
next rounds."""
OWNERS_AT_ONCE = 4
"""One owner takes at most one so-many-th of a round's steps."""
MOST_BYTES, MOST_BYTES_OF_OWNER = 2 * 1024 * 1024, 128 * 1024
"""The size of expressions and selectors in use: of all owners, and of one. Each byte takes some 100 to 200 bytes of
memory."""
_BYTES_BESIDE_TEXT, _BYTES_OF_SELECTOR = 256, 512
_MOST_UNUSED = 1_000
MOST_REMEMBERED, MOST_REMEMBERED_OF_OWNER = 200_000, 50_000
"""Values that are remembered with the answers of expressions: of all owners, and of one."""
DEVICE_CLASSES = "DeviceClasses"
"""The owner of what all of them say."""

Need = tuple[str, Hashable]
"""What a pod uses: the owner, and the text of an expression or a selector."""


class NotYet(InvalidInput):
    """An expression that is not read, or not evaluated, in this round."""


def namespace(name: str) -> str:
    """Return the owner of what claims in a namespace say."""
    return f"namespace {name}"


class StepShares:
    """The steps of a round. Each owner may take its part of them, and a part of that on the devices of one driver, less
    what it has taken in earlier rounds and not paid back: each round pays back an equal part for everybody who has
    taken or wanted steps. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owed: dict[str, int] = {}
        self._owed_for: dict[tuple[str, str], int] = {}
        self._most = self._left = MOST_STEPS

    def begin(self) -> None:
        """Begin a round."""
        with self._lock:
            self._most = self._left = MOST_STEPS
            part = MOST_STEPS // max(1, len(self._owed))
            self._owed = {each: owed - part for each, owed in self._owed.items() if owed > part}
            self._owed_for = {each: owed - part for each, owed in self._owed_for.items() if owed > part}

    def left(self, owner: str, driver: str = "") -> int:
        """Return the steps that an owner (nobody, to whom nothing is shared: empty) may take now, for a driver's
        devices."""
        with self._lock:
            if not owner:
                return self._left
            most = self._most // OWNERS_AT_ONCE
            of_driver = most * 3 // 4 - self._owed_for.get((owner, driver), 0) if driver else most
            return min(self._left, most - self._owed.get(owner, 0), of_driver)

    def take(self, owner: str, steps: int, driver: str = "") -> None:
        """Take steps, perhaps more than are left; none to have the next rounds reckon with an owner."""
        with self._lock:
            self._left -= steps
            if owner:
                self._owed[owner] = self._owed.get(owner, 0) + steps
            if owner and driver and steps:
                self._owed_for[owner, driver] = self._owed_for.get((owner, driver), 0) + steps


@dataclass(slots=True)
class _KeptExpression:
    bytes: int
    users: dict[str, set[Hashable]] = field(default_factory=dict)
    """Its users, by owner."""
    found: Expression | InvalidInput | None = None
    """None of an expression that is not read, and of a selector."""


class Expressions:
    """What pods use. Thread-safe: only reading takes long, and it keeps nobody else waiting."""

    def __init__(self) -> None:
        self.shares = StepShares()
        self._lock, self._reading = Lock(), Lock()
        self._kept: dict[Hashable, _KeptExpression] = {}
        self._unused: dict[Hashable, None] = {}
        """Of what is kept: it goes when `changed` is asked for, as a user that is read again needs most of it again."""
        self._bytes, self._of_owners = 0, Counter[str]()
        self._needs: dict[Hashable, frozenset[Need]] = {}
        self._users: defaultdict[str, dict[Hashable, None]] = defaultdict(dict)
        """Those that have what they need, by owner of what that is; the latest last."""
        self._short: dict[Hashable, Counter[str]] = {}
        """Those for whom there was no room, and for how many bytes of whose there was none."""
        self._unread: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """Texts, and the steps that reading them takes (0: not counted yet), by owner."""
        self._changed: dict[Hashable, None] = {}
        self._remembered = Counter[str]()
        self._has_freed = False

    # What is in use

    def use(self, user: Hashable, needs: Iterable[Need]) -> str:
        """Have all that a user needs kept from now on, and nothing else for it; return why there is no room for that,
        empty where there is: then nothing is."""
        wanted = frozenset(needs)
        with self._lock:
            before = self._needs.get(user, frozenset())
            if wanted == before:
                self._short.pop(user, None)
                return ""
            more = Counter[str]()
            new = 0
            for owner, item in wanted - before:
                kept = self._kept.get(item)
                size = _bytes_of(item) if kept is None else kept.bytes
                if kept is None or owner not in kept.users:
                    more[owner] += size
                if kept is None or not kept.users:
                    new += size
            why = self._why_no_room(more, new)
            if why:
                self._forget(user)
                self._short[user] = more
                return why
            for owner, item in wanted - before:
                self._add(user, owner, item)
            for owner, item in before - wanted:
                self._remove(user, owner, item)
            self._forget_user(user)
            self._short.pop(user, None)
            if wanted:
                self._needs[user] = wanted
                for owner, _ in wanted:
                    self._users[owner][user] = None
            return ""

    def forget(self, user: Hashable) -> None:
        """Forget a user that needs nothing any more."""
        with self._lock:
            self._forget(user)
            self._short.pop(user, None)
            self._changed.pop(user, None)

    def _forget(self, user: Hashable) -> None:
        needs = self._needs.get(user, frozenset())
        self._forget_user(user)
        for owner, item in needs:
            self._remove(user, owner, item)

    def _forget_user(self, user: Hashable) -> None:
        for owner, _ in self._needs.pop(user, ()):
            self._users[owner].pop(user, None)
            if not self._users[owner]:
                del self._users[owner]

    def _add(self, user: Hashable, owner: str, item: Hashable) -> None:
        kept = self._kept.get(item)
        if kept is None:
            kept = self._kept[item] = _KeptExpression(_bytes_of(item))
        if not kept.users:
            self._bytes += kept.bytes
            self._unused.pop(item, None)
        if owner not in kept.users:
            self._of_owners[owner] += kept.bytes
            kept.users[owner] = set()
            if isinstance(item, str) and kept.found is None:
                self._unread[owner][item] = 0
        kept.users[owner].add(user)

    def _remove(self, user: Hashable, owner: str, item: Hashable) -> None:
        kept = self._kept[item]
        kept.users[owner].discard(user)
        if kept.users[owner]:
            return
        del kept.users[owner]
        self._has_freed = True
        self._of_owners[owner] -= kept.bytes
        if not self._of_owners[owner]:
            del self._of_owners[owner], self._remembered[owner]
        self._is_read(owner, item)
        if not kept.users:
            self._bytes -= kept.bytes
            self._unused[item] = None
            if len(self._unused) > _MOST_UNUSED:
                self._sweep()

    def _sweep(self) -> None:
        for item in self._unused:
            del self._kept[item]
        self._unused.clear()

    def _is_read(self, owner: str, item: Hashable) -> None:
        unread = self._unread.get(owner, {})
        unread.pop(item, None)  # type: ignore[call-overload]  # a selector is not among them
        if not unread:
            self._unread.pop(owner, None)

    def _why_no_room(self, more: Counter[str], new: int) -> str:
        for owner, size in more.items():
            if self._of_owners[owner] + size > MOST_BYTES_OF_OWNER:
                return f"the selectors of {owner} take more than {MOST_BYTES_OF_OWNER // 1024} KiB together"
        if self._bytes + new <= MOST_BYTES:
            return ""
        share = MOST_BYTES // len({*self._of_owners, *more})
        for owner, size in more.items():
            if owner != DEVICE_CLASSES and self._of_owners[owner] + size > share:
                most = MOST_BYTES // 1024
                return f"all selectors take more than {most} KiB together, and those of {owner} more than their share"
        while self._bytes + new > MOST_BYTES and self._take_from_largest(share):
            pass
        return ""

    def _take_from_largest(self, share: int) -> bool:
        above = [(size, owner) for owner, size in self._of_owners.items() if owner != DEVICE_CLASSES and size > share]
        if not above:
            return False
        user = next(reversed(self._users[max(above)[1]]))
        self._forget(user)
        self._changed[user] = None
        return True

    # Reading

    def read(self) -> None:
        """Read what the round's steps are left for, each owner's in its share. It may take a second: to be called
        without locks."""
        with self._reading:
            while (text := self._next()) is not None:
                found = read_expression(text)
                with self._lock:
                    kept = self._kept.get(text)
                    if kept is None:
                        continue  # nobody uses it any more
                    kept.found = found
                    for owner, users in kept.users.items():
                        self._is_read(owner, text)
                        self._changed.update(dict.fromkeys(users))

    def _next(self) -> str | None:
        if not self._unread:
            return None
        from cagrpc.api.devices.cel import reading_steps  # noqa: PLC0415 - see `read_expression`

        with self._lock:
            left = {owner: self.shares.left(owner) for owner in self._unread}
            for owner in sorted(left, key=lambda each: (-left[each], each)):
                text, steps = next(iter(self._unread[owner].items()))
                if not steps:
                    steps = self._unread[owner][text] = reading_steps(text)
                if steps > left[owner]:
                    self.shares.take(owner, 0)
                    continue
                self.shares.take(owner, steps)
                return text
            return None

    def changed(self) -> tuple[Hashable, ...]:
        """Return the users that have to be read again since the last call: for whom something was read, or for whom
        there is room now, or no longer."""
        with self._lock:
            self._sweep()
            found, self._changed = self._changed, {}
            if self._has_freed:
                self._has_freed = False
                room, more = MOST_BYTES - self._bytes, Counter[str]()
                for user, wanted in self._short.items():
                    size = wanted.total()
                    fits = all(self._of_owners[of] + more[of] + wanted[of] <= MOST_BYTES_OF_OWNER for of in wanted)
                    if fits and size <= room:
                        room -= size
                        more += wanted
                        found[user] = None
            return tuple(found)

    @property
    def unread(self) -> Collection[str]:
        """The owners of expressions that are not read yet."""
        with self._lock:
            return tuple(self._unread)

    # Using

    def found(self, text: str) -> Expression | InvalidInput:
        """Return an expression that is in use, or why it cannot be evaluated."""
        kept = self._kept.get(text)
        found = None if kept is None else kept.found
        return found or NotYet("the expression is not read yet: its turn comes in one of the next rounds")

    def owner(self, text: str, driver: str) -> str:
        """Return in whose share, of those who use it, an expression is evaluated on a driver's devices."""
        with self._lock:
            kept = self._kept.get(text)
            owners = () if kept is None else tuple(kept.users)
        return max(owners, key=lambda each: self.shares.left(each, driver), default="")

    def remembered(self, owner: str, values: int) -> None:
        """Note that so many more values are remembered with the answers of an owner's expressions; those of the owner
        with the most are forgotten where that is too much. No expression may be in evaluation."""
        self._remembered[owner] += values
        if self._remembered[owner] > MOST_REMEMBERED_OF_OWNER:
            self._forget_answers(owner)
        elif self._remembered.total() > MOST_REMEMBERED:
            self._forget_answers(max(self._remembered, key=lambda each: self._remembered[each]))

    def _forget_answers(self, owner: str) -> None:
        with self._lock:
            found = [each.found for each in self._kept.values() if owner in each.users]
        for each in found:
            if each is not None and not isinstance(each, InvalidInput):
                each.forget()
        del self._remembered[owner]

    # For people

    @property
    def most_used(self) -> float:
        """What the owner that uses most of its share uses of it."""
        with self._lock:
            return max(self._of_owners.values(), default=0) / MOST_BYTES_OF_OWNER

    @property
    def left_out(self) -> int:
        """For how many users there is no room."""
        with self._lock:
            return len(self._short)


def _bytes_of(item: Hashable) -> int:
    return len(item) + _BYTES_BESIDE_TEXT if isinstance(item, str) else _BYTES_OF_SELECTOR


def read_expression(text: str) -> Expression | InvalidInput:
    """Return the expression, or why it cannot be used."""
    from cagrpc.api.devices.cel import Expression  # noqa: PLC0415 - a second, of which most clusters need none

    try:
        return Expression(text)
    except InvalidInput as error:
        return error
