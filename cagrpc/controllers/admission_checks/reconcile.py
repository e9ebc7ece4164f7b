"""The decision for one Workload: which requests to create and to delete, and the new states and messages of its checks;
and for one AdmissionCheck: whether it is ours, and active. Pure; reading and writing are in `controller`.

Source: Kueue's KEP-1136 in both of its versions, and where they leave something open Kueue's own controller. Different
here: requests are deleted at once when the Workload has lost its quota, and when they were created for an earlier
reservation; a check that is Ready stays so though its configuration changes, and so does that of an admitted Workload
whose configuration is gone; every pod set that was merged into another gets its update."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.api.kueue import (
    CONFIG_KIND,
    GROUP,
    PENDING,
    READY,
    REJECTED,
    RETRY,
    Check,
    CheckUpdate,
    Flavor,
    KueueWorkload,
    RequestConfig,
    Retries,
)
from cagrpc.api.provisioning.objects import Condition
from cagrpc.controllers.admission_checks.model import (
    CheckWrites,
    Creation,
    OwnRequest,
    OwnTemplate,
    PodSetPods,
    Purpose,
    Removal,
    pod_set_updates,
    request_body,
    request_name,
    requested_pods,
    template_body,
    template_name,
)
from cagrpc.controllers.provisioning.model import ConditionType, ProvisioningRequest
from cagrpc.controllers.settings import KueueSettings, RetryMode
from cagrpc.kube.client.client import USER_AGENT
from solver.model.money import hourly
from solver.model.quantities import some_of


def asked(request: str, attempt: int, retries: Retries) -> str:
    """Return the message for a request without an answer."""
    return f"ProvisioningRequest {request} (attempt {attempt} of {retries.limit + 1}) waits for an answer"


def refused(why: str, attempt: int, retries: Retries) -> str:
    """Return the message for a failed attempt."""
    return f"attempt {attempt} of {retries.limit + 1} failed: {why}"


def explained(request: ProvisioningRequest, condition: Condition) -> str:
    """Return the message of a condition, with the cost, the proven bound and the node groups where they are known."""
    return "; ".join(filter(None, (condition.message or condition.reason, _cost(request), _nodes(request))))


def _cost(request: ProvisioningRequest) -> str:
    details = request.details
    cost, bound, gap = (details.get(key) for key in ("costPerHour", "lowerBoundPerHour", "gap"))
    if not cost:
        return ""
    proven = f", at least {_dollars(bound)}" if bound else ""
    return f"costs {_dollars(cost)}{proven}{_gap(gap)}"


def _dollars(text: str) -> str:
    """Return an amount of a ProvisioningRequest's details as people read it; as it is written where it is none."""
    try:
        return hourly(float(text))
    except ValueError:
        return text


def _gap(text: str | None) -> str:
    try:
        return f" (gap {float(text):.2%})" if text else ""
    except ValueError:
        return f" (gap {text})"


def _nodes(request: ProvisioningRequest) -> str:
    groups = request.details.get("nodeGroups")
    return f"node groups {groups}" if groups else ""


def over(workload: KueueWorkload) -> bool:
    """Return whether nothing is to be provisioned for it now: it has no quota, or is about to lose it."""
    return not workload.reserved_at or workload.evicted or workload.finished or workload.deleting or not workload.active


def reconcile(
    workload: KueueWorkload,
    configs: Mapping[str, RequestConfig | str],
    requests: Sequence[OwnRequest],
    templates: Sequence[OwnTemplate],
    flavors: Mapping[str, Flavor],
    settings: KueueSettings,
    now_seconds: float,
) -> CheckWrites:
    """Return the writes for a Workload. `configs` has an entry for each check that is ours: its configuration, or why
    there is none. `requests` and `templates` are those of this Workload. Times since the epoch."""
    decisions = [] if over(workload) else [
        _Check(workload, written, configs[name], requests, flavors, settings, now_seconds).decide()
        for written in workload.checks
        if (name := str(written.get("name"))) in configs
    ]  # fmt: skip
    creations = tuple(each.creation for each in decisions if each.creation is not None)
    kept = {each.kept.request.name for each in decisions if each.kept is not None}
    made = {each.name for each in creations}
    gone = [each for each in requests if each.request.name not in kept]
    unused = [each for each in templates if each.request not in kept]
    updates = {
        each.check: each.update
        for each in decisions
        if each.update is not None and each.update.differs(_written(workload, each.check))
    }
    return CheckWrites(
        in_the_way=(
            *(_removal(each) for each in gone if each.request.name in made),
            *(_removal(each) for each in unused if each.request in made and not _fits(each, creations)),
        ),
        creations=creations,
        updates=updates,
        removals=(
            *(_removal(each) for each in gone if each.request.name not in made),
            *(_removal(each) for each in unused if each.request not in made),
        ),
        again_seconds=min((each.again_seconds for each in decisions if each.again_seconds is not None), default=None),
    )


@dataclass(frozen=True, slots=True)
class _Decision:
    """The decision on one check."""

    check: str
    update: CheckUpdate | None = None
    """The new state; None leaves it unchanged."""
    kept: OwnRequest | None = None
    """The request to keep; the others of this check are deleted."""
    creation: Creation | None = None
    again_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Check:
    """One check of the Workload, and what its decision depends on."""

    workload: KueueWorkload
    written: Mapping[str, Any]
    config: RequestConfig | str
    requests: Sequence[OwnRequest]
    flavors: Mapping[str, Flavor]
    settings: KueueSettings
    now_seconds: float

    @property
    def name(self) -> str:
        return str(self.written.get("name"))

    @property
    def state(self) -> str:
        return str(self.written.get("state") or PENDING)

    @property
    def first_attempt(self) -> int:
        """The number of the next first attempt: Kueue counts how often the check was `Retry`, and the requests of those
        attempts are deleted."""
        count = self.written.get("retryCount")
        return 1 + (count if isinstance(count, int) else 0)

    def decide(self) -> _Decision:
        """Return the decision, from the check's state, its configuration and its current request."""
        current = self._current()
        if isinstance(self.config, str):
            return self._inactive(self.config, current)
        if self.state in (RETRY, REJECTED) or (self.state == READY and current is None):
            return _Decision(self.name, kept=current)  # for the first two Kueue releases the quota next
        pods = requested_pods(self.workload, self.config, self.flavors)
        if isinstance(pods, str) or not pods:
            return self._without(pods if isinstance(pods, str) else "", current)
        if current is None or (self.state != READY and not self._matches(self.config, pods, current)):
            return self._asked(self.config, pods, self.first_attempt, replaces=current is not None)
        return self._answered(self.config, pods, current)

    def _inactive(self, why: str, current: OwnRequest | None) -> _Decision:
        if self.workload.admitted:
            return _Decision(self.name, kept=current)  # running pods are not stopped because a configuration is gone
        return _Decision(self.name, CheckUpdate(PENDING, f"the check is not active: {why}"))

    def _without(self, why: str, current: OwnRequest | None) -> _Decision:
        """Return the decision without pods to request; `why` they are not known, empty where there are none."""
        if self.state == READY:
            return _Decision(self.name, kept=current)
        if why:
            return _Decision(self.name, CheckUpdate(PENDING, why), kept=current)
        return _Decision(self.name, CheckUpdate(READY, "no pod set asks for what would have to be provisioned"))

    def _current(self) -> OwnRequest | None:
        """Return the latest request for the current quota reservation."""
        found = [
            each
            for each in self.requests
            if (each.purpose.check, each.purpose.reserved_at) == (self.name, self.workload.reserved_at)
            and not each.request.deleting
        ]
        return max(found, key=lambda each: each.purpose.attempt, default=None)

    def _matches(self, config: RequestConfig, pods: Sequence[PodSetPods], own: OwnRequest) -> bool:
        """Return whether the request is the one that would be created now."""
        request = own.request
        wanted = [(template_name(request.name, each.pod_sets[0]), each.count) for each in pods]
        return (
            request.class_name == config.class_name
            and dict(request.parameters) == _parameters(config, self.workload)
            and [(each.template, each.count) for each in request.pod_sets] == wanted
        )

    def _asked(
        self, config: RequestConfig, pods: Sequence[PodSetPods], attempt: int, *, replaces: bool = False
    ) -> _Decision:
        """Return the decision to create a request. Earlier ones are deleted after that; before it, where it needs their
        name."""
        name = request_name(self.workload.name, self.name, attempt)
        purpose = Purpose(self.workload.uid, self.name, attempt, self.workload.reserved_at)
        creation = Creation(
            self.name,
            self.workload.namespace,
            name,
            tuple(template_body(self.workload, purpose, name, each) for each in pods),
            request_body(self.workload, purpose, name, config.class_name, _parameters(config, self.workload), pods),
            replaces,
        )
        update = CheckUpdate(PENDING, asked(name, attempt, config.retries))
        return _Decision(self.name, update, creation=creation)

    def _answered(self, config: RequestConfig, pods: Sequence[PodSetPods], own: OwnRequest) -> _Decision:
        """Return the decision that follows from the request's conditions."""
        request, workload = own.request, self.workload
        revoked = _true(request, ConditionType.CAPACITY_REVOKED)
        served = _true(request, ConditionType.PROVISIONED) or _true(request, ConditionType.CAPACITY_AVAILABLE)
        failed = _true(request, ConditionType.FAILED) or (None if served else _unavailable(request))
        expired = _true(request, ConditionType.BOOKING_EXPIRED)
        if revoked is not None:
            # Its nodes are gone, and the pods that still run cannot be completed to the whole.
            return _Decision(self.name, CheckUpdate(REJECTED, explained(request, revoked)), own)
        if workload.admitted:
            return _Decision(self.name, kept=own)
        if failed is not None or expired is not None:
            return self._failed(config, pods, own, failed or expired)
        if served is not None:
            if self.state == READY:
                return _Decision(self.name, kept=own)
            updates = pod_set_updates(pods, request, config.selectors)
            return _Decision(self.name, CheckUpdate(READY, explained(request, served), updates), own)
        return _Decision(self.name, CheckUpdate(PENDING, _progress(own, config)), own)

    def _failed(
        self, config: RequestConfig, pods: Sequence[PodSetPods], own: OwnRequest, why: Condition | None
    ) -> _Decision:
        assert why is not None
        attempt, retries = own.purpose.attempt, config.retries
        message = refused(explained(own.request, why), attempt, retries)
        if attempt > retries.limit:
            return _Decision(self.name, CheckUpdate(REJECTED, message), own)
        pause = retries.pause_seconds(attempt)
        if self.settings.retry_mode is RetryMode.RELEASE:
            text = f"{message}; Kueue may admit it again in {pause} s"
            return _Decision(self.name, CheckUpdate(RETRY, text, requeue_seconds=pause), own)
        due = why.since_seconds + pause
        if self.now_seconds >= due:
            return self._asked(config, pods, attempt + 1)
        update = CheckUpdate(PENDING, f"{message}; asked for again at {timestamp(due)}")
        return _Decision(self.name, update, own, again_seconds=due - self.now_seconds)


def _parameters(config: RequestConfig, workload: KueueWorkload) -> dict[str, str]:
    return {**config.parameters, **workload.parameters}


def _true(request: ProvisioningRequest, condition: ConditionType) -> Condition | None:
    found = request.conditions.get(condition)
    return found if found is not None and found.status else None


def _unavailable(request: ProvisioningRequest) -> Condition | None:
    """Return the condition of a capacity check that found none."""
    found = request.conditions.get(ConditionType.CAPACITY_AVAILABLE)
    return found if found is not None and not found.status else None


def _progress(own: OwnRequest, config: RequestConfig) -> str:
    """Return the message for a request that is neither served nor failed, with its estimate."""
    found = own.request.conditions.get(ConditionType.PROVISIONED) or _true(own.request, ConditionType.ACCEPTED)
    if found is None:
        return asked(own.request.name, own.purpose.attempt, config.retries)
    return explained(own.request, found)


def _written(workload: KueueWorkload, check: str) -> Mapping[str, Any]:
    return next(each for each in workload.checks if str(each.get("name")) == check)


def _fits(template: OwnTemplate, creations: Collection[Creation]) -> bool:
    """Return whether an existing template is one that would be created now."""
    return any(
        body["metadata"]["name"] == template.name and body["metadata"]["annotations"] == dict(template.annotations)
        for creation in creations
        for body in creation.templates
    )


def _removal(of: OwnRequest | OwnTemplate) -> Removal:
    if isinstance(of, OwnTemplate):
        return Removal("podtemplates", of.namespace, of.name, of.uid)
    return Removal("provisioningrequests", of.request.namespace, of.request.name, of.request.uid)


FIRST_NAME = "ProvisioningRequestController"
"""The controllerName of the KEP's first version, which is always ours: Kueue itself does not use it."""
KUEUES_NAME = f"{GROUP}/provisioning-request"
"""The controllerName of Kueue's own controller; also its name as a field manager."""
TOPOLOGY_FROM_NOTHING = (
    f'delays the assignment of a topology for the controllerName "{KUEUES_NAME}" alone: give queues of such flavors an'
    " AdmissionCheck of that name, whose ProvisioningRequests cagrpc answers as well"
)
"""What Kueue (0.19) does where there is no node yet."""
_MOST_NAMED = 5

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


def topology_first(check: Check, flavors: Mapping[str, Flavor]) -> str:
    """Return which flavors Kueue has to have nodes of before it asks this check, which is ours; empty where none."""
    if check.controller == KUEUES_NAME:
        return ""
    of = sorted(f"{each.name} (topology {each.topology})" for each in flavors.values() if each.topology)
    if not of:
        return ""
    return (
        f"Kueue asks AdmissionCheck {check.name} about ResourceFlavors with a topology only once they have nodes:"
        f" {some_of(of, _MOST_NAMED)}. It {TOPOLOGY_FROM_NOTHING}"
    )


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


def activity(config: RequestConfig | str) -> tuple[bool, str, str]:
    """Return status, reason and message of the condition `Active` for a check of ours with this configuration, or why
    it has none."""
    if isinstance(config, str):
        return False, "BadParametersRef", config
    return True, "Active", f"requests of class {config.class_name} are made for Workloads"


def differs(check: Check, wanted: tuple[bool, str, str]) -> bool:
    """Return whether the condition has to be written."""
    found = check.active
    return found is None or (found.status, found.reason, found.message) != wanted
