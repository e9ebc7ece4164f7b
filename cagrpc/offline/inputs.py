"""What `cagrpc plan` and `cagrpc explain` share: files to a problem, every error of every file at once, and solving it
while somebody may be watching.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.files import manifests
from cagrpc.cli.previous import read_previous
from cagrpc.config.load import load_provisioners
from cagrpc.errors import CagrpcError, InvalidConfiguration, InvalidInput
from cagrpc.fleet.catalogue import embedded_catalogue, read_catalogue
from cagrpc.output import console, warn
from solver import Budget, NodeGroup, Plan, PlanRejectedError, Problem, ProblemError, solve

T = TypeVar("T")

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, what was planned and for how long, and the node groups that it speaks of by id."""

    plan: Plan
    problem: Problem
    budget: Budget
    groups: Mapping[str, NodeGroup]


def plan_from_files(options: argparse.Namespace) -> Planned:
    """Read, plan; warnings go to stderr. Raises InvalidConfiguration with every problem of every input."""
    problem, budget = _read(options)
    plan = watched(f"planning {sum(pods.count for pods in problem.pod_sets)} pods", lambda: solve(problem, budget))
    return Planned(plan, problem, budget, {group.id: group for group in problem.node_groups})


def parse_seconds(text: str, flag: str = "--budget") -> float:
    """A duration such as 500ms, 1s, 1.5s or 2m. Raises InvalidInput, which names the flag."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    seconds = float(found[1]) * _UNIT_SECONDS[found[2]] if found else 0.0
    if not seconds:
        raise InvalidInput(f"{flag}: found {text!r}, expected a duration above 0 such as 500ms, 1s or 2m")
    return seconds


def _read(options: argparse.Namespace) -> tuple[Problem, Budget]:
    reader = _Reader()
    seconds = reader.attempt(lambda: parse_seconds(options.budget))
    label = options.gang_label or DEFAULT_GANG_LABEL
    found = reader.attempt(
        lambda: manifests.read(options.pods, options.nodes, now_seconds=time.time(), gang_label=label)  # noqa: TID251 - pods' ages
    )
    catalogue = reader.attempt(lambda: read_catalogue(options.catalog) if options.catalog else embedded_catalogue())
    pod_sets = found.pod_sets if found else ()
    previous = reader.attempt(lambda: read_previous(options.previous, pod_sets)) if options.previous else None
    # without its catalogue nothing true can be said of a provisioner's instance types
    expanded = reader.attempt(lambda: load_provisioners(options.provisioners, catalogue)) if catalogue else None
    if reader.problems or found is None or expanded is None or seconds is None:
        raise InvalidConfiguration(reader.problems)
    for warning in (*found.warnings, *expanded.warnings):
        warn(warning)
    if expanded.limits and found.nodes:
        warn("the limits of provisioners bound new nodes alone here: whose the nodes of --nodes are is not known")
    problem = Problem(found.pod_sets, expanded.groups, found.nodes, expanded.limits, found.daemon_sets, previous)
    return problem, Budget(seconds)


class _Reader:
    """Collects what goes wrong."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def attempt(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except InvalidInput as error:
            self.problems += error.problems if isinstance(error, InvalidConfiguration) else str(error).splitlines()
            return None


def watched(task: str, work: Callable[[], T]) -> T:
    """The planner at work, with a spinner and the time on stderr where somebody watches it. Raises its errors as those
    of the command line."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True, disable=not sys.stderr.isatty()) as progress:
        progress.add_task(task, total=None)
        try:
            return work()
        except ProblemError as error:
            raise InvalidConfiguration(error.problems) from error
        except PlanRejectedError as error:
            raise CagrpcError(
                f"the planner produced a plan that its checker rejected: {'; '.join(error.faults)}; this is a defect of"
                " cagrpc: please report it with the files that were planned"
            ) from error
