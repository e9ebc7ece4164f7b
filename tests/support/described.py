"""Clusters that files describe, as planning takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cagrpc.cluster.documents import DocumentReader
from cagrpc.errors import InvalidInput
from cagrpc.offline.inputs import problem_of, read_files
from solver.model import Node, NodeGroup, PodSet, PodSpec


@dataclass(frozen=True)
class FromFiles:
    """A problem without what is not of its files."""

    pod_sets: tuple[PodSet, ...] = ()
    nodes: tuple[Node, ...] = ()
    daemon_sets: tuple[PodSpec, ...] = ()
    warnings: tuple[str, ...] = ()
    groups: tuple[NodeGroup, ...] = ()
    pods: Mapping[str, PodSet] = field(default_factory=dict, compare=False)
    """By namespace and name, the pods of which each is one."""


def read(
    paths: Sequence[Path],
    paths_of_nodes: Sequence[Path] = (),
    *,
    now_seconds: float = 0.0,
    groups: Sequence[NodeGroup] = (),
    **options: object,
) -> FromFiles:
    """Raises InvalidInput with every problem of every file, one a line."""
    reader = DocumentReader(now_seconds, **options)  # type: ignore[arg-type]
    tables = read_files(paths, paths_of_nodes, reader)
    found = reader.read()
    if reader.problems:
        raise InvalidInput("\n".join(dict.fromkeys(reader.problems)))
    problem = problem_of(found, groups, (), tables)
    pods = {
        f"{pod.namespace}/{pod.name}": replace(each.pod_set, spec=found.state.devices.left_out(each.pod_set.spec))
        for each in found.state.waiting
        for pod in each.pods
    }
    return FromFiles(problem.pod_sets, problem.nodes, problem.daemon_sets, found.warnings, problem.node_groups, pods)
