"""From what the command line names to the report: read, plan, compose."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
from cagrpc.api.devices.objects import Device
from cagrpc.config.files import load_devices, load_provisioners
from cagrpc.config.prices import price_list
from cagrpc.errors import InvalidInput
from cagrpc.fleet.catalogue import embedded_catalogue, read_catalogue
from cagrpc.report.anonymise import anonymised
from cagrpc.report.compose import compose
from cagrpc.report.consolidation import consolidated, moving_question
from cagrpc.report.ladder import CONSOLIDATION, climb
from cagrpc.report.model import Report
from cagrpc.report.problem import Offered, ReadCluster
from cagrpc.report.sources import Objects, read_cluster, read_files
from cagrpc.report.standing import ReportedNode
from solver import Budget

_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class ReportInputs:
    """Where the cluster is read from (one of files, a recording and a kubeconfig), and what is known besides."""

    files: tuple[Path, ...] = ()
    recording: str = ""
    kubeconfig: Path | None = None
    context: str = ""
    provisioners: tuple[Path, ...] = ()
    """None for the node groups of existing nodes."""
    catalogue: Path | None = None
    """None for the embedded one."""
    prices: Path | None = None
    devices: Path | None = None
    schedulers: frozenset[str] = DEFAULT_SCHEDULERS
    gang_label: str = DEFAULT_GANG_LABEL
    budget: Budget = Budget(20.0)  # noqa: RUF009 - a frozen value
    anonymise: bool = False


def make_report(inputs: ReportInputs) -> Report:
    """Return the report. Raises InvalidInput with what is wrong with the inputs, Unavailable where the cluster cannot
    be read."""
    started = time.perf_counter()
    catalogue = read_catalogue(inputs.catalogue) if inputs.catalogue else embedded_catalogue()
    prices = price_list(catalogue, inputs.prices)
    expanded = load_provisioners(inputs.provisioners, catalogue) if inputs.provisioners else None
    devices: Mapping[str, tuple[Device, ...]] = {}
    if inputs.devices is not None and expanded is not None:
        devices = load_devices(inputs.devices, expanded.groups, catalogue)
    source, objects = _read(inputs)
    if expanded is not None:
        objects.warnings += expanded.warnings
    offered = Offered(expanded, prices, devices, inputs.schedulers, inputs.gang_label, time.time())  # noqa: TID251 - ages
    cluster = ReadCluster.read(objects, offered)
    _check(inputs, cluster.nodes)
    ladder = climb(cluster, inputs.budget)
    consolidation = None
    if objects.packed and objects.bound and ladder.present_usd_per_hour:
        moving = moving_question(cluster, ladder.question)
        consolidation = consolidated(moving, cluster.nodes, inputs.budget.part(CONSOLIDATION))
    report = compose(source, cluster, ladder, consolidation, time.perf_counter() - started)
    by = inputs.budget.interruption
    report = replace(report, interrupted=by is not None and by.happened)
    return anonymised(report) if inputs.anonymise else report


def _read(inputs: ReportInputs) -> tuple[str, Objects]:
    given = [bool(inputs.files), bool(inputs.recording), inputs.kubeconfig is not None]
    if sum(given) != 1:
        raise InvalidInput(
            "report: give one of --pods and --nodes (files), --recording, and --kubeconfig (a running cluster)"
        )
    if inputs.files:
        return "files", read_files(inputs.files)
    if inputs.recording:
        from cagrpc.report.recorded import read_recorded  # noqa: PLC0415 - it brings gRPC

        return "recording", read_recorded(inputs.recording)
    assert inputs.kubeconfig is not None
    return "cluster", read_cluster(inputs.kubeconfig, inputs.context)


def _check(inputs: ReportInputs, nodes: tuple[ReportedNode, ...]) -> None:
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
