"""What is remembered of scale-ups that failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.cluster.state import ClusterNode, ClusterState
from cagrpc.controllers.autoscaler import GroupSize
from cagrpc.controllers.kept import InConfigMap, InFile
from cagrpc.fleet.catalogue import INSTANCE_TYPE, ZONE, embedded_catalogue
from cagrpc.fleet.prices import NodePlace
from cagrpc.services.grpc.failed_scale_ups import (
    _STEPS_PER_READ,
    CONFIG_MAP,
    FILE,
    FIRST_SECONDS,
    FORGOTTEN_SECONDS,
    KEY,
    LONGEST_SECONDS,
    OF_KIN,
    REMEMBERED_SECONDS,
    SETTLED_SECONDS,
    FailedScaleUps,
    Failures,
    KeptFailures,
)
from cagrpc.services.grpc.template_groups import TemplateGroups
from solver.model import Node
from tests.services.grpc.test_surroundings import View
from tests.services.grpc.test_template_groups import LARGE, M7, answered, ask
from tests.services.grpc.test_template_groups import PODS as EVERY
from tests.support.api_server import api_server
from tests.support.examples import examples
from tests.support.fleet import FakeClock, FleetHarness, group
from tests.support.grpc_servers import House, asking, option

NOWHERE = NodePlace("", "", "")
CONFIG_MAPS = "/api/v1/namespaces/cagrpc/configmaps"
PODS = {f"p{number}" for number in range(10)}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory(clock: FakeClock) -> FailedScaleUps:
    return FailedScaleUps(clock)


def fail(memory: FailedScaleUps, clock: FakeClock, name: str = "g") -> None:
    memory.chosen(name, PODS)
    clock.now += SETTLED_SECONDS
    memory.offered(PODS)


def times(memory: FailedScaleUps, name: str = "g") -> int:
    found = memory.set_backs().of(name, NOWHERE)
    return 0 if found is None else found.failures.times


def test_a_group_whose_pods_are_offered_again_is_set_back_for_longer_each_time(
    memory: FailedScaleUps, clock: FakeClock
) -> None:
    lasted = []
    for number in range(1, 7):
        fail(memory, clock)
        found = memory.set_backs().of("g", NOWHERE)
        assert found is not None
        assert found.failures.times == number
        lasted.append(found.until_seconds - clock.now)
        clock.now = found.until_seconds
        assert memory.set_backs().of("g", NOWHERE) is None
    assert lasted == [FIRST_SECONDS * 2**n for n in range(4)] + [LONGEST_SECONDS] * 2


def test_it_is_no_longer_however_often_it_failed() -> None:
    assert Failures(5_000, 0.0).until_seconds == LONGEST_SECONDS


def test_pods_may_be_offered_again_at_once_while_their_nodes_are_coming(
    memory: FailedScaleUps, clock: FakeClock
) -> None:
    memory.chosen("g", PODS)
    clock.now += SETTLED_SECONDS - 1
    memory.offered(PODS)
    assert times(memory) == 0
    clock.now += 1
    memory.offered(PODS)
    assert times(memory) == 1


def test_the_same_choice_made_again_is_as_old_as_the_first(memory: FailedScaleUps, clock: FakeClock) -> None:
    """The autoscaler goes from one loop to the next at once where it has scaled up."""
    for second in range(round(SETTLED_SECONDS)):
        memory.offered(PODS)
        memory.chosen("g", {*PODS, f"late-{second}"})
        assert times(memory) == 0
        clock.now += 1
    memory.offered(PODS)
    assert times(memory) == 1


def test_pods_that_are_offered_in_parts_are_counted_together(memory: FailedScaleUps, clock: FakeClock) -> None:
    """The autoscaler counts some nodes as coming in each loop; those that the pods of the next loop need are others."""
    some, others = {f"p{number}" for number in range(5)}, {f"p{number}" for number in range(5, 10)}
    for number, part in enumerate([PODS, some, others, some, others, some, others]):
        memory.offered(part)
        assert times(memory) == (number == 6), "all of them by then, after 72 seconds"
        memory.chosen("g", part)
        clock.now += 12
    memory.offered(PODS)
    assert times(memory) == 1, "what was chosen meanwhile is part of one failure"


def test_most_of_the_pods_have_to_be_offered_again(memory: FailedScaleUps, clock: FakeClock) -> None:
    memory.chosen("g", PODS)
    clock.now += SETTLED_SECONDS
    memory.offered({*sorted(PODS)[:5], "others"})
    assert times(memory) == 0
    memory.offered({*sorted(PODS)[:6], "others"})
    assert times(memory) == 1


def test_nodes_that_came_end_it(memory: FailedScaleUps, clock: FakeClock) -> None:
    fail(memory, clock)
    memory.chosen("g", {"later"})
    clock.now += REMEMBERED_SECONDS
    memory.offered({"others"})
    assert times(memory) == 0
    fail(memory, clock)
    assert times(memory) == 1


def test_what_is_long_ago_is_forgotten(memory: FailedScaleUps, clock: FakeClock) -> None:
    fail(memory, clock)
    clock.now += FORGOTTEN_SECONDS
    fail(memory, clock)
    assert times(memory) == 1


def test_pods_that_are_offered_later_than_that_are_others_fault(memory: FailedScaleUps, clock: FakeClock) -> None:
    memory.chosen("g", PODS)
    clock.now += REMEMBERED_SECONDS
    memory.offered(set())
    memory.offered(PODS)
    assert times(memory) == 0


def test_pods_for_which_another_group_was_chosen_soon_say_nothing_of_the_first(
    memory: FailedScaleUps, clock: FakeClock
) -> None:
    fail(memory, clock)
    memory.chosen("g", PODS)
    memory.chosen("h", PODS)
    clock.now += REMEMBERED_SECONDS
    memory.offered(set())
    fail(memory, clock)
    assert times(memory) == 2


@pytest.mark.parametrize(("came", "failures"), [(0, 1), (2, 1), (3, 0)])
def test_a_group_whose_nodes_came_did_not_fail_whoever_has_their_room(
    memory: FailedScaleUps, clock: FakeClock, came: int, failures: int
) -> None:
    asked: list[tuple[str, float]] = []

    def nodes_since(name: str, since: float) -> int:
        asked.append((name, since))
        return came

    began = clock.now
    memory.chosen("g", PODS, nodes=4)
    clock.now += SETTLED_SECONDS
    memory.offered(PODS, nodes_since)
    assert (times(memory), asked) == (failures, [("g", began)])


def test_nodes_that_came_for_others_end_it_as_well(memory: FailedScaleUps, clock: FakeClock) -> None:
    fail(memory, clock)
    memory.chosen("g", PODS)
    clock.now += SETTLED_SECONDS
    memory.offered(PODS, lambda name, since: 1)
    assert times(memory) == 0


@given(st.lists(st.tuples(st.integers(0, 3_000), st.sets(st.integers(0, 20)), st.floats(0, 4000)), max_size=80))
@examples(20)
def test_it_is_bounded_whatever_is_asked(asked: list[tuple[int, set[int], float]]) -> None:
    clock = FakeClock()
    memory = FailedScaleUps(clock)
    for name, pods, later in asked:
        memory.chosen(f"g{name}", map(str, pods))
        clock.now += later
        memory.offered(set(map(str, pods)))
        found = memory.set_backs().of(f"g{name}", NOWHERE)
        assert found is None or clock.now < found.until_seconds <= clock.now + LONGEST_SECONDS


# ---- its kin, and what the autoscaler's status says

HERE = NodePlace("m7i.large", "a", "spot")
KIN = {
    "the type in another zone": (NodePlace("m7i.large", "b", "spot"), True),
    "another type in the zone": (NodePlace("c7i.large", "a", "spot"), True),
    "on demand": (NodePlace("m7i.large", "a", "on-demand"), False),
    "another type in another zone": (NodePlace("c7i.large", "b", "spot"), False),
    "nothing is known of it": (NodePlace("", "", "spot"), False),
}


@pytest.mark.parametrize(("place", "is_kin"), KIN.values(), ids=KIN)
def test_kin_comes_later_for_a_quarter_of_the_time(
    memory: FailedScaleUps, clock: FakeClock, place: NodePlace, is_kin: bool
) -> None:
    memory.chosen("g", PODS, HERE)
    clock.now += SETTLED_SECONDS
    memory.offered(PODS)
    found = memory.set_backs().of("kin", place)
    assert (found is not None and found.until_seconds == clock.now + OF_KIN * FIRST_SECONDS) is is_kin
    clock.now += OF_KIN * FIRST_SECONDS
    assert memory.set_backs().of("kin", place) is None
    assert times(memory) == 1


def status(**back_off: str) -> dict[str, GroupSize]:
    return {name: GroupSize(1, 9, why) for name, why in back_off.items()}


def test_a_back_off_counts_once_each_time_that_it_begins(memory: FailedScaleUps, clock: FakeClock) -> None:
    memory.chosen("g", PODS, HERE)
    for _ in range(3):
        memory.backed_off(status(g="OutOfResources: none left", h=""), {})
    found = memory.set_backs().of("g", NOWHERE)
    assert found is not None
    assert (found.failures.times, found.failures.why, found.failures.place) == (1, "OutOfResources: none left", HERE)
    assert memory.set_backs().of("h", NOWHERE) is None
    clock.now += SETTLED_SECONDS
    memory.offered(PODS)  # the same failure, seen by its pods
    assert times(memory) == 1
    clock.now += FIRST_SECONDS
    memory.backed_off(status(g=""), {})
    memory.backed_off(status(g="again"), {})
    assert times(memory) == 2


def test_a_back_off_that_was_seen_by_its_pods_does_not_count_again(memory: FailedScaleUps, clock: FakeClock) -> None:
    fail(memory, clock)
    memory.backed_off(status(g="OutOfResources"), {})
    assert times(memory) == 1


# ---- beyond the process


def test_it_outlives_the_process(memory: FailedScaleUps, clock: FakeClock, tmp_path: Path) -> None:
    controller = KeptFailures(memory, InFile(tmp_path / FILE))
    controller.step()
    assert not (tmp_path / FILE).exists()
    memory.chosen("g", PODS, HERE)
    clock.now += SETTLED_SECONDS
    memory.offered(PODS)
    controller.step()
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    after = FailedScaleUps(clock)
    again = KeptFailures(after, InFile(tmp_path / FILE))
    again.step()
    assert (after.as_json(), after.set_backs().of("g", NOWHERE)) == (
        memory.as_json(),
        memory.set_backs().of("g", NOWHERE),
    )
    assert again.status()["failed_scale_ups"]["g"]["why"] == "its pods were offered again"


def test_replicas_take_up_what_others_have_learned(clock: FakeClock, tmp_path: Path) -> None:
    one, other = FailedScaleUps(clock), FailedScaleUps(clock)
    keep_one, keep_other = (KeptFailures(each, InFile(tmp_path / FILE)) for each in (one, other))
    fail(one, clock, "a")
    keep_one.step()
    fail(other, clock, "b")
    keep_other.step()
    assert set(other.set_backs().failed) == {"a", "b"}
    for _ in range(_STEPS_PER_READ):
        keep_one.step()
    assert one.as_json() == other.as_json()
    one.chosen("a", {"later"})
    clock.now += REMEMBERED_SECONDS
    one.offered({"others"})  # the nodes of the later choice came
    keep_one.step()
    for _ in range(_STEPS_PER_READ):
        keep_other.step()
    assert times(one, "a") == times(other, "a") == 0


def test_a_back_off_that_began_before_a_restart_counts_once(
    memory: FailedScaleUps, clock: FakeClock, tmp_path: Path
) -> None:
    for _ in range(3):
        memory.backed_off(status(g="none left"), {})
        clock.now += FIRST_SECONDS
        memory.backed_off(status(g=""), {})
    KeptFailures(memory, InFile(tmp_path / FILE)).step()
    after = FailedScaleUps(clock)
    after.backed_off(status(g="none left"), {})  # before what was kept is read
    KeptFailures(after, InFile(tmp_path / FILE)).step()
    assert times(after) == 3
    again = FailedScaleUps(clock)
    KeptFailures(again, InFile(tmp_path / FILE)).step()
    again.backed_off(status(g="none left"), {})
    assert times(again) == 3


def test_a_status_that_goes_away_for_a_while_is_no_end_of_a_back_off(memory: FailedScaleUps, clock: FakeClock) -> None:
    memory.backed_off(status(g="none left"), {})
    clock.now += FIRST_SECONDS - 1
    memory.backed_off({}, {})
    memory.backed_off(status(g="none left"), {})
    assert times(memory) == 1


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"g": 5}',
        '{"g": {"times": -1, "at": 0, "why": "", "place": ["", "", ""]}}',
        '{"g": {"times": 1, "at": 1e999, "why": "", "place": ["", "", ""]}}',
        '{"g": {"times": 1, "at": 0, "why": "", "place": []}}',
    ],
)
def test_what_is_malformed_there_is_left_out(memory: FailedScaleUps, tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    KeptFailures(memory, InFile(tmp_path / FILE)).step()
    assert not memory.as_json()


def test_in_a_cluster_it_is_in_a_config_map(memory: FailedScaleUps, clock: FakeClock) -> None:
    with api_server(CONFIG_MAPS) as store:
        fail(memory, clock)
        for name in ("g", "h"):  # created, then patched
            KeptFailures(memory, InConfigMap(store.client(), "cagrpc", CONFIG_MAP, KEY)).step()
            after = FailedScaleUps(clock)
            KeptFailures(after, InConfigMap(store.client(), "cagrpc", CONFIG_MAP, KEY)).step()
            assert times(after, name) == 1
            fail(memory, clock, "h")


# ---- through the expander


@pytest.fixture
def house() -> Iterator[House]:
    templates = TemplateGroups(catalogue=embedded_catalogue())
    with House(FleetHarness(groups=[group("ours")]), expander_options={"templates": templates}) as found:
        yield found


def test_the_next_best_is_chosen_and_the_decision_says_why(house: House) -> None:
    both = ask({"eks-large": LARGE, "eks-small": M7})
    assert answered(house, both) == ["eks-small"]
    house.harness.clock.advance(SETTLED_SECONDS)
    assert answered(house, both) == ["eks-large"]
    (*_, decision) = house.decisions.latest()
    said = {each.node_group: each.left_out for each in decision.options}
    assert said["eks-small"].startswith("failed to scale up 1 time: its pods were offered again; others come first")
    assert not said["eks-large"]


@pytest.mark.parametrize(
    ("kind", "created", "ready", "best"),
    [
        ("m7i.xlarge", 0, True, "eks-small"),
        ("m7i.xlarge", -1, True, "eks-large"),
        ("m7i.xlarge", 0, False, "eks-large"),
        ("m7i.4xlarge", 0, True, "eks-large"),
    ],
    ids=["its node came", "it was there before", "it never gets ready", "another group's came"],
)
def test_its_nodes_are_looked_for_in_the_cluster(kind: str, created: int, ready: bool, best: str) -> None:
    """Other pods may have the room: kube-scheduler spreads those that wait over the nodes that come."""
    labels = {INSTANCE_TYPE: kind, ZONE: "us-east-1a"}
    harness = FleetHarness(groups=[group("ours")])
    at = int(harness.clock.now) + created
    came = ClusterNode(Node("n", {}, labels), "aws:///n", ready=ready, held=False, created_at_seconds=at)
    templates = TemplateGroups(catalogue=embedded_catalogue())
    view = View(ClusterState((), (came,), ()))
    with House(harness, expander_options={"templates": templates}, cluster=view) as found:
        both = ask({"eks-large": LARGE, "eks-small": M7})
        assert answered(found, both) == ["eks-small"]
        harness.clock.advance(SETTLED_SECONDS)
        assert answered(found, both) == [best]


def test_it_comes_first_for_pods_that_nobody_else_serves(house: House) -> None:
    assert answered(house, ask({"eks-small": M7})) == ["eks-small"]
    house.harness.clock.advance(SETTLED_SECONDS)
    request = asking(option("eks-small", 1, EVERY), option("eks-large", 1, EVERY[:1]))
    request.nodeBytesMap.update({"eks-large": LARGE, "eks-small": M7})
    assert answered(house, request) == ["eks-small"]


def test_it_is_never_the_reason_for_serving_nobody(house: House) -> None:
    alone = ask({"eks-small": M7})
    assert answered(house, alone) == ["eks-small"]
    house.harness.clock.advance(SETTLED_SECONDS)
    assert answered(house, alone) == ["eks-small"]
    house.harness.clock.advance(SETTLED_SECONDS)
    assert answered(house, ask({"eks-large": LARGE, "eks-small": M7})) == ["eks-large"]
