"""The loads of bench/own_provider_live.py, without its control plane: each can be served, and its server starts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from bench.own_provider_live import LOADS, configure, load_of, template, templates
from cagrpc.config.load import load_settings
from solver import Budget, solve
from tests.support.controlplane.live import Live


class Plane:
    def kubeconfig(self) -> Path:
        return Path("kubeconfig")


class Cluster:
    namespace, plane = "own-1", Plane()


@pytest.mark.parametrize("name", LOADS)
def test_a_load_can_be_served_and_its_configuration_is_valid(name: str, tmp_path: Path) -> None:
    load, cluster = load_of(name), Cluster()
    as_cluster: Any = cluster
    flags = configure(Live(as_cluster, tmp_path), load, argparse.Namespace(batch="3m"))
    settings = load_settings(tmp_path / "cagrpc.yaml")
    assert flags[0] == "--expander-address"
    assert settings.provider is None
    assert settings.answers.batch is not None
    assert settings.answers.batch.window_seconds == 180.0
    assert not solve(load.problem, Budget(deterministic_seconds=0.2)).unplaced


def test_the_gang_fits_none_of_the_two_groups_that_it_uses_best() -> None:
    (train,), groups = load_of("gang").problem.pod_sets, load_of("gang").problem.node_groups
    rooms = [each.max_size * (each.allocatable["cpu"] // 3800) for each in groups]
    assert rooms == [10, 12, 160]
    assert train.count == 24


def test_templates_have_the_most_nodes_of_their_group() -> None:
    limited = next(each for each in load_of("maximum").problem.node_groups if each.id == "g4dn.12xlarge")
    metadata = template(limited)["metadata"]
    assert metadata["annotations"]["cluster-autoscaler.kwok.nodegroup/max-count"] == "60"


def test_no_pod_is_bound_to_a_node_that_never_comes() -> None:
    load = load_of("no-nodes")
    taints = {each["metadata"]["name"]: each["spec"]["taints"] for each in templates(load)}
    assert [name for name, found in taints.items() if found] == [load.never_comes]
