"""The slack object (Slack, cagrpc.io/v1alpha1): what people see of the slack in the cluster, who owns all that carries
it, and where placeholders were when another process begins. One object, written by the one that leads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cagrpc.api.encoding.times import timestamp
from cagrpc.controllers.slack.model import SlackState
from cagrpc.errors import Conflict, NotFound, Unavailable
from cagrpc.kube.journal.objects import pack, unpack
from cagrpc.runtime.clock import MonotonicClock, monotonic
from solver.slack.model import Placement

log = logging.getLogger(__name__)

NAME = "cagrpc"
WRITE_SECONDS = 5.0
"""It is written at most so often: placeholders may move each second."""
LOOK_SECONDS = 30.0
"""Where there is nothing to write it is looked so often whether the object is still there."""
_API = "cagrpc.io/v1alpha1"
_MOST_WARNINGS = 20


class RecordClient(Protocol):
    """What of `cagrpc.kube.client.Client` is needed."""

    def get(self, path: str) -> dict[str, Any]: ...

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class SlackObject:
    """For one thread. Raises Unavailable where the cluster is out of reach, or does not know the kind."""

    def __init__(
        self,
        client: RecordClient,
        namespace: str,
        *,
        carrier: Callable[[], str] = str,
        clock: MonotonicClock = monotonic,
    ) -> None:
        """`carrier` is the name of who carries, empty before that is known; `clock` gives seconds that only grow."""
        self._client = client
        self._collection = f"/apis/{_API}/namespaces/{namespace}/slacks"
        self._path = f"{self._collection}/{NAME}"
        self._namespace = namespace
        self._carrier = carrier
        self._clock = clock
        self._uid = ""
        self._written: tuple[SlackState, str] | None = None
        self._write_at = self._look_at = float("-inf")

    def owner(self) -> Mapping[str, Any]:
        """metav1.OwnerReference of the object, which is made where there is none."""
        if not self._uid:
            self._there()
        return {"apiVersion": _API, "kind": "Slack", "name": NAME, "uid": self._uid}

    def placements(self) -> Placement:
        """As they were written last; nothing where none were, or where they cannot be read."""
        text = self._there().get("status", {}).get("placements", "")
        try:
            return _placement(unpack(text)) if text else {}
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("where placeholders were cannot be read from %s, they begin anew: %s", self._path, error)
            return {}

    def write(self, state: SlackState) -> None:
        now, told = self._clock(), (state, self._carrier())
        if told == self._written:
            if now >= self._look_at:
                self._there()  # somebody may have deleted it
        elif now >= self._write_at or self._written is None or told[1] != self._written[1]:
            self._tell(*told)

    def _tell(self, state: SlackState, carrier: str) -> None:
        self._write_at = self._clock() + WRITE_SECONDS
        try:
            self._client.patch(f"{self._path}/status", {"status": status(state, carrier)})
        except NotFound:
            self._there()
            raise Conflict(f"{self._path} was not there; it is made anew") from None
        self._written = state, carrier

    def _there(self) -> dict[str, Any]:
        found = self._found()
        uid = str(found["metadata"]["uid"])
        if uid != self._uid:
            self._uid, self._written = uid, None  # another one: nothing is written there
        self._look_at = self._clock() + LOOK_SECONDS
        return found

    def _found(self) -> dict[str, Any]:
        try:
            return self._client.get(self._path)
        except NotFound:
            body = {"apiVersion": _API, "kind": "Slack", "metadata": {"name": NAME, "namespace": self._namespace}}
        try:
            return self._client.create(self._collection, body)
        except NotFound as error:
            raise Unavailable(
                f"the custom resource slacks.cagrpc.io, or namespace {self._namespace}, is not there:"
                " kubectl apply -f deploy/slack-crds.yaml"
            ) from error


def status(state: SlackState, carrier: str) -> dict[str, Any]:
    """Always the same keys, so that it can be sent as a merge patch."""
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
    """Raises ValueError, TypeError or AttributeError for anything that was not written here."""
    return {
        str(shape): {str(node): int(count) for node, count in there.items() if int(count) > 0}
        for shape, there in found.items()
    }
