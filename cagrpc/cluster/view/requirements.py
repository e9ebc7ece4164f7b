"""What pods require beyond their specs: what the volumes and resource claims that they use come to, as these are now.
Whoever was read with them is read again when they change (`references`). Not thread-safe."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from cagrpc.api.core.gangs import PodGroup
from cagrpc.api.core.pods import Pod
from cagrpc.api.core.topology import in_one_domain
from cagrpc.api.core.volume_binding import VolumeDemand
from cagrpc.api.devices.objects import Device
from cagrpc.api.provisioning.objects import TemplatePod
from cagrpc.cluster.state import PodRef
from cagrpc.cluster.view.devices import DeviceTable
from cagrpc.cluster.view.objects import ObservedPod, PodStage
from cagrpc.cluster.view.references import Reference, References
from cagrpc.cluster.view.sinks import Values
from cagrpc.cluster.view.storage import Storage
from cagrpc.runtime.clock import MonotonicClock
from solver.model import Labels


class PodGroups:
    """The PodGroups of all API groups and versions that a cluster serves, by gang."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._tables: list[Values[PodGroup]] = []

    def table(self) -> Values[PodGroup]:
        """Return a table of one more of them."""
        self._tables.append(Values(self._changed))
        return self._tables[-1]

    def of(self, gang: str) -> PodGroup | None:
        """Return the PodGroup of a gang."""
        return next((each for table in self._tables if (each := table.of.get(gang))), None)

    def min_count(self, gang: str) -> int | None:
        """Return how many of a gang must be served at once; None where no PodGroup says so."""
        found = self.of(gang)
        return None if found is None else found.gang.min_count

    def resolved(self, seen: ObservedPod) -> tuple[ObservedPod, frozenset[Reference]]:
        """Return the pod with what the PodGroup of its gang asks for, and what it was read with."""
        pod = seen.pod
        if pod.gang is None:
            return seen, frozenset()
        found = self.of(pod.gang.name)
        read_with = frozenset({_group(pod.gang.name)})
        if found is None or not (found.topology_keys or found.composite):
            return seen, read_with
        spec, labels = in_one_domain(pod.spec, pod.labels, pod.gang.name, found.topology_keys)
        if found.composite:
            why = f"its PodGroup is part of the CompositePodGroup {found.composite}, and those are not supported"
            spec = replace(spec, unschedulable=spec.unschedulable or why)
        return replace(seen, pod=replace(pod, spec=spec, labels=labels)), read_with

    def _changed(self, name: str, _before: PodGroup | None, _after: PodGroup | None) -> None:
        self._references.changed(_group(name))


def _group(name: str) -> Reference:
    return "pod group", name


class Requirements:
    def __init__(
        self,
        clock: MonotonicClock,
        devices: Mapping[str, tuple[Device, ...]] | None = None,
        labels_of_groups: Mapping[str, Labels] | None = None,
    ) -> None:
        """`devices` are those of new nodes, by node group; `labels_of_groups` the labels of such nodes."""
        self.references = References()
        self.pod_groups = PodGroups(self.references)
        self.storage = Storage(self.references)
        self.devices = DeviceTable(self.references, clock, devices, labels_of_groups)

    def resolved(
        self, seen: ObservedPod, stage: PodStage | None, *, volumes_as: PodStage | None = None
    ) -> tuple[ObservedPod, VolumeDemand, frozenset[Reference]]:
        """Return the pod with what its volumes and claims come to, what its volumes do, and what it was read with. With
        `volumes_as=MOVABLE` it waits for no volume."""
        read, of_group = self.pod_groups.resolved(seen)
        read, volumes, references = self.storage.resolved(read, volumes_as or stage)
        read, of_devices = self.devices.resolved(read, stage)
        return read, volumes, references | of_group | of_devices

    def to_come(
        self,
        key: str,
        template: TemplatePod,
        *,
        volumes_as: PodStage = PodStage.WAITING,
    ) -> tuple[Pod, VolumeDemand, frozenset[Reference]]:
        """Return the same of a pod that is still to come of a template. `key` is what it is known by until it is
        forgotten."""
        pod = Pod(
            "",
            f"{template.namespace}/{template.name}",
            template.spec,
            volumes=template.volumes,
            resource_claims=template.claims,
            labels=template.identity.labels,
        )
        ref = PodRef(key, template.namespace, template.name)
        seen = ObservedPod(key, ref, pod, "", PodStage.WAITING, "", "", None, "")
        read, of_volumes, references = self.resolved(seen, PodStage.WAITING, volumes_as=volumes_as)
        return read.pod, of_volumes, references

    def forget(self, key: Hashable) -> None:
        """Forget a pod that is gone, no longer planned, or no longer expected."""
        self.references.drop(key)
        self.devices.forget(key)
