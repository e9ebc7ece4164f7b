"""Backends that break one promise each, over the simulated one, which keeps them all. `BROKEN` names the tests of the
conformance suite that have to fail with each, and what they have to say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from cagrpc import errors
from cagrpc.backends.plugin import OpenBackend
from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.fleet.backend import BackendInstance, Listing, Order, OrderedInstance, Pace
from cagrpc.fleet.model import InstanceError, InstanceState
from solver.model import NodeGroup
from tests.support.simulated_cloud import SimulatedCloud

HIDDEN = "hidden-"
STRANGER = "stranger-"


@dataclass
class Memory:
    """What a broken backend knows across its processes."""

    processes: int = 0
    calls: int = 0
    tokens: set[str] = field(default_factory=set)
    instances: dict[str, BackendInstance] = field(default_factory=dict)


class Sound:
    """The simulated backend in a cloud that others use, too. It breaks nothing."""

    def __init__(self, cloud: SimulatedCloud, memory: Memory) -> None:
        self.inner = SimulatedBackend(cloud.file, clock=cloud.clock)
        self.cloud = cloud
        self.memory = memory
        memory.processes += 1

    @property
    def pace(self) -> Pace:
        return self.inner.pace

    @property
    def problem(self) -> str | None:
        return self.inner.problem

    def list_instances(self) -> Listing:
        listing = self.inner.list_instances()
        self.memory.calls += 1
        ours = (each for each in listing.instances if not each.token.startswith((HIDDEN, STRANGER)))
        return replace(listing, instances=tuple(ours))

    def order(self, order: Order) -> None:
        self.inner.order(order)

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self.inner.delete(instances)

    def hide(self, instances: Sequence[OrderedInstance]) -> None:
        """Create instances that no list will have."""
        mark = f"{HIDDEN}{self.memory.processes}-"
        hidden = tuple(replace(each, token=f"{mark}{each.token}") for each in instances)
        self.inner.order(Order(hidden[0].token, hidden, frozenset(each.token for each in hidden)))


def wanted(order: Order) -> list[OrderedInstance]:
    return [each for each in order.instances if each.token in order.wanted]


class CreatesTwice(Sound):
    def order(self, order: Order) -> None:
        super().order(order)
        if order.increment_id not in self.memory.tokens:
            self.memory.tokens.add(order.increment_id)
            self.hide(wanted(order)[:1])


class CreatesAgainAfterARestart(Sound):
    """It knows in memory alone what it has ordered."""

    def __init__(self, cloud: SimulatedCloud, memory: Memory) -> None:
        super().__init__(cloud, memory)
        self.ordered: set[str] = set()

    def order(self, order: Order) -> None:
        new = [each for each in wanted(order) if each.token not in self.ordered]
        self.ordered |= order.wanted
        super().order(order)
        again = [each for each in new if each.token in self.memory.tokens]
        self.memory.tokens |= order.wanted
        if again:
            self.hide(again)


class CreatesWhatIsNotListed(Sound):
    """It looks before it creates, in place of a name or a token that the cloud refuses to take twice."""

    def order(self, order: Order) -> None:
        missing = order.wanted - {each.token for each in self.list_instances().instances}
        super().order(order)
        again = [each for each in wanted(order) if each.token in missing & self.memory.tokens]
        self.memory.tokens |= order.wanted
        if again:
            self.hide(again)


class CreatesWhatIsGone(Sound):
    """The cloud has forgotten the token, and so has it."""

    def order(self, order: Order) -> None:
        listed = {each.token for each in self.list_instances().instances}
        gone = [each for each in wanted(order) if each.token in self.memory.tokens - listed]
        super().order(order)
        self.memory.tokens |= order.wanted
        if gone:
            self.hide(gone)


class TakesALostAnswerForAnOrder(Sound):
    """Half of an order is sent before the answer is lost, and it never sends the other."""

    def order(self, order: Order) -> None:
        if self.memory.tokens & order.wanted:
            return
        try:
            tokens = sorted(order.wanted)
            self.inner.order(replace(order, wanted=frozenset(tokens[:1])))
            self.inner.order(replace(order, wanted=frozenset(tokens[1:])))
        except errors.Unavailable:
            self.memory.tokens |= order.wanted
            raise


class OrdersAnIncrementOnce(Sound):
    def order(self, order: Order) -> None:
        if order.increment_id not in self.memory.tokens:
            self.memory.tokens.add(order.increment_id)
            super().order(order)


class ForgetsAtARestart(Sound):
    """It lists what this process has ordered."""

    def __init__(self, cloud: SimulatedCloud, memory: Memory) -> None:
        super().__init__(cloud, memory)
        self.ordered: set[str] = set()

    def order(self, order: Order) -> None:
        self.ordered |= order.wanted
        super().order(order)

    def list_instances(self) -> Listing:
        listing = super().list_instances()
        return replace(listing, instances=tuple(each for each in listing.instances if each.token in self.ordered))


class Sorts(Sound):
    def list_instances(self) -> Listing:
        listing = super().list_instances()
        return replace(listing, instances=tuple(sorted(listing.instances, key=lambda each: each.node_group)))


class Flickers(Sound):
    """Each fifth list lacks an instance that runs."""

    def list_instances(self) -> Listing:
        listing = super().list_instances()
        ran = bool(listing.instances) and all(i.state is InstanceState.RUNNING for i in listing.instances)
        self.memory.calls += ran
        return replace(listing, instances=listing.instances[1:]) if ran and self.memory.calls % 5 == 0 else listing


class ListsLate(Sound):
    """Without saying so in its pace."""

    pace = Pace()

    def __init__(self, cloud: SimulatedCloud, memory: Memory) -> None:
        super().__init__(cloud, memory)
        self.inner.set_behaviour("*", Behaviour(list_delay_seconds=60))


class ListsWithoutEnd(Sound):
    """Its lists have the time of the first."""

    def list_instances(self) -> Listing:
        listing = super().list_instances()
        self.first = getattr(self, "first", listing.as_of_seconds)
        return replace(listing, as_of_seconds=self.first)


class ListsTheFuture(Sound):
    def list_instances(self) -> Listing:
        listing = super().list_instances()
        return replace(listing, as_of_seconds=listing.as_of_seconds + 60)


class ListsAStaleCopy(Sound):
    """It answers with the last list for ten seconds, dated now."""

    def list_instances(self) -> Listing:
        listing = super().list_instances()
        at, last = getattr(self, "last", (0.0, listing))
        if listing.as_of_seconds - at >= 10:
            self.last = (listing.as_of_seconds, listing)
            return listing
        return replace(last, as_of_seconds=listing.as_of_seconds)


class NamesInstancesAnew(Sound):
    """An id is of the process."""

    def list_instances(self) -> Listing:
        listing = super().list_instances()
        mark = f"#{self.memory.processes}"
        named = (replace(i, id=i.id if i.id == i.token else f"{i.id}{mark}") for i in listing.instances)
        return replace(listing, instances=tuple(named))


class InventsIds(Sound):
    """Until the cloud has given one, something else than the token stands for an instance."""

    def list_instances(self) -> Listing:
        listing = super().list_instances()
        named = (replace(i, id=f"pending:{i.token}" if i.id == i.token else i.id) for i in listing.instances)
        return replace(listing, instances=tuple(named))


class DeletesByIdAlone(Sound):
    """It passes over instances that have none yet."""

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        super().delete([each for each in instances if each.id != each.token])


class DeletesTheGroup(Sound):
    def delete(self, instances: Sequence[BackendInstance]) -> None:
        groups = {each.node_group for each in instances}
        super().delete([each for each in self.list_instances().instances if each.node_group in groups])


class DeletesLater(Sound):
    """It keeps deletions for ten seconds, and does not say so in its pace."""

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self.due = (self.cloud.clock() + 10, tuple(instances))

    def list_instances(self) -> Listing:
        at, instances = getattr(self, "due", (float("inf"), ()))
        if self.cloud.clock() >= at:
            super().delete(instances)
        return super().list_instances()


class DeletesAllOrNone(Sound):
    """One that is unknown, or is being deleted, refuses the call."""

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        there = {i.token for i in self.list_instances().instances if i.state is not InstanceState.DELETING}
        if not {each.token for each in instances} <= there:
            raise errors.NotFound("no such instance")
        super().delete(instances)


class IgnoresAllForOneUnknown(Sound):
    def delete(self, instances: Sequence[BackendInstance]) -> None:
        there = {i.token for i in self.list_instances().instances if i.state is not InstanceState.DELETING}
        if {each.token for each in instances} <= there:
            super().delete(instances)


class TakesALostAnswerForADelete(Sound):
    def delete(self, instances: Sequence[BackendInstance]) -> None:
        left = [each for each in instances if each.token not in self.memory.tokens]
        try:
            if left:
                super().delete(left[:1])
                super().delete(left[1:])
        except errors.Unavailable:
            self.memory.tokens |= {each.token for each in left}
            raise


class DeletesOnlyWhatRuns(Sound):
    def delete(self, instances: Sequence[BackendInstance]) -> None:
        if all(each.state is InstanceState.RUNNING for each in instances):
            super().delete(instances)
        else:
            raise errors.FailedPrecondition("still being created")


class DeletesNothing(Sound):
    """It only lists it no more."""

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self.memory.tokens |= {each.token for each in instances}

    def list_instances(self) -> Listing:
        listing = super().list_instances()
        return replace(listing, instances=tuple(i for i in listing.instances if i.token not in self.memory.tokens))


class RefusesWithoutAKind(Sound):
    def order(self, order: Order) -> None:
        try:
            super().order(order)
        except errors.OrderRefused as error:
            raise errors.OrderRefused(str(error), error.node_groups) from error


class RefusesAllGroups(Sound):
    def order(self, order: Order) -> None:
        try:
            super().order(order)
        except errors.OrderRefused as error:
            raise type(error)(str(error), [each.group.id for each in order.instances]) from error


class LeavesAPart(Sound):
    """What it could create of a refused order stays, and is not listed."""

    def order(self, order: Order) -> None:
        try:
            super().order(order)
        except errors.OrderRefused as error:
            sound = [each for each in wanted(order) if each.group.id not in error.node_groups]
            if sound:
                self.hide(sound)
            raise


class RefusesEverythingAfterAShortage(Sound):
    def order(self, order: Order) -> None:
        if self.memory.tokens:
            raise errors.OutOfCapacity("it was short before")
        try:
            super().order(order)
        except errors.OrderRefused:
            self.memory.tokens |= order.wanted
            raise


class TellsFailuresOfAnotherKind(Sound):
    """It takes every order, and tells as the errors of instances, with the default kind, what was refused."""

    def order(self, order: Order) -> None:
        try:
            super().order(order)
        except errors.OrderRefused as error:
            for each in wanted(order):
                if each.group.id in error.node_groups:
                    failed = InstanceError("Failed", "", retry_after_seconds=30)
                    self.memory.instances[each.token] = BackendInstance(
                        each.token, each.token, each.group.id, InstanceState.CREATING, failed
                    )

    def list_instances(self) -> Listing:
        listing = super().list_instances()
        return replace(listing, instances=(*listing.instances, *self.memory.instances.values()))


class KeepsWhatVanished(Sound):
    """It lists what it has seen once until it is deleted."""

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        for each in instances:
            self.memory.instances.pop(each.token, None)
        super().delete(instances)

    def list_instances(self) -> Listing:
        listing = super().list_instances()
        standing = {each.token: each for each in listing.instances}
        self.memory.instances.update(
            {token: each for token, each in standing.items() if each.state is InstanceState.RUNNING}
        )
        return replace(listing, instances=tuple({**self.memory.instances, **standing}.values()))


class ListsStrangers(Sound):
    def list_instances(self) -> Listing:
        return self.inner.list_instances()


class DeletesStrangers(Sound):
    """All of the node group that it did not order itself."""

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        super().delete(instances)
        super().delete([each for each in self.inner.list_instances().instances if each.token.startswith(STRANGER)])


class SharedCloud(SimulatedCloud):
    """A cloud with strangers, and with a broken backend in it."""

    lacks: ClassVar = {}

    def __init__(self, directory: Path, backend: Callable[[SimulatedCloud, Memory], Sound] = Sound) -> None:
        super().__init__(directory)
        self.patience_seconds = 120.0
        self.backend = backend
        self.memory = Memory()

    def open(self) -> OpenBackend:
        backend = self.backend(self, self.memory)
        return OpenBackend(backend, backend.inner.close)

    def add_stranger(self, group: NodeGroup) -> None:
        token = f"{STRANGER}{group.id}"
        self.faults.order(Order(token, (OrderedInstance(token, group, 0),), frozenset([token])))


_ALL_LISTS = "test_ids_stay_the_same"  # any test will do for what every list is checked for

BROKEN: Mapping[type[Sound], Mapping[str, str]] = {
    CreatesTwice: {
        "test_an_order_is_created_whole_and_nothing_else": "6 == 5",
        "test_an_increment_comes_whole_and_goes_again": "6 == 5",
    },
    CreatesAgainAfterARestart: {
        "test_an_order_that_is_repeated_creates_nothing": "== 5",
        "test_an_order_whose_answer_was_lost_is_completed_by_the_next_process": "== 3",
    },
    CreatesWhatIsNotListed: {"test_what_lists_show_late_is_not_created_again": "== 4"},
    CreatesWhatIsGone: {"test_a_token_is_spent_once_its_instance_is_gone": "<="},
    TakesALostAnswerForAnOrder: {
        "test_an_order_whose_answer_was_lost_is_completed_by_the_next_process": "waited 120 s for 3 instances to run",
        "test_an_increment_is_whole_after_a_kill_at_any_answer": "expected|waited 120 s for increment in done",
    },
    OrdersAnIncrementOnce: {"test_of_an_order_only_the_wanted_part_has_to_come": "waited 120 s"},
    ForgetsAtARestart: {
        "test_a_process_that_is_killed_at_any_step_leaves_its_work_to_the_next": "instances to be listed",
    },
    Sorts: {"test_instances_are_listed_in_order_of_creation": "not in order of creation|order of the list has changed"},
    Flickers: {"test_no_list_lacks_an_instance_for_long": "counts as gone after 0 s"},
    ListsLate: {
        "test_what_was_ordered_is_listed_in_time": "==",
        "test_a_process_that_is_killed_at_any_step_leaves_its_work_to_the_next": "counts as gone after 0 s",
    },
    ListsWithoutEnd: {"test_the_time_of_lists_moves_on": "a list with a later as_of_seconds"},
    ListsTheFuture: {_ALL_LISTS: "60 s after the list was answered"},
    ListsAStaleCopy: {"test_what_was_ordered_is_listed_in_time": "=="},
    NamesInstancesAnew: {"test_ids_stay_the_same": "an id never changes again"},
    InventsIds: {"test_a_token_stands_for_an_instance_that_has_no_id_yet": "pending:"},
    DeletesByIdAlone: {
        "test_an_instance_that_has_no_id_yet_is_deleted_by_its_token": "1 deleted instances to go",
        "test_a_token_stands_for_an_instance_that_has_no_id_yet": "1 deleted instances to go",
    },
    DeletesTheGroup: {
        "test_what_is_deleted_goes_and_nothing_else": "==",
        "test_increments_do_not_touch_one_another": "==",
    },
    DeletesLater: {"test_what_is_deleted_goes_and_nothing_else": "shows nothing of their deletion"},
    DeletesAllOrNone: {"test_deleting_again_and_what_is_unknown_changes_nothing": "no such instance"},
    IgnoresAllForOneUnknown: {"test_deleting_again_and_what_is_unknown_changes_nothing": "1 deleted instances to go"},
    TakesALostAnswerForADelete: {
        "test_a_delete_whose_answer_was_lost_is_completed_by_the_next_process": "2 deleted instances to go"
    },
    DeletesOnlyWhatRuns: {"test_what_is_still_being_created_can_be_deleted": "still being created"},
    DeletesNothing: {
        "test_what_is_deleted_goes_and_nothing_else": "== 3",
        "test_an_increment_comes_whole_and_goes_again": "assert not",
        "test_a_delete_whose_answer_was_lost_is_completed_by_the_next_process": "no answer was lost|<=",
    },
    RefusesWithoutAKind: {
        "test_a_shortage_is_told_as_one": "expected OutOfCapacity",
        "test_a_quota_is_told_as_one": "expected QuotaExceeded",
        "test_wrong_parameters_are_told_as_such": "expected OrderMisconfigured",
    },
    RefusesAllGroups: {"test_a_shortage_is_told_as_one": "expected pool-a"},
    LeavesAPart: {
        "test_a_shortage_is_told_as_one": "<=",
        "test_an_increment_with_a_shortage_is_rolled_back_whole": "assert not",
    },
    RefusesEverythingAfterAShortage: {"test_a_shortage_is_told_as_one": "it was short before"},
    TellsFailuresOfAnotherKind: {
        "test_a_quota_is_told_as_one": "expected one of kind quota",
        "test_wrong_parameters_are_told_as_such": "expected one of kind configuration",
        "test_a_shortage_is_told_as_one": "an error without a message",
    },
    KeepsWhatVanished: {
        "test_an_instance_that_vanishes_is_listed_no_longer": "listed no longer|1 deleted instances to go",
        "test_an_increment_that_loses_an_instance_is_rolled_back_whole": "deadline|waited 120 s|vanished",
    },
    ListsStrangers: {"test_instances_of_others_are_neither_listed_nor_deleted": "nobody ordered it"},
    DeletesStrangers: {"test_instances_of_others_are_neither_listed_nor_deleted": "<="},
}


def spread() -> Counter[str]:
    """Return how many broken backends each test catches."""
    return Counter(test for tests in BROKEN.values() for test in tests)
