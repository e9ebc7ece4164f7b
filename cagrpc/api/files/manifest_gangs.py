"""The gangs of an offline problem: collects minimum counts and pods from the objects of files, in any order, then
divides the pod sets. Fields are read in `gangs`, files in `manifests`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cagrpc.api.core.gangs import GangCounts, GangMembership, gang_of_pod, incomplete, pod_group
from cagrpc.api.core.pods import is_placeholder
from cagrpc.api.core.resources import Problems, mapping, strings
from cagrpc.api.core.selectors import PodIdentity
from cagrpc.api.files.documents import ManifestDocument
from solver.model import PodSet


@dataclass
class GangsOfFiles:
    """The gangs of all files. `label` is the key of the label that names a pod's gang; invalid fields are added to
    `problems`."""

    label: str
    problems: Problems
    incomplete: list[str] = field(default_factory=list)
    """Messages about gangs that are not planned, complete once `divided` is exhausted."""
    _counts: GangCounts = field(default_factory=GangCounts)

    def add_object(self, document: ManifestDocument) -> bool:
        """Add a PodGroup; return False for an object that is none."""
        here: Problems = []
        found = pod_group(document.body, here)
        self._report(document, here)
        if found:
            self._counts.add_object(found)
        return found is not None

    def add_pods(
        self, document: ManifestDocument, pod: Mapping[str, Any], path: str, *, bound: int = 0, held_back: int = 0
    ) -> str | None:
        """Count the pods of a pod or template and return the name of their gang. `bound` and `held_back` of them (as in
        `gangs.divide`) are not to be planned."""
        here: Problems = []
        gang = self._membership(document, pod, path, here)
        self._report(document, here)
        if gang is None:
            return None
        self._counts.add_pods(gang, bound=bound, held_back=held_back)
        return gang.name

    def _membership(
        self, document: ManifestDocument, pod: Mapping[str, Any], path: str, problems: Problems
    ) -> GangMembership | None:
        metadata = mapping(pod, "metadata", "", [])
        annotations = strings(metadata, "annotations", "", [])
        if is_placeholder(annotations):
            return None  # it has a workload's template but is useful alone
        labels = strings(metadata, "labels", "", [])
        spec_path = f"{path}.spec".removeprefix(".")
        group = mapping(mapping(pod, "spec", "", []), "schedulingGroup", spec_path, problems).get("podGroupName")
        return gang_of_pod(document.namespace, labels, annotations, str(group or ""), self.label, problems, path)

    def divided(self, pod_sets: Iterable[tuple[PodSet, PodIdentity]]) -> Iterator[tuple[PodSet, PodIdentity]]:
        """Yield the pod sets without those of incomplete gangs; pods beyond the minimum of their gang become ordinary
        pods. They must be all pod sets of the input."""
        by_gang: defaultdict[str, list[tuple[PodSet, PodIdentity]]] = defaultdict(list)
        for pod_set, who in pod_sets:
            if pod_set.gang is None:
                yield pod_set, who
            else:
                by_gang[pod_set.gang].append((pod_set, who))
        for gang, members in by_gang.items():
            members.sort(key=lambda member: -member[0].waiting_seconds)
            division = self._counts.divide(gang, ((member, member[0].count) for member in members))
            yield from ((replace(pod_set, count=count), who) for (pod_set, who), count in division.whole)
            yield from ((replace(pod_set, count=count, gang=None), who) for (pod_set, who), count in division.others)
            if division.missing:
                self.incomplete.append(f"{incomplete(gang, division)}; nothing of it is planned")

    def _report(self, document: ManifestDocument, problems: Iterable[str]) -> None:
        self.problems.extend(f"{document.place}: {problem}" for problem in problems)
