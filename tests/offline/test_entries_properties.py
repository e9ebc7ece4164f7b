"""The same cluster, from watches, from files and from lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.cluster.documents import Described, DocumentReader
from cagrpc.offline.inputs import problem_of
from cagrpc.offline.live import read_resources
from solver.model import NodeGroup, Problem
from tests.support.controllers.cluster_objects import NOW, comparable
from tests.support.drawn_clusters import Objects, clusters, printed, served, watched
from tests.support.examples import examples

_GROUP = NodeGroup("g", {"cpu": 8000, "memory": 2**34, "pods": 110}, 1.0, instance_type="m7i.xlarge", zone="zone-1")


def of_files(objects: Objects) -> DocumentReader:
    reader = DocumentReader(NOW, DEFAULT_GANG_LABEL)
    reader.add(printed(objects))
    return reader


def of_lists(objects: Objects) -> DocumentReader:
    reader = DocumentReader(NOW, DEFAULT_GANG_LABEL)
    assert not read_resources(served(objects).client(), reader)
    return reader


def of_state(state: Any) -> Any:
    """Return a state but for what no entry says in the same words or at the same time."""
    one, nodes = comparable(replace(state, warnings=(), consumers_missing_annotation=()))
    return one, nodes


def of_problem(problem: Problem) -> Any:
    nodes = {each.name: replace(each, running=(), free={}) for each in problem.nodes}
    free = {each.name: {name: of for name, of in each.free.items() if of} for each in problem.nodes}
    running = {each.name: {(of.spec, of.count) for of in each.running} for each in problem.nodes}
    return replace(problem, nodes=()), nodes, free, running


@examples(300)
@given(clusters(waiting=True), st.sampled_from((of_files, of_lists)))
def test_a_cluster_is_the_same_whoever_brings_its_objects(objects: Objects, read: Any) -> None:
    state = watched(objects).state()
    reader = read(objects)
    found = reader.read()
    assert not reader.problems
    assert of_state(found.state) == of_state(state)
    assert found.state.consumers_missing_annotation == state.consumers_missing_annotation
    assert of_problem(problem_of(found, (_GROUP,), ())) == of_problem(problem_of(Described(state), (_GROUP,), ()))
