"""Ask an AWS account what its Region offers, for `cagrpc catalogue aws`: types, zones, prices, capacity reservations.
What becomes of the answers is in `catalogue`; `deploy/iam-policy-catalogue.json` allows the calls.
"""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from cagrpc.backends.plugin import CatalogueRequest, ReadCatalogue
from cagrpc.errors import InvalidConfiguration, InvalidInput, Unavailable
from cagrpc_ec2.catalogue import Market, rows, text_of

_PRICE_LIST_REGION = "us-east-1"
"""The price list's API is in few Regions, and has the prices of all."""
_ATTEMPTS = 5
_MOST_NAMES = 100
"""Of types that spot prices are asked for; for more, those of all types are."""
_PRICE_FILTERS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
    "operation": "RunInstances",
}


def read_catalogue(wanted: CatalogueRequest) -> ReadCatalogue:
    """Return the catalogue of a Region. Raises InvalidInput where it has nothing of what is wanted, and Unavailable
    where AWS cannot be asked."""
    prices = _prices_of_file(wanted.prices) if wanted.prices is not None else None
    with _explained():
        session = _session(wanted.region)
        ec2 = _client(session, "ec2")
        filters = [{"Name": "instance-type", "Values": list(wanted.instance_types)}] if wanted.instance_types else []
        described = list(_pages(ec2, "describe_instance_types", "InstanceTypes", Filters=filters))
        names = {str(each["InstanceType"]) for each in described}
        if not names:
            raise InvalidInput(f"no instance type of {session.region_name} is {', '.join(wanted.instance_types)}")
        zones = _zones(ec2)
        if prices is None:
            prices = _on_demand_prices(_client(session, "pricing", _PRICE_LIST_REGION), session.region_name)
        market = Market(
            zones,
            prices,
            _spot_prices(ec2, sorted(names)) if wanted.spot else {},
            _reservations(ec2) if wanted.reservations else {},
        )
    found = list(rows(described, market))
    priced = {row["instance_type"] for row in found}
    offered = {name for name in names if zones.get(name)}
    warnings = []
    if left_out := sorted(offered - priced):
        shown = ", ".join(left_out[:5]) + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else "")
        warnings.append(f"left out instance types without a price, or of which no Kubernetes node can be: {shown}")
    return ReadCatalogue(text_of(found), warnings)


def _session(region: str | None) -> Any:
    session = boto3.Session(region_name=region)
    if session.region_name is None:
        raise InvalidInput("there is no Region: give --region, or set AWS_DEFAULT_REGION")
    return session


def _client(session: Any, service: str, region: str | None = None) -> Any:
    patient = Config(retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"}, user_agent_extra="cagrpc")
    return session.client(service, region_name=region, config=patient)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors of boto3 into cagrpc's."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise Unavailable(f"AWS: {error}") from error


def _pages(client: Any, operation: str, member: str, **request: Any) -> Iterator[Mapping[str, Any]]:
    for page in client.get_paginator(operation).paginate(**request):
        yield from page.get(member, ())


def _zones(ec2: Any) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    listing = "describe_instance_type_offerings"
    for each in _pages(ec2, listing, "InstanceTypeOfferings", LocationType="availability-zone"):
        found[str(each["InstanceType"])].add(str(each["Location"]))
    return found


def _spot_prices(ec2: Any, names: Sequence[str]) -> Mapping[tuple[str, str], float]:
    """Return the present prices; the history is asked for from now on, which is the last price of each."""
    request: dict[str, Any] = {"ProductDescriptions": ["Linux/UNIX"], "StartTime": datetime.now(UTC)}
    if len(names) <= _MOST_NAMES:
        request["InstanceTypes"] = names
    newest: dict[tuple[str, str], tuple[Any, float]] = {}
    for each in _pages(ec2, "describe_spot_price_history", "SpotPriceHistory", **request):
        key = (str(each["InstanceType"]), str(each["AvailabilityZone"]))
        if key not in newest or each["Timestamp"] > newest[key][0]:
            newest[key] = (each["Timestamp"], float(each["SpotPrice"]))
    return {key: price for key, (_, price) in newest.items()}


def _reservations(ec2: Any) -> Mapping[tuple[str, str], int]:
    """Return the instances of active reservations, used ones included: a node group's size counts these too."""
    found: Counter[tuple[str, str]] = Counter()
    active = [{"Name": "state", "Values": ["active"]}]
    for each in _pages(ec2, "describe_capacity_reservations", "CapacityReservations", Filters=active):
        found[str(each["InstanceType"]), str(each["AvailabilityZone"])] += int(each["TotalInstanceCount"])
    return found


def _on_demand_prices(pricing: Any, region: str) -> Mapping[str, float]:
    found = {}
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in {**_PRICE_FILTERS, "regionCode": region}.items()
    ]
    for text in _pages(pricing, "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters):
        product = json.loads(str(text))
        name = product.get("product", {}).get("attributes", {}).get("instanceType")
        prices = [
            float(dimension["pricePerUnit"]["USD"])
            for term in product.get("terms", {}).get("OnDemand", {}).values()
            for dimension in term.get("priceDimensions", {}).values()
            if "USD" in dimension.get("pricePerUnit", {})
        ]
        if name and prices and max(prices) > 0:
            found[str(name)] = max(prices)
    return found


def _prices_of_file(path: Path) -> Mapping[str, float]:
    """Read on-demand prices: the columns instance_type and usd_per_hour, of a catalogue for example."""
    try:
        reader = csv.DictReader(StringIO(path.read_text(encoding="utf-8-sig")))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidConfiguration([f"{path}: cannot be read: {why}"]) from error
    absent = {"instance_type", "usd_per_hour"}.difference(reader.fieldnames or ())
    if absent:
        raise InvalidConfiguration([f"{path}:1: {column}: the column is missing" for column in sorted(absent)])
    found, problems = {}, []
    for row in reader:
        if (row.get("capacity_type") or "on-demand") != "on-demand":
            continue
        try:
            found[str(row["instance_type"])] = float(row["usd_per_hour"])
        except (TypeError, ValueError):
            written = str(row["usd_per_hour"])[:80]
            problems.append(f'{path}:{reader.line_num}: usd_per_hour: found "{written}", expected US dollars per hour')
    if problems:
        raise InvalidConfiguration(problems)
    return found
