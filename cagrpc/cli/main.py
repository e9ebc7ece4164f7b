"""The entry point: every command's flags and help on one page, and what an error becomes for the shell. What a command
does is in the module of its name, imported only when it runs, so that `cagrpc --help` loads no solver.

Exit codes: 0 done, 1 it ran and failed, 2 wrong use or wrong input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cagrpc.errors import CagrpcError, InvalidConfiguration, InvalidInput
from cagrpc.output import OutputError, writing
from cagrpc.server.logs import LEVELS as LOG_LEVELS

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130

DEFAULT_STATE_DIR = Path(".cagrpc")
DEFAULT_CERTIFICATES_DIR = DEFAULT_STATE_DIR / "certs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its C core would write its own lines beside our one message
    try:
        code = int(importlib.import_module(options.module).run(options))
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
        return _report(error)
    return code


def _discard_stdout() -> None:
    """The interpreter writes what is left when it ends; by then somebody has been told already, or has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: CagrpcError) -> int:
    problems = error.problems if isinstance(error, InvalidConfiguration) else str(error).splitlines()
    for problem in problems:
        print(f"cagrpc: {problem}", file=sys.stderr)
    return EXIT_WRONG_INPUT if isinstance(error, InvalidInput) else EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cagrpc",
        description="An external gRPC cloud provider and expander for the Kubernetes cluster-autoscaler (CA).",
        epilog="Exit codes: 0 done, 1 it ran and failed, 2 wrong use or input, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"cagrpc {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_serve, _status, _slack, _plan, _explain, _replay, _certs, _config):
        add(commands)
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("cagrpc")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _command(commands: Any, name: str, summary: str, details: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}. {details}".strip()
    )
    parser.set_defaults(module=f"cagrpc.cli.{name}")
    return parser


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", choices=("human", "json"), default="human", help="for people or for machines")


def _serve(commands: Any) -> None:
    parser = _command(
        commands,
        "serve",
        "serve the provider, the expander and HTTP until SIGTERM",
        "Without --config it serves the embedded configuration: a simulated fleet over provisioners with weights.",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the configuration (YAML); see `cagrpc config schema`"
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="keeps journal, simulated fleet and development certificates (default: the configuration's)",
    )
    for name in ("provider", "expander", "http"):
        parser.add_argument(
            f"--{name}-address", metavar="HOST:PORT", help=f"instead of the configuration's {name} address"
        )
    parser.add_argument(
        "--booking",
        metavar="DURATION",
        help="how long capacity is reserved for a ProvisioningRequest's pods: 10m, 600s (default: the configuration's)",
    )
    parser.add_argument(
        "--ephemeral-ports",
        action="store_true",
        help="listen on free ports of 127.0.0.1; endpoints.json in the state directory names them",
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info", help="default: %(default)s")
    parser.add_argument("--replay", metavar="RECORDING", help="then replay this recording against the own sockets")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write every call and its answer to this new .jsonl.gz file"
    )
    parser.add_argument("--once", action="store_true", help="stop after the replay, with its exit code")


def _status(commands: Any) -> None:
    parser = _command(commands, "status", "show what a running server does: readiness, increments in flight, plans")
    _server_http(parser)
    _output(parser)


def _slack(commands: Any) -> None:
    parser = _command(
        commands,
        "slack",
        "show the resource slack of a running server: placeholders wanted, placed, displaced, and what they cost",
    )
    _server_http(parser)
    _output(parser)


def _server_http(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--http", default="127.0.0.1:8088", metavar="HOST:PORT", help="the server's HTTP address")


def _plan_inputs(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--pods",
        type=Path,
        nargs="+",
        action="extend",
        required=required,
        default=[],
        metavar="FILE",
        help="Kubernetes YAML or JSON (Pods, Lists, workloads, PodTemplates with a ProvisioningRequest), or CSV with"
        " the columns name,cpu_milli,memory_mib,num_gpu[,count]",
    )
    parser.add_argument(
        "--catalog", type=Path, metavar="FILE", help="instance types and prices, CSV (default: the embedded catalogue)"
    )
    parser.add_argument(
        "--provisioners",
        type=Path,
        nargs="+",
        action="extend",
        required=required,
        default=[],
        metavar="FILE",
        help="Karpenter NodePools or Provisioners, YAML",
    )
    parser.add_argument(
        "--nodes",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="nodes that stand already, and the pods bound to them: Kubernetes YAML or JSON",
    )
    parser.add_argument(
        "--previous",
        type=Path,
        metavar="FILE",
        help="a plan not yet applied, as --output json printed it: planning starts from it, and of equally good plans"
        " the one that changes least is taken",
    )
    parser.add_argument(
        "--gang-label",
        metavar="KEY",
        help="pods with the same value of this label are one gang (default: scheduling.x-k8s.io/pod-group)",
    )
    parser.add_argument(
        "--budget", default="1s", metavar="DURATION", help="how long to plan: 500ms, 1s, 2m (default: 1s)"
    )
    _output(parser)


def _plan(commands: Any) -> None:
    parser = _command(
        commands,
        "plan",
        "plan offline: which nodes for which pods, and how good that is",
        "Exits 0 also where pods stay unplaced: they are in the answer, with reasons.",
    )
    _plan_inputs(parser, required=True)


def _explain(commands: Any) -> None:
    parser = _command(
        commands,
        "explain",
        "explain the expander's last decision, the state of a ProvisioningRequest, or a plan",
        "Either --last, or `provisioningrequest NAME` of a running server, or the inputs of `cagrpc plan`, with what"
        " would serve the rest; explaining takes up to five times the budget of planning.",
    )
    parser.add_argument(
        "subject", nargs="*", metavar="provisioningrequest NAME", help="one that a running server serves: how it goes"
    )
    parser.add_argument("-n", "--namespace", default="default", help="of the ProvisioningRequest (default: default)")
    parser.add_argument("--last", action="store_true", help="the last decision of a running server")
    _server_http(parser)
    _plan_inputs(parser, required=False)


def _replay(commands: Any) -> None:
    parser = _command(
        commands,
        "replay",
        "send a recorded conversation of a cluster-autoscaler to running servers and compare",
        "Instances are matched in order of creation. Exits 1 when a request is not answered as recorded.",
    )
    parser.add_argument("recording", metavar="RECORDING", help="a .jsonl.gz file, or the name of an embedded recording")
    parser.add_argument("--provider", default="127.0.0.1:8086", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--expander", default="127.0.0.1:8087", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument(
        "--certs",
        type=Path,
        default=DEFAULT_CERTIFICATES_DIR,
        metavar="DIR",
        help="holds ca.crt, client.crt and client.key (default: %(default)s)",
    )
    parser.add_argument(
        "--settle-seconds",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for a node group after each increase (default: %(default)s)",
    )
    _output(parser)


def _certs(commands: Any) -> None:
    parser = _command(
        commands,
        "certs",
        "make development certificates, or renew them",
        "A CA, a server certificate for provider and expander, a client certificate for the cluster-autoscaler.",
    )
    parser.add_argument(
        "--dir", type=Path, default=DEFAULT_CERTIFICATES_DIR, metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="HOST",
        help="a name or address that servers are reached by, besides localhost, 127.0.0.1 and ::1; may be repeated",
    )


def _config(commands: Any) -> None:
    parser = _command(commands, "config", "check configuration files, or print their JSON schema")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    check = actions.add_parser("check", help="read the files as `serve` would and report every error")
    check.add_argument("files", type=Path, nargs="+", metavar="FILE")
    actions.add_parser("schema", help="print the JSON schema of the configuration")
