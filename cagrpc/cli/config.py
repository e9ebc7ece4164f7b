"""`cagrpc config`: checks files as a server or `cagrpc plan` would read them, and prints the JSON schema."""

from __future__ import annotations

import argparse
import sys

from cagrpc.config.check import check_files, schema_text
from cagrpc.output import say, warn


def run(options: argparse.Namespace) -> int:
    """`schema`, or `check` with a line for each sound file and every problem of the others. Exits 2 where there is
    one."""
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
    return 0 if report.sound else 2
