"""Pods that do not exist yet: of the PodTemplates that ProvisioningRequests ask for, and of each DaemonSet on a new
node; what their volumes and claims come to, as these change. Which templates there are, the caller knows; DaemonSets'
pods on nodes that stand are pods like others (`pods`). Not thread-safe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from cagrpc.api.core.constraints import Surroundings
from cagrpc.api.core.pods import daemon, pod_claims, pod_spec
from cagrpc.api.core.selectors import PodIdentity
from cagrpc.api.core.volumes import pod_volumes
from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.encoding.messages import message_to_dict, parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.api.provisioning.objects import TemplatePod
from cagrpc.cluster.state import PlannedTemplate
from cagrpc.cluster.view.classes import Classes
from cagrpc.cluster.view.context import OF_RUNTIME_CLASSES, ReadingContext
from cagrpc.cluster.view.objects import Named, PodStage
from cagrpc.cluster.view.requirements import Requirements
from cagrpc.cluster.view.shares import BEYOND, Constraint, constraints_of, room_for
from cagrpc.cluster.view.sinks import Values
from cagrpc.errors import InvalidInput, in_one_line
from solver.model import PodSpec


class TemplateTable:
    """The templates, each read as a pod that is still to come."""

    def __init__(self, requirements: Requirements, classes: Classes) -> None:
        """Constraints of templates count in the shares of `classes`."""
        self._requirements = requirements
        self._classes = classes
        self._constraints: dict[TemplatePod, frozenset[Constraint]] = {}
        self._kept: AbstractSet[TemplatePod] = frozenset()
        self._keys: dict[TemplatePod, str] = {}
        self._last_number = 0
        self._planned: dict[TemplatePod, PlannedTemplate] = {}
        self._shown: Mapping[TemplatePod, PlannedTemplate] | None = {}
        self._specs: frozenset[PodSpec] = frozenset()

    def keep(self, templates: AbstractSet[TemplatePod]) -> None:
        """Note that from now on these are the templates."""
        if templates is self._kept:
            return
        for each in self._kept - templates:
            self._requirements.forget(self._keys[each])
            self._count(each, frozenset())
            del self._keys[each], self._constraints[each]
            self._planned.pop(each, None)
        for each in templates - self._kept:
            self._last_number += 1
            key = self._keys[each] = f"PodTemplate {each.namespace}/{each.name} {self._last_number}"
            self._requirements.references.due(key, partial(self._read, each))
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
        of = replace(template, name=f"{template.name}-*")
        read, volumes, references = self._requirements.to_come(key, of)
        spec = replace(
            read.spec,
            namespace=template.namespace,
            labels=tuple(sorted(read.labels.items())),
            unschedulable=read.spec.unschedulable or "; ".join(self._shared(template)),
        )
        if not self._count(template, constraints_of(spec)):
            references |= {room_for(key)}
            spec = PodSpec(spec.requests, namespace=spec.namespace, labels=spec.labels, unschedulable=BEYOND)
        self._requirements.references.put(key, references, partial(self._read, template))
        self._planned[template] = PlannedTemplate(spec, volumes.of_one_pod)
        self._shown = None

    def _count(self, template: TemplatePod, constraints: frozenset[Constraint]) -> bool:
        """Count a template's constraints in the share of its namespace, instead of those before; return whether there
        is room for them. Otherwise none are counted."""
        namespace, key, shares = template.namespace, self._keys[template], self._classes.shares
        before = self._constraints.pop(template, frozenset())
        room = shares.remove(namespace, before - constraints)
        room |= shares.forget(namespace, key)
        admitted = shares.admits(namespace, constraints - before)
        if admitted:
            shares.add(namespace, constraints - before)
            self._constraints[template] = constraints
        else:
            shares.remove(namespace, before & constraints)
            shares.leave_out(namespace, key)
        if room and admitted:
            self._classes.made_room(namespace)
        return admitted

    def _shared(self, template: TemplatePod) -> Iterator[str]:
        """Yield why its pods wait for claims that others may share: which pod devices are given to first, and so on
        which node all of them are, shows once the pods are there."""
        for each in template.claims.claims:
            if each.claim and not self._requirements.devices.is_allocated(f"{template.namespace}/{each.claim}"):
                yield (
                    f"ResourceClaim {template.namespace}/{each.claim} is not allocated yet; requests are served with"
                    " claims that are, or that are made of templates (resourceClaimTemplateName)"
                )


class DaemonSetPod(NamedTuple):
    """A DaemonSet's pod."""

    template: TemplatePod
    source: bytes | None = None
    """What it was read from, where it names a RuntimeClass."""


def daemon_set(data: bytes, context: ReadingContext | None = None) -> Named[DaemonSetPod]:
    """Decode a DaemonSet. With `context` its pod is one as admission leaves it, without what a RuntimeClass adds that
    there is not. Raises InvalidInput for an invalid one."""
    found = parse(kubernetes_pb2.DaemonSet, data)
    metadata, template = found.metadata, found.spec.template
    problems: Problems = []
    labels = template.metadata.labels
    identity = PodIdentity(metadata.namespace, {key: labels[key] for key in labels})
    spec = message_to_dict(template.spec)
    if context is not None:
        spec = context.admitted(spec) or spec
    converted = pod_spec(spec, "spec.template.spec", problems, Surroundings(identity))
    volumes = pod_volumes(
        spec, f"{metadata.name}-*", "spec.template.spec", problems
    )  # its pods have names of their own
    claims = pod_claims({"spec": spec}, problems)
    if problems:
        raise InvalidInput(f"DaemonSet {metadata.namespace}/{metadata.name}: {in_one_line(problems)}")
    own = tuple(sorted(identity.labels.items()))
    pod = TemplatePod(metadata.namespace, own, converted, name=f"{metadata.name}-*", volumes=volumes, claims=claims)
    source = data if template.spec.runtimeClassName else None
    return Named(f"{metadata.namespace}/{metadata.name}", DaemonSetPod(pod, source))


class DaemonSetTable(Values[DaemonSetPod]):
    """The table of DaemonSets."""

    def __init__(self, context: ReadingContext, requirements: Requirements) -> None:
        super().__init__(self._put_pod)
        self._context, self._requirements = context, requirements
        self._specs: dict[str, PodSpec] = {}

    def _put_pod(self, name: str, _before: DaemonSetPod | None, after: DaemonSetPod | None) -> None:
        if after is not None:
            self._read(name)
        else:
            self._requirements.forget(_key(name))
            del self._specs[name]

    def specs(self) -> Iterator[PodSpec]:
        """Yield the pod of each on a new node, by name."""
        for name in sorted(self._specs):
            yield self._specs[name]

    def _read(self, name: str) -> None:
        """Read a pod with what its volumes and claims take. What they still lack makes it no smaller: it comes once
        that is there."""
        found = self.of[name]
        now = found if found.source is None else daemon_set(found.source, self._context).value
        read, _, references = self._requirements.to_come(_key(name), now.template, volumes_as=PodStage.MOVABLE)
        if found.source is not None:
            references |= {OF_RUNTIME_CLASSES}
        self._requirements.references.put(_key(name), references, lambda: self._read(name))
        mine = replace(read.spec, namespace=now.template.namespace, labels=now.template.labels, unschedulable="")
        self._specs[name] = daemon(mine)


def _key(name: str) -> str:
    return f"DaemonSet {name}"
