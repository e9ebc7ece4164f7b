"""`cagrpc config`: check files as a server or `cagrpc plan` would read them, print the JSON schema, and read sections
from a cluster."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from cagrpc.output import complain, say, warn

SUMMARY = "check configuration files, print their JSON schema, or read sections from a cluster"
DETAILS = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    check = actions.add_parser("check", help="read the files as `serve` would and report every error")
    check.add_argument("files", type=Path, nargs="+", metavar="FILE")
    actions.add_parser("schema", help="print the JSON schema of the configuration")
    read = actions.add_parser("import", help="print sections that are read from a cluster, such as its node groups")
    read.add_argument("source", metavar="SOURCE", help="machine-deployments (Cluster API) or node-pools (Karpenter)")
    read.add_argument("--kubeconfig", type=Path, required=True, metavar="FILE", help="of the cluster")
    read.add_argument("--context", default="", help="of the kubeconfig; the current one by default")
    read.add_argument("--cluster", default="", help="name of the Cluster or NodePool; all by default")
    read.add_argument("--namespace", default="", help="of the objects")


def run(options: argparse.Namespace) -> int:
    """Exits 2 where a file is invalid."""
    from cagrpc.config.check import check_files, schema_text
    from cagrpc.errors import ALL_PROBLEMS, first_problems

    if options.action == "schema":
        say(schema_text().rstrip("\n"))
        return 0
    if options.action == "import":
        return _import(options)
    checked = check_files(options.files)
    for file in checked:
        warn(*(f"{file.path}: {warning}" for warning in file.warnings))
        problems = file.problems if options.all_problems else first_problems(file.problems, ALL_PROBLEMS)
        for problem in problems:
            place = "" if problem.startswith(str(file.path)) else f"{file.path}: "
            complain(f"{place}{problem}")
        if not file.problems:
            say(f"{file.path}: {file.kind}, valid: {file.summary}")
    return 2 if any(file.problems for file in checked) else 0


def _import(options: argparse.Namespace) -> int:
    import yaml

    from cagrpc.backends.registry import cluster_sources
    from cagrpc.errors import InvalidInput, did_you_mean
    from cagrpc.kube.client.client import Client

    known = cluster_sources()
    if options.source not in known:
        expected = " or ".join(sorted(known))
        raise InvalidInput(f"found {options.source}, expected {expected}{did_you_mean(options.source, known)}")
    with closing(Client.connect(options.kubeconfig, options.context)) as client:
        found = known[options.source].read(client, options.cluster, options.namespace)
    warn(*found.warnings)
    say(yaml.safe_dump(dict(found.sections), sort_keys=False).rstrip("\n"))
    return 0
