"""Devices of nodes as planning may give them, and claims of pods: each rule with what breaks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cagrpc.api.core.pods import PodClaim, PodClaims, pod_claims
from cagrpc.api.devices.claims import ClaimObjects, DeviceDemand, carrying, demand, with_demand, with_extended
from cagrpc.api.devices.matching import (
    NodeMatching,
    PublishedDevices,
    WantedDevices,
    by_node,
    extended_selectors,
    typical,
)
from cagrpc.api.devices.objects import (
    device_class,
    resource_claim,
    resource_claim_template,
    resource_slice,
)
from cagrpc.api.devices.selectors import Matcher, all_of, extended
from solver.model import Devices, PodSpec
from solver.model.allocation import why_not_allocated
from tests.support.device_objects import DeviceObjects, ReadAtOnce

DRIVER = "gpu.example.com"
GPUS = 'device.driver == "gpu.example.com"'


def read(reader: Any, document: Mapping[str, Any]) -> Any:
    problems: list[str] = []
    found = reader(document, problems)
    assert not problems
    return found


def gpu(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "attributes": {"model": {"string": "a100"}},
        "capacity": {"memory": {"value": "40Gi"}},
        **more,
    }


def a_slice(*devices: dict[str, Any], node: str = "n1", name: str = "s", **spec: Any) -> Any:
    pool = {"name": node or "pool", "generation": 1, "resourceSliceCount": 1, **spec.pop("pool", {})}
    where = {"nodeName": node} if node else {"allNodes": True}
    return read(
        resource_slice,
        {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": pool, **where, "devices": [*devices], **spec}},
    )


def a_class(name: str = "gpu", *expressions: str, **spec: Any) -> Any:
    selectors = [{"cel": {"expression": each}} for each in expressions or (GPUS,)]
    return read(device_class, {"metadata": {"name": name}, "spec": {"selectors": selectors, **spec}})


def claim_body(*requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    return {"devices": {"requests": [*requests], **devices}}


def exactly(name: str = "gpu", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": "gpu", **fields}}


def a_claim(body: dict[str, Any], name: str = "c", **more: Any) -> Any:
    return read(
        resource_claim,
        {"metadata": {"name": name, "namespace": "ns", **more.pop("metadata", {})}, "spec": body, **more},
    )


BY_NAME = PodClaims((PodClaim("gpu", claim="c"),))
BY_TEMPLATE = PodClaims((PodClaim("gpu", template="t"),))


def of_template(
    body: dict[str, Any], *slices: Any, classes: tuple[Any, ...] = (), **more: Any
) -> tuple[DeviceDemand, Any]:
    """The demand of a pod of a template, and what nodes have for it."""
    template = read(resource_claim_template, {"spec": {"spec": body}})
    objects = DeviceObjects(more.get("claims", ()), {"ns/t": template}, classes or (a_class(),), slices)
    found = objects.demand("ns", "", BY_TEMPLATE)
    return found, objects.matching()


def node(matching: NodeMatching, name: str = "n1") -> tuple[Devices, ...]:
    return tuple(each for each in matching.of_node(name, {}, {}) if not each.uncertain)


def uncertain(matching: NodeMatching, name: str = "n1") -> set[str]:
    """Return the keys of which the node may give what planning does not know, or an error."""
    return {key for each in matching.of_node(name, {}, {}) if each.uncertain for key in each.selectors}


def key_of(found: DeviceDemand) -> str:
    assert not found.problem
    return found.claims[0].requests[0].alternatives[0].selector


def test_devices_alike_are_counted_and_those_allocated_are_not() -> None:
    taken = {"driver": DRIVER, "pool": "n1", "device": "gpu-1", "request": "gpu"}
    has = a_claim(claim_body(exactly()), "other", status={"allocation": {"devices": {"results": [taken]}}})
    found, matching = of_template(claim_body(exactly()), a_slice(*(gpu(f"gpu-{n}") for n in range(4))), claims=(has,))
    key = key_of(found)
    ordinary = [each for each in node(matching) if key in each.selectors]
    assert [(each.count, each.selectors) for each in ordinary] == [(3, frozenset({key}))]
    assert [each.taken for each in ordinary] == [1]  # who asks for all of them waits, and admin access shares it


def test_all_devices_are_to_be_had_where_planning_gives_all_of_them() -> None:
    found, matching = of_template(claim_body(exactly(allocationMode="All")), a_slice(gpu("a"), gpu("b")))
    (alternative,) = found.claims[0].requests[0].alternatives
    assert alternative.all
    assert [each.count for each in node(matching) if alternative.selector in each.selectors] == [2]
    assert alternative.selector == all_of("gpu")
    tainted = gpu("bad", taints=[{"key": "broken", "effect": "NoExecute"}])
    found, matching = of_template(claim_body(exactly(allocationMode="All")), a_slice(gpu("a"), tainted))
    assert not node(matching)
    many = (gpu(f"gpu-{n}") for n in range(33))
    found, matching = of_template(claim_body(exactly(allocationMode="All")), a_slice(*many))
    assert not node(matching)


def test_selectors_of_class_and_request_both_hold() -> None:
    big = exactly(
        selectors=[{"cel": {"expression": f'device.capacity["{DRIVER}"].memory.compareTo(quantity("80Gi")) >= 0'}}]
    )
    large = {"capacity": {"memory": {"value": "80Gi"}}}
    found, matching = of_template(
        claim_body(big),
        a_slice(gpu("small"), gpu("large", **large)),
        a_slice(gpu("large", **large), name="x", node="n2", driver="other.example.com"),
    )
    assert [each.count for each in node(matching) if key_of(found) in each.selectors] == [1]
    assert not node(matching, "n2")


def test_values_of_attributes_that_a_constraint_names_tell_devices_apart() -> None:
    def on(name: str, root: int) -> dict[str, Any]:
        return gpu(name, attributes={"root": {"int": root}, "uuid": {"string": name}})

    body = claim_body(exactly(count=2), constraints=[{"matchAttribute": f"{DRIVER}/root"}])
    found, matching = of_template(body, a_slice(on("a", 1), on("b", 1), on("c", 2), gpu("none")))
    assert found.claims[0].match_attributes == ((frozenset(), f"{DRIVER}/root"),)
    assert sorted((each.attributes, each.count) for each in node(matching)) == [
        ((), 1),
        (((f"{DRIVER}/root", "int 1"),), 2),
        (((f"{DRIVER}/root", "int 2"),), 1),
    ]


def test_a_tainted_device_is_only_for_who_tolerates_it() -> None:
    tainted = gpu("bad", taints=[{"key": "broken", "effect": "NoSchedule"}, {"key": "hint", "effect": "None"}])
    found, matching = of_template(claim_body(exactly()), a_slice(gpu("good"), tainted))
    assert [each.count for each in node(matching) if key_of(found) in each.selectors] == [1]
    tolerant = exactly(tolerations=[{"key": "broken", "operator": "Exists"}])
    found, matching = of_template(claim_body(tolerant), a_slice(gpu("good"), tainted))
    assert sum(each.count for each in node(matching) if key_of(found) in each.selectors) == 2
    other = exactly(tolerations=[{"key": "broken", "operator": "Equal", "value": "x"}])
    found, matching = of_template(claim_body(other), a_slice(tainted))
    assert not node(matching)
    assert "the taint broken:NoSchedule, which" in matching.left_out(PodSpec(claims=found.claims)).unschedulable


COUNTERS = [{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]


def part(name: str, memory: str) -> dict[str, Any]:
    return gpu(name, consumesCounters=[{"counterSet": "card", "counters": {"memory": {"value": memory}}}])


def partitions(*devices: dict[str, Any]) -> tuple[Any, Any]:
    pool = {"resourceSliceCount": 2}
    return a_slice(*devices, pool=pool), a_slice(name="counters", pool=pool, sharedCounters=COUNTERS)


def test_partitions_are_planned_where_all_that_match_fit_together() -> None:
    found, matching = of_template(claim_body(exactly()), *partitions(part("a", "20Gi"), part("b", "20Gi")))
    assert sum(each.count for each in node(matching) if key_of(found) in each.selectors) == 2
    found, matching = of_template(
        claim_body(exactly()), *partitions(part("a", "20Gi"), part("b", "20Gi"), part("whole", "40Gi"))
    )
    assert not node(matching)
    assert "partitions" in matching.left_out(PodSpec(claims=found.claims)).unschedulable
    small = exactly(selectors=[{"cel": {"expression": 'device.attributes["gpu.example.com"].part'}}])
    pieces = [{**part(name, "20Gi"), "attributes": {"part": {"bool": True}}} for name in "ab"]
    whole = {**part("whole", "40Gi"), "attributes": {"part": {"bool": False}}}
    found, matching = of_template(claim_body(small), *partitions(*pieces, whole))
    assert sum(each.count for each in node(matching) if key_of(found) in each.selectors) == 2
    assert not matching.left_out(PodSpec(claims=found.claims)).unschedulable


def test_a_partition_for_which_too_little_is_left_is_nobodys() -> None:
    taken = {"driver": DRIVER, "pool": "n1", "device": "a", "request": "gpu"}
    has = a_claim(claim_body(exactly()), "other", status={"allocation": {"devices": {"results": [taken]}}})
    found, matching = of_template(
        claim_body(exactly()), *partitions(part("a", "20Gi"), part("b", "20Gi"), part("whole", "40Gi")), claims=(has,)
    )
    assert sum(each.count for each in node(matching) if key_of(found) in each.selectors) == 1


@pytest.mark.parametrize(
    ("slices", "why"),
    [
        ((a_slice(gpu("a", allowMultipleAllocations=True)),), "several times"),
        ((a_slice(gpu("a"), node=""),), "several nodes"),
        ((a_slice(gpu("a", nodeAllocatableResourceMappings={"cpu": {}})),), "nodeAllocatableResourceMappings"),
    ],
)
def test_what_planning_does_not_know_is_given_to_nobody_and_said(slices: tuple[Any, ...], why: str) -> None:
    found, matching = of_template(claim_body(exactly()), *slices)
    assert not node(matching)
    assert why in matching.left_out(PodSpec(claims=found.claims)).unschedulable
    # with a device elsewhere that planning does know, the pod is planned there
    found, matching = of_template(claim_body(exactly()), *slices, a_slice(gpu("b"), node="n2", name="n2"))
    assert node(matching, "n2")
    assert not matching.left_out(PodSpec(claims=found.claims)).unschedulable


def test_a_pool_counts_once_it_is_whole_and_in_its_newest_generation() -> None:
    def pool(generation: int, slices: int) -> dict[str, Any]:
        return {"generation": generation, "resourceSliceCount": slices}

    old, new = a_slice(gpu("a"), name="old"), a_slice(gpu("a"), gpu("b"), name="new", pool=pool(2, 2))
    more = a_slice(gpu("c"), name="more", pool=pool(2, 2))
    assert [each.name for each in by_node([old])["n1"].devices] == ["a"]
    assert by_node([old, new])["n1"].incomplete
    assert not by_node([old, new])["n1"].devices
    assert [each.name for each in by_node([old, more, new])["n1"].devices] == ["c", "a", "b"]


_STRICT = 'device.attributes["gpu.example.com"].model == "a100"'


def test_a_selector_that_fails_on_a_device_has_none_of_its_node() -> None:
    """As the scheduler gives up on the pod there."""
    strict = exactly(selectors=[{"cel": {"expression": _STRICT}}])
    found, matching = of_template(claim_body(strict), a_slice(gpu("a"), gpu("b", attributes={})))
    assert not node(matching)
    why = matching.left_out(PodSpec(claims=found.claims)).unschedulable
    assert "no such member" in why
    assert why.endswith("(on device b of driver gpu.example.com)")


EITHER = claim_body(
    {
        "name": "gpu",
        "firstAvailable": [
            {"name": "strict", "deviceClassName": "gpu", "selectors": [{"cel": {"expression": _STRICT}}]},
            {"name": "whole", "deviceClassName": "gpu", "allocationMode": "All"},
            {"name": "one", "deviceClassName": "gpu"},
        ],
    }
)


@pytest.mark.parametrize(
    ("slices", "unknown"),
    [
        pytest.param((a_slice(gpu("a")),), (), id="known"),
        pytest.param((a_slice(gpu("a"), gpu("b", attributes={})),), (0,), id="a-selector-fails"),
        pytest.param(
            (a_slice(gpu("a")), a_slice(gpu("b", attributes={}), name="loose", node="", pool={"name": "loose"})),
            (0, 1, 2),
            id="a-selector-fails-on-what-several-nodes-can-use",
        ),
        pytest.param((a_slice(gpu("a"), gpu("b", allowMultipleAllocations=True)),), (0, 1, 2), id="several-times"),
        pytest.param(
            (a_slice(gpu("a")), a_slice(gpu("b"), name="x", pool={"name": "x", "resourceSliceCount": 2})),
            (1,),
            id="a-pool-is-not-whole",
        ),
        pytest.param(
            (a_slice(gpu("a")), a_slice(gpu("b"), gpu("b"), name="x", pool={"name": "x"})), (1,), id="a-pool-is-invalid"
        ),
        pytest.param(
            (a_slice(gpu("a")), a_slice(part("b", "1Gi"), name="x", pool={"name": "x"})), (1,), id="no-such-counters"
        ),
    ],
)
def test_where_more_may_be_had_than_is_known_or_an_error_no_alternative_is_counted_on(
    slices: tuple[Any, ...], unknown: tuple[int, ...]
) -> None:
    found, matching = of_template(EITHER, *slices)
    keys = [each.selector for each in found.claims[0].requests[0].alternatives]
    assert uncertain(matching) & set(keys) == {keys[number] for number in unknown}
    assert (why_not_allocated(matching.of_node("n1", {}, {}), found.claims) is None) == (not unknown)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (claim_body(exactly(deviceClassName="none")), "DeviceClass none is not found"),
        (claim_body(exactly(selectors=[{"cel": {"expression": "device.driver =="}}])), "not CEL"),
        (claim_body(exactly(selectors=[{"cel": {"expression": "device.driver =="}}])), ": device.driver =="),
        (claim_body(exactly(), constraints=[{"distinctAttribute": "a/b"}]), "distinctAttribute"),
        (claim_body(exactly(count=33)), "at most 32"),
        (claim_body({"name": "gpu", "someday": {}}), "a request of someday"),
        (claim_body(exactly(allocationMode="Some")), "allocation mode Some"),
    ],
)
def test_a_claim_that_cannot_be_planned_says_why(body: dict[str, Any], why: str) -> None:
    found, _ = of_template(body)
    assert not found.claims
    assert why in found.problem
    assert with_demand(PodSpec(), found, set(), set()).unschedulable == found.problem


def test_every_version_of_the_api_is_read_alike() -> None:
    v1 = claim_body(exactly(count=2), {"name": "either", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]})
    v1beta1 = claim_body(
        {"name": "gpu", "deviceClassName": "gpu", "count": 2},
        {"name": "either", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]},
    )
    assert a_claim(v1) == a_claim(v1beta1)
    basic = {"name": "a", "basic": {key: value for key, value in gpu("a").items() if key != "name"}}
    assert a_slice(gpu("a")) == a_slice(basic)


def _objects(*claims: Any) -> ClaimObjects:
    return ClaimObjects({each.key: each for each in claims}, {}, {"gpu": a_class()})


def by_name(*claims: Any, uid: str = "u", pod: PodClaims = BY_NAME) -> DeviceDemand:
    return demand("ns", uid, pod, _objects(*claims), Matcher(ReadAtOnce()))


def test_an_allocated_claim_ties_its_pods_to_where_it_is_and_takes_nothing() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    status = {"allocation": {"nodeSelector": {"nodeSelectorTerms": [term]}, "devices": {"results": []}}}
    found = by_name(a_claim(claim_body(exactly()), status=status))
    assert not found.claims
    assert not found.shared
    assert found.node_terms[0][0].match_fields[0].values == ("n1",)
    everybody = [{"resource": "pods", "name": "p", "uid": f"{n}"} for n in range(256)]
    full = a_claim(claim_body(exactly()), status={**status, "reservedFor": everybody})
    assert "in use by 256 others" in by_name(full).problem
    assert not by_name(full, uid="7").problem


def test_a_claim_that_is_not_there_or_going_says_so() -> None:
    assert by_name().problem == "ResourceClaim ns/c is not found"
    going = a_claim(claim_body(exactly()), metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert "being deleted" in by_name(going).problem
    assert by_name(pod=BY_TEMPLATE).problem == "ResourceClaimTemplate ns/t is not found"
    assert by_name(pod=PodClaims((PodClaim("gpu"),))).problem


def test_the_claim_made_of_a_template_counts_instead_of_it() -> None:
    pod = read(
        pod_claims,
        {
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]},
        },
    )
    owner = {"ownerReferences": [{"kind": "Pod", "uid": "u", "controller": True}]}
    made = a_claim(claim_body(exactly(count=3)), metadata=owner)
    assert by_name(made, pod=pod).claims[0].requests[0].alternatives[0].count == 3
    assert "made for another pod" in by_name(made, uid="other", pod=pod).problem
    needless = PodClaims((PodClaim("gpu", template="t"),), (("gpu", ""),))
    assert by_name(pod=needless) == DeviceDemand()


def test_a_shared_claim_is_planned_with_one_pod_to_which_the_others_are_tied() -> None:
    found = by_name(a_claim(claim_body(exactly())))
    ((key, claim),) = found.shared
    first = with_demand(PodSpec(), found, {key}, {key})
    second = with_demand(PodSpec(), found, set(), {key})
    assert (first.claims, first.pod_affinity) == ((claim,), ())
    assert second.claims == ()
    (term,) = second.pod_affinity
    assert term.topology_key == "kubernetes.io/hostname"
    (condition,) = term.selector.match_expressions or ()
    assert {condition.key: condition.values[0]} == carrying([key])


def test_an_extended_resource_comes_from_the_plugin_or_from_devices() -> None:
    backing = a_class(extendedResourceName="example.com/gpu")
    older = a_class("older", extendedResourceName="example.com/gpu")
    objects = ClaimObjects({}, {}, {each.name: each for each in (older, backing)})
    backed = objects.extended_resources()
    assert backed["example.com/gpu"].name == "gpu"  # of the same age: the first by name
    assert backed["deviceclass.resource.kubernetes.io/older"].name == "older"
    spec = PodSpec(requests=(("cpu", 1000), ("example.com/gpu", 2), ("other.com/gpu", 1)))
    planned = with_extended(spec, backed)
    assert planned.requests == (("cpu", 1000), ("other.com/gpu", 1))
    key = extended("example.com/gpu")
    assert planned.claims[0].requests[0].alternatives[0].selector == key
    assert planned.claims[0].requests[0].alternatives[0].count == 2
    slices = by_node([a_slice(gpu("a"), gpu("b"))])
    matching = NodeMatching(
        Matcher(ReadAtOnce()), WantedDevices(extended_selectors([spec], backed)), PublishedDevices(slices)
    )
    assert [each.count for each in matching.of_node("n1", {}, {}) if key in each.selectors] == [2]
    plugged = matching.of_node("n1", {"example.com/gpu": 4}, {"example.com/gpu": 3})
    assert [(each.count, each.selectors) for each in plugged] == [(3, frozenset({key}))]
    assert not matching.of_node("n1", {"example.com/gpu": 4}, {"example.com/gpu": 0})


def test_the_typical_node_of_a_group_is_not_the_one_with_a_broken_device() -> None:
    whole = [a_slice(gpu("a"), gpu("b"), node=f"n{n}", name=f"s{n}") for n in range(2)]
    broken = a_slice(gpu("a"), gpu("b", taints=[{"key": "broken", "effect": "NoExecute"}]), node="n9", name="s9")
    nodes = by_node([*whole, broken])
    found = typical(nodes.values())
    assert found is not None
    assert not any(device.taints for device in found.devices)
    assert typical([]) is None


def test_expensive_selectors_wait_for_the_next_round_and_no_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cagrpc.api.devices.expressions.MOST_STEPS", 20_000)
    numbers = f"[{', '.join(map(str, range(100)))}]"
    costly = exactly(selectors=[{"cel": {"expression": f'{numbers}.all(n, n != device.attributes["{DRIVER}"].n)'}}])
    slices = [a_slice(gpu("a", attributes={"n": {"int": -n}}), node=f"n{n}", name=f"n{n}") for n in range(1, 40)]
    bodies = {"ns/t": claim_body(costly), "ns/u": claim_body(exactly())}
    templates = {key: read(resource_claim_template, {"spec": {"spec": body}}) for key, body in bodies.items()}
    objects = DeviceObjects((), templates, (a_class(),), slices)
    dear = key_of(objects.demand("ns", "", BY_TEMPLATE))
    cheap = key_of(objects.demand("ns", "", PodClaims((PodClaim("gpu", template="u"),))))
    rounds = []
    for _ in range(10):
        objects.matcher.begin()
        matching = objects.matching()
        nodes = [node(matching, f"n{n}") for n in range(1, 40)]
        assert all(any(cheap in each.selectors for each in found) for found in nodes)
        rounds.append(sum(any(dear in each.selectors for each in found) for found in nodes))
        if rounds[-1] == 39:
            break
    assert 0 < rounds[0] < 39
    assert rounds[-1] == 39
