"""Builders of claims and devices for named cases."""

from __future__ import annotations

from typing import Any

from solver import DeviceAlternative, DeviceClaim, DeviceRequest, Devices

PCIE = "resource.kubernetes.io/pcieRoot"
NUMA = "example.com/numa"


def devices(*kinds: str, count: int = 1, taken: int = 0, **attributes: str) -> Devices:
    """Return devices that match the selectors `kinds`. `attributes`: `pcie` or `numa`."""
    names = {"pcie": PCIE, "numa": NUMA}
    values = tuple(sorted((names[key], value) for key, value in attributes.items()))
    return Devices(count, frozenset(kinds), values, taken)


def asks(selector: str = "gpu", count: int = 1, **other: Any) -> DeviceRequest:
    """Return a request that is called as what it selects."""
    return DeviceRequest(selector, (DeviceAlternative(selector, count, **other),))


def claim(selector: str = "gpu", count: int = 1, **other: Any) -> tuple[DeviceClaim, ...]:
    """Return a pod's claims: one, with one request."""
    return (DeviceClaim((asks(selector, count, **other),)),)


def together(attribute: str, *requests: DeviceRequest) -> tuple[DeviceClaim, ...]:
    """Return a pod's claims: one, of which all devices share the value of an attribute."""
    return (DeviceClaim(requests, ((frozenset(each.name for each in requests), attribute),)),)


def first_of(*alternatives: tuple[str, int]) -> tuple[DeviceClaim, ...]:
    """Return a pod's claims: one, with one request for the first of the alternatives (selector, count)."""
    asked = tuple(DeviceAlternative(selector, count, name=f"{n}") for n, (selector, count) in enumerate(alternatives))
    return (DeviceClaim((DeviceRequest("gpu", asked),)),)


GPUS = (devices("gpu", count=8),)
MIXED = (devices("gpu", "big", count=4), devices("gpu", count=4))
PAIRS = tuple(devices(kind, pcie=f"{root}") for root in range(4) for kind in ("gpu", "nic"))
PAIR = together(PCIE, asks("gpu"), asks("nic"))
"""A GPU and a network card at one root."""
SOCKETS = (devices("gpu", count=4, numa="0"), devices("gpu", count=4, numa="1"))
