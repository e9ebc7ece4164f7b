"""Pods of PodTemplates that ProvisioningRequests ask for, before any of them exists: what their volumes and claims come
to, as these change. Which templates there are, the caller knows. Not thread-safe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from cagrpc.api.core.pod_claims import PodClaims
from cagrpc.api.core.pods import Pod
from cagrpc.api.core.selectors import PodIdentity
from cagrpc.api.core.volume_binding import VolumeDemand
from cagrpc.api.core.volumes import PodVolumes
from cagrpc.api.provisioning.objects import TemplatePod
from cagrpc.cluster.state import PlannedTemplate, PodRef
from cagrpc.cluster.view.devices import DeviceTable
from cagrpc.cluster.view.objects import ObservedPod, PodStage
from cagrpc.cluster.view.references import Reference, References
from cagrpc.cluster.view.storage import Storage
from solver.model import PodSpec


class TemplateReader:
    """Reads pods that are still to come of a template."""

    def __init__(self, storage: Storage, devices: DeviceTable, references: References) -> None:
        self._storage, self._devices, self._references = storage, devices, references

    def read(
        self,
        key: str,
        name: str,
        identity: PodIdentity,
        spec: PodSpec,
        volumes: PodVolumes,
        claims: PodClaims,
        *,
        volumes_as: PodStage = PodStage.WAITING,
        first: bool = True,
    ) -> tuple[Pod, VolumeDemand, frozenset[Reference]]:
        """Return the pod with what its volumes and claims come to, what its volumes do, and what it was read with.
        `key` is what it is known by until it is forgotten; of several pods one is the `first`. With
        `volumes_as=MOVABLE` it waits for no volume."""
        pod = Pod("", name, spec, volumes=volumes, resource_claims=claims, labels=identity.labels)
        ref = PodRef(key, identity.namespace, name.partition("/")[2])
        seen = ObservedPod(key, ref, pod, "", PodStage.WAITING, "", "", None, "")
        read, of_volumes, references = self._storage.resolved(seen, volumes_as, first=first)
        read, of_devices = self._devices.resolved(read, PodStage.WAITING)
        return read.pod, of_volumes, references | of_devices

    def forget(self, key: str) -> None:
        """Such a pod is not to come any more."""
        self._references.drop(key)
        self._devices.forget(key)


class TemplateTable:
    """The templates, each read as a pod that is still to come."""

    def __init__(self, reader: TemplateReader, devices: DeviceTable, references: References) -> None:
        self._reader, self._devices, self._references = reader, devices, references
        self._kept: AbstractSet[TemplatePod] = frozenset()
        self._keys: dict[TemplatePod, str] = {}
        self._last_number = 0
        self._planned: dict[TemplatePod, PlannedTemplate] = {}
        self._shown: Mapping[TemplatePod, PlannedTemplate] | None = {}
        self._specs: frozenset[PodSpec] = frozenset()

    def keep(self, templates: AbstractSet[TemplatePod]) -> None:
        """From now on these are the templates."""
        if templates is self._kept:
            return
        for each in self._kept - templates:
            self._reader.forget(self._keys.pop(each))
            del self._planned[each]
        for each in templates - self._kept:
            self._last_number += 1
            self._keys[each] = f"PodTemplate {each.namespace}/{each.name} {self._last_number}"
            self._read(each)
        self._kept, self._shown = templates, None

    def shown(self) -> Mapping[TemplatePod, PlannedTemplate]:
        """Return what planning makes of each; the same object as long as nothing has changed."""
        if self._shown is None:
            self._shown = dict(self._planned)
            self._specs = frozenset(each.spec for each in self._planned.values())
        return self._shown

    def specs(self) -> frozenset[PodSpec]:
        """Return the specs of all."""
        self.shown()
        return self._specs

    def _read(self, template: TemplatePod) -> None:
        key = self._keys[template]
        name = f"{template.namespace}/{template.name}-*"
        of = template.identity, template.spec, template.volumes, template.claims
        read, volumes, references = self._reader.read(key, name, *of)
        self._references.put(key, references, lambda: self._read(template))
        further = self._reader.read(key, name, *of, first=False)[0] if volumes.shared else read
        spec, after_first = (
            replace(
                each.spec,
                namespace=template.namespace,
                labels=tuple(sorted(each.labels.items())),
                unschedulable=each.spec.unschedulable or "; ".join(self._shared(template)),
            )
            for each in (read, further)
        )
        self._planned[template] = PlannedTemplate(spec, volumes.of_one_pod, after_first)
        self._shown = None

    def _shared(self, template: TemplatePod) -> Iterator[str]:
        """Yield why its pods wait for claims that others may share: which pod devices are given to first, and so on
        which node all of them are, shows once the pods are there."""
        for each in template.claims.claims:
            if each.claim and not self._devices.is_allocated(f"{template.namespace}/{each.claim}"):
                yield (
                    f"ResourceClaim {template.namespace}/{each.claim} is not allocated yet; requests are served with"
                    " claims that are, or that are made of templates (resourceClaimTemplateName)"
                )
