"""Volumes and claims of PodTemplates that ProvisioningRequests ask for, read as those of pods that are to come."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.provisioning.objects import TemplatePod, template_pod
from cagrpc.cluster.state import PlannedTemplate
from cagrpc.cluster.view import shares
from cagrpc.cluster.view.shares import BEYOND
from cagrpc.cluster.view.storage import CLAIMS
from solver.model.eligibility import why_not_eligible
from tests.cluster.view.test_shares import grows
from tests.cluster.view.test_storage import ATTACH, fed, zones
from tests.support.controllers.cluster_objects import Fed
from tests.support.devices import CLAIMS as RESOURCE_CLAIMS
from tests.support.devices import CLASSES, SLICES, TEMPLATES, claim_template, device_class
from tests.support.devices import claim as resource_claim
from tests.support.steps import steps
from tests.support.storage import EBS, LOCAL, claim, storage_class, volume


def of(*volumes: Any, claims: Any = (), **requests: str) -> TemplatePod:
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1", **requests}}}]}
    spec |= {"volumes": list(volumes), "resourceClaims": list(claims)}
    return template_pod({"metadata": {"name": "worker", "namespace": "default"}, "template": {"spec": spec}})


def named(claim: str) -> Any:
    return {"name": "v", "persistentVolumeClaim": {"claimName": claim}}


def ephemeral(class_name: str = "fast") -> Any:
    asked = {"spec": {"storageClassName": class_name, "accessModes": ["ReadWriteOnce"]}}
    return {"name": "scratch", "ephemeral": {"volumeClaimTemplate": asked}}


def planned(there: Fed, template: TemplatePod) -> PlannedTemplate:
    there.model.expect(lambda: frozenset({template}))
    (found,) = there.model.state().templates.values()
    there.model.expect(frozenset)
    return found


def with_devices(*claims: Any) -> Fed:
    there = fed()
    for objects, path in (
        ([device_class(extendedResourceName="example.com/gpu")], CLASSES),
        ([claim_template()], TEMPLATES),
        (claims, RESOURCE_CLAIMS),
        ([], SLICES),
    ):
        there.relist(list(objects), path)
    return there


def test_a_claim_that_is_bound_ties_them_to_its_volume() -> None:
    there = fed(claims=[claim("c", "v", modes=["ReadWriteMany"])], volumes=[volume("v", "b", of="c", driver=EBS)])
    found = planned(there, of(named("c")))
    assert zones(found.spec) == "b"
    assert (dict(found.spec.requests), found.spec.namespace) == ({"cpu": 1000, ATTACH: 1}, "default")


def test_ephemeral_volumes_follow_their_class_and_take_attachments() -> None:
    there = fed(classes=[storage_class(zones=["a", "c"])], claims=[claim("worker-scratch")])
    found = planned(there, of(ephemeral()))
    assert zones(found.spec) == "ac", "the claim of that name is nobody's of these pods"
    assert dict(found.spec.requests)[ATTACH] == 1
    assert not found.of_one_pod


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (of(named("c")), 'persistentvolumeclaim "c" not found'),
        (of(ephemeral("slow")), 'persistentvolumeclaim "worker-*-scratch" is not bound yet: its storageclass "slow"'),
        (of(ephemeral("local")), 'persistentvolumeclaim "worker-*-scratch" finds no volume: storageclass "local"'),
    ],
)
def test_why_they_wait(template: TemplatePod, why: str) -> None:
    there = fed(classes=[storage_class(), storage_class("slow", waits=False), storage_class("local", LOCAL)])
    assert planned(there, template).spec.unschedulable.startswith(why)


def test_they_are_read_again_when_their_claim_changes_and_forgotten_when_nobody_asks() -> None:
    there, template = fed(), of(named("c"))
    assert planned(there, template).spec.unschedulable
    there.put(claim("c"), path=CLAIMS)
    assert not planned(there, template).spec.unschedulable
    assert there.state().templates == {}
    there.relist([], CLAIMS)
    assert not any(there.leftovers())


def test_a_claim_of_one_pod_serves_one_of_them() -> None:
    there = fed(claims=[claim("c", modes=["ReadWriteOncePod"])])
    found = planned(there, of(named("c")))
    assert not found.spec.unschedulable
    assert found.of_one_pod == (
        'persistentvolumeclaim "c" is ReadWriteOncePod, and another pod of the same template uses it first'
    )


def test_claims_on_devices_made_of_templates_are_planned() -> None:
    template = of(claims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])
    found = planned(with_devices(), template)
    assert not found.spec.unschedulable
    (wanted,) = found.spec.claims
    assert wanted.requests[0].alternatives[0].count == 1


def test_an_extended_resource_that_a_class_backs_is_a_claim() -> None:
    found = planned(with_devices(), of(**{"example.com/gpu": "2"}))
    (wanted,) = found.spec.claims
    assert wanted.requests[0].alternatives[0].count == 2
    assert dict(found.spec.requests) == {"cpu": 1000}


def test_a_named_claim_on_devices_counts_once_it_is_allocated() -> None:
    template = of(claims=[{"name": "gpu", "resourceClaimName": "c"}])
    there = with_devices()
    assert planned(there, template).spec.unschedulable == "ResourceClaim default/c is not found"
    there.put(resource_claim("c"), path=RESOURCE_CLAIMS)
    assert planned(there, template).spec.unschedulable.startswith("ResourceClaim default/c is not allocated yet")
    there.put(resource_claim("c", "gpu-0", on="n1"), path=RESOURCE_CLAIMS)
    spec = planned(there, template).spec
    assert not spec.unschedulable
    assert [why_not_eligible(spec, {}, (), name) is None for name in ("n1", "n2")] == [True, False]


def of_terms(number: int, terms: int = 50) -> TemplatePod:
    """Return a template whose pods keep away from as many others; no two are alike."""
    anti = [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": f"{number}-{each}"}}} for each in range(terms)
    ]
    spec = {
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": anti}},
    }
    return template_pod({"metadata": {"name": f"t{number}", "namespace": "default"}, "template": {"spec": spec}})


def unschedulable(there: Fed) -> list[str]:
    return sorted(each.name for each, as_ in there.model.state().templates.items() if as_.spec.unschedulable == BEYOND)


def test_templates_beyond_the_share_of_their_namespace_are_left_out_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, templates = Fed(), [of_terms(number) for number in range(3)]
    of_one = sum(map(shares.weight, shares.constraints_of(templates[0].spec)))
    monkeypatch.setattr(shares, "MOST_WEIGHT", 2 * of_one)
    there.model.expect(lambda: frozenset(templates))
    (left_out,) = unschedulable(there)
    others = [each for each in templates if each.name != left_out]
    there.model.expect(lambda: frozenset(templates) - {others[0]})
    assert unschedulable(there) == []
    there.model.expect(frozenset)
    assert there.model.state().templates == {}
    there.model.expect(lambda: frozenset([of_terms(9), of_terms(10)]))
    assert unschedulable(there) == []


def test_templates_cost_as_much_each_however_many_come() -> None:
    def come(count: int) -> int:
        there = Fed()
        templates = frozenset(of_terms(number, 5) for number in range(count))
        there.model.expect(lambda: templates)
        return steps(there.model.state)

    grows(come, 100)


def test_templates_that_come_together_are_not_read_at_once() -> None:
    def keep(count: int) -> int:
        table = Fed().model._templates
        templates = frozenset(of_terms(number, 5) for number in range(count))
        return steps(lambda: table.keep(templates))

    assert keep(200) - keep(100) < 100 * 30  # each is noted, and read later, a few at a time
