"""What keeps pods on their nodes, and nodes with them: what pods and nodes say themselves, PodDisruptionBudgets, and
gangs of which a pod stays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum

from cagrpc.api.core.consumption import consumption
from cagrpc.api.core.gangs import gang_of_pod
from cagrpc.api.core.movability import (
    DO_NOT_DISRUPT,
    SAFE_TO_EVICT,
    SYSTEM_NAMESPACE,
    EvictionFacts,
    Kept,
    MovingRules,
    SharedFacts,
    why_kept,
    why_unplanned,
)
from cagrpc.api.core.resources import Problems, mapping
from cagrpc.api.core.selectors import label_selector
from cagrpc.api.files.documents import ManifestDocument
from cagrpc.errors import InvalidInput
from cagrpc.offline.live import BUDGET_KIND
from cagrpc.offline.reduced import PodTemplate, RunningPod
from cagrpc.report.problem import RepackingQuestion
from cagrpc.report.sources import Objects
from cagrpc.report.standing import ReportedNode
from solver.model import PodSelector
from solver.model.eligibility import selects


class StaysBecause(StrEnum):
    """Why pods are not moved."""

    NO_CONTROLLER = "no controller makes another one"
    REQUEST = "it consumes a ProvisioningRequest"
    UNPLANNED = "a volume or a claim is tied to its node, or it could not be planned anew"
    NOT_SAFE = f'{SAFE_TO_EVICT}: "false"'
    DO_NOT_DISRUPT = DO_NOT_DISRUPT
    LOCAL_STORAGE = "local storage"
    BUDGETS = "several PodDisruptionBudgets, so that it cannot be evicted"
    ENDS = "it runs to an end by itself, as a Job's"
    BUDGET = "a PodDisruptionBudget that lets none go now"
    SYSTEM = f"{SYSTEM_NAMESPACE}, no PodDisruptionBudget, younger than an hour"
    GANG = "a pod of its gang stays"
    GOING = "its node is being taken away anyway"
    NODE = "its node is not to be disrupted, by an annotation"
    NOT_READY = "its node is not Ready"


_WITHOUT_SUCCESSORS = frozenset({StaysBecause.REQUEST, StaysBecause.NO_CONTROLLER, StaysBecause.UNPLANNED})


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a pod is not moved."""

    because: StaysBecause
    budgets: tuple[str, ...] = ()
    """Names of PodDisruptionBudgets, of the pod's namespace."""


@dataclass(frozen=True, slots=True)
class PodsThatStay:
    """Pods of one node that stay for one reason."""

    obstacle: Obstacle
    count: int
    example: RunningPod | None
    """None where the node itself says so."""


class Gangs:
    """The gangs of running pods."""

    def __init__(self, label: str) -> None:
        """`label` is the key of the label that names a pod's gang."""
        self._label = label
        self._known: dict[PodTemplate, str | None] = {}

    def of(self, template: PodTemplate) -> str | None:
        if template not in self._known:
            labels = template.body["metadata"].get("labels") or {}
            found = gang_of_pod(
                template.namespace, labels, template.annotations, template.scheduling_group, self._label
            )
            self._known[template] = found.name if found else None
        return self._known[template]


Found = defaultdict[str, dict[Obstacle, PodsThatStay]]


def _of_node(node: ReportedNode) -> Obstacle | None:
    """Return why a node stays whatever its pods are."""
    if node.going:
        return Obstacle(StaysBecause.GOING)
    if node.do_not_disrupt:
        return Obstacle(StaysBecause.NODE)
    return None if node.ready else Obstacle(StaysBecause.NOT_READY)


def _unplanned(asked: RepackingQuestion) -> dict[int, str]:
    """Return why pods find no place on any other node, by their identity."""
    sets = ((why_unplanned(each.spec), each) for each in asked.problem.pod_sets)
    return {id(pod): why for why, each in sets if why for pod in asked.pods.get(each.name, ())}


def _tie_gangs(found: Found, objects: Objects, kept: AbstractSet[str], may: AbstractSet[str], gangs: Gangs) -> None:
    """Add those of the nodes that `may` go that stay for gangs alone: of one of which a pod stays no other moves, so
    that one node may keep others."""
    where: defaultdict[str, defaultdict[str, list[RunningPod]]] = defaultdict(lambda: defaultdict(list))
    on: defaultdict[str, set[str]] = defaultdict(set)
    for pod in objects.pods:
        gang = gangs.of(pod.template)
        if gang is not None:
            where[gang][pod.node].append(pod)
            on[pod.node].add(gang)
    stuck = [*kept, *found]
    reached, tied = set(stuck), set[str]()
    while stuck:
        for gang in on[stuck.pop()] - tied:
            tied.add(gang)
            for node, pods in where[gang].items():
                if node in may and node not in reached:
                    _add(found[node], Obstacle(StaysBecause.GANG), pods[0], len(pods))
                    reached.add(node)
                    stuck.append(node)


def _add(found: dict[Obstacle, PodsThatStay], obstacle: Obstacle, example: RunningPod, count: int) -> None:
    before = found.get(obstacle)
    found[obstacle] = replace(before, count=before.count + count) if before else PodsThatStay(obstacle, count, example)


class Obstacles:
    """What keeps pods, and nodes for their sake."""

    def __init__(self, objects: Objects, now_seconds: float) -> None:
        """Raises InvalidInput with every budget that cannot be read."""
        self._objects = objects
        self._now_seconds = now_seconds
        self._budgets: defaultdict[str, list[tuple[str, PodSelector, int]]] = defaultdict(list)
        """By namespace: name, pods, and how many of them may be evicted now."""
        self._known: dict[tuple[PodTemplate, str], Obstacle | None] = {}
        problems: Problems = []
        for each in objects.others:
            if each.kind == BUDGET_KIND:
                self._read(each, problems)
        if problems:
            raise InvalidInput("\n".join(problems))

    def _read(self, document: ManifestDocument, problems: Problems) -> None:
        here: Problems = []
        selector = PodSelector(label_selector(document.spec, "selector", "spec", here), (document.namespace,))
        allowed = mapping(document.body, "status", "", here).get("disruptionsAllowed", 0)
        if isinstance(allowed, int):
            self._budgets[document.namespace].append((document.name, selector, allowed))
        else:
            here.append(f"status.disruptionsAllowed: {allowed!r:.40} is not a whole number")
        problems += (f"{document.place}: {problem}" for problem in here)

    def of_nodes(
        self, asked: RepackingQuestion, nodes: Iterable[ReportedNode], gangs: Gangs
    ) -> dict[str, tuple[PodsThatStay, ...]]:
        """Return what keeps these nodes, by name, but for those that `asked` leaves out."""
        found: Found = defaultdict(dict)
        may = {each.name: each for each in nodes if each.name not in asked.kept}
        for node in may.values():
            of_node = _of_node(node)
            if of_node is not None:
                found[node.name][of_node] = PodsThatStay(of_node, 0, None)
        unplanned = _unplanned(asked)
        for pod in self._objects.pods:
            if pod.template.overhead or pod.node not in may:
                continue
            obstacle = self._of(pod.template, unplanned.get(id(pod), ""))
            if obstacle is not None:
                _add(found[pod.node], obstacle, pod, 1)
        _tie_gangs(found, self._objects, asked.kept.keys(), may.keys(), gangs)
        return {node: tuple(stays.values()) for node, stays in found.items()}

    def have_no_successors(self, template: PodTemplate, unplanned: str) -> bool:
        """Return whether no pods come in the stead of its pods, or find no room: `unplanned` is why."""
        found = self._of(template, unplanned)
        return found is not None and found.because in _WITHOUT_SUCCESSORS

    def _of(self, template: PodTemplate, unplanned: str) -> Obstacle | None:
        """Return what keeps its pods, but for gangs; `unplanned` is why these find no other place."""
        key = template, unplanned
        if key not in self._known:
            self._known[key] = self._find(template, unplanned)
        return self._known[key]

    def _find(self, template: PodTemplate, unplanned: str) -> Obstacle | None:
        labels = template.body["metadata"].get("labels") or {}
        covering = [each for each in self._budgets[template.namespace] if selects(each[1], template.namespace, labels)]
        shared = SharedFacts(
            unplanned,
            tuple(sorted(name for name, _, _ in covering)),
            next((name for name, _, allowed in covering if allowed < 1), ""),
            template.namespace == SYSTEM_NAMESPACE,
        )
        consumed = consumption(template.annotations)
        request = consumed.request if consumed else ""
        _, kept = why_kept(
            "",
            template.eviction,
            shared,
            MovingRules(),
            self._now_seconds,
            created_at_seconds=template.created_at_seconds,
            request=request,
        )
        if kept is Kept.NOTHING:
            return None
        because = _because(kept, template.eviction, shared, request, self._now_seconds)
        of_budgets = because in (StaysBecause.BUDGET, StaysBecause.BUDGETS)
        return Obstacle(because, shared.budgets if of_budgets else ())


def _because(kept: Kept, facts: EvictionFacts, shared: SharedFacts, request: str, now_seconds: float) -> StaysBecause:
    """Return which of its reasons `why_kept` has found, in its order."""
    local = bool(facts.local_volumes) and facts.safe_to_evict != "true"
    causes: Mapping[Kept, Sequence[tuple[bool, StaysBecause]]] = {
        Kept.WITHOUT_SUCCESSOR: (
            (bool(request), StaysBecause.REQUEST),
            (not facts.controlled, StaysBecause.NO_CONTROLLER),
            (bool(shared.unplanned), StaysBecause.UNPLANNED),
        ),
        Kept.BY_OWNER: (
            (facts.safe_to_evict == "false", StaysBecause.NOT_SAFE),
            (now_seconds < facts.do_not_disrupt_until_seconds, StaysBecause.DO_NOT_DISRUPT),
            (local, StaysBecause.LOCAL_STORAGE),
            (len(shared.budgets) > 1, StaysBecause.BUDGETS),
        ),
        Kept.UNTIL_IT_ENDS: ((True, StaysBecause.ENDS),),
        Kept.FOR_NOW: ((bool(shared.exhausted), StaysBecause.BUDGET), (shared.system, StaysBecause.SYSTEM)),
    }
    return next(because for holds, because in causes[kept] if holds)
