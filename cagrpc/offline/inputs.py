"""Files, or a running cluster, to a problem: pods, nodes, provisioners, the catalogue and an earlier plan, with every
error of every file at once. The problem is solved in `planning`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.nodes import INSTANCE_TYPE
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.api.devices.collection import typical
from cagrpc.api.devices.objects import Device
from cagrpc.api.devices.pools import NodeDevices
from cagrpc.api.files import manifests
from cagrpc.api.files.manifests import Manifests
from cagrpc.config.durations import parse_seconds
from cagrpc.config.files import load_devices, load_provisioners
from cagrpc.errors import InvalidConfiguration, InvalidInput
from cagrpc.fleet.catalogue import Catalogue, embedded_catalogue, read_catalogue
from cagrpc.offline.previous import read_previous
from solver import Budget, Problem
from solver.model import Node, NodeGroup, PodSet

if TYPE_CHECKING:
    from cagrpc.offline.dry_run import LiveCluster

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files to plan from, and the budget."""

    pods: tuple[Path, ...]
    """Kubernetes manifests, or CSV."""
    provisioners: tuple[Path, ...]
    nodes: tuple[Path, ...] = ()
    """Manifests of existing nodes, and of the pods bound to them."""
    catalogue: Path | None = None
    """None for the embedded one."""
    devices: Path | None = None
    """The section `devices` of a configuration: what DRA drivers publish of new nodes."""
    previous: Path | None = None
    """A plan not yet applied, as `plan_report.as_json` writes it."""
    gang_label: str = DEFAULT_GANG_LABEL
    schedulers: frozenset[str] = DEFAULT_SCHEDULERS
    """Whose pods are planned."""
    budget: str = "1s"
    """A duration such as 500ms, 1s or 2m."""
    kubeconfig: Path | None = None
    """Of a running cluster, instead of `pods` and `nodes`; without `provisioners` those are its own as well."""
    context: str = ""
    """Of the kubeconfig; empty for its current one."""


@dataclass(frozen=True, slots=True)
class ReadProblem:
    problem: Problem
    budget: Budget
    warnings: tuple[str, ...]


def inputs_of(options: Any, kubeconfig: Path | None) -> Inputs:
    """Return the inputs that the flags of `cagrpc plan` name. Raises InvalidInput where these do not go together."""
    if kubeconfig is not None and (options.pods or options.nodes):
        raise InvalidInput("give either --pods and --nodes (files), or --kubeconfig (a running cluster)")
    if kubeconfig is None and not (options.pods and options.provisioners):
        raise InvalidInput("give --pods and --provisioners (files), or --kubeconfig (a running cluster)")
    return Inputs(
        kubeconfig=kubeconfig,
        context=options.context,
        pods=tuple(options.pods),
        provisioners=tuple(options.provisioners),
        nodes=tuple(options.nodes),
        catalogue=options.catalog,
        devices=options.devices,
        previous=options.previous,
        gang_label=options.gang_label or DEFAULT_GANG_LABEL,
        schedulers=frozenset(options.scheduler or DEFAULT_SCHEDULERS),
        budget=options.budget,
    )


def read_problem(inputs: Inputs) -> ReadProblem:
    """Read all files. Raises InvalidConfiguration with every problem of every file."""
    reader = _InputReader()
    seconds = reader.attempt(lambda: parse_seconds(inputs.budget, "--budget"))
    now_seconds = time.time()  # noqa: TID251 - pods' ages
    catalogue = reader.attempt(lambda: read_catalogue(inputs.catalogue) if inputs.catalogue else embedded_catalogue())
    cluster = reader.attempt(lambda: _cluster(inputs, now_seconds, catalogue)) if inputs.kubeconfig else None
    if inputs.kubeconfig is None:
        found = reader.attempt(
            lambda: manifests.read(
                inputs.pods,
                inputs.nodes,
                now_seconds=now_seconds,
                gang_label=inputs.gang_label,
                schedulers=inputs.schedulers,
            )
        )
    else:
        found = cluster.manifests if cluster else None
    pod_sets = found.pod_sets if found else ()
    earlier = inputs.previous
    previous = reader.attempt(lambda: read_previous(earlier, pod_sets)) if earlier else None
    # provisioners cannot be validated without a catalogue
    expanded = cluster.provisioners if cluster else None
    if inputs.provisioners and catalogue:
        expanded = reader.attempt(lambda: load_provisioners(inputs.provisioners, catalogue))
    named = inputs.devices
    of_groups: Mapping[str, tuple[Device, ...]] | None = {}
    if named is not None and expanded is not None and catalogue is not None:
        of_groups = reader.attempt(partial(load_devices, named, expanded.groups, catalogue))
    if reader.problems or found is None or expanded is None or seconds is None or of_groups is None:
        raise InvalidConfiguration(reader.problems)
    warnings = [*(cluster.warnings if cluster else ()), *found.warnings, *expanded.warnings]
    limits = expanded.limits
    if cluster is not None:
        from cagrpc.offline.dry_run import with_nodes  # noqa: PLC0415 - it brings the client

        limits = with_nodes(limits, expanded, found.nodes)
    elif limits and found.nodes:
        warnings.append(
            "the limits of provisioners count only new nodes here: the provisioners of the nodes in --nodes are unknown"
        )
    groups, pod_sets = equipped(found, expanded.groups, of_groups, found.nodes)
    problem = Problem(pod_sets, groups, found.nodes, limits, found.daemon_sets, previous)
    return ReadProblem(problem, Budget(seconds), tuple(warnings))


def _cluster(inputs: Inputs, now_seconds: float, catalogue: Catalogue | None) -> LiveCluster:
    from cagrpc.offline.dry_run import read_live  # noqa: PLC0415 - it brings the client

    assert inputs.kubeconfig is not None
    return read_live(
        inputs.kubeconfig,
        inputs.context,
        now_seconds=now_seconds,
        gang_label=inputs.gang_label,
        schedulers=inputs.schedulers,
        catalogue=None if inputs.provisioners else catalogue,
    )


def equipped(
    found: Manifests, groups: tuple[NodeGroup, ...], configured: Mapping[str, tuple[Device, ...]], seen: Sequence[Node]
) -> tuple[tuple[NodeGroup, ...], tuple[PodSet, ...]]:
    """Return node groups with the number of volumes that a new node attaches and its devices, as the nodes `seen` of
    their instance type have them or else as configured; and pods, unschedulable where they need devices that planning
    gives to nobody."""
    attaching = tuple(
        replace(group, allocatable=found.storage.of_group(group.allocatable, group.instance_type, seen))
        for group in groups
    )
    matching = found.devices
    if not matching.any:
        return attaching, found.pod_sets
    of_type: defaultdict[str, list[NodeDevices]] = defaultdict(list)
    for node in seen:
        published = matching.published(node.name)
        if published is not None:
            of_type[node.labels.get(INSTANCE_TYPE, "")].append(published)
    described = []
    for group in attaching:
        of_nodes = typical(of_type[group.instance_type]) if group.instance_type else None
        template = of_nodes or NodeDevices(configured.get(group.id, ()))
        described.append(replace(group, devices=matching.of_group(template, group.allocatable)))
    return tuple(described), tuple(replace(each, spec=matching.left_out(each.spec)) for each in found.pod_sets)


class _InputReader:
    """Collects the problems of several files."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def attempt(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except InvalidInput as error:
            self.problems += error.problems if isinstance(error, InvalidConfiguration) else str(error).splitlines()
            return None
