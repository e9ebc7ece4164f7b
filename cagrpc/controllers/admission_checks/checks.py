"""AdmissionChecks: which of them are ours, and whether they can work. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cagrpc.api.kueue import CONFIG_KIND, GROUP, Check, RequestConfig
from cagrpc.controllers.settings import KueueSettings
from cagrpc.kube.client.client import USER_AGENT

FIRST_NAME = "ProvisioningRequestController"
"""The controllerName of the KEP's first form, which is always ours: Kueue itself does not know it."""
KUEUES_NAME = f"{GROUP}/provisioning-request"
"""Kueue's own controller's; also its name as a field manager."""

GRACE_SECONDS = 30.0
"""Kueue's own controller has set a check's condition after so long, if it runs."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Whether a check is ours to answer."""

    ours: bool
    refusal: str = ""
    """Why it is not, though the configuration would have it so."""
    again_seconds: float | None = None
    """It is not known yet; to be asked again then."""


def claim(check: Check, settings: KueueSettings, *, kueue_writes: bool, known_seconds: float) -> Claim:
    """`kueue_writes`: Kueue's own controller has been seen to write to Workloads. `known_seconds`: for how long the
    check has been seen. Kueue's controller sets `Active` on each check of its name as soon as it is there, so one
    that nobody has set it on for a while has no other controller."""
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
    """The configuration that a check names, or why there is none, in a sentence. `configs` by name, or why one cannot
    be read."""
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
    """What the condition `Active` of a check of ours is to say."""

    active: bool
    reason: str
    message: str


def activity(config: RequestConfig | str) -> Activity:
    if isinstance(config, str):
        return Activity(active=False, reason="BadParametersRef", message=config)
    return Activity(
        active=True, reason="Active", message=f"requests of class {config.class_name} are made for Workloads"
    )


def differs(check: Check, wanted: Activity) -> bool:
    """Whether the condition is to be written."""
    found = check.active
    return found is None or (found.status, found.reason, found.message) != (
        wanted.active,
        wanted.reason,
        wanted.message,
    )
