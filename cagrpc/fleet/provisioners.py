"""Provisioners, and their expansion to node groups in the planner's values, with warnings.

A provisioner with explicit node groups has exactly those. Any other is expanded over the catalogue: every offering
(type x zone x capacity type) whose labels meet its requirements becomes a node group (node auto-provisioning).
Provisioners are read (from cagrpc's configuration or Karpenter documents) in `cagrpc.config`; their weights are the
planner's. Semantics of requirements and labels follow Karpenter's NodePool (karpenter.sh/v1).
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from cagrpc.fleet.catalogue import EPHEMERAL_STORAGE, WELL_KNOWN_LABELS, Catalogue, Offering
from cagrpc.fleet.group_ids import GroupPattern
from solver.model import (
    ATTACHABLE_VOLUMES,
    MEMORY,
    NODES,
    UNLIMITED_SIZE,
    Labels,
    Limit,
    NodeGroup,
    Operator,
    Plan,
    PodSpec,
    PossibleGroups,
    Problem,
    Requirement,
    Resources,
    Taint,
)
from solver.model.capacity import most_nodes
from solver.model.eligibility import matches_requirement, untolerated, why_not_eligible
from solver.model.quantities import some_of

NODEPOOL_LABEL = "karpenter.sh/nodepool"
"""The label with a node's provisioner, as in karpenter.sh/v1; also for provisioners in cagrpc's own format."""
PROVISIONER_NAME_LABEL = "karpenter.sh/provisioner-name"
"""The label of karpenter.sh/v1alpha5 that says the same."""
_MOST_LISTED = 5
"""Values of a requirement, or of a label, that a message names."""
_POOLS = (
    NODEPOOL_LABEL,
    PROVISIONER_NAME_LABEL,
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "kops.k8s.io/instancegroup",
    "cluster.x-k8s.io/deployment-name",
)
"""Labels with the provisioner, NodePool or node pool of a node."""

_MIB, _GIB = 2**20, 2**30


def pool_of(labels: Labels) -> str:
    """Return the provisioner, NodePool or node pool of a node; empty where it has none."""
    return next((labels[key] for key in _POOLS if labels.get(key)), "")


def storage_of_disk(disk_bytes: int) -> int:
    """Return the bytes of a node's disk that pods may use: a kubelet evicts pods when a tenth is left
    (`nodefs.available<10%`), and 1 GiB is reserved for it and the system, as Karpenter and EKS do."""
    return max(0, disk_bytes - disk_bytes // 10 - _GIB) // _MIB * _MIB


DEFAULT_STORAGE = storage_of_disk(20 * _GIB)
"""Ephemeral storage of a node where nothing says it, in bytes: of a disk of 20 GiB, the smallest usual one (EKS and
Karpenter on AWS)."""

_SYNONYMS = {
    # Old names that Karpenter normalises (its v1 labels.go, NormalizedLabels).
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}


@dataclass(frozen=True, slots=True)
class Provisioner:
    """Node groups that share weight, requirements, taints and limits."""

    name: str
    weight: int = 0
    """1-100; 0 where it has none."""
    requirements: tuple[Requirement, ...] = ()
    labels: Labels = field(default_factory=dict)
    """Labels of every node; one that instance types define (such as a zone) is a requirement as well."""
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    """Taints that nodes register with and lose: pods need not tolerate them, so no template has them."""
    limits: Resources = field(default_factory=dict)
    """The total of its nodes, `nodes` included, in the resources' units."""
    allocatable: Resources = field(default_factory=dict)
    """What pods may use of each node, of resources that neither the instance type nor the node group has; of volumes
    that may be attached also where the instance type says another number."""
    node_groups: tuple[NodeGroup, ...] | None = None
    """Explicit node groups; None expands over the catalogue."""
    name_label: str = NODEPOOL_LABEL
    post_registration_labels: Labels = field(default_factory=dict)
    """Labels that every node gets only some time after it has joined: device plugins and feature discovery set them."""
    groups: tuple[GroupPattern, ...] = ()
    """Ids of node groups of another cloud provider that it takes in, searched for as cluster-autoscaler's priority
    expander does."""

    def takes_in(self, group_id: str, labels: Labels, taints: Collection[Taint]) -> bool:
        """Return whether a node group of another cloud provider counts as the provisioner's: by its id where `groups`
        has any, else where it has the provisioner's labels and taints and meets its requirements."""
        if self.groups:
            return any(each.matches(group_id) for each in self.groups)
        conditions = (each.requirement for each in _conditions(self))
        return set(self.taints) <= set(taints) and all(matches_requirement(each, labels) for each in conditions)


def startup_taints(provisioners: Iterable[Provisioner]) -> frozenset[Taint]:
    """Return the taints that nodes of these provisioners register with and lose; those are not among them that nodes of
    another one keep."""
    of = tuple(provisioners)
    starting = frozenset(taint for each in of for taint in each.startup_taints)
    return starting - {taint for each in of for taint in each.taints}


def group_of(group_id: str, offering: Offering) -> NodeGroup:
    """Return a node group of one offering, without a provisioner."""
    return NodeGroup(
        id=group_id,
        allocatable=dict(offering.instance_type.allocatable),
        capacity=dict(offering.instance_type.capacity),
        price_usd_per_hour=offering.price_usd_per_hour,
        labels=offering.labels,
        max_size=UNLIMITED_SIZE if offering.available is None else offering.available,
        instance_type=offering.instance_type.name,
        zone=offering.zone,
        capacity_type=offering.capacity_type,
    )


def expand(
    provisioner: Provisioner,
    catalogue: Catalogue,
    cluster_limits: Resources | None = None,
) -> tuple[tuple[NodeGroup, ...], tuple[str, ...]]:
    """Return the provisioner's node groups, in a stable order, and warnings, each beginning with the provisioner's
    name.

    Ids of expanded groups are `<provisioner>/<instance type>/<zone>/<capacity type>`, so that they stay the same when
    the catalogue grows. Their maximum is what is available of the offering, and none where that is not known; what
    limits allow is the limits' own (`limit_of`), so that a reason names what somebody has set.
    """
    warnings: list[str] = []
    conditions = _conditions(provisioner)
    unmet: list[str] = []
    custom = _custom_labels(provisioner, conditions, unmet)
    labels = {**(custom or {}), **provisioner.labels}
    if provisioner.node_groups is not None:
        chosen = list(provisioner.node_groups)
        warnings += [] if custom is None else unmet
        _warn_of_contradictions(chosen, labels, conditions, warnings)
    else:
        warnings += unmet
        offerings = [] if custom is None else _matching(catalogue.offerings, conditions, warnings)
        chosen = [group_of(f"{provisioner.name}/{'/'.join(_place(each))}", each) for each in offerings]
    groups = tuple(_finished(group, provisioner, labels) for group in chosen)
    limits = (Limit("provisioner", provisioner.limits), Limit("cluster", cluster_limits or {}))
    if groups and not any(max(group.min_size, most_nodes(group, limits)) for group in groups):
        warnings.append("its limits and what is available leave no room for a single node")
    return groups, tuple(f'provisioner "{provisioner.name}": {warning}' for warning in warnings)


def limit_of(provisioner: Provisioner, groups: Sequence[NodeGroup]) -> Limit | None:
    """Return the provisioner's limits over its groups, or None where it has none."""
    if not provisioner.limits:
        return None
    ids = frozenset(group.id for group in groups)
    return Limit(_limit_name(provisioner), dict(provisioner.limits), node_groups=ids)


def _limit_name(provisioner: Provisioner) -> str:
    return f"provisioner {provisioner.name}"


def _place(offering: Offering) -> tuple[str, str, str]:
    return offering.instance_type.name, offering.zone, offering.capacity_type


def _stock_name(place: tuple[str, str, str]) -> str:
    return f"offering {'/'.join(place)}"


def shared_stock(catalogue: Catalogue, groups: Sequence[NodeGroup]) -> tuple[Limit, ...]:
    """Return a limit for each offering of bounded availability that several groups share, because the maximum size of
    each group would allow all of it."""
    drawn: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for group in groups:
        drawn[group.instance_type, group.zone, group.capacity_type].add(group.id)
    limits = []
    for offering in catalogue.offerings:
        place = _place(offering)
        if offering.available is not None and len(drawn[place]) > 1:
            limits.append(Limit(_stock_name(place), {NODES: offering.available}, node_groups=frozenset(drawn[place])))
    return tuple(limits)


Widen = Callable[[Problem, Plan], Problem]
"""From a problem and its plan to the problem with the node groups that would be there if provisioners allowed more."""


def as_it_is(problem: Problem, plan: Plan) -> Problem:
    """Return the problem itself: nothing is known of provisioners."""
    del plan
    return problem


_MOST_WIDENED, _MOST_TRIED = 3, 500
"""Widenings of a provisioner for one class of pods, and offerings that are looked at for them, the cheapest first."""


def widened(provisioners: Sequence[Provisioner], catalogue: Catalogue, problem: Problem, plan: Plan) -> Problem:
    """Return the problem with the node groups that provisioners would have if their requirements allowed one more
    value, or as few more as it takes, and that would take pods which the plan does not serve. Provisioners with
    explicit node groups have no others."""
    specs = dict.fromkeys(plan.pod_classes[each.pod_class].spec for each in plan.unplaced)
    possible = {each.advice: each for each in problem.possible}
    for spec in specs:
        fitting = [
            offering
            for offering in sorted(catalogue.offerings, key=lambda each: each.price_usd_per_hour)
            if all(offering.instance_type.allocatable.get(name, 0) >= amount for name, amount in spec.requests)
            and all(offering.labels.get(k) == v for k, v in spec.node_selector if k in WELL_KNOWN_LABELS)
        ]
        for provisioner in provisioners:
            for each in _widened(provisioner, fitting[:_MOST_TRIED], spec):
                possible.setdefault(each.advice, each)
    return replace(problem, possible=tuple(possible.values()))


def _widened(provisioner: Provisioner, offerings: Sequence[Offering], spec: PodSpec) -> list[PossibleGroups]:
    conditions = _conditions(provisioner)
    custom = _custom_labels(provisioner, conditions, [])
    if provisioner.node_groups is not None or custom is None or untolerated(provisioner.taints, spec.tolerations):
        return []
    asked = [each for each in conditions if each.requirement.key in WELL_KNOWN_LABELS]
    labels = {**custom, **provisioner.labels}
    found: defaultdict[tuple[tuple[_Condition, str], ...], list[Offering]] = defaultdict(list)
    for offering in offerings:
        own = {**labels, **offering.labels, provisioner.name_label: provisioner.name}
        unmet = [each for each in asked if not matches_requirement(each.requirement, own)]
        known = all(each.requirement.key in own for each in unmet)
        if unmet and known and why_not_eligible(spec, own, ()) is None:
            found[tuple((each, own[each.requirement.key]) for each in unmet)].append(offering)
    fewest = min(map(len, found), default=0)
    return [
        PossibleGroups(
            f"provisioner {provisioner.name}",
            " and ".join(f"{condition} does not allow {value}" for condition, value in unmet),
            f"let {' and '.join(f'{condition} allow {value}' for condition, value in unmet)} in provisioner"
            f" {provisioner.name}",
            tuple(
                _finished(group_of(f"{provisioner.name}/{'/'.join(_place(each))}", each), provisioner, labels)
                for each in mine
            ),
            (_limit_name(provisioner), *(_stock_name(_place(each)) for each in mine)),
        )
        for unmet, mine in [each for each in found.items() if len(each[0]) == fewest][:_MOST_WIDENED]
    ]


@dataclass(frozen=True, slots=True)
class _Condition:
    place: str
    requirement: Requirement

    def __str__(self) -> str:
        requirement = self.requirement
        values = f" [{some_of(requirement.values, _MOST_LISTED)}]" if requirement.values else ""
        return f"{self.place} ({requirement.key} {requirement.operator}{values})"


def _conditions(provisioner: Provisioner) -> list[_Condition]:
    """Return the labels, as requirements for one value each (as Karpenter reads them), then the requirements."""
    placed = [
        (f'labels["{key}"]', Requirement(key, Operator.IN, (value,))) for key, value in provisioner.labels.items()
    ]
    placed += [(f"requirements[{i}]", requirement) for i, requirement in enumerate(provisioner.requirements)]
    return [_Condition(place, replace(r, key=_SYNONYMS.get(r.key, r.key))) for place, r in placed]


def _custom_labels(
    provisioner: Provisioner,
    conditions: Iterable[_Condition],
    warnings: list[str],
) -> dict[str, str] | None:
    """Return the node labels that follow from requirements on keys that instance types do not define; None where the
    requirements on a key cannot all be met.

    `In` with one value sets that value; of several values that meet all requirements on the key, the first is set (a
    node has one; a provisioner for each value is more precise).
    """
    by_key: dict[str, list[_Condition]] = {}
    for condition in conditions:
        if condition.requirement.key not in WELL_KNOWN_LABELS:
            by_key.setdefault(condition.requirement.key, []).append(condition)
    labels: dict[str, str] = {}
    for key, on_key in by_key.items():
        source = next((c for c in on_key if c.requirement.operator is Operator.IN), None)
        if source is None:
            failing = next((c for c in on_key if not matches_requirement(c.requirement, {})), None)
            if failing is not None:
                warnings.append(f"{failing} matches nothing: no instance type has the label {key}; "
                                "give its value under labels")  # fmt: skip
                return None
            continue
        met = [
            v for v in source.requirement.values if all(matches_requirement(c.requirement, {key: v}) for c in on_key)
        ]
        if not met:
            warnings.append(f"no value of {key} meets {' and '.join(map(str, on_key))}")
            return None
        labels[key] = met[0]
        if len(met) > 1:
            warnings.append(f"{source}: no instance type has this label, so nodes get the first value, {met[0]}; "
                            "write a provisioner for each value to have them all")  # fmt: skip
        elif key.startswith("karpenter.k8s.aws/") and key not in provisioner.labels:
            warnings.append(f"{source}: the catalogue does not know {key}; nodes get it as a label without validation")
    return labels


def _matching(
    offerings: Sequence[Offering],
    conditions: Iterable[_Condition],
    warnings: list[str],
) -> list[Offering]:
    """Return the offerings that meet every condition on a well-known key; add a warning where none does."""
    left = [(offering, offering.labels) for offering in offerings]
    everything = left
    for condition in conditions:
        requirement = condition.requirement
        if requirement.key not in WELL_KNOWN_LABELS:
            continue
        found = [(offering, labels) for offering, labels in left if matches_requirement(requirement, labels)]
        if not found:
            warnings.append(_why_none(condition, [labels for _, labels in left], [labels for _, labels in everything]))
            return []
        if requirement.operator is Operator.IN:
            known = {labels.get(requirement.key, "") for _, labels in everything}
            if unknown := [value for value in requirement.values if value not in known]:
                asked = some_of(unknown, _MOST_LISTED)
                warnings.append(f"{condition}: {asked} matches no instance type; {_nearest(unknown, known)}")
        left = found
    return [offering for offering, _ in left]


def _why_none(condition: _Condition, left: Sequence[Labels], everything: Sequence[Labels]) -> str:
    requirement = condition.requirement
    if not any(matches_requirement(requirement, labels) for labels in everything):
        known = {labels[requirement.key] for labels in everything if requirement.key in labels}
        return f"{condition} matches no instance type of the catalogue; {_nearest(requirement.values, known)}"
    known = {labels[requirement.key] for labels in left if requirement.key in labels}
    return (
        f"{condition} matches none of the {len(left):,} offerings that meet the conditions before it; "
        f"{_nearest(requirement.values, known)}"
    )


def _nearest(values: Iterable[str], known: Iterable[str]) -> str:
    """Return a phrase with the known values that most resemble the requested ones."""
    pool = sorted(filter(None, known), key=_naturally)
    if not pool:
        return "none has this label"
    if all(value.isdecimal() for value in pool) and len(pool) > 1:
        return f"values go from {pool[0]} to {pool[-1]}"
    near = dict.fromkeys(match for value in values for match in difflib.get_close_matches(value, pool, n=3, cutoff=0.5))
    if near:
        return f"nearest: {some_of(list(near), _MOST_LISTED)}"
    return f"there is {some_of(pool, _MOST_LISTED)}"


def _warn_of_contradictions(
    groups: Iterable[NodeGroup],
    labels: Labels,
    conditions: Sequence[_Condition],
    warnings: list[str],
) -> None:
    for group in groups:
        own = {**labels, **group.labels}
        for condition in conditions:
            key = condition.requirement.key
            if not matches_requirement(condition.requirement, own):
                found = f"{key}={own[key]}" if key in own else f"no label {key}"
                warnings.append(
                    f'node group "{group.id}" has {found}, which violates {condition}; it is kept, as it is explicit'
                )


def _finished(
    group: NodeGroup,
    provisioner: Provisioner,
    labels: Labels,
) -> NodeGroup:
    """Return the group with its provisioner's weight, labels and taints."""
    return replace(
        group,
        allocatable=_whole_allocatable(group, provisioner.allocatable),
        labels={
            **provisioner.post_registration_labels,
            **labels,
            **group.labels,
            provisioner.name_label: provisioner.name,
        },
        post_registration_labels=group.post_registration_labels
        | (provisioner.post_registration_labels.keys() - labels.keys() - group.labels.keys()),
        taints=tuple(dict.fromkeys((*provisioner.taints, *group.taints))),
        weight=provisioner.weight,
        provisioner=provisioner.name,
    )


def _whole_allocatable(group: NodeGroup, of_provisioner: Resources) -> Resources:
    """Return what pods may use of a node. Of a catalogue's type, what a kubelet keeps as huge pages is taken off the
    memory, and volumes may be attached as is configured; a shape given by hand says what is left."""
    own = group.allocatable
    if group.capacity:
        configured = {name for name in of_provisioner if name.startswith(ATTACHABLE_VOLUMES)}
        own = {name: amount for name, amount in own.items() if name not in configured}
    more = {name: amount for name, amount in of_provisioner.items() if name not in own}
    found = {EPHEMERAL_STORAGE: DEFAULT_STORAGE, **more, **own}
    huge_pages = sum(amount for name, amount in more.items() if name.startswith("hugepages-"))
    if huge_pages and group.capacity:
        found[MEMORY] = max(0, found.get(MEMORY, 0) - huge_pages)
    return found


def _naturally(text: str) -> list[tuple[int, str]]:
    """Return a sort key with m5.2xlarge before m5.12xlarge."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]
