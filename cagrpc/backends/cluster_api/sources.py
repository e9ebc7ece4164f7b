"""What a node group's Machines are made from, read from the management cluster: a MachineDeployment's, MachineSet's or
MachinePool's template, or templates that the configuration names. What is made of it is `bodies`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cagrpc.api.core.resources import mapping, strings
from cagrpc.backends.cluster_api.kinds import TEMPLATE, Collection, Kinds, reference
from cagrpc.backends.cluster_api.settings import MachineSource, Reference
from cagrpc.errors import InvalidInput, NotFound
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.failures import Forbidden

T = TypeVar("T")

SPEC_FIELDS = (
    "version",
    "failureDomain",
    "minReadySeconds",
    "readinessGates",
    "deletion",
    "taints",
    "nodeDrainTimeout",
    "nodeVolumeDetachTimeout",
    "nodeDeletionTimeout",
)
"""Fields of a template's Machine spec that are taken over as they are, in the version that they were read in."""


@dataclass(frozen=True, slots=True)
class ClonedTemplate:
    """A template object, and where its clones live."""

    reference: Reference
    document: Mapping[str, Any]
    clones: Collection


@dataclass(frozen=True, slots=True)
class MachineTemplate:
    """All that the Machines of a node group are made from."""

    infrastructure: ClonedTemplate
    bootstrap: ClonedTemplate | None
    """None where they share a secret with bootstrap data."""
    data_secret: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the Machine."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the Machine's spec (`SPEC_FIELDS`)."""


class Sources:
    """Reads templates. Every call reads them anew: an order takes them as they are now."""

    def __init__(self, client: Client, kinds: Kinds) -> None:
        self._client = client
        self._kinds = kinds

    def read(self, source: MachineSource) -> MachineTemplate:
        """Return what a source consists of. Raises InvalidInput with what is missing or wrong, for people, and
        Unavailable."""
        labels: Mapping[str, str] = {}
        annotations: Mapping[str, str] = {}
        spec: Mapping[str, Any] = {}
        if source.owner is not None:
            kind, name = source.owner
            owner = self._get(lambda: self._client.get(f"{self._kinds.core(kind).path}/{name}"), f"{kind} {name}")
            template = mapping(mapping(owner, "spec", "", []), "template", "", [])
            metadata = mapping(template, "metadata", "", [])
            labels, annotations = strings(metadata, "labels", "", []), strings(metadata, "annotations", "", [])
            spec = mapping(template, "spec", "", [])
        taken = {key: spec[key] for key in SPEC_FIELDS if spec.get(key) is not None}
        infrastructure = source.infrastructure_template or self._referred(spec, "infrastructureRef", source)
        bootstrap, secret = self._bootstrap(source, mapping(spec, "bootstrap", "", []))
        return MachineTemplate(
            infrastructure=self._template(infrastructure),
            bootstrap=None if bootstrap is None else self._template(bootstrap),
            data_secret=secret,
            labels=labels,
            annotations=annotations,
            spec=taken,
        )

    def _referred(self, spec: Mapping[str, Any], field_name: str, source: MachineSource) -> Reference:
        written = spec.get(field_name)
        if not isinstance(written, Mapping):
            raise InvalidInput(f"{source}: has no {field_name}")
        found = reference(written)
        if not found.kind.endswith(TEMPLATE):
            raise InvalidInput(
                f"{source}: its infrastructureRef is {found}, which is no template for single machines (as that of a "
                "MachinePool); name one under infrastructure_template"
            )
        return found

    def _bootstrap(self, source: MachineSource, written: Mapping[str, Any]) -> tuple[Reference | None, str]:
        if source.bootstrap_template is not None or source.bootstrap_data_secret:
            return source.bootstrap_template, source.bootstrap_data_secret or ""
        referred = written.get("configRef")
        found = reference(referred) if isinstance(referred, Mapping) else None
        if found is not None and found.kind.endswith(TEMPLATE):
            return found, ""
        secret = str(written.get("dataSecretName") or "")
        if secret:
            return None, secret
        if found is not None:
            raise InvalidInput(
                f"{source}: its bootstrap configuration is {found}, which is no template; name one under "
                "bootstrap_template"
            )
        raise InvalidInput(f"{source}: has no bootstrap; name bootstrap_template or bootstrap_data_secret")

    def _template(self, of: Reference) -> ClonedTemplate:
        if not of.kind.endswith(TEMPLATE):
            raise InvalidInput(f"{of}: found kind {of.kind}, expected one that ends with {TEMPLATE}")
        collection = self._get(lambda: self._kinds.of(of), str(of))
        document = self._get(lambda: self._client.get(f"{collection.path}/{of.name}"), str(of))
        kind = of.kind.removesuffix(TEMPLATE)
        clones = self._get(
            lambda: self._kinds.collection(of.api_group, kind, collection.version), f"{kind}.{of.api_group}"
        )
        return ClonedTemplate(of, document, clones)

    def _get(self, read: Callable[[], T], what: str) -> T:
        try:
            return read()
        except (NotFound, Forbidden) as error:
            raise InvalidInput(f"{what} cannot be read: {error}") from error
