"""Expanding configured provisioners to node groups, limits and autoscaling options, for a server and offline planning.

How one provisioner expands is in `cagrpc.fleet.provisioners`; here is what depends on the configuration: explicit node
groups, files of them, options, the GPU label, duplicate ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.config.schema import karpenter, provisioners
from cagrpc.config.schema.recorded import read_recorded_groups
from cagrpc.config.topology import in_domains
from cagrpc.controllers.settings import ProvisionerDisruption
from cagrpc.fleet.catalogue import (
    ARCH,
    CAPACITY_TYPE,
    GPU_NAME,
    GPU_VENDORS,
    INSTANCE_TYPE,
    OS,
    ZONE,
    Catalogue,
)
from cagrpc.fleet.provisioners import Provisioner, expand, group_of, limit_of, shared_stock
from solver.model import UNLIMITED_SIZE, Limit, NodeGroup, Resources

Entry = provisioners.ProvisionerForm | karpenter.NodePool | karpenter.ProvisionerV1Alpha5
"""A validated provisioner, in any of its forms."""


@dataclass(frozen=True, slots=True)
class Written:
    """An entry with the path that its problems begin with and the directory that its file names are relative to."""

    place: str
    entry: Entry
    directory: Path


@dataclass(frozen=True, slots=True)
class Expanded:
    """The result of expanding provisioners."""

    provisioners: tuple[Provisioner, ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    limits: tuple[Limit, ...] = ()
    explicit: frozenset[str] = frozenset()
    """Ids of explicit node groups."""
    options: Mapping[str, AutoscalingOptions] = field(default_factory=dict)
    """By node group id; only groups with configured options."""
    disruption: Mapping[str, ProvisionerDisruption] = field(default_factory=dict)
    """By provisioner that says something of it."""
    warnings: tuple[str, ...] = ()


def expand_all(
    written: Iterable[Written],
    catalogue: Catalogue,
    problems: list[str],
    *,
    cluster_limits: Resources | None = None,
    gpu_label: str = "",
    autoscaling: AutoscalingOptions | None = None,
    has_nodes: bool = True,
    catalogued: bool = True,
) -> Expanded:
    """Return the node groups of all provisioners, in order, and what goes with them; add duplicate ids to `problems`.
    Groups with GPUs get `gpu_label` unless they have it. Unless the fleet `has_nodes` there are no groups, and unless
    they are `catalogued` only explicit ones."""
    made: list[Provisioner] = []
    groups: list[NodeGroup] = []
    limits: list[Limit] = []
    explicit: set[str] = set()
    options: dict[str, AutoscalingOptions] = {}
    disruption: dict[str, ProvisionerDisruption] = {}
    warnings: list[str] = []
    places: dict[str, str] = {}
    for item in written:
        form = item.entry if isinstance(item.entry, provisioners.ProvisionerForm) else None
        provisioner = _provisioner(item, catalogue)
        entries = (form and form.node_groups) or ()
        of_groups = {each.id: each.autoscaling for each in entries if isinstance(each, provisioners.NodeGroupForm)}
        of_provisioner = None if form is None else form.autoscaling
        expands = has_nodes and (catalogued or bool(provisioner.node_groups))
        expanded, found = expand(provisioner, catalogue, cluster_limits) if expands else ((), ())
        warnings.extend(found)
        expanded, of_domains = _with_topology(expanded, item, entries, form, problems)
        limits.extend(of_domains)
        for group in expanded:
            # Two provisioners of one name are a problem of their own, and no further one of each of their groups.
            if group.id in places and all(each.name != provisioner.name for each in made):
                problems.append(f'{item.place}: the node group id "{group.id}" is {places[group.id]}\'s already')
            places.setdefault(group.id, item.place)
            chosen = AutoscalingOptions()
            options_of = next((of_groups[each] for each in _ids(group.id) if each in of_groups), None)
            for layer in (options_of, of_provisioner, autoscaling):
                chosen = chosen.over(layer)
            if not chosen.are_defaults:
                options[group.id] = chosen
        if has_nodes and provisioner.node_groups is not None:
            explicit.update(group.id for group in expanded)
        made.append(provisioner)
        if (own_words := _disruption(item.entry)) is not None:
            disruption[provisioner.name] = own_words
        groups.extend(_with_gpu_label(group, gpu_label) for group in expanded)
        if (limit := limit_of(provisioner, expanded)) is not None:
            limits.append(limit)
    limits.extend(shared_stock(catalogue, groups))
    return Expanded(
        tuple(made), tuple(groups), tuple(limits), frozenset(explicit), options, disruption, tuple(warnings)
    )  # fmt: skip


def _with_topology(
    groups: Sequence[NodeGroup],
    item: Written,
    entries: Iterable[provisioners.NodeGroupEntry],
    form: provisioners.ProvisionerForm | None,
    problems: list[str],
) -> tuple[tuple[NodeGroup, ...], tuple[Limit, ...]]:
    """Return the groups of a provisioner in their topology domains, with the limits over these."""
    own = {each.id: each.topology for each in entries if isinstance(each, provisioners.NodeGroupForm) and each.topology}
    shared = [group for group in groups if group.id not in own]
    found, limits = in_domains(shared, None if form is None else form.topology, item.place, problems)
    for group in groups:
        if group.id in own:
            more, further = in_domains([group], own[group.id], item.place, problems)
            found, limits = (*found, *more), (*limits, *further)
    return found, limits


def _ids(group_id: str) -> Iterator[str]:
    """Yield a group's id, and those that it may have been made of."""
    while group_id:
        yield group_id
        group_id = group_id.rpartition("/")[0]


def _disruption(entry: Entry) -> ProvisionerDisruption | None:
    if isinstance(entry, karpenter.NodePool):
        return entry.spec.disruption
    return entry.disruption if isinstance(entry, provisioners.ProvisionerForm) else None


def _provisioner(written: Written, catalogue: Catalogue) -> Provisioner:
    """Return the fleet's value."""
    entry = written.entry
    if not isinstance(entry, provisioners.ProvisionerForm):
        return entry.provisioner()
    node_groups = [group for each in entry.node_groups or () for group in _groups(each, written.directory, catalogue)]
    return Provisioner(
        name=entry.name,
        weight=entry.weight or 0,
        requirements=entry.requirements,
        labels=dict(entry.labels),
        post_registration_labels=dict(entry.post_registration_labels),
        taints=entry.taints,
        startup_taints=entry.startup_taints,
        limits=entry.limits,
        allocatable=entry.allocatable,
        node_groups=tuple(node_groups) if entry.node_groups or entry.groups else None,
        groups=entry.groups,
    )


def _groups(entry: provisioners.NodeGroupEntry, directory: Path, catalogue: Catalogue) -> Iterable[NodeGroup]:
    if isinstance(entry, provisioners.NodeGroupFile):
        recorded = {each.id: each for each in read_recorded_groups(directory / entry.file)}
        return [recorded[group_id] for group_id in entry.ids or recorded]
    return [_group(entry, catalogue)]


def _group(form: provisioners.NodeGroupForm, catalogue: Catalogue) -> NodeGroup:
    if form.allocatable is None:
        offering = form.offering(catalogue)
        group = group_of(form.id, offering)
        # What is available limits the group, whatever size is configured.
        available = offering.available
    else:
        group, available = _with_shape(form), None
    price = form.price_usd_per_hour
    bounds = (UNLIMITED_SIZE, form.max_size, available)
    return replace(
        group,
        price_usd_per_hour=group.price_usd_per_hour if price is None else price,
        labels={**group.labels, **form.post_registration_labels, **form.labels},
        post_registration_labels=frozenset(
            form.post_registration_labels.keys() - form.labels.keys() - group.labels.keys()
        ),
        taints=form.taints,
        min_size=form.min_size,
        max_size=max(form.min_size, min(each for each in bounds if each is not None)),
    )


def _with_shape(form: provisioners.NodeGroupForm) -> NodeGroup:
    """Return a group with a configured shape."""
    labels = {
        ARCH: form.arch or "amd64",
        OS: "linux",
        INSTANCE_TYPE: form.instance_type,
        ZONE: form.zone,
        CAPACITY_TYPE: form.capacity_type,
    }
    return NodeGroup(
        id=form.id,
        allocatable=form.allocatable or {},
        price_usd_per_hour=form.price_usd_per_hour or 0.0,
        labels={key: value for key, value in labels.items() if value},
        instance_type=form.instance_type or "",
        zone=form.zone or "",
        capacity_type=form.capacity_type or "",
    )


def _with_gpu_label(group: NodeGroup, gpu_label: str) -> NodeGroup:
    """Return the group with the GPU label if it has GPUs: CA takes a node with the label but without GPUs for
    unready."""
    vendor = next((name for resource, name in GPU_VENDORS.items() if group.allocatable.get(resource)), "")
    if not gpu_label or not vendor or gpu_label in group.labels:
        return group
    return replace(group, labels={**group.labels, gpu_label: group.labels.get(GPU_NAME, vendor)})
