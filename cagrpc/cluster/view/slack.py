"""What the resource slack reads of a cluster: pod counts by size, mirrored and excluded workloads, and where pause pods
are. What is made of it is in `cagrpc.controllers.slack`. Not thread-safe."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from cagrpc.api.core.pods import Pod, is_nowhere
from cagrpc.api.core.selectors import PodProjection
from cagrpc.api.core.slack import Mark
from cagrpc.api.core.volume_binding import without_volumes
from cagrpc.cluster.exclusion import Exclusion
from cagrpc.cluster.state import SlackSeen
from cagrpc.cluster.view.classes import EquivalenceClass, Shape, count_in
from cagrpc.cluster.view.objects import ObservedPod, PodStage
from cagrpc.cluster.view.shares import BEYOND, ConstraintShares, constraints_of
from cagrpc.cluster.view.workloads import Workload
from solver.model import PodSpec
from solver.slack.model import Copies, Placement, PodCount

_COUNTED = (PodStage.WAITING, PodStage.NOMINATED, PodStage.MOVABLE)


class Counted(NamedTuple):
    """The group that a pod is counted in."""

    shape: Shape
    namespace: str
    owner: str
    excluded: bool
    """Whether it is excluded by itself or by the configuration; its workload may exclude it too."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A pod or workload with slack annotations."""

    name: str
    owner: str
    """The workload of a pod."""
    mark: Mark
    pod: Pod | None

    @property
    def whole(self) -> PodSpec | None:
        """The spec with its namespace and labels; None where nothing is mirrored."""
        if self.pod is None or not self.mark.mirrors or is_nowhere(self.pod.spec):
            return None
        identity = self.pod.identity
        return replace(self.pod.spec, namespace=identity.namespace, labels=tuple(sorted(identity.labels.items())))


class SlackTable:
    def __init__(self, exclusion: Exclusion) -> None:
        self._exclusion = exclusion
        self._counts: Counter[Counted] = Counter()
        self._pods: tuple[PodCount, ...] | None = ()
        """None: outdated; the same below."""
        self._parents: dict[str, str] = {}
        self._workloads: dict[str, _Source] = {}
        self._of_pods: dict[str, _Source] = {}
        self._mirrored: tuple[_Source, ...] | None = ()
        self._beyond: tuple[str, ...] = ()
        """Names of sources whose constraints are beyond the share of their namespace: they are not mirrored."""
        self._pause: dict[str, tuple[str, str]] = {}

    def counted(self, seen: ObservedPod, of: EquivalenceClass, stage: PodStage) -> Counted | None:
        """Return what a pod of this class is counted as, None for not at all."""
        if stage not in _COUNTED:
            return None
        key = of.key
        excluded = bool(seen.mark and seen.mark.excluded) or self._exclusion.covers(key.namespace, seen.pod.labels)
        return Counted(key.shape, key.namespace, seen.ref.workload, excluded)

    def count(self, counted: Counted, pods: int) -> None:
        """Add so many of them, or remove them."""
        self._pods = None
        count_in(self._counts, counted, pods)

    def put_pod(self, seen: ObservedPod) -> None:
        """Set a pod's slack annotations, and its node if it is a pause pod."""
        self.drop_pod(seen.key)
        if seen.mark is not None:
            self._mirrored = None
            name = f"pod/{seen.ref.namespace}/{seen.ref.name}"
            self._of_pods[seen.key] = _Source(name, seen.ref.workload, seen.mark, seen.pod)
        if seen.pause_shape is not None and seen.node:
            self._pause[seen.key] = seen.pause_shape, seen.node

    def drop_pod(self, key: str) -> None:
        if self._of_pods.pop(key, None) is not None:
            self._mirrored = None
        self._pause.pop(key, None)

    def known_pods(self) -> Mapping[str, object]:
        """Return the pods of the table, by UID."""
        return {**self._of_pods, **self._pause}

    def put_workload(self, before: Workload | None, after: Workload | None) -> None:
        if before is not None:
            self._parents.pop(before.key, None)
            self._say(before.key, None)
        if after is not None:
            of_deployment = after.parent.startswith("Deployment/")
            if of_deployment:
                self._parents[after.key] = after.parent
            # The Deployment controller copies annotations to its ReplicaSets: the Deployment's own count.
            source = _Source(_name(after.key), "", after.mark, after.pod) if after.mark else None
            self._say(after.key, None if of_deployment else source)
        if (before.parent if before else "") != (after.parent if after else ""):
            self._mirrored = self._pods = None

    def expected(self) -> frozenset[PodSpec]:
        """Return the specs of mirrored pods, with their namespaces and labels."""
        return frozenset(whole for each in self._mirrors() if (whole := each.whole))

    def shown(self, seen: PodProjection) -> SlackSeen:
        said = (*self._workloads.values(), *self._of_pods.values())
        mirrors = tuple(_mirror(each, each.pod, seen) for each in self._mirrors() if each.pod is not None)
        warnings = [f"{each.name}: {each.mark.warning}" for each in said if each.mark.warning]
        warnings += (f"{name}: is not mirrored: {BEYOND}" for name in self._beyond)
        return SlackSeen(self._all_pods(), mirrors, tuple(sorted(warnings)))

    def _say(self, key: str, source: _Source | None) -> None:
        """Set a workload's slack annotations."""
        before = self._workloads.pop(key, None)
        if source is not None:
            self._workloads[key] = source
        if before is not None or source is not None:
            self._mirrored = self._pods = None

    def _root(self, owner: str) -> str:
        """Return the top-level workload: the Deployment of a ReplicaSet, or the workload itself."""
        return self._parents.get(owner, owner)

    def _all_pods(self) -> tuple[PodCount, ...]:
        if self._pods is None:
            excluding = {key for key, each in self._workloads.items() if each.mark.excluded}
            found: Counter[tuple[Shape, str, bool]] = Counter()
            for each, count in self._counts.items():
                found[each.shape, each.namespace, each.excluded or self._root(each.owner) in excluding] += count
            self._pods = tuple(
                PodCount(without_volumes(shape.spec), count, namespace, excluded)
                for (shape, namespace, excluded), count in sorted(found.items(), key=_order)
            )
        return self._pods

    def _mirrors(self) -> tuple[_Source, ...]:
        """Return the mirrored sources, by name. A workload's own annotation wins over its pods', one of which
        counts."""
        if self._mirrored is None:
            workloads = {key: each for key, each in self._workloads.items() if each.whole}
            found = [*workloads.values()]
            of_pods: defaultdict[str, list[_Source]] = defaultdict(list)
            for each in self._of_pods.values():
                if each.whole:
                    of_pods[self._root(each.owner) or each.name].append(each)
            for root, pods in of_pods.items():
                if root not in workloads:
                    found.append(replace(min(pods, key=lambda each: each.name), name=_name(root)))
            self._mirrored = tuple(self._within_shares(sorted(found, key=lambda each: each.name)))
        return self._mirrored

    def _within_shares(self, sources: Iterable[_Source]) -> list[_Source]:
        shares, found, beyond = ConstraintShares(), [], []
        for each in sources:
            whole = each.whole
            if whole is None:
                continue
            constraints = constraints_of(whole)
            if shares.admits(whole.namespace, constraints):
                shares.add(whole.namespace, constraints)
                found.append(each)
            else:
                beyond.append(each.name)
        self._beyond = tuple(beyond)
        return found

    def pause_pods(self) -> Placement:
        found: dict[str, Counter[str]] = {}
        for shape, node in self._pause.values():
            found.setdefault(shape, Counter())[node] += 1
        return {shape: dict(sorted(there.items())) for shape, there in sorted(found.items())}


def _mirror(source: _Source, pod: Pod, seen: PodProjection) -> Copies:
    return Copies(source.name, seen.planned(pod.spec, pod.identity), source.mark.mirrors, pod.identity.namespace)


def _name(key: str) -> str:
    """Return `deployment/namespace/name` for `Deployment/namespace/name`."""
    kind, _, name = key.partition("/")
    return f"{kind.lower()}/{name}"


def _order(entry: tuple[tuple[Shape, str, bool], int]) -> tuple[str, bool, tuple[tuple[str, int], ...]]:
    (shape, namespace, excluded), _ = entry
    return namespace, excluded, shape.spec.requests
