"""DaemonSets, and what the pod of each takes of a new node, with a RuntimeClass, volumes and claims as these are now.
Its pods on nodes that stand are pods like others (`pods`). Not thread-safe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cagrpc.api.core.constraints import Surroundings
from cagrpc.api.core.pod_claims import PodClaims, pod_claims
from cagrpc.api.core.pods import daemon, pod_spec
from cagrpc.api.core.resources import Problems
from cagrpc.api.core.selectors import PodIdentity
from cagrpc.api.core.volumes import PodVolumes, pod_volumes
from cagrpc.api.encoding.messages import message_to_dict, parse
from cagrpc.api.gen import kubernetes_pb2
from cagrpc.cluster.view.context import OF_RUNTIME_CLASSES, ReadingContext
from cagrpc.cluster.view.objects import Named, PodStage
from cagrpc.cluster.view.references import References
from cagrpc.cluster.view.templates import TemplateReader
from cagrpc.errors import InvalidInput, in_one_line
from solver.model import PodSpec


@dataclass(frozen=True, slots=True)
class DaemonSetPod:
    """A DaemonSet's pod, as its template has it."""

    identity: PodIdentity
    spec: PodSpec
    volumes: PodVolumes
    claims: PodClaims
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
    source = data if template.spec.runtimeClassName else None
    return Named(f"{metadata.namespace}/{metadata.name}", DaemonSetPod(identity, converted, volumes, claims, source))


class DaemonSetTable:
    """The table of DaemonSets."""

    def __init__(self, context: ReadingContext, reader: TemplateReader, references: References) -> None:
        self._context, self._reader, self._references = context, reader, references
        self._of: dict[str, DaemonSetPod] = {}
        self._specs: dict[str, PodSpec] = {}

    def keys(self) -> Iterable[str]:
        return list(self._of)

    def put(self, named: Named[DaemonSetPod]) -> None:
        if self._of.get(named.key) != named.value:
            self._of[named.key] = named.value
            self._read(named.key)

    def drop(self, name: str) -> None:
        if self._of.pop(name, None) is not None:
            self._reader.forget(_key(name))
            del self._specs[name]

    def specs(self) -> Iterator[PodSpec]:
        """Yield the pod of each on a new node, by name."""
        for name in sorted(self._specs):
            yield self._specs[name]

    def _read(self, name: str) -> None:
        """Read a pod with what its volumes and claims take. What they still lack makes it no smaller: it comes once
        that is there."""
        found = self._of[name]
        now = found if found.source is None else daemon_set(found.source, self._context).value
        read, _, references = self._reader.read(
            _key(name), f"{name}-*", now.identity, now.spec, now.volumes, now.claims, volumes_as=PodStage.MOVABLE
        )
        if found.source is not None:
            references |= {OF_RUNTIME_CLASSES}
        self._references.put(_key(name), references, lambda: self._read(name))
        self._specs[name] = daemon(replace(read.spec, unschedulable=""))


def _key(name: str) -> str:
    return f"DaemonSet {name}"
