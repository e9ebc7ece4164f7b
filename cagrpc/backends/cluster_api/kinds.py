"""Versions and resources that the management cluster serves: of Cluster API's own kinds, and of those that templates
refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.backends.cluster_api.plugin import Reference
from cagrpc.errors import InvalidInput, NotFound
from cagrpc.kube.client.client import Client

CORE = "cluster.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""The preferred one first."""
TEMPLATE = "Template"
"""The ending of the kinds that are cloned."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The objects of one kind in one namespace."""

    group: str
    version: str
    kind: str
    plural: str
    namespace: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{self.version}/namespaces/{self.namespace}/{self.plural}"


class Kinds:
    """Looks kinds up once. `version` is that of Cluster API's own kinds."""

    def __init__(self, client: Client, namespace: str) -> None:
        """Raises InvalidInput where the cluster serves no version that is known here, and Unavailable."""
        self._client = client
        self._namespace = namespace
        self._known: dict[tuple[str, str, str], Collection] = {}
        self.version = self._core_version()

    def core(self, kind: str) -> Collection:
        return self.collection(CORE, kind, self.version)

    def collection(self, group: str, kind: str, version: str = "") -> Collection:
        """Return the collection of a kind, in the group's preferred version where none is given. Raises NotFound where
        the cluster does not know it, and Unavailable."""
        key = (group, kind, version)
        if key not in self._known:
            of = version or str(self._client.get(f"/apis/{group}")["preferredVersion"]["version"])
            for resource in self._client.get(f"/apis/{group}/{of}").get("resources") or ():
                if resource["kind"] == kind and "/" not in resource["name"]:
                    self._known[key] = Collection(group, of, kind, str(resource["name"]), self._namespace)
                    break
            else:
                raise NotFound(f"{self._client.server} knows no kind {kind} in {group}/{of}")
        return self._known[key]

    def of(self, reference: Reference) -> Collection:
        """Return the collection of a referred object. Raises as `collection`."""
        return self.collection(reference.api_group, reference.kind, reference.version)

    def _core_version(self) -> str:
        try:
            served = {str(each["version"]) for each in self._client.get(f"/apis/{CORE}").get("versions") or ()}
        except NotFound:
            served = set()
        for version in VERSIONS:
            if version in served:
                return version
        found = f"only {', '.join(sorted(served))}" if served else "none"
        raise InvalidInput(
            f"backend.cluster_api: {self._client.server} is no management cluster: found {found} of {CORE}, expected "
            f"{' or '.join(VERSIONS)}; give its kubeconfig"
        )


def reference(written: Mapping[str, Any]) -> Reference:
    """Return a reference as Cluster API writes it: with an apiGroup in v1beta2, with an apiVersion before."""
    group, _, version = str(written.get("apiVersion") or "").rpartition("/")
    return Reference(str(written.get("apiGroup") or group), str(written["kind"]), str(written["name"]), version)
