"""Expanding configured provisioners to node groups, limits and autoscaling options, for a server and offline planning.

How one provisioner expands is in `cagrpc.fleet.provisioners`; here is what depends on the configuration: explicit node
groups, files of them, options, the GPU label, duplicate ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.config.schema import karpenter, provisioners
from cagrpc.config.schema.recorded import read_recorded_groups
from cagrpc.controllers.settings import ProvisionerDisruption
from cagrpc.fleet.catalogue import (
    ARCH,
    CAPACITY_TYPE,
    GPU_NAME,
    INSTANCE_TYPE,
    NVIDIA_GPU,
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
) -> Expanded:
    """Return the node groups of all provisioners, in order, and what goes with them; add duplicate ids to `problems`.
    Groups with NVIDIA GPUs get `gpu_label` unless they have it. Unless the fleet `has_nodes` there are no groups."""
    provisioners: list[Provisioner] = []
    groups: list[NodeGroup] = []
    limits: list[Limit] = []
    explicit: set[str] = set()
    options: dict[str, AutoscalingOptions] = {}
    disruption: dict[str, ProvisionerDisruption] = {}
    warnings: list[str] = []
    places: dict[str, str] = {}
    for item in written:
        own = _Conversion(item, catalogue)
        provisioner = own.provisioner()
        expanded, found = expand(provisioner, catalogue, cluster_limits) if has_nodes else ((), ())
        warnings.extend(found)
        for group in expanded:
            if group.id in places:
                problems.append(f'{item.place}: the node group id "{group.id}" is {places[group.id]}\'s already')
            places.setdefault(group.id, item.place)
            chosen = AutoscalingOptions()
            for layer in (own.autoscaling_of.get(group.id), own.autoscaling, autoscaling):
                chosen = chosen.over(layer)
            if not chosen.are_defaults:
                options[group.id] = chosen
        if has_nodes and provisioner.node_groups is not None:
            explicit.update(group.id for group in provisioner.node_groups)
        provisioners.append(provisioner)
        if (own_words := _disruption(item.entry)) is not None:
            disruption[provisioner.name] = own_words
        groups.extend(_with_gpu_label(group, gpu_label) for group in expanded)
        if (limit := limit_of(provisioner, expanded)) is not None:
            limits.append(limit)
    limits.extend(shared_stock(catalogue, groups))
    return Expanded(
        tuple(provisioners), tuple(groups), tuple(limits), frozenset(explicit), options, disruption, tuple(warnings)
    )  # fmt: skip


def _disruption(entry: Entry) -> ProvisionerDisruption | None:
    if isinstance(entry, karpenter.NodePool):
        return entry.spec.disruption
    return entry.disruption if isinstance(entry, provisioners.ProvisionerForm) else None


class _Conversion:
    """The conversion of one entry to a provisioner, with the options that it contains."""

    def __init__(self, written: Written, catalogue: Catalogue) -> None:
        self._written, self._catalogue = written, catalogue
        self.autoscaling: AutoscalingOptions | None = None
        self.autoscaling_of: dict[str, AutoscalingOptions] = {}

    def provisioner(self) -> Provisioner:
        """Return the fleet's value; set the options as well."""
        entry = self._written.entry
        if not isinstance(entry, provisioners.ProvisionerForm):
            return entry.provisioner()
        self.autoscaling = entry.autoscaling
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
            node_groups=tuple(self._groups(entry.node_groups or ())) if entry.node_groups or entry.groups else None,
            groups=entry.groups,
        )

    def _groups(self, entries: Sequence[provisioners.NodeGroupEntry]) -> Iterable[NodeGroup]:
        directory = self._written.directory
        for entry in entries:
            if isinstance(entry, provisioners.NodeGroupFile):
                recorded = {each.group.id: each.group for each in read_recorded_groups(directory / entry.file)}
                yield from (recorded[group_id] for group_id in entry.ids or recorded)
                continue
            if entry.autoscaling is not None:
                self.autoscaling_of[entry.id] = entry.autoscaling
            yield self._group(entry)

    def _group(self, form: provisioners.NodeGroupForm) -> NodeGroup:
        if form.allocatable is None:
            offering = form.offering(self._catalogue)
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
    """Return the group with the GPU label if it has NVIDIA GPUs: CA takes a node with the label but without GPUs for
    unready."""
    if not gpu_label or not group.allocatable.get(NVIDIA_GPU) or gpu_label in group.labels:
        return group
    return replace(group, labels={**group.labels, gpu_label: group.labels.get(GPU_NAME, "nvidia")})
