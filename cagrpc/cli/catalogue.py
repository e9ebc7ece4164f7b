"""`cagrpc catalogue`: write a catalogue of what a cloud offers, which the plug-in of a backend asks it."""

from __future__ import annotations

import argparse

from cagrpc.cli import flags
from cagrpc.output import say, warn, writing
from solver.model.quantities import pluralize

SUMMARY = "write the catalogue of what a cloud offers"
DETAILS = "The field `catalogue` of the configuration names the file."
EXAMPLES = ("cagrpc catalogue aws --region eu-central-1 --instance-type 'm7i.*' --output catalogue.csv",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cloud", metavar="CLOUD", help="aws (by the package cagrpc-ec2), or one of another backend's")
    parser.add_argument("--region", metavar="REGION", help="default: that of the environment")
    parser.add_argument(
        "--instance-type",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a type or a pattern such as 'm7*'; may be repeated; default: all",
    )
    flags.add_file(
        parser, "--prices", "on-demand prices from CSV (instance_type, usd_per_hour) instead of the cloud's own"
    )
    parser.add_argument("--no-spot", action="store_true", help="leave out spot offerings and their prices")
    parser.add_argument(
        "--reservations",
        action="store_true",
        help="add the account's capacity reservations, as capacity type reserved",
    )
    flags.add_file(parser, "--output", "default: stdout")


def run(options: argparse.Namespace) -> int:
    """Ask the cloud, and write the file whole or not at all."""
    from cagrpc.backends.plugin import CatalogueRequest
    from cagrpc.backends.registry import catalogue_source
    from cagrpc.fleet.catalogue import parse_catalogue

    found = catalogue_source(options.cloud).read(
        CatalogueRequest(
            options.region,
            options.instance_type,
            options.prices,
            spot=not options.no_spot,
            reservations=options.reservations,
        )
    )
    catalogue = parse_catalogue(found.text, f"catalogue of {options.cloud}")
    warn(*found.warnings)
    if options.output is None:
        say(found.text.rstrip("\n"))
        return 0
    with writing():
        options.output.write_text(found.text, encoding="utf-8")
    say(f"{options.output}: {pluralize(len(catalogue.offerings), 'offering')}")
    return 0
