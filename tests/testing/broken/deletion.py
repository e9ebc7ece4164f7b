"""Backends that break a promise on deletion, each with the tests that have to fail and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance, Listing
from cagrpc.fleet.model import InstanceState
from tests.testing.broken.sound import STRANGER, Sound


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


class DeletesStrangers(Sound):
    """All of the node group that it did not order itself."""

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        super().delete(instances)
        super().delete([each for each in self.inner.list_instances().instances if each.token.startswith(STRANGER)])


DELETION: Mapping[type[Sound], Mapping[str, str]] = {
    DeletesByIdAlone: {
        "test_an_instance_that_has_no_id_yet_is_deleted_by_its_token": "1 instances to go",
        "test_a_token_stands_for_an_instance_that_has_no_id_yet": "1 instances to go",
    },
    DeletesTheGroup: {
        "test_what_is_deleted_goes_and_nothing_else": "==",
        "test_increments_do_not_touch_one_another": "==",
    },
    DeletesLater: {"test_what_is_deleted_goes_and_nothing_else": "shows nothing of their deletion"},
    DeletesAllOrNone: {"test_deleting_again_and_what_is_unknown_changes_nothing": "no such instance"},
    IgnoresAllForOneUnknown: {"test_deleting_again_and_what_is_unknown_changes_nothing": "1 instances to go"},
    TakesALostAnswerForADelete: {
        "test_a_delete_whose_answer_was_lost_is_completed_by_the_next_process": "2 instances to go"
    },
    DeletesOnlyWhatRuns: {"test_what_is_still_being_created_can_be_deleted": "still being created"},
    DeletesNothing: {
        "test_what_is_deleted_goes_and_nothing_else": "== 3",
        "test_an_increment_comes_whole_and_goes_again": "assert not",
        "test_a_delete_whose_answer_was_lost_is_completed_by_the_next_process": "no answer was lost",
    },
    DeletesStrangers: {"test_instances_of_others_are_neither_listed_nor_deleted": "<="},
}
