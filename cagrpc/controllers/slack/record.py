"""The Slack object (cagrpc.io/v1alpha1): the status of the slack in the cluster, the owner of all that its carriers
create, and the placement that the next process starts from. One object, written by the leader. The same state is shown
as JSON, for `/slack` and `cagrpc slack`, and as metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client.core import Metric

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.controllers.assume_cache.slack import SlackState, target_of
from cagrpc.errors import Conflict, NotFound, Unavailable
from cagrpc.kube.client.client import Client
from cagrpc.kube.journal.objects import pack, unpack
from cagrpc.runtime.clock import MonotonicClock, monotonic
from cagrpc.runtime.metrics import gauges
from solver.model.quantities import format_quantities
from solver.slack.model import Placement

log = logging.getLogger(__name__)

NAME = "cagrpc"
WRITE_SECONDS = 5.0
"""The shortest time between two writes, since placeholders may move every second."""
CHECK_SECONDS = 30.0
"""How often the object is checked to exist while there is nothing to write."""
_API = "cagrpc.io/v1alpha1"
_MOST_WARNINGS = 20


class SlackObject:
    """Reads and writes the object. For one thread. Raises Unavailable where the cluster is not reachable or does not
    serve the kind."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        carrier: Callable[[], str] = str,
        clock: MonotonicClock = monotonic,
    ) -> None:
        """`carrier` returns the name of the current one, empty before it is known."""
        self._client = client
        self._collection = f"/apis/{_API}/namespaces/{namespace}/slacks"
        self._path = f"{self._collection}/{NAME}"
        self._namespace = namespace
        self._carrier = carrier
        self._clock = clock
        self._uid = ""
        self._written: tuple[SlackState, str] | None = None
        self._write_at = self._check_at = float("-inf")

    def owner(self) -> Mapping[str, Any]:
        """Return the metav1.OwnerReference of the object, which is created if it does not exist."""
        if not self._uid:
            self._ensure()
        return {"apiVersion": _API, "kind": "Slack", "name": NAME, "uid": self._uid}

    def placements(self) -> Placement:
        """Return the placement that was written last; empty where there is none, or an invalid one."""
        text = self._ensure().get("status", {}).get("placements", "")
        try:
            return _placement(unpack(text)) if text else {}
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("status.placements of %s is invalid, placeholders are placed again: %s", self._path, error)
            return {}

    def write(self, state: SlackState) -> None:
        """Write the state if it has changed and the last write is long enough ago. Raises Conflict where the object was
        deleted; it is created again then."""
        now, current = self._clock(), (state, self._carrier())
        if current == self._written:
            if now >= self._check_at:
                self._ensure()  # somebody may have deleted it
        elif now >= self._write_at or self._written is None or current[1] != self._written[1]:
            self._write_status(*current)

    def _write_status(self, state: SlackState, carrier: str) -> None:
        try:
            self._client.patch(f"{self._path}/status", {"status": status(state, carrier)})
        except NotFound:
            self._ensure()
            raise Conflict(f"{self._path} did not exist; it is created again") from None
        self._written, self._write_at = (state, carrier), self._clock() + WRITE_SECONDS

    def _ensure(self) -> dict[str, Any]:
        found = self._get_or_create()
        uid = str(found["metadata"]["uid"])
        if uid != self._uid:
            self._uid, self._written = uid, None  # another one, without a status
        self._check_at = self._clock() + CHECK_SECONDS
        return found

    def _get_or_create(self) -> dict[str, Any]:
        try:
            return self._client.get(self._path)
        except NotFound:
            body = {"apiVersion": _API, "kind": "Slack", "metadata": {"name": NAME, "namespace": self._namespace}}
        try:
            return self._client.create(self._collection, body)
        except NotFound as error:
            raise Unavailable(
                f"the custom resource slacks.cagrpc.io, or namespace {self._namespace}, does not exist:"
                " kubectl apply -f deploy/slack-crds.yaml"
            ) from error


def status(state: SlackState, carrier: str) -> dict[str, Any]:
    """Return the object's status; always with the same keys, so that it can be sent as a merge patch."""
    by_target = state.by_target()
    return {
        "carrier": carrier,
        "since": timestamp(state.at_seconds),
        "wanted": sum(each.wanted for each in by_target.values()),
        "held": sum(each.held for each in by_target.values()),
        "leftOver": sum(each.left_over for each in by_target.values()),
        "costPerHour": round(sum(each.cost_usd_per_hour for each in by_target.values()), 4),
        "targets": [
            {
                "name": name,
                "wanted": each.wanted,
                "held": each.held,
                "pushedOut": each.pushed_out,
                "leftOver": each.left_over,
                "costPerHour": round(each.cost_usd_per_hour, 4),
            }
            for name, each in by_target.items()
        ],
        "warnings": list(state.warnings[:_MOST_WARNINGS]),
        "placements": pack(state.placement),
    }


def _placement(found: Any) -> Placement:
    """Return a decoded placement. Raises ValueError, TypeError or AttributeError where it is invalid."""
    return {
        str(shape): {str(node): int(count) for node, count in by_node.items() if int(count) > 0}
        for shape, by_node in found.items()
    }


def as_json(state: SlackState, carrier: str, problem: str = "") -> Mapping[str, Any]:
    """Return the state as JSON. `carrier` is the name of the current one, empty before it is known; `problem` is why it
    does not carry everything."""
    return {
        "carrier": carrier,
        "problem": problem,
        "at_seconds": state.at_seconds,
        "targets": [{"target": name, **asdict(counts)} for name, counts in state.by_target().items()],
        "shapes": [
            {
                "name": shape.name,
                "target": target_of(shape.name),
                "why": shape.why,
                "requests": format_quantities(shape.spec.requests),
                "wanted": shape.count,
                "held": sum(state.placement.get(shape.name, {}).values()),
                "pushed_out": state.pushed_out.get(shape.name, 0),
                "left_over": state.left_over.get(shape.name, 0),
                "nodes": dict(state.placement.get(shape.name, {})),
            }
            for shape in state.shapes
        ],
        "warnings": [*state.warnings],
    }


def metrics(state: SlackState) -> Iterator[Metric]:
    """Yield placeholders and their cost, by target."""
    by_target = state.by_target()
    yield gauges(
        "cagrpc_slack_placeholders",
        "Wanted placeholders: `held`, `pushed_out` by pods, `waiting` for room.",
        ("target", "state"),
        {
            (name, what): count
            for name, each in by_target.items()
            for what, count in (
                ("held", each.held),
                ("pushed_out", each.pushed_out),
                ("waiting", each.left_over - each.pushed_out),
            )
        },
    )
    yield gauges(
        "cagrpc_slack_cost_usd_per_hour",
        "What the nodes' share that placeholders take costs.",
        ("target",),
        {(name,): each.cost_usd_per_hour for name, each in by_target.items()},
    )
