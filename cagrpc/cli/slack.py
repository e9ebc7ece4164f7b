"""`cagrpc slack`: what a running server holds in reserve, and what that costs."""

from __future__ import annotations

import argparse

from cagrpc.cli import flags

SUMMARY = "show the resource slack of a running server: placeholders wanted, placed, displaced, and what they cost"
DETAILS = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_server(parser)
    flags.add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Exits 0 whatever the server holds; Unavailable where it does not answer."""
    from cagrpc.inspection.client import get_json
    from cagrpc.inspection.slack import print_slack
    from cagrpc.output import print_json
    from cagrpc.tables import console

    slack = get_json(options.http, "/slack")
    if options.output == "json":
        print_json(slack)
    else:
        print_slack(slack, console())
    return 0
