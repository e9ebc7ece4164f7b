"""`cagrpc slack`: what a running server holds in reserve, and what that costs."""

from __future__ import annotations

import argparse

from cagrpc.cli import flags

SUMMARY = "show the resource slack of a running server: placeholders wanted, placed, displaced, and what they cost"
DETAILS = ""
EXAMPLES = (
    "cagrpc slack",
    "cagrpc slack --kubeconfig ~/.kube/config --output json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_server(parser, "-n", "--namespace")
    flags.add_cluster(parser, flags.OF_A_SERVER)
    flags.add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Exits 0 whatever the server holds; Unavailable where it does not answer."""
    from cagrpc.inspection.client import get_json
    from cagrpc.inspection.pages import print_slack

    with flags.server(options) as server:
        slack = get_json(server, "/slack")
    flags.show(options, slack, print_slack)
    return 0
