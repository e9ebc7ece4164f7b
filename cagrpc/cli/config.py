"""`cagrpc config`: write a first configuration from what a cluster shows, check files as a server or `cagrpc plan`
would read them, print the JSON schema, and read sections from a cluster."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from cagrpc.cli import flags
from cagrpc.cli.usage import examples
from cagrpc.output import complain, say, warn, writing

SUMMARY = "write a first configuration, check files, print their JSON schema, or read sections from a cluster"
DETAILS = ""
EXAMPLES = (
    "cagrpc config init --kubeconfig ~/.kube/config --output cagrpc.yaml",
    "cagrpc config check cagrpc.yaml",
    "cagrpc config schema",
    "cagrpc config import node-pools --kubeconfig ~/.kube/config",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)

    def action(name: str, help_: str) -> argparse.ArgumentParser:
        shown = [each for each in EXAMPLES if each.startswith(f"cagrpc config {name}")]
        added = actions.add_parser(name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.")
        added.epilog = examples(shown, kubectl=parser.prog.startswith("kubectl"))
        return added

    check = action("check", "read the files as `serve` would and report every error")
    check.add_argument("files", type=Path, nargs="+", metavar="FILE")
    action("schema", "print the JSON schema of the configuration")
    first = action(
        "init",
        "write a first configuration from what a cluster shows, which is only read; each line says its source",
    )
    flags.add_cluster(first, "the cluster to read, which the configuration is for")
    first.add_argument("--output", type=Path, metavar="FILE", help="a new file (default: stdout)")
    read = action("import", "print sections that are read from a cluster, such as its node groups")
    read.add_argument("source", metavar="SOURCE", help="machine-deployments (Cluster API) or node-pools (Karpenter)")
    read.add_argument("--kubeconfig", type=Path, required=True, metavar="FILE", help="the cluster to read")
    read.add_argument("--context", default="", help="the context to use (default: the current one)")
    read.add_argument("--cluster", default="", help="the name of the Cluster or NodePool (default: all of them)")
    read.add_argument("--namespace", default="", help="the namespace of the objects")


def run(options: argparse.Namespace) -> int:
    """Exits 2 where a file is invalid."""
    from cagrpc.config.check import check_files, schema_text
    from cagrpc.errors import ALL_PROBLEMS, first_problems

    if options.action == "schema":
        say(schema_text().rstrip("\n"))
        return 0
    if options.action == "init":
        return _init(options)
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


def _init(options: argparse.Namespace) -> int:
    """Look at the cluster, and write what it comes to. A file that is there stays as it is."""
    from cagrpc.errors import InvalidInput

    kubeconfig = flags.cluster(options)
    if kubeconfig is None:
        raise InvalidInput("config init: give the cluster's --kubeconfig")
    if options.output is not None and options.output.exists():
        raise InvalidInput(f"{options.output}: exists already; name a new file, or remove it")
    from cagrpc.offline.discovery import discover
    from cagrpc.offline.first_configuration import first_configuration

    text = first_configuration(discover(kubeconfig, options.context))
    if options.output is None:
        say(text.rstrip("\n"))
        return 0
    with writing(), options.output.open("x", encoding="utf-8") as file:
        file.write(text)
    say(f"{options.output}: written; `cagrpc serve --config {options.output}` serves it")
    return 0


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
