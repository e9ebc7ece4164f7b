"""Requests whose pods have volumes and claims: what these come to is planned, reserved, and waited for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cagrpc.api.core.volume_binding import VolumeDemand, bound_by
from cagrpc.api.devices.claims import with_extended, without_claims
from cagrpc.api.provisioning.objects import TemplatePod, template_pod
from cagrpc.cluster.state import PlannedTemplate
from solver.model import NodeSelectorTerm, Operator, PodSpec, Requirement
from tests.support.controllers.planner import BOOT_SECONDS
from tests.support.controllers.provisioning import Make, ProvisioningHarness
from tests.support.fleet import group

LONG = 3 * BOOT_SECONDS
ATTACH = "attachable-volumes-csi-ebs.csi.aws.com"
WHY = 'persistentvolumeclaim "data" not found'


def put(harness: ProvisioningHarness, name: str = "store", **said: Any) -> TemplatePod:
    """Create a PodTemplate with a claim."""
    harness.template(name, cpu=1000, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    found = harness.templates[name]
    return template_pod({**found, "metadata": {**found["metadata"], "namespace": "ns"}})


def read(template: TemplatePod, *zones: str, unschedulable: str = "", attached: int = 0) -> PlannedTemplate:
    """Return what the view makes of it: a volume in these zones."""
    term = NodeSelectorTerm((Requirement("topology.kubernetes.io/zone", Operator.IN, zones),))
    spec = replace(
        template.spec,
        namespace="ns",
        node_terms=((term,),) if zones else (),
        unschedulable=unschedulable,
        requests=tuple(sorted((*template.spec.requests, *([(ATTACH, attached)] if attached else [])))),
    )
    return PlannedTemplate(spec)


def in_zones(make: Make) -> ProvisioningHarness:
    groups = [group(name, price=price) for name, price in (("a", 1.0), ("b", 2.0))]
    harness = make(*(replace(each, zone=each.id, allocatable={**each.allocatable, ATTACH: 2}) for each in groups))
    harness.cluster.drivers = frozenset({"ebs.csi.aws.com"})
    return harness


def test_nodes_are_ordered_where_the_volume_is_and_as_many_as_attach_it(make: Make) -> None:
    harness = in_zones(make)
    template = put(harness)
    harness.cluster.templates[template] = read(template, "b", attached=1)
    harness.request("r", ("store", 3))
    harness.run(LONG)
    assert harness.is_true("r", "Provisioned")
    assert [dict(each.increment.deltas) for each in harness.fleet.snapshot.increments] == [{"b": 2}]


def test_pods_find_the_room_that_was_reserved_with_what_their_claims_come_to(make: Make) -> None:
    harness = in_zones(make)
    template = put(harness)
    harness.cluster.templates[template] = read(template, "b", attached=1)
    harness.request("r", ("store", 2))
    harness.run(LONG)
    pods = harness.consume("r", 2)  # their specs are as they are written
    harness.run(20)
    assert {harness.cluster.pods[uid].node is not None for uid in pods} == {True}
    assert harness.details("r")["consumed"] == "0=2"


def test_a_request_waits_for_claims_that_are_not_ready_and_loses_no_attempt(make: Make) -> None:
    harness = in_zones(make)
    template = put(harness)
    harness.cluster.templates[template] = read(template, unschedulable=WHY)
    harness.request("r", ("store", 1))
    harness.run(LONG)
    found = harness.condition("r", "Provisioned")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "ClaimsAreNotReady")
    assert found["message"] == f"PodTemplate ns/store: {WHY}"
    assert "attempts" not in harness.details("r")
    written = len(harness.api.calls)
    harness.run(LONG)
    assert len(harness.api.calls) == written, "it is said once"
    harness.cluster.templates[template] = read(template, "a")
    harness.run(LONG)
    assert harness.is_true("r", "Provisioned")


def test_no_request_is_planned_blind_before_its_claims_are_read(make: Make) -> None:
    harness = in_zones(make)
    put(harness)
    harness.request("r", ("store", 1))
    harness.run(LONG)
    assert not harness.is_true("r", "Provisioned")
    assert not harness.fleet.snapshot.increments


def test_a_check_of_capacity_says_at_once_what_its_claims_lack(make: Make) -> None:
    harness = in_zones(make)
    template = put(harness)
    harness.cluster.templates[template] = read(template, unschedulable=WHY)
    harness.request("r", ("store", 1), of="check-capacity.kubernetes.io")
    harness.run(20)
    found = harness.condition("r", "Failed")
    assert found is not None
    assert WHY in found["message"]


def test_a_claim_of_one_pod_does_for_no_second_one(make: Make) -> None:
    harness = in_zones(make)
    template = put(harness)
    of_one = replace(read(template), of_one_pod="it is ReadWriteOncePod")
    harness.cluster.templates[template] = of_one
    harness.request("one", ("store", 1))
    harness.request("two", ("store", 2))
    harness.request("twice", ("store", 1), ("store", 1))
    harness.run(LONG)
    assert [harness.is_true(name, "Provisioned") for name in ("one", "two", "twice")] == [True, False, False]


def test_its_room_is_kept_though_the_template_is_gone_and_its_claim_too(make: Make) -> None:
    harness = in_zones(make)
    template = put(harness)
    harness.cluster.templates[template] = read(template, "a", attached=1)
    uid = harness.request("r", ("store", 2), ValidUntilSeconds="9h")
    harness.run(LONG)
    del harness.templates["store"]
    harness.cluster.templates[template] = read(template, unschedulable=WHY)
    harness.run(LONG)
    assert harness.is_true("r", "Provisioned")
    assert uid in {each for names in harness.requests._seen.booked.uids.values() for each in names}  # type: ignore[union-attr]


def test_what_pods_have_written_is_what_they_were_planned_with_less_their_claims() -> None:
    written = PodSpec((("cpu", 1000), ("example.com/gpu", 2)), node_selector=(("pool", "x"),))
    bound = bound_by(written, VolumeDemand(counted=(("d", "v"),), unschedulable="waits"), "ns")
    assert without_claims(with_extended(bound, {"example.com/gpu"})) == written
