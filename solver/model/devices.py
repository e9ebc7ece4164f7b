"""Devices that nodes have and pods claim (Kubernetes' dynamic resource allocation, resource.k8s.io/v1), as values.

Which devices a selector matches is decided before: CEL never enters `solver`, a selector is an opaque key here. A claim
that several pods share is no concept here either: whoever builds the problem gives it to one of them and ties them to
one node. What claims mean together with a node's devices is decided by `solver.reduction` (which plans) and, in code of
its own, by `solver.verify` (which checks).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_PER_CLAIM = 32
"""Devices that one claim can be allocated (AllocationResultsMaxSize)."""


@dataclass(frozen=True, slots=True)
class Devices:
    """`count` devices of one node that planning cannot tell apart."""

    count: int
    selectors: frozenset[str]
    """Keys of the selectors that match them."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Values by qualified name, sorted, of attributes that some constraint names; a device may lack any."""
    taken: int = 0
    """Further ones like them that pods have: a request for all is not met while there are any, and admin access may
    share them."""
    uncertain: bool = False
    """No devices: a node may have more for these selectors than is known here, or nothing but an error. Who finds none
    of the devices that are known is served by no further alternative."""


@dataclass(frozen=True, slots=True)
class DeviceAlternative:
    """One way to meet a request (v1.ExactDeviceRequest, v1.DeviceSubRequest): `count` devices that a selector
    matches."""

    selector: str
    """An opaque key: equal keys match equal devices."""
    count: int = 1
    all: bool = False
    """allocationMode All: every device of the node that matches, at least one; `count` says nothing then."""
    admin_access: bool = False
    """Shares devices with whoever has them, and takes none."""
    name: str = ""
    """Of one of several, by which a constraint may name it: `request/name`."""


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What a claim asks for under one name: the first of the alternatives that can be had."""

    name: str
    alternatives: tuple[DeviceAlternative, ...]
    """One for `exactly`; for `firstAvailable` several, the preferred first."""


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """Devices that a pod gets together on its node, or not at all (v1.DeviceClaim)."""

    requests: tuple[DeviceRequest, ...]
    match_attributes: tuple[tuple[frozenset[str], str], ...] = ()
    """(names of requests, attribute): all devices allocated to these requests must have one value of the attribute. A
    name may be `request/alternative`; no names are all requests."""

    def attributes_of(self, request: DeviceRequest, alternative: DeviceAlternative) -> tuple[int, ...]:
        """Return the positions of the constraints that devices of this alternative must keep."""
        names = {request.name, f"{request.name}/{alternative.name}"}
        return tuple(n for n, (bound, _) in enumerate(self.match_attributes) if not bound or bound & names)

    def ends_search(self, devices: Iterable[Devices]) -> bool:
        """Return whether the scheduler may give the claim up on a node for a request for all: it does where one of
        these devices breaks a constraint, and goes on to no other choice."""
        ways = [(request, way) for request in self.requests for way in request.alternatives]
        if not self.match_attributes or not any(way.all for _, way in ways):
            return False
        there = [(each.selectors, dict(each.attributes)) for each in devices if each.count + each.taken]
        for number, (_, attribute) in enumerate(self.match_attributes):
            bound = [way for request, way in ways if number in self.attributes_of(request, way)]
            own = {values.get(attribute) for way in bound if way.all for of, values in there if way.selector in of}
            others = {values.get(attribute) for way in bound for of, values in there if way.selector in of} - {None}
            if own and (None in own or len(own | others) > 1):
                return True
        return False


Claims = tuple[DeviceClaim, ...]
"""All claims of one pod."""
