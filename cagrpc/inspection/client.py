"""`cagrpc explain`: the expander's last decision or a ProvisioningRequest, asked of a running server, or why a plan is
as it is."""

from __future__ import annotations

import argparse
import http.client
import json
import re
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from cagrpc.cli import explanations, provisioning
from cagrpc.cli.planning import plan_from_files, watched
from cagrpc.config.load import parse_address
from cagrpc.errors import InvalidInput, Unavailable, did_you_mean
from cagrpc.output import console, print_json, table
from solver import Budget, explain

HTTP_SECONDS = 5.0
_NEXT = re.compile(r'<(/[^>]*)>; rel="next"')
REQUEST_KINDS = ("provisioningrequest", "provisioningrequests", "provreq")
TIMES_THE_BUDGET = 5.0
"""How long explaining may take, at most, compared with planning: it plans many variations."""


def run(options: argparse.Namespace) -> int:
    """Any of the three."""
    if options.subject:
        return _request(options)
    if options.last:
        return _last(options)
    if not (options.pods and options.provisioners):
        raise InvalidInput(
            "explain: give --last, or provisioningrequest NAME, or --pods and --provisioners as for `cagrpc plan`"
        )
    planned = plan_from_files(options)
    budget = Budget(planned.budget.seconds * TIMES_THE_BUDGET)
    explanation = watched("explaining the plan", lambda: explain(planned.problem, planned.plan, budget))
    if options.output == "json":
        print_json(explanations.as_json(planned, explanation))
    else:
        explanations.print_explanation(planned, explanation, console())
    return 0


def _last(options: argparse.Namespace) -> int:
    decisions = get_json(options.http, "/decisions?limit=1")
    if not decisions:
        raise Unavailable(f"the server at {options.http} has decided nothing yet: CA asks while pods are pending")
    if options.output == "json":
        print_json(decisions[-1])
    else:
        _print_decision(decisions[-1], console())
    return 0


def _request(options: argparse.Namespace) -> int:
    if len(options.subject) != 2 or options.subject[0] not in REQUEST_KINDS:
        raise InvalidInput(f"explain: found {' '.join(options.subject)!r}, expected provisioningrequest NAME")
    key = f"{options.namespace}/{options.subject[1]}"
    records = {f"{each['namespace']}/{each['name']}": each for each in get_list(options.http, "/provisioningrequests")}
    if key not in records:
        raise InvalidInput(
            f"the server at {options.http} serves no ProvisioningRequest {key}{did_you_mean(key, records)}; one of a"
            " class that is not cagrpc's is left to others"
        )
    if options.output == "json":
        print_json(records[key])
    else:
        provisioning.print_request(records[key], console())
    return 0


def get_json(address: str, path: str) -> Any:
    """A page of a server's HTTP side. Raises Unavailable where it does not answer."""
    return _page(address, path)[0]


def get_list(address: str, path: str) -> list[Any]:
    """A list, oldest first, of as many pages as it has. Raises Unavailable where the server does not answer."""
    found: list[Any] = []
    following = path
    while following:
        page, following = _page(address, following)
        found[:0] = page
    return found


def _page(address: str, path: str) -> tuple[Any, str]:
    """A page, and where the next one is; empty where there is none."""
    where = parse_address(address)
    connection = http.client.HTTPConnection(where.host, where.port, timeout=HTTP_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise Unavailable(f"http://{address}{path} answers {answer.status} {answer.reason}")
        following = _NEXT.fullmatch(answer.headers["Link"] or "")
        return json.loads(body), following[1] if following else ""
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
