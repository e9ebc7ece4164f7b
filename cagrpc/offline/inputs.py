"""Files to a problem: pods, nodes, provisioners, the catalogue and an earlier plan, with every error of every file at
once. The problem is solved in `planning`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.nodes import INSTANCE_TYPE
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.api.devices.collection import typical
from cagrpc.api.devices.objects import Device
from cagrpc.api.devices.pools import NodeDevices
from cagrpc.api.files import manifests
from cagrpc.api.files.manifests import Manifests
from cagrpc.config.durations import parse_seconds
from cagrpc.config.load import load_devices, load_provisioners
from cagrpc.errors import InvalidConfiguration, InvalidInput
from cagrpc.fleet.catalogue import embedded_catalogue, read_catalogue
from cagrpc.offline.previous import read_previous
from solver import Budget, Problem
from solver.model import NodeGroup, PodSet

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


@dataclass(frozen=True, slots=True)
class ReadProblem:
    problem: Problem
    budget: Budget
    warnings: tuple[str, ...]


def inputs_of(options: Any) -> Inputs:
    """Return the inputs that the flags of `cagrpc plan` name."""
    return Inputs(
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
    found = reader.attempt(
        lambda: manifests.read(
            inputs.pods,
            inputs.nodes,
            now_seconds=now_seconds,
            gang_label=inputs.gang_label,
            schedulers=inputs.schedulers,
        )
    )
    catalogue = reader.attempt(lambda: read_catalogue(inputs.catalogue) if inputs.catalogue else embedded_catalogue())
    pod_sets = found.pod_sets if found else ()
    earlier = inputs.previous
    previous = reader.attempt(lambda: read_previous(earlier, pod_sets)) if earlier else None
    # provisioners cannot be validated without a catalogue
    expanded = reader.attempt(lambda: load_provisioners(inputs.provisioners, catalogue)) if catalogue else None
    named = inputs.devices
    of_groups: Mapping[str, tuple[Device, ...]] | None = {}
    if named is not None and expanded is not None and catalogue is not None:
        of_groups = reader.attempt(partial(load_devices, named, expanded.groups, catalogue))
    if reader.problems or found is None or expanded is None or seconds is None or of_groups is None:
        raise InvalidConfiguration(reader.problems)
    warnings = [*found.warnings, *expanded.warnings]
    if expanded.limits and found.nodes:
        warnings.append(
            "the limits of provisioners count only new nodes here: the provisioners of the nodes in --nodes are unknown"
        )
    groups, pod_sets = _with_devices(found, _with_attachments(found, expanded.groups), of_groups)
    problem = Problem(pod_sets, groups, found.nodes, expanded.limits, found.daemon_sets, previous)
    return ReadProblem(problem, Budget(seconds), tuple(warnings))


def _with_attachments(found: Manifests, groups: tuple[NodeGroup, ...]) -> tuple[NodeGroup, ...]:
    """Return node groups with the number of volumes that a new node attaches."""
    return tuple(
        replace(group, allocatable=found.storage.of_group(group.allocatable, group.instance_type, found.nodes))
        for group in groups
    )


def _with_devices(
    found: Manifests, groups: tuple[NodeGroup, ...], configured: Mapping[str, tuple[Device, ...]]
) -> tuple[tuple[NodeGroup, ...], tuple[PodSet, ...]]:
    """Return node groups with the devices of a new node, as nodes of their instance type have them or else as
    configured; and pods, unschedulable where they need devices that planning gives to nobody."""
    matching = found.devices
    if not matching.any:
        return groups, found.pod_sets
    of_type: defaultdict[str, list[NodeDevices]] = defaultdict(list)
    for node in found.nodes:
        published = matching.published(node.name)
        if published is not None:
            of_type[node.labels.get(INSTANCE_TYPE, "")].append(published)
    described = []
    for group in groups:
        seen = typical(of_type[group.instance_type]) if group.instance_type else None
        template = seen or NodeDevices(configured.get(group.id, ()))
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
