"""Gangs of ordinary pods: which gang a pod belongs to, how many of a gang must be served at once, and which of its
pending pods these are. Planning gangs is the solver's; a pod's other fields are in `pods`.

A pod names its gang in one of five ways; where it uses several, the first counts:

1. the annotation that names the ProvisioningRequest it consumes (cluster-autoscaler), if requests are not served;
2. `spec.schedulingGroup.podGroupName`: a PodGroup of `scheduling.k8s.io` (Kubernetes 1.36, KEP-4671);
3. a label, `scheduling.x-k8s.io/pod-group` by default: a PodGroup of `scheduling.x-k8s.io` (scheduler-plugins);
4. the annotation `scheduling.k8s.io/group-name`: a PodGroup of `scheduling.volcano.sh` (Volcano);
5. Kueue's annotations that require one topology domain: its Workload, or else its controller (`topology`).

The minimum count is that of the PodGroup object; else the largest in the pods' annotations `cagrpc.io/gang-min-count`
(of Kueue's groups of pods also `kueue.x-k8s.io/pod-group-total-count`); else the number of pods that exist, and of
those that the controllers of waiting ones still have to create.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from cagrpc.api.core.consumption import CONSUME_KEYS
from cagrpc.api.encoding.json_documents import LARGEST_INT32, Problems, mapping, members, whole
from cagrpc.errors import shown

T = TypeVar("T")

DEFAULT_GANG_LABEL = "scheduling.x-k8s.io/pod-group"

VOLCANO_GROUP = "scheduling.k8s.io/group-name"
"""Volcano's annotation (its api: scheduling/v1beta1, KubeGroupNameAnnotationKey)."""

MIN_COUNT = "cagrpc.io/gang-min-count"
"""cagrpc's annotation on pods: how many of the gang must be served at once."""
TOTAL_COUNT = "kueue.x-k8s.io/pod-group-total-count"
"""Kueue's annotation on the pods of a group (its controller/jobs/pod): how many pods the group has."""

_POSITIVE = re.compile(r"[1-9][0-9]{0,9}")


class GangKind(StrEnum):
    """The resource that a gang's name refers to, as for `kubectl get`."""

    PROVISIONING_REQUEST = "provisioningrequest.autoscaling.x-k8s.io"
    SCHEDULING_GROUP = "podgroup.scheduling.k8s.io"
    LABELLED = "podgroup.scheduling.x-k8s.io"
    VOLCANO = "podgroup.scheduling.volcano.sh"
    WORKLOAD = "workload.kueue.x-k8s.io"


@dataclass(frozen=True, slots=True)
class GangMembership:
    """A gang, by a name that is unique in the cluster, and how many of it must be served at once; None where
    unspecified."""

    name: str
    min_count: int | None = None


def gang_name(kind: GangKind, namespace: str, name: str) -> str:
    return f"{kind} {namespace}/{name}"


def is_of_request(gang: str) -> bool:
    """Return whether a gang is the pods of a ProvisioningRequest."""
    return gang.startswith(f"{GangKind.PROVISIONING_REQUEST} ")


def gang_of_pod(
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    scheduling_group: str = "",
    label_key: str = DEFAULT_GANG_LABEL,
    problems: Problems | None = None,
    path: str = "",
    *,
    by_request: bool = True,
) -> GangMembership | None:
    """Return the gang of a pod or of a template. `scheduling_group` is its `spec.schedulingGroup.podGroupName`. An
    invalid minimum count is ignored and added to `problems`, with its path below `path`. With `by_request`, a consumed
    ProvisioningRequest counts as a gang."""
    consumed = next((name for each in CONSUME_KEYS if (name := annotations.get(each))), "") if by_request else ""
    if consumed:
        return GangMembership(gang_name(GangKind.PROVISIONING_REQUEST, namespace, consumed))
    for kind, name in (
        (GangKind.SCHEDULING_GROUP, scheduling_group),
        (GangKind.LABELLED, labels.get(label_key)),
        (GangKind.VOLCANO, annotations.get(VOLCANO_GROUP)),
    ):
        if name:
            return GangMembership(gang_name(kind, namespace, name), annotated(annotations, MIN_COUNT, path, problems))
    return None


def annotated(annotations: Mapping[str, str], key: str, path: str, problems: Problems | None) -> int | None:
    """Return the number of pods in the annotation with this key; None without it. An invalid number is ignored and
    added to `problems`, with its path below `path`."""
    text = annotations.get(key)
    if text is None:
        return None
    if _POSITIVE.fullmatch(text) and int(text) <= LARGEST_INT32:
        return int(text)
    if problems is not None:
        at = f"{path}.metadata.annotations[{key}]".removeprefix(".")
        problems.append(f"{at}: {shown(text)} is not a whole number from 1 to {LARGEST_INT32}")
    return None


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A PodGroup."""

    gang: GangMembership
    topology_keys: tuple[str, ...] = ()
    """Its pods are to be in one domain of each."""
    composite: str = ""
    """The CompositePodGroup that it is a part of (Kubernetes 1.37, KEP-6012)."""


def pod_group(document: Mapping[str, Any], problems: Problems) -> PodGroup | None:
    """Read a PodGroup of one of the three API groups, any version, in JSON shape; return None for any other object.
    With the policy `basic` (Kubernetes 1.36) its pods are served one by one: a minimum of 1. An invalid minimum count
    is ignored and added to `problems`, with its path."""
    api_group = str(document.get("apiVersion") or "").partition("/")[0]
    kind = _KINDS.get(f"{str(document.get('kind') or '').lower()}.{api_group}")
    if kind is None:
        return None
    metadata = mapping(document, "metadata", "", problems)
    name = gang_name(kind, str(metadata.get("namespace") or "default"), str(metadata.get("name") or ""))
    spec = mapping(document, "spec", "", problems)
    if kind is not GangKind.SCHEDULING_GROUP:
        return PodGroup(GangMembership(name, _count(spec, "minMember", "spec", problems)))
    constraints = mapping(spec, "schedulingConstraints", "spec", problems)
    asked = members(constraints, "topology", "spec.schedulingConstraints", problems)
    keys = tuple(dict.fromkeys(str(each["key"]) for each, _ in asked if each.get("key")))
    composite = str(spec.get("parentCompositePodGroupName") or "")
    policy = mapping(spec, "schedulingPolicy", "spec", problems)
    if policy.get("basic") is not None:
        return PodGroup(GangMembership(name, 1), keys, composite)
    gang = mapping(policy, "gang", "spec.schedulingPolicy", problems)
    count = _count(gang, "minCount", "spec.schedulingPolicy.gang", problems)
    return PodGroup(GangMembership(name, count), keys, composite)


_KINDS = {str(kind): kind for kind in GangKind if kind is not GangKind.PROVISIONING_REQUEST}


def _count(document: Mapping[str, Any], name: str, path: str, problems: Problems) -> int | None:
    there = document.get(name) is not None
    return (whole(document, name, path, problems, 1, LARGEST_INT32) or None) if there else None


@dataclass(frozen=True, slots=True)
class Division(Generic[T]):
    """The pending pods of one gang: those that are served all or none, and the others, which are ordinary pods. Both
    are empty where the gang is incomplete: no pod of it is planned before the `missing` ones exist."""

    whole: tuple[tuple[T, int], ...] = ()
    others: tuple[tuple[T, int], ...] = ()
    there: int = 0
    """Existing pods, pending or bound."""
    missing: int = 0


def divide(
    pending: Iterable[tuple[T, int]], *, min_count: int | None = None, bound: int = 0, held_back: int = 0
) -> Division[T]:
    """Divide a gang's `pending` pods, oldest first, each with the number of equal pods that it stands for.

    `bound` counts pods that were served: they are on a node, or have succeeded. `held_back` counts pods that exist, or
    are expected, and cannot be planned yet, such as gated ones; without a minimum the gang waits for them.
    """
    waiting = tuple(pending)
    there = sum(count for _, count in waiting) + bound
    required = there + held_back if min_count is None else min_count
    if there < required:
        return Division(there=there, missing=required - there)
    needed = max(0, required - bound)
    whole, others = [], []
    for of, count in waiting:
        taken = min(count, needed)
        needed -= taken
        if taken:
            whole.append((of, taken))
        if taken < count:
            others.append((of, count - taken))
    return Division(tuple(whole), tuple(others), there)


@dataclass(frozen=True, slots=True)
class GangCount:
    """The counts of a gang, as for `divide`; `pending` counts all of its pending pods."""

    pending: int
    bound: int = 0
    held_back: int = 0
    min_count: int | None = None


def incomplete(gang: str, there: int, needed: int) -> str:
    """Return a message about a gang of which pods are missing."""
    return f"gang {gang} is not complete: it has {there} of {needed} pods"
