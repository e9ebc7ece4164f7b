"""Backends that break a promise on failures, each with the tests that have to fail and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance, Listing, Order
from cagrpc.fleet.model import InstanceError, InstanceState
from tests.testing.broken.sound import Sound, wanted


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


class ListsNothingWhenCutOff(Sound):
    def list_instances(self) -> Listing:
        try:
            return super().list_instances()
        except errors.Unavailable:
            return Listing((), self.cloud.clock())


class RefusesWhenCutOff(Sound):
    def order(self, order: Order) -> None:
        try:
            super().order(order)
        except errors.Unavailable as error:
            raise errors.OutOfCapacity("no machine could be had") from error


class DeletesAsIfCarriedOut(Sound):
    def delete(self, instances: Sequence[BackendInstance]) -> None:
        with suppress(errors.Unavailable):
            super().delete(instances)


FAILURES: Mapping[type[Sound], Mapping[str, str]] = {
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
    ListsNothingWhenCutOff: {"test_a_cloud_out_of_reach_is_not_taken_for_an_empty_one": "found Listing"},
    RefusesWhenCutOff: {"test_a_cloud_out_of_reach_is_not_taken_for_an_empty_one": "no machine could be had"},
    DeletesAsIfCarriedOut: {"test_a_cloud_out_of_reach_is_not_taken_for_an_empty_one": "DID NOT RAISE"},
}
