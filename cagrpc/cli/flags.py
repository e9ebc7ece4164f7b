"""Flags that several commands have."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cagrpc.errors import InvalidInput, reason_of

if TYPE_CHECKING:
    from rich.console import Console

    from cagrpc.inspection.client import ServerAddress
    from cagrpc.offline.inputs import ReadProblem

T = TypeVar("T")

DEFAULT_CERTIFICATES_DIR = Path(".cagrpc") / "certs"
OF_A_SERVER = "ask the server in this cluster, through kubectl"


FORMS = ("json", "yaml")
"""For machines."""


def add_file(parser: argparse.ArgumentParser, flag: str, what: str) -> None:
    """Add a flag that names a file."""
    parser.add_argument(flag, type=Path, metavar="FILE", help=what)


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("human", *FORMS), default="human", help="for people or for machines (default: human)"
    )


def add_verbose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="show everything that is known")


def show(
    options: argparse.Namespace,
    found: T,
    for_people: Callable[[T, Console], None],
    for_machines: Callable[[T], Any] = lambda found: found,
) -> None:
    """Print what a command has found, as the flag of `add_output` says."""
    if options.output in FORMS:
        from cagrpc.output import print_data

        print_data(for_machines(found), options.output)
    else:
        from cagrpc.tables import console

        for_people(found, console())


def add_server(parser: argparse.ArgumentParser, *namespace_flags: str) -> None:
    """Add the flags that say which running server is asked, and how; `server` reads them. `add_cluster` goes with
    it."""
    parser.add_argument(
        "--http",
        metavar="[https://]HOST:PORT",
        help="the server's HTTP address (default: $CAGRPC_HTTP, or 127.0.0.1:8088; for kubectl cagrpc the cluster's)",
    )
    add_file(
        parser,
        "--http-ca",
        "with https: the CA of the server's certificate (default: $CAGRPC_HTTP_CA, or the CAs that are trusted here)",
    )
    add_file(
        parser,
        "--token-file",
        "with https: a bearer token of an account with the ClusterRole cagrpc-reader (default: $CAGRPC_TOKEN)",
    )
    parser.add_argument(
        *namespace_flags,
        "--server-namespace",
        dest="server_namespace",
        default="cagrpc",
        metavar="NAME",
        help="the namespace of the server in the cluster (default: %(default)s)",
    )
    parser.add_argument(
        "--service-account",
        default="reader",
        metavar="NAME",
        help="the ServiceAccount, in the server's namespace, whose token is asked for (default: %(default)s)",
    )


def add_cluster(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add the flags that say which cluster it is; `cluster` and `server` read them."""
    add_file(parser, "--kubeconfig", f"{purpose} (default for kubectl cagrpc: kubectl's)")
    parser.add_argument("--context", default="", metavar="NAME", help="the context to use (default: the current one)")


def cluster(options: argparse.Namespace, *, unless: object = None) -> Path | None:
    """Return the kubeconfig that the flags of `add_cluster` name; kubectl's where they name none, but a context or
    the command is kubectl's, `unless` something else is given. None where there is none."""
    if options.kubeconfig is not None or unless or not (options.kubectl or options.context):
        return options.kubeconfig  # type: ignore[no-any-return] # argparse's
    files = [each for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
    if len(files) > 1:
        raise InvalidInput(f"$KUBECONFIG names {len(files)} files; name one with --kubeconfig")
    return Path(files[0]) if files else Path.home() / ".kube" / "config"


@contextmanager
def server(options: argparse.Namespace) -> Iterator[ServerAddress]:
    """Yield where the server is that the flags of `add_server` name. Raises InvalidInput, and Unavailable where it is
    in a cluster and not reached."""
    from cagrpc.inspection.client import ServerAddress

    named = options.http or os.environ.get("CAGRPC_HTTP")
    authority = options.http_ca or (Path(found) if (found := os.environ.get("CAGRPC_HTTP_CA")) else None)
    if options.http or not (options.kubeconfig or options.context or (options.kubectl and not named)):
        yield ServerAddress(named or "127.0.0.1:8088", authority, _token(options))
        return
    from cagrpc.inspection.forwarded import ServerInCluster, forwarded

    where = ServerInCluster(
        options.kubeconfig,
        options.context,
        options.server_namespace,
        options.service_account,
        authority,
        _token(options),
    )
    with forwarded(where) as reached:
        yield reached


def _token(options: argparse.Namespace) -> str:
    if options.token_file is None:
        return os.environ.get("CAGRPC_TOKEN", "").strip()
    try:
        return str(options.token_file.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{options.token_file}: its token cannot be read: {reason_of(error)}") from error


def _add_files(parser: argparse.ArgumentParser, flag: str, what: str) -> None:
    parser.add_argument(flag, type=Path, nargs="+", action="extend", default=[], metavar="FILE", help=what)


def add_plan_inputs(
    parser: argparse.ArgumentParser, *, output: bool = True, previous: bool = True, budget: str = "1s"
) -> None:
    """Add the fields of `cagrpc.offline.inputs.Inputs`, without `--output` or `--previous` where these are not
    wanted."""
    parser.set_defaults(previous=None, prices=None, recording="")
    _add_files(
        parser,
        "--pods",
        "Kubernetes YAML or JSON (Pods, Lists, workloads, PodTemplates with a ProvisioningRequest), or CSV with the"
        " columns name,cpu_milli,memory_mib,num_gpu[,count]",
    )
    add_file(parser, "--catalogue", "instance types and prices, CSV (default: the embedded catalogue)")
    _add_files(parser, "--provisioners", "Karpenter NodePools or Provisioners, YAML")
    _add_files(parser, "--nodes", "nodes that stand already, and the pods bound to them: Kubernetes YAML or JSON")
    add_file(
        parser,
        "--devices",
        "the devices that DRA drivers publish for new nodes: the section `devices` of a configuration, YAML;"
        " ResourceSlices of nodes of the same instance type come before it",
    )
    if previous:
        add_file(
            parser,
            "--previous",
            "a plan not yet applied, as --output json printed it: planning starts from it, and of equally good plans"
            " the one that changes least is taken",
        )
    parser.add_argument(
        "--gang-label",
        metavar="KEY",
        help="pods with the same value of this label are one gang (default: scheduling.x-k8s.io/pod-group)",
    )
    parser.add_argument(
        "--scheduler",
        action="append",
        metavar="NAME",
        help="plan only the pods of this scheduler (schedulerName); may be repeated (default: default-scheduler)",
    )
    parser.add_argument(
        "--feature-gate",
        action="append",
        metavar="NAME",
        help="a feature gate that the cluster has: TaintTolerationComparisonOperators; may be repeated",
    )
    parser.add_argument(
        "--budget", default=budget, metavar="DURATION", help=f"how long to plan: 500ms, 1s, 2m (default: {budget})"
    )
    if output:
        add_verbose(parser)
        add_output(parser)


def problem(options: argparse.Namespace) -> ReadProblem:
    """Return what is to be planned by the flags of `add_plan_inputs` and `add_cluster`, with its warnings printed."""
    from cagrpc.offline.inputs import inputs_of, read_problem
    from cagrpc.output import warn

    read = read_problem(inputs_of(options, cluster(options, unless=options.pods)), options.budget)
    warn(*read.warnings)
    return read
