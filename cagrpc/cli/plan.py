"""`cagrpc plan`: see `cagrpc.offline`."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial

from cagrpc.cli import flags
from cagrpc.cli.interruption import interruptible

SUMMARY = "plan offline: which nodes to open for which pods, and how close that is to the optimum"
DETAILS = (
    "From files, or for the pods that wait in a running cluster (--kubeconfig: it is only listed; nothing is ordered or"
    " written there). Starting and reading count towards --budget, up to a fifth of it. Exits 0 even if pods are left"
    " without a place: the answer says which, and why. Ctrl-C ends planning, and the best plan so far is printed."
)
EXAMPLES = (
    "cagrpc plan --pods pods.yaml --provisioners nodepools.yaml",
    "cagrpc plan --pods pods.csv --provisioners nodepools.yaml --nodes nodes.yaml --budget 10s",
    "cagrpc plan --pods pods.yaml --provisioners nodepools.yaml --catalogue prices.csv",
    "cagrpc plan --kubeconfig ~/.kube/config --context prod",
)

_MOST_BEGUN = 0.2
"""Of the budget, what starting and reading may take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_plan_inputs(parser)
    flags.add_cluster(parser, "plan for the pods that wait in this cluster, with its nodes, and with its NodePools or"
                      " MachineDeployments unless --provisioners are given")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Plan and print. Pods without a place are no failure."""
    from cagrpc.offline.plan_report import as_json
    from cagrpc.offline.plan_words import print_plan
    from cagrpc.offline.planning import plan

    read = flags.problem(options)
    # Whoever says 5s waits 5s, and not as long again as starting and reading take.
    begun = min(_MOST_BEGUN, time.process_time() / read.budget.seconds)
    budget = read.budget.part(1 - begun)
    planned, code = interruptible(lambda by: plan(read.problem, replace(budget, interruption=by)))
    flags.show(options, planned, partial(print_plan, verbose=options.verbose), as_json)
    return code
