"""Files, or a running cluster, to a cluster that was read and, for a plan, to a problem: pods, nodes, provisioners, the
catalogue, prices and an earlier plan, with every error of every file at once. What `cagrpc plan`, `explain` and
`report` are given is read here alone. The problem is solved in `planning`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cagrpc.api.core import feature_gates
from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.api.devices.objects import Device
from cagrpc.api.encoding.json_documents import Problems
from cagrpc.api.files.documents import ManifestDocument, documents, pods_of_table
from cagrpc.api.files.unknown_fields import checked
from cagrpc.cluster.documents import READ, WITH_PODS, Described, DocumentReader, counted
from cagrpc.cluster.drop_invalid import drop_invalid, faults
from cagrpc.cluster.quotas import quota_limits
from cagrpc.cluster.state import ClusterNode
from cagrpc.config.files import load_devices, load_provisioners
from cagrpc.config.groups import Expanded
from cagrpc.config.reading import price_list
from cagrpc.controllers.planning.problem import beside
from cagrpc.durations import seconds_of_flag
from cagrpc.errors import InvalidConfiguration, InvalidInput, attempt
from cagrpc.fleet.catalogue import Catalogue, embedded_catalogue, read_catalogue
from cagrpc.fleet.prices import PriceList
from cagrpc.fleet.provisioners import NODEPOOL_LABEL, Widen, as_it_is, pool_of, startup_taints, widened
from cagrpc.offline.previous import read_previous
from solver import Budget, Problem
from solver.model import NODES, Limit, NodeGroup, PodSet, PodSpec
from solver.model.quantities import pluralize

if TYPE_CHECKING:
    from cagrpc.offline.live import Unread

_MOST_PROBLEMS = 10


def with_nodes(limits: Sequence[Limit], groups: Sequence[NodeGroup], nodes: Iterable[ClusterNode]) -> tuple[Limit, ...]:
    """Return the limits of these node groups with what existing nodes take of them, by their provisioners: of each
    resource the capacity, as of new nodes, where it is known."""
    provisioner_of = {each.id: each.provisioner for each in groups}
    standing = [(pool_of(of.node.labels), {**of.node.allocatable, **of.capacity, NODES: 1}) for of in nodes]
    found = []
    for limit in limits:
        mine = None if limit.node_groups is None else {provisioner_of.get(each) for each in limit.node_groups}
        used = Counter(limit.used)
        for pool, capacity in standing:
            if mine is None or pool in mine:
                used.update(capacity)
        found.append(replace(limit, used=dict(used)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the flags of `cagrpc plan`, `explain` and `report` name."""

    pods: tuple[Path, ...] = ()
    """Kubernetes manifests, or CSV."""
    provisioners: tuple[Path, ...] = ()
    nodes: tuple[Path, ...] = ()
    """Manifests of existing nodes, and of the pods bound to them."""
    catalogue: Path | None = None
    """None for the embedded one."""
    prices: Path | None = None
    """A table of prices, which come before the catalogue's."""
    devices: Path | None = None
    """The section `devices` of a configuration: what DRA drivers publish of new nodes."""
    previous: Path | None = None
    """A plan not yet applied, as `plan_report.as_json` writes it."""
    gang_label: str = DEFAULT_GANG_LABEL
    schedulers: frozenset[str] = DEFAULT_SCHEDULERS
    """Whose pods are planned."""
    feature_gates: frozenset[str] = frozenset()
    """Kubernetes' that are on."""
    kubeconfig: Path | None = None
    """Of a running cluster, instead of `pods` and `nodes`; a plan without `provisioners` takes its own as well."""
    context: str = ""
    """Of the kubeconfig; empty for its current one."""
    recording: str = ""
    """Of a report, instead of all these: a recorded conversation of a cluster-autoscaler."""


@dataclass(frozen=True, slots=True)
class ReadInputs:
    """A cluster that was read, and what there is to plan it with."""

    reader: DocumentReader
    found: Described
    prices: PriceList
    expanded: Expanded | None = None
    """None without provisioners."""
    tables: Sequence[PodSet] = ()
    """Pods without a node, of tables."""
    unread: Sequence[Unread] = ()
    left_out: Sequence[str] = ()
    """Of a running cluster, in which one object stops nothing: what could not be read."""
    widen: Widen = as_it_is


@dataclass(frozen=True, slots=True)
class ReadProblem:
    problem: Problem
    budget: Budget
    warnings: tuple[str, ...]
    widen: Widen


def inputs_of(options: Any, kubeconfig: Path | None) -> Inputs:
    """Return the inputs that the flags of a command name."""
    return Inputs(
        kubeconfig=kubeconfig,
        context=options.context,
        recording=options.recording,
        pods=tuple(options.pods),
        provisioners=tuple(options.provisioners),
        nodes=tuple(options.nodes),
        catalogue=options.catalogue,
        prices=options.prices,
        devices=options.devices,
        previous=options.previous,
        gang_label=options.gang_label or DEFAULT_GANG_LABEL,
        schedulers=frozenset(options.scheduler or DEFAULT_SCHEDULERS),
        feature_gates=feature_gates.named(options.feature_gate or ()),
    )


def read_problem(inputs: Inputs, budget: str = "1s") -> ReadProblem:
    """Return what is to be planned, within a budget such as 500ms, 1s or 2m. Raises InvalidInput where the inputs do
    not go together, InvalidConfiguration with every problem of every file."""
    if inputs.kubeconfig is not None and (inputs.pods or inputs.nodes):
        raise InvalidInput("give either --pods and --nodes (files), or --kubeconfig (a running cluster)")
    if inputs.kubeconfig is None and not (inputs.pods and inputs.provisioners):
        raise InvalidInput("give --pods and --provisioners (files), or --kubeconfig (a running cluster)")
    problems: Problems = []
    seconds = attempt(problems, lambda: seconds_of_flag(budget, "--budget"))
    now_seconds = time.time()  # noqa: TID251 - pods' ages
    read = read_inputs(inputs, DocumentReader(now_seconds, inputs.gang_label, inputs.schedulers), problems)
    pod_sets = [*read.tables, *(each.pod_set for each in read.found.state.waiting)]
    files = tuple(map(str, inputs.pods))
    kinds = Counter(each.kind for each in read.reader.documents if each.place.startswith(files))
    if inputs.kubeconfig is None and not problems and not pod_sets and not read.reader.has_left_out:
        problems.append(f"{', '.join(files)}: {_no_pods(kinds, bool(read.reader.bound))}")
    earlier = inputs.previous
    previous = attempt(problems, lambda: read_previous(earlier, pod_sets)) if earlier else None
    expanded = read.expanded
    if problems or expanded is None or seconds is None:
        raise InvalidConfiguration(problems)
    warnings = [f"{each.resource}: {each.meaning}" for each in read.unread if not each.meaning.startswith("none")]
    warnings += (*read.found.warnings, *expanded.warnings, *read.left_out)
    nodes = read.found.state.nodes
    limits = with_nodes(expanded.limits, expanded.groups, nodes)
    unknown = [each.node.name for each in nodes if not pool_of(each.node.labels)]
    if limits and unknown:
        warnings.append(
            f"the limits of provisioners do not count {pluralize(len(unknown), 'node')} without a label that says whose"
            f" they are, for example {unknown[0]}; Karpenter's is {NODEPOOL_LABEL}"
        )
    limits += quota_limits(read.found.state.capacity_quotas, expanded.groups, nodes)
    problem, beyond = as_can_be_planned(problem_of(read.found, expanded.groups, limits, read.tables))
    warnings += beyond
    return ReadProblem(replace(problem, previous=previous), Budget(seconds), tuple(warnings), read.widen)


def _no_pods(kinds: Counter[str], on_nodes: bool) -> str:
    """Return what files hold that have no pod to plan for, and none that is left out."""
    if on_nodes and not kinds:
        return "found only Pods that have a node already; expected pending ones"
    if not kinds.keys() & WITH_PODS:
        return f"found {counted(kinds) or 'nothing'}; expected Pods, Deployments, Jobs or the like"
    why = "a workload with 0 replicas has none, nor does one that is done"
    if kinds["StatefulSet"]:
        why += ", or a StatefulSet that creates one pod at a time and waits until the last one is Ready"
    return f"found {counted(kinds)}, but no pending pod: {why}"


def read_inputs(inputs: Inputs, reader: DocumentReader, problems: Problems) -> ReadInputs:
    """Read the cluster, with `reader`, and what else the inputs name. Everything that is wrong is added to
    `problems`."""
    feature_gates.enable(inputs.feature_gates)
    catalogue = attempt(
        problems, lambda: read_catalogue(inputs.catalogue) if inputs.catalogue else embedded_catalogue()
    )
    known = catalogue or embedded_catalogue()
    prices = attempt(problems, lambda: price_list(known, inputs.prices)) or PriceList(known)
    tables: list[PodSet] = []
    unread: Sequence[Unread] = ()
    expanded = None
    if inputs.kubeconfig is not None:
        unread, expanded = attempt(problems, lambda: _read_live(inputs, reader, catalogue)) or ((), None)
    else:
        tables = read_files(inputs.pods, inputs.nodes, reader)
    # provisioners cannot be validated without a catalogue
    if inputs.provisioners and catalogue:
        expanded = attempt(problems, lambda: load_provisioners(inputs.provisioners, catalogue))
    devices: Mapping[str, tuple[Device, ...]] = {}
    named, groups = inputs.devices, expanded.groups if expanded is not None else ()
    if named is not None and expanded is not None:
        devices = attempt(problems, lambda: load_devices(named, groups, known)) or {}
    found = reader.read(devices, startup_taints(expanded.provisioners) if expanded is not None else frozenset())
    unreadable = list(dict.fromkeys(reader.problems))  # a template may be used twice
    if inputs.kubeconfig is None:
        problems += unreadable
        unreadable = []
    widen = partial(widened, expanded.provisioners, known) if expanded is not None else as_it_is
    return ReadInputs(reader, found, prices, expanded, tables, unread, tuple(_left_out(unreadable)), widen)


def _read_live(
    inputs: Inputs, reader: DocumentReader, catalogue: Catalogue | None
) -> tuple[Sequence[Unread], Expanded | None]:
    """Read a running cluster; return what could not be listed and, to plan with, its own provisioners."""
    from cagrpc.offline.live import read_live  # noqa: PLC0415 - it brings the client

    assert inputs.kubeconfig is not None
    own = not inputs.provisioners and reader.moving is None
    return read_live(inputs.kubeconfig, inputs.context, reader, catalogue if own else None)


def read_files(paths: Sequence[Path], paths_of_nodes: Sequence[Path], reader: DocumentReader) -> list[PodSet]:
    """Add the objects of all files to `reader`: YAML or JSON manifests, or CSV by the suffix `.csv`, of which the pod
    sets are returned; of `paths_of_nodes` only nodes, the pods bound to one and what these need. A file named twice is
    read once."""
    tables: list[PodSet] = []
    for path in dict.fromkeys((*paths, *paths_of_nodes)):
        before, nodes = len(reader.problems), len(reader.documents)
        if path.suffix.lower() == ".csv" and path in paths:
            tables += pods_of_table(path, reader.problems)
        else:
            found: Iterable[ManifestDocument] = documents(path, reader.problems)
            found = found if path in paths else reader.of_nodes(found)
            reader.add(checked(found, READ, reader.problems))
        has_nodes = any(each.kind == "Node" for each in islice(reader.documents, nodes, None))
        if path in paths_of_nodes and len(reader.problems) == before and not has_nodes:
            reader.problems.append(f"{path}: has no Node; --nodes takes Kubernetes nodes, and pods bound to them")
    return tables


def problem_of(
    found: Described, groups: Sequence[NodeGroup], limits: Sequence[Limit], tables: Sequence[PodSet] = ()
) -> Problem:
    """Return the problem of a cluster beside these node groups, of which no node stands."""
    problem = beside(found.state, groups, limits)
    return replace(problem, pod_sets=(*tables, *problem.pod_sets, *found.placeholders))


def as_can_be_planned(problem: Problem) -> tuple[Problem, list[str]]:
    """Return the problem in which valid objects that are beyond what is planned with leave out themselves alone: pods
    are unserved with that reason, Nodes and DaemonSets are not there, and are named."""
    if not faults(problem):
        return problem, []
    kept = drop_invalid(problem)
    valid = set(map(id, kept.pod_sets))
    pods = (each if id(each) in valid else _beyond(each) for each in problem.pod_sets)
    gone = [each for each in problem.nodes if each not in kept.nodes]
    said = [f"left out: node {each.name}: {fault}" for each in gone for fault in faults(Problem((), nodes=(each,)))]
    of_daemons = (faults(Problem((), daemon_sets=(each,))) for each in problem.daemon_sets)
    said += [f"left out: {fault}" for found in of_daemons for fault in found]
    return replace(kept, pod_sets=tuple(pods)), said


def _beyond(pods: PodSet) -> PodSet:
    found = faults(Problem((pods,)))
    why = "; ".join(each.removeprefix(f"pod set {pods.name}: ") for each in found)
    return replace(pods, spec=PodSpec(unschedulable=f"more than planning handles: {why}"))


def _left_out(problems: Sequence[str]) -> Iterator[str]:
    yield from (f"left out: {problem}" for problem in problems[:_MOST_PROBLEMS])
    if len(problems) > _MOST_PROBLEMS:
        yield f"left out: and {len(problems) - _MOST_PROBLEMS} more problems of objects"
