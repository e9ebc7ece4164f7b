"""What the page at `/` is told, section by section, out of the JSON of the other pages. Each section is bounded,
whatever the size of the fleet, and has nothing that changes while nothing happens, so that it is sent only when there
is news. How it is sent is `feed`'s, how it looks `static`'s."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from cagrpc.errors import CagrpcError
from cagrpc.runtime.controller import Json, JsonList, JsonPage
from solver.model.money import hourly

log = logging.getLogger(__name__)

MOST_ROWS = 100
"""How many rows a table has. What is left out is counted."""
_FEW = 20
_FINISHED = 10
_NAMED = 10
_LOGGED = 60
_MOST_CELLS = 200
"""Of a node group's picture; a larger one is shown by quarters."""
_LONGEST_TEXT = 600
_LONGEST_LIST = 20
"""How many members a list within a row has: reasons, ways."""
_FINISHED_PHASES = ("done", "rolled-back")
_STATES = ("creating", "running", "deleting", "failed")


class Digest:
    """Makes sections again and again. Rows of what has not changed since the last time (the same immutable object) are
    taken from there: most of a large fleet, and of its history, stays as it is. Not for several threads at once."""

    def __init__(self) -> None:
        self._made: dict[str, dict[int, tuple[Any, Any]]] = {}

    def sections(self, pages: Mapping[str, JsonPage]) -> dict[str, Json]:
        """Return the sections by name. One that cannot be made has a `problem`, and keeps no other from being shown."""
        found: dict[str, Json] = {}
        for name, (path, section) in _SECTIONS.items():
            page = pages.get(path)
            try:
                found[name] = _bounded(section(page.get(), partial(self._rows, name))) if page is not None else {}
            except CagrpcError as error:
                found[name] = {"problem": str(error)[:_LONGEST_TEXT]}
            except Exception:
                log.exception("the section %s of the page failed unexpectedly", name)
                found[name] = {"problem": "failed unexpectedly; the server's log has the traceback"}
        return found

    def _rows(self, section: str, page: JsonList, make: Callable[[Json], Any]) -> list[Any]:
        """Return a row of each item, oldest first."""
        before, now, rows = self._made.get(section, {}), {}, []
        for item in page.items:
            known = before.get(id(item))
            row = known[1] if known is not None and known[0] is item else make(page.as_json(item))
            now[id(item)] = (item, row)  # which keeps the item, so that no other one has its id
            rows.append(row)
        self._made[section] = now
        return rows


Rows = Callable[[JsonList, Callable[[Json], Any]], list[Any]]


def _status(status: Any, _: Rows) -> Json:
    state = ("ready", "why_not_ready", "drive", "cluster", "planner", "waiting_pods", "expected_pods")
    shown = (*state, "demonstration", "scene")
    return {**{name: status[name] for name in shown if name in status}, "warnings": [*warnings_of(status)]}


def warnings_of(status: Json) -> Iterable[str]:
    """Yield what somebody should look at, of `/status`."""
    if status.get("compiling"):
        yield status["compiling"]
    if status.get("backend_problem"):
        yield f"the backend: {status['backend_problem']}"
    if status.get("certificates_problem"):
        yield f"certificates: {status['certificates_problem']}"
    yield from dict.fromkeys(each["warning"] for each in status.get("certificates", ()) if each["warning"])
    for name, count in status.get("left_out", {}).items():
        yield f"objects of {name} that cannot be read and are left out: {count}"
    for name, why in status.get("not_followed", {}).items():
        yield f"{name}: {why}"
    if status.get("orphans"):
        yield f"instances whose node group nobody serves: {', '.join([*status['orphans']][:_NAMED])}"


def _fleet(groups: JsonList, rows_of: Rows) -> Json:
    rows = sorted(rows_of(groups, dict), key=lambda row: (-row["weight"], -_cost(row), row["id"]))
    tiers: dict[int, dict[str, Any]] = {}
    for row in rows:
        tier = tiers.setdefault(
            row["weight"],
            {"weight": row["weight"], "provisioners": {}, "groups": 0, "target_size": 0, "cost_usd_per_hour": 0.0}
            | dict.fromkeys(_STATES, 0),
        )
        tier["provisioners"][row["provisioner"]] = None
        tier["groups"] += 1
        tier["target_size"] += row["target_size"]
        tier["cost_usd_per_hour"] += _cost(row)
        for state in _STATES:
            tier[state] += row["instances"].get(state, 0)
    used = [row for row in rows if row["target_size"] or row["instances"]]
    return {
        "target_size": sum(row["target_size"] for row in rows),
        "failed": sum(row["instances"].get("failed", 0) for row in rows),
        "cost_usd_per_hour": sum(map(_cost, rows)),
        "tiers": [_tier(each) for each in [*tiers.values()][:MOST_ROWS]],
        "groups": [_group(row) for row in used[:MOST_ROWS]],
        "groups_left_out": max(0, len(used) - MOST_ROWS),
        "groups_without_nodes": len(rows) - len(used),
    }


def _tier(tier: Mapping[str, Any]) -> Json:
    names = [*tier["provisioners"]]
    return {**tier, "provisioners": names[:_NAMED], "provisioners_left_out": max(0, len(names) - _NAMED)}


def _group(row: Json) -> Json:
    shown = ("id", "provisioner", "weight", "instance_type", "zone", "capacity_type", "target_size", "max_size")
    states = {state: row["instances"].get(state, 0) for state in _STATES}
    return {name: row[name] for name in shown} | states | {"cost_usd_per_hour": _cost(row)}


def _cost(row: Json) -> float:
    return float(row["price_usd_per_hour"] * row["target_size"])


def _increments(increments: JsonList, _: Rows) -> Json:
    rows = [increments.as_json(each) for each in increments.items]  # how many instances run is in none of the items
    in_flight = [row for row in rows if row["phase"] not in _FINISHED_PHASES]
    finished = [row for row in rows if row["phase"] in _FINISHED_PHASES]
    return {
        "in_flight": [_increment(row) for row in in_flight[:MOST_ROWS]],
        "in_flight_left_out": max(0, len(in_flight) - MOST_ROWS),
        "finished": [_increment(row) for row in finished[: -_FINISHED - 1 : -1]],
    }


def _increment(row: Json) -> Json:
    what = ("id", "phase", "origin", "pods", "nodes", "nodes_running", "cost_usd_per_hour", "gap")
    shown = (*what, "pods_like")
    times = ("created_at_seconds", "deadline_at_seconds")
    return {
        **{name: row[name] for name in (*shown, *times)},
        "message": row["message"] or row["reason"],
        "requests": len(row["requests"]),
        "deltas": dict([*row["deltas"].items()][:_FEW]),
        "deltas_left_out": max(0, len(row["deltas"]) - _FEW),
    }


def _nodes(nodes: JsonList, _: Rows) -> Json:
    """Return by node group how full its nodes are, and up to MOST_ROWS nodes, the emptiest first."""
    rows = [nodes.as_json(each) for each in nodes.items]
    groups: dict[str, list[Json]] = {}
    for row in rows:
        groups.setdefault(row["node_group"], []).append(row)
    emptiest = sorted(rows, key=lambda row: (_fullness(row), row["name"]))
    largest = sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))
    return {
        "groups": [_how_full(name, of) for name, of in largest[:MOST_ROWS]],
        "nodes": [
            {**row, "used": {name: _share(*of) for name, of in row["used"].items()}} for row in emptiest[:MOST_ROWS]
        ],
        "nodes_left_out": max(0, len(rows) - MOST_ROWS),
    }


def _how_full(name: str, rows: Sequence[Json]) -> Json:
    used: dict[str, list[float]] = {}
    for row in rows:
        for resource, (taken, there) in row["used"].items():
            sums = used.setdefault(resource, [0.0, 0.0])
            sums[0] += taken
            sums[1] += there
    fullness = sorted(map(_fullness, rows), reverse=True)
    return {
        "id": name,
        "nodes": len(rows),
        "used": {resource: _share(*sums) for resource, sums in used.items()},
        "cells": "".join(str(min(9, int(10 * each))) for each in fullness) if len(rows) <= _MOST_CELLS else "",
        "quarters": [sum(min(3, int(4 * each)) == quarter for each in fullness) for quarter in range(4)],
    }


def _fullness(row: Json) -> float:
    """Return the share of a node that is taken of what is taken most."""
    return max((taken / there for taken, there in row["used"].values() if there), default=0.0)


def _share(taken: float, there: float) -> float:
    return round(taken / there, 3) if there else 0.0


def _history(samples: JsonList, _: Rows) -> Json:
    """Return at most MOST_ROWS points, evenly over the time that is known: of each span the last cost and number of
    nodes, and the most pods that waited, None where nobody knows of pods."""
    rows = [samples.as_json(each) for each in samples.items]
    if len(rows) < 2:
        return {"points": []}
    first, last = rows[0]["at_seconds"], rows[-1]["at_seconds"]
    spans: dict[int, list[Any]] = {}
    for row in rows:
        span = int((MOST_ROWS - 1) * (row["at_seconds"] - first) / max(1.0, last - first))
        waited = [row["waiting_pods"], spans[span][3] if span in spans else None]
        most = max((each for each in waited if each is not None), default=None)
        spans[span] = [row["at_seconds"], row["usd_per_hour"], row["nodes"], most]
    return {"points": [*spans.values()]}


def _log(lines: JsonList, _: Rows) -> Json:
    return {"lines": [lines.as_json(each) for each in lines.items[: -_LOGGED - 1 : -1]]}


def _decisions(decisions: JsonList, rows_of: Rows) -> Json:
    rows = rows_of(JsonList(decisions.items[-_FEW:], decisions.as_json), _decision)[::-1]
    brief = ({**row, "options": [], "options_left_out": 0} for row in rows[1:])
    return {"decisions": [*rows[:1], *brief]}


def _decision(row: Json) -> Json:
    options = row["options"]
    chosen = next((each for each in options if each["node_group"] == row["chosen"]), None)
    shown = ("at_seconds", "chosen", "reason", "ranked_by", "elapsed_seconds")
    best = sorted(options, key=lambda each: (bool(each["left_out"]), each["score"]))
    return {
        **{name: row[name] for name in shown},
        "nodes": chosen["node_count"] if chosen else 0,
        "pods": chosen["pods"] if chosen else 0,
        "cost_usd_per_hour": chosen["cost_usd_per_hour"] if chosen else None,
        "cost": chosen["cost_usd_per_hour"] if chosen else None,
        "considered": len(options),
        "options": [_option(each) for each in best[:_FEW]],
        "options_left_out": max(0, len(best) - _FEW),
    }


def _option(option: Json) -> Json:
    shown = ("node_group", "node_count", "pods", "cost_usd_per_hour", "reason", "left_out")
    return {name: option[name] for name in shown} | {"example": next(iter(option["examples"]), "")}


def _episodes(episodes: JsonList, rows_of: Rows) -> Json:
    return {"episodes": rows_of(JsonList(episodes.items[-_FEW:], episodes.as_json), _episode)[::-1]}


def _episode(row: Json) -> Json:
    shown = ("id", "opened_at_seconds", "closed_at_seconds", "pods", "better", "saving_usd_per_hour", "said")
    return {
        **{name: row[name] for name in shown},
        **{side: None if row[side] is None else _figures(row[side]) for side in ("came", "planned")},
    }


def _figures(side: Json) -> Json:
    return {name: side[name] for name in ("usd_per_hour", "node_count", "unserved", "waited_seconds")}


def _rounds(plans: JsonList, rows_of: Rows) -> Json:
    return {"rounds": [row for row in rows_of(plans, _round) if row is not None]}


def _round(row: Json) -> Json | None:
    if not (row["pods"] or row["placeholders"]):
        return None
    shown = ("id", "at_seconds", "why", "pods", "nodes", "on_existing", "status", "planned_cost_per_hour")
    more = ("lower_bound_per_hour", "gap", "unserved_unproven", "elapsed_seconds")
    return {
        **{name: row[name] for name in (*shown, *more)},
        "unplaced": sum(each["count"] for each in row["unplaced"]),
        "increments": [{"id": each["id"], "phase": each["phase"]} for each in row["increments"]],
    }


def _waiting(plans: JsonList, _: Rows) -> Json:
    if not plans.items:
        return {}
    last = plans.as_json(plans.items[-1])
    waiting = [{**each, "count": each.get("waiting", each["count"])} for each in last["unplaced"]]
    waiting = [each for each in waiting if each["count"]]  # others are deleted, or run
    left = waiting[MOST_ROWS:]
    gangs = last["incomplete_gangs"]
    return {
        "at_seconds": last["at_seconds"],
        "unplaced": waiting[:MOST_ROWS],
        "left_out": len(left),
        "left_out_pods": sum(each["count"] for each in left),
        "gangs": gangs[:_FEW],
        "gangs_left_out": max(0, len(gangs) - _FEW),
        "gangs_left_out_pods": sum(each["pods"] for each in gangs[_FEW:]),
        "shortages": last["shortages"][:_FEW],
        "shortages_left_out": max(0, len(last["shortages"]) - _FEW),
        "limited": last["limited"]["text"] if last["limited"] else "",
        "warnings": last["warnings"],
    }


def _requests(requests: JsonList, _: Rows) -> Json:
    rows = [requests.as_json(each) for each in requests.items]
    shown = ("namespace", "name", "class", "phase", "explanation", "pods", "attempts", "retry_at", "node_groups")
    return {
        "phases": dict(Counter(row["phase"] for row in rows)),
        "requests": [{**{name: row[name] for name in shown}, **_costs_of(row)} for row in rows[: -MOST_ROWS - 1 : -1]],
        "left_out": max(0, len(rows) - MOST_ROWS),
    }


def _costs_of(row: Json) -> Json:
    """Return what a request's details say in text, as numbers; none of what is not a number."""
    return {name: _number(row[name]) for name in ("cost_per_hour", "lower_bound_per_hour", "gap")}


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _slack(slack: Any, _: Rows) -> Json:
    if not slack:
        return {}
    shown = ("name", "target", "why", "requests", "wanted", "held", "pushed_out", "left_over")
    shapes = [{name: each[name] for name in shown} | {"nodes": len(each["nodes"])} for each in slack["shapes"]]
    return {
        **{name: slack[name] for name in ("carrier", "warnings")},
        "not_carried": slack["problem"],
        "targets": slack["targets"][:MOST_ROWS],
        "shapes": shapes[:MOST_ROWS],
        "shapes_left_out": max(0, len(shapes) - MOST_ROWS),
    }


def _consolidation(consolidation: Any, _: Rows) -> Json:
    if not consolidation:
        return {}
    held_by, plan = consolidation["held_by"], consolidation["plan"]
    costs = ("cost_usd_per_hour", "cost_after_usd_per_hour", "least_usd_per_hour", "saving_usd_per_hour")
    shown = ("at_seconds", *costs, "steps_planned", "steps", "stays")
    return {
        **{name: consolidation[name] for name in ("mode", "waits_for", "under_way", "last", "paused")},
        "held_by": held_by[:MOST_ROWS],
        "held_by_left_out": max(0, len(held_by) - MOST_ROWS),
        "plan": None if plan is None else {name: plan[name] for name in shown},
    }


def _bounded(value: Any, depth: int = 0, *, named_by_users: bool = False) -> Any:
    """Return the value with long texts and long inner lists cut, and numbers that JSON does not have as null."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]} …"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        members: dict[Any, Any] = {}
        for name, each in value.items():
            is_money = _is_money(name, each) and not named_by_users
            if is_money:
                members[f"{name}_said"] = hourly(each)
            if name in _DRAWN or not is_money:
                members[name] = _bounded(each, depth + 1, named_by_users=name in _NAMED_BY_USERS)
        return members
    if isinstance(value, Sequence):
        most = MOST_ROWS if depth <= 1 else _LONGEST_LIST
        cut = [f"… and {len(value) - most} more"] if len(value) > most else []
        return [*(_bounded(each, depth + 1) for each in value[:most]), *cut]
    return value


_DRAWN = ("planned_cost_per_hour", "lower_bound_per_hour", "saving_usd_per_hour")
"""Members that are sent as numbers, too: charts are drawn of them."""
_NAMED_BY_USERS = ("deltas", "requests", "used")
"""Mappings whose members are node groups and resources, which may be called as they like."""


def _is_money(name: object, value: object) -> bool:
    """Whether a member is dollars an hour, which are sent as they are said: rounding has one home."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return isinstance(name, str) and name.endswith("_per_hour") and is_number


_SECTIONS: Mapping[str, tuple[str, Callable[[Any, Rows], Json]]] = {
    "status": ("/status", _status),
    "fleet": ("/nodegroups", _fleet),
    "increments": ("/increments", _increments),
    "decisions": ("/decisions", _decisions),
    "nodes": ("/nodes", _nodes),
    "history": ("/history", _history),
    "log": ("/log", _log),
    "episodes": ("/episodes", _episodes),
    "rounds": ("/plans", _rounds),
    "waiting": ("/plans", _waiting),
    "requests": ("/provisioningrequests", _requests),
    "slack": ("/slack", _slack),
    "consolidation": ("/consolidation", _consolidation),
}
