"""`cagrpc catalogue aws`: what an account's Region offers, as a catalogue that is read again."""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from cagrpc.cli.main import main
from cagrpc.fleet.catalogue import embedded_catalogue, read_catalogue
from cagrpc_ec2 import account as aws_account
from cagrpc_ec2.catalogue import COLUMNS, Market, rows
from tests.support.ec2.emulator import CREDENTIALS, REGION, ZONES, Emulator

EMBEDDED = Path(str(files("cagrpc") / "data" / "catalog" / "aws-us-east-1.csv"))
POLICY = Path(__file__).parents[3] / "deploy" / "iam-policy-catalogue.json"


@pytest.fixture
def account(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_EC2": emulator.url, "AWS_DEFAULT_REGION": REGION}.items():
        monkeypatch.setenv(name, value)
    return emulator


def stubbed(service: str) -> tuple[Any, Stubber]:
    client = boto3.client(service, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    return client, Stubber(client)


def test_a_catalogue_with_prices_of_a_file_has_each_zone_and_capacity_type(
    account: Emulator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "catalogue.csv"
    types = ["--instance-type", "m7i.large", "--instance-type", "c7i.*"]
    assert main(["catalogue", "aws", *types, "--prices", str(EMBEDDED), "--output", str(target)]) == 0
    found = read_catalogue(target)
    assert f"{target}: {len(found.offerings)} offerings" in capsys.readouterr().out
    assert {"m7i.large", "c7i.large", "c7i.48xlarge"} <= found.instance_types.keys()
    assert not [name for name in found.instance_types if name != "m7i.large" and not name.startswith("c7i.")]
    offerings = found.offerings_of("m7i.large")
    assert {each.zone for each in offerings} <= set(ZONES)
    assert {each.capacity_type for each in offerings} == {"on-demand", "spot"}
    prices = {each.price_usd_per_hour for each in offerings if each.capacity_type == "on-demand"}
    assert prices == {0.1008}
    assert found.instance_types["m7i.large"] == embedded_catalogue().instance_types["m7i.large"]


def test_without_spot_and_a_file_the_catalogue_goes_to_stdout(
    account: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["catalogue", "aws", "--instance-type", "m7i.large", "--no-spot", "--prices", str(EMBEDDED)]) == 0
    lines = list(csv.DictReader(StringIO(capsys.readouterr().out)))
    assert {line["capacity_type"] for line in lines} == {"on-demand"}
    assert tuple(lines[0]) == COLUMNS


def test_what_pods_may_use_is_what_the_embedded_catalogue_has(account: Emulator) -> None:
    described = account.client.describe_instance_types()["InstanceTypes"]
    known = {row["instance_type"]: row for row in csv.DictReader(StringIO(EMBEDDED.read_text()))}
    zones = {name: [ZONES[0]] for name in known}
    market = Market(zones, dict.fromkeys(known, 1.0), {}, {})
    found = list(rows([each for each in described if each["InstanceType"] in known], market))
    assert len(found) > 1300
    compared = [column for column in COLUMNS[:13] if column not in ("gpu_name", "allocatable_gpu")]
    different = {
        row["instance_type"]
        for row in found
        if any(str(row[column]) != known[row["instance_type"]][column] for column in compared)
    }
    # Types with two network cards for addresses, which moto and Karpenter count differently.
    assert different == {"i7ie.48xlarge", "i7ie.metal-48xl", "i8ge.48xlarge", "i8ge.metal-48xl"}
    accelerated = {row["instance_type"] for row in found if row["gpu_name"] != known[row["instance_type"]]["gpu_name"]}
    assert {name.split(".")[0] for name in accelerated} <= {"inf1", "inf2", "trn1", "trn1n", "trn2", "trn2u"}


def test_prices_come_from_the_price_list_of_the_region() -> None:
    client, stub = stubbed("pricing")
    product = {
        "product": {"attributes": {"instanceType": "m7i.large"}},
        "terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": "0.1197"}}}}}},
    }
    free = {**product, "terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": "0"}}}}}}}
    free["product"] = {"attributes": {"instanceType": "m7i.xlarge"}}
    filters = {**aws_account._PRICE_FILTERS, "regionCode": "eu-central-1"}
    request: dict[str, Any] = {
        "ServiceCode": "AmazonEC2",
        "Filters": [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in filters.items()],
    }
    stub.add_response("get_products", {"PriceList": [json.dumps(product)], "NextToken": "2"}, request)
    stub.add_response("get_products", {"PriceList": [json.dumps(free)]}, {**request, "NextToken": "2"})
    with stub:
        assert aws_account._on_demand_prices(client, "eu-central-1") == {"m7i.large": 0.1197}


def test_reservations_are_offerings_with_a_bound_and_no_price_of_their_own(account: Emulator) -> None:
    client, stub = stubbed("ec2")
    one = {"InstanceType": "m7i.large", "AvailabilityZone": ZONES[1], "TotalInstanceCount": 3}
    stub.add_response("describe_capacity_reservations", {"CapacityReservations": [one, one]})
    with stub:
        reserved = aws_account._reservations(client)
    described = account.client.describe_instance_types(InstanceTypes=["m7i.large"])["InstanceTypes"]
    (row,) = rows(described, Market({"m7i.large": ZONES}, {}, {}, reserved))
    expected = {"zone": ZONES[1], "capacity_type": "reserved", "available": 6, "usd_per_hour": 0}
    assert {key: row[key] for key in expected} == expected


def test_the_newest_spot_price_counts() -> None:
    client, stub = stubbed("ec2")
    history = [
        {"InstanceType": "m7i.large", "AvailabilityZone": ZONES[0], "SpotPrice": price, "Timestamp": time}
        for price, time in [("0.04", "2026-11-20T10:00:00Z"), ("0.05", "2026-11-21T10:00:00Z"), ("0.03", "2026-11-01")]
    ]
    stub.add_response("describe_spot_price_history", {"SpotPriceHistory": history})
    with stub:
        assert aws_account._spot_prices(client, ["m7i.large"]) == {("m7i.large", ZONES[0]): 0.05}


def test_a_region_without_the_type_and_types_without_a_price(
    account: Emulator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["catalogue", "aws", "--instance-type", "x99.large", "--prices", str(EMBEDDED)]) == 2
    assert "cagrpc: no instance type of eu-central-1 is x99.large\n" in capsys.readouterr().err
    prices = tmp_path / "prices.csv"
    prices.write_text("instance_type,usd_per_hour\nm7i.large,0.1\n")
    assert main(["catalogue", "aws", "--instance-type", "m7i.*large", "--no-spot", "--prices", str(prices)]) == 0
    assert "instance types without a price" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("instance_type,price\nm7i.large,1\n", "prices.csv:1: usd_per_hour: the column is missing"),
        ("instance_type,usd_per_hour\nm7i.large,cheap\n", 'prices.csv:2: usd_per_hour: found "cheap", expected US'),
    ],
)
def test_a_wrong_file_of_prices_is_named(
    account: Emulator, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    (tmp_path / "prices.csv").write_text(text)
    assert main(["catalogue", "aws", "--prices", str(tmp_path / "prices.csv")]) == 2
    assert expected in capsys.readouterr().err


def test_where_aws_cannot_be_asked_the_command_fails(
    account: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", "http://127.0.0.1:1")
    monkeypatch.setattr(aws_account, "_ATTEMPTS", 1)
    assert main(["catalogue", "aws", "--prices", str(EMBEDDED)]) == 1
    assert capsys.readouterr().err.startswith("cagrpc: AWS: Could not connect to the endpoint URL")


def test_the_policy_allows_the_calls_that_are_made_and_no_other() -> None:
    source = Path(aws_account.__file__).read_text()
    actions = set(json.loads(POLICY.read_text())["Statement"][0]["Action"])
    for action in actions:
        service, _, name = action.partition(":")
        operation = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).strip("_")
        assert f'"{operation}"' in source, f"{service} {operation} is not called"
    assert source.count("_pages(") - 1 == len(actions), "one listing for each"


@pytest.mark.parametrize(
    ("described", "volumes"),
    [
        pytest.param({"EbsInfo": {"MaximumEbsAttachments": 27, "AttachmentLimitType": "shared"}}, 25, id="shared"),
        pytest.param({"EbsInfo": {"MaximumEbsAttachments": 32, "AttachmentLimitType": "dedicated"}}, 31, id="own"),
        pytest.param({"EbsInfo": {"MaximumEbsAttachments": 40}, "Hypervisor": "xen"}, 38, id="before Nitro"),
        pytest.param({"EbsInfo": {}}, 25, id="EC2 of an earlier time tells no number"),
        pytest.param({"EbsInfo": {"MaximumEbsAttachments": 1}}, 1, id="never none: that would mean without limit"),
    ],
)
def test_attachments_are_what_ec2_tells_less_what_a_new_node_has(
    account: Emulator, described: dict[str, Any], volumes: int
) -> None:
    (whole,) = account.client.describe_instance_types(InstanceTypes=["m7i.large"])["InstanceTypes"]
    found = rows([{**whole, "EbsInfo": {}, **described}], Market({"m7i.large": ZONES[:1]}, {"m7i.large": 1.0}, {}, {}))
    assert [row["attachable-volumes-csi-ebs.csi.aws.com"] for row in found] == [volumes]
