"""From ResourceSlices to the devices of each node: pools, their generations and shared counters. Who may have a device
is `matching`'s.

Upstream: dynamic-resource-allocation/structured (GatherPools).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from cagrpc.api.devices.objects import Counters, Device, Slice


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of one node, or of a group's next one, whoever has them."""

    devices: tuple[Device, ...] = ()
    counters: tuple[tuple[str, str, Counters], ...] = ()
    """(driver, pool, what the pool has of its shared counters)"""
    incomplete: bool = False
    """Whether a pool of the node is being published, or is invalid: its devices are given to nobody until it is whole,
    and nobody is given all devices of any kind."""


def _is_valid(slices: Iterable[Slice], counters: Counters) -> bool:
    """Return whether the names of devices are unique on each node, and the shared counters that they take from are
    there (upstream: validateDeviceNames, validateDeviceCounterConsumption)."""
    there = {(of, name) for of, name, _ in counters}
    names = [(node, device.name) for each in slices for node, device in each.devices]
    uses = {(of, name) for each in slices for _, device in each.devices for of, name, _ in device.counters}
    return len(set(names)) == len(names) and uses <= there


def by_node(slices: Iterable[Slice]) -> dict[str, NodeDevices]:
    """Return the devices of each node; under the empty name those that several nodes can use. Of a pool only the newest
    generation counts, and only once all of its slices are there, without two devices of one name on a node."""
    pools: defaultdict[tuple[str, str], list[Slice]] = defaultdict(list)
    for each in slices:
        pools[each.driver, each.pool].append(each)
    devices: defaultdict[str, list[Device]] = defaultdict(list)
    counters: defaultdict[str, list[tuple[str, str, Counters]]] = defaultdict(list)
    incomplete: set[str] = set()
    for (driver, pool), found in sorted(pools.items()):
        generation = max(each.generation for each in found)
        newest = sorted((each for each in found if each.generation == generation), key=lambda each: each.name)
        nodes = {
            node for each in newest for node in ((each.node,) if each.node else (node for node, _ in each.devices))
        }
        shared_counters = tuple(sorted(counter for each in newest for counter in each.counters))
        if len(newest) != newest[0].slices_of_pool or not _is_valid(newest, shared_counters):
            incomplete |= nodes
            continue
        for each in newest:
            for node, device in each.devices:
                devices[node].append(device)
        for node in nodes if shared_counters else ():
            if node:
                counters[node].append((driver, pool, shared_counters))
    return {
        node: NodeDevices(tuple(devices[node]), tuple(counters[node]), node in incomplete)
        for node in {*devices, *counters, *incomplete}
    }
