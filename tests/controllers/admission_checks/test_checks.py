"""AdmissionChecks: which are answered, which are left to Kueue, and what their condition reports."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.api import kueue as wire
from cagrpc.controllers.admission_checks.checks import (
    FIRST_NAME,
    GRACE_SECONDS,
    KUEUES_NAME,
    Activity,
    activity,
    claim,
    config_of,
    differs,
)
from cagrpc.controllers.settings import KueueSettings
from cagrpc.errors import InvalidInput
from tests.support.controllers.kueue_objects import condition, config

OURS = KueueSettings().controller_name
AS_KUEUE = KueueSettings(controller_name=KUEUES_NAME)


def check(controller: str = OURS, parameters: Any = None, writer: str = "", active: bool | None = None) -> wire.Check:
    named = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "config"}
    return wire.check(
        {
            "metadata": {
                "name": "capacity",
                "uid": "u",
                "resourceVersion": "3",
                "generation": 2,
                "managedFields": [
                    {"manager": "kubectl", "operation": "Apply"},
                    *([{"manager": writer, "operation": "Update", "subresource": "status"}] if writer else []),
                ],
            },
            "spec": {"controllerName": controller, "parameters": named if parameters is None else parameters},
            "status": {"conditions": [] if active is None else [condition("Active", active), condition("Other")]},
        }
    )


CLAIMS = {
    "our own name": (check(), KueueSettings(), False, 0.0, True, False),
    "the first form's name": (check(FIRST_NAME), KueueSettings(), False, 0.0, True, False),
    "a configured name": (check("x.example.com/y"), KueueSettings("x.example.com/y"), False, 0.0, True, False),
    "another name": (check("x.example.com/y"), KueueSettings(), False, 99.0, False, False),
    "Kueue's name is not ours unless configured": (check(KUEUES_NAME), KueueSettings(), False, 99.0, False, False),
    "Kueue's name, its controller may still come": (check(KUEUES_NAME), AS_KUEUE, False, 1.0, False, False),
    "Kueue's name, and nobody came": (check(KUEUES_NAME), AS_KUEUE, False, GRACE_SECONDS, True, False),
    "Kueue's name, and its controller set Active": (
        check(KUEUES_NAME, writer="kueue", active=True), AS_KUEUE, False, 99.0, False, True,
    ),
    "Kueue's name, and we set Active": (
        check(KUEUES_NAME, writer="cagrpc", active=True), AS_KUEUE, False, 0.0, True, False,
    ),
    "Kueue's name, and it writes to Workloads": (
        check(KUEUES_NAME, writer="cagrpc", active=True), AS_KUEUE, True, 99.0, False, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_claim(name: str) -> None:
    of, settings, kueue_writes, known, ours, refused = CLAIMS[name]
    found = claim(of, settings, kueue_writes=kueue_writes, known_seconds=known)
    assert (found.ours, bool(found.refusal)) == (ours, refused)


def test_a_refusal_says_why_and_what_to_do() -> None:
    found = claim(check(KUEUES_NAME, writer="kueue", active=True), AS_KUEUE, kueue_writes=False, known_seconds=0.0)
    assert "cannot be switched off" in found.refusal
    assert "cagrpc.io/provisioning-request" in found.refusal


def test_where_it_is_not_known_yet_it_is_asked_again() -> None:
    found = claim(check(KUEUES_NAME), AS_KUEUE, kueue_writes=False, known_seconds=10.0)
    assert found.again_seconds == GRACE_SECONDS - 10.0


CONFIG = wire.request_config(config())


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({}, "spec.parameters: missing; name a ProvisioningRequestConfig"),
        (
            {"apiGroup": "other", "kind": "Thing", "name": "config"},
            "spec.parameters: found Thing of other, expected ProvisioningRequestConfig of kueue.x-k8s.io",
        ),
        (
            {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "other"},
            "there is no ProvisioningRequestConfig other",
        ),
        (
            {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "broken"},
            "ProvisioningRequestConfig broken is invalid: spec.x: is wrong",
        ),
    ],
)
def test_without_a_configuration_it_is_not_active(parameters: Any, why: str) -> None:
    found = config_of(check(parameters=parameters), {"config": CONFIG, "broken": "spec.x: is wrong"})
    assert found == why
    assert activity(found) == Activity(active=False, reason="BadParametersRef", message=why)


def test_the_keps_group_with_its_version_is_one_too() -> None:
    parameters = {"apiGroup": "kueue.x-k8s.io/v1beta1", "kind": "ProvisioningRequestConfig", "name": "config"}
    assert config_of(check(parameters=parameters), {"config": CONFIG}) is CONFIG
    assert activity(CONFIG).active


def test_the_condition_is_written_once_and_leaves_others() -> None:
    before = check(active=False)
    wanted = activity(CONFIG)
    assert differs(before, wanted)
    patch = wire.active_patch(before, wanted.active, wanted.reason, wanted.message, 1_900_000_000.0)
    other, active = patch["status"]["conditions"]
    assert other["type"] == "Other"
    assert (active["status"], active["observedGeneration"], patch["metadata"]["resourceVersion"]) == ("True", 2, "3")
    after = wire.check({"metadata": {"name": "capacity"}, "spec": {"controllerName": OURS}, "status": patch["status"]})
    assert not differs(after, wanted)


# ---- invalid objects


def test_a_configuration_says_all_that_is_wrong_with_it() -> None:
    with pytest.raises(InvalidInput) as raised:
        wire.request_config(
            {
                "metadata": {"name": "x"},
                "spec": {"retryStrategy": {"backoffLimitCount": -1}, "podSetMergePolicy": "Some"},
            }
        )
    reported = str(raised.value)
    assert "spec.retryStrategy.backoffLimitCount" in reported
    assert "spec.podSetMergePolicy: 'Some' is not one of" in reported
    assert "spec.provisioningClassName: missing" in reported


def test_the_first_forms_configuration_is_read() -> None:
    # the KEP's example writes provisioningClass
    found = wire.request_config({"metadata": {"name": "x"}, "spec": {"provisioningClass": "SuperSpot"}})
    assert (found.class_name, found.retries) == ("SuperSpot", wire.Retries(3, 60, 1800))
