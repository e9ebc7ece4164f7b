"""The section `backend.ec2`: what is written, what is wrong and where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cagrpc.backends.plugin import OpenedLater
from cagrpc.config.load import parse_settings
from cagrpc.errors import InvalidConfiguration
from cagrpc_ec2.parameters import CapacityReservation, LaunchTemplate
from cagrpc_ec2.plugin import Ec2Settings
from cagrpc_ec2.rates import TokenRate
from tests.support.waiting import AMPLE_SECONDS

CATALOGUE = """\
instance_type,arch,category,family,generation,size,vcpu,memory_mib,gpu_name,allocatable_cpu_milli,\
allocatable_memory_mib,allocatable_pods,allocatable_gpu,usd_per_hour,zone,capacity_type
m7i.large,amd64,m,m7i,7,large,2,8192,,1930,7000,29,0,0.1,eu-central-1a,on-demand
m7i.large,amd64,m,m7i,7,large,2,8192,,1930,7000,29,0,0.03,eu-central-1a,spot
p5.48xlarge,amd64,p,p5,5,48xlarge,192,2097152,h100,191000,2000000,110,8,90,eu-central-1b,reserved
"""
PROVISIONERS = """\
catalogue: catalogue.csv
provisioners:
- {name: general, requirements: [{key: topology.kubernetes.io/zone, operator: In, values: [eu-central-1a]}]}
- name: gpu
  node_groups: [{id: h100, instance_type: p5.48xlarge, zone: eu-central-1b, capacity_type: reserved}]
"""
EVERYTHING = """\
backend:
  ec2:
    cluster_name: prod
    region: eu-central-1
    endpoint_url: https://ec2.internal
    launch_burst_instances: 2000
    launch_instances_per_second: 20
    launch_template: {name: workers}
    subnets: {eu-central-1a: subnet-0a, eu-central-1b: subnet-0b}
    tags: {team: ml}
    provisioners:
      gpu:
        launch_template: {id: lt-0a, version: 3}
    node_groups:
      h100:
        capacity_reservation: {id: cr-0a, capacity_block: true}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "catalogue.csv").write_text(CATALOGUE)
    return tmp_path


def settings(directory: Path, backend: str) -> Ec2Settings:
    found = parse_settings(PROVISIONERS + backend, "c.yaml", directory).backend
    assert isinstance(found, OpenedLater)
    assert isinstance(found.settings, Ec2Settings)
    return found.settings


def problems(directory: Path, backend: str) -> list[str]:
    with pytest.raises(InvalidConfiguration) as raised:
        settings(directory, backend)
    return list(raised.value.problems)


def test_everything_that_is_written_is_in_the_settings(directory: Path) -> None:
    found = settings(directory, EVERYTHING)
    assert (found.cluster_name, found.region, found.endpoint_url) == ("prod", "eu-central-1", "https://ec2.internal")
    assert found.launched_instances == TokenRate(2000, 20)
    of = {group.id: found.parameters.of(group) for group in found.groups}
    assert of["general/m7i.large/eu-central-1a/spot"].launch_template == LaunchTemplate(None, "workers", "$Default")
    assert of["h100"].launch_template == LaunchTemplate("lt-0a", None, "3")
    assert of["h100"].capacity_reservation == CapacityReservation("cr-0a", None, capacity_block=True)
    assert of["h100"].subnets == {"eu-central-1a": "subnet-0a", "eu-central-1b": "subnet-0b"}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("cluster_name: prod", "cluster_name: a b", ['backend.ec2.cluster_name: found "a b", expected']),
        ("name: workers", "id: workers", ['backend.ec2.launch_template.id: found "workers", expected']),
        ("{name: workers}", "{name: workers, id: lt-0a}", ["backend.ec2.launch_template: give one of id and name"]),
        ("version: 3", "version: latest", ["backend.ec2.provisioners.gpu.launch_template.version"]),
        ("team: ml", "aws:team: ml", ['backend.ec2.tags: found the tag "aws:team"']),
        ("team: ml", "karpenter.sh/nodepool: x", ['backend.ec2.tags: found the tag "karpenter.sh/nodepool", by which']),
        ("subnet-0a", "vpc-0a", ['backend.ec2.subnets["eu-central-1a"]: found "vpc-0a", expected']),
        (
            "      gpu:",
            "      gpus:",
            ['backend.ec2.provisioners["gpus"]: there is no provisioner of this name; did you mean "gpu"?'],
        ),
        (
            "      h100:",
            "      h200:",
            ['backend.ec2.node_groups["h200"]: there is no node group of this name; did you mean'],
        ),
        (
            "eu-central-1a: subnet-0a, ",
            "",
            ['backend.ec2.subnets: has no subnet for zone "eu-central-1a"; it has those of eu-central-1b (node gr'],
        ),
        (
            "capacity_reservation: {id: cr-0a, capacity_block: true}",
            "tags: {}",
            ['backend.ec2.capacity_reservation: is missing; capacity type "reserved" is launched into one (node gro'],
        ),
        (
            "    launch_template: {name: workers}\n",
            "",
            ['backend.ec2.launch_template: is missing (node group "general/m7i.large/eu-central-1a/on-demand" and 1'],
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(directory: Path, before: str, after: str, expected: list[str]) -> None:
    assert before in EVERYTHING
    found = problems(directory, EVERYTHING.replace(before, after))
    assert len(found) >= len(expected)
    for each in expected:
        assert any(problem.startswith(each) for problem in found), found


def test_all_problems_are_reported_at_once(directory: Path) -> None:
    found = problems(directory, "backend: {ec2: {cluster_name: prod, subnets: {}, node_groups: {x: {}}}}\n")
    assert {problem.split(":")[0] for problem in found} == {
        'backend.ec2.node_groups["x"]',
        "backend.ec2.launch_template",
        "backend.ec2.subnets",
        "backend.ec2.capacity_reservation",
    }


def test_a_group_that_ec2_cannot_launch_is_a_problem(directory: Path) -> None:
    by_hand = "{id: hand, allocatable: {cpu: 1, memory: 1Gi, pods: 5}, price_usd_per_hour: 1, zone: eu-central-1a}"
    odd = "{id: odd, instance_type: m7i.large, zone: eu-central-1a, capacity_type: spot}"
    long = f"{{id: {'x' * 201}, instance_type: m7i.large, zone: eu-central-1a, capacity_type: spot}}"
    text = f"provisioners: [{{name: a, node_groups: [{by_hand}, {odd}, {long}]}}]\ncatalogue: catalogue.csv\n"
    with pytest.raises(InvalidConfiguration) as raised:
        parse_settings(text + "backend: {ec2: {cluster_name: p, launch_template: {name: abc}}}", "c.yaml", directory)
    first, second = raised.value.problems
    assert first.startswith("backend.ec2: a node group of a shape given by hand has no instance type")
    assert second.startswith("backend.ec2: the id of a node group has at most 200 characters")


def test_a_section_without_content_says_what_it_needs(directory: Path) -> None:
    assert problems(directory, "backend: {ec2: }\n") == [
        "backend.ec2: found nothing, expected cluster_name and launch_template"
    ]


def test_checking_a_configuration_loads_neither_boto3_nor_the_backend(directory: Path) -> None:
    (directory / "c.yaml").write_text(PROVISIONERS + EVERYTHING)
    program = (
        "import sys; from cagrpc.cli.main import main; code = main(['config', 'check', sys.argv[1]]);"
        "loaded = {'boto3', 'botocore', 'cagrpc_ec2.api', 'cagrpc_ec2.opening'} & sys.modules.keys();"
        "sys.exit(code or ', '.join(loaded) or 0)"
    )
    command = [sys.executable, "-c", program, str(directory / "c.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=AMPLE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
