"""What objects of resource.k8s.io come to together: devices that are taken, those of a typical node, the selectors of
extended resources. Single objects are read in `reading`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from cagrpc.api.devices.objects import Device, DeviceClass, DeviceId, DevicesAsked, ResourceClaim
from cagrpc.api.devices.pools import NodeDevices
from cagrpc.api.devices.selectors import Selector
from solver.model import PodSpec


def taken_by(claim: ResourceClaim) -> frozenset[DeviceId]:
    """Return the devices that are allocated to a claim, shares of devices among them."""
    return frozenset((*claim.devices, *claim.shares))


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
