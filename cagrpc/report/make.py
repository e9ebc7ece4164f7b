"""From what the command line names to the report: read, plan, compose."""

from __future__ import annotations

import time
from dataclasses import replace

from cagrpc.api.core.movability import MovingRules
from cagrpc.api.encoding.json_documents import Problems
from cagrpc.cluster.documents import DocumentReader
from cagrpc.errors import InvalidConfiguration, InvalidInput
from cagrpc.offline.inputs import Inputs, read_inputs
from cagrpc.report.compose import compose
from cagrpc.report.consolidation import consolidated, moving_question
from cagrpc.report.ladder import CONSOLIDATION, climb
from cagrpc.report.model import Report
from cagrpc.report.problem import ReadCluster
from cagrpc.report.standing import ReportedNode
from solver import Budget

_MOST_NAMED = 10


def make_report(inputs: Inputs, budget: Budget) -> Report:
    """Return the report. Raises InvalidInput with what is wrong with the inputs, Unavailable where the cluster cannot
    be read."""
    started = time.perf_counter()
    now_seconds = time.time()  # noqa: TID251 - pods' ages
    # What --nodes names for a plan is the whole of a cluster here.
    inputs = replace(inputs, pods=(*inputs.nodes, *inputs.pods), nodes=())
    source = _source(inputs)
    reader = DocumentReader(now_seconds, inputs.gang_label, inputs.schedulers, MovingRules())
    warnings: tuple[str, ...] = ()
    if inputs.recording:
        from cagrpc.report.recorded import read_recorded  # noqa: PLC0415 - it brings gRPC

        warnings = read_recorded(inputs.recording, reader)
    problems: Problems = []
    read = read_inputs(inputs, reader, problems)
    if problems:
        raise InvalidConfiguration(problems)
    cluster = ReadCluster.of(read, packed=not inputs.recording)
    _check(inputs, cluster.nodes)
    ladder = climb(cluster, budget)
    consolidation = None
    if cluster.packed and reader.bound and ladder.present_usd_per_hour:
        moving = moving_question(cluster, ladder.question)
        consolidation = consolidated(moving, cluster.nodes, budget.part(CONSOLIDATION))
    report = compose(source, cluster, ladder, consolidation, time.perf_counter() - started)
    by = budget.interruption
    return replace(report, warnings=(*warnings, *report.warnings), interrupted=by is not None and by.happened)


def _source(inputs: Inputs) -> str:
    given = {"files": inputs.pods, "recording": inputs.recording, "cluster": inputs.kubeconfig}
    found = [name for name, each in given.items() if each]
    if len(found) != 1:
        raise InvalidInput(
            "report: give one of --pods and --nodes (files), --recording, and --kubeconfig (a running cluster)"
        )
    return found[0]


def _check(inputs: Inputs, nodes: tuple[ReportedNode, ...]) -> None:
    """Refuse inputs of which nothing could be reported."""
    if not nodes and not inputs.provisioners:
        raise InvalidInput("report: there are no nodes; with --provisioners the pods are planned on new ones")
    if nodes and all(each.price_usd_per_hour is None for each in nodes):
        kinds = sorted({each.instance_type or "(no instance type)" for each in nodes})
        shown = ", ".join(kinds[:_MOST_NAMED]) + (" ..." if len(kinds) > _MOST_NAMED else "")
        raise InvalidInput(
            f"report: no node has a price: {shown}. Name a table with the columns instance_type and usd_per_hour (and"
            " zone, capacity_type) with --prices"
        )
