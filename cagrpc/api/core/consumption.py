"""Pods that consume a ProvisioningRequest: their two annotations, and which of them is missing. How such pods are
handled is decided elsewhere; the request itself is in `provisioning`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.api.encoding.json_documents import mapping, strings

PREFIXES = ("autoscaling.x-k8s.io", "cluster-autoscaler.kubernetes.io")
"""The second is older; the first has precedence where a pod has both (upstream: provisioningrequest/pods)."""

CONSUME_KEYS = tuple(f"{prefix}/consume-provisioning-request" for prefix in PREFIXES)
"""Annotations that name the request, in the pod's namespace."""
CLASS_KEYS = tuple(f"{prefix}/provisioning-class-name" for prefix in PREFIXES)
"""Annotations that name its provisioning class."""


@dataclass(frozen=True, slots=True)
class Consumption:
    """The names in a pod's annotations; both are required, one of them may be missing."""

    request: str
    class_name: str

    @property
    def missing(self) -> str:
        """A message about the missing annotation; empty where both are present."""
        if not self.request:
            return _missing(CONSUME_KEYS, f"the provisioning class {self.class_name}")
        if not self.class_name:
            return _missing(CLASS_KEYS, f"the ProvisioningRequest {self.request} to consume")
        return ""


def consumption(annotations: Mapping[str, str]) -> Consumption | None:
    """Read the annotations; return None where the pod has neither. Either prefix is valid for either name."""
    request, class_name = _first(annotations, CONSUME_KEYS), _first(annotations, CLASS_KEYS)
    return Consumption(request, class_name) if request or class_name else None


def consumes(namespace: str, annotated: Mapping[str, Any], requests: Collection[tuple[str, str]]) -> bool:
    """Return whether the annotations of a pod or workload name one of these requests, each by namespace and name."""
    annotations = strings(mapping(annotated, "metadata"), "annotations")
    return any((namespace, annotations.get(key, "")) in requests for key in CONSUME_KEYS)


def _first(annotations: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((value for key in keys if (value := annotations.get(key))), "")


def _missing(keys: tuple[str, ...], named: str) -> str:
    return (
        f"its annotations name {named}, and the annotation {keys[0]} is missing: it is an ordinary pod, for which nodes"
        " are added; pods that consume a ProvisioningRequest need both"
    )
