"""What deploy/ has, put into the control plane as `kubectl apply --server-side` would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.controlplane.api import Api, ApiRefusal
from tests.support.controlplane.processes import wait_for

DEPLOY = Path(__file__).parents[3] / "deploy"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_REMOVED = (
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Deployment",
    "FlowSchema",
    "NetworkPolicy",
    "PriorityClass",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
JOURNAL = ("/apis/cagrpc.io/v1alpha1/increments", "/apis/cagrpc.io/v1alpha1/fleetrecords")


def documents(name: str) -> list[dict[str, Any]]:
    """Of one file of deploy/."""
    return [document for document in yaml.safe_load_all((DEPLOY / name).read_text()) if document]


def apply(admin: Api, document: dict[str, Any], **more: str) -> Any:
    """Server-side, so that unknown fields are refused. `more` are options of the request."""
    path = _path(admin, document)
    options = {"fieldManager": "deploy", "force": "true", "fieldValidation": "Strict", **more}
    # Server-side apply takes YAML, of which JSON is a part.
    return admin.ask(
        "PATCH", path, json.loads(json.dumps(document)), kind="application/apply-patch+yaml", query=options
    )


def install_crds(admin: Api, name: str = "crds.yaml") -> None:
    """Served when this returns."""
    for document in documents(name):
        apply(admin, document)
        wait_until_served(admin, document)


def wait_until_served(admin: Api, definition: Mapping[str, Any]) -> None:
    name = definition["metadata"]["name"]
    wait_for(lambda: established(admin, name), f"{name} is served")


def remove_crds(admin: Api, name: str = "crds.yaml") -> None:
    """Gone when this returns, with all objects."""
    names = {document["metadata"]["name"] for document in documents(name)}
    for each in names:
        admin.delete(f"{CRDS}/{each}")
    wait_for(lambda: not names & {found["metadata"]["name"] for found in admin.items(CRDS)}, "they are gone")


def remove(admin: Api, *names: str) -> None:
    """What these files define, allow and run; gone when this returns. What only stands there stays."""
    found = [document for name in dict.fromkeys(names) for document in documents(name)]
    found = [each for each in found if each["kind"] in _REMOVED]
    paths = [_path(admin, each) for each in found]
    for path, each in zip(paths, found, strict=True):
        admin.delete(path)
        if each["kind"] == "Deployment":
            _end_pods(admin, each)
    for path in paths:
        wait_for(lambda path=path: not _there(admin, path), f"{path} is gone")  # type: ignore[misc]


def _end_pods(admin: Api, deployment: Mapping[str, Any]) -> None:
    """There is no kubelet that would."""
    pods = f"/api/v1/namespaces/{deployment['metadata']['namespace']}/pods"
    labels = deployment["spec"]["selector"]["matchLabels"]
    of_it = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}

    def gone() -> bool:
        for pod in admin.items(pods, **of_it):
            admin.delete(f"{pods}/{pod['metadata']['name']}", gracePeriodSeconds=0)
        return not admin.items(pods, **of_it)

    wait_for(gone, "its pods are gone")


def clear_journal(admin: Api) -> None:
    for path in JOURNAL:
        admin.delete(path)


def established(admin: Api, name: str) -> bool:
    conditions = admin.get(f"{CRDS}/{name}").get("status", {}).get("conditions") or ()
    return any(found["type"] == "Established" and found["status"] == "True" for found in conditions)


def _there(admin: Api, path: str) -> bool:
    try:
        admin.get(path)
    except ApiRefusal as refused:
        if refused.status != 404:
            raise
        return False
    return True


def _path(admin: Api, document: dict[str, Any]) -> str:
    version, metadata = document["apiVersion"], document["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    (found,) = [r for r in admin.get(root)["resources"] if r["kind"] == document["kind"] and "/" not in r["name"]]
    where = f"/namespaces/{metadata['namespace']}" if found["namespaced"] else ""
    return f"{root}{where}/{found['name']}/{metadata['name']}"
