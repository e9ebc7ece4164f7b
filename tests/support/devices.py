"""Objects of resource.k8s.io, in Kubernetes' JSON shape: a driver of GPUs, its class, claims and slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DRIVER = "gpu.example.com"
API = "/apis/resource.k8s.io/v1/"
CLAIMS, TEMPLATES, CLASSES, SLICES = (
    API + each for each in ("resourceclaims", "resourceclaimtemplates", "deviceclasses", "resourceslices")
)
_VERSION = {"apiVersion": "resource.k8s.io/v1"}


def device_class(name: str = "gpu", **spec: Any) -> Any:
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    return {**_VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}


def claim_spec(count: int = 1, **exactly: Any) -> Any:
    counted = {} if exactly.get("allocationMode") == "All" else {"count": count}
    asked = {"deviceClassName": "gpu", **counted, **exactly}
    return {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}


def claim(name: str, *devices: str, count: int = 1, on: str = "n1", **metadata: Any) -> Any:
    """Return a claim; it is allocated where it has devices."""
    results = [{"driver": DRIVER, "pool": on, "device": each, "request": "gpu"} for each in devices]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [on]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    return {
        **_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": claim_spec(count),
        "status": {"allocation": allocation} if devices else {},
    }


def claim_template(name: str = "t", count: int = 1, *, spec: Any = None, namespace: str = "default") -> Any:
    metadata = {"name": name, "namespace": namespace}
    return {
        **_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": spec or claim_spec(count)},
    }


def gpus(
    count: int = 4, on: str = "n1", generation: int = 1, slices: int = 1, each: Sequence[Mapping[str, Any]] = ()
) -> Any:
    """Return the slice of a node: so many devices alike, or these."""
    pool = {"name": on, "generation": generation, "resourceSliceCount": slices}
    devices = [dict(device) for device in each] or [{"name": f"gpu-{n}"} for n in range(count)]
    spec = {"driver": DRIVER, "nodeName": on, "pool": pool, "devices": devices}
    return {**_VERSION, "kind": "ResourceSlice", "metadata": {"name": f"{on}-gpus"}, "spec": spec}


_DEVICE = {
    "name": "gpu-0",
    "attributes": {"model": {"string": "a"}, "n": {"int": 1}, "ok": {"bool": True}, "v": {"version": "1.2.3"}},
    "capacity": {"memory": {"value": "40Gi"}},
    "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": "20Gi"}}}],
    "taints": [{"key": "bad", "effect": "NoSchedule"}],
}
SEEDS: Mapping[str, tuple[Any, ...]] = {
    "resourceclaims": (claim("c", "gpu-0"),),
    "resourceclaimtemplates": (claim_template(),),
    "deviceclasses": (device_class(extendedResourceName="example.com/gpu"),),
    "resourceslices": (gpus(each=[_DEVICE]),),
}
"""Of each resource an object with most of its fields."""
