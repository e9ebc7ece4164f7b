"""What pods say of the topology domains that they are to share, and how planning sees it: as a label of all pods of a
gang, and a term of required or preferred pod affinity that counts exactly these.

Sources: Kueue's annotations of pod templates (KEP-2724, apis/kueue/v1beta1/topology_types.go), and
`spec.schedulingConstraints.topology` of PodGroups of scheduling.k8s.io (KEP-5732). Both mean: all pods of the gang in
one domain of the key; of slices (Kueue) all pods of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cagrpc.api.encoding.json_documents import Problems
from cagrpc.errors import shown
from solver.model import Operator, PodAffinityTerm, PodSelector, PodSpec, PreferredDomain, Requirement
from solver.model.domains import GANG_MARK

REQUIRED = "kueue.x-k8s.io/podset-required-topology"
PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"
SLICE_REQUIRED = "kueue.x-k8s.io/podset-slice-required-topology"
SLICE_SIZE = "kueue.x-k8s.io/podset-slice-size"
AFTER_COST = "cagrpc.io/preferred-topology-after-cost"
"""Our annotation, "true": what is preferred is not to cost anything."""
WORKLOAD = "kueue.x-k8s.io/workload"
"""Kueue's annotation on pods: the Workload that they are of."""
POD_SET = "kueue.x-k8s.io/podset"
"""Kueue's label on pods: the pod set of the Workload."""
_INDEXES = ("batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index")
"""Labels with a pod's number among those of its workload, by which Kueue divides them into slices."""
_SIZE = re.compile(r"[1-9][0-9]{0,5}")


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """What Kueue's annotations ask for: topology keys, empty where they ask for nothing."""

    required: str = ""
    preferred: str = ""
    slice_required: str = ""
    slice_size: int = 0
    after_cost: bool = False
    """Whether what is preferred is not to cost anything."""

    @property
    def is_whole(self) -> bool:
        """Whether pods are of use only together."""
        return bool(self.required or self.slice_required)


def topology_request(annotations: Mapping[str, str], path: str, problems: Problems) -> TopologyRequest | None:
    """Read the annotations of a pod or of a template; None without any. What is invalid is ignored and added to
    `problems`, with its path below `path`."""
    required, preferred = annotations.get(REQUIRED, ""), annotations.get(PREFERRED, "")
    sliced, size = annotations.get(SLICE_REQUIRED, ""), annotations.get(SLICE_SIZE, "")
    if not (required or preferred or sliced):
        return None
    at = f"{path}.metadata.annotations".removeprefix(".")
    if sliced and not _SIZE.fullmatch(size):
        problems.append(f"{at}[{SLICE_SIZE}]: {shown(size)} is not a whole number of pods, 1 or more")
        sliced = ""
    if required and preferred:
        problems.append(f"{at}[{PREFERRED}]: {REQUIRED} is set as well, and takes precedence; set only one of them")
        preferred = ""
    after_cost = bool(preferred) and annotations.get(AFTER_COST) == "true"
    return TopologyRequest(required, preferred, sliced, int(size) if sliced else 0, after_cost)


def mark(gang: str, key: str) -> PodAffinityTerm:
    """Return the term of pods that are to be in one domain with all others that have the label of this gang."""
    return PodAffinityTerm(key, PodSelector((Requirement(f"{GANG_MARK}{gang}", Operator.EXISTS),)), alone=True)


def in_one_domain(
    spec: PodSpec, labels: Mapping[str, str], gang: str, keys: Iterable[str]
) -> tuple[PodSpec, dict[str, str]]:
    """Return the spec and the labels of a pod whose gang is to be in one domain of each of these keys."""
    terms = tuple(mark(gang, key) for key in keys)
    return replace(spec, pod_affinity=(*spec.pod_affinity, *terms)), {**labels, f"{GANG_MARK}{gang}": ""}


def as_requested(
    spec: PodSpec, labels: Mapping[str, str], gang: str, asked: TopologyRequest
) -> tuple[PodSpec, dict[str, str]]:
    """Return the spec and the labels of a pod of a gang with what it asks for. One of a slice has to say its number."""
    found = dict(labels)
    if asked.required:
        spec, found = in_one_domain(spec, found, gang, [asked.required])
    if asked.preferred:
        wish = PreferredDomain(mark(gang, asked.preferred), asked.after_cost)
        spec = replace(spec, preferred_domains=(*spec.preferred_domains, wish))
        found = {**found, f"{GANG_MARK}{gang}": ""}
    if asked.slice_required:
        index = next((labels[key] for key in _INDEXES if labels.get(key, "").isdecimal()), None)
        if index is None:
            why = f"it asks for slices of {asked.slice_size} pods, but has no label {_INDEXES[0]} with its index"
            return replace(spec, unschedulable=spec.unschedulable or why), found
        part = f"{gang} slice {int(index) // asked.slice_size}"
        spec, found = in_one_domain(spec, found, part, [asked.slice_required])
    return spec, found
