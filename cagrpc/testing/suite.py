"""The conformance suite: what `cagrpc.fleet.backend` promises, as tests that a backend's author inherits. What is true
of every list is checked in `listings`, by every test; increments of a `Fleet` over the backend are in `fleet_suite`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from cagrpc import errors
from cagrpc.errors import ErrorKind
from cagrpc.fleet.backend import BackendInstance
from cagrpc.testing.cloud import Ability, Cloud
from cagrpc.testing.fleet_suite import FleetConformance
from cagrpc.testing.processes import Processes, of_group, part_of, running
from solver.model import NodeGroup

_LOOKS = 20
_MOST_REQUESTS = 50
_SECOND = 2.0
"""Longer than the second in which most clouds give times of creation, and in which watches tell of a change."""


class BackendConformance(FleetConformance):
    """Inherit it as `class TestConformance(BackendConformance)`, with a fixture `cloud` that returns a new `Cloud`."""

    @pytest.fixture
    def cloud(self) -> Cloud:
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `cloud` that returns a cagrpc.testing.Cloud")

    @pytest.fixture
    def run(self, cloud: Cloud) -> Iterator[Processes]:
        try:
            run = Processes(cloud)
            try:
                yield run
            finally:
                cloud.recover()
                run.close()
        finally:
            cloud.close()

    # Creation.

    def test_an_order_is_created_whole_and_nothing_else(self, run: Processes) -> None:
        before = run.cloud.machines()
        assert run.list() == {}, "listed before anything was ordered"
        order = run.create(2, 3)
        listed = run.list_settled()
        assert listed.keys() == order.wanted
        assert len(run.cloud.machines() - before) == 5
        assert run.backend.problem is None

    def test_an_order_that_is_repeated_creates_nothing(self, run: Processes) -> None:
        before = run.cloud.machines()
        order = run.new_order(2, 3)
        for _ in range(3):
            run.order(order)
            run.restart()
            run.order(order)
            run.wait_for_running(order.wanted)
        run.list_settled()
        assert len(run.cloud.machines() - before) == 5

    def test_an_order_whose_answer_was_lost_is_completed_by_the_next_process(self, run: Processes) -> None:
        """With the loss of the first answer, the second and so on, until an order needs no more."""
        run.cloud.need(Ability.LOSE_ANSWERS)
        for after in range(_MOST_REQUESTS):
            before = run.cloud.machines()
            order = run.new_order(2, 1)
            lost = run.loses_answer(after, partial(run.order_once, order))
            run.restart()
            run.order(order)
            run.wait_for_running(order.wanted)
            listed = run.list_settled()
            assert len(run.cloud.machines() - before) == 3
            run.delete(listed[token] for token in order.wanted)
            if not lost:
                assert after > 0, "no answer was lost"
                return
        raise AssertionError(f"an order of 3 instances needs more than {_MOST_REQUESTS} requests")

    def test_of_an_order_only_the_wanted_part_has_to_come(self, run: Processes) -> None:
        before = run.cloud.machines()
        order = run.new_order(3, 2)
        first, second = (sorted(of_group(order, group)) for group in run.cloud.node_groups[:2])
        run.order(part_of(order, [first[1], second[0]]))
        run.wait_for_running({first[1], second[0]})
        run.restart()
        run.order(part_of(order, [first[0], first[2]]))
        run.wait_for_running({*first, second[0]})
        run.order(part_of(order, [second[1]]))
        run.wait_for_running(order.wanted)
        run.list_settled()
        assert len(run.cloud.machines() - before) == 5

    def test_a_token_is_spent_once_its_instance_is_gone(self, run: Processes) -> None:
        run.cloud.need(Ability.REMEMBER_TOKENS)
        before = run.cloud.machines()
        order = run.create(2, 1)
        run.clear(order.wanted)
        for _ in range(2):
            run.order(order)
            assert run.list_settled().keys().isdisjoint(order.wanted)
            run.restart()
        assert run.cloud.machines() <= before

    def test_increments_do_not_touch_one_another(self, run: Processes) -> None:
        first, second = run.new_order(2, 1), run.new_order(2, 1)
        for order in (first, second, first):
            run.order(order)
        run.wait_for_running(first.wanted | second.wanted)
        run.clear(first.wanted)
        assert running(run.list_settled()) == second.wanted

    # Lists.

    def test_instances_are_listed_in_order_of_creation(self, run: Processes) -> None:
        orders = [run.new_order(1, 1), run.new_order(0, 1), run.new_order(1, 1)]
        orders.sort(key=lambda order: order.increment_id, reverse=True)  # so that their tokens do not grow
        for order in orders:
            run.order(order)
            run.cloud.advance(_SECOND)
        tokens = frozenset().union(*(order.wanted for order in orders))
        for _ in range(2):
            run.wait_for_running(tokens)
            listed = run.list()
            numbers = [next(n for n, order in enumerate(orders) if token in order.wanted) for token in listed]
            assert numbers == sorted(numbers), f"not in order of creation: {', '.join(listed)}"
            run.restart()

    def test_no_list_lacks_an_instance_for_long(self, run: Processes) -> None:
        """For longer than `Pace.absent_after_seconds`; what comes back after that is found by `listings`."""
        order = run.create(2, 2)
        for _ in range(_LOOKS):
            run.list()
            run.cloud.advance(run.cloud.tick_seconds)
        assert running(run.list_settled()) == order.wanted

    def test_what_was_ordered_is_listed_in_time(self, run: Processes) -> None:
        run.list()  # which nothing may be answered from later
        order = run.new_order(2, 2)
        run.order(order)
        assert run.list_settled().keys() == order.wanted

    def test_what_lists_show_late_is_not_created_again(self, run: Processes) -> None:
        run.cloud.need(Ability.DELAY_LISTS)
        before = run.cloud.machines()
        run.cloud.delay_lists()
        order = run.new_order(2, 2)
        run.order(order)
        run.restart()
        run.order(part_of(order, sorted(order.wanted)[1:]))
        assert run.list_settled().keys() == order.wanted
        run.wait_for_running(order.wanted)
        assert len(run.cloud.machines() - before) == 4

    def test_the_time_of_lists_moves_on(self, run: Processes) -> None:
        run.list()
        since = run.cloud.clock()
        run.cloud.wait_until(lambda: run.list_time() > since, "a list with a later as_of_seconds")

    # Ids.

    def test_ids_stay_the_same(self, run: Processes) -> None:
        order = run.create(2, 2)
        ids = {token: each.id for token, each in run.list().items()}
        run.restart()
        run.wait_for_running(order.wanted)
        assert {token: each.id for token, each in run.list().items()} == ids

    def test_a_token_stands_for_an_instance_that_has_no_id_yet(self, run: Processes) -> None:
        run.cloud.need(Ability.DELAY_IDS)
        run.cloud.delay_ids()
        order = run.new_order(2, 1)
        run.order(order)
        run.wait_for(lambda listed: order.wanted <= listed.keys(), "the instances to be listed")
        provisional = run.list()
        assert {token: each.id for token, each in provisional.items()} == {token: token for token in order.wanted}
        run.restart()
        run.cloud.recover()
        run.wait_for_running(order.wanted)
        gone = min(of_group(order, run.cloud.node_groups[0]))
        run.delete([provisional[gone]])
        run.wait_for_end({gone})
        assert running(run.list()) == order.wanted - {gone}

    def test_an_instance_that_has_no_id_yet_is_deleted_by_its_token(self, run: Processes) -> None:
        run.cloud.need(Ability.DELAY_IDS)
        before = run.cloud.machines()
        run.cloud.delay_ids()
        order = run.new_order(2, 1)
        run.order(order)
        run.wait_for(lambda listed: order.wanted <= listed.keys(), "the instances to be listed")
        gone = min(of_group(order, run.cloud.node_groups[0]))
        run.delete([run.list()[gone]])
        run.cloud.recover()
        run.wait_for_running(order.wanted - {gone})
        run.wait_for_end({gone})
        assert len(run.cloud.machines() - before) == 2

    # Deletion.

    def test_what_is_deleted_goes_and_nothing_else(self, run: Processes) -> None:
        before = run.cloud.machines()
        order = run.create(3, 2)
        listed = run.list()
        gone = set(sorted(of_group(order, run.cloud.node_groups[0]))[:2])
        run.delete(listed[token] for token in gone)
        kept = gone & running(run.list_settled())
        assert not kept, f"the list shows nothing of their deletion: {sorted(kept)}"
        run.wait_for_end(gone)
        rest = {token: each for token, each in listed.items() if token not in gone}
        assert run.list() == rest
        assert len(run.cloud.machines() - before) == 3

    def test_deleting_again_and_what_is_unknown_changes_nothing(self, run: Processes) -> None:
        order = run.create(3, 1)
        listed = run.list()
        first, second, third = sorted(of_group(order, run.cloud.node_groups[0]))
        unknown = replace(listed[first], id=f"{first}-unknown", token=f"{first}-unknown")
        run.delete([unknown])
        run.delete([listed[first]])
        run.delete([listed[first]])
        run.restart()
        run.delete([listed[first], unknown])
        run.wait_for_end({first})
        run.delete([listed[first], unknown, listed[second]])
        run.wait_for_end({second})
        assert running(run.list()) == order.wanted - {first, second}
        assert third in run.list()

    def test_a_delete_whose_answer_was_lost_is_completed_by_the_next_process(self, run: Processes) -> None:
        run.cloud.need(Ability.LOSE_ANSWERS)
        before = run.cloud.machines()
        for after in range(_MOST_REQUESTS):
            order = run.create(3, 0)
            kept, *gone = sorted(order.wanted)
            listed = run.list()
            lost = run.loses_answer(after, partial(run.delete_once, [listed[token] for token in gone]))
            run.restart()
            run.delete(listed[token] for token in gone)
            run.wait_for_end(set(gone))
            assert running(run.list()) & order.wanted == {kept}
            run.clear(order.wanted)
            if not lost:
                assert after > 0, "no answer was lost"
                assert run.cloud.machines() <= before
                return
        raise AssertionError(f"a delete of 2 instances needs more than {_MOST_REQUESTS} requests")

    def test_what_is_still_being_created_can_be_deleted(self, run: Processes) -> None:
        before = run.cloud.machines()
        order = run.new_order(2, 2)
        run.order(order)
        run.clear(order.wanted)
        assert run.cloud.machines() <= before

    # Failures.

    def test_a_shortage_is_told_as_one(self, run: Processes) -> None:
        run.cloud.need(Ability.RUN_OUT, Ability.REPORT_SHORTAGE)
        _check_failure(run, run.cloud.run_out, errors.OutOfCapacity, ErrorKind.CAPACITY)

    def test_a_quota_is_told_as_one(self, run: Processes) -> None:
        run.cloud.need(Ability.EXCEED_QUOTA)
        _check_failure(run, run.cloud.exceed_quota, errors.QuotaExceeded, ErrorKind.QUOTA)

    def test_wrong_parameters_are_told_as_such(self, run: Processes) -> None:
        run.cloud.need(Ability.MISCONFIGURE)
        _check_failure(run, run.cloud.misconfigure, errors.OrderMisconfigured, ErrorKind.CONFIGURATION)

    def test_an_instance_that_vanishes_is_listed_no_longer(self, run: Processes) -> None:
        run.cloud.need(Ability.VANISH)
        order = run.create(2, 1)
        lost = min(of_group(order, run.cloud.node_groups[0]))
        run.cloud.vanish(run.list()[lost].id)
        run.changed()
        run.wait_for_end({lost})
        assert running(run.list()) == order.wanted - {lost}

    def test_a_cloud_out_of_reach_is_not_taken_for_an_empty_one(self, run: Processes) -> None:
        run.cloud.need(Ability.CUT_OFF)
        order, next_order = run.create(2, 1), run.new_order(1, 1)
        gone = min(of_group(order, run.cloud.node_groups[0]))
        doomed = run.list()[gone]
        run.cloud.cut_off()
        with pytest.raises(errors.Unavailable):
            run.order_once(next_order)
        with pytest.raises(errors.Unavailable):
            run.delete_once([doomed])
        for _ in range(_LOOKS):
            run.cloud.advance(run.cloud.tick_seconds)
            with suppress(errors.Unavailable):
                listed = run.list_once()
                assert order.wanted <= {each.token for each in listed.instances}, f"found {listed}"
        run.cloud.recover()
        run.order(next_order)
        run.delete([doomed])
        run.wait_for_end({gone})
        run.wait_for_running((order.wanted | next_order.wanted) - {gone})

    def test_instances_of_others_are_neither_listed_nor_deleted(self, run: Processes) -> None:
        run.cloud.need(Ability.ADD_STRANGER)
        before = run.cloud.machines()
        run.cloud.add_stranger(run.cloud.node_groups[0])
        strangers = run.cloud.machines() - before
        assert strangers, "add_stranger has added nothing"
        run.changed()
        order = run.create(2, 1)
        assert run.list_settled().keys() == order.wanted
        run.clear(order.wanted)
        run.restart()
        assert run.list_settled() == {}
        assert strangers <= run.cloud.machines()

    # Restarts.

    def test_a_process_that_is_killed_at_any_step_leaves_its_work_to_the_next(self, run: Processes) -> None:
        before = run.cloud.machines()
        order = run.new_order(2, 1)
        run.order(order)
        run.restart()
        run.wait_for(lambda listed: order.wanted <= listed.keys(), "the instances to be listed")
        run.restart()
        run.wait_for_running(order.wanted)
        run.restart()
        listed = run.list_settled()
        assert running(listed) == order.wanted
        run.delete(listed.values())
        run.restart()
        run.wait_for_end(order.wanted)
        run.restart()
        assert run.list_settled() == {}
        assert run.cloud.machines() <= before


def _check_failure(
    run: Processes, fault: Callable[[NodeGroup], None], refusal: type[errors.OrderRefused], kind: ErrorKind
) -> None:
    """Order from a node group that cannot be had and from another. It fails as a refusal or by the errors of instances,
    of that kind and for that group; nothing of it is left, and the other group can still be had."""
    short, sound = run.cloud.node_groups[:2]
    before = run.cloud.machines()
    fault(short)
    run.cloud.advance(_SECOND)  # a backend may follow its parameters by a watch
    order = run.new_order(2, 2)
    refused: errors.OrderRefused | None = None
    try:
        run.order(order)
    except errors.OrderRefused as error:
        refused = error
    if refused is None:
        _check_errors(run, of_group(order, short), kind)
    else:
        assert isinstance(refused, refusal), f"found {type(refused).__name__}, expected {refusal.__name__}: {refused}"
        assert set(refused.node_groups) <= {short.id}, f"refused for {refused.node_groups}, expected {short.id}"
        assert str(refused), "a refusal without a message"
        _check_wait(refused.retry_after_seconds)
    run.clear(order.wanted)
    assert run.cloud.machines() <= before
    other = run.create(0, 2)
    assert {each.node_group for each in run.list().values()} == {sound.id}
    assert running(run.list()) == other.wanted


def _check_errors(run: Processes, short: frozenset[str], kind: ErrorKind) -> None:
    failed: dict[str, BackendInstance] = {}

    def told(listed: Mapping[str, BackendInstance]) -> bool:
        assert not short & running(listed), "it runs, though its node group cannot be had"
        failed.update({token: each for token, each in listed.items() if each.error is not None})
        return bool(failed)

    run.wait_for(told, "the error of an instance")
    for token, each in failed.items():
        assert each.error is not None
        assert token in short, f"an error of a node group that can be had: {each}"
        assert each.error.kind is kind, f"found {each.error!r}, expected one of kind {kind}"
        assert each.error.code, "an error without a code"
        assert each.error.message, "an error without a message"
        _check_wait(each.error.retry_after_seconds)


def _check_wait(retry_after_seconds: float | None) -> None:
    assert retry_after_seconds is None or retry_after_seconds > 0, f"retry_after_seconds: found {retry_after_seconds}"
