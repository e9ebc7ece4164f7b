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
    """Whether a pool of the node is being published: its devices are given to nobody until it is whole."""


def by_node(slices: Iterable[Slice]) -> dict[str, NodeDevices]:
    """Return the devices of each node; under the empty name those that several nodes can use. Of a pool only the newest
    generation counts, and only once all of its slices are there."""
    pools: defaultdict[tuple[str, str], list[Slice]] = defaultdict(list)
    for each in slices:
        pools[each.driver, each.pool].append(each)
    devices: defaultdict[str, list[Device]] = defaultdict(list)
    counters: defaultdict[str, list[tuple[str, str, Counters]]] = defaultdict(list)
    incomplete: set[str] = set()
    for (driver, pool), found in sorted(pools.items()):
        generation = max(each.generation for each in found)
        newest = sorted((each for each in found if each.generation == generation), key=lambda each: each.name)
        nodes = {node for each in newest for node in (each.node, *(node for node, _ in each.devices)) if node}
        if len(newest) != newest[0].slices_of_pool:
            incomplete |= nodes
            continue
        shared_counters = tuple(sorted(counter for each in newest for counter in each.counters))
        for each in newest:
            for node, device in each.devices:
                devices[node].append(device)
        for node in nodes:
            if shared_counters:
                counters[node].append((driver, pool, shared_counters))
    return {
        node: NodeDevices(tuple(devices[node]), tuple(counters[node]), node in incomplete)
        for node in {*devices, *counters, *incomplete}
    }
