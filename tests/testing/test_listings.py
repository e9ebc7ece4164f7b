"""What the suite checks of every list: each broken promise is found, and what `Pace` allows is not taken for one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cagrpc.fleet.backend import BackendInstance, Listing, Order, OrderedInstance, Pace
from cagrpc.fleet.model import InstanceError, InstanceState
from cagrpc.testing.listings import Listings
from tests.support.fleet import group

CREATING, RUNNING, DELETING = InstanceState.CREATING, InstanceState.RUNNING, InstanceState.DELETING


def _instance(
    token: str = "a", instance_id: str = "", state: InstanceState = RUNNING, node_group: str = "g"
) -> BackendInstance:
    return BackendInstance(instance_id or f"cloud://{token}", token, node_group, state)


class _Cloud:
    """Lists of two instances, `a` and `b`, whose order was answered at 100 s; lists are answered at once."""

    def __init__(self, absent_after: float = 0.0) -> None:
        self.listings = Listings()
        self.pace = Pace(list_every_seconds=1.0, absent_after_seconds=absent_after)
        ordered = tuple(OrderedInstance(token, group("g"), n) for n, token in enumerate("ab"))
        self.listings.ordered(Order("i", ordered, frozenset("ab")))
        self.listings.accepted("ab", 100.0)

    def lists(self, at: float, *instances: BackendInstance) -> None:
        self.listings.check(Listing(instances, at), at, self.pace)


def test_a_life_without_fault() -> None:
    cloud = _Cloud()
    cloud.lists(101, _instance("a", "a", CREATING), _instance("b", state=CREATING))
    cloud.lists(102, _instance("a", "a", CREATING), _instance("b"))
    cloud.lists(103, _instance("a"), _instance("b"))
    cloud.listings.new_process()
    cloud.lists(104, _instance("a", state=DELETING), _instance("b"))
    cloud.lists(105, _instance("b"))


def _future(cloud: _Cloud) -> None:
    cloud.listings.check(Listing((), 101.0), 100.5, Pace())


def _past(cloud: _Cloud) -> None:
    cloud.lists(102, _instance("a"), _instance("b"))
    cloud.lists(101, _instance("a"), _instance("b"))


def _two_ids(cloud: _Cloud) -> None:
    cloud.lists(101, _instance("a", "a", CREATING), _instance("b"))
    cloud.lists(102, _instance("a", "one", CREATING), _instance("b"))
    cloud.lists(103, _instance("a", "two", CREATING), _instance("b"))


def _id_after_running(cloud: _Cloud) -> None:
    cloud.lists(101, _instance("a", "a"), _instance("b"))
    cloud.lists(102, _instance("a"), _instance("b"))


def _back(cloud: _Cloud) -> None:
    cloud.lists(101, _instance("a"), _instance("b"))
    cloud.lists(102, _instance("b"))
    cloud.lists(103, _instance("a"), _instance("b"))


def _back_from_nowhere(cloud: _Cloud) -> None:
    cloud.lists(101)
    cloud.lists(102, _instance("a"))


def _undeleted(cloud: _Cloud) -> None:
    cloud.lists(101, _instance("a", state=DELETING), _instance("b"))
    cloud.lists(102, _instance("a"), _instance("b"))


def _reordered(cloud: _Cloud) -> None:
    cloud.lists(101, _instance("a"), _instance("b"))
    cloud.lists(102, _instance("b"), _instance("a"))


def _failed_and_running(cloud: _Cloud) -> None:
    failed = BackendInstance("cloud://a", "a", "g", RUNNING, InstanceError("x", "y"))
    cloud.lists(101, failed, _instance("b"))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (_future, r"0\.5 s after the list was answered"),
        (_past, "went back, from 102 to 101"),
        (lambda cloud: cloud.lists(101, _instance("a"), _instance("a", "other")), "listed twice with one token: a"),
        (lambda cloud: cloud.lists(101, _instance("a", "x"), _instance("b", "x")), "listed twice with one id: x"),
        (lambda cloud: cloud.lists(101, _instance("c")), "nobody ordered it"),
        (lambda cloud: cloud.lists(101, _instance("a", node_group="h")), "but ordered for node group g"),
        (lambda cloud: cloud.lists(101, BackendInstance("", "a", "g", CREATING)), "its token stands for it"),
        (_failed_and_running, "only one that is being created has an error"),
        (_two_ids, "after it had the id one; an id never changes again"),
        (_id_after_running, "after it was running with a provisional id"),
        (_back, "the list of 102 lacked it for 1 s"),
        (_back_from_nowhere, "the list of 101 lacked it for 0 s"),
        (_undeleted, "1 s after it was being deleted"),
        (_reordered, "the order of the list has changed from a, b to b, a"),
    ],
)
def test_a_broken_promise_is_found(broken: Callable[[_Cloud], None], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        broken(_Cloud())


def test_lists_may_lag_as_long_as_the_pace_allows() -> None:
    cloud = _Cloud(absent_after=10.0)
    cloud.lists(105, _instance("a"))
    cloud.lists(109, _instance("b"))
    cloud.lists(114, _instance("a"), _instance("b"))
    cloud.listings.new_process()
    cloud.lists(200, _instance("b"))
    cloud.lists(209, _instance("a"), _instance("b"))
    cloud.lists(210, _instance("a", state=DELETING), _instance("b"))
    cloud.lists(219, _instance("a"), _instance("b"))
    with pytest.raises(AssertionError, match="10 s after it was being deleted"):
        cloud.lists(220, _instance("a"), _instance("b"))


def test_absence_counts_from_a_processs_first_list() -> None:
    cloud = _Cloud(absent_after=10.0)
    cloud.lists(105, _instance("a"), _instance("b"))
    cloud.listings.new_process()
    cloud.lists(200, _instance("b"))
    cloud.lists(210, _instance("b"))
    with pytest.raises(AssertionError, match="the list of 210 lacked it for 10 s, and it counts as gone after 10 s"):
        cloud.lists(211, _instance("a"), _instance("b"))


def test_after_a_silence_one_list_makes_nothing_absent() -> None:
    cloud = _Cloud(absent_after=10.0)
    cloud.lists(105, _instance("a"), _instance("b"))
    cloud.lists(117, _instance("b"))
    cloud.lists(126, _instance("b"))
    cloud.lists(126, _instance("a"), _instance("b"))
    cloud.lists(130, _instance("b"))
    cloud.lists(136, _instance("b"))
    with pytest.raises(AssertionError, match="the list of 136 lacked it for 10 s"):
        cloud.lists(137, _instance("a"), _instance("b"))


def test_where_lists_are_always_far_apart_the_second_one_makes_absent() -> None:
    cloud = _Cloud(absent_after=2.0)
    for at in (105, 110, 115):
        cloud.lists(at, _instance("a"), _instance("b"))
    cloud.lists(120, _instance("b"))
    cloud.lists(125, _instance("a"), _instance("b"))
    cloud.lists(130, _instance("b"))
    cloud.lists(135, _instance("b"))
    with pytest.raises(AssertionError, match="the list of 135 lacked it for 5 s"):
        cloud.lists(140, _instance("a"), _instance("b"))
