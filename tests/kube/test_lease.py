"""One leader at a time, whatever the API server, the clocks and the other candidate do; and a quick change of hands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc import errors
from cagrpc.kube.lease import LeaderElection
from tests.support.api_server import ApiServer, Fault, api_server
from tests.support.clocks import any_clock
from tests.support.examples import examples
from tests.support.fleet import FakeClock

LEASES = "/apis/coordination.k8s.io/v1/namespaces/cagrpc/leases"
LEASE = f"{LEASES}/cagrpc"


@pytest.fixture
def store() -> Iterator[ApiServer]:
    with api_server(LEASES) as made:
        yield made


def _candidate(store: ApiServer, name: str, clock: Callable[[], float], *, ahead: float = 0.0) -> LeaderElection:
    """`ahead`: by so much its clocks are ahead of the others'."""
    return LeaderElection(
        store.client(),
        "cagrpc",
        identity=name,
        clock=any_clock(lambda: clock() + ahead),
        wall_clock=any_clock(lambda: 1_800_000_000 + clock() + 3600 * ahead),
        wait=lambda stop, seconds: stop.is_set(),
    )


def _tried(candidate: LeaderElection) -> bool:
    try:
        return candidate.step()
    except errors.Unavailable:
        return False


def test_one_of_two_leads_and_the_other_is_told_who(store: ApiServer) -> None:
    clock = FakeClock()
    first, second = _candidate(store, "first", clock), _candidate(store, "second", clock)
    assert first.step()
    assert not second.step()
    assert (first.is_leader, second.is_leader) == (True, False)
    first.check()
    with pytest.raises(errors.Unavailable, match="Lease cagrpc/cagrpc: held by first"):
        second.check()
    spec = store.objects[LEASE]["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("first", 12, 0)


def test_what_is_given_back_is_taken_at_once(store: ApiServer) -> None:
    clock = FakeClock()
    first, second = _candidate(store, "first", clock), _candidate(store, "second", clock)
    stop = threading.Event()
    assert first.acquire(stop)
    assert not second.step()
    stop.set()
    first.keep(stop)
    assert not first.is_leader
    assert second.step()
    assert second.is_leader
    assert store.objects[LEASE]["spec"]["leaseTransitions"] == 1
    first.release()
    assert store.objects[LEASE]["spec"]["holderIdentity"] == "second"


@pytest.mark.parametrize("ahead", [0.0, 100.0, -100.0])
@pytest.mark.parametrize("phase", [0.0, 0.3, 0.9])
def test_a_killed_leader_is_followed_after_its_lease_and_within_15_seconds(
    store: ApiServer, ahead: float, phase: float
) -> None:
    clock = FakeClock()
    first, second = _candidate(store, "first", clock), _candidate(store, "second", clock, ahead=ahead)
    assert first.step()
    clock.advance(phase)
    for _ in range(7):  # a standby for a while, with a leader that renews
        assert not second.step()
        clock.advance(1.0)
        if _ % 2:
            assert first.step()
            killed_at = clock()
    while not second.step():
        clock.advance(1.0)
    assert 12.0 <= clock() - killed_at <= 15.0


@pytest.mark.parametrize(("away_seconds", "kept"), [(5.0, True), (20.0, False)])
def test_an_api_server_that_is_away(store: ApiServer, away_seconds: float, kept: bool) -> None:
    clock = FakeClock()
    first, second = _candidate(store, "first", clock), _candidate(store, "second", clock)
    assert first.step()
    assert not second.step()
    store.fault = lambda _: Fault.CUT
    back_at = clock() + away_seconds
    while clock() < back_at:
        clock.advance(1.0)
        assert not _tried(first)
        assert not _tried(second)
    store.fault = lambda _: Fault.NONE
    assert first.step() is kept
    assert first.is_leader is kept
    assert second.step() is not kept


def test_a_server_that_asks_for_time_is_asked_again_at_the_leases_own_pace(store: ApiServer) -> None:
    """Waiting as long as it asks for would cost the Lease: it says 9 s, twice."""
    clock, stop = FakeClock(), threading.Event()

    def wait(stop: threading.Event, seconds: float) -> bool:
        clock.advance(seconds)
        if clock() > ends_at:
            stop.set()
        return stop.is_set()

    first = LeaderElection(store.client(clock.advance), "cagrpc", identity="first", clock=clock, wait=wait)
    assert first.acquire(stop)
    ends_at, busy = clock() + 60.0, iter([Fault.BUSY] * 4)
    store.fault = lambda _: next(busy, Fault.NONE)
    led: list[bool] = []
    store.before = lambda _: led.append(first.is_leader)
    first.keep(stop)
    assert next(busy, None) is None
    assert len(led) > 20
    assert all(led[:-1])  # to the end, when it is given back
    assert store.objects[LEASE]["spec"]["holderIdentity"] == ""


def test_who_does_not_go_on_gives_the_lease_to_a_standby(store: ApiServer) -> None:
    clock, stop, rounds = FakeClock(), threading.Event(), 0

    def wait(stop: threading.Event, seconds: float) -> bool:
        clock.advance(seconds)
        return stop.is_set()

    def stuck() -> str:
        nonlocal rounds
        rounds += 1
        return "the loop does not go on" if rounds > 20 else ""

    first = LeaderElection(store.client(), "cagrpc", identity="first", clock=clock, wait=wait)
    second = _candidate(store, "second", clock)
    assert first.acquire(stop)
    assert not second.step()
    began = clock()
    first.keep(stop, stuck)
    assert clock() - began > 30
    with pytest.raises(errors.Unavailable, match="given up by first: the loop does not go on"):
        first.check()
    assert second.step()
    assert not first.step()
    assert store.objects[LEASE]["spec"]["holderIdentity"] == "second"


def test_a_renewal_that_fails_in_a_way_nobody_thought_of_is_tried_again(
    store: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    clock, stop = FakeClock(), threading.Event()

    def wait(stop: threading.Event, seconds: float) -> bool:
        clock.advance(seconds)
        waits.append(seconds)
        if len(waits) in (1, 3):  # somebody takes everything out of it, and puts it back
            store.objects[LEASE] = {**whole, "spec": None} if len(waits) == 1 else whole
        if clock() > began + 30:
            stop.set()
        return stop.is_set()

    first = LeaderElection(store.client(), "cagrpc", identity="first", clock=clock, wait=wait)
    assert first.acquire(stop)
    began, whole, waits = clock(), store.objects[LEASE], list[float]()
    first.keep(stop)
    assert "failed unexpectedly: AttributeError" in caplog.text
    assert "lost" not in caplog.text
    assert store.objects[LEASE]["spec"]["holderIdentity"] == ""  # given back in the end


def test_leadership_ends_by_the_clock_before_others_may_lead(store: ApiServer) -> None:
    clock = FakeClock()
    first = _candidate(store, "first", clock)
    assert first.step()
    clock.advance(9.9)
    first.check()
    clock.advance(0.2)
    with pytest.raises(errors.Unavailable, match="lost by first"):
        first.check()
    assert not first.step()
    assert not first.is_leader


def test_a_paused_leader_does_not_take_back_what_another_had(store: ApiServer) -> None:
    clock = FakeClock()
    first, second = _candidate(store, "first", clock), _candidate(store, "second", clock)
    assert first.step()
    assert not second.step()
    clock.advance(12.0)
    assert second.step()
    clock.advance(60.0)  # the second is gone as well, and nobody asked the first whether it leads
    assert not first.step()
    assert "lost by first" in first.problem


def test_a_renewal_that_was_slow_counts_from_its_beginning(store: ApiServer) -> None:
    clock = FakeClock()
    first = _candidate(store, "first", clock)
    assert first.step()
    clock.advance(5.0)
    store.before = lambda _: clock.advance(3.0)
    assert first.step()
    store.before = lambda _: None
    assert first.is_leader
    clock.advance(4.0)
    assert not first.is_leader


def test_a_lost_answer_leaves_the_lease_ours(store: ApiServer) -> None:
    first = _candidate(store, "first", FakeClock())
    store.fault = lambda request: Fault.LOST if request.method == "POST" else Fault.NONE
    assert not _tried(first)
    assert first.step()
    assert first.is_leader


@pytest.mark.parametrize("holder", ["", "another"])
def test_somebody_who_takes_the_lease_away_is_believed(store: ApiServer, holder: str) -> None:
    first = _candidate(store, "first", FakeClock())
    stop = threading.Event()
    assert first.acquire(stop)
    found = store.objects[LEASE]
    store.put(LEASE, {**found, "spec": {**found["spec"], "holderIdentity": holder}})
    first.keep(stop)  # returns: it is lost
    assert "lost by first" in first.problem
    assert store.objects[LEASE]["spec"]["holderIdentity"] == holder


def test_a_deleted_lease_is_lost(store: ApiServer) -> None:
    first = _candidate(store, "first", FakeClock())
    assert first.step()
    del store.objects[LEASE]
    assert not first.step()
    assert "lost by first" in first.problem


@pytest.mark.parametrize("role", ["leader", "standby"])
def test_an_api_server_that_was_restored_ends_whoever_saw_it_before(store: ApiServer, role: str) -> None:
    """From a backup, with the versions that it had then: watches would go on in a past that is another's."""
    clock = FakeClock()
    leader, standby = _candidate(store, "leader", clock), _candidate(store, "standby", clock)
    assert leader.step()
    before = store.objects[LEASE]
    clock.advance(2)
    assert leader.step()
    assert not standby.step()
    store.objects[LEASE] = before
    candidate = leader if role == "leader" else standby
    with pytest.raises(errors.FailedPrecondition, match="restored from an older backup"):
        candidate.step()
    assert not candidate.is_leader
    assert "restored" in candidate.problem
    clock.advance(100)
    assert not _candidate(store, "next", clock).step()  # it waits for as long as ever


def test_a_missing_namespace_is_told(store: ApiServer) -> None:
    store.kinds.clear()
    with pytest.raises(errors.NotFound, match="leases"):
        _candidate(store, "first", FakeClock()).acquire(threading.Event())


def test_a_stop_ends_the_waiting(store: ApiServer) -> None:
    assert _candidate(store, "first", FakeClock()).step()
    stop = threading.Event()
    second = _candidate(store, "second", FakeClock())
    second._wait = lambda stop, seconds: stop.set() or True  # type: ignore[func-returns-value]
    assert not second.acquire(stop)


_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["first", "second", "pass", "cut", "lost", "late", "well"]), st.floats(0.0, 6.0)),
    max_size=40,
)


@given(actions=_ACTIONS, ahead=st.floats(-1000, 1000))
@examples(150)
def test_never_two_leaders(actions: list[tuple[str, float]], ahead: float) -> None:
    with api_server(LEASES) as store:
        clock = FakeClock(10_000.0)
        candidates = {
            "first": _candidate(store, "first", clock),
            "second": _candidate(store, "second", clock, ahead=ahead),
        }
        faults = {"cut": Fault.CUT, "lost": Fault.LOST, "late": Fault.LATE, "well": Fault.NONE}
        for what, seconds in actions:
            clock.advance(seconds)
            if what in faults:
                store.fault = lambda request, fault=faults[what]: fault if request.method != "GET" else Fault.NONE  # type: ignore[misc]
            elif what in candidates:
                _tried(candidates[what])
            assert sum(candidate.is_leader for candidate in candidates.values()) <= 1
