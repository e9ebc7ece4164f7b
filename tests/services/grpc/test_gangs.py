"""BestOptions and gangs: an option that would serve a part of one is not taken for it, with the reason; a gang decides
over its own pods alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.autoscaler.expander import Option, Request
from cagrpc.api.core.gangs import GangCount, GangMembership, divide
from cagrpc.api.core.nodes import template
from cagrpc.api.core.pods import Pod
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.state import ClusterState
from cagrpc.controllers.settings import AnswerRules
from cagrpc.errors import Unavailable
from cagrpc.fleet.model import FleetSnapshot, IncrementSpec, Origin
from cagrpc.services.grpc import expander
from cagrpc.services.grpc.expander import OfferedGroups, problem
from cagrpc.services.grpc.gangs import OfferedGangs
from cagrpc.services.grpc.template_groups import TemplateGroups
from solver.model import NodeGroup, PodSpec
from solver.planning.rank import rank
from tests.support.examples import examples
from tests.support.fleet import FleetHarness, group
from tests.support.grpc_servers import House, asking, chosen, option, pod

_LABEL = "scheduling.x-k8s.io/pod-group"
_NAME = "podgroup.scheduling.x-k8s.io ns/train"


def _member(name: str, *, gang: str = "train", label: str = _LABEL, minimum: str = "", created: int = 0) -> bytes:
    message = kubernetes_pb2.Pod.FromString(pod(name))
    message.metadata.labels[label] = gang
    message.metadata.creationTimestamp.seconds = created
    if minimum:
        message.metadata.annotations["cagrpc.io/gang-min-count"] = minimum
    return message.SerializeToString()


def _harness() -> FleetHarness:
    return FleetHarness(groups=[group("a", price=0.1), group("b", price=0.4), group("c", price=0.2)])


@dataclass
class _Cluster:
    """A view that knows gangs, and no pods that are not bound."""

    counts: dict[str, GangCount] = field(default_factory=dict)

    def gang(self, name: str) -> GangCount | None:
        return self.counts.get(name)

    def state(self) -> ClusterState:
        raise Unavailable("nodes are not listed yet")


def _left_out(house: House) -> list[str]:
    return [considered.left_out for considered in house.decisions.latest()[-1].options]


def test_a_gang_that_needs_two_groups_is_vetoed_and_the_record_says_what_it_needs() -> None:
    gang = [_member(str(index)) for index in range(4)]
    with House(_harness()) as house:
        request = asking(option("a", 1, gang[:3]), option("b", 1, gang[3:]))
        assert chosen(house.advice.ok("BestOptions", request)) is None
        hint = "; no option covers them: a gang that needs several node groups needs drive: plan"
        assert _left_out(house) == [
            f"serves 3 pods of gang {_NAME}, of which 4 must be served together{hint}",
            f"serves 1 pod of gang {_NAME}, of which 4 must be served together{hint}",
        ]
        assert "needs drive: plan" in house.decisions.latest()[0].reason


def test_an_option_that_covers_the_gang_is_taken_and_a_partial_one_is_left_out_though_cheaper() -> None:
    gang = [_member(str(index)) for index in range(4)]
    with House(_harness()) as house:
        request = asking(option("a", 1, gang[:3]), option("b", 1, gang), option("c", 1, [pod("other")]))
        assert chosen(house.advice.ok("BestOptions", request)) in ("b", "c")
        assert _left_out(house) == [f"serves 3 pods of gang {_NAME}, of which 4 must be served together", "", ""]


def test_another_label_names_gangs_where_it_is_configured() -> None:
    gang = [_member(str(index), label="example.com/gang") for index in range(2)]
    request = asking(option("a", 1, gang[:1]), option("b", 1, gang[1:]))
    with House(_harness()) as house:
        assert chosen(house.advice.ok("BestOptions", request)) == "a"
    with House(_harness(), expander_options={"gang_label": "example.com/gang"}) as house:
        assert chosen(house.advice.ok("BestOptions", request)) is None


@pytest.mark.parametrize(
    ("minimum", "first", "vetoed"), [("3", 3, False), ("3", 2, True), ("4", 3, True), ("1", 1, False)]
)
def test_a_minimum_is_enough(minimum: str, first: int, vetoed: bool) -> None:
    gang = [_member(str(index), minimum=minimum) for index in range(4)]
    with House(_harness()) as house:
        request = asking(option("a", 1, gang[:first]), option("b", 1, gang[first:]))
        assert (chosen(house.advice.ok("BestOptions", request)) is None) is vetoed


def test_a_gang_with_fewer_pods_than_its_minimum_waits() -> None:
    gang = [_member(str(index), minimum="5") for index in range(4)]
    with House(_harness()) as house:
        assert chosen(house.advice.ok("BestOptions", asking(option("a", 1, gang), option("b", 1, [pod("x")])))) == "b"
        incomplete = f"gang {_NAME} is not complete: it has 4 of 5 pods"
        assert _left_out(house) == [f"has pods of a gang that waits for others: {incomplete}", ""]


def test_an_invalid_minimum_is_ignored_and_reported() -> None:
    gang = [_member(str(index), minimum="two") for index in range(4)]
    with House(_harness()) as house:
        assert chosen(house.advice.ok("BestOptions", asking(option("a", 1, gang)))) == "a"
        assert "(4 pods with invalid fields, which were ignored: pod ns/0: metadata.annotations" in (
            house.decisions.latest()[0].reason
        )


def test_pods_in_flight_count_as_served() -> None:
    gang = [_member(str(index)) for index in range(4)]
    with House(_harness()) as house:
        house.fleet.apply(IncrementSpec({"a": 1}, Origin.AUTOSCALER, frozenset({"uid-0", "uid-1"})))
        assert chosen(house.advice.ok("BestOptions", asking(option("b", 1, gang[2:]), option("c", 1, gang[:3])))) == "b"


def _released(monkeypatch: pytest.MonkeyPatch, released: Callable[[FleetSnapshot], frozenset[str]]) -> None:
    monkeypatch.setattr(expander, "ReleasedPods", lambda *_: released)


def test_pods_that_settle_are_served_by_what_was_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    _released(monkeypatch, lambda _: frozenset({"uid-0", "uid-1"}))
    with House(_harness(), cluster=_Cluster()) as house:
        assert chosen(house.advice.ok("BestOptions", asking(option("a", 1, [pod("0"), pod("1")])))) is None
        assert "increment in flight" in _left_out(house)[0]
        assert chosen(house.advice.ok("BestOptions", asking(option("a", 1, [pod("0"), pod("2")])))) == "a"


class _Broken:
    def __call__(self, snapshot: FleetSnapshot) -> frozenset[str]:
        raise RuntimeError("a mistake")

    def gang(self, name: str) -> GangCount | None:
        raise RuntimeError("a mistake")


@pytest.mark.parametrize("part", ["released_pods", "gangs"])
def test_a_view_that_fails_is_done_without(
    part: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang, broken = [_member(str(index)) for index in range(2)], _Broken()
    _released(monkeypatch, broken if part == "released_pods" else lambda _: frozenset())
    with House(_harness(), cluster=broken if part == "gangs" else _Cluster()) as house:
        request = asking(option("a", 1, gang[:1]), option("b", 1, gang))
        assert chosen(house.advice.ok("BestOptions", request)) == "b"
        assert "(judged without the cluster's view, which failed with RuntimeError)" in (
            house.decisions.latest()[0].reason
        )
    assert "a mistake" in caplog.text


@pytest.mark.parametrize(
    ("count", "vetoed"),
    [
        pytest.param(GangCount(2, bound=2, min_count=4), False, id="the others run already"),
        pytest.param(GangCount(2, bound=1, min_count=4), True, id="one is missing in the cluster"),
        pytest.param(GangCount(4, min_count=4), False, id="CA has room for the others"),
        pytest.param(GangCount(2, held_back=1), True, id="a gated one is waited for"),
        pytest.param(GangCount(2, held_back=1, min_count=2), False, id="but not beyond the minimum"),
        pytest.param(None, True, id="unknown to the cluster: the pods' own word counts"),
    ],
)
def test_a_cluster_knows_more_of_a_gang_than_the_request(count: GangCount | None, vetoed: bool) -> None:
    with House(_harness(), cluster=_Cluster({_NAME: count} if count else {})) as house:
        gang = [_member(str(index), minimum="3") for index in range(2)]
        assert (chosen(house.advice.ok("BestOptions", asking(option("a", 1, gang)))) is None) is vetoed


@pytest.mark.parametrize(
    ("rules", "older", "known", "outcome"),
    [
        pytest.param(AnswerRules(veto_partial_gangs=True), False, True, "veto", id="asked for"),
        pytest.param(AnswerRules(veto_partial_gangs=True), False, False, "passed_on", id="others may run already"),
        pytest.param(AnswerRules(veto_partial_gangs=True, knows_vetoes=True), True, True, "veto", id="of 1.32"),
        pytest.param(AnswerRules(veto_partial_gangs=True), True, True, "passed_on", id="of one that may be older"),
        pytest.param(AnswerRules(), False, True, "passed_on", id="not asked for"),
    ],
)
def test_parts_of_gangs_on_groups_of_another_cloud_are_vetoed_where_that_is_asked_for(
    rules: AnswerRules, older: bool, known: bool, outcome: str
) -> None:
    gang = [_member(str(index)) for index in range(4)]
    request = asking(option("eks-a", 1, gang[:2]), option("eks-b", 1, gang[2:]))
    node = template(NodeGroup("t", {"cpu": 4000, "memory": 2**34, "pods": 110}, 0.0))
    (request.nodeMap if older else request.nodeBytesMap).update({"eks-a": node, "eks-b": node})
    with House(_harness(), expander_options={"answers": rules}, cluster=_Cluster() if known else None) as house:
        answer = house.advice.ok("BestOptions", request)
        (decision,) = house.decisions.latest()
    assert decision.outcome == outcome
    assert [each.nodeGroupId for each in answer.options] == ([] if outcome == "veto" else ["eks-a", "eks-b"])


def test_where_the_planner_drives_every_answer_is_a_veto_without_looking(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cagrpc.decisions")
    with House(_harness(), expander_options={"planner_drives": True}) as house:
        assert house.advice.raw("BestOptions", b"\xff no message") == ("OK", "", b"")
        (decision,) = house.decisions.latest()
        assert (decision.chosen, decision.ranked_by, decision.options) == ("", "nothing", ())
        assert decision.reason.startswith("drive: plan")
        assert not [record for record in caplog.records if record.name == "cagrpc.decisions"]


def _offered(options: Sequence[Option]) -> OfferedGroups:
    """Of no fleet, and without templates."""
    return OfferedGroups(Request(tuple(options)), FleetSnapshot(0, {}, (), {}), TemplateGroups())


def _ranked(options: Sequence[Option], open_: Sequence[Option], **known: Any) -> list[tuple[str | None, int]]:
    gangs = OfferedGangs(options, **known)
    demand = gangs.demand([offer for offer in gangs.offers if offer.option in open_])
    pod_sets = problem(options, demand, (), _offered(options), 0.0)[0].pod_sets
    return [(pod_set.gang, pod_set.count) for pod_set in pod_sets]


def _pods(count: int, minimum: int | None) -> list[Pod]:
    gang = GangMembership("g", minimum)
    return [Pod(str(i), f"ns/{i}", PodSpec(), gang=gang, created_at_seconds=100 - i) for i in range(count)]


def test_the_planner_ranks_the_minimum_as_a_gang_and_the_others_as_ordinary_pods() -> None:
    pods = _pods(5, 3)
    all_of_it = Option("a", 1, pods=tuple(pods))
    assert _ranked([all_of_it], [all_of_it]) == [(None, 2), ("g", 3)]  # the oldest are the last
    most = Option("b", 1, pods=tuple(pods[:4]))
    assert _ranked([all_of_it, most], [all_of_it, most]) == [(None, 2), ("g", 3)]  # those that both serve
    halves = [Option("a", 1, pods=tuple(pods[:3])), Option("b", 1, pods=tuple(pods[2:]))]
    assert _ranked(halves, halves) == [(None, 5)]
    assert _ranked([all_of_it], [all_of_it], in_flight={"4", "3"}) == [(None, 2), ("g", 1)]
    incomplete = Option("c", 1, pods=tuple(_pods(2, 3)))
    assert _ranked([incomplete], []) == []


@given(
    st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=4),
    st.none() | st.integers(1, 8),
    st.sets(st.integers(0, 5)),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_an_option_is_for_nothing_of_a_gang_or_all_that_must_be_served_and_others_keep_it_open(
    shares: list[set[int]], minimum: int | None, in_flight: set[int], with_another: list[bool]
) -> None:
    pods, another = _pods(6, minimum), Pod("x", "ns/x", PodSpec())
    flying = {str(index) for index in in_flight}
    options = [
        Option(str(i), 1, pods=(*(pods[j] for j in sorted(share)), *[another][: with_another[i]]))
        for i, share in enumerate(shares)
    ]
    offered: set[int] = set().union(*shares)
    rule = divide([(j, 1) for j in offered - in_flight], min_count=minimum, bound=len(offered & in_flight))
    needed = len(rule.whole)
    gangs = OfferedGangs(options, flying)
    open_ = []
    for offer, share in zip(gangs.offers, shares, strict=True):
        left = share - in_flight
        broken = bool(left and (rule.missing or len(left) < needed))
        assert bool(offer.uncounted) is broken
        assert offer.wanted == {str(j) for j in left if not broken} | ({"x"} if another in offer.option.pods else set())
        assert bool(offer.why_left_out) is (broken and another not in offer.option.pods)
        assert ("needs drive: plan" in offer.uncounted) <= all(len(each - in_flight) < needed for each in shares)
        if not offer.why_left_out:
            open_.append(offer)
    wanted = [offer.wanted for offer in open_]
    planned, counts = problem(options, gangs.demand(open_), wanted, _offered(options), 0.0)
    for count in counts:
        for index, pod_set in enumerate(planned.pod_sets):
            assert pod_set.gang is None or count[index] in (0, pod_set.count)
    others = len({"x"} if any(another in each.pods for each in options) else ())
    demanded = 0 if rule.missing else len(offered - in_flight)
    assert sum(pod_set.count for pod_set in planned.pod_sets) == demanded + others


_FOREVER = "2147483647"


def test_a_gang_that_never_completes_vetoes_nobody() -> None:
    never = [_member(f"never-{index}", gang="never", minimum=_FOREVER) for index in range(3)]
    with House(_harness()) as house:
        request = asking(*(option(name, 1, [*never, pod("x")]) for name in "abc"))
        assert chosen(house.advice.ok("BestOptions", request)) == "a"
        (decision,) = house.decisions.latest()
        assert [each.left_out for each in decision.options] == ["", "", ""]
        assert decision.ranked_by == "objective"
        assert "for 1 pod," in decision.options[0].reason
        assert "gang podgroup.scheduling.x-k8s.io ns/never is not complete" in decision.options[0].reason
        choice = house.decisions.take_choice("a")
        assert choice is not None
        assert choice.pods == {"uid-x"}  # the increase is not journalled as if it served the gang


def test_an_older_autoscaler_does_not_understand_a_veto_so_the_increase_that_follows_is_refused() -> None:
    """Up to 1.31 an empty answer means all options, of which it takes one at random."""
    half = asking(option("a", 1, [_member("m-0", gang="g", minimum="2")]))
    increase = pb.NodeGroupIncreaseSizeRequest(id="a", delta=1)
    with House(_harness()) as house:
        assert chosen(house.advice.ok("BestOptions", half)) is None
        code, details = house.ca.code("NodeGroupIncreaseSize", increase)
        assert code == "FAILED_PRECONDITION"
        assert "node group a: the expander has just vetoed it: no option may be taken: a " in details
        house.ca.ok("NodeGroupIncreaseSize", pb.NodeGroupIncreaseSizeRequest(id="b", delta=1))
        assert chosen(house.advice.ok("BestOptions", asking(option("a", 1, [pod("x")])))) == "a"
        house.ca.ok("NodeGroupIncreaseSize", increase)
    with House(_harness(), expander_options={"answers": AnswerRules(knows_vetoes=True)}) as house:
        assert chosen(house.advice.ok("BestOptions", half)) is None
        house.ca.ok("NodeGroupIncreaseSize", increase)


def test_an_option_for_others_is_not_taken_for_its_part_of_a_gang() -> None:
    gang = [_member(str(index)) for index in range(4)]
    with House(_harness()) as house:
        request = asking(option("a", 1, [*gang[:3], pod("x")]), option("b", 1, gang[3:]))
        assert chosen(house.advice.ok("BestOptions", request)) == "a"
        (first, second) = house.decisions.latest()[-1].options
        assert "for 1 pod," in first.reason
        assert f"it also serves 3 pods of gang {_NAME}, of which 4 must be served together" in first.reason
        assert second.left_out
        choice = house.decisions.take_choice("a")
        assert choice is not None
        assert choice.pods == {"uid-x"}


def _too_slow(*_: Any) -> Any:
    raise TimeoutError


@pytest.mark.parametrize("ranked_by", ["objective", "counts"])
def test_of_options_for_the_same_pods_the_one_with_nodes_for_fewer_others_is_taken(ranked_by: str) -> None:
    never = [_member(f"never-{index}", gang="never", minimum=_FOREVER) for index in range(9)]
    harness = FleetHarness(groups=[group("a", price=0.2), group("b", price=0.2)])
    options = [option("a", 4, [*never, pod("x")]), option("b", 2, [*never[:3], pod("x")])]
    with House(harness, rank=_too_slow if ranked_by == "counts" else rank) as house:
        assert chosen(house.advice.ok("BestOptions", asking(*options))) == "b"
        assert house.decisions.latest()[-1].ranked_by == ranked_by


_CLAIMS = st.builds(
    _member,
    st.sampled_from("pqrs"),
    gang=st.sampled_from(["g", "h"]),
    minimum=st.sampled_from(["", "1", "3", "0", "x", _FOREVER]),
    created=st.integers(0, 9),
)


@pytest.fixture(name="asked", scope="module")
def _asked() -> Iterator[House]:
    with House(_harness()) as house:
        yield house


@examples(50)
@given(st.lists(st.lists(_CLAIMS, max_size=5), min_size=3, max_size=3))
def test_whatever_pods_say_of_gangs_others_are_served(asked: House, claims: list[list[bytes]]) -> None:
    """Whoever may create pods in one namespace sends any of these; a pod of another namespace fits where it did."""
    request = asking(
        *(option(name, 1, [*of, pod("x", namespace="other")]) for name, of in zip("abc", claims, strict=True))
    )
    assert chosen(asked.advice.ok("BestOptions", request)) is not None
    assert _left_out(asked) == ["", "", ""]
