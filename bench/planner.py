"""How good the planner's plans are, how well proven, and how fast: real and synthetic workloads, the peers' own
benchmarks and planted optima, beside a first-fit baseline in the same run.

    python -m bench.planner [--case NAME] [--budget SECONDS] [--workload FILE] [--json FILE] [--markdown FILE]

Prints one table. `gap` is what is proven, `goal` what was to be proven within the budget, `met` whether it was (the
budget kept to within a tenth, in less than a gibibyte); `over` is the cost above the optimum where that is known,
`left` the pods not placed, `FFD x` the baseline's cost as a multiple of ours. Times are of this machine; costs, bounds
and ratios hold anywhere.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.cases import CASES, Case, Run, Section
from bench.measure import Result, measure
from bench.table import growth, heading, line, machine, machine_line, write_markdown
from bench.workloads import pod_list


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append", metavar="NAME", help=f"one of: {', '.join(CASES)}")
    parser.add_argument("--budget", type=float, action="append", help="seconds, instead of the case's own")
    parser.add_argument("--workload", type=Path, action="append", default=[], help="a list of pods as CSV, planned too")
    parser.add_argument("--json", type=Path, help="write the rows and the machine there as well")
    parser.add_argument("--markdown", type=Path, help="write the table between the marks of this file as well")
    parser.add_argument(
        "--here", action="store_true", help="in this process, rows as JSON: how the bench starts itself"
    )
    arguments = parser.parse_args()
    named = arguments.case or ([] if arguments.workload else list(CASES))
    cases = [*(CASES[name] for name in named), *(_workload(path) for path in arguments.workload)]
    if arguments.here:
        _measure_here(cases, arguments.budget)
        return
    facts = machine()
    print(machine_line(facts))
    rows, failures = _measure_all(cases, arguments.budget)
    for sentence in growth(rows):
        print(sentence)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        told = [{**asdict(row), "met": row.met, "over_optimum": row.over_optimum} for row in rows]
        arguments.json.write_text(json.dumps({"machine": facts, "rows": told, "failures": failures}, indent=1) + "\n")
    if arguments.markdown:
        write_markdown(arguments.markdown, rows, facts)
    if failures:
        sys.exit(1)


def _measure_here(cases: Sequence[Case], budgets: Sequence[float] | None) -> None:
    for case in cases:
        for run in _runs(case, budgets):
            print(json.dumps([asdict(row) for row in measure(case, run)]))


def _measure_all(cases: Sequence[Case], budgets: Sequence[float] | None) -> tuple[list[Result], list[str]]:
    """Prints the table as it comes; what could not be measured is told and passed over."""
    rows: list[Result] = []
    failures: list[str] = []
    print(heading(), flush=True)
    for case in cases:
        try:
            for row in _rows(case, _runs(case, budgets)):
                rows.append(row)
                print(line(row), flush=True)
        except subprocess.SubprocessError as error:
            failures.append(f"{case.name}: {error}")
            print(failures[-1], flush=True)
    return rows, failures


def _workload(path: Path) -> Case:
    return Case(str(path), Section.GOALS, lambda: pod_list(path), CASES["openb-default"].runs[:2])


def _runs(case: Case, budgets: Sequence[float] | None) -> Sequence[Run]:
    """The case's own runs, or one of each budget, with the goal that the case has for the same time."""
    if not budgets:
        return case.runs
    goals = {run.budget_seconds: run.goal for run in case.runs}
    return [Run(seconds, goals.get(seconds)) for seconds in budgets]


def _rows(case: Case, runs: Sequence[Run]) -> Iterator[Result]:
    """Every run in a process of its own; of a growing case only the first that reaches the goal, or the last.

    Raises subprocess.SubprocessError where the process fails or takes far longer than its budget."""
    growing = case.section in (Section.CLASSES, Section.PODS)
    for run in runs:
        what = ["--workload" if case.name not in CASES else "--case", case.name]
        command = [sys.executable, "-m", "bench.planner", *what, "--budget", repr(run.budget_seconds), "--here"]
        patience = 60 + 20 * run.budget_seconds
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=patience)
        rows = [Result(**fields) for fields in json.loads(done.stdout)]
        if not growing:
            yield from rows
        elif run is runs[-1] or all(row.met for row in rows):
            yield from rows
            return


if __name__ == "__main__":
    main()
