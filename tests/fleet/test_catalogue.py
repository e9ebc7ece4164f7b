"""The catalogue: what a row becomes, and every way in which a file can be invalid."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.catalogue import Offering, embedded_catalogue, gpu_resource, parse_catalogue, read_catalogue

COLUMNS = (
    "instance_type,arch,category,family,generation,size,vcpu,memory_mib,gpu_name,allocatable_cpu_milli,"
    "allocatable_memory_mib,allocatable_pods,allocatable_gpu,usd_per_hour"
)
LARGE = "m7i.large,amd64,m,m7i,7,large,2,8192,,1930,6903,29,0,0.1008"
GPU = "g5.12xlarge,amd64,g,g5,5,12xlarge,48,196608,a10g,47810,173400,737,4,5.672"


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_catalogue(text, "c.csv")
    return list(caught.value.problems)


def test_a_row_in_the_planners_units() -> None:
    catalogue = parse_catalogue(f"{COLUMNS}\n{LARGE}\n", "c.csv")
    (offering,) = catalogue.offerings
    large = catalogue.instance_types["m7i.large"]
    assert large.capacity == {"cpu": 2000, "memory": 8192 * 2**20, "pods": 29}
    assert large.allocatable == {"cpu": 1930, "memory": 6903 * 2**20, "pods": 29}
    assert offering == Offering(large, 0.1008, "zone-a", "on-demand", None)
    assert offering.labels == {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "m7i.large",
        "topology.kubernetes.io/zone": "zone-a",
        "karpenter.sh/capacity-type": "on-demand",
        "karpenter.k8s.aws/instance-category": "m",
        "karpenter.k8s.aws/instance-family": "m7i",
        "karpenter.k8s.aws/instance-generation": "7",
        "karpenter.k8s.aws/instance-size": "large",
        "karpenter.k8s.aws/instance-cpu": "2",
        "karpenter.k8s.aws/instance-memory": "8192",
    }


def test_gpus_are_a_resource_and_two_labels() -> None:
    (offering,) = parse_catalogue(f"{COLUMNS}\n{GPU}", "c.csv").offerings
    assert offering.instance_type.allocatable["nvidia.com/gpu"] == 4
    assert offering.instance_type.capacity["nvidia.com/gpu"] == 4
    assert offering.labels["karpenter.k8s.aws/instance-gpu-name"] == "a10g"
    assert offering.labels["karpenter.k8s.aws/instance-gpu-count"] == "4"


@pytest.mark.parametrize(
    ("gpu_name", "resource"),
    [
        ("a10g", "nvidia.com/gpu"),
        ("rtx-pro-server-6000", "nvidia.com/gpu"),
        ("radeon-pro-v520", "amd.com/gpu"),
        ("inferentia2", "aws.amazon.com/neuron"),
        ("trainium", "aws.amazon.com/neuron"),
        ("gaudi-hl-205", "habana.ai/gaudi"),
        ("", "nvidia.com/gpu"),
    ],
)
def test_gpu_resource(gpu_name: str, resource: str) -> None:
    assert gpu_resource(gpu_name) == resource


def test_zones_capacity_types_and_stock() -> None:
    catalogue = parse_catalogue(
        f"{COLUMNS},zone,capacity_type,available\n"
        f"{LARGE},us-east-1a,on-demand,\n"
        f"{LARGE},us-east-1b,spot,12\n"
        f"{LARGE},,reserved,0\n",
        "c.csv",
    )
    assert [(o.zone, o.capacity_type, o.available) for o in catalogue.offerings_of("m7i.large")] == [
        ("us-east-1a", "on-demand", None),
        ("us-east-1b", "spot", 12),
        ("zone-a", "reserved", 0),
    ]
    assert len(catalogue.instance_types) == 1


def test_spaces_a_byte_order_mark_blank_lines_and_foreign_columns_do_no_harm() -> None:
    text = f"\ufeff{COLUMNS},note\r\n\r\n {LARGE.replace(',', ' , ')},anything\r\n,,\r\n"
    assert parse_catalogue(text, "c.csv").offerings[0].instance_type.name == "m7i.large"


def row(**cells: str) -> str:
    named = dict(zip(COLUMNS.split(","), LARGE.split(","), strict=True))
    assert set(cells) <= set(named)
    return ",".join((named | cells).values())


@pytest.mark.parametrize(
    ("cells", "complaint"),
    [
        pytest.param({"vcpu": "-4"}, 'vcpu: found "-4"', id="negative"),
        pytest.param({"vcpu": "2.5"}, 'vcpu: found "2.5"', id="not whole"),
        pytest.param({"vcpu": "1_0"}, 'vcpu: found "1_0"', id="underscore"),
        pytest.param({"vcpu": "0"}, "vcpu: found 0, expected a whole number from 1", id="zero"),
        pytest.param({"memory_mib": "99999999999999"}, "memory_mib: found 99999999999999", id="absurdly large"),
        pytest.param({"memory_mib": "9" * 400}, "memory_mib: found", id="longer than a number"),
        pytest.param(
            {"allocatable_cpu_milli": "2001"},
            "allocatable_cpu_milli: found 2001, expected a whole number from 1 to 2000 (vcpu x 1000)",
            id="more allocatable than there is",
        ),
        pytest.param({"allocatable_memory_mib": "8193"}, "from 1 to 8192 (memory_mib)", id="more memory than there is"),
        pytest.param({"allocatable_pods": "0"}, "allocatable_pods: found 0", id="no pods"),
        pytest.param({"allocatable_gpu": ""}, 'allocatable_gpu: found ""', id="empty number"),
        pytest.param({"usd_per_hour": "nan"}, 'usd_per_hour: found "nan"', id="price not a number"),
        pytest.param({"usd_per_hour": "inf"}, 'usd_per_hour: found "inf"', id="infinite price"),
        pytest.param({"usd_per_hour": "-0.1"}, 'usd_per_hour: found "-0.1"', id="negative price"),
        pytest.param({"usd_per_hour": "$1"}, 'usd_per_hour: found "$1"', id="price with a sign"),
        pytest.param({"usd_per_hour": "1_0"}, 'usd_per_hour: found "1_0"', id="price with underscore"),
        pytest.param({"arch": "x86_64"}, 'arch: found "x86_64", expected one of amd64', id="unknown architecture"),
        pytest.param({"instance_type": ""}, 'instance_type: found ""', id="no name"),
        pytest.param({"instance_type": "a b"}, 'instance_type: found "a b"', id="no label value"),
        pytest.param({"generation": "seven"}, 'generation: found "seven"', id="generation in words"),
    ],
)
def test_bad_cell(cells: dict[str, str], complaint: str) -> None:
    (problem,) = problems(f"{COLUMNS}\n{row(**cells)}")
    assert problem.startswith("c.csv:2: ")
    assert complaint in problem


def test_every_error_at_once() -> None:
    found = problems(f"{COLUMNS}\n{row(vcpu='0', usd_per_hour='nan')}\n{LARGE}\n{row(instance_type='x', arch='z')}\n")
    assert [problem.split(": ")[:2] for problem in found] == [
        ["c.csv:2", "vcpu"],
        ["c.csv:2", "usd_per_hour"],
        ["c.csv:4", "arch"],
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "c.csv:1: is empty; expected the columns instance_type, arch", id="empty file"),
        pytest.param("\n\n", "c.csv:1: is empty", id="blank lines"),
        pytest.param("kind: NodePool\n", "c.csv: is not a catalogue; expected CSV with the columns inst", id="not CSV"),
        pytest.param(COLUMNS, "c.csv: has no instance types", id="header alone"),
        pytest.param(
            f"{COLUMNS}\n{LARGE}\n{LARGE}",
            "c.csv:3: instance_type: m7i.large/zone-a/on-demand is already offered in line 2",
            id="duplicate row",
        ),
        pytest.param(
            f"{COLUMNS}\n{LARGE}\n{row(vcpu='4')}",
            'c.csv:3: instance_type: "m7i.large" has different values above; only zone, ',
            id="two shapes of one type",
        ),
        pytest.param(f"{COLUMNS}\n{LARGE},1", "c.csv:2: has 15 cells, expected 14", id="cell too many"),
        pytest.param(f'{COLUMNS}\n"{LARGE}', "c.csv:2: is not CSV", id="open quote"),
        pytest.param(COLUMNS.replace("arch,", ""), "c.csv:1: arch: the column is missing", id="missing column"),
        pytest.param(f"{COLUMNS},arch", "c.csv:1: arch: the column occurs twice", id="column twice"),
        pytest.param(
            f"{COLUMNS},availible\n",
            'c.csv:1: availible: unknown column; did you mean "available"?',
            id="nearly a column",
        ),
    ],
)
def test_bad_file(text: str, expected: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(expected)


def test_several_columns_missing_are_all_named() -> None:
    assert len(problems("instance_type,arch\n")) == 12


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"absent\.csv: cannot be read: No such file"):
        read_catalogue(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"abc\xff")
    with pytest.raises(InvalidConfiguration, match=r"binary\.csv: is not UTF-8 text \(byte 3\)"):
        read_catalogue(tmp_path / "binary.csv")


def test_the_embedded_catalogue() -> None:
    catalogue = embedded_catalogue()
    assert len(catalogue.offerings) == len(catalogue.instance_types) == 1345
    assert catalogue.offerings_of("m7g.xlarge")[0].price_usd_per_hour == 0.1632
    assert "nvidia.com/gpu" not in catalogue.instance_types["g6f.large"].allocatable, "a part of a GPU is none"


def test_how_many_volumes_may_be_attached_is_a_column_for_each_driver() -> None:
    ebs, mine = "attachable-volumes-csi-ebs.csi.aws.com", "attachable-volumes-csi-disk.example.com"
    text = f"{COLUMNS},{ebs},{mine}\n{LARGE},31,\n{GPU},7,100\n"
    types = parse_catalogue(text, "c.csv").instance_types
    assert types["m7i.large"].allocatable[ebs] == 31
    assert mine not in types["m7i.large"].allocatable, "nothing is known of it"
    assert types["g5.12xlarge"].allocatable[mine] == 100
    assert ebs not in types["m7i.large"].capacity, "no part of a machine, and of no limit in its resources"
    (problem,) = problems(f"{COLUMNS},{ebs}\n{LARGE},some\n")
    assert problem.startswith(f"c.csv:2: {ebs}: ")


@pytest.mark.parametrize(
    ("instance_type", "volumes"),
    [
        pytest.param("m5.large", 25, id="Nitro: 28, less two interfaces and the root volume"),
        pytest.param("m5d.24xlarge", 21, id="four instance stores as well"),
        pytest.param("g5.48xlarge", 7, id="eight GPUs, and instance stores"),
        pytest.param("d3en.12xlarge", 1, id="24 instance stores"),
        pytest.param("m7i.large", 31, id="a limit for volumes alone: 32"),
        pytest.param("m7i.48xlarge", 127, id="a larger one: 128"),
        pytest.param("c4.large", 38, id="before Nitro: 39"),
    ],
)
def test_attachments_of_the_embedded_catalogue(instance_type: str, volumes: int) -> None:
    found = embedded_catalogue().instance_types[instance_type].allocatable
    assert found["attachable-volumes-csi-ebs.csi.aws.com"] == volumes
