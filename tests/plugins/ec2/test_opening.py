"""Opening the EC2 backend: launch templates are verified before the first order."""

from __future__ import annotations

import base64
import gzip
import logging
from dataclasses import replace
from typing import Any

import pytest

from cagrpc.errors import InvalidConfiguration, Unavailable
from cagrpc_ec2.opening import TemplateUse, sets_start_up_taint, template_problems
from cagrpc_ec2.parameters import LaunchTemplate
from solver.model import NodeGroup
from tests.support.ec2.emulator import USER_DATA
from tests.support.ec2.world import Ec2World, group

ON_DEMAND = TemplateUse((group(),), chooses_subnets=True)


def problems_of(ec2: Ec2World, groups: tuple[NodeGroup, ...] = (group(),)) -> list[str]:
    with pytest.raises(InvalidConfiguration) as raised:
        ec2.open(groups=groups)
    return list(raised.value.problems)


def with_template(ec2: Ec2World, template: LaunchTemplate) -> None:
    ec2.parameters = replace(ec2.parameters, general=replace(ec2.parameters.general, launch_template=template))


def test_a_template_that_works_is_opened_by_name_and_by_id(ec2: Ec2World) -> None:
    assert ec2.open(groups=[group()]).problem is None
    with_template(ec2, LaunchTemplate(ec2.template_id, None, "1"))
    assert ec2.open(groups=[group()]).problem is None


@pytest.mark.parametrize("template", [LaunchTemplate(None, "nothing", "$Default"), LaunchTemplate("lt-0a", None, "1")])
def test_a_template_that_is_not_there_is_a_problem(ec2: Ec2World, template: LaunchTemplate) -> None:
    with_template(ec2, template)
    (problem,) = problems_of(ec2)
    assert problem.startswith(f"backend.ec2: launch template {template}: EC2: InvalidLaunchTemplate")


def test_a_version_that_is_not_there_is_a_problem(ec2: Ec2World) -> None:
    with_template(ec2, LaunchTemplate(ec2.template_id, None, "9"))
    (problem,) = problems_of(ec2)
    assert "VersionNotFound" in problem


def test_where_ec2_cannot_be_reached_nothing_is_opened(ec2: Ec2World) -> None:
    ec2.proxy.away = True
    with pytest.raises(Unavailable, match="DescribeLaunchTemplateVersions"):
        ec2.open(groups=[group()])


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({}, []),
        ({"ImageId": None}, ["has no image"]),
        ({"NetworkInterfaces": [{"DeviceIndex": 0}]}, ["has network interfaces, beside which EC2 takes no subnet"]),
        ({"InstanceMarketOptions": {"MarketType": "spot"}}, ['has market type "spot", which node groups on demand']),
        (
            {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "karpenter.sh/nodepool"}]}]},
            ['has the tag "karpenter.sh/nodepool"'],
        ),
    ],
)
def test_what_a_template_has_wrong_is_found(data: dict[str, Any], found: list[str]) -> None:
    problems = list(template_problems({"ImageId": "ami-1", **data}, ON_DEMAND))
    assert len(problems) == len(found)
    assert all(problem.startswith(begin) for problem, begin in zip(problems, found, strict=True))


def test_network_interfaces_and_spot_are_right_where_nothing_contradicts_them() -> None:
    spot = TemplateUse((group(capacity_type="spot"),), chooses_subnets=False)
    data = {"ImageId": "ami-1", "NetworkInterfaces": [{}], "InstanceMarketOptions": {"MarketType": "spot"}}
    assert list(template_problems(data, spot)) == []


@pytest.mark.parametrize(
    ("user_data", "found"),
    [
        (USER_DATA.encode(), True),
        (gzip.compress(USER_DATA.encode()), True),
        (b"#!/bin/sh\n/etc/eks/bootstrap.sh prod\n", False),
        (b"\x1f\x8bno gzip", False),
        (b"", False),
    ],
)
def test_the_start_up_taint_is_looked_for_in_user_data(user_data: bytes, found: bool) -> None:
    assert sets_start_up_taint({"UserData": base64.b64encode(user_data).decode()}) is found


def test_user_data_that_is_not_base64_is_no_error() -> None:
    assert not sets_start_up_taint({"UserData": "=== not base64"})
    assert not sets_start_up_taint({})


def test_with_a_cluster_a_template_without_the_taint_is_warned_of_and_its_user_data_never_shown(
    ec2: Ec2World, caplog: pytest.LogCaptureFixture
) -> None:
    secret = base64.b64encode(b"#!/bin/sh\nTOKEN=s3cr3t\n").decode()
    ec2.emulator.make_template("bare", {"UserData": secret})
    with_template(ec2, LaunchTemplate(None, "bare", "$Default"))
    with caplog.at_level(logging.WARNING, logger="cagrpc"):
        ec2.open(groups=[group()])
        assert caplog.records == [], "without a cluster nobody holds nodes"
        ec2.open(groups=[group()], has_cluster=True)
    (record,) = caplog.records
    assert "launch template bare (version $Default): its user data seems not to have the taint" in record.getMessage()
    with caplog.at_level(logging.DEBUG):
        ec2.open(groups=[group()], has_cluster=True)
    assert "s3cr3t" not in caplog.text
    assert secret not in caplog.text


@pytest.mark.parametrize(
    ("root", "library"),
    [
        (logging.DEBUG, logging.INFO),
        (logging.INFO, logging.WARNING),
        (logging.WARNING, logging.WARNING),
        (logging.ERROR, logging.ERROR),
    ],
)
def test_libraries_tell_little_and_never_the_bodies_of_calls(ec2: Ec2World, root: int, library: int) -> None:
    before = logging.root.level
    logging.root.setLevel(root)
    try:
        ec2.open()
        assert {logging.getLogger(name).level for name in ("boto3", "botocore")} == {library}
    finally:
        logging.root.setLevel(before)
