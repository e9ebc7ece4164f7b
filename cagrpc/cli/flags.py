"""Flags that several commands have."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cagrpc.errors import InvalidInput

if TYPE_CHECKING:
    from cagrpc.inspection.client import ServerAddress

DEFAULT_CERTIFICATES_DIR = Path(".cagrpc") / "certs"
OF_A_SERVER = "ask the server in this cluster, through kubectl"


FORMS = ("json", "yaml")
"""For machines."""


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("human", *FORMS), default="human", help="for people or for machines (default: human)"
    )


def add_server(parser: argparse.ArgumentParser, *namespace_flags: str) -> None:
    """Add the flags that say which running server is asked, and how; `server` reads them. `add_cluster` goes with
    it."""
    parser.add_argument(
        "--http",
        metavar="[https://]HOST:PORT",
        help="the server's HTTP address (default: $CAGRPC_HTTP, or 127.0.0.1:8088; for kubectl cagrpc the cluster's)",
    )
    parser.add_argument(
        "--http-ca",
        type=Path,
        metavar="FILE",
        help="with https: the authority of its certificate (default: $CAGRPC_HTTP_CA, or those of this machine)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="with https: a bearer token of an account with the ClusterRole cagrpc-reader (default: $CAGRPC_TOKEN)",
    )
    parser.add_argument(
        *namespace_flags,
        "--server-namespace",
        dest="server_namespace",
        default="cagrpc",
        metavar="NAME",
        help="of the server in the cluster (default: %(default)s)",
    )
    parser.add_argument(
        "--service-account",
        default="reader",
        metavar="NAME",
        help="whose token is asked for in the cluster, in the server's namespace (default: %(default)s)",
    )


def add_cluster(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add the flags that say which cluster it is; `cluster` and `server` read them."""
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help=f"{purpose} (default for kubectl cagrpc:"
                        " kubectl's)")  # fmt: skip
    parser.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig (default: its current one)")


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
        raise InvalidInput(f"{options.token_file}: no token that could be read: {error}") from error


def add_plan_inputs(
    parser: argparse.ArgumentParser, *, output: bool = True, previous: bool = True, budget: str = "1s"
) -> None:
    """Add the fields of `cagrpc.offline.inputs.Inputs`, without `--output` or `--previous` where these are not
    wanted."""
    parser.set_defaults(previous=None, prices=None, recording="")
    parser.add_argument(
        "--pods",
        type=Path,
        nargs="+",
        action="extend",
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
        "--devices",
        type=Path,
        metavar="FILE",
        help="what DRA drivers publish of new nodes: a configuration's section devices, YAML; nodes of the same"
        " instance type with ResourceSlices among the files come first",
    )
    if previous:
        parser.add_argument(
            "--previous",
            type=Path,
            metavar="FILE",
            help="a plan not yet applied, as --output json printed it: planning starts from it, and of equally good"
            " plans the one that changes least is taken",
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
        help="plan the pods of this scheduler (schedulerName), and of no other that is not named so; may be given again"
        " (default: default-scheduler)",
    )
    parser.add_argument(
        "--budget", default=budget, metavar="DURATION", help=f"how long to plan: 500ms, 1s, 2m (default: {budget})"
    )
    if output:
        add_output(parser)
