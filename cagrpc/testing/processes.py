"""The backend as the suite uses it: processes over one cloud, one after the other, each list of which is checked
(`listings`). Calls are repeated where the cloud is out of reach, as the fleet does.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TypeVar

from cagrpc import errors
from cagrpc.backends.plugin import OpenBackend
from cagrpc.fleet.backend import Backend, BackendInstance, Listing, Order, OrderedInstance
from cagrpc.fleet.model import InstanceState
from cagrpc.testing.cloud import Cloud
from cagrpc.testing.listings import Listings
from solver.model import NodeGroup

T = TypeVar("T")

_SHORTEST_SECONDS = 0.001


class Processes:
    """The processes of a test. `restart` kills the present one and begins the next."""

    def __init__(self, cloud: Cloud) -> None:
        groups = cloud.node_groups
        assert len({group.id for group in groups}) >= 2, f"{type(cloud).__name__}.node_groups: expected two or more"
        assert all(group.min_size == 0 for group in groups), "node groups with a minimum size order by themselves"
        self.cloud = cloud
        self._listings = Listings()
        self._opened: list[OpenBackend] = []
        self._last_change_at = float("-inf")
        self.restart()

    @property
    def backend(self) -> Backend:
        """Return that of the present process."""
        return self._opened[-1].backend

    def restart(self) -> None:
        """Open the backend anew, as after `kill -9`."""
        self._opened.append(self.cloud.open())
        self._listings.new_process()

    def close(self) -> None:
        for opened in self._opened:
            opened.close()

    def new_order(self, *counts: int) -> Order:
        """Return the order of a new increment: so many instances of the first node group, the second and so on. Its
        tokens are as a fleet's: a cloud that outlives the test has never had them."""
        increment_id = secrets.token_hex(6)
        instances = tuple(
            OrderedInstance(f"{increment_id}-{group.id}-{ordinal + 1}", group, ordinal)
            for group, number in zip(self.cloud.node_groups, counts, strict=False)
            for ordinal in range(number)
        )
        return Order(increment_id, instances, tokens_of(instances))

    def order(self, order: Order) -> None:
        """Order until the cloud answers. Raises what it refuses with."""
        self._reach(lambda: self.order_once(order))

    def order_once(self, order: Order) -> None:
        """Order; raise also `Unavailable`."""
        self._listings.ordered(order)
        self.backend.order(order)
        self.changed()
        self._listings.accepted(order.wanted, self._last_change_at)

    def create(self, *counts: int) -> Order:
        """Order a new increment and wait until all of it runs."""
        order = self.new_order(*counts)
        self.order(order)
        self.wait_for_running(order.wanted)
        return order

    def delete(self, instances: Iterable[BackendInstance]) -> None:
        """Delete until the cloud answers, one call a node group."""
        for part in _by_group(instances):
            self._reach(lambda part=part: self.delete_once(part))  # type: ignore[misc] # mypy has no type for it

    def delete_once(self, instances: Sequence[BackendInstance]) -> None:
        """Delete, all of one node group; raise also `Unavailable`."""
        self.backend.delete(instances)
        self.changed()

    def loses_answer(self, after: int, call: Callable[[], None]) -> bool:
        """Make a call while the cloud's answers are lost after so many; return whether one was."""
        self.cloud.lose_answers(after)
        try:
            call()
        except errors.Unavailable:
            return True
        finally:
            self.cloud.recover()
        return False

    def list_once(self) -> Listing:
        """Return a list, checked; raise also `Unavailable`."""
        listing = self.backend.list_instances()
        self._listings.check(listing, self.cloud.clock(), self.backend.pace)
        return listing

    def list(self) -> Mapping[str, BackendInstance]:
        """Return a list by token."""
        return self._listed()[0]

    def list_time(self) -> float:
        """Return the time of a list."""
        return self._listed()[1]

    def list_settled(self) -> Mapping[str, BackendInstance]:
        """Return a list that shows what was called until now: what it lacks counts as gone."""
        give_up = self.cloud.clock() + self.cloud.patience_seconds + 2 * self.backend.pace.absent_after_seconds
        while True:
            listed, as_of = self._listed()
            wait = self.backend.pace.absent_after_seconds
            left = max(self._last_change_at, self._listings.series_since) + wait - as_of
            if left <= 0:
                return listed
            assert self.cloud.clock() < give_up, f"as_of_seconds does not move on from {as_of}"
            self.cloud.advance(max(_SHORTEST_SECONDS, min(left, wait / 4)))  # less than breaks the series of lists

    def changed(self) -> None:
        """Note that something happens in the cloud now that lists have to show."""
        self._last_change_at = self.cloud.clock()

    def wait_for(self, condition: Callable[[Mapping[str, BackendInstance]], bool], what: str) -> None:
        """Wait for a list of which the condition holds."""
        last: Mapping[str, BackendInstance] = {}

        def holds() -> bool:
            nonlocal last
            last = self.list()
            return condition(last)

        try:
            self.cloud.wait_until(holds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; listed at last: {list(last.values())}") from None

    def wait_for_running(self, tokens: AbstractSet[str]) -> None:
        self.wait_for(lambda listed: tokens <= running(listed), f"{len(tokens)} instances to run")

    def wait_for_end(self, tokens: AbstractSet[str]) -> None:
        """Wait until none of these is listed, in a list that shows all calls."""
        self.wait_for(lambda listed: not tokens & listed.keys(), f"{len(tokens)} instances to go")
        left = tokens & self.list_settled().keys()
        assert not left, f"listed again after they had gone: {sorted(left)}"

    def clear(self, tokens: AbstractSet[str]) -> None:
        """Delete whatever is or will be listed of these, as the fleet rolls an increment back, until nothing is."""

        def gone() -> bool:
            listed = self.list()
            left = [each for token, each in listed.items() if token in tokens]
            self.delete(each for each in left if each.state is not InstanceState.DELETING)
            return not left and not tokens & self.list_settled().keys()

        self.cloud.wait_until(gone, "everything of the increment to be deleted")

    def _listed(self) -> tuple[Mapping[str, BackendInstance], float]:
        listing = self._reach(self.list_once)
        return {each.token: each for each in listing.instances}, listing.as_of_seconds

    def _reach(self, call: Callable[[], T]) -> T:
        give_up = self.cloud.clock() + self.cloud.patience_seconds
        while True:
            try:
                return call()
            except errors.Unavailable:
                if self.cloud.clock() >= give_up:
                    raise
                self.cloud.advance(self.cloud.tick_seconds)


def tokens_of(instances: Iterable[OrderedInstance]) -> frozenset[str]:
    return frozenset(each.token for each in instances)


def part_of(order: Order, wanted: Iterable[str]) -> Order:
    """Return the same order with a part of it wanted."""
    return replace(order, wanted=frozenset(wanted))


def of_group(order: Order, group: NodeGroup) -> frozenset[str]:
    """Return the tokens of one node group."""
    return tokens_of(each for each in order.instances if each.group.id == group.id)


def running(listed: Mapping[str, BackendInstance]) -> AbstractSet[str]:
    return {token for token, each in listed.items() if each.state is InstanceState.RUNNING}


def _by_group(instances: Iterable[BackendInstance]) -> Iterable[Sequence[BackendInstance]]:
    groups: dict[str, list[BackendInstance]] = {}
    for each in instances:
        groups.setdefault(each.node_group, []).append(each)
    return groups.values()
