"""`cagrpc explain`: the expander's last decision, asked of a running server, or why a plan is as it is."""

from __future__ import annotations

import argparse
import http.client
import json
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from cagrpc.cli import explanations
from cagrpc.cli.output import console, print_json, table
from cagrpc.cli.planning import plan_from_files, watched
from cagrpc.config.load import parse_address
from cagrpc.errors import InvalidInput, Unavailable
from solver import Budget, explain

HTTP_SECONDS = 5.0
TIMES_THE_BUDGET = 5.0
"""How long explaining may take, at most, compared with planning: it plans many variations."""


def run(options: argparse.Namespace) -> int:
    """Either of the two."""
    if options.last:
        return _last(options)
    if not (options.pods and options.provisioners):
        raise InvalidInput("explain: give --last, or --pods and --provisioners as for `cagrpc plan`")
    planned = plan_from_files(options)
    budget = Budget(planned.budget.seconds * TIMES_THE_BUDGET)
    explanation = watched("explaining the plan", lambda: explain(planned.problem, planned.plan, budget))
    if options.output == "json":
        print_json(explanations.as_json(planned, explanation))
    else:
        explanations.print_explanation(planned, explanation, console())
    return 0


def _last(options: argparse.Namespace) -> int:
    decisions = get_json(options.http, "/decisions")
    if not decisions:
        raise Unavailable(f"the server at {options.http} has decided nothing yet: CA asks while pods are pending")
    if options.output == "json":
        print_json(decisions[-1])
    else:
        _print_decision(decisions[-1], console())
    return 0


def get_json(address: str, path: str) -> Any:
    """A page of a server's HTTP side. Raises Unavailable where it does not answer."""
    where = parse_address(address)
    connection = http.client.HTTPConnection(where.host, where.port, timeout=HTTP_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise Unavailable(f"http://{address}{path} answers {answer.status} {answer.reason}")
        return json.loads(body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(
            f"http://{address}{path}: {error or type(error).__name__}; is `cagrpc serve` running?"
        ) from error
    finally:
        connection.close()


def _print_decision(decision: dict[str, Any], out: Console) -> None:
    at = datetime.fromtimestamp(decision["at_seconds"], UTC)
    columns = ("nodes", "pods", "$/h")
    result = table(f"Asked at {at:%Y-%m-%d %H:%M:%S} UTC", "", "node group", *columns, "why", right=columns)
    for option in decision["options"]:
        cost = option["cost_usd_per_hour"]
        result.add_row(
            "chosen" if option["node_group"] == decision["chosen"] else "left out" if option["left_out"] else "",
            option["node_group"],
            str(option["node_count"]),
            str(option["pods"]),
            "" if cost is None else f"{cost:.4f}",
            option["left_out"] or option["reason"],
        )
    out.print(result)
    choice = decision["chosen"] or "nothing (a veto: no scale-up in this loop)"
    out.print(f"chosen: {choice}, in {decision['elapsed_seconds']:.2f} s; {decision['reason']}", soft_wrap=True)
