"""The entry point: every command by its name, and what an error becomes for the shell. A command's flags, help and work
are in the module of its name.

Exit codes: 0 done, 1 failed, 2 wrong usage or input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from cagrpc.cli.interruption import EXIT_INTERRUPTED
from cagrpc.cli.usage import CommandParser, examples
from cagrpc.errors import ALL_PROBLEMS, CagrpcError, InvalidConfiguration, InvalidInput, first_problems
from cagrpc.output import OutputError, complain, writing

COMMANDS = (
    "serve",
    "status",
    "slack",
    "plan",
    "explain",
    "report",
    "observe",
    "replay",
    "certs",
    "catalogue",
    "config",
    "completion",
)

COLLECT_AFTER = 50_000
"""New objects until garbage is sought. With Python's 700 that is a sixth of the time that importing OR-Tools, numba and
pandas takes, and a third of the time that loading what was compiled takes."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2


def main(arguments: Sequence[str] | None = None, *, kubectl: bool = False) -> int:
    """Run one command; return its exit code. With `kubectl` as its plug-in: the cluster is kubectl's unless another one
    is named."""
    if arguments is None:  # the process is ours
        gc.set_threshold(COLLECT_AFTER)
    options = parser(kubectl=kubectl).parsed(arguments)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write its own lines beside our one message
    try:
        code = int(options.run(options))
        with writing():
            sys.stdout.flush()  # a closed pipe shows here, not in the interpreter's last words
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_OK  # whoever reads has had enough: `cagrpc plan ... | head`
    except CagrpcError as error:
        if isinstance(error, OutputError):
            _discard_stdout()
        return _report(error, everything=options.all_problems)
    return code


def kubectl_main() -> int:
    """Run one command of `kubectl cagrpc`: kubectl runs `kubectl-cagrpc`, which is this."""
    return main(kubectl=True)


def parser(*, kubectl: bool = False) -> CommandParser:
    """Return the parser of the whole command line."""
    whole = CommandParser(
        prog="kubectl cagrpc" if kubectl else "cagrpc",
        description="An external gRPC cloud provider and expander for the Kubernetes cluster-autoscaler (CA).",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or input, 130 interrupted. `COMMAND --help` has examples.",
    )
    whole.set_defaults(kubectl=kubectl)
    whole.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    whole.add_argument("--all-problems", action="store_true", help="show all problems of a file, not only the first 20")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        command = import_module(f"cagrpc.cli.{name}")
        description = f"{command.SUMMARY[0].upper()}{command.SUMMARY[1:]}. {command.DETAILS}".strip()
        added = commands.add_parser(
            name, help=command.SUMMARY, description=description, epilog=examples(command.EXAMPLES, kubectl=kubectl)
        )
        command.add_arguments(added)
        added.set_defaults(run=command.run)
    return whole


class _Version(argparse.Action):
    """Reading the installed version takes longer than anything else here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("cagrpc")
        except PackageNotFoundError:
            found = "(not installed)"
        sys.stdout.write(f"cagrpc {found}\n")
        parser.exit()


def _discard_stdout() -> None:
    """Let the interpreter write what is left to nobody when it ends: the error is reported, or the reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: CagrpcError, *, everything: bool) -> int:
    problems = error.problems if isinstance(error, InvalidConfiguration) else str(error).splitlines()
    for problem in problems if everything else first_problems(problems, ALL_PROBLEMS):
        complain(problem)
    return EXIT_WRONG_INPUT if isinstance(error, InvalidInput) else EXIT_FAILED
