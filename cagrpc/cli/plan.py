"""`cagrpc plan`: see `cagrpc.offline`."""

from __future__ import annotations

import argparse

from cagrpc.cli import flags

SUMMARY = "plan offline: which nodes for which pods, and how good that is"
DETAILS = "Exits 0 also where pods stay unplaced: they are in the answer, with reasons."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_plan_inputs(parser, required=True)


def run(options: argparse.Namespace) -> int:
    """Plan and print. Pods without a place are no failure."""
    from cagrpc.offline.inputs import inputs_of, read_problem
    from cagrpc.offline.plan_report import as_json, print_plan
    from cagrpc.offline.planning import plan
    from cagrpc.output import print_json, warn
    from cagrpc.tables import console

    read = read_problem(inputs_of(options))
    for warning in read.warnings:
        warn(warning)
    planned = plan(read.problem, read.budget)
    if options.output == "json":
        print_json(as_json(planned))
    else:
        print_plan(planned, console())
    return 0
