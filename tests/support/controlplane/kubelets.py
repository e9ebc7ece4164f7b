"""Kubelets, played for Nodes that another program has made and nobody runs: Nodes become Ready, pods on them run and
end. Those of the simulated backend have a controller for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import urllib3

from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.cluster import NODES
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.processes import meanwhile

_READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "played by the tests"}
_RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
_EVERY_SECONDS = 0.2


@contextmanager
def kubelets(plane: ControlPlane, selector: str) -> Iterator[None]:
    """For the Nodes with these labels, as long as the context lasts."""
    with closing(plane.api()) as admin, meanwhile(lambda: _step(admin, selector), _EVERY_SECONDS):
        yield


def _step(admin: Api, selector: str) -> None:
    try:
        nodes = admin.items(NODES, labelSelector=selector)
        for node in nodes:
            if not _is_ready(node):
                _unless_gone(admin, f"{NODES}/{node['metadata']['name']}/status", {"status": {"conditions": [_READY]}})
        names = {node["metadata"]["name"] for node in nodes}
        for pod in admin.items("/api/v1/pods", fieldSelector="spec.nodeName!="):
            if pod["spec"]["nodeName"] in names:
                _run(admin, pod)
    except (ApiRefusal, urllib3.exceptions.HTTPError):
        return  # the API server restarts: the next step tries again


def _run(admin: Api, pod: Any) -> None:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    if "deletionTimestamp" in metadata:
        admin.delete(path, gracePeriodSeconds=0)
    elif pod["status"]["phase"] == "Pending":
        _unless_gone(admin, f"{path}/status", {"status": _RUNNING})


def _is_ready(node: Any) -> bool:
    conditions = node["status"].get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _unless_gone(admin: Api, path: str, patch: Any) -> None:
    try:
        admin.merge(path, patch)
    except ApiRefusal as refused:
        if refused.status not in (404, 409):
            raise
