"""`cagrpc status`: whether a running server is ready, what is in flight, what was planned."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import NoReturn

from cagrpc.cli import flags

SUMMARY = "show what a running server has and does: nodes and their cost, pods that wait, increments in flight"
DETAILS = "--watch goes on until it is interrupted: it redraws a terminal, and prints a line for each change elsewhere."
EXAMPLES = (
    "cagrpc status",
    "cagrpc status --verbose",
    "cagrpc status --watch --kubeconfig ~/.kube/config",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_server(parser, "-n", "--namespace")
    flags.add_cluster(parser, flags.OF_A_SERVER)
    parser.add_argument("-w", "--watch", action="store_true", help="keep showing it, also over restarts of the server")
    flags.add_verbose(parser)
    flags.add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Exits 0 whatever the server reports; Unavailable where it does not answer."""
    from cagrpc.inspection.status import ServerPages, pages_of, print_status

    if options.watch:
        _watch(options)
    with flags.server(options) as server:
        pages = pages_of(server)
    flags.show(options, pages, partial(print_status, verbose=options.verbose), ServerPages.as_json)
    return 0


def _watch(options: argparse.Namespace) -> NoReturn:
    """Ends by an error or by KeyboardInterrupt."""
    from cagrpc.inspection.status import answers, changes, documents, redraw
    from cagrpc.output import data_text, say
    from cagrpc.tables import console

    found = answers(lambda: flags.server(options))
    if options.output not in flags.FORMS and sys.stdout.isatty():
        redraw(found, console(), verbose=options.verbose)
    between = "---\n" if options.output == "yaml" else ""
    of_machines = (between + data_text(each, options.output).rstrip("\n") for each in documents(found))
    for text in of_machines if options.output in flags.FORMS else changes(found):
        say(text)
        sys.stdout.flush()
    raise AssertionError("a server's answers do not end")
