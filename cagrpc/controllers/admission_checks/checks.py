"""AdmissionChecks: which of them are ours, and whether they are active. Pure; Workloads are `reconcile`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cagrpc.api.kueue import CONFIG_KIND, GROUP, Check, RequestConfig
from cagrpc.controllers.settings import KueueSettings
from cagrpc.kube.client.client import USER_AGENT

FIRST_NAME = "ProvisioningRequestController"
"""The controllerName of the KEP's first version, which is always ours: Kueue itself does not use it."""
KUEUES_NAME = f"{GROUP}/provisioning-request"
"""The controllerName of Kueue's own controller; also its name as a field manager."""

GRACE_SECONDS = 30.0
"""Kueue's own controller, if it runs, has set a check's condition within this time."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Whether a check is ours to answer."""

    ours: bool
    refusal: str = ""
    """Why it is not, though its controllerName is the configured one."""
    again_seconds: float | None = None
    """When to ask again, where it is not known yet."""


def claim(check: Check, settings: KueueSettings, *, kueue_writes: bool, known_seconds: float) -> Claim:
    """Return whether a check is ours. `kueue_writes`: Kueue's own controller has been observed to write to Workloads.
    `known_seconds`: how long ago the check was first observed. Kueue's controller sets `Active` on each new check of
    its name, so one that is still without it after the grace period has no other controller."""
    if check.controller not in (settings.controller_name, FIRST_NAME):
        return Claim(ours=False)
    if check.controller != KUEUES_NAME:
        return Claim(ours=True)
    by_another = check.active is not None and USER_AGENT not in check.status_writers
    if kueue_writes or by_another:
        return Claim(
            ours=False,
            refusal=(
                f"AdmissionCheck {check.name} is left to Kueue: its own controller for {KUEUES_NAME} runs, as it does"
                " wherever there are ProvisioningRequests, and cannot be switched off. Make an AdmissionCheck with"
                f' another controllerName, such as "{KueueSettings().controller_name}", and write that in'
                " kueue.controller_name"
            ),
        )
    if check.active is None and known_seconds < GRACE_SECONDS:
        return Claim(ours=False, again_seconds=GRACE_SECONDS - known_seconds)
    return Claim(ours=True)


def config_of(check: Check, configs: Mapping[str, RequestConfig | str]) -> RequestConfig | str:
    """Return the configuration that a check refers to, or why there is none. `configs` by name, or why one is
    invalid."""
    if check.parameters is None:
        return f"spec.parameters: missing; name a {CONFIG_KIND}"
    group, kind, name = check.parameters
    if (group, kind) != (GROUP, CONFIG_KIND):
        return f"spec.parameters: found {kind} of {group or 'no group'}, expected {CONFIG_KIND} of {GROUP}"
    found = configs.get(name)
    if found is None:
        return f"there is no {CONFIG_KIND} {name}"
    return f"{CONFIG_KIND} {name} is invalid: {found}" if isinstance(found, str) else found


@dataclass(frozen=True, slots=True)
class Activity:
    """The wanted condition `Active` of a check that is ours."""

    active: bool
    reason: str
    message: str


def activity(config: RequestConfig | str) -> Activity:
    """Return the condition for a check with this configuration, or why it has none."""
    if isinstance(config, str):
        return Activity(active=False, reason="BadParametersRef", message=config)
    return Activity(
        active=True, reason="Active", message=f"requests of class {config.class_name} are made for Workloads"
    )


def differs(check: Check, wanted: Activity) -> bool:
    """Return whether the condition has to be written."""
    found = check.active
    return found is None or (found.status, found.reason, found.message) != (
        wanted.active,
        wanted.reason,
        wanted.message,
    )
