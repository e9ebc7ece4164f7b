"""What keeps a bound pod from being moved: what its v1.Pod says of it, and the rules of those who move pods, as the
cluster-autoscaler, Karpenter and `kubectl drain` have them. Which budgets cover it is known where the budgets are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING

from cagrpc.api.core.nodes import HOSTNAME
from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.durations import duration_seconds
from solver.model import NodeSelectorTerm, PodSpec

if TYPE_CHECKING:  # not needed to check a configuration
    from cagrpc.api.gen import kubernetes_pb2

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""CA's annotation of pods: `true`, `false` or `on-completion` (upstream: utils/drain)."""
SAFE_TO_EVICT_LOCAL_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
"""CA's annotation of pods: volumes, separated by commas, that may be lost."""
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
"""Karpenter's annotation of pods and nodes: `true`; of pods also how long it holds from their start (upstream:
utils/pod)."""

SYSTEM_NAMESPACE = "kube-system"
SYSTEM_POD_SECONDS = 3600.0
"""How long CA keeps pods of kube-system that have no budget (--blocking-system-pod-distruption-timeout, as its name is
spelt)."""
ENDING_SECONDS = 60.0
"""How long after its grace period a pod that is being deleted is still waited for; then its node is held to be stuck,
not the pod to be ending (upstream: Karpenter's IsStuckTerminating)."""

_NAME_OF_NODE = "metadata.name"
_MOST_KNOWN = 10_000


class Kept(StrEnum):
    """What a pod is kept on its node by, as far as it matters to those who move pods."""

    NOTHING = ""
    FOR_NOW = "for now"
    """It may go before long. Where its node has to go, eviction is tried all the same, and the API server decides."""
    UNTIL_IT_ENDS = "until it ends"
    """It runs to an end by itself (a Job's pod): it is moved only where its node has to go."""
    BY_OWNER = "by its owner"
    """It asks not to be evicted, or has what is lost with its node. Never evicted; where its node is taken, another
    comes in its stead, which needs room."""
    WITHOUT_SUCCESSOR = "without successor"
    """Nobody makes another one that could run elsewhere. Never evicted, and no room is planned for it."""


class StaysBecause(StrEnum):
    """Why pods stay on their node, and nodes for their pods' sake or their own. What a pod has comes in the order in
    which it counts."""

    REQUEST = "it consumes a ProvisioningRequest"
    NO_CONTROLLER = "no controller would replace it"
    OTHER_SCHEDULER = "another scheduler has bound it"
    UNPLANNED = "a volume or a claim ties it to its node, or it could not be scheduled again"
    NOT_SAFE = f'{SAFE_TO_EVICT}: "false"'
    DO_NOT_DISRUPT = DO_NOT_DISRUPT
    LOCAL_STORAGE = "local storage"
    BUDGETS = "several PodDisruptionBudgets, so that it cannot be evicted"
    ENDS = "it is a Job's pod, and runs until it is done"
    BUDGET = "a PodDisruptionBudget that allows no disruption now"
    SYSTEM = f"{SYSTEM_NAMESPACE}, no PodDisruptionBudget, younger than an hour"
    ENDING = "a pod there is still being deleted"
    GANG = "a pod of its gang stays"
    GOING = "its node is being removed already"
    NODE = "an annotation of its node forbids disruption"
    NOT_READY = "its node is not Ready"
    YOUNG = "its node is younger than the minimum age"
    MINIMUM = "its node group would be below its minimum size"


_KEPT_BY = {
    **dict.fromkeys(
        (StaysBecause.REQUEST, StaysBecause.NO_CONTROLLER, StaysBecause.OTHER_SCHEDULER, StaysBecause.UNPLANNED),
        Kept.WITHOUT_SUCCESSOR,
    ),
    **dict.fromkeys(
        (StaysBecause.NOT_SAFE, StaysBecause.DO_NOT_DISRUPT, StaysBecause.LOCAL_STORAGE, StaysBecause.BUDGETS),
        Kept.BY_OWNER,
    ),
    StaysBecause.ENDS: Kept.UNTIL_IT_ENDS,
    StaysBecause.BUDGET: Kept.FOR_NOW,
    StaysBecause.SYSTEM: Kept.FOR_NOW,
}


def kept_by(because: StaysBecause | None) -> Kept:
    """Return what a pod is kept by that stays because of this; None is nothing."""
    return Kept.NOTHING if because is None else _KEPT_BY[because]


@dataclass(frozen=True, slots=True)
class MovingRules:
    """Rules that differ between clusters; the defaults are CA's."""

    keeps_local_storage: bool = True
    """--skip-nodes-with-local-storage: whether what is in emptyDir (but memory) and hostPath volumes keeps a pod.
    Karpenter's do not."""
    keeps_system_pods: bool = True
    """--skip-nodes-with-system-pods: whether pods of kube-system without a PodDisruptionBudget stay for an hour."""


@dataclass(frozen=True, slots=True)
class EvictionFacts:
    """What a bound v1.Pod says of being moved. Equal ones are mostly the same object."""

    safe_to_evict: str = ""
    """The value of CA's annotation."""
    do_not_disrupt_until_seconds: float = 0.0
    """When Karpenter's annotation ends, since the epoch; infinite without end, 0 without the annotation, or with an
    invalid one."""
    local_volumes: tuple[str, ...] = ()
    """Names of volumes that are lost with its node, but those that its annotation gives up."""
    controlled: bool = True
    """Whether a controller makes another one if it goes."""
    ends: bool = False
    """Whether it runs to an end by itself: a Job's, or one that is not always restarted."""
    ends_at_seconds: float = 0.0
    """When the grace period of one that is being deleted is over, since the epoch; 0 of any other."""
    scheduler: str = ""
    """Who has bound it, if nobody that planning is for."""

    def is_ending(self, now_seconds: float) -> bool:
        """Return whether it is still being deleted."""
        return bool(self.ends_at_seconds) and now_seconds < self.ends_at_seconds + ENDING_SECONDS


ORDINARY = EvictionFacts()


def eviction_facts(pod: kubernetes_pb2.Pod, scheduler: str = "") -> EvictionFacts:
    """Read a v1.Pod that is bound to a node; `scheduler` is who has bound it, if nobody that planning is for."""
    metadata, spec = pod.metadata, pod.spec
    annotations = metadata.annotations
    owner = next((each for each in metadata.ownerReferences if each.controller), None)
    deleted = metadata.HasField("deletionTimestamp")
    found = EvictionFacts(
        annotations.get(SAFE_TO_EVICT, ""),
        _until(annotations.get(DO_NOT_DISRUPT, ""), pod.status.startTime.seconds),
        _local_volumes(spec, annotations.get(SAFE_TO_EVICT_LOCAL_VOLUMES, "")),
        owner is not None,
        spec.restartPolicy in ("Never", "OnFailure") or (owner is not None and owner.kind == "Job"),
        float(metadata.deletionTimestamp.seconds) if deleted else 0.0,
        scheduler,
    )
    return ORDINARY if found == ORDINARY else _interned(found)


@lru_cache(maxsize=_MOST_KNOWN)
def _interned(found: EvictionFacts) -> EvictionFacts:
    return found


def _until(text: str, started_at_seconds: int) -> float:
    """Return until when Karpenter's annotation holds; its invalid values count as none there."""
    if not text:
        return 0.0
    seconds = inf if text == "true" else duration_seconds(text)
    if not seconds:
        return 0.0
    return started_at_seconds + seconds if started_at_seconds else inf


def _local_volumes(spec: kubernetes_pb2.PodSpec, given_up: str) -> tuple[str, ...]:
    found = tuple(volume.name for volume in spec.volumes if _is_local(volume.volumeSource))
    return tuple(name for name in found if name not in given_up.split(",")) if found and given_up else found


def _is_local(source: kubernetes_pb2.VolumeSource) -> bool:
    return source.HasField("hostPath") or (source.HasField("emptyDir") and source.emptyDir.medium != "Memory")


@dataclass(frozen=True, slots=True)
class SharedFacts:
    """What bound pods of one class have in common, as far as it keeps them."""

    unplanned: str = ""
    """Why planning finds no other place for them, whatever nodes there are."""
    budgets: tuple[str, ...] = ()
    """PodDisruptionBudgets that cover them, `namespace/name`."""
    exhausted: str = ""
    """The first of these budgets that allows no disruption now."""
    system: bool = False
    """Whether they are kube-system's."""


def why_unplanned(spec: PodSpec) -> str:
    """Return why a bound pod of this spec, with what its volumes and claims come to, finds no place on any other node;
    empty where it may."""
    if spec.affinity == ():
        return "has fields that cannot be read"
    if spec.unschedulable:
        return f"could not be scheduled again: {spec.unschedulable}"
    return "has a volume, or a claim on devices by name, that is tied to its node" if _is_tied_to_node(spec) else ""


def _is_tied_to_node(spec: PodSpec) -> bool:
    """Return whether a volume (a local PersistentVolume), or a claim that is allocated, names its node."""
    return any(terms and all(_names_node(term) for term in terms) for terms in spec.node_terms)


def _names_node(term: NodeSelectorTerm) -> bool:
    of_object = any(each.key == _NAME_OF_NODE for each in term.match_fields)
    return of_object or any(each.key in (HOSTNAME, _NAME_OF_NODE) for each in term.match_expressions)


_Why = tuple[str, StaysBecause | None]
_FREE: _Why = ("", None)


def why_kept(
    pod: str,
    facts: EvictionFacts,
    shared: SharedFacts,
    rules: MovingRules,
    now_seconds: float,
    *,
    created_at_seconds: float = 0.0,
    request: str = "",
) -> tuple[str, StaysBecause | None]:
    """Return why a bound pod (`namespace/name`) may not be moved, for people and as one of the reasons that there are:
    what keeps it most comes first. `request` is the ProvisioningRequest that it consumes."""
    why, because = _why_without_successor(facts, shared, request)
    if because is None:
        why, because = _why_not_evicted(facts, shared, rules, now_seconds)
    if because is None:
        young = now_seconds < created_at_seconds + SYSTEM_POD_SECONDS
        why, because = _why_not_now(facts, shared, young=young and rules.keeps_system_pods)
    return (f"{pod} {why}", because) if because is not None else _FREE


def _why_without_successor(facts: EvictionFacts, shared: SharedFacts, request: str) -> _Why:
    if request:
        return f"consumes ProvisioningRequest {request}", StaysBecause.REQUEST
    if not facts.controlled:
        return "has no controller that would replace it", StaysBecause.NO_CONTROLLER
    if facts.scheduler:
        return f"is scheduled by {facts.scheduler}", StaysBecause.OTHER_SCHEDULER
    return (shared.unplanned, StaysBecause.UNPLANNED) if shared.unplanned else _FREE


def _why_not_evicted(facts: EvictionFacts, shared: SharedFacts, rules: MovingRules, now_seconds: float) -> _Why:
    if facts.safe_to_evict == "false":
        return f'has the annotation {SAFE_TO_EVICT}: "false"', StaysBecause.NOT_SAFE
    until = facts.do_not_disrupt_until_seconds
    if now_seconds < until:
        said = "" if until == inf else f", until {timestamp(until)}"
        return f"has the annotation {DO_NOT_DISRUPT}{said}", StaysBecause.DO_NOT_DISRUPT
    if rules.keeps_local_storage and facts.local_volumes and facts.safe_to_evict != "true":
        return f"has local storage: {_named('volume', facts.local_volumes)}", StaysBecause.LOCAL_STORAGE
    if len(shared.budgets) > 1:
        budgets = " and ".join(shared.budgets)
        return f"is covered by PodDisruptionBudgets {budgets}, so it cannot be evicted", StaysBecause.BUDGETS
    return _FREE


def _why_not_now(facts: EvictionFacts, shared: SharedFacts, *, young: bool) -> _Why:
    if facts.ends or facts.safe_to_evict == "on-completion":
        return "runs until it ends", StaysBecause.ENDS
    if shared.exhausted:
        why = f"is kept by PodDisruptionBudget {shared.exhausted}, which allows no disruption now"
        return why, StaysBecause.BUDGET
    if shared.system and young and not (shared.budgets or facts.safe_to_evict == "true"):
        why = f"is of {SYSTEM_NAMESPACE}, has no PodDisruptionBudget and is younger than an hour"
        return why, StaysBecause.SYSTEM
    return _FREE


def _named(kind: str, names: Sequence[str]) -> str:
    return f"{kind} {names[0]}" if len(names) == 1 else f"{kind}s {', '.join(names)}"
