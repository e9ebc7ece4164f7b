"""`cagrpc status`: whether a running server is ready, what is in flight, what was planned."""

from __future__ import annotations

import argparse

from cagrpc.cli import flags

SUMMARY = "show what a running server does: readiness, increments in flight, plans"
DETAILS = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_server(parser)
    flags.add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Exits 0 whatever the server reports; Unavailable where it does not answer."""
    from cagrpc.inspection.client import get_json, get_list
    from cagrpc.inspection.status import print_status
    from cagrpc.output import print_json
    from cagrpc.tables import console

    status = get_json(options.http, "/status")
    increments, plans = get_list(options.http, "/increments"), get_list(options.http, "/plans")
    if options.output == "json":
        print_json({"status": status, "increments": increments, "plans": plans})
    else:
        print_status(status, increments, plans, console())
    return 0
