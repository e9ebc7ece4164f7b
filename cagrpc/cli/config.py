"""`cagrpc config`: check files as a server or `cagrpc plan` would read them, and print the JSON schema."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cagrpc.output import say, warn

SUMMARY = "check configuration files, or print their JSON schema"
DETAILS = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    check = actions.add_parser("check", help="read the files as `serve` would and report every error")
    check.add_argument("files", type=Path, nargs="+", metavar="FILE")
    actions.add_parser("schema", help="print the JSON schema of the configuration")


def run(options: argparse.Namespace) -> int:
    """Exits 2 where a file is invalid."""
    from cagrpc.config.check import check_files, schema_text

    if options.action == "schema":
        say(schema_text().rstrip("\n"))
        return 0
    report = check_files(options.files)
    for file in report.files:
        for warning in file.warnings:
            warn(f"{file.path}: {warning}")
        for problem in file.problems:
            place = "" if problem.startswith(str(file.path)) else f"{file.path}: "
            print(f"cagrpc: {place}{problem}", file=sys.stderr)
        if not file.problems:
            say(f"{file.path}: {file.kind}, valid: {file.summary}")
    return 0 if report.valid else 2
