"""Files, or a running cluster, to a problem: pods, nodes, provisioners, the catalogue and an earlier plan, with every
error of every file at once. The problem is solved in `planning`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.api.devices.objects import Device
from cagrpc.api.files.documents import ManifestDocument, pods_of_table, read_text
from cagrpc.api.files.documents import documents as read_documents
from cagrpc.cluster.documents import Described, DocumentReader
from cagrpc.config.files import load_devices, load_provisioners
from cagrpc.controllers.assume_cache.snapshot import Snapshot
from cagrpc.controllers.planning.problem import question
from cagrpc.durations import seconds_of_flag
from cagrpc.errors import InvalidConfiguration, InvalidInput
from cagrpc.fleet.catalogue import Catalogue, embedded_catalogue, read_catalogue
from cagrpc.fleet.model import FleetSnapshot, GroupState
from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from cagrpc.offline.previous import read_previous
from solver import Budget, Problem
from solver.model import NODES, Labels, Limit, Node, NodeGroup, PodSet

_POOLS = (
    NODEPOOL_LABEL,
    "karpenter.sh/provisioner-name",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "kops.k8s.io/instancegroup",
    "cluster.x-k8s.io/deployment-name",
)
"""Labels with the provisioner, NodePool or node pool of a node."""


T = TypeVar("T")
_MOST_PROBLEMS = 10


def pool_of(labels: Labels) -> str:
    """Return the provisioner, NodePool or node pool of a node; empty where it has none."""
    return next((labels[key] for key in _POOLS if labels.get(key)), "")


def with_nodes(limits: Sequence[Limit], groups: Sequence[NodeGroup], nodes: Iterable[Node]) -> tuple[Limit, ...]:
    """Return the limits of these node groups with what existing nodes take of them, by their provisioners."""
    provisioner_of = {each.id: each.provisioner for each in groups}
    standing = [(pool_of(each.labels), {**each.allocatable, NODES: 1}) for each in nodes]
    found = []
    for limit in limits:
        mine = None if limit.node_groups is None else {provisioner_of.get(each) for each in limit.node_groups}
        used = Counter(limit.used)
        for pool, capacity in standing:
            if mine is None or pool in mine:
                used.update(capacity)
        found.append(replace(limit, used=dict(used)))
    return tuple(found)


if TYPE_CHECKING:
    from cagrpc.offline.dry_run import LiveCluster


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
    seconds = reader.attempt(lambda: seconds_of_flag(inputs.budget, "--budget"))
    now_seconds = time.time()  # noqa: TID251 - pods' ages
    catalogue = reader.attempt(lambda: read_catalogue(inputs.catalogue) if inputs.catalogue else embedded_catalogue())
    documents = DocumentReader(now_seconds, inputs.gang_label, inputs.schedulers)
    tables: list[PodSet] = []
    cluster = None
    if inputs.kubeconfig:
        cluster = reader.attempt(lambda: _cluster(inputs, catalogue))
    else:
        tables = read_files(inputs.pods, inputs.nodes, documents)
    # provisioners cannot be validated without a catalogue
    expanded = cluster.provisioners if cluster else None
    if inputs.provisioners and catalogue:
        expanded = reader.attempt(lambda: load_provisioners(inputs.provisioners, catalogue))
    named = inputs.devices
    of_groups: Mapping[str, tuple[Device, ...]] | None = {}
    if named is not None and expanded is not None and catalogue is not None:
        of_groups = reader.attempt(partial(load_devices, named, expanded.groups, catalogue))
    if cluster is not None:
        documents.documents += cluster.listed.documents
        documents.bound, documents.listed = cluster.listed.bound, cluster.listed.listed
    found = documents.read(of_groups)
    unreadable = list(dict.fromkeys(documents.problems))  # a template may be used twice
    if cluster is None:
        reader.problems += unreadable
    earlier = inputs.previous
    pod_sets = [*tables, *(each.pod_set for each in found.state.waiting)]
    previous = reader.attempt(lambda: read_previous(earlier, pod_sets)) if earlier else None
    if reader.problems or expanded is None or seconds is None or of_groups is None:
        raise InvalidConfiguration(reader.problems)
    warnings = [*(cluster.warnings if cluster else ()), *found.warnings, *expanded.warnings]
    limits = expanded.limits
    if cluster is not None:
        warnings += _left_out(unreadable)
        limits = with_nodes(limits, expanded.groups, [each.node for each in found.state.nodes])
    elif limits and found.state.nodes:
        warnings.append(
            "the limits of provisioners count only new nodes here: the provisioners of the nodes in --nodes are unknown"
        )
    problem = problem_of(found, expanded.groups, limits, tables)
    return ReadProblem(replace(problem, previous=previous), Budget(seconds), tuple(warnings))


def read_files(paths: Sequence[Path], paths_of_nodes: Sequence[Path], reader: DocumentReader) -> list[PodSet]:
    """Add the objects of all files to `reader`: YAML or JSON manifests, or CSV by the suffix `.csv`, of which the pod
    sets are returned; of `paths_of_nodes` only nodes, the pods bound to one and what these need. A file named twice is
    read once."""
    tables: list[PodSet] = []
    for path in dict.fromkeys((*paths, *paths_of_nodes)):
        text = read_text(path, reader.problems)
        if text is None:
            continue
        before = len(reader.problems)
        found: list[ManifestDocument] = []
        if path.suffix.lower() == ".csv" and path in paths:
            tables += pods_of_table(path, text, reader.problems)
        else:
            found = list(read_documents(path, text, reader.problems))
            reader.documents += found if path in paths else reader.of_nodes(found)
        if path in paths_of_nodes and len(reader.problems) == before and not any(d.kind == "Node" for d in found):
            reader.problems.append(f"{path}: has no Node; --nodes takes Kubernetes nodes, and pods bound to them")
    return tables


def problem_of(
    found: Described, groups: Sequence[NodeGroup], limits: Sequence[Limit], tables: Sequence[PodSet] = ()
) -> Problem:
    """Return the problem of a cluster beside these node groups, of which no node stands."""
    states = {each.id: GroupState(each, each.target_size) for each in groups}
    snapshot = Snapshot(FleetSnapshot(0, states, (), {}, limits=tuple(limits)), found.state)
    problem = question(snapshot, found.state, snapshot.placed()).problem
    least = {each.id: each.min_size for each in groups}
    return replace(
        problem,
        pod_sets=(*tables, *problem.pod_sets, *found.placeholders),
        node_groups=tuple(replace(each, min_size=least[each.id]) for each in problem.node_groups),
    )


def _left_out(problems: Sequence[str]) -> Iterator[str]:
    yield from (f"left out: {problem}" for problem in problems[:_MOST_PROBLEMS])
    if len(problems) > _MOST_PROBLEMS:
        yield f"left out: and {len(problems) - _MOST_PROBLEMS} more problems of objects"


def _cluster(inputs: Inputs, catalogue: Catalogue | None) -> LiveCluster:
    from cagrpc.offline.dry_run import read_live  # noqa: PLC0415 - it brings the client

    assert inputs.kubeconfig is not None
    return read_live(inputs.kubeconfig, inputs.context, catalogue=None if inputs.provisioners else catalogue)


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
