"""Keeps what is remembered of failed scale-ups beyond the process. Replicas share the ConfigMap: it is read once a
minute and before each write, and of each group the later word counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cagrpc.controllers.kept import Keeping
from cagrpc.runtime.controller import Controller, Json
from cagrpc.services.grpc.failed_scale_ups import FailedScaleUps

CONFIG_MAP = "cagrpc-failed-scale-ups"
FILE = "failed-scale-ups.json"
KEY = "failures"
"""Of the ConfigMap."""
_MOST_SHOWN = 20
_STEPS_PER_READ = 12
"""What other replicas have learned is read once a minute."""


class KeptFailures(Controller):
    """Reads and writes it, and shows which groups are set back."""

    name = "keeping failed scale-ups"
    every_seconds = 5.0

    def __init__(self, failed: FailedScaleUps, kept: Keeping) -> None:
        self._failed = failed
        self._kept = kept
        self._written: int | None = None
        """Its version; None as long as what was kept is not read."""
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        if self._failed.version == self._written and self._steps % _STEPS_PER_READ:
            return
        # Others keep theirs in the same place: what they wrote is taken up before it is written over.
        version, kept = self._failed.version, _parsed(self._kept.read())
        self._failed.restore(kept)
        found = self._failed.as_json()
        if found != kept:
            self._kept.write(json.dumps(found, separators=(",", ":")))
        self._written = version

    def status(self) -> Json:
        found = self._failed.set_backs().failed
        shown: dict[str, Any] = {
            name: {
                "times": each.times,
                "why": each.why,
                "until": datetime.fromtimestamp(each.until_seconds, UTC).isoformat(timespec="seconds"),
            }
            for name, each in list(found.items())[:_MOST_SHOWN]
        }
        return {"failed_scale_ups": shown} if shown else {}

    def collectors(self) -> tuple[Collector, ...]:
        return (_GroupsSetBack(self._failed),)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # nothing yet, or what somebody else wrote
        return {}


class _GroupsSetBack(Collector):
    def __init__(self, failed: FailedScaleUps) -> None:
        self._failed = failed

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "cagrpc_expander_groups_set_back",
            "Node groups of another cloud provider that other groups come before, as their last scale-up failed.",
            value=len(self._failed.set_backs().failed),
        )
