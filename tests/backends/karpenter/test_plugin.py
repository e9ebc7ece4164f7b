"""The section `backend: {karpenter: ...}`: what it is read to, and every problem of it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cagrpc.backends.karpenter.plugin import KarpenterSettings, NodeClass, Parameters
from cagrpc.backends.plugin import OpenedLater
from cagrpc.config.load import parse_settings
from cagrpc.config.settings import Settings
from cagrpc.errors import InvalidConfiguration
from solver.model import Taint, TaintEffect

CLASS = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
GPU = {**CLASS, "name": "gpu"}


def node_group(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "instance_type": "m7i.large", "zone": "us-east-1a", **more}


PROVISIONERS: list[dict[str, Any]] = [
    {"name": "general", "node_groups": [node_group("a"), node_group("b", zone="us-east-1b")]},
    {
        "name": "gpu",
        "startup_taints": [{"key": "example.com/agent", "effect": "NoSchedule"}],
        "node_groups": [node_group("g", instance_type="g5.xlarge")],
    },
]


def read(directory: Path, karpenter: Any, provisioners: Any = None, **more: Any) -> Settings:
    document = {
        "kubernetes": {"in_cluster": True},
        "backend": {"karpenter": karpenter},
        "provisioners": PROVISIONERS if provisioners is None else provisioners,
        **more,
    }
    return parse_settings(yaml.safe_dump(document), "c.yaml", directory)


def problems(directory: Path, *arguments: Any, **more: Any) -> tuple[str, ...]:
    with pytest.raises(InvalidConfiguration) as refused:
        read(directory, *arguments, **more)
    return refused.value.problems


def test_the_more_special_parameters_come_first(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        {
            "node_class": CLASS,
            "fleet": "blue",
            "unavailable_offerings": "1h",
            "provisioners": {"gpu": {"node_class": GPU, "termination_grace_period": "30m"}},
            "node_groups": {"b": {"termination_grace_period": "60s"}},
        },
    ).backend
    default, gpu = NodeClass(**CLASS), NodeClass(**GPU)
    agent = Taint("example.com/agent", TaintEffect.NO_SCHEDULE)
    assert isinstance(settings, OpenedLater)
    found = settings.settings
    assert isinstance(found, KarpenterSettings)
    assert (found.fleet, found.unavailable_offerings_seconds) == ("blue", 3600)
    assert found.parameters == {
        "a": Parameters(default),
        "b": Parameters(default, 60),
        "g": Parameters(gpu, 1800, (agent,)),
    }
    assert found.node_pools == {"general", "gpu"}


def test_every_problem_is_told_with_its_place(tmp_path: Path) -> None:
    by_hand = {"id": "h", "allocatable": {"cpu": 1, "memory": "1Gi", "pods": 9}, "price_usd_per_hour": 1}
    owned = node_group("o", labels={"karpenter.sh/registered": "true"})
    found = problems(
        tmp_path,
        {"provisioners": {"gpus": {"node_class": CLASS}}, "node_groups": {"h": {"node_class": CLASS}, "x": {}}},
        [{"name": "gpu", "node_groups": [by_hand, owned]}],
        kubernetes=None,
    )
    assert [line.partition(";")[0] for line in found] == [
        "kubernetes: is missing",
        'backend.karpenter.provisioners["gpus"]: there is no provisioner of this name',
        'backend.karpenter.node_groups["x"]: there is no node group of this name',
        'provisioners: node group "h" has no instance_type, which backend.karpenter needs: a NodeClaim is of one type',
        'provisioners: node group "o" has labels of Karpenter\'s own: karpenter.sh/registered',
        "backend.karpenter.node_class: is missing",
    ]
    assert 'backend.karpenter.provisioners["gpu"]' in found[-1]


@pytest.mark.parametrize(
    ("karpenter", "found"),
    [
        ({"node_class": {**CLASS, "group": "karpenter.k8s.aws/v1"}}, "node_class.group: found"),
        ({"node_class": {"kind": "EC2NodeClass"}}, "node_class.group"),
        ({"node_class": CLASS, "fleet": "No Name"}, "fleet"),
        ({"node_class": CLASS, "termination_grace_period": "0s"}, "termination_grace_period"),
        ({"node_class": CLASS, "zone": "x"}, "zone"),
    ],
)
def test_a_wrong_field_is_told_with_its_place(tmp_path: Path, karpenter: Any, found: str) -> None:
    assert problems(tmp_path, karpenter)[0].startswith(f"backend.karpenter.{found}")


def test_without_zones_it_warns(tmp_path: Path) -> None:
    settings = read(tmp_path, {"node_class": CLASS}, [{"name": "p", "node_groups": [node_group("a", zone=None)]}])
    assert any('backend.karpenter: node group "a" has no zone' in warning for warning in settings.warnings)
