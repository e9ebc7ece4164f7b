"""AdmissionChecks: which are answered, which are left to Kueue, and what their condition reports."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api.kueue import PENDING, Check, check
from cagrpc.controllers.settings import KueueSettings
from tests.support.kueue import CHECK, KueueWorld, condition, config, says, workload, written_by

GRACE_SECONDS = 30
"""Kueue's own controller, if it runs, has set a check's condition within this time."""
OURS, FIRST = KueueSettings().controller_name, "ProvisioningRequestController"
KUEUES = "kueue.x-k8s.io/provisioning-request"
DEFAULT, AS_KUEUE, OTHER = KueueSettings(), KueueSettings(KUEUES), KueueSettings("x.example.com/y")
NEW: dict[str, Any] = {}


def set_by(manager: str, *, active: bool = True) -> dict[str, Any]:
    """Return what an AdmissionCheck has beside its spec once a manager has set `Active`."""
    applied = {"manager": "kubectl", "operation": "Apply"}
    metadata = {"generation": 2, "managedFields": [applied, written_by(manager)]}
    return {"metadata": metadata, "status": {"conditions": [condition("Active", active), condition("Other")]}}


def known(world: KueueWorld) -> Check:
    (path,) = (path for path in world.api.objects if path.endswith(f"/admissionchecks/{CHECK}"))
    return check(world.api.objects[path])


CLAIMS: dict[str, tuple[KueueSettings, str, dict[str, Any], float, bool, bool]] = {
    "our own name": (DEFAULT, OURS, NEW, 0, True, False),
    "the first form's name": (DEFAULT, FIRST, NEW, 0, True, False),
    "a configured name": (OTHER, "x.example.com/y", NEW, 0, True, False),
    "another name": (DEFAULT, "x.example.com/y", NEW, 99, False, False),
    "Kueue's name is not ours unless configured": (DEFAULT, KUEUES, NEW, 99, False, False),
    "Kueue's name, its controller may still come": (AS_KUEUE, KUEUES, NEW, GRACE_SECONDS - 1, False, False),
    "Kueue's name, and nobody came": (AS_KUEUE, KUEUES, NEW, GRACE_SECONDS, True, False),
    "Kueue's name, and its controller set Active": (AS_KUEUE, KUEUES, set_by("kueue"), 99, False, True),
    "Kueue's name, and we set Active": (AS_KUEUE, KUEUES, set_by("cagrpc"), 0, True, False),
    "Kueue's name, and it writes to Workloads": (AS_KUEUE, KUEUES, set_by("cagrpc"), 99, False, True),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claim(name: str) -> None:
    """A check that is ours is active, and the Workload is answered; a refusal says why and what to do."""
    settings, controller, found, seconds, ours, refused = CLAIMS[name]
    writers = [written_by(KUEUES)] if "writes to Workloads" in name else []
    with KueueWorld(workload(managedFields=writers), settings=settings) as world:
        world.check(controller=controller, **found)
        world.play(seconds)
        active = known(world).active
        assert (active is not None and active.reason == "Active") == ours
        assert bool(world.requests) == ours
        refusal = world.status()["admission_checks"].get("refused", "")
        assert bool(refusal) == refused
        assert [each.text for each in world.events("Refused")] == ([refusal] if refused else [])
        assert not refused or "cannot be switched off" in refusal
        assert not refused or "write that in kueue.controller_name" in refusal


PARAMETERS = {
    "none": ({}, "spec.parameters: missing; name a ProvisioningRequestConfig"),
    "another kind": (
        {"apiGroup": "other", "kind": "Thing", "name": CHECK},
        "spec.parameters: found Thing of other, expected ProvisioningRequestConfig of kueue.x-k8s.io",
    ),
    "not there": (
        {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "other"},
        "there is no ProvisioningRequestConfig other",
    ),
    "invalid": (
        {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "broken"},
        "ProvisioningRequestConfig broken is invalid: ",
    ),
    "the KEP's group with its version": (
        {"apiGroup": "kueue.x-k8s.io/v1beta1", "kind": "ProvisioningRequestConfig", "name": CHECK}, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_without_a_configuration_it_is_not_active(name: str) -> None:
    parameters, why = PARAMETERS[name]
    with KueueWorld() as world:
        world.check(parameters=parameters)
        wrong = {"backoffLimitCount": -1}
        world.configure("broken", retryStrategy=wrong, podSetMergePolicy="Some", provisioningClassName=None)
        world.settle()
        active = known(world).active
        assert active is not None
        if not why:
            assert (active.status, active.reason) == (True, "Active")
            return
        assert (active.status, active.reason) == (False, "BadParametersRef")
        assert active.message.startswith(why)
        assert (world.state["state"], world.requests) == (PENDING, {})
        assert why.partition(" is invalid")[0] in world.state["message"]
        if name == "invalid":  # all that is wrong is said
            assert "spec.retryStrategy.backoffLimitCount" in active.message
            assert 'spec.podSetMergePolicy: "Some" is not one of' in active.message
            assert "spec.provisioningClassName: missing" in active.message


@pytest.mark.parametrize("controller", [OURS, KUEUES])
def test_flavors_with_a_topology_need_nodes_before_a_check_of_ours_is_asked(controller: str) -> None:
    settings = AS_KUEUE if controller == KUEUES else DEFAULT
    with KueueWorld(settings=settings) as world:
        world.check(controller=controller)
        world.play(GRACE_SECONDS)
        assert not world.events("TopologyNeedsNodes")
        for name in ("rack-b", "rack-a"):
            world.flavor(name, topologyName="racks")
            world.play(KueueWorld.restart, 300)
        told = [each.text for each in world.events("TopologyNeedsNodes")]
        text = world.status()["admission_checks"].get("topologies", "")
        if controller == KUEUES:
            assert (told, text) == ([], "")
            return
        assert told[-1] == text
        assert f"AdmissionCheck {CHECK} about ResourceFlavors with a topology only once they have nodes:" in text
        assert ": rack-a (topology racks), rack-b (topology racks). " in text
        assert KUEUES in text
        for name in ("rack-a", "rack-b"):
            world.flavor(name)
        world.play(1)
        assert "topologies" not in world.status()["admission_checks"]


def test_the_condition_is_written_once_and_leaves_others() -> None:
    with KueueWorld() as world:
        world.check(**set_by("cagrpc", active=False))
        world.play(KueueWorld.restart, 300)
        found = known(world)
        assert [each["type"] for each in found.raw_conditions] == ["Other", "Active"]
        assert found.active is not None
        assert found.active.status
        assert found.raw_conditions[-1]["observedGeneration"] == 2
        writes = [each for each in world.api.requests if "/admissionchecks/" in each and "GET" not in each]
        assert len(writes) == 1


def test_the_first_forms_configuration_is_read() -> None:
    """The KEP's example writes provisioningClass."""
    with KueueWorld() as world:
        world.configure(provisioningClassName=None, provisioningClass="SuperSpot")
        world.play(says(condition("Failed")))
        (request,) = world.requests.values()
        assert request["spec"]["provisioningClassName"] == "SuperSpot"
        assert "attempt 1 of 4" in world.state["message"]
        assert world.state["requeueAfterSeconds"] == 60


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_kueue_that_is_installed_later_is_found(version: str) -> None:
    with KueueWorld(version=version) as world:
        served = world.api.remove("/apis/kueue.x-k8s.io")
        world.run(10)
        assert world.status()["admission_checks"]["kueue"] == "Kueue is not installed"
        assert not world.requests
        world.api.put("/apis/kueue.x-k8s.io", served)
        world.run(70)
        assert world.status()["admission_checks"]["kueue"] == f"serves kueue.x-k8s.io/{version}"
        assert world.made == ["job-capacity-1"]
        assert (
            config()["spec"]["provisioningClassName"]
            == world.requests["job-capacity-1"]["spec"]["provisioningClassName"]
        )
