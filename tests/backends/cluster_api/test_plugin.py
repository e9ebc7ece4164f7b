"""The section `backend.cluster_api`: what is valid, and every mistake with its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.backends.cluster_api.plugin import ClusterApiSettings, MachineSource, Reference
from cagrpc.backends.plugin import OpenedLater
from cagrpc.config.load import parse_settings
from cagrpc.errors import InvalidConfiguration

SHAPE = {"cpu": 4, "memory": "8Gi", "pods": 110}
TEMPLATE = {"api_group": "infrastructure.cluster.x-k8s.io", "kind": "VSphereMachineTemplate", "name": "t"}


def group(name: str, cpu: int = 4) -> dict[str, Any]:
    return {"id": name, "allocatable": {**SHAPE, "cpu": cpu}, "price_usd_per_hour": 1}


def settings(section: dict[str, Any], *groups: dict[str, Any], **more: Any) -> ClusterApiSettings:
    written = {
        "backend": {"cluster_api": {"cluster": "c", **section}},
        "kubernetes": {"kubeconfig": "k"},
        "provisioners": [{"name": "p", "node_groups": list(groups or (group("a"),))}],
        **more,
    }
    found = parse_settings(yaml.safe_dump(written), "it", Path("/etc")).backend
    assert isinstance(found, OpenedLater)
    assert isinstance(found.settings, ClusterApiSettings)
    return found.settings


def problems(section: dict[str, Any], *groups: dict[str, Any], **more: Any) -> tuple[str, ...]:
    with pytest.raises(InvalidConfiguration) as invalid:
        settings(section, *groups, **more)
    return invalid.value.problems


def test_a_node_groups_own_source_comes_before_its_provisioners() -> None:
    found = settings(
        {
            "kubeconfig": "management.kubeconfig",
            "context": "there",
            "provisioners": {"p": {"machine_deployment": "md", "version": "v1.36.1"}},
            "node_groups": {"b": {"infrastructure_template": TEMPLATE, "bootstrap_data_secret": "join"}},
        },
        group("a"),
        group("b", cpu=8),
    )
    assert (found.kubeconfig, found.context) == (Path("/etc/management.kubeconfig"), "there")
    assert found.sources == {
        "a": MachineSource(machine_deployment="md", version="v1.36.1"),
        "b": MachineSource(
            infrastructure_template=Reference(TEMPLATE["api_group"], TEMPLATE["kind"], "t"),
            bootstrap_data_secret="join",
        ),
    }


def test_every_problem_is_reported_at_once() -> None:
    found = problems(
        {"provisioners": {"q": {"machine_deployment": "md"}}, "node_groups": {"aa": {"machine_deployment": "md"}}},
        kubernetes=None,
    )
    assert len(found) == 4
    assert found[0].startswith("kubernetes: is missing")
    assert found[1].startswith('backend.cluster_api.provisioners["q"]: there is no provisioner of this name')
    assert found[2].startswith('backend.cluster_api.node_groups["aa"]: there is no node group of this name')
    assert found[3].startswith('backend.cluster_api: has no templates for node group "a" of provisioner "p"')


def test_one_template_makes_machines_of_one_shape() -> None:
    (found,) = problems({"provisioners": {"p": {"machine_deployment": "md"}}}, group("a"), group("b", cpu=8))
    assert found.startswith('backend.cluster_api.provisioners["p"]: its node groups have 2 different shapes')


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, "found none, expected machine_deployment or infrastructure_template"),
        ({"machine_pool": "mp"}, "found machine_pool alone"),
        ({"machine_deployment": "a", "machine_pool": "b"}, "found both machine_deployment and machine_pool"),
        ({"infrastructure_template": TEMPLATE}, "bootstrap_template or bootstrap_data_secret is missing"),
        ({"machine_deployment": "A"}, "machine_deployment"),
        ({"machine_deployment": "a", "version": "1.36"}, "version"),
        ({"machine_deployment": "a", "infrastructure_template": {**TEMPLATE, "kind": "Machine"}}, "kind"),
    ],
)
def test_mistakes_of_an_entry(entry: dict[str, Any], expected: str) -> None:
    (found,) = problems({"node_groups": {"a": entry}})
    assert found.startswith("backend.cluster_api.node_groups.a")
    assert expected in found


@pytest.mark.parametrize(
    "section", [{"context": "x"}, {"kubeconfig": "k", "in_cluster": True}, {"cluster": ""}, {"fleet": "A b"}]
)
def test_mistakes_of_the_section(section: dict[str, Any]) -> None:
    found = problems({"node_groups": {"a": {"machine_deployment": "md"}}, **section})
    assert all(each.startswith("backend.cluster_api") for each in found)


def test_an_empty_section_selects_no_cluster() -> None:
    written = {
        "backend": {"cluster_api": None},
        "provisioners": [{"name": "p", "node_groups": [group("a")]}],
    }
    with pytest.raises(InvalidConfiguration, match="give at least the name of the cluster"):
        parse_settings(yaml.safe_dump(written), "it", Path())
