"""What a pod asks of the devices of its node: its ResourceClaims, the templates of those that are still to be made,
and extended resources that a DeviceClass backs, as the planner's claims. Which devices there are is in `matching`.

Upstream: the scheduler's DynamicResources plugin; KEP-4381, KEP-5004 (extended resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from cagrpc.api.core.pods import PodClaim, PodClaims
from cagrpc.api.core.volume_binding import without_attachments
from cagrpc.api.devices.objects import (
    MOST_ALTERNATIVES,
    MOST_CONSUMERS,
    MOST_RESULTS,
    MOST_SELECTOR_BYTES,
    ClaimSpec,
    DeviceClass,
    DevicesAsked,
    ResourceClaim,
)
from cagrpc.api.devices.selectors import Matcher, Selector, all_of, extended
from solver.model import (
    HOSTNAME,
    DeviceAlternative,
    DeviceClaim,
    DeviceRequest,
    Labels,
    NodeSelectorTerm,
    Operator,
    PodAffinityTerm,
    PodSelector,
    PodSpec,
    Requirement,
)
from solver.model.quantities import pluralize

CARRIES = "claim.cagrpc/"
"""Prefix of labels that only planning sees: on the one pod that a shared claim is planned with."""
IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that every DeviceClass provides (upstream: ResourceDeviceClassPrefix)."""


@dataclass(frozen=True, slots=True)
class ClaimObjects:
    """The objects that pods' claims refer to, by `namespace/name`; classes by name."""

    claims: Mapping[str, ResourceClaim] = field(default_factory=dict)
    templates: Mapping[str, ClaimSpec] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)

    def extended_resources(self) -> dict[str, DeviceClass]:
        """Return the classes that back extended resources: of two of one name the newer, then the first by name."""
        found: dict[str, DeviceClass] = {}
        for each in sorted(self.classes.values(), key=lambda each: (-each.created_at_seconds, each.name)):
            if each.extended_resource:
                found.setdefault(each.extended_resource, each)
            found[IMPLICIT + each.name] = each
        return found


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """What a pod's claims come to."""

    claims: tuple[DeviceClaim, ...] = ()
    """Its own."""
    shared: tuple[tuple[str, DeviceClaim], ...] = ()
    """Those that other pods may share, by `namespace/name`, not allocated yet."""
    node_terms: tuple[tuple[NodeSelectorTerm, ...], ...] = ()
    """Where the devices are that are allocated."""
    problem: str = ""
    """Why the pod cannot be scheduled for now, for people."""
    selectors: tuple[Selector, ...] = ()
    attributes: frozenset[str] = frozenset()
    refers_to: frozenset[str] = frozenset()
    """Objects that decide this, as `kind/namespace/name`, whether they are there or not."""

    @property
    def keys(self) -> set[str]:
        """The selector keys of all alternatives."""
        return keys_of((*self.claims, *(claim for _, claim in self.shared)))


NO_DEMAND = DeviceDemand()


def demand(
    namespace: str, uid: str, pod: PodClaims, objects: ClaimObjects, matcher: Matcher, *, runs: bool = False
) -> DeviceDemand:
    """Return what the pod's claims come to. `uid` is empty for a pod that does not exist yet. Of one that runs it is
    what another in its stead would need elsewhere: claims made of templates are made anew, as the templates are now."""
    return _Reading(namespace, uid, pod, objects, matcher, runs=runs).demand() if pod.claims else NO_DEMAND


class _Reading:
    def __init__(
        self, namespace: str, uid: str, pod: PodClaims, objects: ClaimObjects, matcher: Matcher, *, runs: bool
    ) -> None:
        self._namespace, self._uid, self._pod, self._runs = namespace, uid, pod, runs
        self._objects, self._matcher = objects, matcher
        self._own: list[DeviceClaim] = []
        self._shared: list[tuple[str, DeviceClaim]] = []
        self._terms: list[tuple[NodeSelectorTerm, ...]] = []
        self._problems: list[str] = []
        self._selectors: dict[str, Selector] = {}
        self._attributes: set[str] = set()
        self._refers_to: set[str] = set()
        self._ways = self._selector_bytes = 0

    def demand(self) -> DeviceDemand:
        for each in self._pod.claims:
            self._add(each)
        return DeviceDemand(
            tuple(self._own),
            tuple(self._shared),
            tuple(self._terms),
            "; ".join(self._problems),
            tuple(self._selectors.values()),
            frozenset(self._attributes),
            frozenset(self._refers_to),
        )

    def _add(self, entry: PodClaim) -> None:
        made = dict(self._pod.made)
        name = entry.claim
        if entry.template:
            if entry.name in made and not made[entry.name]:
                return  # it needed none
            name = "" if self._runs else made.get(entry.name, "")
        if not name and not entry.template:
            self._problems.append(f"resource claim {entry.name}: names neither a ResourceClaim nor a template")
            return
        claim = self._claim(name) if name else None
        if claim is not None:
            self._add_claim(claim, of_template=bool(entry.template))
            return
        if not entry.template:
            self._problems.append(f"ResourceClaim {self._namespace}/{name} is not found")
            return
        key = f"{self._namespace}/{entry.template}"
        self._refers_to.add(f"ResourceClaimTemplate/{key}")
        template = self._objects.templates.get(key)
        if template is None:
            self._problems.append(f"ResourceClaimTemplate {key} is not found")
            return
        found = self._claimed(template, f"ResourceClaimTemplate {key}")
        if found is not None:
            self._own.append(found)

    def _claim(self, name: str) -> ResourceClaim | None:
        key = f"{self._namespace}/{name}"
        self._refers_to.add(f"ResourceClaim/{key}")
        return self._objects.claims.get(key)

    def _add_claim(self, claim: ResourceClaim, *, of_template: bool) -> None:
        what = f"ResourceClaim {claim.key}"
        if claim.deleted:
            self._problems.append(f"{what} is being deleted")
        elif of_template and self._uid and claim.owner_uid and claim.owner_uid != self._uid:
            self._problems.append(f"{what} was made for another pod, and this one needs one of that name")
        elif claim.allocated:
            if self._uid not in claim.reserved_for and len(claim.reserved_for) >= MOST_CONSUMERS:
                self._problems.append(f"{what} is in use by {len(claim.reserved_for)} others, as many as can be")
            elif claim.node_terms is not None:
                if claim.node_terms:
                    self._terms.append(claim.node_terms)
                else:
                    self._problems.append(f"{what} has an allocation that can be used on no node")
        else:
            found = self._claimed(claim.spec, what)
            if found is not None and of_template:
                self._own.append(found)
            elif found is not None:
                self._shared.append((claim.key, found))

    def _claimed(self, spec: ClaimSpec, what: str) -> DeviceClaim | None:
        """Return the planner's claim; None, with the reasons among the problems, where it cannot be planned."""
        problems = [f"{spec.unsupported}, which is not supported"] if spec.unsupported else []
        self._ways += spec.ways
        self._selector_bytes += spec.selector_bytes
        if self._ways > MOST_ALTERNATIVES or self._selector_bytes > MOST_SELECTOR_BYTES:
            most = f"{MOST_ALTERNATIVES} alternatives, and {MOST_SELECTOR_BYTES // 1024} KiB of CEL expressions"
            self._problems.append(f"{what}: the pod's claims have more than planning knows: {most}")
            return None
        requests = []
        least = 0
        for request in spec.requests:
            ways = []
            for asked in request.alternatives:
                selector = self._selector(asked, f"request {request.name}", problems)
                key = all_of(selector.key) if asked.all else selector.key
                ways.append(DeviceAlternative(key, asked.count, asked.all, asked.admin_access, asked.name))
            requests.append(DeviceRequest(request.name, tuple(ways)))
            least += min((1 if each.all else each.count for each in ways), default=0)
        if least > MOST_RESULTS:
            problems.append(f"asks for {pluralize(least, 'device')}; a claim has at most {MOST_RESULTS}")
        self._problems += [f"{what}: {problem}" for problem in problems]
        if problems:
            return None
        self._attributes.update(attribute for _, attribute in spec.match_attributes)
        constraints = tuple((frozenset(of), attribute) for of, attribute in spec.match_attributes)
        return DeviceClaim(tuple(requests), constraints)

    def _selector(self, asked: DevicesAsked, where: str, problems: list[str]) -> Selector:
        self._refers_to.add(f"DeviceClass/{asked.class_name}")
        of = self._objects.classes.get(asked.class_name)
        if of is None:
            problems.append(f"{where}: DeviceClass {asked.class_name} is not found")
        selector = selector_of(asked, of)
        if why := self._matcher.problem(selector):
            problems.append(f"{where}: {why}")
        return self._selectors.setdefault(selector.key, selector)


def selector_of(asked: DevicesAsked, of: DeviceClass | None) -> Selector:
    """Return the selector of a request of this class."""
    own = replace(asked, count=1, all=False, admin_access=False, name="")
    return Selector(own, of.selectors if of else ())


def with_extended(spec: PodSpec, backed: AbstractSet[str] | Mapping[str, DeviceClass]) -> PodSpec:
    """Return the spec with its extended resources that a class backs as a claim: on each node they come from the device
    plugin or from devices (upstream: filterExtendedResources)."""
    if not any(name in backed for name, _ in spec.requests):
        return spec
    asked = tuple(
        DeviceRequest(name, (DeviceAlternative(extended(name), amount),))
        for name, amount in spec.requests
        if name in backed
    )
    requests = tuple((name, amount) for name, amount in spec.requests if name not in backed)
    return replace(spec, requests=requests, claims=(DeviceClaim(asked), *spec.claims))


def without_claims(spec: PodSpec) -> PodSpec:
    """Return the spec as its pod has it written: without what its claims and volumes come to, and with the extended
    resources that a class backs."""
    asked = (each for claim in spec.claims for each in claim.requests)
    backed = [
        (each.name, way.count) for each in asked for way in each.alternatives if way.selector == extended(each.name)
    ]
    return replace(
        spec,
        requests=tuple(sorted((*without_attachments(dict(spec.requests)).items(), *backed))),
        shared_volumes=(),
        node_terms=(),
        unschedulable="",
        claims=(),
        pod_affinity=tuple(each for each in spec.pod_affinity if not each.alone),
        pod_anti_affinity=tuple(each for each in spec.pod_anti_affinity if not each.alone),
    )


def carrying(claims: Iterable[str]) -> Labels:
    """Return the labels of the pod that these shared claims are planned with."""
    return {CARRIES + claim: "true" for claim in claims}


def with_demand(spec: PodSpec, demanded: DeviceDemand, carries: AbstractSet[str], carried: AbstractSet[str]) -> PodSpec:
    """Return the spec with its claims. Of those that it shares, `carries` are planned with this pod and `carried` with
    another, to whose node it is tied."""
    own = [claim for key, claim in demanded.shared if key in carries]
    ties = tuple(_tie(key) for key, _ in demanded.shared if key in carried and key not in carries)
    return replace(
        spec,
        claims=(*spec.claims, *demanded.claims, *own),
        node_terms=(*spec.node_terms, *demanded.node_terms),
        unschedulable="; ".join(filter(None, (spec.unschedulable, demanded.problem))),
        pod_affinity=(*spec.pod_affinity, *ties),
    )


def _tie(claim: str) -> PodAffinityTerm:
    carrier = PodSelector((Requirement(CARRIES + claim, Operator.IN, ("true",)),))
    return PodAffinityTerm(HOSTNAME, carrier, alone=True)


def keys_of(claims: Iterable[DeviceClaim]) -> set[str]:
    """Return the selector keys of all alternatives."""
    return {way.selector for claim in claims for request in claim.requests for way in request.alternatives}
