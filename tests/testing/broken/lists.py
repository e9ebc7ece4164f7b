"""Backends that break a promise on lists and ids, each with the tests that have to fail and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.fleet.backend import BackendInstance, Listing, Pace
from cagrpc.fleet.model import InstanceState
from tests.support.simulated_cloud import SimulatedCloud
from tests.testing.broken.sound import Memory, Sound


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
        self.inner.set_behaviours({"*": Behaviour(list_delay_seconds=60)})


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


LISTS: Mapping[type[Sound], Mapping[str, str]] = {
    Sorts: {"test_instances_are_listed_in_order_of_creation": "not in order of creation"},
    Flickers: {"test_no_list_lacks_an_instance_for_long": "counts as gone after 0 s"},
    ListsLate: {
        "test_what_was_ordered_is_listed_in_time": "==",
        "test_a_process_that_is_killed_at_any_step_leaves_its_work_to_the_next": "counts as gone after 0 s",
    },
    ListsWithoutEnd: {"test_the_time_of_lists_moves_on": "a list with a later as_of_seconds"},
    ListsTheFuture: {"test_ids_stay_the_same": "60 s after the list was answered"},
    ListsAStaleCopy: {"test_what_was_ordered_is_listed_in_time": "=="},
    NamesInstancesAnew: {"test_ids_stay_the_same": "an id never changes again"},
    InventsIds: {"test_a_token_stands_for_an_instance_that_has_no_id_yet": "pending:"},
    KeepsWhatVanished: {
        "test_an_instance_that_vanishes_is_listed_no_longer": "1 instances to go",
        "test_an_increment_that_loses_an_instance_is_rolled_back_whole": "waited 120 s for increment in rolled-back",
    },
    ListsStrangers: {"test_instances_of_others_are_neither_listed_nor_deleted": "nobody ordered it"},
}
