"""Provisioners, and what they expand to: node groups in the planner's values, with warnings for people.

A provisioner with explicit node groups has exactly those. One without expands over the catalogue: every offering
(type x zone x capacity type) whose labels meet its requirements becomes a node group (node auto-provisioning). Where
provisioners come from (our configuration, Karpenter documents) is `cagrpc.config`'s business; what their weights do is
the planner's. Semantics of requirements and labels follow Karpenter's NodePool (karpenter.sh/v1).
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cagrpc.fleet.catalogue import WELL_KNOWN_LABELS, Catalogue, Offering
from solver.model import NODES, Labels, Limit, NodeGroup, Operator, Requirement, Resources, Taint
from solver.model.eligibility import matches_requirement

NODEPOOL_LABEL = "karpenter.sh/nodepool"
"""Names a node's provisioner, as karpenter.sh/v1 does; also where the provisioner is written in our own form."""
PROVISIONER_NAME_LABEL = "karpenter.sh/provisioner-name"
"""The same in karpenter.sh/v1alpha5."""

DEFAULT_MAX_SIZE = 1000
"""Nodes of one group, where nothing says less."""

_SYNONYMS = {
    # Names that Karpenter takes for today's (its v1 labels.go, NormalizedLabels).
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/os": "kubernetes.io/os",
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
}


@dataclass(frozen=True, slots=True)
class Provisioner:
    """Node groups that share weight, requirements, taints and limits."""

    name: str
    weight: int = 0
    """1-100; 0 where it has none."""
    requirements: tuple[Requirement, ...] = ()
    labels: Labels = field(default_factory=dict)
    """Of every node; one that instance types define (a zone, say) is a requirement too."""
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    """Taints that nodes begin with and lose: pods need not tolerate them, so no template carries them."""
    limits: Resources = field(default_factory=dict)
    """What its nodes may have together, `nodes` among them, in the resources' units."""
    node_groups: tuple[NodeGroup, ...] | None = None
    """Explicit ones, as `group_of` makes them or by hand; None expands over the catalogue."""
    name_label: str = NODEPOOL_LABEL


def group_of(group_id: str, offering: Offering) -> NodeGroup:
    """A node group of one offering, not yet of a provisioner."""
    return NodeGroup(
        id=group_id,
        allocatable=dict(offering.instance_type.allocatable),
        capacity=dict(offering.instance_type.capacity),
        price_usd_per_hour=offering.price_usd_per_hour,
        labels=offering.labels,
        max_size=DEFAULT_MAX_SIZE if offering.available is None else min(DEFAULT_MAX_SIZE, offering.available),
        instance_type=offering.instance_type.name,
        zone=offering.zone,
        capacity_type=offering.capacity_type,
    )


def expand(
    provisioner: Provisioner,
    catalogue: Catalogue,
    cluster_limits: Resources | None = None,
) -> tuple[tuple[NodeGroup, ...], tuple[str, ...]]:
    """The provisioner's node groups, in a stable order, and warnings, each beginning with the provisioner's name.

    Ids of expanded groups are `<provisioner>/<instance type>/<zone>/<capacity type>`, whatever else the catalogue
    holds, so that they stay the same when it grows. `max_size` is cut to what the provisioner's and the cluster's
    limits have room for (never below `min_size`); a group may end up with 0.
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
        chosen = [
            group_of(
                f"{provisioner.name}/{offering.instance_type.name}/{offering.zone}/{offering.capacity_type}",
                offering,
            )
            for offering in offerings
        ]
    limits = (provisioner.limits, cluster_limits or {})
    groups = tuple(_finished(group, provisioner, labels, limits) for group in chosen)
    if groups and not any(group.max_size for group in groups):
        warnings.append("its limits and what is available leave no room for a single node")
    return groups, tuple(f'provisioner "{provisioner.name}": {warning}' for warning in warnings)


def limit_of(provisioner: Provisioner, groups: Sequence[NodeGroup]) -> Limit | None:
    """The provisioner's limits over its groups, or None where it has none."""
    if not provisioner.limits:
        return None
    ids = frozenset(group.id for group in groups)
    return Limit(f"provisioner {provisioner.name}", dict(provisioner.limits), node_groups=ids)


def shared_stock(catalogue: Catalogue, groups: Sequence[NodeGroup]) -> tuple[Limit, ...]:
    """A limit per offering of which only so many can be had and which several groups draw on: their own maximum sizes
    would each allow all of it."""
    drawn: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for group in groups:
        drawn[group.instance_type, group.zone, group.capacity_type].add(group.id)
    limits = []
    for offering in catalogue.offerings:
        place = (offering.instance_type.name, offering.zone, offering.capacity_type)
        if offering.available is not None and len(drawn[place]) > 1:
            limits.append(
                Limit(f"offering {'/'.join(place)}", {NODES: offering.available}, node_groups=frozenset(drawn[place]))
            )
    return tuple(limits)


@dataclass(frozen=True, slots=True)
class _Condition:
    place: str
    requirement: Requirement

    def __str__(self) -> str:
        requirement = self.requirement
        values = f" [{_listed(requirement.values)}]" if requirement.values else ""
        return f"{self.place} ({requirement.key} {requirement.operator}{values})"


def _conditions(provisioner: Provisioner) -> list[_Condition]:
    """Labels first, as requirements for one value each (so Karpenter reads them), then the requirements."""
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
    """The node labels that requirements on keys unknown to instance types make: In with one value gives that value;
    of several values that all conditions on the key allow, the first (a node has one, and a provisioner for each
    value says more). None where the conditions on a key cannot all be met."""
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
            warnings.append(f"{source}: the catalogue does not know {key}; nodes get it as a label, unchecked")
    return labels


def _matching(
    offerings: Sequence[Offering],
    conditions: Iterable[_Condition],
    warnings: list[str],
) -> list[Offering]:
    """The offerings that meet every condition on a well-known key, and a warning where that leaves none."""
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
                warnings.append(f"{condition}: {_listed(unknown)} matches no instance type; {_nearest(unknown, known)}")
        left = found
    return [offering for offering, _ in left]


def _why_none(condition: _Condition, left: Sequence[Labels], everything: Sequence[Labels]) -> str:
    requirement = condition.requirement
    if not any(matches_requirement(requirement, labels) for labels in everything):
        known = {labels[requirement.key] for labels in everything if requirement.key in labels}
        return f"{condition} matches no instance type of the catalogue; {_nearest(requirement.values, known)}"
    known = {labels[requirement.key] for labels in left if requirement.key in labels}
    return (
        f"{condition} matches none of the {len(left)} offerings that meet the conditions before it; "
        f"{_nearest(requirement.values, known)}"
    )


def _nearest(values: Iterable[str], known: Iterable[str]) -> str:
    """The known values most like the ones asked for, for people."""
    pool = sorted(filter(None, known), key=_naturally)
    if not pool:
        return "none has this label"
    if all(value.isdecimal() for value in pool) and len(pool) > 1:
        return f"values go from {pool[0]} to {pool[-1]}"
    near = dict.fromkeys(match for value in values for match in difflib.get_close_matches(value, pool, n=3, cutoff=0.5))
    if near:
        return f"nearest: {_listed(near)}"
    return f"there is {_listed(pool)}"


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
                    f'node group "{group.id}" has {found}, against {condition}; it stays, as it is explicit'
                )


def _finished(
    group: NodeGroup,
    provisioner: Provisioner,
    labels: Labels,
    limits: Iterable[Resources],
) -> NodeGroup:
    """The group under its provisioner: weight, labels, taints, and no larger than limits have room for."""
    return replace(
        group,
        labels={**labels, **group.labels, provisioner.name_label: provisioner.name},
        taints=tuple(dict.fromkeys((*provisioner.taints, *group.taints))),
        max_size=max(group.min_size, min(group.max_size, *(_room(group, maxima) for maxima in limits))),
        weight=provisioner.weight,
        provisioner=provisioner.name,
    )


def _room(group: NodeGroup, maxima: Resources) -> int:
    """How many nodes of the group alone the limits allow."""
    counted = group.counted_capacity
    return min(
        (most // counted[resource] for resource, most in maxima.items() if counted.get(resource)),
        default=group.max_size,
    )


def _listed(values: Iterable[str], most: int = 5) -> str:
    shown = list(values)
    rest = len(shown) - most
    return ", ".join(shown[:most]) + (f" and {rest} more" if rest > 0 else "")


def _naturally(text: str) -> list[tuple[int, str]]:
    """Sorts m5.2xlarge before m5.12xlarge."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]
