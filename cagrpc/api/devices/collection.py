"""Objects of resource.k8s.io together, as an offline problem or a cluster has them: what pods' claims come to, and what
nodes have for them. Files and the cluster's view fill it; single objects are read in `reading`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from cagrpc.api.core.pod_claims import PodClaims
from cagrpc.api.devices.claims import ClaimObjects, DeviceDemand, demand
from cagrpc.api.devices.matching import NodeMatching
from cagrpc.api.devices.objects import ClaimSpec, Device, DeviceClass, DeviceId, DevicesAsked, ResourceClaim, Slice
from cagrpc.api.devices.pools import NodeDevices, by_node
from cagrpc.api.devices.selectors import Matcher, Selector
from solver.model import PodSpec


def taken_by(claims: Iterable[ResourceClaim]) -> frozenset[DeviceId]:
    """Return the devices that are allocated to claims, shares of devices among them."""
    return frozenset(device for claim in claims for device in (*claim.devices, *claim.shares))


def typical(nodes: Iterable[NodeDevices]) -> NodeDevices | None:
    """Return the devices of the node that most resemble: of nodes of one group or instance type. None without any."""
    alike: defaultdict[object, list[NodeDevices]] = defaultdict(list)
    for node in nodes:
        if not node.incomplete:
            alike[frozenset(Counter(map(_form, node.devices)).items())].append(node)
    groups = sorted(alike.values(), key=lambda each: (len(each), len(each[0].devices)))
    return groups[-1][0] if groups else None


def _form(device: Device) -> object:
    """Return what devices of one make have in common, whatever their serial numbers are."""
    names = tuple(name for name, _ in device.attributes)
    return device.driver, names, device.capacity, device.taints, device.counters, device.allow_multiple_allocations


def extended_selectors(specs: Iterable[PodSpec], backed: Mapping[str, DeviceClass]) -> list[Selector]:
    """Return the selectors of the extended resources that these pods request and classes back."""
    names = {name for spec in specs for name, _ in spec.requests if name in backed}
    return [Selector(DevicesAsked(backed[name].name), backed[name].selectors, name) for name in sorted(names)]


class DeviceObjects:
    """All of them, at rest."""

    def __init__(
        self,
        claims: Iterable[ResourceClaim] = (),
        templates: Mapping[str, ClaimSpec] | None = None,
        classes: Iterable[DeviceClass] = (),
        slices: Iterable[Slice] = (),
    ) -> None:
        self.objects = ClaimObjects(
            {claim.key: claim for claim in claims}, templates or {}, {each.name: each for each in classes}
        )
        self.backed = self.objects.extended_resources()
        self.matcher = Matcher()
        self._nodes = by_node(slices)
        self._selectors: dict[str, Selector] = {}
        self._attributes: set[str] = set()
        self._keys: set[str] = set()

    def demand(self, namespace: str, uid: str, pod: PodClaims) -> DeviceDemand:
        """Return what a pod's claims come to; its selectors are in use from now on."""
        found = demand(namespace, uid, pod, self.objects, self.matcher)
        self._selectors.update((each.key, each) for each in found.selectors)
        self._attributes |= found.attributes
        self._keys |= found.keys
        return found

    def use_extended(self, spec: PodSpec) -> None:
        """Have the extended resources of a pod in use from now on."""
        self._selectors.update((each.key, each) for each in extended_selectors((spec,), self.backed))

    def matching(self) -> NodeMatching:
        """Return what nodes have for all selectors in use."""
        taken = taken_by(self.objects.claims.values())
        found = NodeMatching(
            self.matcher, self._selectors.values(), self._attributes, keys=self._keys, nodes=self._nodes, taken=taken
        )
        found.shared_by_nodes()
        return found
