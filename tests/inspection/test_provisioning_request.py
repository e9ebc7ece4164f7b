"""`cagrpc explain provisioningrequest` for people, and what it says of wrong names."""

from __future__ import annotations

import io
import re
from typing import Any

from cagrpc.inspection.pages import print_request
from cagrpc.tables import console
from tests.support.serving import Serving, cagrpc

RECORD: dict[str, Any] = {
    "namespace": "team",
    "name": "train",
    "uid": "u-1",
    "class": "atomic-scale-up.kubernetes.io",
    "behaviour": "atomic-scale-up",
    "phase": "waiting",
    "explanation": "7 of 8 pods of worker fit; all 8 if gpu-b may grow by 1",
    "created": "2026-01-01T00:00:00Z",
    "priority": 0,
    "pods": 10,
    "pod_sets": [
        {"template": "worker", "count": 8, "consumed": 0},
        {"template": "head", "count": 2, "consumed": 1},
    ],
    "attempts": 2,
    "retry_at": "2026-01-01T00:04:00Z",
    "bypassed": 0,
    "increment": {"id": "ab12", "phase": "rolled-back", "message": "gpu-b has no capacity"},
    "cost_per_hour": "12.5000",
    "lower_bound_per_hour": "12.5000",
    "gap": "0.0000",
    "node_groups": "cpu=1,gpu-b=8",
    "node_selector": "booking.cagrpc.io/u-1=true",
    "nodes": [],
    "consumers": 0,
    "conditions": {"Provisioned": {"status": False, "reason": "CapacityIsNotFound", "message": "gpu-b is short"}},
}


def test_why_comes_before_what_it_costs() -> None:
    stream = io.StringIO()
    print_request(RECORD, console(stream))
    text = stream.getvalue()
    assert text.startswith("team/train: waiting\n7 of 8 pods of worker fit; all 8 if gpu-b may grow by 1\n")
    for told in ("failed tries: 2", "cost: $12.50/h", "its nodes: booking.cagrpc.io/u-1=true", "gpu-b has no capacity"):
        assert told in text
    assert "bypassed" not in text
    cells = [[cell.strip() for cell in re.split("[│|]", line) if cell.strip()] for line in text.splitlines()]
    assert ["head", "2", "1"] in cells
    assert "CapacityIsNotFound" in text


def test_a_request_that_nobody_knows(demonstration: Serving) -> None:
    http = ("--http", demonstration.endpoints["http"])
    done = cagrpc("explain", "provisioningrequest", "train", *http)
    assert (done.returncode, done.stdout) == (2, "")
    assert "serves no ProvisioningRequest default/train" in done.stderr
    done = cagrpc("explain", "train", *http)
    assert done.returncode == 2
    assert done.stderr == 'cagrpc: explain: found "train", expected provisioningrequest NAME\n'
