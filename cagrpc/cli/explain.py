"""`cagrpc explain`: the expander's last decision, asked of a running server, or why a plan puts pods where it does."""

from __future__ import annotations

import argparse
import http.client
import json
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from cagrpc.cli.output import console, print_json, table
from cagrpc.cli.plan import requests_of, sentence_of_cost
from cagrpc.cli.planning import Planned, plan_from_files
from cagrpc.config.load import parse_address
from cagrpc.errors import InvalidInput, Unavailable

HTTP_SECONDS = 5.0


def run(options: argparse.Namespace) -> int:
    """Either of the two."""
    if options.last:
        return _last(options)
    if not (options.pods and options.provisioners):
        raise InvalidInput("explain: give --last, or --pods and --provisioners as for `cagrpc plan`")
    planned = plan_from_files(options)
    if options.output == "json":
        print_json(placements(planned))
    else:
        _print_placements(planned, console())
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


def placements(planned: Planned) -> dict[str, Any]:
    """Class by class: where its pods are, and why the others have no place."""
    plan = planned.plan
    unplaced = {each.pod_class: each for each in plan.unplaced}
    classes = []
    for each in plan.pod_classes:
        on_new: dict[str, int] = {}
        for nodes in plan.nodes:
            if each.index in nodes.pods:
                on_new[nodes.node_group] = on_new.get(nodes.node_group, 0) + nodes.count * nodes.pods[each.index]
        missing = unplaced.get(each.index)
        classes.append(
            {
                "id": each.index,
                "example": each.example,
                "count": each.count,
                "requests": requests_of(each),
                "new_nodes": on_new,
                "existing": {node.node: node.pods[each.index] for node in plan.existing if each.index in node.pods},
                "unplaced": missing.count if missing else 0,
                "reasons": list(missing.reasons) if missing else [],
            }
        )
    return {"classes": classes, "summary": sentence_of_cost(planned)}


def _print_placements(planned: Planned, out: Console) -> None:
    result = table("Where pods go", "pods", "like", "requests", "where", "why not", right=("pods",))
    for each in placements(planned)["classes"]:
        where = [
            f"{pods} on new nodes of {group_id} ({_of(planned, group_id)})"
            for group_id, pods in each["new_nodes"].items()
        ]
        if each["existing"]:
            where.append(f"{sum(each['existing'].values())} on {len(each['existing'])} nodes that stand already")
        if each["unplaced"]:
            where.append(f"{each['unplaced']} nowhere")
        requests = ", ".join(f"{name} {quantity}" for name, quantity in each["requests"].items())
        result.add_row(str(each["count"]), each["example"], requests, "\n".join(where), "\n".join(each["reasons"]))
    out.print(result)
    out.print(sentence_of_cost(planned), soft_wrap=True)


def _of(planned: Planned, group_id: str) -> str:
    group = planned.groups[group_id]
    return f"weight {group.weight}, ${group.price_usd_per_hour:.4f}/h each"
