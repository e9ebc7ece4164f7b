"""`cagrpc explain`: the expander's last decision or a ProvisioningRequest, asked of a running server, or why a plan is
as it is."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from cagrpc.cli import flags
from cagrpc.cli.interruption import interruptible
from cagrpc.errors import InvalidInput, Unavailable, did_you_mean, shown

if TYPE_CHECKING:
    from cagrpc.offline.planning import Planned
    from solver import Explanation
    from solver.model.budget import Interruption

SUMMARY = "explain the expander's last decision, the state of a ProvisioningRequest, or a plan"
DETAILS = (
    "Give --last or `provisioningrequest NAME` to ask a running server, or the inputs of `cagrpc plan`, to learn why"
    " each node group is taken and what would serve the other pods; that takes up to five times as long as planning."
)
EXAMPLES = (
    "cagrpc explain --last",
    "cagrpc explain provisioningrequest train --namespace team-a",
    "cagrpc explain --pods pods.yaml --provisioners nodepools.yaml --verbose",
    "cagrpc explain --kubeconfig ~/.kube/config",
)
REQUEST_KINDS = ("provisioningrequest", "provisioningrequests", "provreq")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject", nargs="*", metavar="provisioningrequest NAME", help="the state of one that a running server serves"
    )
    parser.add_argument("-n", "--namespace", default="default", help="its namespace (default: default)")
    parser.add_argument(
        "--last",
        action="store_true",
        help="the last decision of a running server; with `drive: plan` its last planning round",
    )
    flags.add_server(parser)
    flags.add_cluster(parser, "ask the server in this cluster, through kubectl; or plan for the pods that wait there")
    flags.add_plan_inputs(parser)


def run(options: argparse.Namespace) -> int:
    """Any of the three."""
    if options.subject:
        return _request(options)
    if options.last:
        return _last(options)
    if flags.cluster(options) is None and not (options.pods and options.provisioners):
        raise InvalidInput(
            "explain: give --last, or provisioningrequest NAME, or --pods and --provisioners or --kubeconfig as for"
            " `cagrpc plan`"
        )
    return _plan(options)


def _plan(options: argparse.Namespace) -> int:
    from cagrpc.offline.plan_report import explanation_as_json
    from cagrpc.offline.plan_words import print_explanation
    from cagrpc.offline.planning import explain_plan, plan

    read = flags.problem(options)

    def work(by: Interruption) -> tuple[Planned, Explanation]:
        planned = plan(read.problem, replace(read.budget, interruption=by), limited=False)
        return planned, explain_plan(planned, read.widen)

    found, code = interruptible(work)
    flags.show(
        options,
        found,
        lambda found, out: print_explanation(*found, out, verbose=options.verbose),
        lambda found: explanation_as_json(*found),
    )
    return code


def _last(options: argparse.Namespace) -> int:
    from cagrpc.inspection.client import get_json
    from cagrpc.inspection.pages import print_decision
    from cagrpc.inspection.status import print_round

    with flags.server(options) as server:
        plans = get_json(server, "/status").get("drive") == "plan"
        decisions = get_json(server, "/plans?limit=1" if plans else "/decisions?limit=1")
    if not decisions and plans:
        raise Unavailable(f"the server at {server} has planned nothing yet: with drive: plan it plans while pods wait")
    if not decisions:
        raise Unavailable(f"the server at {server} has decided nothing yet: CA asks while pods are pending")
    if plans:
        flags.show(options, decisions[-1], print_round)
        return 0
    flags.show(options, decisions[-1], print_decision)
    return 0


def _request(options: argparse.Namespace) -> int:
    from cagrpc.inspection.client import get_list
    from cagrpc.inspection.pages import print_request

    if len(options.subject) != 2 or options.subject[0] not in REQUEST_KINDS:
        raise InvalidInput(f"explain: found {shown(' '.join(options.subject))}, expected provisioningrequest NAME")
    key = f"{options.namespace}/{options.subject[1]}"
    with flags.server(options) as server:
        listed = get_list(server, "/provisioningrequests")
    records = {f"{each['namespace']}/{each['name']}": each for each in listed}
    if key not in records:
        raise InvalidInput(
            f"the server at {server} serves no ProvisioningRequest {key}{did_you_mean(key, records)}; one of a"
            " class that is not cagrpc's is left to others"
        )
    flags.show(options, records[key], print_request)
    return 0
