"""`cagrpc report`: see `cagrpc.report`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cagrpc.cli import flags
from cagrpc.cli.interruption import interruptible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cagrpc.report.model import Report

SUMMARY = "report what a cluster costs, the least it could cost, and why"
DETAILS = (
    "For a running cluster (--kubeconfig: it is only listed; nothing is written there), for files, or for a recording."
    " Writes one HTML file that needs nothing else."
)
EXAMPLES = (
    "cagrpc report --kubeconfig ~/.kube/config",
    "cagrpc report --nodes nodes.yaml --pods pods.yaml --provisioners nodepools.yaml --to report.html",
    "cagrpc report --recording three-deployments --output json",
)

_MOST_LINES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_plan_inputs(parser, output=False, previous=False, budget="20s")
    flags.add_cluster(parser, "list a running cluster: nodes, pods and what these refer to")
    parser.add_argument("--recording", default="", metavar="RECORDING", help="a recorded conversation of a"
                        " cluster-autoscaler, a file or an embedded one: the pods and nodes it asked for")  # fmt: skip
    flags.add_file(
        parser,
        "--prices",
        "prices, CSV: instance_type,usd_per_hour[,zone][,capacity_type]; they come before the catalogue's",
    )
    parser.add_argument(
        "--anonymise", action="store_true", help="replace the names of the cluster, to share the report"
    )
    forms = ("html", *flags.FORMS)
    parser.add_argument("-o", "--output", choices=forms, default="html", help="a page, or the same for machines")
    flags.add_file(parser, "--to", "where to write it (default: report.html; JSON and YAML to stdout)")


def run(options: argparse.Namespace) -> int:
    """Read, plan, and write the report."""
    from cagrpc.durations import seconds_of_flag
    from cagrpc.offline.inputs import inputs_of
    from cagrpc.output import warn
    from cagrpc.report.anonymise import anonymised
    from cagrpc.report.make import make_report
    from solver import Budget

    elsewhere = options.nodes or options.pods or options.recording
    inputs = inputs_of(options, flags.cluster(options, unless=elsewhere))
    budget = Budget(seconds_of_flag(options.budget, "--budget"))
    report, code = interruptible(lambda by: make_report(inputs, replace(budget, interruption=by)))
    report = anonymised(report) if options.anonymise else report
    warn(*report.warnings)
    _write(options, report)
    return code


def _write(options: argparse.Namespace, report: Report) -> None:
    from cagrpc.output import data_text, say, warn, writing
    from cagrpc.report.as_json import as_json
    from cagrpc.report.sentences import headline, sentence, step_sentence, summary, warnings_of, why_not

    if options.output in flags.FORMS:
        text = data_text(as_json(report), options.output)
        if options.to is None:
            say(text.rstrip("\n"))
            return
        path = options.to
    else:
        from cagrpc.report.page import as_html

        text, path = as_html(report), options.to or Path("report.html")
    with writing():
        path.write_text(text, encoding="utf-8")
    say(f"{headline(report)}\n{summary(report)}")
    found = report.consolidation
    if found is not None:
        _say_list("The steps", [step_sentence(each) for each in found.steps])
        _say_list("Why not more", list(why_not(found)))
    else:
        _say_list("What would cost less", [sentence(each) for each in report.changes])
    warn(*warnings_of(report))
    say(f"{path} has the whole report")


def _say_list(title: str, lines: Sequence[str]) -> None:
    from cagrpc.output import say

    if lines:
        say(f"{title}:")
    for line in lines[:_MOST_LINES]:
        say(f"  - {line}")
    if len(lines) > _MOST_LINES:
        say(f"  - and {len(lines) - _MOST_LINES} more")
