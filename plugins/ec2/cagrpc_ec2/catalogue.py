"""The catalogue of an AWS Region as CSV: instance types, zones and prices as EC2's and the price list's API describe
them. What pods may use of a node is computed as Karpenter's AWS provider does (its `instancetype/types.go`), so the
figures are those of the embedded catalogue. The calls are in `account`; `cagrpc catalogue` reads and writes it.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any

from solver.model import ATTACHABLE_VOLUMES

VOLUMES = f"{ATTACHABLE_VOLUMES}ebs.csi.aws.com"
COLUMNS = (
    "instance_type", "arch", "category", "family", "generation", "size", "vcpu", "memory_mib", "gpu_name",
    "allocatable_cpu_milli", "allocatable_memory_mib", "allocatable_pods", "allocatable_gpu", "usd_per_hour", "zone",
    "capacity_type", "available", VOLUMES,
)  # fmt: skip

_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
_NAME = re.compile(r"([a-z]+)(?:-[0-9]+tb)?([0-9]+)[^.]*")
_OVERHEAD = 0.075
"""Of a machine's memory, for the hypervisor and the kernel."""
_CONTIGUOUS_MIB = 64
"""Set aside for devices by kernels of arm64."""
_EVICTION_MIB = 100
_RESERVED_MIB, _RESERVED_MIB_A_POD = 255, 11
"""The kubelet's, in the images that EKS has."""
_RESERVED_OF_CORES = ((1, 0.06), (1, 0.01), (2, 0.005), (math.inf, 0.0025))
"""Cores, and the part of them that the kubelet reserves."""
_MOST_VOLUMES, _MOST_VOLUMES_XEN = 27, 39
"""Attachments beside one network interface: of Nitro instances of which EC2 tells no number, and of all older ones."""
_ROOT_VOLUME, _WARM_INTERFACE = 1, 1
"""What a new node has attached: of interfaces a second one, which the VPC CNI keeps ready by default."""
_PODS_BESIDE_ADDRESSES = 2
"""Pods in the host's network that are on each node."""


@dataclass(frozen=True, slots=True)
class Market:
    """What one Region offers, apart from the types themselves."""

    zones: Mapping[str, Iterable[str]]
    """Zones by instance type."""
    on_demand: Mapping[str, float]
    """US dollars per hour by instance type."""
    spot: Mapping[tuple[str, str], float]
    """The same by instance type and zone."""
    reserved: Mapping[tuple[str, str], int]
    """Instances of capacity reservations by instance type and zone."""


def rows(described: Iterable[Mapping[str, Any]], market: Market) -> Iterator[dict[str, Any]]:
    """Yield a row for every offering of these types that has a price, by type, zone and capacity type. A reservation's
    price is 0: it is paid for in any case."""
    for instance_type in sorted(described, key=lambda each: str(each["InstanceType"])):
        own = _columns(instance_type)
        if own is None:
            continue
        name = str(instance_type["InstanceType"])
        classes = set(instance_type.get("SupportedUsageClasses", ()))
        for zone in sorted(market.zones.get(name, ())):
            if "on-demand" in classes and name in market.on_demand:
                yield {**own, "usd_per_hour": market.on_demand[name], "zone": zone, "capacity_type": "on-demand"}
            if "spot" in classes and (name, zone) in market.spot:
                yield {**own, "usd_per_hour": market.spot[name, zone], "zone": zone, "capacity_type": "spot"}
            if available := market.reserved.get((name, zone), 0):
                yield {**own, "usd_per_hour": 0, "zone": zone, "capacity_type": "reserved", "available": available}


def text_of(found: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as the CSV of a catalogue."""
    written = StringIO()
    writer = csv.DictWriter(written, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "usd_per_hour": f"{row['usd_per_hour']:.10g}"} for row in found)
    return written.getvalue()


def _columns(described: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the columns of a type; None where Kubernetes' nodes cannot be of it (Macs, types without addresses)."""
    name = str(described["InstanceType"])
    family, _, size = name.partition(".")
    named = _NAME.match(name)
    supported = described.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
    arch = next((_ARCHITECTURES[each] for each in supported if each in _ARCHITECTURES), None)
    pods = _pods(described.get("NetworkInfo", {}))
    if named is None or arch is None or pods is None:
        return None
    vcpu, memory_mib = int(described["VCpuInfo"]["DefaultVCpus"]), int(described["MemoryInfo"]["SizeInMiB"])
    gpu_name, gpus = _accelerator(described)
    usable_mib = (memory_mib - (_CONTIGUOUS_MIB if arch == "arm64" else 0)) * (1 - _OVERHEAD)
    allocatable_mib = math.floor(usable_mib - _EVICTION_MIB - _RESERVED_MIB - _RESERVED_MIB_A_POD * pods)
    if allocatable_mib < 1:
        return None
    return {
        "instance_type": name,
        "arch": arch,
        "category": named[1],
        "family": family,
        "generation": named[2],
        "size": size,
        "vcpu": vcpu,
        "memory_mib": memory_mib,
        "gpu_name": gpu_name,
        "allocatable_cpu_milli": vcpu * 1000 - _reserved_cpu_milli(vcpu),
        "allocatable_memory_mib": allocatable_mib,
        "allocatable_pods": pods,
        "allocatable_gpu": gpus,
        VOLUMES: _volumes(described),
    }


def _volumes(described: Mapping[str, Any]) -> int:
    """Return how many volumes the EBS CSI driver may attach to a new instance. What EC2 tells has instance stores and
    accelerators taken off already; network interfaces share it unless the limit is for volumes alone."""
    if described.get("Hypervisor") == "xen":
        return _MOST_VOLUMES_XEN - _ROOT_VOLUME
    limit = described.get("EbsInfo", {})
    most = int(limit.get("MaximumEbsAttachments") or _MOST_VOLUMES)
    shared = 0 if limit.get("AttachmentLimitType") == "dedicated" else _WARM_INTERFACE
    return max(1, most - _ROOT_VOLUME - shared)


def _pods(network: Mapping[str, Any]) -> int | None:
    """Return how many pods get an address, by the interfaces of the default network card."""
    cards = {card.get("NetworkCardIndex"): card for card in network.get("NetworkCards", ())}
    card = cards.get(network.get("DefaultNetworkCardIndex", 0), {})
    interfaces = int(card.get("MaximumNetworkInterfaces") or network.get("MaximumNetworkInterfaces") or 0)
    addresses = int(network.get("Ipv4AddressesPerInterface") or 0)
    return interfaces * (addresses - 1) + _PODS_BESIDE_ADDRESSES if interfaces and addresses > 1 else None


def _reserved_cpu_milli(vcpu: int) -> int:
    left, reserved = float(vcpu), 0.0
    for cores, part in _RESERVED_OF_CORES:
        taken = min(left, cores)
        reserved += taken * part * 1000
        left -= taken
    return math.floor(reserved)


def _accelerator(described: Mapping[str, Any]) -> tuple[str, int]:
    """Return name and number of the GPUs or AWS's own accelerators; fractions of a GPU count as none."""
    devices = described.get("GpuInfo", {}).get("Gpus") or described.get("NeuronInfo", {}).get("NeuronDevices") or ()
    if not devices:
        return "", 0
    name = re.sub(r"[^a-z0-9.]+", "-", str(devices[0].get("Name", "")).lower()).strip("-")
    fraction = float(devices[0].get("GpuPartitionSize", 1)) < 1
    return name, 0 if fraction else sum(int(each.get("Count", 0)) for each in devices)
