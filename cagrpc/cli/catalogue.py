"""`cagrpc catalogue`: write a catalogue of what a cloud offers; see `cagrpc.offline.aws_account`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cagrpc.output import say, warn, writing
from solver.model.quantities import several

SUMMARY = "write the catalogue of what a cloud offers"
DETAILS = "The field `catalogue` of the configuration names the file."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    clouds = parser.add_subparsers(title="clouds", metavar="CLOUD", dest="cloud", required=True)
    aws = clouds.add_parser("aws", help="instance types, zones and prices of an AWS Region; needs cagrpc[ec2]")
    aws.add_argument("--region", metavar="REGION", help="default: that of the environment")
    aws.add_argument(
        "--instance-type",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a type or a pattern such as 'm7*'; may be repeated; default: all",
    )
    aws.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="on-demand prices from CSV (instance_type, usd_per_hour) instead of the price list's API",
    )
    aws.add_argument("--no-spot", action="store_true", help="without spot offerings and their prices")
    aws.add_argument(
        "--reservations",
        action="store_true",
        help="with the account's capacity reservations, as capacity type reserved",
    )
    aws.add_argument("--output", type=Path, metavar="FILE", help="default: stdout")


def run(options: argparse.Namespace) -> int:
    """Ask the cloud, and write the file whole or not at all."""
    from cagrpc.offline.aws_account import CatalogueRequest, catalogue_of

    text, warnings = catalogue_of(
        CatalogueRequest(
            options.region,
            options.instance_type,
            options.prices,
            spot=not options.no_spot,
            reservations=options.reservations,
        )
    )
    for warning in warnings:
        warn(warning)
    if options.output is None:
        say(text.rstrip("\n"))
        return 0
    with writing():
        options.output.write_text(text, encoding="utf-8")
    say(f"{options.output}: {several(text.count(chr(10)) - 1, 'offering')}")
    return 0
