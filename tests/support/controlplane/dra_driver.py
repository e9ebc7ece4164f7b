"""A DRA driver of GPUs, played: it publishes a ResourceSlice for each Node with its label, some time after the Node is
there, and takes it away with it. Preparing devices is a kubelet's; which ones a claim gets, the scheduler's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import urllib3

from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.cluster import NODES
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.processes import meanwhile
from tests.support.devices import CLASSES, DRIVER, SLICES

_EVERY_SECONDS = 0.3


@contextmanager
def dra_driver(
    plane: ControlPlane, devices_of: Callable[[Any], Sequence[dict[str, Any]]], classes: Sequence[Any]
) -> Iterator[None]:
    """As long as the context lasts. `devices_of` gives the devices of a Node, none where the driver is not for it."""
    with closing(plane.api()) as admin:
        for each in classes:
            admin.ensure(CLASSES, each)
        try:
            with meanwhile(lambda: _step(admin, devices_of), _EVERY_SECONDS):
                yield
        finally:
            admin.delete(SLICES)
            admin.delete(CLASSES)


def _step(admin: Api, devices_of: Callable[[Any], Sequence[dict[str, Any]]]) -> None:
    try:
        published = {each["spec"]["nodeName"]: each for each in admin.items(SLICES)}
        nodes = {node["metadata"]["name"]: node for node in admin.items(NODES)}
        for name in published.keys() - nodes.keys():
            admin.delete(f"{SLICES}/{published[name]['metadata']['name']}")
        for name in nodes.keys() - published.keys():
            devices = devices_of(nodes[name])
            if devices:
                pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
                spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": list(devices)}
                admin.ensure(SLICES, {"metadata": {"name": f"{name}-{DRIVER}"}, "spec": spec})
    except (ApiRefusal, urllib3.exceptions.HTTPError):
        return  # a Node that has just gone, or the API server restarts: the next step tries again
