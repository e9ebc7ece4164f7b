"""Backends that break a promise on orders, each with the tests that have to fail and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cagrpc import errors
from cagrpc.fleet.backend import Listing, Order
from tests.support.simulated_cloud import SimulatedCloud
from tests.testing.broken.sound import Memory, Sound, wanted


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


CREATION: Mapping[type[Sound], Mapping[str, str]] = {
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
        "test_an_increment_is_whole_after_a_kill_at_any_answer": "waited 120 s for increment in done",
    },
    OrdersAnIncrementOnce: {"test_of_an_order_only_the_wanted_part_has_to_come": "waited 120 s"},
    ForgetsAtARestart: {
        "test_a_process_that_is_killed_at_any_step_leaves_its_work_to_the_next": "instances to be listed",
    },
}
