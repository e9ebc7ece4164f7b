"""Node groups that the autoscaler has from a cloud provider of its own, known by the templates of its request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.autoscaler.expander import decode, reduced
from cagrpc.api.core.nodes import template
from cagrpc.api.gen import expander_pb2, kubernetes_pb2
from cagrpc.controllers.autoscaler import GroupSize, read_priorities
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.group_ids import GroupPattern
from cagrpc.fleet.model import FleetSnapshot
from cagrpc.fleet.prices import PriceRule
from cagrpc.fleet.provisioners import Provisioner
from cagrpc.services.grpc.expander import OfferedGroups
from cagrpc.services.grpc.template_groups import LARGEST_TEMPLATE_BYTES, TemplateGroups
from solver.model import NodeGroup, Operator, Requirement, Taint, TaintEffect
from tests.support.examples import examples
from tests.support.fleet import FleetHarness, group
from tests.support.grpc_servers import House, asking, option, pod

PODS = [pod(str(index)) for index in range(4)]
DEDICATED = Taint("team", TaintEffect.NO_SCHEDULE, "a")


def node(kind: str, cpu: int = 4, labels: Mapping[str, str] | None = None) -> bytes:
    """The template of a group of this instance type."""
    resources = {"cpu": cpu * 1000, "memory": cpu * 4 * 2**30, "pods": 110}
    return template(NodeGroup("t", resources, 0.0, labels or {}, instance_type=kind, zone="us-east-1a"))


def ask(
    templates: Mapping[str, bytes], offered: Sequence[str] = (), *, older: bool = False, count: int = 1
) -> expander_pb2.BestOptionsRequest:
    """About all of these groups, or those offered, for the same pods."""
    request = asking(*(option(name, count, PODS) for name in offered or templates))
    (request.nodeMap if older else request.nodeBytesMap).update(templates)
    return request


def house(provisioners: Sequence[Provisioner] = (), rule: PriceRule | None = None, **options: Any) -> House:
    """With a fleet of one group that nobody asks about."""
    templates = TemplateGroups(provisioners, embedded_catalogue(), rule=rule)
    return House(FleetHarness(groups=[group("ours")]), expander_options={"templates": templates, **options})


def answered(house: House, request: expander_pb2.BestOptionsRequest) -> list[str]:
    return [each.nodeGroupId for each in house.advice.ok("BestOptions", request).options]


def taking(name: str, weight: int, **takes: Any) -> Provisioner:
    return Provisioner(name, weight, **takes)


def ids(*patterns: str) -> tuple[GroupPattern, ...]:
    return tuple(map(GroupPattern, patterns))


M7, LARGE = node("m7i.xlarge"), node("m7i.4xlarge", 16)


@pytest.mark.parametrize("older", [False, True], ids=["nodeBytesMap", "nodeMap"])
def test_a_group_of_another_cloud_is_ranked_by_the_catalogues_price(older: bool) -> None:
    with house() as found:
        assert answered(found, ask({"eks-large": LARGE, "eks-small": M7}, older=older)) == ["eks-small"]
        (decision,) = found.decisions.latest()
    assert (decision.chosen, decision.ranked_by) == ("eks-small", "objective")
    assert [each.cost_usd_per_hour for each in decision.options] == [0.8064, 0.2016]
    assert "no price" not in decision.reason


def test_the_option_is_the_one_after_which_the_rest_is_finished_best() -> None:
    """The small group's nodes serve two of the pods, and nobody else serves those two cheaper."""
    templates = {"a": node("m7i.xlarge", 4), "b": node("m7i.8xlarge", 32)}
    request = asking(option("a", 1, PODS[:3]), option("b", 1, PODS))
    request.nodeBytesMap.update(templates)
    with house() as found:
        assert answered(found, request) == ["a"]


WEIGHTS: Mapping[str, tuple[Sequence[Provisioner], str]] = {
    "an id": ([taking("p", 50, groups=ids("large$"))], "eks-large"),
    "the id of the other": ([taking("p", 50, groups=ids("large$")), taking("q", 60, groups=ids("small"))], "eks-small"),
    "a label": ([taking("p", 50, labels={"node.kubernetes.io/instance-type": "m7i.4xlarge"})], "eks-large"),
    "what the catalogue knows of a type": (
        [taking("p", 50, requirements=(Requirement("karpenter.k8s.aws/instance-cpu", Operator.GT, ("8",)),))],
        "eks-large",
    ),
    "a label that neither has": ([taking("p", 50, labels={"team": "x"})], "eks-small"),
    "a taint that neither has": ([taking("p", 50, taints=(DEDICATED,))], "eks-small"),
}


@pytest.mark.parametrize(("provisioners", "best"), WEIGHTS.values(), ids=WEIGHTS)
def test_a_provisioner_takes_groups_in_and_its_weight_comes_first(
    provisioners: Sequence[Provisioner], best: str
) -> None:
    with house(provisioners) as found:
        assert answered(found, ask({"eks-large": LARGE, "eks-small": M7})) == [best]


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("eks.amazonaws.com/capacityType", "SPOT"),
        ("cloud.google.com/gke-spot", "true"),
        ("kubernetes.azure.com/scalesetpriority", "spot"),
        ("karpenter.sh/capacity-type", "spot"),
    ],
)
def test_the_capacity_type_is_read_as_its_cloud_writes_it(label: str, value: str) -> None:
    spot_group = node("m7i.xlarge", labels={label: value})
    wanted = Requirement("karpenter.sh/capacity-type", Operator.IN, ("spot",))
    with house([taking("spot", 50, requirements=(wanted,))]) as found:
        assert answered(found, ask({"on-demand": M7, "spot": spot_group})) == ["spot"]
        (decision,) = found.decisions.latest()
    assert "(no price is known for spot: compared by what their nodes have)" in decision.reason


def test_a_group_without_a_price_is_never_free_of_charge() -> None:
    with house() as found:
        assert answered(found, ask({"x": node("unheard.of", 16), "y": node("of.neither", 8)})) == ["y"]
        (decision,) = found.decisions.latest()
    assert all(each.cost_usd_per_hour for each in decision.options)
    assert "no price is known for x, y" in decision.reason


def test_the_rule_is_the_configurations() -> None:
    dear = PriceRule(usd_per_cpu_hour=100.0)
    with house(rule=dear) as found:
        assert answered(found, ask({"unheard": node("unheard.of", 2), "eks": LARGE})) == ["eks"]


class ConfigMaps:
    """What the autoscaler's ConfigMaps say."""

    def __init__(self, sizes: Mapping[str, GroupSize] | None = None, priorities: str = "1: []") -> None:
        self.sizes = sizes or {}
        self.priorities = read_priorities(priorities)


def house_beside(config_maps: Any, provisioners: Sequence[Provisioner] = ()) -> House:
    templates = TemplateGroups(provisioners, embedded_catalogue(), config_maps=config_maps)
    return House(FleetHarness(groups=[group("ours")]), expander_options={"templates": templates})


def test_the_autoscalers_own_priorities_are_weights_of_groups_that_no_provisioner_takes_in() -> None:
    both, large = ask({"eks-large": LARGE, "eks-small": M7}), ConfigMaps(priorities="10: ['.*']\n20: [large]")
    with house_beside(large) as found:
        assert answered(found, both) == ["eks-large"]
    with house_beside(large, [taking("p", 50, groups=ids("small"))]) as found:
        assert answered(found, both) == ["eks-small"]


@pytest.mark.parametrize(
    ("count", "most"), [(1, 10), (4, 13)], ids=["within its maximum", "more than that, which similar groups take"]
)
def test_the_rest_is_planned_within_the_sizes_that_are_known(count: int, most: int) -> None:
    config_maps: Any = ConfigMaps({"eks": GroupSize(9, 10)})
    request = decode(ask({"eks": M7}, count=count).SerializeToString(), lambda: False)
    templates = TemplateGroups(catalogue=embedded_catalogue(), config_maps=config_maps)
    (found,) = OfferedGroups(request, FleetSnapshot(0, {}, (), {}), templates).groups.values()
    assert (found.target_size, found.max_size) == (9, most)


@pytest.mark.parametrize("size", [GroupSize(10, 10), GroupSize(11, 10), GroupSize(-1, 10)])
def test_a_status_that_cannot_be_is_no_reason_against_a_group(size: GroupSize) -> None:
    with house_beside(ConfigMaps({"eks": size})) as found:
        assert answered(found, ask({"eks": M7})) == ["eks"]


def test_others_come_before_a_group_that_the_autoscaler_has_backed_off_from_and_its_kin() -> None:
    """One of the three is of another type and zone, so that it is no kin."""
    elsewhere = NodeGroup("t", {"cpu": 16_000, "memory": 2**36, "pods": 110}, 0.0, instance_type="c5.4xlarge", zone="z")
    templates = {"small": M7, "kin": node("m7i.2xlarge", 8), "elsewhere": template(elsewhere)}
    config_maps = ConfigMaps()
    with house_beside(config_maps) as found:
        assert answered(found, ask(templates)) == ["small"]
        config_maps.sizes = {"small": GroupSize(1, 9, "OutOfResources: none left")}
        assert answered(found, ask(templates)) == ["elsewhere"]
        (*_, decision) = found.decisions.latest()
        assert answered(found, ask({name: templates[name] for name in ("small", "kin")})) == ["kin"]
    said = {each.node_group: each.left_out for each in decision.options}
    assert said["small"].startswith("failed to scale up 1 time: OutOfResources: none left; others come first until")
    assert said["kin"].startswith("is like small, which failed to scale up 1 time: OutOfResources: none left; others")


# ---- answers that cannot hurt


def test_what_cannot_be_read_is_left_out_and_the_others_are_ranked() -> None:
    with house() as found:
        request = ask(
            {"a": b"\xff", "b": b"", "c": b"x" * (LARGEST_TEMPLATE_BYTES + 1), "d": M7}, ["a", "b", "c", "e", "d"]
        )
        assert answered(found, request) == ["d"]
        (decision,) = found.decisions.latest()
    assert [each.left_out.split(":")[0] for each in decision.options] == [
        "has a template that cannot be read",
        "has a template that cannot be read",
        "has a template that cannot be read",
        "is not a node group of this fleet, and has no template in the request",
        "",
    ]


def test_where_nothing_can_be_said_the_next_expander_chooses_among_all_in_the_autoscalers_order() -> None:
    with house() as found:
        assert answered(found, ask({"b": b"\xff", "a": b"\xff"})) == ["b", "a"]
        (decision,) = found.decisions.latest()
        assert (decision.chosen, decision.passed_on, decision.outcome) == ("", True, "passed_on")
        assert decision.reason.startswith("the choice is the autoscaler's next expander's: no option may be taken")


def test_an_id_or_an_amount_of_any_size_spoils_no_other_option() -> None:
    long = "x" * 100_000
    huge = template(NodeGroup("t", {"cpu": 4000, "memory": 2**60, "pods": 110}, 0.0, instance_type="huge"))
    with house([taking("p", 50, groups=ids(".*a.*b.*c.*$"))]) as found:
        assert answered(found, ask({long: M7, "huge": huge, "eks": M7})) == ["eks"]
        (decision,) = found.decisions.latest()
    assert decision.ranked_by == "objective"
    assert decision.options[0].left_out == "has an id of 100000 characters, more than 300"


def test_what_is_passed_on_is_no_larger_than_what_was_asked() -> None:
    many = {f"group-{number}": b"\xff" for number in range(1_500)}
    with house() as found:
        request = ask(many)
        answer = found.advice.ok("BestOptions", request)
        (decision,) = found.decisions.latest()
    assert [each.nodeGroupId for each in answer.options] == list(many)
    assert answer.ByteSize() < request.ByteSize()
    assert len(decision.reason) < 10_000
    assert decision.options[-1].left_out


def test_groups_of_nobody_are_the_next_expanders() -> None:
    """Which a request without templates has: one of them that cannot be serialised keeps all back."""
    with house() as found:
        assert answered(found, asking(option("nobody", 1, PODS), option("no one", 1, PODS))) == ["nobody", "no one"]
        assert answered(found, asking(option("nobody", 1, PODS), option("ours", 1, PODS))) == ["ours"]


def test_with_drive_plan_only_our_own_groups_are_the_planners() -> None:
    with house(planner_drives=True) as found:
        assert answered(found, ask({"eks-large": LARGE, "eks-small": M7})) == ["eks-small"]
        assert answered(found, asking(option("ours", 1, PODS))) == []
        assert answered(found, asking()) == []


def test_a_decision_about_another_autoscalers_groups_replaces_no_choice_of_ours() -> None:
    with house() as found:
        assert answered(found, asking(option("ours", 1, PODS))) == ["ours"]
        assert answered(found, ask({"eks": M7})) == ["eks"]
        assert found.decisions.take_choice("eks") is None
        choice = found.decisions.take_choice("ours")
    assert choice is not None
    assert len(choice.pods) == len(PODS)


def test_limits_of_our_fleet_are_not_those_of_other_groups() -> None:
    with house() as found:
        assert answered(found, ask({"eks": M7}, count=10_000)) == ["eks"]


names = st.sampled_from(["eks-a", "eks-b", "ours", "nobody"])
offers = st.lists(st.tuples(names, st.integers(-1, 9), st.sampled_from([[], PODS[:1], PODS, [b"\xff"]])), max_size=5)
damaged = st.builds(lambda whole, cut: whole[:cut], st.sampled_from([M7, LARGE]), st.integers(0, len(M7)))
changed = st.builds(
    lambda at, byte: M7[:at] + bytes([byte]) + M7[at + 1 :], st.integers(0, len(M7)), st.integers(0, 255)
)
templates = st.one_of(st.just(M7), st.just(LARGE), damaged, changed, st.binary(max_size=40), st.none())


@given(offers, templates, templates, st.booleans())
@examples(500)
def test_every_request_is_answered_and_none_of_another_clouds_is_vetoed_by_accident(
    shared_house: House, offered: list[tuple[str, int, list[bytes]]], a: bytes | None, b: bytes | None, older: bool
) -> None:
    request = asking(*(option(*each) for each in offered))
    sent = {"eks-a": a, "eks-b": b}
    (request.nodeMap if older else request.nodeBytesMap).update({name: each for name, each in sent.items() if each})
    code, details, data = shared_house.advice.raw("BestOptions", request.SerializeToString())
    assert (code, details) == ("OK", "")
    got = [each.nodeGroupId for each in expander_pb2.BestOptionsResponse.FromString(data).options]
    foreign = [name for name, _, _ in offered if name != "ours"]
    assert got == foreign or (len(got) == 1 and got[0] in {name for name, _, _ in offered})
    usable = {name for name, count, pods in offered if name == "ours" and count > 0 and pods}
    assert got or not (foreign or usable)


@pytest.fixture(scope="module")
def shared_house() -> Any:
    with house() as found:
        yield found


def test_recordings_keep_of_templates_what_planning_reads() -> None:
    message = kubernetes_pb2.Node.FromString(M7)
    message.metadata.annotations["secret"] = "hidden"
    request = ask({"eks": message.SerializeToString(), "not offered": M7}, ["eks"])
    kept = reduced(expander_pb2.BestOptionsRequest, request.SerializeToString())
    found = expander_pb2.BestOptionsRequest.FromString(kept)
    assert b"hidden" not in kept
    assert list(found.nodeBytesMap) == ["eks"]
    read = TemplateGroups(catalogue=embedded_catalogue()).read
    assert read("eks", found.nodeBytesMap["eks"]) == read("eks", M7)


def test_decisions_are_shown() -> None:
    with house() as found:
        answered(found, ask({"eks-large": LARGE, "eks-small": M7}))
        json.dumps(found.decisions.latest()[0].as_json())
